"""What callers hand in and what their topic lends to it.

Built and checked once, at the edge; the flushes behind it move parallel lists and check nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from headgate.domain import limits
from headgate.domain import validation as check
from headgate.domain.backoff import RetryPolicy
from headgate.domain.dependencies import Dependencies, Unique, checked_dependencies
from headgate.domain.errors import HeadgateError, InvalidInput, not_both
from headgate.domain.ids import JobId, TenantName, TopicName, parse_job_id
from headgate.domain.payload_schemas import checked_schema
from headgate.domain.retention import KEEP_RULES, check_keep
from headgate.domain.states import SubmitReceipt
from headgate.domain.topic_sets import TopicSet

DIGEST_BYTES: Final = 16
OPERATOR_CHECKS: Final[Mapping[str, Callable[[object], Any]]] = MappingProxyType(
    {
        "lease": check.check_lease,
        "payload_schema": checked_schema,
        "dead_letter_topic": lambda value: check.check_topic(value, field="dead_letter_topic"),
        "max_consumers": lambda value: check.check_integer(
            value, field="max_consumers", low=1, high=limits.CONSUMERS_MAX
        ),
        "max_payload_bytes": lambda value: check.check_integer(
            value, field="max_payload_bytes", low=0, high=limits.PAYLOAD_MAX_BYTES
        ),
    }
)
"""Rules that only an operator can set, by name; each can be None. They return the value in its one form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """What a job gets from its topic where its submission is silent, and how the topic orders its jobs."""

    max_attempts: int = limits.MAX_ATTEMPTS_DEFAULT
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    priority: int = limits.PRIORITY_DEFAULT
    time_limit: timedelta | None = None  # of one attempt; None: what its handler declares; 0: no limit
    ageing_step: timedelta | None = None  # None: strict priority
    keep_completed: timedelta | None = None  # how long finished jobs are kept; None: the rule for all topics
    keep_dead: timedelta | None = None
    keep_cancelled: timedelta | None = None
    lease: timedelta | None = None  # of a claim that asks for none; None: the server's
    payload_schema: str | None = None  # JSON Schema as text: payloads that do not match are refused
    dead_letter_topic: str | None = None  # a job that dies is also submitted there
    max_consumers: int | None = None  # worker sessions that receive its jobs at once
    max_payload_bytes: int | None = None  # larger payloads are refused; None: the limit of the server

    def __post_init__(self) -> None:
        check.check_max_attempts(self.max_attempts)
        _check_policy(self.policy)
        check.check_priority(self.priority)
        if self.time_limit is not None:
            check.check_time_limit(self.time_limit)
        if self.ageing_step is not None:
            check.check_ageing_step(self.ageing_step)
        for name in KEEP_RULES:
            if getattr(self, name) is not None:
                check_keep(getattr(self, name), field=name)
        for name, checked in OPERATOR_CHECKS.items():
            if getattr(self, name) is not None:
                checked(getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRules:
    """What the handler of a topic declares, as a producer knows it; counts until rules are stored for it."""

    priority: int | None = None
    max_attempts: int | None = None
    policy: RetryPolicy | None = None

    def __post_init__(self) -> None:
        if self.priority is not None:
            check.check_priority(self.priority)
        if self.max_attempts is not None:
            check.check_max_attempts(self.max_attempts)
        if self.policy is not None:
            _check_policy(self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One job as asked for. The id is chosen before the first send, so that sending again makes no second job."""

    tenant: TenantName
    topic: TopicName
    id: JobId
    payload: bytes = b""
    priority: int | None = None  # None: the topic's
    delay: timedelta | None = None  # counted from the database's clock at submit
    run_at: datetime | None = None  # not together with delay; a past time means now
    deadline: datetime | timedelta | None = None  # not started after this; a span as that of delay
    max_attempts: int | None = None  # None: the topic's
    policy: RetryPolicy | None = None  # None: the topic's
    declared: JobRules | None = None  # in place of rules that are not stored for the topic
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)  # kept as an unchangeable copy
    tags: Sequence[str] = ()
    key: str | None = None  # within the topic
    key_window: timedelta | None = None  # with a key: 24 hours unless said otherwise
    unique: Unique | None = None
    depends_on: Sequence[UUID] = ()
    needs: str = "succeeded"  # or ended: of each job in depends_on
    on_parent_failure: str = "cancel"  # or ignore, block
    batch: UUID | None = None
    limit_key: str | None = None  # by what its topic limits, orders or shares: a customer, an account
    sees: TopicSet | None = None  # the topics whose jobs and batches it may refer to; None: any of the tenant's
    new_id: bool = False
    """The id was made for this very call and never sent before, so the store need not look for a finished twin.
    False is always safe; True on a resend may run a finished job again."""

    dependencies: Dependencies | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check.check_tenant(self.tenant)
        check.check_topic(self.topic)
        check.check_payload(self.payload)
        self._keep("id", parse_job_id(self.id))
        if self.priority is not None:
            self._keep("priority", check.check_priority(self.priority))
        if self.delay is not None and self.run_at is not None:
            raise not_both("run_at", "delay")
        if self.delay is not None:
            self._keep("delay", check.check_delay(self.delay))
        if self.run_at is not None:
            self._keep("run_at", check.check_run_at(self.run_at))
        if self.deadline is not None:
            self._keep("deadline", check.check_deadline(self.deadline, due=self.run_at or self.delay))
        if self.max_attempts is not None:
            check.check_max_attempts(self.max_attempts)
        if self.policy is not None:
            _check_policy(self.policy)
        self._keep("headers", check.check_headers(self.headers))
        self._keep("tags", check.check_tags(self.tags))
        check.check_flag(self.new_id, field="new_id")
        if self.key is not None:
            check.check_key(self.key)
            window = limits.KEY_WINDOW_DEFAULT if self.key_window is None else self.key_window
            self._keep("key_window", check.check_key_window(window))
        if self.limit_key is not None:
            check.check_limit_key(self.limit_key)
        if self.key is None and self.key_window is not None:
            raise InvalidInput("key_window", "needs a key to apply to", hint="give a key, or leave key_window out")
        dependencies = checked_dependencies(
            self.id,
            unique=self.unique,
            depends_on=self.depends_on,
            needs=self.needs,
            on_parent_failure=self.on_parent_failure,
            batch=self.batch,
            sees=self.sees,
        )
        self._keep("dependencies", dependencies)

    def due_at(self, now: datetime) -> datetime:
        """When the job may first run, in UTC; refuses a `run_at` more than 5 years after `now`.

        The one check that needs a clock, so it is not made when the value is built.
        """
        if self.run_at is not None:
            return check.check_run_at(self.run_at, now=now)
        return now if self.delay is None else now + self.delay

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the value in its one accepted form, before anyone has seen the other


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitAnswer:
    """The answer to a submission that was not simply created; `error` only with REFUSED."""

    receipt: SubmitReceipt
    job_id: JobId
    error: HeadgateError | None = None


def body_digest(topic: str, payload: bytes) -> bytes:
    """16 bytes that tell "the same again" from "another body under the same key".

    SHA-256, because a caller could aim a weaker hash. Topic and payload are parted by a NUL, which no topic holds.
    SQL: `substring(sha256(convert_to(topic, 'UTF8') || '\\x00'::bytea || payload) FROM 1 FOR 16)`.
    """
    return sha256(topic.encode() + b"\0" + payload).digest()[:DIGEST_BYTES]


def changed_rules(rules: TopicRules, changes: Mapping[str, object]) -> TopicRules:
    """The rules with some of them replaced; raises InvalidInput."""
    attempts = changes.get("max_attempts", rules.max_attempts)
    policy, step = changes.get("retry", rules.policy), changes.get("ageing_step", rules.ageing_step)
    priority, time_limit = changes.get("priority", rules.priority), changes.get("time_limit", rules.time_limit)
    if not isinstance(attempts, int):
        raise InvalidInput("max_attempts", f"must be a whole number, got {attempts!r}")
    if not isinstance(policy, RetryPolicy):
        raise InvalidInput("retry", f"must be a RetryPolicy, got {policy!r}")
    if step is not None and not isinstance(step, timedelta):
        raise InvalidInput("ageing_step", f"must be a timedelta, got {step!r}")
    if time_limit is not None:
        time_limit = check.check_time_limit(time_limit)
    keep: dict[str, Any] = {
        name: None if value is None else check_keep(value, field=name)
        for name in KEEP_RULES
        for value in [changes.get(name, getattr(rules, name))]
    }
    own = {
        name: None if value is None else checked(value)
        for name, checked in OPERATOR_CHECKS.items()
        for value in [changes.get(name, getattr(rules, name))]
    }
    return TopicRules(
        max_attempts=attempts,
        policy=policy,
        priority=check.check_priority(priority),
        time_limit=time_limit,
        ageing_step=step,
        **keep,
        **own,
    )


def _check_policy(value: object) -> None:
    if not isinstance(value, RetryPolicy):
        raise InvalidInput("policy", f"must be a RetryPolicy, got {check.shown(value)}")
