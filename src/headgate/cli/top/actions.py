"""What the keys r, c, p and s do to what is selected. Each action asks first, and takes a reason for the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from headgate.cli.top.places import Place, View
from headgate.sdk import Headgate, JobInfo
from headgate.sdk.admin import ScheduleInfo, Status, WorkerInfo
from headgate.sdk.admin.bulk import BulkOperation
from headgate.sdk.admin.jobs import JobChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action: the question, what it means, and the call; the call returns what to say when it is done."""

    question: str
    detail: str
    run: Callable[[Headgate, str], Awaitable[str]]


def action_of(key: str, place: Place, item: Any, status: Status) -> Action | None:
    """The action of a key on what is selected; None if it has none there."""
    match place.view, key:
        case (View.TOPICS, "p"):
            return _pause(item.topic, status)
        case (View.JOBS | View.JOB, "r"):
            return _redrive(item)
        case (View.JOBS | View.JOB, "c"):
            return _cancel(item)
        case (View.JOBS | View.JOB, "p"):
            return _pause(item.topic, status)
        case (View.WORKERS, "p"):
            return _quiet(item)
        case (View.WORKERS, "s"):
            return _stop(item)
        case (View.SCHEDULES | View.SCHEDULE, "p"):
            return _pause_schedule(item)
        case (View.SCHEDULES | View.SCHEDULE, "r"):
            return _trigger(item)
        case (View.DEAD, "r"):
            return _redrive_group(item)
        case (View.OPERATIONS | View.OPERATION, "c"):
            return _cancel_operation(item)
    return None


def _pause(topic: str, status: Status) -> Action:
    of_topic = f"topic {topic}"
    if any(one.target == of_topic for one in status.paused):

        async def resume(hg: Headgate, reason: str) -> str:
            changed = await hg.admin.resume(topic=topic, reason=reason)
            return f"{of_topic} is resumed" if changed else f"{of_topic} was not paused"

        return Action(question=f"Resume topic {topic}?", detail="Its jobs are dispatched again.", run=resume)

    async def pause(hg: Headgate, reason: str) -> str:
        await hg.admin.pause(topic=topic, reason=reason)
        return f"{of_topic} is paused"

    return Action(question=f"Pause topic {topic}?", detail="Running jobs continue; others wait.", run=pause)


def _redrive(job: JobInfo) -> Action:
    async def run(hg: Headgate, reason: str) -> str:
        return _said(await hg.admin.jobs.redrive(job.id, reason=reason), "is due again")

    return Action(
        question=f"Redrive job {job.id}?",
        detail=f"{job.topic}, {job.state}: it runs again, with the attempts counted from 0.",
        run=run,
    )


def _cancel(job: JobInfo) -> Action:
    async def run(hg: Headgate, reason: str) -> str:
        return _said(await hg.admin.jobs.cancel(job.id, reason=reason), "is cancelled")

    detail = "Its worker is asked to stop." if job.state == "running" else "It does not run."
    return Action(question=f"Cancel job {job.id}?", detail=f"{job.topic}, {job.state}: {detail}", run=run)


def _said(changes: list[JobChange], text: str) -> str:
    """Raise the refusal, if there is one."""
    for one in changes:
        one.raise_for_error()
    return "".join(f"job {one.id} {text}" if one.changed else f"job {one.id} is {one.state} already" for one in changes)


def _quiet(worker: WorkerInfo) -> Action:
    name = worker.worker
    if worker.quiet:

        async def resume(hg: Headgate, reason: str) -> str:
            await hg.admin.workers.resume(name, reason=reason)
            return f"worker {name} gets jobs again"

        return Action(question=f"Resume worker {name}?", detail="It gets jobs again.", run=resume)

    async def quiet(hg: Headgate, reason: str) -> str:
        await hg.admin.workers.quiet(name, reason=reason)
        return f"worker {name} gets no jobs for an hour"

    return Action(
        question=f"Quiet worker {name}?", detail="It gets no jobs for an hour, and finishes what it holds.", run=quiet
    )


def _stop(worker: WorkerInfo) -> Action:
    name = worker.worker

    async def run(hg: Headgate, reason: str) -> str:
        await hg.admin.workers.stop(name, reason=reason)
        return f"worker {name} is asked to stop"

    return Action(
        question=f"Stop worker {name}?", detail="It finishes the jobs it runs, and its process ends.", run=run
    )


def _pause_schedule(schedule: ScheduleInfo) -> Action:
    name = schedule.name
    if schedule.paused:

        async def resume(hg: Headgate, reason: str) -> str:
            await hg.admin.schedules.resume(name, reason=reason)
            return f"schedule {name} is resumed"

        return Action(question=f"Resume schedule {name}?", detail="It continues with its next occurrence.", run=resume)

    async def pause(hg: Headgate, reason: str) -> str:
        await hg.admin.schedules.pause(name, reason=reason)
        return f"schedule {name} is paused"

    return Action(question=f"Pause schedule {name}?", detail="It makes no jobs; existing jobs stay.", run=pause)


def _trigger(schedule: ScheduleInfo) -> Action:
    async def run(hg: Headgate, reason: str) -> str:
        return f"made job {await hg.admin.schedules.trigger(schedule.name, reason=reason)}"

    return Action(
        question=f"Run schedule {schedule.name} now?", detail=f"It makes one job on {schedule.topic}.", run=run
    )


def _redrive_group(group: Any) -> Action:
    async def run(hg: Headgate, reason: str) -> str:
        started = await hg.admin.dead.redrive(group.topic, group=group.group, reason=reason)
        return f"operation {started.id} redrives them; 6 shows it"

    jobs = f"{group.count:,} dead letter{'' if group.count == 1 else 's'}"
    return Action(question=f"Redrive {jobs} of {group.topic}?", detail=group.title, run=run)


def _cancel_operation(operation: BulkOperation) -> Action:
    async def run(hg: Headgate, reason: str) -> str:
        ended = await hg.admin.bulk.cancel(operation.id, reason=reason)
        return f"operation {ended.id} is {ended.state}"

    return Action(
        question=f"Cancel operation {operation.id}?", detail="Jobs that it has changed stay changed.", run=run
    )
