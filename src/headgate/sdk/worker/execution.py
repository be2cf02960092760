"""One attempt: decode, call, and turn whatever comes out of it into an outcome. Runs where the handler runs."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, cast

from headgate.domain.outcomes import DEADLINE_EXCEEDED
from headgate.sdk.codec import encode_result
from headgate.sdk.job import Job
from headgate.sdk.outcomes import Cancelled, cancelled_unbegun, failure, outcome_of
from headgate.sdk.tasks import Task
from headgate.sdk.worker.outbox import Outcome, abandon


async def attempt_async(task: Task[Any, Any], job: Job, slot: asyncio.Task[None] | None) -> Outcome:
    """Run an async handler in the current task; never raises but GeneratorExit, when its loop is thrown away."""
    try:
        value = await task.arguments.call(task.function, job)
        return b"" if value is None else encode_result(value)
    except GeneratorExit:
        raise
    except asyncio.CancelledError as error:
        # If the slot itself was cancelled and not for the job's sake, the loop is ending: hand the job back.
        if slot is not None and slot.cancelling() and not job.cancel_requested:
            return abandon()
        return _ended(error, job)
    except BaseException as error:  # noqa: BLE001 -- SystemExit too: it ends the attempt, not the worker
        return _ended(error, job)


def attempt_sync(task: Task[Any, Any], job: Job) -> Outcome:
    """Run a plain handler in this thread; never raises."""
    try:
        value = task.arguments.call(task.function, job)
        if value is None:
            return b""
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            return failure("TypeError", f"{task.name} returned an awaitable; register it as an async function")
        return encode_result(value)
    except BaseException as error:  # noqa: BLE001 -- as above
        return _ended(error, job)


def unbegun(job: Job) -> Outcome | None:
    """The outcome of a job that is not to be begun any more; None: it is another's by now, or was handed back."""
    if job.lost or job.abandoned:
        return None
    return past_deadline(job) if job.past_deadline else cancelled_unbegun()


def over_time(job: Job) -> Outcome:
    """The outcome of a handler that ran longer than its task or its job allows."""
    if job.past_deadline:
        return past_deadline(job)
    limit = cast("Task[Any, Any]", job.handler).time_limit
    return failure("TimeLimitExceeded", f"the handler of {job.topic} ran longer than its time limit of {limit:g} s")


def past_deadline(job: Job) -> Outcome:
    """The outcome of a job whose deadline has passed. No other attempt could be in time."""
    told = "and its handler was stopped" if job.begun_at else "and it was not started"
    text = f"the deadline of the job, {job.deadline:%Y-%m-%dT%H:%M:%S.%fZ}, has passed, {told}"
    return failure(DEADLINE_EXCEEDED, text, permanent=True)


def _ended(error: BaseException, job: Job) -> Outcome:
    if job.over_time and isinstance(error, asyncio.CancelledError | Cancelled):
        return over_time(job)
    return outcome_of(error, cancelled=job.cancel_requested)
