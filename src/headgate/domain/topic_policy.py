"""The policy of a topic: all its rules and limits as one document with a version. Pure: no clock, no I/O.

The version grows with every change of what is set or declared. What a change does is a list of `PolicyChange`: the same
for a dry run, for the answer of an apply and for the history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headgate.domain.errors import VersionConflict
from headgate.domain.topic_rules import NAMES, Origin, RuleSources, default_of, plain_rules, rules_from_plain
from headgate.domain.views import TopicView

HISTORY_KEPT = 100
"""Versions of a topic; older ones are removed by the change that makes a new one. The audit log has its own rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """What becomes of one setting: its value, where that comes from, or both."""

    setting: str
    before: object
    after: object
    before_origin: Origin
    after_origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One version of a policy: who made it, what it changed, and what operators have set in it."""

    version: int
    at: datetime
    actor: str
    verb: str  # configure_topic, apply_topic, release_topic, declare_topic: as in the audit log
    reason: str
    settings: Mapping[str, object] = field(hash=False)
    changes: Sequence[PolicyChange]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPolicy:
    """What an apply did, or with `dry_run` would do. `topic` is None if it does not exist, and was not made."""

    topic: TopicView | None
    before_version: int
    changes: Sequence[PolicyChange]
    dry_run: bool = False


def changes_of(before: RuleSources, after: RuleSources) -> list[PolicyChange]:
    """The settings whose value or origin changes, in the order of the document."""
    old, new = before.values(), after.values()
    old_origins, new_origins = before.origins(), after.origins()
    found = []
    for name in NAMES:
        change = PolicyChange(
            setting=name,
            before=old.get(name, default_of(name)),
            after=new.get(name, default_of(name)),
            before_origin=old_origins[name].origin if name in old_origins else Origin.DEFAULT,
            after_origin=new_origins[name].origin if name in new_origins else Origin.DEFAULT,
        )
        if (change.before, change.before_origin) != (change.after, change.after_origin):
            found.append(change)
    return found


def check_version(name: str, *, expected: int | None, current: int) -> None:
    """Raise VersionConflict unless the version is the one that the caller has seen; None: any."""
    if expected is not None and expected != current:
        raise VersionConflict(
            f'topic "{name}" is at version {current}, not {expected}: it was changed since; read it again'
        )


def plain_changes(changes: Sequence[PolicyChange]) -> str:
    """Changes as JSON text, to be stored."""
    return json.dumps(
        [
            {
                "setting": one.setting,
                "before": plain_rules({one.setting: one.before}),
                "after": plain_rules({one.setting: one.after}),
                "origins": [int(one.before_origin), int(one.after_origin)],
            }
            for one in changes
        ]
    )


def changes_from_plain(stored: str) -> list[PolicyChange]:
    """What `plain_changes` made; a setting that this release does not know is left out."""
    return [
        PolicyChange(
            setting=one["setting"],
            before=rules_from_plain(one["before"])[one["setting"]],
            after=rules_from_plain(one["after"])[one["setting"]],
            before_origin=Origin(one["origins"][0]),
            after_origin=Origin(one["origins"][1]),
        )
        for one in json.loads(stored)
        if one["setting"] in NAMES
    ]
