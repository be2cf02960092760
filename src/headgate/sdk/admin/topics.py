"""Topics, for operators: `hg.admin.topics`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypedDict, Unpack

from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.errors import InvalidInput
from headgate.domain.retention import KEEP_RULES, check_keep
from headgate.domain.topic_limits import Rate
from headgate.domain.validation import check_ageing_step, check_integer, check_topic, shown
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.options import wire_policy
from headgate.sdk.rpc import Method
from headgate.sdk.times import time_of, time_or_none
from headgate.wire import topics_pb2 as pb

LIST: Final = Method("TopicService/ListTopics", pb.ListTopicsRequest, pb.ListTopicsResponse)
GET: Final = Method("TopicService/GetTopic", pb.GetTopicRequest, pb.TopicInfo)
SET: Final = Method("TopicService/SetTopic", pb.SetTopicRequest, pb.TopicInfo)
_US: Final = timedelta(microseconds=1)
_MS: Final = timedelta(milliseconds=1)


class TopicSettings(TypedDict, total=False):
    """Rules and limits of a topic. None takes a setting away; what is not named stays."""

    max_attempts: int | None
    retry: RetryPolicy | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic: its rules and limits, what its limits count now, and its jobs by state."""

    name: str
    created_at: datetime
    changed_at: datetime | None
    max_attempts: int
    retry: RetryPolicy
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
    running: int | None
    tokens: float | None
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)


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
        unknown = settings.keys() - TopicSettings.__annotations__.keys()
        if unknown:
            known = ", ".join(TopicSettings.__annotations__)
            raise InvalidInput("settings", f"has no {', '.join(sorted(unknown))}", hint=f"there are {known}")
        request = pb.SetTopicRequest(name=check_topic(name), reason=utf8_text(reason, field="reason"))
        for one, value in settings.items():
            if value is None:
                request.clear.append(one)
            else:
                _put(request.settings, one, value)
        return _info(await self._connection.call(SET, request, about=("topic", name)))


def _put(settings: pb.TopicSettings, name: str, value: object) -> None:
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
    elif name in KEEP_RULES:
        setattr(settings, f"{name}_ms", check_keep(value, field=name) // _MS)
    elif name in ("ordered_by_key", "fair_by_key"):
        if not isinstance(value, bool):
            raise InvalidInput(name, f"must be True or False, got {shown(value)}")
        setattr(settings, name, value)
    else:
        setattr(settings, name, check_integer(value, field=name, low=0, high=2**32 - 1))


def _info(topic: pb.TopicInfo) -> TopicInfo:
    found = topic.settings
    policy = found.retry
    return TopicInfo(
        name=topic.name,
        created_at=time_of(topic.created_us),
        changed_at=time_or_none(topic.changed_us),
        max_attempts=found.max_attempts,
        retry=RetryPolicy(
            kind=BackoffKind(policy.kind),
            base_ms=policy.base_ms,
            cap_ms=policy.cap_ms,
            delays_ms=tuple(policy.delays_ms),
        ),
        ageing_step=found.ageing_step_us * _US if found.HasField("ageing_step_us") else None,
        max_running=found.max_running if found.HasField("max_running") else None,
        rate=_rate(found.rate) if found.HasField("rate") else None,
        max_running_per_key=found.max_running_per_key if found.HasField("max_running_per_key") else None,
        key_rate=_rate(found.key_rate) if found.HasField("key_rate") else None,
        ordered_by_key=found.ordered_by_key,
        fair_by_key=found.fair_by_key,
        max_backlog=found.max_backlog if found.HasField("max_backlog") else None,
        keep_completed=found.keep_completed_ms * _MS if found.HasField("keep_completed_ms") else None,
        keep_dead=found.keep_dead_ms * _MS if found.HasField("keep_dead_ms") else None,
        keep_cancelled=found.keep_cancelled_ms * _MS if found.HasField("keep_cancelled_ms") else None,
        running=topic.running if topic.HasField("running") else None,
        tokens=topic.tokens if topic.HasField("tokens") else None,
        counts=dict(topic.counts),
    )


def _rate(rate: pb.Rate) -> Rate:
    return Rate(count=rate.count, period=rate.period_ms * _MS, burst=rate.burst or None)
