"""Absurd; two recorded steps a turn. Job: dsn (a URL), turns, threads. Its schema is installed before."""

from __future__ import annotations

import threading
import time
from typing import Any

import work
from absurd_sdk import Absurd


def run(job: work.Job) -> dict[str, Any]:
    turns, threads = job["turns"], job["threads"]
    began: list[float] = []
    ended: list[float] = []
    failed: dict[int, float] = {}
    all_done = threading.Event()
    queue = job["queue"]
    app = Absurd(job["dsn"], queue_name=queue)

    @app.register_task("loop")
    def loop(params: Any, ctx: Any) -> int:
        began.append(time.perf_counter())
        messages: list[Any] = ["go"]
        for turn in range(turns):
            reply = ctx.step("model", lambda turn=turn: model(turn))
            messages.append(reply)
            messages.append(ctx.step("look", lambda n=reply["call"]["args"]["n"]: work.result(n)))
        ended.append(time.perf_counter())
        if params["n"] == 0 and not failed:
            # Tried again once: then every step is served from the log.
            failed[0] = time.perf_counter()
            raise RuntimeError("again")
        if len(ended) == threads + 1:
            all_done.set()
        return len(messages)

    app.create_queue(queue)
    spawner = Absurd(job["dsn"], queue_name=queue)
    for n in range(threads):
        spawner.spawn("loop", {"n": n}, max_attempts=3, queue=queue)
    worker = threading.Thread(target=lambda: app.start_worker(concurrency=threads, poll_interval=0.01))
    worker.start()
    all_done.wait(600)
    app.stop_worker()
    worker.join()
    first = sorted(ended)[:threads]
    measured = {"seconds": max(first) - min(began)}
    return {**measured, "resume_s": max(ended) - failed[0]} if threads == 1 else measured


def model(turn: int) -> dict[str, Any]:
    return {"text": work.text(turn), "call": {"id": work.call_id(turn), "name": "look", "args": {"n": turn}}}


if __name__ == "__main__":
    work.serve({"run": run})
