"""
Recorded threads as regression tests: the pytest plugin `refold`.

    test_threads = refold_replay("tests/threads/*.jsonl", agent=agent, record={"refund-17": "Refund order 17"})

`docs/pin-your-agent.md` shows it. Loaded by every pytest where refold is installed, so it imports nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from ..replay.offline import Source
    from ..replay.program import Program
    from .agent import Agent

OPTION = "--refold-record"
PARAMETER = "refold_thread"


class _Pinned(Struct, frozen=True):
    """What a test made by `refold_replay` replays."""

    pattern: str
    agent: Any
    record: Mapping[str, Any]


class _Thread(Struct, frozen=True):
    """One recorded thread, or one that is still to be recorded."""

    name: str
    file: Path
    source: Source | None = None
    recording: bool = False


def refold_replay(
    pattern: str, *, agent: Agent | Program | str, record: Mapping[str, Any] | None = None
) -> Callable[..., None]:
    """
    A test for each recorded thread: it fails if the agent would ask or do something else today.

    Nothing is called: no model, no tool, no network, no database.

    Args:
        pattern: The exported files, relative to pytest's root folder.
        agent: The agent or program, or its name `module:attribute`.
        record: Inputs by name. `pytest --refold-record` runs the agent live on each that has no file yet, on a
            journal in memory, and writes `NAME.jsonl` beside the others; without it a missing file fails.
    """
    pinned = _Pinned(pattern, agent, dict(record or {}))

    def test(refold_thread: _Thread) -> None:
        _run(pinned, refold_thread)

    test.__doc__ = f"The recorded threads {pattern} still fit."
    test.refold_pinned = pinned  # type: ignore[attr-defined]
    return test


def pytest_addoption(parser: Any) -> None:
    """Add the option that records."""
    group = parser.getgroup("refold", "recorded threads of agents")
    group.addoption(
        OPTION,
        action="store_true",
        default=False,
        help="run agents live on inputs that have no recorded thread yet, and write it",
    )


def pytest_generate_tests(metafunc: Any) -> None:
    """One test for each thread."""
    pinned = getattr(metafunc.function, "refold_pinned", None)
    if not isinstance(pinned, _Pinned):
        return
    root = Path(metafunc.config.rootpath)
    threads = _threads(root, pinned, recording=metafunc.config.getoption(OPTION))
    metafunc.parametrize(PARAMETER, threads, ids=[thread.name for thread in threads])


def _threads(root: Path, pinned: _Pinned, *, recording: bool) -> list[_Thread]:
    from ..replay.offline import sources_of_file

    found: list[_Thread] = []
    files = sorted(root.glob(pinned.pattern))
    for file in files:
        sources = list(sources_of_file(file))
        stem = file.name.partition(".jsonl")[0]
        for number, source in enumerate(sources, 1):
            name = stem if len(sources) == 1 else f"{stem}-{number}"
            found.append(_Thread(name, file, source))
    folder = (root / pinned.pattern).parent
    there = {thread.name for thread in found}
    found += [
        _Thread(name, folder / f"{name}.jsonl", recording=recording)
        for name in pinned.record
        if name not in there
    ]
    return found or [_Thread("none", folder)]


def _run(pinned: _Pinned, thread: _Thread) -> None:
    import pytest

    from ..journal.errors import RefoldError
    from ..replay.divergence import Divergence
    from ..replay.offline import Source, replay_sources
    from ..replay.text import visible
    from .loading import load, program_of

    source = thread.source
    if source is None:
        if thread.name not in pinned.record:
            pytest.fail(f"no recorded thread matches {pinned.pattern!r}", pytrace=False)
        if not thread.recording:
            pytest.fail(f"{thread.file} is not recorded yet: pytest {OPTION}", pytrace=False)
    runnable = load(pinned.agent) if isinstance(pinned.agent, str) else pinned.agent
    try:
        if source is None:
            _record(runnable, thread, pinned.record[thread.name])
            source = Source(str(thread.file), file=True)
        for found in replay_sources([source], lambda: program_of(runnable)):
            if found.divergence is not None:
                raise found.divergence
            if found.error:
                pytest.fail(visible(found.error), pytrace=False)
        return
    except RefoldError as error:
        failure = visible(str(error), lines=isinstance(error, Divergence))
    # Said out here, since pytest would show the error it came from as well.
    pytest.fail(failure, pytrace=False)


def _record(runnable: Agent | Program, thread: _Thread, value: Any) -> None:
    from ..journal.export import export_file
    from ..journal.journal import Journal
    from ..replay.errors import RunFailed
    from . import programs
    from .agent import Agent

    with Journal.memory() as journal:
        try:
            if isinstance(runnable, Agent):
                runnable.run_sync(value, journal=journal, thread=thread.name, wait=False)
            else:
                programs.run_sync(runnable, value, journal=journal, thread=thread.name, wait=False)
        except RunFailed:
            # A failure is a behaviour too, and its thread is pinned like any other.
            pass
        thread.file.parent.mkdir(parents=True, exist_ok=True)
        export_file(journal, [thread.name], thread.file)
