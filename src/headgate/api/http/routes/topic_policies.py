"""Topic policies: the settings of a topic as one document with a version."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from headgate.api.http.codec import Input, Output, Reason, answers, tagged
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.topics import (
    RuleOriginOut,
    SettingNames,
    SettingsIn,
    SettingsOut,
    Topic,
    changes_of,
    settings_out,
    topic_info,
)
from headgate.api.http.routing import PageSize, get, put
from headgate.domain import limits
from headgate.domain.topic_policy import PolicyChange, PolicyVersion
from headgate.domain.views import TopicView

TAG: Final = ["topics"]
OriginName = Literal["default", "declared", "operator"]


class PutPolicy(Input, kw_only=True):
    """The document: what operators set for the topic. The topic is created if it does not exist."""

    settings: SettingsIn = msgspec.field(default_factory=SettingsIn)
    clear: Annotated[SettingNames, msgspec.Meta(description="Settings that are set to no value.")] = []
    version: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None,
        msgspec.Meta(description="Only if the policy has this version; 0: it was never changed."),
    ] = None
    reason: Reason = ""


class PolicyOut(Output, kw_only=True):
    """A policy: the values that count, and where each comes from."""

    topic: str
    version: int
    settings: SettingsOut
    origins: Annotated[
        dict[str, RuleOriginOut], msgspec.Meta(description="By name of the setting; not listed: the default.")
    ] = {}


class PolicyChangeOut(Output, kw_only=True):
    """What becomes of one setting; `before` and `after` have this setting only, and nothing if it has no value."""

    setting: str
    before: SettingsOut
    after: SettingsOut
    before_origin: OriginName
    after_origin: OriginName


class AppliedPolicyOut(Output, kw_only=True):
    """What was changed, or with `dry_run` would be."""

    topic: str
    before_version: int
    version: int
    changes: list[PolicyChangeOut]
    dry_run: bool = False
    policy: PolicyOut | None = None


class PolicyVersionOut(Output, kw_only=True):
    """One version: who made it, what it changed, and what operators have set in it."""

    version: int
    at_us: int
    actor: str
    verb: str
    reason: str = ""
    changes: list[PolicyChangeOut]
    settings: SettingsOut


class PolicyVersions(Output, kw_only=True):
    """Newest first."""

    versions: list[PolicyVersionOut]


@get("/v1/topics/{topic:str}/policy", uses="TopicService/GetTopic", tags=TAG, etag=True)
async def get_policy(request: ApiRequest, topic: Topic) -> Response[PolicyOut]:
    """Read the policy of a topic: all settings, where each comes from, and the version."""
    return tagged(request, _policy(await request.cases.topics.get(request.caller, topic)))


@put("/v1/topics/{topic:str}/policy", uses="TopicService/ApplyTopic", tags=TAG)
async def put_policy(
    request: ApiRequest,
    topic: Topic,
    data: JSONBody[PutPolicy],
    prune: Annotated[
        bool, QueryParameter(description="Release settings of operators that the document does not name.")
    ] = True,
    dry_run: Annotated[bool, QueryParameter(description="Write nothing, and answer what would change.")] = False,
) -> AppliedPolicyOut:
    """Replace what operators have set for a topic, in one transaction. Nothing is written without a change."""
    applied = await request.cases.policies.apply(
        request.caller,
        topic,
        changes_of(data.settings),
        clear=data.clear,
        prune=prune,
        version=data.version,
        dry_run=dry_run,
        reason=data.reason,
    )
    return AppliedPolicyOut(
        topic=topic,
        before_version=applied.before_version,
        version=0 if applied.topic is None else applied.topic.version,
        changes=[_change(one) for one in applied.changes],
        dry_run=applied.dry_run,
        policy=None if applied.topic is None else _policy(applied.topic),
    )


@get("/v1/topics/{topic:str}/policy/versions", uses="TopicService/ListTopicVersions", tags=TAG)
async def list_policy_versions(
    request: ApiRequest,
    topic: Topic,
    before: Annotated[
        int, QueryParameter(ge=0, le=2**31 - 1, description="The last version of the previous page.")
    ] = 0,
    limit: PageSize = limits.NAMES_PAGE,
) -> PolicyVersions:
    """List the newest versions of the policy of a topic, newest first."""
    found = await request.cases.policies.history(request.caller, topic, before=before or None, limit=limit)
    return PolicyVersions(versions=[_version(one) for one in found])


def _policy(view: TopicView) -> PolicyOut:
    info = topic_info(view)
    return PolicyOut(topic=view.name, version=view.version, settings=info.settings, origins=info.origins)


def _change(one: PolicyChange) -> PolicyChangeOut:
    before, after = (settings_out({one.setting: value}) for value in (one.before, one.after))
    return answers.of(PolicyChangeOut, one, before=before, after=after)


def _version(one: PolicyVersion) -> PolicyVersionOut:
    changes, settings = [_change(change) for change in one.changes], settings_out(one.settings)
    return answers.of(PolicyVersionOut, one, changes=changes, settings=settings)
