"""The rules and limits of topics, changed at run time: by operators, and by the workers that declare them.

What is declared and what is set are kept beside each other in headgate.topic_rules (domain/topic_rules.py). The values
that count are written to headgate.topics and headgate.topic_limits in the same transaction: submits and claims find
them there, and need not know where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from headgate.domain.errors import NotFound
from headgate.domain.jobs import TopicRules, changed_rules
from headgate.domain.timestamps import MICROSECOND
from headgate.domain.topic_limits import Rate, TopicLimits
from headgate.domain.topic_policy import AppliedPolicy, PolicyVersion, changes_of, check_version
from headgate.domain.topic_rules import (
    LIMITS,
    RULES,
    RuleSources,
    checked_values,
    default_of,
    plain_sources,
    sources_from_plain,
)
from headgate.domain.validation import MILLISECOND, check_topic
from headgate.domain.views import TopicView
from headgate.store import audit, topic_versions
from headgate.store.clock import clock
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.names import Names
from headgate.store.tenant_calls import Answer, R, TenantCalls, tenant_call
from headgate.store.topic_views import described, ms_of, topic, topics

# Only what changes: a value that was written manually stays until something else is declared or set in its place.
SET_RULES: Final = """
UPDATE headgate.topics
   SET ageing_step_us = CASE WHEN 'ageing_step' = ANY ($2) THEN $3 ELSE ageing_step_us END,
       max_attempts = CASE WHEN 'max_attempts' = ANY ($2) THEN $4 ELSE max_attempts END,
       policy_no = CASE WHEN 'retry' = ANY ($2) THEN $5 ELSE policy_no END,
       priority = CASE WHEN 'priority' = ANY ($2) THEN $6 ELSE priority END,
       time_limit_ms = CASE WHEN 'time_limit' = ANY ($2) THEN $7 ELSE time_limit_ms END,
       keep_completed_ms = CASE WHEN 'keep_completed' = ANY ($2) THEN $8 ELSE keep_completed_ms END,
       keep_dead_ms = CASE WHEN 'keep_dead' = ANY ($2) THEN $9 ELSE keep_dead_ms END,
       keep_cancelled_ms = CASE WHEN 'keep_cancelled' = ANY ($2) THEN $10 ELSE keep_cancelled_ms END,
       lease_ms = CASE WHEN 'lease' = ANY ($2) THEN $11 ELSE lease_ms END,
       payload_schema = CASE WHEN 'payload_schema' = ANY ($2) THEN $12 ELSE payload_schema END,
       dead_letter_no = CASE WHEN 'dead_letter_topic' = ANY ($2) THEN $13 ELSE dead_letter_no END,
       max_consumers = CASE WHEN 'max_consumers' = ANY ($2) THEN $14 ELSE max_consumers END,
       max_payload_bytes = CASE WHEN 'max_payload_bytes' = ANY ($2) THEN $15 ELSE max_payload_bytes END
 WHERE topic_no = $1"""
SET_LIMITS: Final = "SELECT headgate.set_limits_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
TOPIC_NO: Final = "SELECT topic_no FROM headgate.topics WHERE tenant_no = $1 AND name = $2"
LOCK: Final = "SELECT topic_no FROM headgate.topics WHERE tenant_no = $1 AND name = $2 FOR UPDATE"
LIMITS_PAUSE_SECONDS: Final = 0.4
"""Between tries to set a limit. A try may hold rows of the topic's running jobs for 0.1 s (set_limits_v1)."""
SOURCES: Final = """
SELECT r.declarations, r.settings, r.reported
  FROM headgate.topics t JOIN headgate.topic_rules r ON r.topic_no = t.topic_no
 WHERE t.tenant_no = $1 AND t.name = $2"""
WRITE_SOURCES: Final = """
INSERT INTO headgate.topic_rules AS r (topic_no, declarations, settings, reported, changed_at, version)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (topic_no) DO UPDATE
   SET declarations = excluded.declarations, settings = excluded.settings, reported = excluded.reported,
       changed_at = excluded.changed_at, version = excluded.version"""
