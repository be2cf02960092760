"""TopicService. Translates and delegates to control/topics.py and control/topic_policies.py."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final

from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import answers, policy_message, retry_policy, span
from headgate.api.grpc.methods import Context
from headgate.control.topic_policies import TopicPolicies
from headgate.control.topics import Topics
from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.topic_limits import Rate
from headgate.domain.topic_policy import PolicyChange, PolicyVersion
from headgate.domain.topic_rules import LIMITS, RULES, Declaration
from headgate.domain.views import TopicView
from headgate.wire import topics_pb2 as pb

_US: Final = timedelta(microseconds=1)
_MS: Final = timedelta(milliseconds=1)


class TopicService:
    """ListTopics, GetTopic, SetTopic, ApplyTopic, ListTopicVersions, ReleaseTopic, DeclareTopics."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["TopicService"]

    def __init__(self, topics: Topics, policies: TopicPolicies) -> None:
        self._topics, self._policies = topics, policies

    async def list_topics(self, request: pb.ListTopicsRequest, _call: Context) -> pb.ListTopicsResponse:
        """A page of topics by name."""
        found, after = await self._topics.page(caller(), after=request.after, limit=request.limit or limits.NAMES_PAGE)
        return pb.ListTopicsResponse(topics=map(topic_info, found), next=after)

    async def get_topic(self, request: pb.GetTopicRequest, _call: Context) -> pb.TopicInfo:
        """One topic."""
        return topic_info(await self._topics.get(caller(), request.name))

    async def set_topic(self, request: pb.SetTopicRequest, _call: Context) -> pb.TopicInfo:
        """Change the settings given."""
        view = await self._topics.set(
            caller(), request.name, changes_of(request.settings), clear=request.clear, reason=request.reason
        )
        return topic_info(view)

    async def apply_topic(self, request: pb.ApplyTopicRequest, _call: Context) -> pb.ApplyTopicResponse:
        """Set what a document names."""
        applied = await self._policies.apply(
            caller(),
            request.name,
            changes_of(request.settings),
            clear=request.clear,
            prune=request.prune,
            version=request.version if request.HasField("version") else None,
            dry_run=request.dry_run,
            reason=request.reason,
        )
        return pb.ApplyTopicResponse(
            topic=None if applied.topic is None else topic_info(applied.topic),
            before_version=applied.before_version,
            changes=map(_change, applied.changes),
            dry_run=applied.dry_run,
        )

    async def list_topic_versions(
        self, request: pb.ListTopicVersionsRequest, _call: Context
    ) -> pb.ListTopicVersionsResponse:
        """A page of versions, newest first."""
        found = await self._policies.history(
            caller(), request.name, before=request.before or None, limit=request.limit or limits.NAMES_PAGE
        )
        return pb.ListTopicVersionsResponse(versions=map(_version, found))

    async def release_topic(self, request: pb.ReleaseTopicRequest, _call: Context) -> pb.TopicInfo:
        """Take back what operators have set."""
        return topic_info(
            await self._topics.release(caller(), request.name, list(request.settings), reason=request.reason)
        )

    async def declare_topics(self, request: pb.DeclareTopicsRequest, _call: Context) -> pb.DeclareTopicsResponse:
        """Store what the handlers of a worker declare."""
        given = [(one.name, changes_of(one.settings)) for one in request.topics]
        declared = await self._topics.declare(caller(), given, source=request.source, worker=request.worker_id)
        return pb.DeclareTopicsResponse(
            topics=[
                answers.of(pb.DeclaredTopic, one, conflict=None if one.conflict is None else _declaration(one.conflict))
                for one in declared
            ]
        )


def changes_of(settings: pb.TopicSettings) -> dict[str, object]:
    """The settings that are set, by their names in the domain; raises InvalidInput."""
    changes: dict[str, object] = {}
    for described, value in settings.ListFields():
        name, _, unit = described.name.rpartition("_")
        if described.name == "retry":
            changes["retry"] = retry_policy(value)
        elif isinstance(value, pb.Rate):
            period = span(value.period_ms, f"{described.name}.period_ms")
            changes[described.name] = Rate(count=value.count, period=period, burst=value.burst or None)
        elif unit == "us":
            changes[name] = value * _US if value else None
        elif unit == "ms":
            changes[name] = span(value, described.name)
        else:
            changes[described.name] = value
    return changes


def topic_info(view: TopicView) -> pb.TopicInfo:
    """A topic as read."""
    rules, limits, sources = view.rules, view.limits, view.sources
    values = {name: getattr(limits, name) for name in LIMITS}
    values |= {name: getattr(rules, "policy" if name == "retry" else name) for name in RULES}
    return answers.of(
        pb.TopicInfo,
        view,
        counts={state.label: count for state, count in view.counts.items()},
        settings=settings_message(values),
        origins={name: answers.of(pb.RuleOrigin, one) for name, one in sources.origins().items()},
        declared=None if sources.declared is None else _declaration(sources.declared),
        conflict=None if view.conflict is None else _declaration(view.conflict),
    )


def _change(one: PolicyChange) -> pb.PolicyChange:
    before, after = (settings_message({one.setting: value}) for value in (one.before, one.after))
    return answers.of(pb.PolicyChange, one, before=before, after=after)


def _version(one: PolicyVersion) -> pb.PolicyVersion:
    changes, settings = map(_change, one.changes), settings_message(one.settings)
    return answers.of(pb.PolicyVersion, one, changes=changes, settings=settings)


def _declaration(one: Declaration) -> pb.Declaration:
    worker = one.workers[0] if one.workers else ""
    return answers.of(pb.Declaration, one, worker=worker, settings=settings_message(one.rules))


def settings_message(values: Mapping[str, Any]) -> pb.TopicSettings:
    """Settings by their names in the domain, as a message; what is None, or a flag that is off, is not set."""
    message = pb.TopicSettings()
    for name, value in values.items():
        match value:
            case None | False:
                continue
            case RetryPolicy():
                message.retry.CopyFrom(policy_message(value))
            case Rate():
                rate = pb.Rate(count=value.count, period_ms=value.period // _MS, burst=value.burst or 0)
                getattr(message, name).CopyFrom(rate)
            case timedelta():
                unit, suffix = (_US, "us") if name == "ageing_step" else (_MS, "ms")
                setattr(message, f"{name}_{suffix}", value // unit)
            case _:
                setattr(message, name, value)
    return message
