"""Dispatch: what is paused, how much waits, pause and resume."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from litestar.params import JSONBody

from headgate.api.http.codec import Input, Microseconds, Output, Reason, TopicName, answers, counts_of, moment
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.retention import RetentionStatusOut, status_out
from headgate.api.http.routing import get, post
from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.timestamps import MICROSECOND
from headgate.domain.views import Pause, Target, TargetKind, TopicStatus

TAG = ["dispatch"]


class TargetIn(Input, kw_only=True):
    """What a pause covers: set one of them."""

    everything: Annotated[bool, msgspec.Meta(description="All tenants; requires the scope `system`.")] = False
    tenant: Annotated[bool, msgspec.Meta(description="The tenant of the token.")] = False
    topic: TopicName | None = None

    def target(self) -> Target:
        """The target; raises InvalidInput."""
        if self.everything + self.tenant + (self.topic is not None) != 1:
            raise InvalidInput("target", "must have one of everything, tenant and topic")
        if self.topic is not None:
            return Target(kind=TargetKind.TOPIC, topic=self.topic)
        return Target(kind=TargetKind.EVERYTHING if self.everything else TargetKind.TENANT)


_ONE_OF: Final = {
    "everything": {"const": True},
    "tenant": {"const": True},
    "topic": {"type": "string"},
}
_UNSET: Final = {"everything": {"const": False}, "tenant": {"const": False}, "topic": {"type": "null"}}
OneTarget = Annotated[
    TargetIn,
    msgspec.Meta(
        extra_json_schema={
            "oneOf": [{"required": [name], "properties": {**_UNSET, name: value}} for name, value in _ONE_OF.items()]
        }
    ),
]


class PauseIn(Input, kw_only=True):
    """What to pause, why, and until when."""

    target: OneTarget
    reason: Reason = ""
    until_us: Annotated[Microseconds, msgspec.Meta(description="0: until resumed.")] = 0


class ResumeIn(Input, kw_only=True):
    """What to resume."""

    target: OneTarget
    reason: Reason = ""
    since_us: Annotated[
        Microseconds,
        msgspec.Meta(description="Only the pause that began then, else `version_conflict`; 0: any."),
    ] = 0


class TargetOut(Output, kw_only=True):
    """What a pause covers."""

    everything: bool = False
    tenant: bool = False
    topic: str = ""


class PauseInfo(Output, kw_only=True):
    """The pause of a target."""

    target: TargetOut
    paused: bool
    reason: str = ""
    who: str = ""
    since_us: int = 0
    until_us: int = 0


class Resumed(msgspec.Struct, kw_only=True):
    """Whether it was paused."""

    changed: bool


class FlowMinuteOut(Output, kw_only=True):
    """Jobs of a topic that changed in a minute."""

    minute_us: int
    submitted: int = 0
    completed: int = 0
    retried: int = 0
    failed: Annotated[int, msgspec.Meta(description="Attempts that were retried, or made their job dead.")] = 0
    dead: int = 0


class TopicStatusOut(Output, kw_only=True):
    """A topic at a glance."""

    topic: str
    paused: bool = False
    counts: dict[str, int] = {}
    waiting_since_us: Annotated[int, msgspec.Meta(description="Due time of the oldest job that is next.")] = 0
    ageing_step_us: int = 0
    unhandled: Annotated[bool, msgspec.Meta(description="Jobs wait, and no connected worker asks for them.")] = False
    declared: Annotated[bool, msgspec.Meta(description="A handler has declared rules or limits.")] = False
    max_running: Annotated[int | None, msgspec.Meta(description="Its limit, if it has one.")] = None
    max_backlog: Annotated[int | None, msgspec.Meta(description="Its limit, if it has one.")] = None
    flows: Annotated[list[FlowMinuteOut], msgspec.Meta(description="The current minute and the previous one.")] = []


class InstanceOut(Output, kw_only=True):
    """A server process that was seen lately."""

    name: str
    version: str = ""
    started_us: int
    seen_us: int
    workers: int = 0
    stuck: int = 0


class StatusOut(Output, kw_only=True):
    """What is dispatched, what is not, and why."""

    now_us: int
    pauses: list[PauseInfo]
    topics: list[TopicStatusOut]
    instances: list[InstanceOut]
    retention: RetentionStatusOut
    handled: Annotated[list[str], msgspec.Meta(description="Topics that connected workers ask for.")] = []
    tenant: Annotated[str, msgspec.Meta(description="Tenant of the token. Left out: all.")] = ""
    subject: Annotated[str, msgspec.Meta(description="Name of the token.")] = ""
    read_only: Annotated[
        bool, msgspec.Meta(description="The database takes no writes: nothing can be changed, and no job starts.")
    ] = False


@get("/v1/status", uses="AdminService/Status", tags=TAG)
async def get_status(request: ApiRequest) -> StatusOut:
    """Read pauses, job counts and waiting times by topic, instances and retention."""
    found = await request.cases.admin.status(request.caller)
    return answers.of(
        StatusOut,
        found,
        pauses=[_pause(one) for one in found.pauses],
        topics=[_topic(one) for one in found.topics],
        instances=[answers.of(InstanceOut, one) for one in found.instances],
        retention=status_out(found.retention),
        handled=sorted(found.handled or ())[: limits.HANDLED_TOPICS_MAX],
    )


@post("/v1/pause", uses="AdminService/Pause", tags=TAG)
async def pause(request: ApiRequest, data: JSONBody[PauseIn]) -> PauseInfo:
    """Stop dispatch of a topic, the tenant or everything.

    After the answer, no job of the target enters `running` on any instance until it is resumed, or until `until_us`.
    """
    until = moment(data.until_us, field="until_us")
    return _pause(
        await request.cases.admin.pause(request.caller, data.target.target(), reason=data.reason, until=until)
    )


@post("/v1/resume", uses="AdminService/Resume", tags=TAG)
async def resume(request: ApiRequest, data: JSONBody[ResumeIn]) -> Resumed:
    """Resume dispatch of a topic, the tenant or everything."""
    since = moment(data.since_us, field="since_us")
    changed = await request.cases.admin.resume(request.caller, data.target.target(), reason=data.reason, since=since)
    return Resumed(changed=changed)


def _pause(pause: Pause) -> PauseInfo:
    kind, topic = pause.target.kind, pause.target.topic
    target = TargetOut(everything=kind is TargetKind.EVERYTHING, tenant=kind is TargetKind.TENANT, topic=topic)
    return answers.of(PauseInfo, pause, target=target)


def _topic(one: TopicStatus) -> TopicStatusOut:
    return answers.of(
        TopicStatusOut,
        one,
        counts=counts_of(one.counts),
        ageing_step_us=0 if one.ageing_step is None else one.ageing_step // MICROSECOND,
        flows=[answers.of(FlowMinuteOut, flow) for flow in one.flows],
    )
