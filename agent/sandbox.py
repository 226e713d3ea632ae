"""Programs without effects: their tools and steps are read-only, allowed, stood in for, or refused and told of."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import structs

from ..journal import codec
from ..replay.errors import StepError, ToolError
from ..replay.ports import InDoubt, ToolSpec
from ..replay.program import Program
from ..replay.run import Ask, Run
from ..replay.text import one_line
from .tools import Tool

_WHY = "was not called: this is a trial, and it has effects"


class Guard:
    """
    What a sandboxed program may call.

    Args:
        allow: Names of tools and steps with effects that may be called all the same.
        stand_ins: Functions by the names of the tools and steps that they are called instead of.
    """

    def __init__(self, allow: frozenset[str], stand_ins: Mapping[str, Callable[..., Any]]) -> None:
        self._allow = allow
        self._stand_ins = stand_ins
        self.refused: list[str] = []
        """Calls that were not made, for people."""

    def tool(self, tool: ToolSpec) -> ToolSpec:
        """The tool as the program knows it, without effects unless they are allowed."""
        stand_in = self._stand_ins.get(tool.name)
        if stand_in is None:
            return (
                tool if tool.read_only or tool.name in self._allow else cast("ToolSpec", _Refused(tool, self))
            )
        if not isinstance(tool, Tool):
            return cast("ToolSpec", _Refused(tool, self))
        contexts = frozenset(tool.signature.contexts)

        def instead(**arguments: Any) -> Any:
            return stand_in(**{name: value for name, value in arguments.items() if name not in contexts})

        return structs.replace(
            tool,
            function=instead,
            transactional=False,
            reconciler=None,
            retries=0,
            in_doubt=_settled(tool.in_doubt),
        )

    def step(self, function: Callable[..., Any], *, read_only: bool) -> Callable[..., Any]:
        """The step's function, without effects unless they are allowed."""
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        stand_in = self._stand_ins.get(name)
        if stand_in is None and (read_only or name in self._allow):
            return function

        def instead(*args: Any, **kwargs: Any) -> Any:
            if stand_in is not None:
                return stand_in(*args, **kwargs)
            self.refuse(name, [*args, kwargs] if kwargs else list(args))
            raise StepError(f"{name} {_WHY}")

        # The log knows the step by its name.
        instead.__qualname__ = name
        return instead

    def refuse(self, name: str, arguments: Any) -> None:
        """Note a call that is not made."""
        self.refused.append(f"{name}({one_line(codec.encode(arguments, what='arguments').decode())})")


class _Refused:
    """A tool that is asked for and matched like any other, and never called."""

    transactional = False
    retries = 0
    stoppable = True

    def __init__(self, tool: ToolSpec, guard: Guard) -> None:
        self._tool = tool
        self._guard = guard
        self.in_doubt = _settled(tool.in_doubt)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def call(self, args: Mapping[str, Any], context: Any) -> Any:
        self._guard.refuse(self._tool.name, args)
        raise ToolError(f"{self._tool.name} {_WHY}")


class _Sandboxed(Run):
    """A run handle whose tools and steps are guarded."""

    __slots__ = ("_guard",)

    def __init__(self, run: Run, guard: Guard) -> None:
        super().__init__(run._machine, thread=run.thread, run_id=run.run_id, prior=run.prior)
        self._guard = guard

    def tool(self, tool: ToolSpec, /, *args: Any, **kwargs: Any) -> Ask:
        return super().tool(self._guard.tool(tool), *args, **kwargs)

    def recorded_tool(self, tool: ToolSpec, named: Mapping[str, Any], *, refused: str | None = None) -> Ask:
        return super().recorded_tool(self._guard.tool(tool), named, refused=refused)

    def step(
        self, function: Callable[..., Any], /, *args: Any, read_only: bool = False, **kwargs: Any
    ) -> Ask:
        guarded = self._guard.step(function, read_only=read_only)
        return super().step(guarded, *args, read_only=read_only, **kwargs)


def sandboxed(program: Program, guard: Guard) -> Program:
    """*program* as the log knows it, asking for nothing that *guard* does not let through."""
    made = copy.copy(program)

    @functools.wraps(program.function)
    async def function(run: Run, value: Any) -> Any:
        return await program.function(_Sandboxed(run, guard), value)

    made.function = function
    return made


def _settled(policy: InDoubt) -> InDoubt:
    """Nobody is to be asked in a trial what became of a call."""
    return "tell_model" if policy == "reconcile" else policy
