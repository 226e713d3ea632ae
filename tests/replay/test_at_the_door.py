"""What is too large, no text or no reply is refused before anything is done, with words that say what it is."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import refold
from refold import (
    Agent,
    Journal,
    LimitExceeded,
    ModelError,
    ModelReply,
    Run,
    ScriptedModel,
    ToolError,
    UsageError,
    program,
    tool,
)
from refold.agent.comparison import compare_states, compare_threads
from refold.agent.overview import overview
from refold.agent.what_if import what_if
from refold.journal import export
from refold.journal.memory import MemoryStore
from refold.replay import answers, rebuild
from refold.replay.attention import read_page
from refold.replay.door import RESULT_BYTES_MAX
from refold.replay.fork import fork
from refold.replay.inbox import CANCEL, Cancel, encode_message
from refold.replay.live import Limits
from refold.replay.ports import Usage
from refold.replay.recording import Policy
from refold.replay.report import replay_thread
from refold.replay.runner import read_all
from refold.replay.verification import verify

HUGE = "x" * (RESULT_BYTES_MAX + 1)
LARGE = "x" * (9 * 1024 * 1024)


@pytest.fixture
def journal() -> Any:
    with Journal.memory() as made:
        yield made


def kinds(journal: Journal) -> list[str]:
    return [event.kind for event in read_all(journal, "t")]


class Counting:
    """Answers with a text, and counts how often."""

    def __init__(self, text: str = "short") -> None:
        self.text = text
        self.asked = 0

    async def respond(self, request: Any) -> ModelReply:
        self.asked += 1
        return ModelReply({"role": "assistant", "content": self.text}, finish_reason="stop")


async def test_arguments_and_messages_over_the_limit_are_refused_before_anything_is_done(
    journal: Journal,
) -> None:
    done: list[str] = []
    models = Counting()

    @tool
    def keep(text: str) -> None:
        """Keep."""
        done.append("tool")

    def note(text: str) -> None:
        done.append("step")

    @program
    async def asks(run: Run) -> list[str]:
        refused = []
        for ask in (
            lambda: run.tool(keep, HUGE),
            lambda: run.step(note, HUGE),
            lambda: run.model(messages=[{"role": "user", "content": HUGE}], model="m"),
        ):
            try:
                await ask()
            except LimitExceeded as error:
                refused.append(str(error))
        return refused

    result = await refold.run(asks, journal=journal, thread="t", models=models)

    for said, what in zip(
        result.output, ("tool 'keep'", "note' at r1/2", "model request at r1/3"), strict=True
    ):
        assert what in said
        assert f"the limit is {RESULT_BYTES_MAX}" in said
    assert (done, models.asked) == ([], 0)
    assert kinds(journal) == ["thread_created", "run_started", "run_finished"]
    rebuild.replay(asks, "t", read_all(journal, "t"))


async def test_a_conversation_may_grow_over_the_limit_as_long_as_what_is_new_does_not(
    journal: Journal,
) -> None:
    models = Counting()

    @program
    async def talks(run: Run) -> int:
        messages = refold.Messages()
        for _ in range(2):
            messages.add({"role": "user", "content": LARGE})
            await run.model(messages=messages, model="m")
        return len(messages)

    assert (await refold.run(talks, journal=journal, thread="t", models=models)).output == 2
    assert models.asked == 2


async def test_a_result_that_does_not_fit_beside_what_was_asked_has_failed_once(journal: Journal) -> None:
    models, steps = Counting(LARGE), []

    def echo(text: str) -> str:
        steps.append(len(text))
        return text

    @program
    async def asks(run: Run) -> list[str]:
        failures = []
        try:
            await run.step(echo, LARGE)
        except refold.StepError as error:
            failures.append(str(error))
        try:
            await run.model(messages=[{"role": "user", "content": LARGE}], model="m")
        except refold.ModelError as error:
            failures.append(str(error))
        return failures

    result = await refold.run(asks, journal=journal, thread="t", models=models)

    assert ["beside" in said for said in result.output] == [True, True]
    assert (len(steps), models.asked) == (1, 1)


@program
async def idle(run: Run) -> None:
    """Ends at once."""


clerk = Agent("clerk", model=ScriptedModel(["never asked for"]))
TAKING_A_JOURNAL: dict[str, Callable[[Any], Any]] = {
    "agent.run": lambda it: clerk.run("hi", journal=it, thread="t"),
    "agent.run_sync": lambda it: asyncio.to_thread(clerk.run_sync, "hi", journal=it, thread="t"),
    "agent.resume": lambda it: clerk.resume(journal=it, thread="t"),
    "agent.stream": lambda it: anext(clerk.stream("hi", journal=it, thread="t")),
    "refold.run": lambda it: refold.run(idle, journal=it, thread="t"),
    "refold.resume": lambda it: refold.resume(idle, journal=it, thread="t"),
    "read_stats": refold.read_stats,
    "answers.resolve": lambda it: answers.resolve(it, "t", "r1/1", did_not_happen=True),
    "answers.approve": lambda it: answers.approve(it, "t", "r1/1"),
    "answers.signal": lambda it: answers.signal(it, "t", "paid"),
    "answers.submit": lambda it: answers.submit(it, "t", b"1"),
    "answers.cancel": lambda it: answers.cancel(it, "t"),
    "fork": lambda it: fork(it, "t"),
    "replay_thread": lambda it: replay_thread(it, "t", idle),
    "what_if": lambda it: what_if(clerk, it, "t"),
    "overview": lambda it: overview(it, "t"),
    "compare_states": lambda it: compare_states(it, "t", 1, 2),
    "compare_threads": lambda it: compare_threads(it, "t", "u"),
    "read_page": read_page,
    "verify": lambda it: list(verify(it)),
    "export_file": lambda it: export.export_file(it, ["t"], "never.jsonl"),
    "export_folder": lambda it: list(export.export_folder(it, ["t"], "never")),
    "import_files": lambda it: export.import_file(it, "nowhere.jsonl"),
}


@pytest.mark.parametrize("taking", TAKING_A_JOURNAL.values(), ids=TAKING_A_JOURNAL)
@pytest.mark.parametrize("wrong", ["postgresql://me:secret@db/x", None, Journal, MemoryStore()], ids=repr)
def test_what_is_no_journal_is_refused_where_it_is_given_and_is_not_told(
    taking: Callable[[Any], Any], wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hand_in() -> None:
        done = taking(wrong)
        if inspect.isawaitable(done):
            await done

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"journal is an open Journal, as Journal\.open\(dsn\)") as caught:
        asyncio.run(hand_in())

    assert "secret" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [5, None, "", "\ud800", "a\0b", "x" * 201])
async def test_a_name_that_is_no_text_is_refused_where_it_is_given(journal: Journal, name: Any) -> None:
    @program
    async def waits(run: Run) -> str:
        try:
            await run.wait_for(name)
        except LimitExceeded as error:
            return str(error)
        return "not refused"

    @program
    async def patched(run: Run) -> str:
        try:
            run.patched(name)
        except LimitExceeded as error:
            return str(error)
        return "not refused"

    assert "name of a signal" in (await refold.run(waits, journal=journal, thread="t")).output
    assert "id of a patch" in (await refold.run(patched, journal=journal, thread="u")).output
    with pytest.raises(LimitExceeded, match="name of a signal"):
        answers.signal(journal, "t", name)
    if name is not None:
        with pytest.raises(LimitExceeded, match="a run's key"):
            await refold.run(waits, key=name, journal=journal, thread="v")
        with pytest.raises(LimitExceeded, match="a key"):
            answers.submit(journal, "t", b"1", key=name)
    with pytest.raises(LimitExceeded, match="thread id"):
        await refold.run(waits, journal=journal, thread=name)


def test_an_input_nested_too_deeply_to_be_read_is_refused(journal: Journal) -> None:
    journal.leases.give_back(journal.acquire("t")).answer.result()
    with pytest.raises(UsageError, match="value is no JSON text"):
        answers.submit(journal, "t", b"[" * 100_000 + b"]" * 100_000)

    assert journal.inbox("t") == []


async def test_an_input_with_a_lone_surrogate_is_kept_as_it_is(journal: Journal) -> None:
    @program
    async def echo(run: Run, value: str) -> str:
        return value

    assert (await refold.run(echo, "a\ud800", journal=journal, thread="t")).output == "a\ud800"
    agent = Agent("a", model=ScriptedModel(["hello"]))
    assert (await agent.run("a\ud800", journal=journal, thread="u")).output == "hello"


async def test_an_input_or_a_signal_too_large_for_its_event_is_not_sent(journal: Journal) -> None:
    @program
    async def waits(run: Run, value: Any) -> Any:
        return await run.wait_for("go")

    await refold.run(waits, 1, journal=journal, thread="t", wait=False)
    value = b'"' + HUGE.encode() + b'"'
    with pytest.raises(LimitExceeded, match="signal for thread 't'"):
        answers.signal(journal, "t", "go", value)
    with pytest.raises(LimitExceeded, match="input for thread 't'"):
        answers.submit(journal, "t", value)

    assert journal.inbox("t") == []


SAID: dict[str, Any] = {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "hello",
        ModelReply("hello"),  # type: ignore[arg-type]
        ModelReply(SAID, id=5),  # type: ignore[arg-type]
        ModelReply(SAID, finish_reason=b"stop"),  # type: ignore[arg-type]
        ModelReply(SAID, model="half a \ud83d"),
        ModelReply(SAID, usage=None),  # type: ignore[arg-type]
        ModelReply(SAID, usage=Usage(cost_micro=1.5)),  # type: ignore[arg-type]
        ModelReply(SAID, extra=[]),  # type: ignore[arg-type]
    ],
)
async def test_a_model_client_that_gives_no_reply_is_told_so_and_asked_once(
    journal: Journal, reply: Any
) -> None:
    class Wrong:
        asked = 0

        async def respond(self, request: Any) -> Any:
            self.asked += 1
            return reply

    models = Wrong()
    for _ in range(2):
        with pytest.raises(refold.RunFailed, match=r"the model client Wrong gave .*, not a"):
            await Agent("a", model=models).run("go", journal=journal, thread="t", key="one")

    assert models.asked == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModelError("no", kind="zap"),  # type: ignore[arg-type]
        lambda: ModelError("no", status="500"),  # type: ignore[arg-type]
        lambda: ModelError("no", retry_after_s="7"),  # type: ignore[arg-type]
        lambda: ModelError("no", usage={"input_tokens": 1}),  # type: ignore[arg-type]
        lambda: ToolError("no", effect="zap"),  # type: ignore[arg-type]
    ],
)
def test_an_error_that_could_not_be_recorded_cannot_be_made(make: Callable[[], Exception]) -> None:
    with pytest.raises(UsageError, match="not "):
        make()


async def test_an_error_made_of_another_one_is_recorded_with_its_text(journal: Journal) -> None:
    @tool
    def looks() -> str:
        """Look."""
        raise ToolError(ValueError("there is none"))

    @program
    async def asks(run: Run, value: str) -> str:
        try:
            return str(await run.tool(looks))
        except ToolError as error:
            return f"{error.message}: {error.effect}"

    result = await refold.run(asks, "go", journal=journal, thread="t")

    assert result.output == "there is none: none"
    assert str(ModelError(OSError("the line is dead"))) == "the line is dead"


@pytest.mark.parametrize("pause_s", [math.inf, -math.inf, math.nan, -1.0])
async def test_what_is_no_time_is_not_waited_for(journal: Journal, pause_s: float) -> None:
    class Slow:
        asked = 0

        async def respond(self, request: Any) -> ModelReply:
            self.asked += 1
            if self.asked == 1:
                raise ModelError("slow down", kind="rate_limit", retry_after_s=pause_s)
            return ModelReply(SAID)

    agent = Agent("a", model=Slow(), policy=Policy(backoff_s=0.0))
    assert (await agent.run("go", journal=journal, thread="t")).output == "hello"


async def test_a_model_may_be_asked_as_often_as_one_likes(journal: Journal) -> None:
    class Away:
        asked = 0

        async def respond(self, request: Any) -> ModelReply:
            self.asked += 1
            raise ModelError("away", kind="connection")

    models = Away()
    agent = Agent("a", model=models, policy=Policy(backoff_s=1e-9, backoff_max_s=1e-9, model_attempts=1030))
    with pytest.raises(refold.RunFailed, match="away"):
        await agent.run("go", journal=journal, thread="t")

    assert models.asked == 1030, "a pause that doubles more often than a float can say is the longest one"


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: Policy(backoff_s=math.inf), "backoff_s"),
        (lambda: Policy(backoff_max_s=-1), "backoff_max_s"),
        (lambda: Policy(retry_after_max_s=math.nan), "retry_after_max_s"),
        (lambda: Policy(model_attempts=0), "model_attempts"),
        (lambda: Policy(idle_tenures_max="5"), "idle_tenures_max"),  # type: ignore[arg-type]
        (lambda: Limits(model_timeout_s=math.inf), "model_timeout_s"),
        (lambda: Limits(poll_s=None), "poll_s"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_no_run_can_keep_to_are_refused(make: Callable[[], object], name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is a number"):
        make()


async def test_a_cancel_that_comes_after_its_runs_end_leaves_the_next_run_alone(journal: Journal) -> None:
    @program
    async def echo(run: Run, value: str) -> str:
        return value

    await refold.run(echo, "first", journal=journal, thread="t")
    kind, body = encode_message(Cancel("r1", reason="too late"))
    journal.send("t", key=f"{CANCEL}/r1", kind=kind, body=body)
    result = await refold.run(echo, "second", journal=journal, thread="t")

    assert result.output == "second"
    with pytest.raises(TypeError):
        Cancel(reason="of whichever run")  # type: ignore[call-arg]
