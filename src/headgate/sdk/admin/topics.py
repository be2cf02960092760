"""Topics, for operators: `hg.admin.topics`."""

from __future__ import annotations

from builtins import list as list_of
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict, Unpack

from headgate.domain.backoff import RetryPolicy, policy_from
from headgate.domain.errors import InvalidInput
from headgate.domain.payload_schemas import checked_schema
from headgate.domain.retention import KEEP_RULES, check_keep
from headgate.domain.topic_limits import Rate
from headgate.domain.validation import (
    check_ageing_step,
    check_integer,
    check_lease,
    check_priority,
    check_time_limit,
    check_topic,
    shown,
)
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.options import wire_policy
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import topics_pb2 as pb

LIST: Final = Method("TopicService/ListTopics", pb.ListTopicsRequest, pb.ListTopicsResponse)
GET: Final = Method("TopicService/GetTopic", pb.GetTopicRequest, pb.TopicInfo)
SET: Final = Method("TopicService/SetTopic", pb.SetTopicRequest, pb.TopicInfo)
# Not repeatable: with a version, a second try would meet the change of the first.
APPLY: Final = Method("TopicService/ApplyTopic", pb.ApplyTopicRequest, pb.ApplyTopicResponse, repeatable=False)
HISTORY: Final = Method("TopicService/ListTopicVersions", pb.ListTopicVersionsRequest, pb.ListTopicVersionsResponse)
RELEASE: Final = Method("TopicService/ReleaseTopic", pb.ReleaseTopicRequest, pb.TopicInfo)
_ORIGINS: Final[tuple[Literal["default", "declared", "operator"], ...]] = ("default", "declared", "operator")
_US: Final = timedelta(microseconds=1)
_MS: Final = timedelta(milliseconds=1)


class TopicSettings(TypedDict, total=False):
    """Rules and limits of a topic. None takes a setting away; what is not named stays."""

    max_attempts: int | None
    retry: RetryPolicy | None
    priority: int | None
    time_limit: timedelta | None  # of one attempt; timedelta(0): none, whatever the handler declares
    ageing_step: timedelta | None
    max_running: int | None
    rate: Rate | None
    max_running_per_key: int | None
    key_rate: Rate | None
    ordered_by_key: bool | None
    fair_by_key: bool | None
    max_backlog: int | None
    keep_completed: timedelta | None
    keep_dead: timedelta | None
    keep_cancelled: timedelta | None
    lease: timedelta | None
    payload_schema: str | Mapping[str, Any] | None  # a JSON Schema, or its text
    dead_letter_topic: str | None
    max_consumers: int | None
    max_payload_bytes: int | None