SEEN: Final = "UPDATE headgate.topic_rules SET declarations = $2 WHERE topic_no = $1"
# One of all instances gets a row, and logs.
REPORTED: Final = """
UPDATE headgate.topic_rules r SET reported = $3
  FROM headgate.topics t
 WHERE t.tenant_no = $1 AND t.name = $2 AND r.topic_no = t.topic_no AND r.reported <> $3
RETURNING r.topic_no"""


async def set_topic(
    db: Connection,
    names: Names,
    tenant_no: int,
    name: str,
    *,
    rules: Mapping[str, object] | None = None,
    changes: Mapping[str, object] | None = None,
    actor: str = "",
    reason: str = "",
) -> TopicView:
    """Set, as an operator, what `rules` and `changes` (limits) name; audited with what was before.

    Needs a connection in no transaction of its own. When this has returned, no claim goes by the old limits. Jobs that
    wait already keep the rank, attempts and policy they were given.
    """
    values = {**(rules or {}), **(changes or {})}
    await apply_topic(db, names, tenant_no, name, values=values, actor=actor, reason=reason, verb="configure_topic")
    return await topic(db, tenant_no, name)


async def apply_topic(
    db: Connection,
    names: Names,
    tenant_no: int,
    name: str,
    *,
    values: Mapping[str, object],
    prune: bool = False,
    version: int | None = None,
    actor: str,
    reason: str,
    verb: str = "apply_topic",
) -> AppliedPolicy:
    """Set these values, as an operator; `prune`: release all others that operators have set.

    Raises VersionConflict if `version` is given and the topic has another one. Without a change nothing is written.
    Otherwise as `set_topic`.
    """
    async with transaction(db):
        before, at = await _locked(db, tenant_no, name), await clock(db)
        check_version(name, expected=version, current=before.version)
        sources = _applied(before.sources, values, prune=prune, by=actor, at=at, reason=reason)
        changes = changes_of(before.sources, sources)
        if changes:
            await _write(db, names, tenant_no, before, sources, verb=verb, actor=actor, reason=reason)
    await names.refresh(db)
    return AppliedPolicy(topic=await topic(db, tenant_no, name), before_version=before.version, changes=changes)


async def preview_topic(
    db: Connection, tenant_no: int, name: str, *, values: Mapping[str, object], prune: bool, version: int | None
) -> AppliedPolicy:
    """What `apply_topic` would do, also to a topic that does not exist; nothing is locked or written."""
    found = await topics(db, tenant_no, name=check_topic(name), limit=1)
    before = found[0] if found else None
    current, sources = (0, RuleSources()) if before is None else (before.version, before.sources)
    check_version(name, expected=version, current=current)
    after = _applied(sources, values, prune=prune, by="", at=await clock(db), reason="")
    return AppliedPolicy(topic=before, before_version=current, changes=changes_of(sources, after), dry_run=True)


def _applied(
    sources: RuleSources, values: Mapping[str, object], *, prune: bool, by: str, at: datetime, reason: str
) -> RuleSources:
    release = sources.settings.keys() - values.keys() if prune else ()
    return sources.applied(checked_values(values), release=release, by=by, at=at, reason=reason)


async def release_topic(
    db: Connection, names: Names, tenant_no: int, name: str, *, settings: Sequence[str], actor: str, reason: str
) -> TopicView:
    """Take back what operators have set for these, or for all if none is named; otherwise as `set_topic`."""
    async with transaction(db):
        before = await _locked(db, tenant_no, name)
        released = set(settings or before.sources.settings)
        left = {one: value for one, value in before.sources.settings.items() if one not in released}
        if len(left) < len(before.sources.settings):
            sources = replace(before.sources, settings=left)
            await _write(db, names, tenant_no, before, sources, verb="release_topic", actor=actor, reason=reason)
    await names.refresh(db)
    return await topic(db, tenant_no, name)


