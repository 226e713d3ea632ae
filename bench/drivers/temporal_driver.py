"""Temporal's Replayer on a history of the same loop, made here: no server is needed. Job: turns."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from datetime import timedelta
from typing import Any

import work
from temporalio import activity, workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer


@activity.defn
async def model(turn: int) -> dict[str, Any]:
    raise NotImplementedError


@activity.defn
async def look(n: int) -> str:
    raise NotImplementedError


@workflow.defn
class Loop:
    @workflow.run
    async def run(self, turns: int) -> int:
        messages: list[Any] = ["go"]
        for turn in range(turns):
            limit = timedelta(seconds=60)
            reply = await workflow.execute_activity(model, turn, start_to_close_timeout=limit)
            messages.append(reply)
            n = reply["call"]["args"]["n"]
            messages.append(await workflow.execute_activity(look, n, start_to_close_timeout=limit))
        return len(messages)


class History:
    """Writes the history that a server would hold of a run."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, kind: str, attributes: str, **values: Any) -> int:
        number = len(self.events) + 1
        self.events.append(
            {
                "eventId": str(number),
                "eventTime": "2026-01-01T00:00:00Z",
                "eventType": f"EVENT_TYPE_{kind}",
                attributes: values,
            }
        )
        return number

    def task(self) -> int:
        queue = {"name": "bench"}
        scheduled = self.add(
            "WORKFLOW_TASK_SCHEDULED", "workflowTaskScheduledEventAttributes", taskQueue=queue
        )
        started = self.add(
            "WORKFLOW_TASK_STARTED", "workflowTaskStartedEventAttributes", scheduledEventId=str(scheduled)
        )
        return self.add(
            "WORKFLOW_TASK_COMPLETED",
            "workflowTaskCompletedEventAttributes",
            scheduledEventId=str(scheduled),
            startedEventId=str(started),
        )

    def activity(self, after: int, number: int, name: str, argument: Any, value: Any) -> None:
        scheduled = self.add(
            "ACTIVITY_TASK_SCHEDULED",
            "activityTaskScheduledEventAttributes",
            activityId=str(number),
            activityType={"name": name},
            taskQueue={"name": "bench"},
            input={"payloads": [payload(argument)]},
            startToCloseTimeout="60s",
            workflowTaskCompletedEventId=str(after),
        )
        started = self.add(
            "ACTIVITY_TASK_STARTED", "activityTaskStartedEventAttributes", scheduledEventId=str(scheduled)
        )
        self.add(
            "ACTIVITY_TASK_COMPLETED",
            "activityTaskCompletedEventAttributes",
            scheduledEventId=str(scheduled),
            startedEventId=str(started),
            result={"payloads": [payload(value)]},
        )


def payload(value: Any) -> dict[str, Any]:
    def encoded(data: str) -> str:
        return base64.b64encode(data.encode()).decode()

    return {"metadata": {"encoding": encoded("json/plain")}, "data": encoded(json.dumps(value))}


def history(turns: int) -> WorkflowHistory:
    made = History()
    made.add(
        "WORKFLOW_EXECUTION_STARTED",
        "workflowExecutionStartedEventAttributes",
        workflowType={"name": "Loop"},
        taskQueue={"name": "bench"},
        input={"payloads": [payload(turns)]},
        originalExecutionRunId="00000000-0000-4000-8000-000000000001",
        attempt=1,
    )
    number = 0
    for turn in range(turns):
        reply = {
            "text": work.text(turn),
            "call": {"id": work.call_id(turn), "name": "look", "args": {"n": turn}},
        }
        for name, argument, value in (("model", turn, reply), ("look", turn, work.result(turn))):
            number += 1
            made.activity(made.task(), number, name, argument, value)
    done = made.task()
    made.add(
        "WORKFLOW_EXECUTION_COMPLETED",
        "workflowExecutionCompletedEventAttributes",
        result={"payloads": [payload(1 + 2 * turns)]},
        workflowTaskCompletedEventId=str(done),
    )
    return WorkflowHistory.from_json("bench", {"events": made.events})


async def replay(turns: int) -> dict[str, Any]:
    recorded = history(turns)
    replayer = Replayer(workflows=[Loop])
    await replayer.replay_workflow(history(2))
    started = time.perf_counter()
    await replayer.replay_workflow(recorded)
    return {"seconds": time.perf_counter() - started, "events": len(recorded.events)}


def run(job: work.Job) -> dict[str, Any]:
    return asyncio.run(replay(job["turns"]))


if __name__ == "__main__":
    work.serve({"replay": run})
