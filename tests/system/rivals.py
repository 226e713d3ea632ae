"""
A worker of `test_two_workers`: waits at the barrier, takes up the thread it is told, says what came of it.

    python rivals.py DSN BARRIER EFFECTS

Each line on standard input is `resume THREAD` or `run THREAD`; each answer is one line of JSON. The tool that acts
reports in with a line `acting` and waits for a line of input, so that the round is over only when both have answered.
"""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path
from typing import Any

from refold import Agent, Journal, RefoldError, ScriptedModel, tool
from refold.agent.scripted import call

EFFECTS = Path(sys.argv[3]) if __name__ == "__main__" else Path()


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


@tool
def act(thread: str) -> str:
    """Act."""
    with EFFECTS.open("a") as effects:
        effects.write(f"{thread}\n")
    say(status="acting")
    sys.stdin.readline()
    return "acted"


def make_agent(model: Any) -> Agent:
    return Agent("rival", model=model, tools=[act])


def model_for(thread: str) -> ScriptedModel:
    return ScriptedModel([call("act", thread=thread), "done"])


def main() -> None:
    """Work until standard input is closed."""
    with Journal.open(sys.argv[1]) as journal, open(sys.argv[2]) as barrier:  # noqa: PTH123
        say(status="ready")
        while line := sys.stdin.readline():
            how, thread = line.split()
            model = model_for(thread)
            agent = make_agent(model)
            say(status="waiting")
            # The test holds it exclusively until both are here.
            fcntl.flock(barrier, fcntl.LOCK_SH)
            fcntl.flock(barrier, fcntl.LOCK_UN)
            try:
                if how == "resume":
                    result = agent.resume_sync(journal=journal, thread=thread)
                else:
                    result = agent.run_sync("go", journal=journal, thread=thread)
            except RefoldError as error:
                say(status=type(error).__name__, why=str(error), models=model.count)
            else:
                say(status=result.status, models=model.count)


if __name__ == "__main__":
    main()