async def declare_topic(
    db: Connection,
    names: Names,
    tenant_no: int,
    name: str,
    rules: Mapping[str, object],
    *,
    source: str,
    worker: str,
    actor: str,
) -> tuple[RuleSources, bool] | None:
    """Store what a worker declares, and whether that is a change; None: nothing is, for a topic that has nothing.

    The newest declaration counts: a new release of a program must win over the old one that is still running.
    """
    known = await _sources(db, tenant_no, name)
    if not (rules or known.declarations):
        return None
    # Many workers start together, and declare what is stored already: that locks nothing and writes nothing.
    if known.has(source, rules, worker=worker):
        return known, False
    async with transaction(db):
        no, known = await _lock(db, tenant_no, name), await _sources(db, tenant_no, name)
        sources, changed = known.declare(source, rules, worker=worker, by=actor, at=await clock(db))
        if changed:
            before = await topic(db, tenant_no, name)
            await _write(db, names, tenant_no, before, sources, verb="declare_topic", actor=actor, reason="")
        else:  # which worker declared it last: nothing of the topic changes, and no instance reads it again
            with translating(writing=True):
                await db.execute(SEEN, no, plain_sources(sources)[0])
    if changed:
        await names.refresh(db)
    return sources, changed


async def conflict_reported(db: Connection, tenant_no: int, name: str, pair: str) -> bool:
    """Note that a conflict is being logged; False: it was before."""
    with translating(writing=True):
        return await db.fetchval(REPORTED, tenant_no, name, pair) is not None


async def _sources(db: Connection, tenant_no: int, name: str) -> RuleSources:
    """What is declared and set for a topic; nothing for one that does not exist."""
    with translating(writing=False):
        row = await db.fetchrow(SOURCES, tenant_no, check_topic(name))
    return RuleSources() if row is None else sources_from_plain(*row)


async def _lock(db: Connection, tenant_no: int, name: str) -> int:
    """Keep out other changes of a topic until the end of the transaction; its number. Raises NotFound."""
    with translating(writing=True):
        no: int | None = await db.fetchval(LOCK, tenant_no, check_topic(name))
    if no is None:
        raise NotFound("topic", name)
    return no


async def _locked(db: Connection, tenant_no: int, name: str) -> TopicView:
    """A topic as it is and stays until the end of the transaction. Raises NotFound."""
    await _lock(db, tenant_no, name)
    return await topic(db, tenant_no, name)


async def _write(
    db: Connection,
    names: Names,
    tenant_no: int,
    before: TopicView,
    sources: RuleSources,
    *,
    verb: str,
    actor: str,
    reason: str,
) -> None:
    """Write the sources, and the values that change from those of `before`: to where submits and claims find them.

    When this is committed, no claim goes by the old limits. Jobs that wait already keep the rank, attempts and policy
    they were given.
    """
    old, new = before.sources.values(), sources.values()
    changed = {name for name in {*old, *new} if (name in old, old.get(name)) != (name in new, new.get(name))}
    await _write_rules(db, names, tenant_no, before.no, new, [name for name in RULES if name in changed])
    limits = {name: new.get(name, default_of(name)) for name in LIMITS if name in changed}
    wanted = replace(before.limits, **limits)  # type: ignore[arg-type]  # checked by the class
    declarations, settings = plain_sources(sources)
    at = await clock(db)
    version = before.version + 1
    with translating(writing=True):
        await db.execute(WRITE_SOURCES, before.no, declarations, settings, sources.reported, at, version)
    await topic_versions.record(
        db,
        before.no,
        PolicyVersion(
            version=version,
            at=at,
            actor=actor,
            verb=verb,
            reason=reason,
            settings={one: own.value for one, own in sources.settings.items()},
            changes=changes_of(before.sources, sources),
        ),
    )
    after = replace(await topic(db, tenant_no, before.name), limits=wanted)
    detail = {"old": described(before), "new": described(after)}
    await audit.record(
        db, tenant_no, actor=actor, verb=verb, target=f"topic {before.name}", reason=reason, detail=detail
    )
    # Last, for it keeps out all claims until the commit. Not for the same limits once more: a row costs every submit.
    if wanted != before.limits:
        await _write_limits(db, before.no, wanted)


