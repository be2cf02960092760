"""The options of a submit: checked, and encoded for the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Final, Literal, Protocol, TypeAlias, TypedDict, Unpack
from uuid import UUID

from headgate.domain import limits
from headgate.domain import validation as check
from headgate.domain.backoff import RetryPolicy
from headgate.domain.dependencies import Needs, OnParentFailure, Unique, check_parents
from headgate.domain.errors import InvalidInput, not_both
from headgate.domain.ids import JobId, parse_job_id
from headgate.domain.timestamps import unix_us
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as pb


class Priority(IntEnum):
    """Named priorities. Any other int is a priority too; higher runs first."""

    BULK = -10
    NORMAL = 0
    HIGH = 10
    URGENT = 20


PriorityTier: TypeAlias = Literal["bulk", "normal", "high", "urgent"]
"""The names of `Priority`, as options take them."""


class HasId(Protocol):
    """A handle, or any other object with a job's id."""

    @property
    def id(self) -> JobId: ...


class JobOptions(TypedDict, total=False):
    """The options of a submit. Spans are seconds or timedeltas; a priority is an int or a tier's name.

    `unique`: at most one live job of the topic has this key. `depends_on`: jobs this one waits for, by id or handle;
    `needs` is the end they must reach, and `on_parent_failure` what happens to this one if they fail. `batch`: an open
    batch. `deadline`: the job is not started after it, and stopped then: a span from the submit on, or a time.
    `timeout`: how long a submit may wait for its answer, including the time it waits because the server or this client
    is busy; with `when_busy="raise"` it does not wait for that, but raises `Overloaded` or `OutboxFull` at once.
    """

    priority: int | PriorityTier
    delay: Seconds
    run_at: datetime
    deadline: Seconds | datetime
    max_attempts: int
    retry: RetryPolicy
    key: str
    key_window: Seconds
    unique: str | Unique
    depends_on: Sequence[UUID | str | HasId]
    needs: Literal["succeeded", "ended"]
    on_parent_failure: Literal["cancel", "ignore", "block"]
    batch: UUID | str
    headers: Mapping[str, str]
    tags: Sequence[str]
    limit_key: str
    id: UUID | str
    timeout: float
    when_busy: Literal["wait", "raise"]


KNOWN: Final = frozenset(JobOptions.__annotations__)
SUBMIT_TIMEOUT: Final = 30.0


class DeclaredOptions:
    """What a handler declares of the options of its jobs: rules of the topic, which count until others are stored."""

    __slots__ = ("given", "message")

    def __init__(self, given: JobOptions) -> None:
        self.given = given
        self.message = pb.JobRules()
        if "priority" in given:
            self.message.priority = priority_of(given["priority"])
        if "max_attempts" in given:
            self.message.max_attempts = check.check_max_attempts(given["max_attempts"])
        if "retry" in given:
            self.message.retry.CopyFrom(wire_policy(given["retry"]))


class Prepared:
    """Checked options. `plain` if a job has only an id, a payload and a priority.

    `own` is what the producer says, `declared` what the handler does; `given` is both.
    """

    __slots__ = ("_template", "declared", "given", "id", "own", "plain", "priority", "timeout", "waits")

    def __init__(self, given: JobOptions, declared: DeclaredOptions | None = None) -> None:
        unknown = sorted(given.keys() - KNOWN)
        if unknown:
            raise InvalidInput("options", f"has no {', '.join(unknown)}", hint=f"there are {', '.join(sorted(KNOWN))}")
        self.own, self.declared = given, declared
        self.given = given if declared is None else JobOptions(**{**declared.given, **given})
        self.timeout = _timeout(given.get("timeout", SUBMIT_TIMEOUT))
        self.waits = _waits(given.get("when_busy", "wait"))
        self.id: JobId | None = parse_job_id(given["id"]) if "id" in given else None
        self.priority: int | None = priority_of(given["priority"]) if "priority" in given else None
        # An id given by the caller may have been sent before, by another process: only NewJob can say so.
        self.plain = not (given.keys() - {"priority", "timeout", "when_busy"})
        self._template = _template(given)
        if self.priority is not None:
            self._template.priority = self.priority
        if declared is not None:
            self._template.declared.CopyFrom(declared.message)

    def over(self, more: JobOptions) -> Prepared:
        """These options with some of them replaced; the same object if there is nothing to replace."""
        if not more:
            return self
        merged = JobOptions(**{**self.own, **more})
        if "delay" in more and "run_at" not in more:
            merged.pop("run_at", None)
        if "run_at" in more and "delay" not in more:
            merged.pop("delay", None)
        return Prepared(merged, self.declared)

    def new_job(self, topic: str, raw_id: bytes, payload: bytes) -> pb.NewJob:
        """One job with these options."""
        job = pb.NewJob()
        job.CopyFrom(self._template)
        job.topic, job.id, job.payload = topic, raw_id, payload
        return job


