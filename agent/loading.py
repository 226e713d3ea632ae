"""Finds agents and programs by name, `module:attribute`, as a person in a terminal names them."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..journal import codec
from ..journal.errors import UsageError
from ..journal.journal import Journal
from ..replay.answers import from_json
from ..replay.events import EventBody
from ..replay.program import Program
from ..replay.runner import OnParked, Runner
from . import programs
from .agent import Agent

Runnable = Agent | Program

_ATTRIBUTE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def load(name: str) -> Runnable:
    """
    The agent or program that *name* stands for; the current directory is looked in first.

    What the module prints while it is imported goes to stderr.

    Args:
        name: `module:attribute`; the attribute may be dotted.

    Raises:
        UsageError: The name has another form, the module cannot be imported, or it holds no such thing there.
    """
    module, found = _find(name)
    if not isinstance(found, Agent | Program):
        raise UsageError(
            f"{name!r} is {_article(type(found).__name__)}, neither an Agent nor a program; {_offers(module)}"
        )
    return found


def load_stand_in(text: str) -> tuple[str, Callable[..., Any]]:
    """
    The name of a tool or step, and what is to be called instead of it.

    Args:
        text: `NAME=JSON`, a result whatever the arguments are, or `NAME=module:attribute`, a function.

    Raises:
        UsageError: It has another form, or there is no such function.
    """
    name, equals, what = text.partition("=")
    if not equals or not name or not what:
        raise UsageError(f"--stand-in takes NAME=JSON or NAME=module:attribute, not {text!r}")
    if not _ATTRIBUTE.fullmatch(what):
        value = codec.decode(from_json(what, f"what stands in for {name!r}"))
        return name, lambda *args, **kwargs: copy.deepcopy(value)
    function = _find(what)[1]
    if not callable(function):
        raise UsageError(
            f"{what!r} is {_article(type(function).__name__)}, no function to stand in for {name!r}"
        )
    return name, function


def _find(name: str) -> tuple[ModuleType, Any]:
    """The module and the attribute that *name* stands for."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute or module_name.startswith("."):
        raise UsageError(f"an agent is named module:attribute, as in 'examples.support:agent', not {name!r}")
    here = os.getcwd()  # noqa: PTH109 - a text, as the import system wants it
    if here not in sys.path:
        sys.path.insert(0, here)
    with contextlib.redirect_stdout(sys.stderr):
        module = _imported(module_name)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"module {module_name!r} has no {attribute!r}; {_offers(module)}") from None
    return module, found


def program_of(runnable: Runnable) -> Program:
    """The program to replay."""
    return runnable.program if isinstance(runnable, Agent) else runnable


def load_program(name: str) -> Program:
    """The program to replay of the agent or program that *name* stands for. Raises as `load` does."""
    return program_of(load(name))


def runner_of(
    runnable: Runnable,
    journal: Journal,
    thread: str,
    *,
    observe: Callable[[int, EventBody], None] | None = None,
    on_parked: OnParked | None = None,
) -> Runner:
    """What runs an agent or program on one thread."""
    if isinstance(runnable, Agent):
        return runnable.runner(journal, thread, observe=observe, on_parked=on_parked)
    return programs.runner(runnable, journal, thread, observe=observe, on_parked=on_parked)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"there is no module {error.name!r}, neither in {os.getcwd()!r} nor installed"  # noqa: PTH109
            ) from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> UsageError:
    said = f"{type(error).__name__}: {error}".strip().rstrip(":")
    importers = ("<frozen", importlib.__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(importers)]
    # The first frame is ours; without another one the module itself could not be compiled.
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return UsageError(f"importing {name!r} failed: {said}{where}; --debug shows all of it")


def _offers(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Agent | Program)]
    return f"it offers: {', '.join(sorted(names))}" if names else "it holds neither an Agent nor a program"


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
