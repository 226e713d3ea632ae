"""DBOS: each model call and each tool a step; the two mails are two steps started at once."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import world
from dbos import DBOS, SetWorkflowID

OUTSIDE = world.World(json.loads(sys.argv[1]))


@DBOS.step()
async def model(prompt: str, turn: int) -> dict[str, Any]:
    return await asyncio.to_thread(OUTSIDE.model, turn)


@DBOS.step()
async def refund(order: int, amount: int) -> str:
    return await asyncio.to_thread(OUTSIDE.refund, order, amount)


@DBOS.step()
async def notify(party: str) -> str:
    return await asyncio.to_thread(OUTSIDE.notify, party)


TOOLS = {"refund": refund, "notify": notify}


@DBOS.workflow()
async def support(prompt: str) -> str:
    turn = 0
    while True:
        answer = await model(prompt, turn)
        if not answer["calls"]:
            return str(answer["text"])
        await asyncio.gather(*(TOOLS[each["name"]](**each["args"]) for each in answer["calls"]))
        turn += 1


def run(job: dict[str, Any]) -> dict[str, Any]:
    DBOS(
        config={
            "name": "faults",
            "system_database_url": job["dsn"],
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    try:
        return {"status": "finished", "says": asyncio.run(_go(job))}
    finally:
        DBOS.destroy()


async def _go(job: dict[str, Any]) -> str:
    with SetWorkflowID(job["thread"]):
        handle = await DBOS.start_workflow_async(support, job["prompt"])
    return str(await handle.get_result())


if __name__ == "__main__":
    world.serve(run)
