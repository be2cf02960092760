"""What became of each attempt: a log line, and the hooks for failures.

A line is written after the server has answered: only then it is known whether the job is tried again and when, or is
dead. A failure that the server never acknowledges is logged as well, so that no exception of a handler is hidden.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from headgate.sdk.background_calls import BackgroundCalls
from headgate.sdk.hooks import Failure, Hooks, name_of
from headgate.sdk.job_context import bound_to, fields_of
from headgate.sdk.outcomes import Outcome
from headgate.sdk.times import time_of
from headgate.sdk.worker.held_job import HeldJob
from headgate.wire import jobs_pb2 as pb

HOOK_SECONDS: Final = 30.0
"""How long one hook may take; the next one does not wait longer for it."""
LOG_CLOSE_SECONDS: Final = 1.0
HOOKS_CLOSE_SECONDS: Final = 5.0
"""How long a worker that has ended waits for lines to be written, and for hooks."""


class _AttemptLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields of a job, and the traceback of its handler, as any formatter prints one."""

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        """Write one line; `job` and `traceback` are keywords."""
        if not self.isEnabledFor(level):
            return
        job: HeldJob | None = more.pop("job", None)
        if job is None:
            super().log(level, msg, *args, **more)
            return
        record = self.logger.makeRecord(self.logger.name, level, __file__, 0, msg, args, None, "log")
        # Not as `extra`, which raises if a record factory of the application sets a field of the same name.
        for name, value in (fields_of(job) | {"max_attempts": job.max_attempts}).items():
            vars(record).setdefault(name, value)
        record.exc_text = str(more.get("traceback") or "").rstrip() or None
        self.logger.handle(record)


log = _AttemptLogger(logging.getLogger("headgate.worker"), {})


class Settled(NamedTuple):
    """An outcome and the server's answer; None if there is none."""

    job: HeldJob
    outcome: Outcome
    receipt: pb.Receipt | None


class AttemptLog:
    """Logs settled attempts and calls the hooks, each in a thread of its own. Fed by the I/O thread."""

    def __init__(self, hooks: Hooks, loop: asyncio.AbstractEventLoop, lines: BackgroundCalls) -> None:
        self._hooks, self._loop, self._lines = hooks, loop, lines
        self._calls, self._plain = BackgroundCalls("headgate-hooks"), BackgroundCalls("headgate-plain-hooks")

    def put(self, settled: Sequence[Settled]) -> None:
        """Log these, and call the hooks for those that failed."""
        for one in settled:
            failure = None if isinstance(one.outcome, bytes) else failure_of(one)
            self._lines.put(log_attempt, one, failure)
            one.job.error = None  # it refers to frames, and these to the job
            if failure is not None and self._hooks.at_failures:
                self._calls.put(self._call_hooks, failure)

    async def close(self) -> None:
        """Wait, within limits, until all is logged and all hooks were called; on the loop of the worker."""
        await asyncio.to_thread(self._lines.flush, LOG_CLOSE_SECONDS)
        if left := await asyncio.to_thread(self._calls.close, HOOKS_CLOSE_SECONDS):
            log.error("hooks_not_called failures=%d seconds=%g", left, HOOKS_CLOSE_SECONDS)
        self._plain.close(0)

    def _call_hooks(self, failure: Failure) -> None:
        for function in self._hooks.on_failure:
            self._call("on_failure", function, failure)
        for function in self._hooks.on_dead if failure.dead else ():
            self._call("on_dead", function, failure)

    def _call(self, kind: str, function: Callable[[Failure], object], failure: Failure) -> None:
        waiting: Future[Any] | None = None
        try:
            if inspect.iscoroutinefunction(function):
                made: object = function(failure)
            else:  # in another thread, which is replaced if the function does not return
                waiting = self._plain.submit(_call_bound, function, failure)
                made = waiting.result(HOOK_SECONDS)
            if inspect.iscoroutine(made):
                waiting = asyncio.run_coroutine_threadsafe(_await_bound(made, failure), self._loop)
                waiting.result(HOOK_SECONDS)
        except (Exception, SystemExit):  # whatever a hook raises, the others are called
            if waiting is None or waiting.done():
                log.exception("hook_failed hook=%s function=%s", kind, name_of(function))
                return
            log.error('hook_failed hook=%s function=%s error="it did not end in time"', kind, name_of(function))
            if not waiting.cancel():
                self._plain.close(0)  # its thread ends when the function does
                self._plain = BackgroundCalls("headgate-plain-hooks")


