"""The policy of a topic: all settings and their origin, an edit with the difference first, and its versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from litestar.params import FromPath, QueryParameter

from headgate.domain.topic_policy import PolicyChange
from headgate.domain.topic_rules import NAMES, Origin, RuleOrigin, default_of
from headgate.domain.topic_values import exact_text, setting_of, value_text
from headgate.domain.views import TopicView
from headgate.web.forms import Form
from headgate.web.rendering import pager, url
from headgate.web.request import Html, PageRequest
from headgate.web.routing import action, page

VERSIONS: Final = 20
Before = Annotated[int | None, QueryParameter(ge=0, le=2**31 - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a topic as people see it."""

    name: str
    group: str
    label: str
    hint: str
    long: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSetting:
    """A setting with its value. `own`: what an operator has set, as text for a form; empty if nothing is set."""

    setting: Setting
    value: str
    own: str
    origin: Origin
    source: RuleOrigin | None
    declared: str = ""


def _of(group: str, name: str, label: str, hint: str, *, long: bool = False) -> Setting:
    return Setting(name=name, group=group, label=label, hint=hint, long=long)


SETTINGS: Final = (
    _of("Limits", "max_running", "Running at once", "A whole number; none: no limit"),
    _of("Limits", "rate", "Start rate", "100/1s, or 100/1s:20 with a burst of 20"),
    _of("Limits", "max_running_per_key", "Running at once per limit key", "A whole number"),
    _of("Limits", "key_rate", "Start rate per limit key", "10/1m"),
    _of("Limits", "ordered_by_key", "In order by key", "yes or no"),
    _of("Limits", "fair_by_key", "Keys take turns", "yes or no"),
    _of("Limits", "max_backlog", "Backlog", "Queued jobs; more are refused"),
    _of("Limits", "max_consumers", "Workers at once", "Worker sessions that receive jobs; others stand by"),
    _of("Retries", "max_attempts", "Attempts", "1 to 1000"),
    _of(
        "Retries", "retry", "Delay between attempts", "exponential:1s:10m, linear:30s:5m, fixed:1m, explicit:1s:10s:1m"
    ),
    _of("Retries", "dead_letter_topic", "Dead-letter topic", "Gets a job for each one that dies here"),
    _of("Runs", "priority", "Priority", "A number, or a tier such as high"),
    _of("Runs", "ageing_step", "Ageing step", "30s: waiting so long outweighs one step of priority"),
    _of("Runs", "time_limit", "Time limit of an attempt", "5m; none: no limit"),
    _of("Runs", "lease", "Lease", "60s: how long a worker may be silent"),
    _of("Retention", "keep_completed", "Completed jobs", "7d"),
    _of("Retention", "keep_dead", "Dead jobs", "30d"),
    _of("Retention", "keep_cancelled", "Cancelled jobs", "7d"),
    _of("Payload", "max_payload_bytes", "Largest payload", "64KiB, or a number of bytes; larger ones are refused"),
    _of("Payload", "payload_schema", "JSON Schema of payloads", "Jobs that do not match are refused", long=True),
)
UNSET: Final = {
    **dict.fromkeys(
        ("max_running", "rate", "max_running_per_key", "key_rate", "max_backlog", "max_consumers"), "no limit"
    ),
    **dict.fromkeys(("keep_completed", "keep_dead", "keep_cancelled"), "as for all topics"),
    "ageing_step": "strict priority",
    "time_limit": "of the worker",
    "lease": "of the server",
    "max_payload_bytes": "of the server",
    "payload_schema": "any payload",
}
"""What no value means."""
GROUPS: Final = tuple(dict.fromkeys(one.group for one in SETTINGS))
LABELS: Final = {one.name: one.label for one in SETTINGS}


@page("/topics/{topic:str}/policy", uses="TopicService/ListTopicVersions")
async def edit_policy(request: PageRequest, topic: FromPath[str], before: Before = None) -> Html:
    """The form, and the versions."""
    view = await request.cases.topics.get(request.caller, topic)
    versions = await request.cases.policies.history(request.caller, topic, before=before, limit=VERSIONS)
    following = versions[-1].version if len(versions) == VERSIONS else None
    return request.render(
        "topics/policy.html",
        topic=view,
        groups=GROUPS,
        settings=settings_of(view),
        versions=versions,
        labels=LABELS,
        change_text=change_text,
        **pager("topics", topic, "policy", at="before", here=before, following=following),
    )


@action("/topics/{topic:str}/policy/preview", uses="TopicService/ApplyTopic")
async def preview_policy(request: PageRequest, topic: FromPath[str]) -> Html:
    """What saving the form would change; nothing is saved."""
    form = request.fields
    version = form.integer("version")
    applied = await request.cases.policies.apply(
        request.caller, topic, values_of(form), prune=True, version=version, dry_run=True
    )
    return request.render(
        "topics/policy_preview.html",
        topic=topic,
        known=version,
        changes=applied.changes,
        labels=LABELS,
        change_text=change_text,
        origins=ORIGINS,
        fields=[(name, form.raw(name)) for name in NAMES if form.raw(name)],
        reason=form.text("reason"),
    )


@action("/topics/{topic:str}/policy/apply", uses="TopicService/ApplyTopic")
async def apply_policy(request: PageRequest, topic: FromPath[str]) -> Html:
    """Save the form, if the policy is still the one that it was made from."""
    form = request.fields
    applied = await request.cases.policies.apply(
        request.caller,
        topic,
        values_of(form),
        prune=True,
        version=form.integer("version"),
        reason=form.text("reason"),
    )
    count = len(applied.changes)
    message = f"The policy of {topic} is saved: {count} {'change' if count == 1 else 'changes'}."
    return request.done(message if count else "Nothing was changed.", to=url("topics", topic, "policy"))


ORIGINS: Final = {Origin.DEFAULT: "default", Origin.DECLARED: "declared by a handler", Origin.OPERATOR: "set here"}


def values_of(form: Form) -> Mapping[str, object]:
    """The settings that are filled in. Raises InvalidInput with the name of the field."""
    return {name: setting_of(name, form.text(name), field=name) for name in NAMES if form.text(name)}


def settings_of(view: TopicView) -> Sequence[ShownSetting]:
    """All settings of a topic, in the order of the page."""
    values, origins = view.sources.values(), view.sources.origins()
    declared = {} if view.sources.declared is None else view.sources.declared.rules
    shown = []
    for setting in SETTINGS:
        name = setting.name
        own = view.sources.settings.get(name)
        source = origins.get(name)
        shown.append(
            ShownSetting(
                setting=setting,
                value=words_of(name, values.get(name, default_of(name))),
                own="" if own is None else exact_text(own.value),
                origin=Origin.DEFAULT if source is None else source.origin,
                source=source,
                declared=words_of(name, declared[name]) if name in declared else "",
            )
        )
    return shown


def words_of(name: str, value: object) -> str:
    """A value for people."""
    return UNSET.get(name, "none") if value is None else value_text(name, value)


def change_text(change: PolicyChange, *, after: bool) -> str:
    """One side of a difference."""
    return words_of(change.setting, change.after if after else change.before)
