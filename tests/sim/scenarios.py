"""Programs that are put through simulated histories, and the worlds they live in. Deterministic, every one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw
from refold import Agent, ModelError, ModelReply, Run, StepError, ToolError, program, tool
from refold.agent.tools import Tool
from refold.replay.inbox import Approval, Content, Signal
from refold.replay.outcomes import DidNotHappen, Happened
from refold.replay.ports import Usage
from refold.replay.recording import Policy
from refold.replay.simulation import Scenario
from refold.replay.status import OpenCall
from sim.tools import SimTool, brew, enter, idempotent, look, pay, ship, unsafe


def fetch(what: str) -> dict[str, str]:
    return {"fetched": what}


class Answers:
    """A model that answers from what it is asked; `fickle` ones say something else each time they are asked."""

    name = "simulated"

    def __init__(self, answer: Callable[[list[dict[str, Any]], int], dict[str, Any]]) -> None:
        self._answer = answer
        self._asked = 0

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        self._asked += 1
        message = self._answer(list(request["messages"]), self._asked)
        return ModelReply({"role": "assistant", **message}, finish_reason="stop", usage=Usage(10, 5))


async def tried(run: Run, called: SimTool, **args: Any) -> Any:
    try:
        return await run.tool(called, **args)
    except ToolError as error:
        return f"{error.error_type}, effect {error.effect}"


@program
async def errand(run: Run, order: str) -> Any:
    plan = await run.model(messages=[{"role": "user", "content": order}], model="m")
    both = await run.gather(tried(run, pay, amount=3), tried(run, look, key=plan.text))
    await run.sleep(1)
    try:
        page = await run.step(fetch, plan.text)
    except StepError as error:
        page = error.error_type
    sent = await tried(run, ship, to=plan.text)
    word = await run.wait_for("go")
    return [*both, page, sent, word, str(run.now() is not None), run.random.random()]


def go(call: OpenCall) -> Content | None:
    """People say the word that a run waits for, and allow what must be allowed."""
    if call.status == "waits for approval":
        return Approval(call.call, approved=True, by="people")
    if call.status == "waits for a signal":
        return Signal("go", Raw(b'"now"'), by="people")
    return None


ERRAND = Scenario(
    name="errand",
    program=errand,
    value="tea",
    models=Answers(lambda messages, asked: {"content": f"plan for {messages[-1]['content']}"}),
    reply=go,
)


# An agent: the tool-calling loop with a scripted model, a parallel pair and then one more call


def _wants(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "content": None,
        "tool_calls": [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for n, (name, args) in enumerate(calls)
        ],
    }


def support(messages: list[dict[str, Any]], asked: int) -> dict[str, Any]:
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn == 0:
        return _wants(("pay", {"amount": 3}), ("look", {"key": "tea"}))
    if turn == 1:
        return _wants(("ship", {"to": "me"}))
    return {"content": f"done after {len(messages)} messages"}


class Immediate(Tool[..., Any], frozen=True, eq=False, kw_only=True):
    """A tool of an agent that is called here and now, without a thread or a loop."""

    async def call(self, args: Mapping[str, Any], context: Any) -> Any:
        return self.function(**self.signature.convert(args))


def _immediate(function: Callable[..., Any], **flags: Any) -> Immediate:
    made = tool(**flags)(function)
    return Immediate(**{field: getattr(made, field) for field in made.__struct_fields__})


def _pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


def _look(key: str) -> dict[str, str]:
    """Look up."""
    return {"saw": key}


def _ship(to: str) -> dict[str, str]:
    """Ship."""
    return {"shipped": to}


_support = Agent(
    "support",
    model=Answers(support),
    tools=[
        _immediate(_pay, name="pay", timeout_s=4.0),
        _immediate(_look, name="look", idempotent=True, retries=1, timeout_s=4.0),
        _immediate(_ship, name="ship", timeout_s=4.0),
    ],
    instructions="Be brief.",
)

AGENT = Scenario(name="agent", program=_support.program, value="tea for me", models=_support.client, reply=go)


# A model that answers otherwise each time it is asked: what is done must have its cause in the log


@program
async def whims(run: Run, topic: str) -> Any:
    first = await run.model(messages=[{"role": "user", "content": topic}], model="m")
    page = await run.step(fetch, first.text)
    second = await run.model(messages=[{"role": "user", "content": page["fetched"]}], model="m")
    return [await tried(run, look, key=second.text), await tried(run, ship, to=second.text)]


FICKLE = Scenario(
    name="fickle",
    program=whims,
    value="tea",
    models=Answers(lambda messages, asked: {"content": f"whim {asked}"}),
    reply=go,
)


# Every policy for doubts side by side, two slots


def _known(context: Any, **args: Any) -> Any:
    """The outside world remembers what was done."""
    asked = (context.thread, context.call, context.attempt)
    done = [d for d in context.deps.ledger if (d.thread, d.call, d.attempt) == asked]
    return Happened(done[0].value) if done and done[0].happened else DidNotHappen()


book = SimTool(name="book", act=lambda seat: {"booked": seat}, in_doubt="reconcile", look_up=_known)
post = SimTool(name="post", act=lambda text: {"posted": text}, in_doubt="tell_model")


@program
async def doubts(run: Run, value: Any) -> Any:
    first = await run.gather(
        tried(run, book, seat=1),
        tried(run, pay, amount=1),
        tried(run, look, key="a"),
        tried(run, book, seat=2),
    )
    return [*first, await tried(run, ship, to="all")]


doubts.concurrency = 2

DOUBTS = Scenario(name="doubts", program=doubts, reply=go, make_deps=lambda world: world)


@program
async def told(run: Run, value: Any) -> Any:
    return [await tried(run, post, text="all"), await tried(run, post, text="all")]


TOLD = Scenario(name="told", program=told, reply=go)


# Calls that take nearly all the time that they have: whoever comes meanwhile leaves them alone to the end of it


@program
async def brink(run: Run, value: Any) -> Any:
    return [await tried(run, book, seat=1), await tried(run, brew, what="tea")]


BRINK = Scenario(
    name="brink",
    program=brink,
    reply=go,
    latency_us={"book": 3_800_000, "brew": 3_800_000},
    make_deps=lambda world: world,
)


# Branches that share a list: what they ask depends on the order of replies


@program
async def shared(run: Run, value: Any) -> Any:
    seen: list[str] = []

    async def branch(name: str, tool: SimTool, key: str) -> int:
        got = await tried(run, tool, **{key: name})
        seen.append(f"{name}: {got}")
        page = await run.step(fetch, f"{name} as {len(seen)}")
        seen.append(page["fetched"])
        if run.patched("louder"):
            seen.append("!")
        return len(seen)

    counts = await run.gather(
        branch("a", look, "key"), branch("b", ship, "to"), run.wait_for("go", timeout=0.02), run.sleep(0.05)
    )
    return [seen, counts, await run.step(fetch, ",".join(seen)), run.now(), run.uuid()]


SHARED = Scenario(name="shared", program=shared, reply=go)


# Waits: an approval, two signals of one name, a time-out, a timer beside a tool that takes longer

burn = unsafe("burn", lambda what: {"burnt": what}, approval=True)


@program
async def waits(run: Run, value: Any) -> Any:
    async def twice() -> list[Any]:
        return [await run.wait_for("go"), await run.wait_for("go")]

    async def naps() -> str:
        await run.sleep(0.3)
        return str((await run.step(fetch, "nap"))["fetched"])

    return await run.gather(
        twice(),
        tried(run, burn, what="toast"),
        naps(),
        tried(run, brew, what="tea"),
        run.wait_for("no", timeout=60),
    )


def allow(call: OpenCall) -> Content | None:
    return None if call.name == "no" else go(call)


WAITS = Scenario(name="waits", program=waits, reply=allow, latency_us={"brew": 900_000})


# Two calls that people are asked about, one of which they deny


@program
async def asks(run: Run, value: Any) -> Any:
    return await run.gather(tried(run, burn, what="bridge"), tried(run, burn, what="toast"))


def sensible(call: OpenCall) -> Content | None:
    return Approval(call.call, approved=b"toast" in bytes(call.args), by="people")


ASKS = Scenario(name="asks", program=asks, reply=sensible)


# Failures that are tried again, then one that is final


class Moody:
    """A model that fails the first two times a history asks it, and then answers."""

    name = "moody"

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        raise ModelError("overloaded", kind="overloaded")


def broken(what: str) -> None:
    raise ValueError(f"no {what}")


wobble = idempotent("wobble", broken, retries=2)
# What it returns cannot be recorded: it has run, and is not tried again.
blob = idempotent("blob", lambda name: {name: object()}, retries=1)


@program
async def stubborn(run: Run, value: Any) -> Any:
    async def asks() -> str:
        try:
            return str((await run.model(messages=[{"role": "user", "content": "x"}], model="m")).text)
        except ModelError as error:
            return f"{error.kind}: {error.message}"

    got = await run.gather(
        asks(), tried(run, wobble, what="luck"), tried(run, blob, name="x"), run.sleep(0.4)
    )
    await run.step(broken, "end")
    return got


STUBBORN = Scenario(
    name="stubborn",
    program=stubborn,
    models=Moody(),
    policy=Policy(model_attempts=3, backoff_s=0.2),
    reply=go,
)

# Runs after runs: inputs that come while one goes on, and one for which it is given up


@program
async def turns(run: Run, topic: str) -> Any:
    word = await run.model(messages=[{"role": "user", "content": topic}], model="m")
    return await run.gather(tried(run, pay, amount=len(topic)), tried(run, look, key=word.text))


TURNS = Scenario(
    name="turns",
    program=turns,
    value="tea",
    inputs=("milk",),
    turn="no tea",
    models=Answers(lambda messages, asked: {"content": f"word on {messages[-1]['content']}"}),
    reply=go,
)

# The same calls side by side, and again in the next run: what is known of one tells nothing of the others


@program
async def again(run: Run, topic: str) -> Any:
    return await run.gather(
        tried(run, pay, amount=1),
        tried(run, pay, amount=1),
        tried(run, look, key="a"),
        tried(run, enter, amount=1),
    )


AGAIN = Scenario(
    name="again", program=again, value="tea", inputs=("milk",), turn="no tea", reply=go, transactions=True
)

# Transactional tools: what they write is committed with their result


@program
async def books(run: Run, value: Any) -> Any:
    entered = await run.gather(
        tried(run, enter, amount=1), tried(run, look, key="a"), tried(run, enter, amount=2)
    )
    return [*entered, await tried(run, pay, amount=3)]


BOOKS = Scenario(name="books", program=books, reply=go, transactions=True)


@program
async def ledgers(run: Run, value: Any) -> Any:
    async def one(amount: int) -> list[Any]:
        return [await tried(run, enter, amount=amount), await tried(run, look, key=f"{amount}")]

    return await run.gather(one(1), one(2))


LEDGERS = Scenario(name="ledgers", program=ledgers, reply=go, transactions=True)

# Models whose providers run tools of their own inside the call

CODE = {"type": "code_execution", "name": "code_execution"}


@program
async def acting(run: Run, value: Any) -> Any:
    async def asked(what: str, **options: Any) -> str:
        messages = [{"role": "user", "content": what}]
        try:
            return str((await run.model(messages=messages, model="m", tools=[CODE], **options)).text)
        except ModelError as error:
            return f"{error.kind}: {error.message}"

    both = await run.gather(asked("act"), asked("look", in_doubt="retry"), tried(run, look, key="a"))
    return [*both, await tried(run, ship, to=both[0]), await asked("act once more")]


ACTING = Scenario(
    name="acting",
    program=acting,
    models=Answers(lambda messages, asked: {"content": f"did {messages[-1]['content']}"}),
    policy=Policy(model_attempts=3, backoff_s=0.2),
    reply=go,
)

# A run whose time ends while it waits for a word that nobody says


@program
async def hurry(run: Run, value: Any) -> Any:
    await run.gather(tried(run, pay, amount=1), tried(run, look, key="a"), run.sleep(0.1))
    await tried(run, ship, to="me")
    return await run.wait_for("no")


HURRY = Scenario(
    name="hurry", program=hurry, reply=lambda call: None if call.name == "no" else go(call), deadline_s=30.08
)

# A run whose time ends in the middle of a transaction


@program
async def audit(run: Run, value: Any) -> Any:
    both = await run.gather(tried(run, brew, what="tea"), tried(run, enter, amount=1))
    return [*both, await tried(run, pay, amount=2)]


AUDIT = Scenario(
    name="audit",
    program=audit,
    reply=go,
    transactions=True,
    policy=Policy(cancel_grace_s=0.1),
    latency_us={"brew": 100_000, "enter": 900_000},
    deadline_s=0.4,
)

# People who look at a doubt only when the run has come to rest over it


@program
async def patience(run: Run, value: Any) -> Any:
    async def later() -> Any:
        await run.sleep(0.1)
        return await tried(run, ship, to="later")

    first = await run.gather(
        tried(run, pay, amount=1),
        tried(run, look, key="a"),
        later(),
        run.wait_for("go"),
        tried(run, brew, what="tea"),
    )
    return [*first, await tried(run, pay, amount=2)]


PATIENCE = Scenario(name="patience", program=patience, reply=go, patient=True, latency_us={"brew": 900_000})

STEADY = (ERRAND, AGENT, DOUBTS, BRINK, WAITS, ASKS, STUBBORN, TURNS, AGAIN, BOOKS, LEDGERS, PATIENCE)
"""Scenarios whose runs mean the same whatever the order of what is done side by side."""
STEADY_NAMES = frozenset(scenario.name for scenario in STEADY)
ENDINGS = {"stubborn": "failed", "hurry": "cancelled", "audit": "cancelled"}
"""How a scenario's last run ends when nothing goes wrong, where it gives no output."""
RESTLESS = (FICKLE, SHARED, TOLD, ACTING, HURRY, AUDIT)
ALL = {scenario.name: scenario for scenario in (*STEADY, *RESTLESS)}
