"""TopicService. Translates and delegates to control/topics.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, TypeAlias

import grpc

from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import at_us, policy_message, retry_policy, span
from headgate.api.grpc.methods import grpc_service, unary
from headgate.control.topics import Topics
from headgate.domain.topic_limits import Rate
from headgate.domain.views import TopicView
from headgate.wire import topics_pb2 as pb

Call: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
PLAIN: Final = ("max_attempts", "max_running", "max_running_per_key", "ordered_by_key", "fair_by_key", "max_backlog")
_US: Final = timedelta(microseconds=1)
_MS: Final = timedelta(milliseconds=1)


class TopicService:
    """ListTopics, GetTopic, SetTopic."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def list_topics(self, request: pb.ListTopicsRequest, _call: Call) -> pb.ListTopicsResponse:
        """A page of topics by name."""
        found, after = await self._topics.page(caller(), after=request.after, limit=request.limit or 100)
        return pb.ListTopicsResponse(topics=map(topic_info, found), next=after)

    async def get_topic(self, request: pb.GetTopicRequest, _call: Call) -> pb.TopicInfo:
        """One topic."""
        return topic_info(await self._topics.get(caller(), request.name))

    async def set_topic(self, request: pb.SetTopicRequest, _call: Call) -> pb.TopicInfo:
        """Change the settings given."""
        view = await self._topics.set(
            caller(), request.name, changes_of(request.settings), clear=request.clear, reason=request.reason
        )
        return topic_info(view)


def methods(service: TopicService) -> grpc.GenericRpcHandler:
    """The service's methods."""
    return grpc_service(
        "headgate.v1.TopicService",
        {
            "ListTopics": unary(service.list_topics, pb.ListTopicsRequest, pb.ListTopicsResponse),
            "GetTopic": unary(service.get_topic, pb.GetTopicRequest, pb.TopicInfo),
            "SetTopic": unary(service.set_topic, pb.SetTopicRequest, pb.TopicInfo),
        },
    )


def changes_of(settings: pb.TopicSettings) -> dict[str, object]:
    """The settings that are set, by their names in the domain; raises InvalidInput."""
    changes: dict[str, object] = {name: getattr(settings, name) for name in PLAIN if settings.HasField(name)}
    if settings.HasField("retry"):
        changes["retry"] = retry_policy(settings.retry)
    if settings.HasField("ageing_step_us"):
        changes["ageing_step"] = settings.ageing_step_us * _US if settings.ageing_step_us else None
    if settings.HasField("keep_completed_ms"):
        changes["keep_completed"] = span(settings.keep_completed_ms, "keep_completed_ms")
    if settings.HasField("keep_dead_ms"):
        changes["keep_dead"] = span(settings.keep_dead_ms, "keep_dead_ms")
    if settings.HasField("keep_cancelled_ms"):
        changes["keep_cancelled"] = span(settings.keep_cancelled_ms, "keep_cancelled_ms")
    for name in ("rate", "key_rate"):
        if settings.HasField(name):
            rate: pb.Rate = getattr(settings, name)
            period = span(rate.period_ms, f"{name}.period_ms")
            changes[name] = Rate(count=rate.count, period=period, burst=rate.burst or None)
    return changes


def topic_info(view: TopicView) -> pb.TopicInfo:
    """A topic as read."""
    rules, limits = view.rules, view.limits
    return pb.TopicInfo(
        name=view.name,
        created_us=at_us(view.created_at),
        changed_us=at_us(view.changed_at),
        running=view.running,
        tokens=view.tokens,
        counts={state.label: count for state, count in view.counts.items()},
        settings=pb.TopicSettings(
            max_attempts=rules.max_attempts,
            retry=policy_message(rules.policy),
            ageing_step_us=None if rules.ageing_step is None else rules.ageing_step // _US,
            max_running=limits.max_running,
            rate=_rate(limits.rate),
            max_running_per_key=limits.max_running_per_key,
            key_rate=_rate(limits.key_rate),
            ordered_by_key=limits.ordered_by_key or None,
            fair_by_key=limits.fair_by_key or None,
            max_backlog=limits.max_backlog,
            keep_completed_ms=_ms(rules.keep_completed),
            keep_dead_ms=_ms(rules.keep_dead),
            keep_cancelled_ms=_ms(rules.keep_cancelled),
        ),
    )


def _ms(span: timedelta | None) -> int | None:
    return None if span is None else span // _MS


def _rate(rate: Rate | None) -> pb.Rate | None:
    return None if rate is None else pb.Rate(count=rate.count, period_ms=rate.period // _MS, burst=rate.burst or 0)
