"""Topics: rules, limits and counts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import Response
from litestar.params import JSONBody, PathParameter, QueryParameter

from headgate.api.http.codec import (
    Attempts,
    Input,
    Milliseconds,
    Output,
    Priority,
    Reason,
    RetryPolicyIn,
    RetryPolicyOut,
    TopicName,
    answers,
    counts_of,
    policy_out,
    span,
    tagged,
)
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import PageSize, get, patch, post
from headgate.control.topics import DeclaredTopic
from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.topic_limits import BACKLOG_MAX, COUNT_MAX, Rate
from headgate.domain.topic_rules import LIMITS, NAMES, RULES, SOURCE_MAX_CHARS, Declaration
from headgate.domain.views import TopicView

TAG = ["topics"]
_US: Final = timedelta(microseconds=1)
_MS: Final = timedelta(milliseconds=1)
Topic = Annotated[
    str,
    PathParameter(
        max_length=limits.TOPIC_MAX_CHARS,
        description="Name of the topic; a slash is written %2F.",
        schema_extra={"pattern": f"^{limits.TOPIC_PATTERN}$"},  # checked by the use case, in its own words
    ),
]
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
SettingNames = Annotated[list[str], msgspec.Meta(max_length=len(NAMES), description="Names of settings, without unit.")]


class RateIn(Input, kw_only=True):
    """A token bucket: `count` starts per period, at most `burst` at once (default: count)."""

    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
    period_ms: Annotated[int, msgspec.Meta(ge=1, le=2_592_000_000)]
    burst: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] | None = None


class SettingsIn(Input, kw_only=True):
    """Settings to change; those that are not given stay unchanged."""

    max_attempts: Attempts | None = None
    retry: RetryPolicyIn | None = None
    priority: Priority | None = None
    time_limit_ms: Annotated[Milliseconds | None, msgspec.Meta(description="Of one attempt; 0: no limit.")] = None
    ageing_step_us: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=3_600_000_000)] | None,
        msgspec.Meta(description="Waiting time that is worth one unit of priority; 0: strict priority."),
    ] = None
    keep_completed_ms: Milliseconds | None = None
    keep_dead_ms: Milliseconds | None = None
    keep_cancelled_ms: Milliseconds | None = None
    max_running: Count | None = None
    rate: RateIn | None = None
    max_running_per_key: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] | None = None
    key_rate: RateIn | None = None
    ordered_by_key: bool | None = None
    fair_by_key: bool | None = None
    max_backlog: Annotated[int, msgspec.Meta(ge=0, le=BACKLOG_MAX)] | None = None
    lease_ms: Annotated[
        Annotated[int, msgspec.Meta(ge=1_000, le=86_400_000)] | None,
        msgspec.Meta(description="Of claims that ask for none; of several topics, the longest."),
    ] = None
    payload_schema: Annotated[
        dict[str, Any] | None, msgspec.Meta(description="JSON Schema that payloads must match, at most 64 KiB.")
    ] = None
    dead_letter_topic: Annotated[
        TopicName | None, msgspec.Meta(description="Topic to which jobs that die are also submitted.")
    ] = None
    max_consumers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=limits.CONSUMERS_MAX)] | None,
        msgspec.Meta(description="Worker sessions that receive jobs at once; others wait as stand-by."),
    ] = None
    max_payload_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=limits.PAYLOAD_MAX_BYTES)] | None,
        msgspec.Meta(description="Larger payloads are refused."),
    ] = None


class SetTopic(Input, kw_only=True):
    """What to change. The topic is created if it does not exist."""

    settings: SettingsIn = msgspec.field(default_factory=SettingsIn)
    clear: SettingNames = []
    reason: Reason = ""


class ReleaseTopic(Input, kw_only=True):
    """What operators have set and take back: these settings, or all."""

    settings: SettingNames = []
    reason: Reason = ""


class TopicDeclaration(Input, kw_only=True):
    """What the handler of one topic declares."""

    name: TopicName
    settings: SettingsIn = msgspec.field(default_factory=SettingsIn)


class DeclareTopics(Input, kw_only=True):
    """What the handlers of a worker declare."""

    source: Annotated[
        str, msgspec.Meta(min_length=1, max_length=SOURCE_MAX_CHARS, description='The program: "shop.tasks".')
    ]
    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.WORKER_ID_MAX_CHARS)]
    topics: Annotated[list[TopicDeclaration], msgspec.Meta(max_length=limits.DECLARATIONS_MAX)]


class RateOut(Output, kw_only=True):
    """A token bucket."""

    count: int
    period_ms: int
    burst: int = 0


class SettingsOut(Output, kw_only=True):
    """The settings that apply; what is left out does not."""

    max_attempts: int | None = None
    retry: RetryPolicyOut | None = None
    priority: int | None = None
    time_limit_ms: int | None = None
    ageing_step_us: int | None = None
    keep_completed_ms: int | None = None
    keep_dead_ms: int | None = None
    keep_cancelled_ms: int | None = None
    max_running: int | None = None
    rate: RateOut | None = None
    max_running_per_key: int | None = None
    key_rate: RateOut | None = None
    ordered_by_key: bool = False
    fair_by_key: bool = False
    max_backlog: int | None = None
    lease_ms: int | None = None
    payload_schema: dict[str, Any] | None = None
    dead_letter_topic: str | None = None
    max_consumers: int | None = None
    max_payload_bytes: int | None = None


class RuleOriginOut(Output, kw_only=True):
    """Where a value comes from."""

    origin: Literal["default", "declared", "operator"]
    by: str = ""
    version: int = 0
    at_us: int = 0
    reason: str = ""


class DeclarationOut(Output, kw_only=True):
    """What a program declares for a topic."""

    source: str
    version: int
    worker: str = ""
    at_us: int
    settings: SettingsOut


class TopicInfo(Output, kw_only=True):
    """A topic as it is now."""

    name: str
    settings: SettingsOut
    created_us: int
    changed_us: int = 0
    running: Annotated[int | None, msgspec.Meta(description="Counted against max_running or rate.")] = None
    tokens: Annotated[float | None, msgspec.Meta(description="Jobs that the rate allows to start now.")] = None
    counts: Annotated[dict[str, int], msgspec.Meta(description="Jobs by state.")] = {}
    origins: Annotated[
        dict[str, RuleOriginOut], msgspec.Meta(description="By name of the setting; not listed: the default.")
    ] = {}
    declared: DeclarationOut | None = None
    conflict: DeclarationOut | None = None
    version: Annotated[int, msgspec.Meta(description="Of the policy; left out: it was never changed.")] = 0
    consumers: Annotated[int | None, msgspec.Meta(description="Sessions that receive, with max_consumers.")] = None
    standby: Annotated[int | None, msgspec.Meta(description="Sessions that wait, with max_consumers.")] = None


class TopicPage(Output, kw_only=True):
    """One page."""

    topics: list[TopicInfo]
    next: Annotated[str, msgspec.Meta(description="`after` of the next page; left out on the last one.")] = ""


class DeclaredTopicOut(Output, kw_only=True):
    """What became of one declaration."""

    name: str
    changed: bool
    version: int
    overridden: Annotated[list[str], msgspec.Meta(description="Settings for which an operator's value counts.")] = []
    conflict: DeclarationOut | None = None


class DeclaredTopics(Output, kw_only=True):
    """In the order of the request, without topics that the token does not permit."""

    topics: list[DeclaredTopicOut]


@get("/v1/topics", uses="TopicService/ListTopics", tags=TAG)
async def list_topics(
    request: ApiRequest,
    after: Annotated[str, QueryParameter(description="`next` of the previous page.")] = "",
    limit: PageSize = limits.NAMES_PAGE,
) -> TopicPage:
    """List topics by name, with their counts."""
    found, following = await request.cases.topics.page(request.caller, after=after, limit=limit)
    return TopicPage(topics=[topic_info(one) for one in found], next=following)


@get("/v1/topics/{topic:str}", uses="TopicService/GetTopic", tags=TAG, etag=True)
async def get_topic(request: ApiRequest, topic: Topic) -> Response[TopicInfo]:
    """Read a topic: settings, where each comes from, jobs by state."""
    return tagged(request, topic_info(await request.cases.topics.get(request.caller, topic)))


@patch("/v1/topics/{topic:str}", uses="TopicService/SetTopic", tags=TAG)
async def set_topic(request: ApiRequest, topic: Topic, data: JSONBody[SetTopic]) -> TopicInfo:
    """Change settings of a topic. After the answer, no claim uses the old limits."""
    return topic_info(
        await request.cases.topics.set(
            request.caller, topic, changes_of(data.settings), clear=data.clear, reason=data.reason
        )
    )


@post("/v1/topics/{topic:str}/release", uses="TopicService/ReleaseTopic", tags=TAG)
async def release_topic(request: ApiRequest, topic: Topic, data: JSONBody[ReleaseTopic | None] = None) -> TopicInfo:
    """Take back what operators have set: the declared value counts again, or the default."""
    given = data or ReleaseTopic()
    return topic_info(await request.cases.topics.release(request.caller, topic, given.settings, reason=given.reason))


@post("/v1/declarations", uses="TopicService/DeclareTopics", tags=TAG)
async def declare_topics(request: ApiRequest, data: JSONBody[DeclareTopics]) -> DeclaredTopics:
    """Store what the handlers of a worker declare."""
    declared = [(one.name, changes_of(one.settings)) for one in data.topics]
    stored = await request.cases.topics.declare(request.caller, declared, source=data.source, worker=data.worker_id)
    return DeclaredTopics(topics=[_declared(one) for one in stored])


def changes_of(settings: SettingsIn) -> dict[str, object]:
    """The settings that are given, by their names in the domain; raises InvalidInput."""
    changes: dict[str, object] = {}
    for given in settings.__struct_fields__:
        value = getattr(settings, given)
        name, _, unit = given.rpartition("_")
        match value:
            case None:
                continue
            case RetryPolicyIn():
                changes[given] = value.policy()
            case RateIn():
                changes[given] = Rate(count=value.count, period=value.period_ms * _MS, burst=value.burst)
            case _ if unit == "us":
                changes[name] = value * _US if value else None
            case _ if unit == "ms":
                changes[name] = span(value)
            case _:
                changes[given] = value
    return changes


def topic_info(view: TopicView) -> TopicInfo:
    """A topic as read."""
    rules, sources = view.rules, view.sources
    values = {name: getattr(view.limits, name) for name in LIMITS}
    values |= {name: getattr(rules, "policy" if name == "retry" else name) for name in RULES}
    return answers.of(
        TopicInfo,
        view,
        settings=settings_out(values),
        counts=counts_of(view.counts),
        origins={name: answers.of(RuleOriginOut, one) for name, one in sources.origins().items()},
        declared=_declaration(sources.declared),
        conflict=_declaration(view.conflict),
    )


def settings_out(values: Mapping[str, Any]) -> SettingsOut:
    """Settings by their names in the domain; what is None, or a flag that is off, is left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        match value:
            case RetryPolicy():
                found[name] = policy_out(value)
            case Rate():
                found[name] = RateOut(count=value.count, period_ms=value.period // _MS, burst=value.burst or 0)
            case timedelta():
                unit, suffix = (_US, "us") if name == "ageing_step" else (_MS, "ms")
                found[f"{name}_{suffix}"] = value // unit
            case None:
                continue
            case str() if name == "payload_schema":
                found[name] = msgspec.json.decode(value)
            case _:
                found[name] = value
    return SettingsOut(**found)


def _declaration(one: Declaration | None) -> DeclarationOut | None:
    if one is None:
        return None
    worker = one.workers[0] if one.workers else ""
    return answers.of(DeclarationOut, one, worker=worker, settings=settings_out(one.rules))


def _declared(one: DeclaredTopic) -> DeclaredTopicOut:
    return answers.of(DeclaredTopicOut, one, conflict=_declaration(one.conflict))