def _call_bound(function: Callable[[Failure], object], failure: Failure) -> object:
    """Call a hook; its log lines have the fields of the job."""
    with bound_to(failure.job):
        return function(failure)


async def _await_bound(made: Coroutine[Any, Any, object], failure: Failure) -> None:
    """Run an async hook in the same way; a SystemExit would end the event loop of the worker."""
    try:
        with bound_to(failure.job):
            await made
    except SystemExit as error:
        raise RuntimeError(f"it has called sys.exit({error.code!r})") from error


def failure_of(settled: Settled) -> Failure | None:
    """The failed attempt; None if it has not failed: done, put off, abandoned, or cancelled on request."""
    job, outcome, receipt = settled
    assert not isinstance(outcome, bytes)  # noqa: S101 - completions have no message
    dead = receipt is not None and receipt.state == pb.STATE_DEAD
    match outcome.WhichOneof("kind"):
        case "failed" if receipt is None or receipt.state != pb.STATE_CANCELLED:
            kind, (message, trace) = outcome.failed.type, texts_of(job, outcome.failed)
        case "nack" if dead:
            kind, message, trace = "Nack", outcome.nack.reason, ""
        case _:
            return None
    return Failure(
        job=job,
        type=kind,
        message=message,
        traceback=trace,
        exception=job.error,
        dead=dead,
        retry_at=None if dead or receipt is None or not receipt.run_at_us else time_of(receipt.run_at_us),
    )


def texts_of(job: HeldJob, failed: pb.Failed) -> tuple[str, str]:
    """Message and traceback of a failure, decrypted: logs and hooks are on the side of the handler."""
    encryption = None if job.handler is None else job.handler.encryption
    if encryption is None:
        return failed.message, failed.traceback
    return encryption.open_text(failed.message, job.raw_id), encryption.open_text(failed.traceback, job.raw_id)


def log_attempt(settled: Settled, failure: Failure | None) -> None:
    """Write the line of one attempt."""
    job, outcome, receipt = settled
    attempt = f"{job.attempt}/{job.max_attempts}"
    if isinstance(outcome, bytes):
        log.debug(
            "job_completed topic=%s job_id=%s attempt=%s seconds=%.3f",
            *(job.topic, job.id, attempt, job.run_seconds),
            job=job,
        )
        return
    again = "unknown" if receipt is None or not receipt.run_at_us else _iso(receipt.run_at_us)
    if failure is not None:
        error = f"{failure.type}: {failure.message}" if failure.message else failure.type
        if failure.dead:
            log.error(
                "job_dead topic=%s job_id=%s attempt=%s error=%s seconds=%.3f",
                *(job.topic, job.id, attempt, error, job.run_seconds),
                job=job,
                traceback=failure.traceback,
            )
        else:
            log.warning(
                "job_failed topic=%s job_id=%s attempt=%s error=%s retry_at=%s seconds=%.3f",
                *(job.topic, job.id, attempt, error, again, job.run_seconds),
                job=job,
                traceback=failure.traceback,
            )
        return
    match outcome.WhichOneof("kind"):
        case "nack":
            log.info(
                "job_nacked topic=%s job_id=%s attempt=%s reason=%s retry_at=%s",
                *(job.topic, job.id, attempt, outcome.nack.reason, again),
                job=job,
            )
        case "snooze":
            log.info(
                "job_snoozed topic=%s job_id=%s attempt=%s run_at=%s", *(job.topic, job.id, attempt, again), job=job
            )
        case "failed":
            log.info(
                "job_cancelled topic=%s job_id=%s attempt=%s",
                *(job.topic, job.id, attempt),
                job=job,
                traceback=texts_of(job, outcome.failed)[1],
            )
        case "abandon":
            log.debug("job_abandoned topic=%s job_id=%s attempt=%s", job.topic, job.id, attempt, job=job)


def _iso(microseconds: int) -> str:
    return time_of(microseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