def prepared(**given: Unpack[JobOptions]) -> Prepared:
    """Check options, and encode them."""
    return Prepared(given) if given else PLAIN


def _timeout(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidInput("timeout", f"must be a number of seconds greater than 0, got {check.shown(value)}")
    return float(value)


def _waits(value: object) -> bool:
    if value not in ("wait", "raise"):
        raise InvalidInput("when_busy", f"must be 'wait' or 'raise', got {check.shown(value)}")
    return value == "wait"


def priority_of(value: object) -> int:
    """The number of a priority given as an int, a `Priority`, or a tier's name."""
    return check.priority_of_tier(value) if isinstance(value, str) else check.check_priority(value)


def _template(given: JobOptions) -> pb.NewJob:
    job = pb.NewJob()
    if "delay" in given and "run_at" in given:
        raise not_both("run_at", "delay")
    if "delay" in given:
        job.delay_ms = delay_in_ms(given["delay"])
    if "run_at" in given:
        due = check.check_run_at(given["run_at"], now=datetime.now(UTC))
        job.run_at_us = unix_us(due)
    if "deadline" in given:
        _put_deadline(job, given["deadline"], given)
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
    _put_dependencies(job, given)
    if "headers" in given:
        job.headers.update(check.check_headers(given["headers"]))
    if "tags" in given:
        job.tags.extend(check.check_tags(given["tags"]))
    return job


def _put_deadline(job: pb.NewJob, value: object, given: JobOptions) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            value = timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise InvalidInput("deadline", f"must be at most 5 years ahead, got {check.shown(value)}") from None
    due = given.get("run_at") or (job.delay_ms * check.MILLISECOND if job.delay_ms else None)
    deadline = check.check_deadline(value, due=due, now=datetime.now(UTC))
    if isinstance(deadline, timedelta):
        job.deadline_ms = check.to_ms(deadline)
    else:
        job.deadline_us = unix_us(deadline)


def _put_dependencies(job: pb.NewJob, given: JobOptions) -> None:
    if "unique" in given:
        unique = given["unique"] if isinstance(given["unique"], Unique) else Unique(key=given["unique"])
        job.unique.key = unique.key
        job.unique.on_conflict = pb.Unique.OnConflict.ValueType(int(unique.mode))
        if unique.debounce_max is not None:
            job.unique.debounce_max_ms = check.to_ms(unique.debounce_max)
    parents = given.get("depends_on", ())
    if isinstance(parents, str | bytes) or not isinstance(parents, Sequence):
        raise InvalidInput("depends_on", f"must be a list of job ids or handles, got {check.shown(parents)}")
    job.depends_on.extend(one.bytes for one in check_parents([getattr(one, "id", one) for one in parents]))
    job.needs = jobs.Needs.ValueType(Needs.parse(given.get("needs", "succeeded"), field="needs"))
    policy = OnParentFailure.parse(given.get("on_parent_failure", "cancel"), field="on_parent_failure")
    job.on_parent_failure = jobs.OnParentFailure.ValueType(policy)
    if ("needs" in given or "on_parent_failure" in given) and not parents:
        raise InvalidInput("depends_on", "names no job, so needs and on_parent_failure have nothing to apply to")
    if "batch" in given:
        job.batch = parse_job_id(given["batch"], field="batch").bytes


def wire_policy(value: object) -> pb.RetryPolicy:
    """A retry policy as a message."""
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


PLAIN: Final = Prepared({})
"""No options, as in most submits."""
