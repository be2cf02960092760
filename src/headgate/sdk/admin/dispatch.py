"""Pause, resume and status: the functions behind `hg.admin.pause`, `.resume` and `.status`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from difflib import get_close_matches
from typing import Final

from headgate.domain.errors import InvalidInput
from headgate.domain.retention import RetentionStatus
from headgate.domain.timestamps import unix_us
from headgate.domain.topic_figures import Rates, rates_of
from headgate.domain.validation import check_aware, check_topic
from headgate.domain.views import FlowMinute
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.admin.retention import rules_of
from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import admin_pb2 as pb

PAUSE: Final = Method("AdminService/Pause", pb.PauseRequest, pb.PauseResponse)
RESUME: Final = Method("AdminService/Resume", pb.ResumeRequest, pb.ResumeResponse)
STATUS: Final = Method("AdminService/Status", pb.StatusRequest, pb.StatusResponse)
PAUSE_SECONDS: Final = 20.0
"""A pause waits for the claims in flight; the server gives up on them after ten seconds."""
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseInfo:
    """A target's pause: `target` is "everything", "tenant" or "topic NAME". `since` is kept by a resume."""

    target: str
    paused: bool
    reason: str
    who: str
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """A topic's jobs by state, and since when its oldest pending job waits (None: nothing is pending)."""

    topic: str
    paused: bool
    counts: dict[str, int] = field(default_factory=dict, hash=False)
    waiting_since: datetime | None = None
    ageing_step: timedelta | None = None
    unhandled: bool = False
    """Jobs wait, and no connected worker asks for the topic."""
    declared: bool = False
    """A handler has declared rules or limits for the topic."""
    max_running: int | None = None
    max_backlog: int | None = None
    flows: tuple[FlowMinute, ...] = ()
    """The current minute and the previous one; a minute without changes is omitted."""

    @property
    def has_run(self) -> bool:
        """Whether a worker has run a job of it; as far as its jobs are kept."""
        return any(self.counts.get(state) for state in ("running", "retrying", "completed", "dead"))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceInfo:
    """A server process seen lately; `workers` are those of your tenant, `stuck` jobs and pages it cannot work on."""

    name: str
    version: str
    started_at: datetime | None
    seen_at: datetime | None
    workers: int
    stuck: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is paused, waiting and connected; `now` is the database's clock."""

    now: datetime
    pauses: tuple[PauseInfo, ...]
    topics: tuple[TopicStatus, ...]
    instances: tuple[InstanceInfo, ...]
    retention: RetentionStatus
    handled: tuple[str, ...] = ()
    """Topics that connected workers ask for; those of other servers as of a few seconds ago."""
    tenant: str = ""
    """Of your token; empty: all."""
    subject: str = ""
    """The name of your token."""
    read_only: bool = False
    """The database takes no writes: nothing can be changed, and no job starts."""

    @property
    def paused(self) -> tuple[PauseInfo, ...]:
        """The pauses that are in force."""
        return tuple(one for one in self.pauses if one.paused)

    @property
    def rates(self) -> dict[str, Rates]:
        """Jobs per second of each topic, of the last 60 to 120 seconds: what the dashboard shows."""
        return {one.topic: rates_of(one.flows, self.now) for one in self.topics}

    @property
    def unhandled(self) -> dict[str, str]:
        """Topics whose jobs wait for a worker, and for each the most similar name of a topic with a handler, or "".

        A topic has a handler if a connected worker asks for it, if one has declared it, or if jobs of it have run.
        Such a topic is spelt as meant: its worker is not connected.
        """
        known = {one.topic for one in self.topics if one.has_run or one.declared}
        names = sorted(known.union(self.handled))
        return {
            one.topic: "" if one.topic in known else next(iter(get_close_matches(one.topic, names, n=1)), "")
            for one in self.topics
            if one.unhandled
        }


def target_of(*, topic: str | None, tenant: bool, everything: bool) -> pb.Target:
    """The target; exactly one must be given."""
    if (topic is not None) + bool(tenant) + bool(everything) != 1:
        raise InvalidInput("target", "must be exactly one of topic, tenant and everything")
    if topic is not None:
        return pb.Target(topic=check_topic(topic))
    return pb.Target(tenant=True) if tenant else pb.Target(everything=True)


async def pause(connection: Connection, target: pb.Target, *, reason: str, until: datetime | None) -> PauseInfo:
    """Stop dispatch of a target."""
    request = pb.PauseRequest(target=target, reason=utf8_text(reason, field="reason"))
    if until is not None:
        request.until_us = unix_us(check_aware(until, field="until"))
    answer = await connection.call(PAUSE, request, timeout=PAUSE_SECONDS, about=("topic", target.topic))
    return _pause(answer.pause)


async def resume(connection: Connection, target: pb.Target, *, reason: str, since: datetime | None) -> bool:
    """Resume dispatch of a target."""
    request = pb.ResumeRequest(target=target, reason=utf8_text(reason, field="reason"))
    if since is not None:
        request.since_us = unix_us(check_aware(since, field="since"))
    return (await connection.call(RESUME, request, about=("topic", target.topic))).changed


async def status(connection: Connection) -> Status:
    """Read what is paused, waiting and connected."""
    answer = await connection.call(STATUS, pb.StatusRequest())
    retention = answer.retention
    return record(
        Status,
        answer,
        pauses=tuple(_pause(one) for one in answer.pauses),
        topics=tuple(
            record(
                TopicStatus,
                one,
                ageing_step=one.ageing_step_us * _MICROSECOND if one.ageing_step_us else None,
                flows=tuple(record(FlowMinute, flow) for flow in one.flows),
            )
            for one in answer.topics
        ),
        instances=tuple(record(InstanceInfo, one) for one in answer.instances),
        retention=RetentionStatus(
            rules=rules_of(retention.rules),
            oldest_day=_day(retention.oldest_day),
            days_waiting=retention.days_waiting,
            oldest_waiting=_day(retention.oldest_waiting),
        ),
    )


def _day(text: str) -> date | None:
    return date.fromisoformat(text) if text else None


def _pause(pause: pb.PauseInfo) -> PauseInfo:
    kind = pause.target.WhichOneof("kind")
    return record(PauseInfo, pause, target=f"topic {pause.target.topic}" if kind == "topic" else str(kind))
