"""One attempt, where the handler runs: decode the arguments, call it, and turn its result into an outcome."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from headgate.domain.errors import TooLarge
from headgate.sdk.codec import encode_result
from headgate.sdk.encryption import DecryptionFailed, MissingKey
from headgate.sdk.errors import UndecodablePayload, UnstorableResult
from headgate.sdk.hooks import Middleware
from headgate.sdk.outcomes import Cancelled, Outcome, failure, outcome_of, sealed_failure
from headgate.sdk.tasks import Task
from headgate.sdk.worker.forced_outcomes import abandoned, out_of_time
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.middleware import result_of, run_around, run_plain


async def attempt_async(
    task: Task[Any, Any], job: HeldJob, slot: asyncio.Task[None] | None, middleware: Sequence[Middleware] = ()
) -> Outcome:
    """Run an async handler in the current task; never raises but GeneratorExit, when its loop is thrown away."""
    try:
        if task.encryption is not None:
            job.payload = task.encryption.open_payload(job.payload, job.raw_id)
        if middleware:
            call = partial(task.arguments.call, task.function, job)
            value = result_of(*await run_around(middleware, job, call, awaited=True))
        else:
            value = await task.arguments.call(task.function, job)
        return b"" if value is None else _completed(value, task, job)
    except GeneratorExit:
        raise
    except asyncio.CancelledError as error:
        # If the slot was cancelled, and not because of the job, the loop is ending: hand the job back.
        if slot is not None and slot.cancelling() and not job.cancel_requested:
            return abandoned()
        return _ended(error, task, job)
    except BaseException as error:  # noqa: BLE001 -- SystemExit too: it ends the attempt, not the worker
        return _ended(error, task, job)


def attempt_sync(task: Task[Any, Any], job: HeldJob, middleware: Sequence[Middleware] = ()) -> Outcome:
    """Run a plain handler in this thread; never raises."""
    try:
        if task.encryption is not None:
            job.payload = task.encryption.open_payload(job.payload, job.raw_id)
        if middleware:
            call = partial(task.arguments.call, task.function, job)
            value = result_of(*run_plain(run_around(middleware, job, call, awaited=False)))
        else:
            value = task.arguments.call(task.function, job)
        if value is None:
            return b""
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            return failure("TypeError", f"{task.name} returned an awaitable; register it as an async function")
        return _completed(value, task, job)
    except BaseException as error:  # noqa: BLE001 -- as above
        return _ended(error, task, job)


def open_payload(task: Task[Any, Any], job: HeldJob) -> Outcome | None:
    """Decrypt the payload of a job that is to run in another process; gives how the attempt ends if that fails."""
    if task.encryption is not None:
        try:
            job.payload = task.encryption.open_payload(job.payload, job.raw_id)
        except (MissingKey, DecryptionFailed) as error:
            return _ended(error, task, job)
    return None


def seal_outcome(outcome: Outcome, task: Task[Any, Any], job: HeldJob) -> Outcome:
    """Encrypt what another process has reported about a job."""
    if task.encryption is None:
        return outcome
    try:
        if isinstance(outcome, bytes):
            return task.encryption.seal_result(outcome, job.raw_id)
        return sealed_failure(outcome, task.encryption, job.raw_id)
    except TooLarge as error:  # with its envelope
        return _ended(error, task, job)


def _completed(value: object, task: Task[Any, Any], job: HeldJob) -> bytes:
    result = encode_result(value, loose=task.arguments.loose_result)
    return result if task.encryption is None else task.encryption.seal_result(result, job.raw_id)


def _ended(error: BaseException, task: Task[Any, Any], job: HeldJob) -> Outcome:
    if job.timed_out and isinstance(error, asyncio.CancelledError | Cancelled):
        return out_of_time(job)
    job.error = error  # for the hooks, until the server has answered
    match error:
        # Errors of encryption itself have no secrets, and are for those who do not have the key.
        case MissingKey():  # a worker that has it may get the next attempt
            return failure("MissingKey", str(error))
        case DecryptionFailed():
            return failure("DecryptionFailed", str(error), permanent=True)
        case UndecodablePayload():  # the handler did not run, and no other attempt would get further
            outcome = failure("PayloadError", str(error), permanent=task.bad_payload == "fail")
        case UnstorableResult():  # the handler has done its work: another attempt would do it again, and end the same
            outcome = failure("PayloadError", str(error), permanent=True)
        case _:
            outcome = outcome_of(error, cancelled=job.cancel_requested)
    return outcome if task.encryption is None else sealed_failure(outcome, task.encryption, job.raw_id)