async def _write_rules(
    db: Connection, names: Names, tenant_no: int, topic_no: int, new: Mapping[str, object], changed: Sequence[str]
) -> None:
    if not changed:
        return
    wanted = changed_rules(TopicRules(), {name: new[name] for name in changed if name in new})
    policy_no = await names.policy_no(db, tenant_no, wanted.policy) if "retry" in new and "retry" in changed else None
    step, dead_letters = wanted.ageing_step, wanted.dead_letter_topic
    dead_letter_no = None if dead_letters is None else await _topic_no(db, tenant_no, dead_letters)
    with translating(writing=True):
        await db.execute(
            SET_RULES,
            topic_no,
            changed,
            None if step is None else step // MICROSECOND,
            wanted.max_attempts if "max_attempts" in new else None,
            policy_no,
            wanted.priority if "priority" in new else None,
            ms_of(wanted.time_limit),
            ms_of(wanted.keep_completed),
            ms_of(wanted.keep_dead),
            ms_of(wanted.keep_cancelled),
            ms_of(wanted.lease),
            wanted.payload_schema,
            dead_letter_no,
            wanted.max_consumers,
            wanted.max_payload_bytes,
        )


async def _topic_no(db: Connection, tenant_no: int, name: str) -> int:
    with translating(writing=False):
        no: int | None = await db.fetchval(TOPIC_NO, tenant_no, name)
    if no is None:
        raise NotFound("topic", name)
    return no


async def _write_limits(db: Connection, topic_no: int, wanted: TopicLimits) -> None:
    with translating(writing=True):
        await db.execute(
            SET_LIMITS,
            topic_no,
            wanted.max_running,
            *_columns(wanted.rate),
            wanted.max_running_per_key,
            *_columns(wanted.key_rate),
            wanted.ordered_by_key,
            wanted.fair_by_key,
            wanted.max_backlog,
        )


def _columns(rate: Rate | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if rate is None else (rate.count, rate.period // MILLISECOND, rate.burst)


class TopicStore(TenantCalls):
    """Fits control/ports.TopicStore."""

    list_topics = tenant_call("read", topics)
    get_topic = tenant_call("read", topic)
    preview_topic = tenant_call("read", preview_topic)
    topic_history = tenant_call("read", topic_versions.history)
    conflict_reported = tenant_call("admin", conflict_reported)

    async def set_topic(
        self,
        tenant: str,
        name: str,
        *,
        rules: Mapping[str, object],
        limits: Mapping[str, object],
        actor: str,
        reason: str,
    ) -> TopicView:
        """Change a topic, made if need be."""
        await self._make(tenant, name, rules)
        change = partial(set_topic, rules=rules, changes=limits, actor=actor, reason=reason)
        return await self._changed("admin", tenant, name, change)

    async def apply_topic(
        self,
        tenant: str,
        name: str,
        *,
        values: Mapping[str, object],
        prune: bool,
        version: int | None,
        actor: str,
        reason: str,
    ) -> AppliedPolicy:
        """Apply a document to a topic, made if need be."""
        await self._make(tenant, name, values)
        change = partial(apply_topic, values=values, prune=prune, version=version, actor=actor, reason=reason)
        return await self._changed("admin", tenant, name, change)

    async def _make(self, tenant: str, name: str, values: Mapping[str, object]) -> None:
        """Make a topic and the dead-letter topic it is given. Raises QuotaExceeded."""
        dead_letters = values.get("dead_letter_topic")
        await self._database.topics(tenant, [name, *([dead_letters] if isinstance(dead_letters, str) else [])])

    async def release_topic(
        self, tenant: str, name: str, *, settings: Sequence[str], actor: str, reason: str
    ) -> TopicView:
        """Take back what operators have set."""
        change = partial(release_topic, settings=settings, actor=actor, reason=reason)
        return await self._changed("admin", tenant, name, change)

    async def declare_topic(
        self, tenant: str, name: str, rules: Mapping[str, object], *, source: str, worker: str, actor: str
    ) -> tuple[RuleSources, bool] | None:
        """Store a declaration. The topic is made if something is declared for it."""
        if rules:
            await self._database.topics(tenant, [name])
        change = partial(declare_topic, rules=rules, source=source, worker=worker, actor=actor)
        # Not on the lane of operators: all workers of a release declare when they start.
        return await self._changed("list", tenant, name, change)

    async def _changed(self, lane: str, tenant: str, name: str, change: Callable[..., Answer[R]]) -> R:
        names, tenant_no = self._database.names, await self._database.tenant_no(tenant)
        return await self._database.tried(
            lane,
            lambda db: change(db, names, tenant_no, name),
            pause=LIMITS_PAUSE_SECONDS,
            tenant_no=tenant_no,
        )
