"""What may be said about a job besides its arguments, checked before the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypedDict, Unpack
from uuid import UUID

from headgate.domain import limits
from headgate.domain import validation as check
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId, parse_job_id
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.wire import producer_pb2 as pb

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class JobOptions(TypedDict, total=False):
    """The options of a submit. Spans are seconds or timedeltas; a priority is an int or a tier's name."""

    priority: int | str
    delay: Seconds
    run_at: datetime
    max_attempts: int
    retry: RetryPolicy
    key: str
    key_window: Seconds
    headers: Mapping[str, str]
    tags: Sequence[str]
    limit_key: str
    id: UUID | str
    timeout: float


KNOWN: Final = frozenset(JobOptions.__annotations__)
SUBMIT_TIMEOUT: Final = 30.0


class Prepared:
    """Options in the form they are sent in. `plain` if a job needs nothing but id, payload and priority."""

    __slots__ = ("_template", "given", "id", "plain", "priority", "timeout")

    def __init__(self, given: JobOptions) -> None:
        unknown = sorted(given.keys() - KNOWN)
        if unknown:
            raise InvalidInput("options", f"has no {', '.join(unknown)}", hint=f"there are {', '.join(sorted(KNOWN))}")
        self.given = given
        self.timeout = _timeout(given.get("timeout", SUBMIT_TIMEOUT))
        self.id: JobId | None = parse_job_id(given["id"]) if "id" in given else None
        self.priority = _priority(given.get("priority", 0))
        # An id given by the caller may have been sent before, by another process: that is said on NewJob only.
        self.plain = not (given.keys() - {"priority", "timeout"})
        self._template = _template(given)
        self._template.priority = self.priority

    def over(self, more: JobOptions) -> Prepared:
        """These options with some of them replaced; the same object if there is nothing to replace."""
        if not more:
            return self
        merged = JobOptions(**{**self.given, **more})
        if "delay" in more and "run_at" not in more:
            merged.pop("run_at", None)
        if "run_at" in more and "delay" not in more:
            merged.pop("delay", None)
        return Prepared(merged)

    def new_job(self, topic: str, raw_id: bytes, payload: bytes) -> pb.NewJob:
        """One job with these options."""
        job = pb.NewJob()
        job.CopyFrom(self._template)
        job.topic, job.id, job.payload = topic, raw_id, payload
        return job


def prepared(**given: Unpack[JobOptions]) -> Prepared:
    """Check options and bring them into the form they are sent in."""
    return Prepared(given)


def _timeout(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidInput("timeout", f"must be a number of seconds greater than 0, got {check.shown(value)}")
    return float(value)


def _priority(value: object) -> int:
    return check.priority_of_tier(value) if isinstance(value, str) else check.check_priority(value)


def _template(given: JobOptions) -> pb.NewJob:
    job = pb.NewJob()
    if "delay" in given and "run_at" in given:
        raise InvalidInput("run_at", "cannot be given together with delay", hint="give one of the two")
    if "delay" in given:
        job.delay_ms = delay_in_ms(given["delay"])
    if "run_at" in given:
        due = check.check_run_at(given["run_at"], now=datetime.now(UTC))
        job.run_at_us = (due - _EPOCH) // _MICROSECOND
    if "max_attempts" in given:
        job.max_attempts = check.check_max_attempts(given["max_attempts"])
    if "retry" in given:
        job.retry.CopyFrom(wire_policy(given["retry"]))
    if "key" in given:
        job.key = check.check_key(given["key"])
        window = given.get("key_window", limits.KEY_WINDOW_DEFAULT)
        span = timedelta(milliseconds=delay_in_ms(window, field="key_window"))
        job.key_window_ms = check.to_ms(check.check_key_window(span))
    elif "key_window" in given:
        raise InvalidInput("key_window", "needs a key to apply to", hint="give a key, or leave key_window out")
    if "limit_key" in given:
        job.limit_key = check.check_limit_key(given["limit_key"])
    if "headers" in given:
        job.headers.update(check.check_headers(given["headers"]))
    if "tags" in given:
        job.tags.extend(check.check_tags(given["tags"]))
    return job


def wire_policy(value: object) -> pb.RetryPolicy:
    """A retry policy as it is sent."""
    if not isinstance(value, RetryPolicy):
        raise InvalidInput(
            "retry", f"must be a RetryPolicy, got {check.shown(value)}", hint="for example RetryPolicy.fixed(...)"
        )
    kind = pb.RetryPolicy.Kind.Name(pb.RetryPolicy.Kind.ValueType(int(value.kind)))
    if kind != value.kind.name:  # the numbers of the domain and of the wire are the same by intent; see the tests
        raise InvalidInput("retry", f"has a kind the wire does not know, {value.kind.name}")
    return pb.RetryPolicy(
        kind=pb.RetryPolicy.Kind.ValueType(int(value.kind)),
        base_ms=value.base_ms,
        cap_ms=value.cap_ms,
        delays_ms=value.delays_ms,
    )
