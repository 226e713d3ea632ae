"""Absurd: each model call and each tool a step; a worker claims the task and, after a crash, claims it again."""

from __future__ import annotations

import threading
from typing import Any

import world
from absurd_sdk import Absurd

CLAIM_S = 3
"""Shorter than the default of two minutes, so that nobody waits for the claim of a dead worker."""


def run(job: dict[str, Any]) -> dict[str, Any]:
    outside = world.World(job)
    app = Absurd(job["dsn"], queue_name="faults")
    done = threading.Event()
    said: list[str] = []

    @app.register_task("support")
    def support(params: Any, ctx: Any) -> str:
        tools = {"refund": outside.refund, "notify": outside.notify}
        turn = 0
        while True:
            answer = ctx.step(f"model {turn}", lambda turn=turn: outside.model(turn))
            if not answer["calls"]:
                said.append(answer["text"])
                done.set()
                return str(answer["text"])
            for call in answer["calls"]:
                ctx.step(call["name"], lambda call=call: tools[call["name"]](**call["args"]))
            turn += 1

    app.create_queue("faults")
    app.spawn(
        "support", {"prompt": job["prompt"]}, max_attempts=5, queue="faults", idempotency_key=job["thread"]
    )
    start = lambda: app.start_worker(concurrency=1, claim_timeout=CLAIM_S, poll_interval=0.05)  # noqa: E731
    worker = threading.Thread(target=start, daemon=True)
    worker.start()
    finished = done.wait(job.get("patience_s", 20))
    app.stop_worker()
    worker.join(5)
    return {"status": "finished" if finished else "left to the other worker", "says": "".join(said)}


if __name__ == "__main__":
    world.serve(run)
