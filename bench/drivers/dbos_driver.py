"""DBOS; two recorded steps a turn. Job: dsn (a URL), turns, threads."""

from __future__ import annotations

import uuid
from typing import Any

import work
from dbos import DBOS, SetWorkflowID


@DBOS.step()
def model(turn: int) -> dict[str, Any]:
    return {"text": work.text(turn), "call": {"id": work.call_id(turn), "name": "look", "args": {"n": turn}}}


@DBOS.step()
def look(n: int) -> str:
    return work.result(n)


@DBOS.workflow()
def loop(turns: int) -> int:
    messages: list[Any] = ["go"]
    for turn in range(turns):
        reply = model(turn)
        messages.append(reply)
        messages.append(look(reply["call"]["args"]["n"]))
    return len(messages)


def run(job: work.Job) -> dict[str, Any]:
    turns, threads = job["turns"], job["threads"]
    DBOS(
        config={
            "name": "bench",
            "system_database_url": job["dsn"],
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    try:
        loop(1)
        ids = [str(uuid.uuid4()) for _ in range(threads)]

        def go() -> None:
            if threads == 1:
                with SetWorkflowID(ids[0]):
                    loop(turns)
                return
            handles = []
            for each in ids:
                with SetWorkflowID(each):
                    handles.append(DBOS.start_workflow(loop, turns))
            for handle in handles:
                handle.get_result()

        seconds = work.timed(go)
        # Every recorded step is looked up again, and nothing runs anew.
        resume = work.timed(lambda: DBOS.fork_workflow(ids[0], 2 * turns + 1).get_result())
    finally:
        DBOS.destroy()
    return {"seconds": seconds, "resume_s": resume}


if __name__ == "__main__":
    work.serve({"run": run})
