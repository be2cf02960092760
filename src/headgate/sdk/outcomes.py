"""What a handler may raise to end its attempt; any other exception is a failure.

| a handler …                      | outcome   | costs an attempt | next                                         |
|----------------------------------|-----------|------------------|----------------------------------------------|
| returns                          | Completed | yes              | the result is stored                         |
| raises any exception             | Failed    | yes              | retried by its policy, dead at max_attempts  |
| raises `Fail(..., permanent=True)` | Failed  | yes              | dead at once                                 |
| raises `Nack(delay, reason)`     | Nack      | yes              | retried after `delay`                        |
| raises `Snooze(delay)`           | Snooze    | no               | runs again after `delay`                     |
| raises `Abandon()`               | Abandon   | no               | back to its old position in the queue        |
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from datetime import timedelta
from typing import Final, TypeAlias

from headgate.domain import limits
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.validation import MILLISECOND, clean_text, shown, to_ms
from headgate.sdk.encryption import Encryption
from headgate.wire import jobs_pb2 as pb

Seconds = float | int | timedelta
Outcome: TypeAlias = bytes | pb.Outcome
"""The result of a successful attempt, or any other outcome as a message without id and epoch."""

log = logging.getLogger("headgate.worker")

_SDK: Final = os.path.dirname(__file__)
_OURS: Final = (os.path.join(_SDK, "worker", ""), os.path.join(_SDK, "arguments.py"), os.path.join(_SDK, "codec.py"))
"""The code between a worker and a handler."""


class HandlerVerdict(Exception):
    """The common root of what a handler may raise on purpose."""


class Nack(HandlerVerdict):
    """Not now: try again after `delay` (0: at once). Costs the attempt; `reason` is shown on the job."""

    def __init__(self, delay: Seconds = 0, reason: str = "") -> None:
        super().__init__(reason or f"not now, again in {delay}")
        self.delay_ms, self.reason = delay_in_ms(delay), reason


class Snooze(HandlerVerdict):
    """Run me again after `delay`; costs no attempt."""

    def __init__(self, delay: Seconds) -> None:
        super().__init__(f"again in {delay}")
        self.delay_ms = delay_in_ms(delay)


class Abandon(HandlerVerdict):
    """Hand the job back to its old position in the queue, at no cost of an attempt."""


class Fail(HandlerVerdict):
    """The attempt failed, without a traceback; `permanent` leaves no further attempts."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.message, self.permanent = message, permanent


class Cancelled(HandlerVerdict):
    """Raised by `job.raise_if_cancelled()`: this job should end."""


def delay_in_ms(delay: Seconds, *, field: str = "delay") -> int:
    """Whole milliseconds from seconds or a timedelta, rounded up; a negative wait is none, with a warning."""
    if isinstance(delay, bool) or not isinstance(delay, int | float | timedelta):
        raise InvalidInput(field, f"must be seconds or a timedelta, got {shown(delay)}")
    try:
        span = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    except (OverflowError, ValueError):
        raise InvalidInput(field, f"must be at most 5 years, got {shown(delay)}") from None
    if span < timedelta(0):
        log.warning('negative_delay field=%s value=%s effect="0 is used"', field, delay)
        return 0
    if span > limits.DELAY_MAX_MS * MILLISECOND:
        raise InvalidInput(field, f"must be at most 5 years, got {shown(delay)}")
    return to_ms(span)


def outcome_of(error: BaseException, *, cancelled: bool) -> pb.Outcome:
    """The outcome for an exception that a handler raised; id and epoch are filled in by the caller.

    `cancelled`: the server asked for this job to end, so a CancelledError is its answer.
    """
    match error:
        case Nack():
            reason = clean_text(str(error.reason), limits.REASON_MAX_CHARS)
            return pb.Outcome(nack=pb.Nack(delay_ms=error.delay_ms, reason=reason))
        case Snooze():
            return pb.Outcome(snooze=pb.Snooze(delay_ms=error.delay_ms))
        case Abandon():
            return pb.Outcome(abandon=pb.Abandon())
        case Fail():
            return failure("Fail", error.message, permanent=error.permanent)
        case Cancelled():
            return failure("Cancelled", "the job was cancelled on request")
        case asyncio.CancelledError() if cancelled:
            return failure("Cancelled", "the job was cancelled on request")
        case _:
            return failure(_type_name(error), _text(error), trace=_trace(error))


def failure(kind: str, message: str, *, trace: str = "", permanent: bool = False) -> pb.Outcome:
    """A failed attempt, its texts made storable and cut to their limits."""
    return pb.Outcome(
        failed=pb.Failed(
            type=clean_text(kind, limits.ERROR_TYPE_MAX_CHARS),
            message=clean_text(message, limits.ERROR_MESSAGE_MAX_CHARS),
            traceback=clean_text(trace, limits.ERROR_TRACEBACK_MAX_CHARS),
            permanent=permanent,
        )
    )


def sealed_failure(outcome: pb.Outcome, encryption: Encryption, job_id: bytes) -> pb.Outcome:
    """The outcome with message and traceback encrypted; its type stays readable, for the groups of errors."""
    if encryption.errors and outcome.HasField("failed"):
        failed = outcome.failed
        # What the job keeps is cut, and a cut ciphertext could not be read; the traceback has the message as well.
        most = limits.LAST_ERROR_MAX_CHARS - len(failed.type) - len(": ")
        failed.message = encryption.seal_text(failed.message, job_id, limit=most)
        failed.traceback = encryption.seal_text(failed.traceback, job_id, limit=limits.ERROR_TRACEBACK_MAX_CHARS)
    return outcome


def _type_name(error: BaseException) -> str:
    kind = type(error)
    # Of errors of ours, users know the name and not the module.
    short = kind.__module__ == "builtins" or isinstance(error, HeadgateError)
    return kind.__qualname__ if short else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- a user's __str__ may do anything; the failure itself must still be reported
        return f"<{type(error).__qualname__} whose text cannot be made>"


def _trace(error: BaseException) -> str:
    try:
        described = traceback.TracebackException.from_exception(error)
        _drop_our_frames(described)
        return "".join(described.format())
    except Exception:  # noqa: BLE001 -- as above
        return ""


def _drop_our_frames(described: traceback.TracebackException) -> None:
    """Leave out the frames that call the handler and its middleware: they say nothing to the user."""
    left: list[traceback.TracebackException | None] = [described]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_OURS)]
            left += (one.__cause__, one.__context__, *(one.exceptions or ()))