_NOT_SET: Final[dict[str, Any]] = {
    **dict.fromkeys(TopicSettings.__annotations__),
    "ordered_by_key": False,
    "fair_by_key": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOrigin:
    """Where a setting comes from: default, declared (by a program), or operator."""

    origin: Literal["default", "declared", "operator"] = "default"
    by: str = ""
    version: int = 0  # of the declaration
    at: datetime | None = None
    reason: str = ""

    def __str__(self) -> str:
        match self.origin:
            case "declared":
                return f"declared by {self.by}, version {self.version}"
            case "operator":
                return f"set by {self.by}" + (f": {self.reason}" if self.reason else "")
            case _:
                return "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a program declares for a topic."""

    source: str
    version: int
    worker: str  # the last one that declared it
    at: datetime | None
    settings: Mapping[str, object] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic: its rules and limits, what its limits count now, and its jobs by state."""

    name: str
    created_at: datetime
    changed_at: datetime | None
    max_attempts: int
    retry: RetryPolicy
    priority: int
    time_limit: timedelta | None  # None: no rule, the worker's own applies; 0: no limit
    ageing_step: timedelta | None
    max_running: int | None
    rate: Rate | None
    max_running_per_key: int | None
    key_rate: Rate | None
    ordered_by_key: bool
    fair_by_key: bool
    max_backlog: int | None
    keep_completed: timedelta | None  # how long finished jobs are kept; None: the rule for all topics
    keep_dead: timedelta | None
    keep_cancelled: timedelta | None
    lease: timedelta | None  # of claims that ask for none; None: the server's
    payload_schema: str | None  # JSON text; payloads that do not match are refused
    dead_letter_topic: str | None  # a job that dies is also submitted there
    max_consumers: int | None  # worker sessions that receive its jobs at once
    max_payload_bytes: int | None  # larger payloads are refused; None: the limit of the server
    running: int | None
    tokens: float | None
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    origins: Mapping[str, RuleOrigin] = field(default_factory=dict, hash=False)
    """Where each setting comes from, by its name."""
    declared: Declaration | None = None  # what its handler declares
    conflict: Declaration | None = None  # what another connected worker declares
    version: int = 0  # of the policy: grows with every change of what is set or declared
    consumers: int | None = None  # worker sessions that receive its jobs; None: max_consumers is not set
    standby: int | None = None  # worker sessions that wait to receive them


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """What becomes of one setting: its value, where that comes from, or both."""

    setting: str
    before: object
    after: object
    before_origin: Literal["default", "declared", "operator"]
    after_origin: Literal["default", "declared", "operator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPolicy:
    """What an apply did, or with `dry_run` would do. `topic` is None if it does not exist."""

    name: str
    topic: TopicInfo | None
    before_version: int
    changes: tuple[PolicyChange, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One version of a policy: who made it, what it changed, and what operators have set in it."""

    version: int
    at: datetime
    actor: str
    verb: str
    reason: str
    changes: tuple[PolicyChange, ...]
    settings: Mapping[str, object] = field(hash=False)


class TopicsAdmin:
    """Look at topics and change them; changes apply on all instances within a second or two, limits at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, name: str) -> TopicInfo:
        """One topic. Raises NotFound."""
        return _info(
            await self._connection.call(GET, pb.GetTopicRequest(name=check_topic(name)), about=("topic", name))
        )

    async def list(self) -> list[TopicInfo]:
        """All topics, by name."""
        return [info async for info in self.pages()]

    async def pages(self) -> AsyncIterator[TopicInfo]:
        """All topics by name, asked for as they are read."""
        after = ""
        while True:
            page = await self._connection.call(LIST, pb.ListTopicsRequest(after=after))
            for topic in page.topics:
                yield _info(topic)
            after = page.next
            if not after:
                return

    async def set(self, name: str, *, reason: str = "", **settings: Unpack[TopicSettings]) -> TopicInfo:
        """Change what is named and leave the rest: `set("mail", max_running=10, rate=None)`.

        A topic that does not exist is made. Rules apply to jobs submitted from then on; limits at once, also to jobs
        that wait. Nothing that runs is ended.
        """
        _check_known(settings)
        request = pb.SetTopicRequest(name=check_topic(name), reason=utf8_text(reason, field="reason"))
        _put_settings(request, settings)
        return _info(await self._connection.call(SET, request, about=("topic", name)))

    async def apply(
        self,
        name: str,
        *,
        prune: bool = False,
        version: int | None = None,
        dry_run: bool = False,
        reason: str = "",
        **settings: Unpack[TopicSettings],
    ) -> AppliedPolicy:
        """Set what is named, as `set`, and say what that changes. With `dry_run`, nothing is written.

        `prune`: release what operators have set and this does not name. `version`: only if the policy has this version.
        Raises VersionConflict.
        """
        _check_known(settings)
        request = pb.ApplyTopicRequest(
            name=check_topic(name),
            prune=prune,
            version=version,
            dry_run=dry_run,
            reason=utf8_text(reason, field="reason"),
        )
        _put_settings(request, settings)
        answer = await self._connection.call(APPLY, request, about=("topic", name))
        return AppliedPolicy(
            name=name,
            topic=_info(answer.topic) if answer.HasField("topic") else None,
            before_version=answer.before_version,
            changes=tuple(map(_change, answer.changes)),
            dry_run=answer.dry_run,
        )

    async def history(self, name: str, *, before: int | None = None, limit: int = 100) -> list_of[PolicyVersion]:
        """Versions of the policy, newest first, at most `limit`; with `before`, only earlier ones. Raises NotFound."""
        request = pb.ListTopicVersionsRequest(
            name=check_topic(name), before=before or 0, limit=check_integer(limit, field="limit", low=1, high=1_000)
        )
        answer = await self._connection.call(HISTORY, request, about=("topic", name))
        return [
            record(PolicyVersion, one, changes=tuple(map(_change, one.changes)), settings=_values(one.settings))
            for one in answer.versions
        ]

    async def release(self, name: str, *settings: str, reason: str = "") -> TopicInfo:
        """Take back what operators have set, of these settings or of all: what is declared counts again."""
        _check_known(settings)
        request = pb.ReleaseTopicRequest(
            name=check_topic(name), settings=settings, reason=utf8_text(reason, field="reason")
        )
        return _info(await self._connection.call(RELEASE, request, about=("topic", name)))


def _check_known(settings: Iterable[str]) -> None:
    if unknown := sorted(set(settings) - TopicSettings.__annotations__.keys()):
        known = ", ".join(TopicSettings.__annotations__)
        raise InvalidInput("settings", f"has no {', '.join(unknown)}", hint=f"there are {known}")


def _put_settings(request: pb.SetTopicRequest | pb.ApplyTopicRequest, settings: TopicSettings) -> None:
    for one, value in settings.items():
        if value is None:
            request.clear.append(one)
        else:
            put_setting(request.settings, one, value)


def put_setting(settings: pb.TopicSettings, name: str, value: object) -> None:
    """Set one by its name; raises InvalidInput."""
    if name in ("rate", "key_rate"):
        if not isinstance(value, Rate):
            raise InvalidInput(
                name, f"must be a Rate, got {shown(value)}", hint="Rate(count=10, period=timedelta(...))"
            )
        rate = pb.Rate(count=value.count, period_ms=value.period // _MS, burst=value.burst or 0)
        (settings.rate if name == "rate" else settings.key_rate).CopyFrom(rate)
    elif name == "retry":
        settings.retry.CopyFrom(wire_policy(value))
    elif name == "ageing_step":
        settings.ageing_step_us = check_ageing_step(value) // _US
    elif name == "priority":
        settings.priority = check_priority(value)
    elif name == "time_limit":
        settings.time_limit_ms = check_time_limit(value) // _MS
    elif name == "lease":
        settings.lease_ms = check_lease(value) // _MS
    elif name == "payload_schema":
        settings.payload_schema = checked_schema(value)
    elif name == "dead_letter_topic":
        settings.dead_letter_topic = check_topic(value, field=name)
    elif name in KEEP_RULES:
        setattr(settings, f"{name}_ms", check_keep(value, field=name) // _MS)
    elif name in ("ordered_by_key", "fair_by_key"):
        if not isinstance(value, bool):
            raise InvalidInput(name, f"must be True or False, got {shown(value)}")
        setattr(settings, name, value)
    else:
        setattr(settings, name, check_integer(value, field=name, low=0, high=2**32 - 1))


def _info(topic: pb.TopicInfo) -> TopicInfo:
    return record(
        TopicInfo,
        topic,
        origins={name: _origin(topic.origins[name]) for name in TopicSettings.__annotations__},
        declared=declaration_of(topic.declared) if topic.HasField("declared") else None,
        conflict=declaration_of(topic.conflict) if topic.HasField("conflict") else None,
        **{**_NOT_SET, **_values(topic.settings)},
    )


def _values(settings: pb.TopicSettings) -> dict[str, Any]:
    """The settings that are set, by their names."""
    values: dict[str, Any] = {}
    for described, value in settings.ListFields():
        name, _, unit = described.name.rpartition("_")
        if unit in ("us", "ms"):
            values[name] = value * (_US if unit == "us" else _MS)
        elif described.name == "retry":
            values["retry"] = policy_from(value.kind, value.base_ms, value.cap_ms, value.delays_ms)
        elif isinstance(value, pb.Rate):
            values[described.name] = Rate(count=value.count, period=value.period_ms * _MS, burst=value.burst or None)
        else:
            values[described.name] = value
    return values


def _change(found: pb.PolicyChange) -> PolicyChange:
    setting = found.setting
    return PolicyChange(
        setting=setting,
        before=_values(found.before).get(setting, _NOT_SET.get(setting)),
        after=_values(found.after).get(setting, _NOT_SET.get(setting)),
        before_origin=_ORIGINS[found.before_origin],
        after_origin=_ORIGINS[found.after_origin],
    )


def _origin(found: pb.RuleOrigin) -> RuleOrigin:
    return record(RuleOrigin, found, origin=_ORIGINS[found.origin])


def declaration_of(found: pb.Declaration) -> Declaration:
    """Read a declaration off the wire; of its settings only those that are declared."""
    return record(Declaration, found, settings=_values(found.settings))
