"""What a worker may say about an attempt, and the one thing only the watchdog says.

Sizes and delays are checked where the value is built, so a bad outcome is its sender's error and never fails the flush
it would have shared. Texts are mended rather than refused: an error report that cannot be stored would cost the job
its outcome, and the worker could do nothing about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias, assert_never

from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.states import OutcomeKind
from headgate.domain.validation import check_delay, check_flag, check_result, clean_text, shown

DEADLINE_EXCEEDED: Final = "deadline_exceeded"
"""The type of error of a job that was not started, or was stopped, because of its deadline."""


def _mend(value: object, field: str, limit: int) -> None:
    text: object = getattr(value, field)
    if not isinstance(text, str):
        raise InvalidInput(field, f"must be a str of at most {limit} characters, got {shown(text)}")
    object.__setattr__(value, field, clean_text(text, limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """What went wrong, for people: each part is made storable and cut to its limit."""

    type: str
    message: str = ""
    traceback: str = ""

    def __post_init__(self) -> None:
        _mend(self, "type", limits.ERROR_TYPE_MAX_CHARS)
        _mend(self, "message", limits.ERROR_MESSAGE_MAX_CHARS)
        _mend(self, "traceback", limits.ERROR_TRACEBACK_MAX_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The work is done. The result is opaque bytes and may be empty."""

    result: bytes = b""

    def __post_init__(self) -> None:
        check_result(self.result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt failed: retried by the job's policy, or dead at once when `permanent`."""

    error: ErrorInfo
    permanent: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.error, ErrorInfo):
            raise InvalidInput("error", f"must be an ErrorInfo, got {shown(self.error)}")
        check_flag(self.permanent, field="permanent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nack:
    """The worker chose not to do it now: costs the attempt, waits as long as the worker says (0: not at all)."""

    delay: timedelta
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", check_delay(self.delay))
        _mend(self, "reason", limits.REASON_MAX_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """The worker hands the job back untouched: at its old place, at no cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snooze:
    """The handler asks to be run again later; that costs no attempt."""

    delay: timedelta

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", check_delay(self.delay))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpired:
    """The lease ran out and was not renewed: the watchdog ends the attempt. Never sent by a worker."""


Outcome: TypeAlias = Completed | Failed | Nack | Abandon | Snooze
Ending: TypeAlias = Outcome | LeaseExpired

LEASE_EXPIRED: Final = ErrorInfo(type="LeaseExpired", message="the worker did not renew the lease in time")
"""The error of an attempt whose lease has expired, as if the worker had failed with it."""


def kind_of(ending: Ending) -> OutcomeKind:
    """Name what ended an attempt by the number its row will remember."""
    match ending:
        case Completed():
            return OutcomeKind.COMPLETED
        case Failed():
            return OutcomeKind.FAILED
        case Nack():
            return OutcomeKind.NACK
        case Abandon():
            return OutcomeKind.ABANDON
        case Snooze():
            return OutcomeKind.SNOOZE
        case LeaseExpired():
            return OutcomeKind.LEASE_EXPIRED
        case _:
            assert_never(ending)
