"""Schedules: kept, read, fired. What is due is decided in domain/schedules.py; fire_v1 carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain.errors import AlreadyExists, NotFound, Refused, VersionConflict, paused_again
from headgate.domain.ids import JobId, TenantNo
from headgate.domain.schedules import (
    ScheduleSpec,
    first_occurrence,
    never_fires,
    triggered_job_id,
)
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.tenants import check_count
from headgate.domain.topic_sets import TopicSet
from headgate.domain.views import ScheduledJob, ScheduleView
from headgate.store import audit
from headgate.store.clock import clock
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.names import Names
from headgate.store.rows import from_row
from headgate.store.schedule_rows import resolved, summary, values_of, view_of
from headgate.store.tenant_calls import TenantCalls, lane_call, named_call, tenant_call
from headgate.store.tenants import check_payload

# One statement for one schedule ($2) and for a page of them. index: schedules_tenant_no_name_key
SHOW: Final = """
SELECT s.schedule_no, s.name, s.version, t.name, s.priority, s.max_attempts, s.policy_no, s.payload, s.headers, s.tags,
       s.kind, s.at, s.span_ms, s.expression, s.zone, s.overlap, s.catch_up, s.catch_up_most, s.ends_at, s.next_at,
       s.last_at, s.last_job_id, s.fired, s.skipped, s.last_skip, s.last_skip_at, s.last_error, s.paused, s.paused_by,
       s.paused_at, s.reason, s.source, s.created_at, s.changed_at, s.changed_by, s.when_full, s.full_since,
       s.skips_at, s.skips_why
  FROM headgate.schedules s JOIN headgate.topics t ON t.topic_no = s.topic_no
 WHERE s.tenant_no = $1 AND ($2::text IS NULL OR s.name = $2) AND s.name > $3
   AND ($4::text[] IS NULL OR t.name LIKE ANY ($4)) AND ($5::text IS NULL OR s.source = $5)
 ORDER BY s.name LIMIT $6"""
# index: schedules_tenant_no_name_key
LAG: Final = """
SELECT headgate.clock_v1() - min(s.next_at)
  FROM headgate.schedules s JOIN headgate.topics t ON t.topic_no = s.topic_no
 WHERE s.tenant_no = $1 AND NOT s.paused AND ($2::text[] IS NULL OR t.name LIKE ANY ($2))"""
LOCK: Final = "SELECT FROM headgate.schedules WHERE tenant_no = $1 AND name = $2 FOR UPDATE"
QUOTA: Final = """
SELECT t.max_schedules, (SELECT count(*) FROM headgate.schedules s WHERE s.tenant_no = $1)
  FROM headgate.tenants t WHERE t.tenant_no = $1"""
INSERT: Final = """
INSERT INTO headgate.schedules (
       tenant_no, name, topic_no, priority, max_attempts, policy_no, payload, headers, tags, kind, at, span_ms,
       expression, zone, overlap, catch_up, catch_up_most, ends_at, source, when_full, next_at, look_at, created_at,
       changed_at, changed_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $21, $22, $22,
        $23)
ON CONFLICT (tenant_no, name) DO NOTHING RETURNING schedule_no"""
UPDATE: Final = """
UPDATE headgate.schedules
   SET topic_no = $3, priority = $4, max_attempts = $5, policy_no = $6, payload = $7, headers = $8, tags = $9,
       kind = $10, at = $11, span_ms = $12, expression = $13, zone = $14, overlap = $15, catch_up = $16,
       catch_up_most = $17, ends_at = $18, source = $19, when_full = $20, next_at = $21,
       look_at = CASE WHEN paused THEN NULL ELSE $21::timestamptz END, full_since = NULL,
       last_error = NULL, changed_at = $22, changed_by = $23, version = version + 1
 WHERE tenant_no = $1 AND name = $2"""
# What it made stays, and the note of it: that goes with the jobs, day by day.
DELETE: Final = "DELETE FROM headgate.schedules WHERE tenant_no = $1 AND schedule_no = $2"
PAUSE: Final = """
UPDATE headgate.schedules
   SET paused = true, look_at = NULL, full_since = NULL, paused_by = $3, reason = $4, paused_at = headgate.clock_v1(),
       version = version + 1
 WHERE tenant_no = $1 AND schedule_no = $2"""
RESUME: Final = """
UPDATE headgate.schedules
   SET paused = false, next_at = $3, look_at = $3, paused_by = '', reason = '', version = version + 1
 WHERE tenant_no = $1 AND schedule_no = $2"""
# index: the primary key of schedule_jobs, from its end
JOBS: Final = """
SELECT l.job_id, l.occurrence, l.covers_from, l.triggered, f.state
  FROM headgate.schedule_jobs l
  LEFT JOIN LATERAL (
       (SELECT j.state FROM headgate.jobs j WHERE j.tenant_no = l.tenant_no AND j.id = l.job_id LIMIT 1)
       UNION ALL
       (SELECT a.state FROM headgate.archive a WHERE a.tenant_no = l.tenant_no AND a.id = l.job_id LIMIT 1)
       LIMIT 1) AS f ON true
 WHERE l.tenant_no = $1 AND l.schedule_no = $2 AND ($3::timestamptz IS NULL OR l.occurrence < $3)
 ORDER BY l.occurrence DESC LIMIT $4"""
# As JOBS, for several schedules. A job ends after its occurrence (or up to a day before it, if the clock was set back):
# older days of the archive are not looked at.
RECENT: Final = """
SELECT l.job_id, l.occurrence, l.covers_from, l.triggered, f.state, n.schedule_no
  FROM unnest($2::int[]) AS n(schedule_no)
 CROSS JOIN LATERAL (
       SELECT s.job_id, s.occurrence, s.covers_from, s.triggered FROM headgate.schedule_jobs s
        WHERE s.tenant_no = $1 AND s.schedule_no = n.schedule_no ORDER BY s.occurrence DESC LIMIT $3) AS l
  LEFT JOIN LATERAL (
       (SELECT j.state FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = l.job_id LIMIT 1)
       UNION ALL
       (SELECT a.state FROM headgate.archive a
         WHERE a.tenant_no = $1 AND a.id = l.job_id AND a.finished_at >= l.occurrence - interval '1 day' LIMIT 1)
       LIMIT 1) AS f ON true
 ORDER BY n.schedule_no, l.occurrence DESC"""
# index: schedule_jobs_of_job
LINEAGE: Final = """
SELECT coalesce(s.name, ''), l.occurrence, l.triggered
  FROM headgate.schedule_jobs l
  LEFT JOIN headgate.schedules s ON s.schedule_no = l.schedule_no AND s.tenant_no = l.tenant_no
 WHERE l.tenant_no = $1 AND l.job_id = $2 LIMIT 1"""


# --- the verbs -----------------------------------------------------------------------------------------------------


async def put(
    db: Connection,
    names: Names,
    tenant_no: TenantNo,
    name: str,
    spec: ScheduleSpec,
    *,
    expected: int | None,
    who: str,
    topics: TopicSet | None = None,
) -> tuple[ScheduleView, bool]:
    """Create or replace; says whether anything was written. Raises AlreadyExists or VersionConflict.

    `topics`: those the caller may see. A schedule of another topic is never replaced: to the caller there is none.
    """
    topic = await names.topic(db, tenant_no, spec.topic)
    policy_no = None if spec.policy is None else await names.policy_no(db, tenant_no, spec.policy)
    with translating(writing=True):
        async with transaction(db):
            now: datetime = await db.fetchval("SELECT headgate.clock_v1()")
            before = await _find(db, names, tenant_no, name, locked=True)
            if before is None or before.spec.payload != spec.payload:
                await check_payload(db, tenant_no, spec.payload)
            made = None
            if before is None:
                if expected:
                    raise NotFound("schedule", name)
                first = first_occurrence(spec.timing, now=now, last=None, ends_at=spec.ends_at)
                if first is None:
                    raise never_fires(spec)
                values = values_of(spec, topic.no, policy_no, first)
                # Locks nothing: who puts at the same moment is not counted.
                ((quota, count),) = await db.fetch(QUOTA, tenant_no)
                check_count("max_schedules", count, quota)
                made = await db.fetchval(INSERT, tenant_no, name, *values, now, who)
            if made is None:
                # Here from the start, or made by another just now: workers that start together all put the same.
                before = before or await _found(db, names, tenant_no, name, locked=True)
                if topics is not None and before.spec.topic not in topics:
                    raise NotFound("schedule", name)
                if expected is not None and expected != before.version:
                    if expected == 0:
                        raise AlreadyExists(f'schedule "{name}" exists; leave the version out to replace it')
                    raise _stale(before, expected)
                spec = resolved(spec, before.spec)
                if spec == before.spec:
                    return before, False
                if spec.timing == before.spec.timing and before.next_at is not None:
                    first = before.next_at  # another body, the same times: nothing that is due is lost
                    if spec.ends_at is not None and first > spec.ends_at:
                        first = None
                else:
                    first = first_occurrence(spec.timing, now=now, last=before.last_at, ends_at=spec.ends_at)
                    if first is None and spec.timing != before.spec.timing:
                        raise never_fires(spec)
                await db.execute(UPDATE, tenant_no, name, *values_of(spec, topic.no, policy_no, first), now, who)
            after = await _found(db, names, tenant_no, name)
            await audit.record(
                db,
                tenant_no,
                actor=who,
                verb="put_schedule",
                target=f"schedule {name}",
                detail={"before": None if before is None else summary(before), "now": summary(after)},
            )
    return after, True


async def get(db: Connection, names: Names, tenant_no: int, name: str) -> ScheduleView:
    """One schedule. Raises NotFound, also for another tenant's."""
    with translating(writing=False):
        return await _found(db, names, tenant_no, name)


async def listed(
    db: Connection,
    names: Names,
    tenant_no: int,
    *,
    after: str,
    limit: int,
    topics: TopicSet | None,
    source: str | None,
) -> list[ScheduleView]:
    """A page in the order of names."""
    with translating(writing=False):
        seen = None if topics is None else topics.like
        rows = await db.fetch(SHOW, tenant_no, None, after, seen, source, limit)
        return [await view_of(db, names, row) for row in rows]


async def delete(
    db: Connection, names: Names, tenant_no: int, name: str, *, expected: int | None, who: str, reason: str
) -> None:
    """Remove it; the jobs it made stay as they are."""
    with translating(writing=True):
        async with transaction(db):
            before = await _found(db, names, tenant_no, name, locked=True)
            if expected is not None and expected != before.version:
                raise _stale(before, expected)
            await db.execute(DELETE, tenant_no, before.schedule_no)
            await _note(db, tenant_no, before, verb="delete_schedule", who=who, reason=reason)


async def pause(db: Connection, names: Names, tenant_no: int, name: str, *, who: str, reason: str) -> ScheduleView:
    """Fire no more. Pausing again takes the new reason."""
    with translating(writing=True):
        async with transaction(db):
            before = await _found(db, names, tenant_no, name, locked=True)
            await db.execute(PAUSE, tenant_no, before.schedule_no, who, reason)
            await _note(db, tenant_no, before, verb="pause_schedule", who=who, reason=reason)
            return await _found(db, names, tenant_no, name)


async def resume(
    db: Connection, names: Names, tenant_no: int, name: str, *, who: str, reason: str, since: datetime | None = None
) -> ScheduleView:
    """Go on from now; harmless when it runs. `since`: only if that is when it was paused, else VersionConflict."""
    with translating(writing=True):
        async with transaction(db):
            before = await _found(db, names, tenant_no, name, locked=True)
            if not before.paused:
                return before
            if since is not None and before.paused_at is not None and since != before.paused_at:
                raise paused_again(
                    f'schedule "{name}"', who=before.paused_by, at=before.paused_at, reason=before.reason
                )
            now: datetime = await db.fetchval("SELECT headgate.clock_v1()")
            spec = before.spec
            first = first_occurrence(spec.timing, now=now, last=before.last_at, ends_at=spec.ends_at)
            await db.execute(RESUME, tenant_no, before.schedule_no, first)
            await _note(db, tenant_no, before, verb="resume_schedule", who=who, reason=reason)
            return await _found(db, names, tenant_no, name)


async def trigger(
    db: Connection, names: Names, tenant_no: int, name: str, *, request: JobId, who: str, reason: str
) -> tuple[JobId, bool, int]:
    """Make one job now: its id, whether it is new, and its topic's number."""
    with translating(writing=True):
        async with transaction(db):
            view = await _found(db, names, tenant_no, name)
            job_id = triggered_job_id(tenant_no, view.schedule_no, request)
            row = await db.fetchrow(
                "SELECT topic_no, receipt FROM headgate.trigger_v1($1, $2, $3)", tenant_no, view.schedule_no, job_id
            )
            if row is None:
                raise NotFound("schedule", name)
            receipt = SubmitReceipt(row[1])
            if receipt not in (SubmitReceipt.CREATED, SubmitReceipt.DUPLICATE):
                raise Refused(f'schedule "{name}": its topic {view.spec.topic} does not take the job now; try later')
            if receipt is SubmitReceipt.CREATED:
                detail = {"job": str(job_id)}
                await _note(db, tenant_no, view, verb="trigger_schedule", who=who, reason=reason, detail=detail)
    return job_id, receipt is SubmitReceipt.CREATED, row[0]


async def jobs(
    db: Connection, names: Names, tenant_no: int, name: str, *, before: datetime | None, limit: int
) -> list[ScheduledJob]:
    """What it made, newest occurrence first."""
    with translating(writing=False):
        view = await _found(db, names, tenant_no, name)
        rows = await db.fetch(JOBS, tenant_no, view.schedule_no, before, limit)
    return [_scheduled(row) for row in rows]


async def recent_jobs(
    db: Connection, tenant_no: int, schedule_nos: Sequence[int], *, limit: int
) -> dict[int, list[ScheduledJob]]:
    """What each of these schedules made last, newest occurrence first."""
    with translating(writing=False):
        rows = await db.fetch(RECENT, tenant_no, schedule_nos, limit)
    found: dict[int, list[ScheduledJob]] = {}
    for row in rows:
        found.setdefault(row[5], []).append(_scheduled(row))
    return found


def _scheduled(row: asyncpg.Record) -> ScheduledJob:
    return from_row(ScheduledJob, row[:5], state=None if row[4] is None else State(row[4]))


async def lag(db: Connection, tenant_no: TenantNo, *, topics: TopicSet | None = None) -> timedelta | None:
    """How late the most overdue occurrence is; None if no schedule is to fire."""
    with translating(writing=False):
        late: timedelta | None = await db.fetchval(LAG, tenant_no, None if topics is None else topics.like)
    return None if late is None else max(timedelta(0), late)


async def lineage(db: Connection, tenant_no: int, job_id: UUID) -> tuple[str, datetime, bool] | None:
    """The schedule that made a job (empty when it was deleted), the occurrence, and whether it was triggered."""
    with translating(writing=False):
        row = await db.fetchrow(LINEAGE, tenant_no, job_id)
    return None if row is None else (row[0], row[1], row[2])


# --- rows ----------------------------------------------------------------------------------------------------------


async def _note(
    db: Connection,
    tenant_no: int,
    view: ScheduleView,
    *,
    verb: str,
    who: str,
    reason: str,
    detail: dict[str, object] | dict[str, str] | None = None,
) -> None:
    await audit.record(
        db,
        tenant_no,
        actor=who,
        verb=verb,
        target=f"schedule {view.name}",
        reason=reason,
        detail=detail or {"before": summary(view)},
    )


def _stale(view: ScheduleView, expected: int) -> VersionConflict:
    return VersionConflict(
        f'schedule "{view.name}" has version {view.version}, not {expected}: it was changed; read it and try again'
    )


async def _find(
    db: Connection, names: Names, tenant_no: int, name: str, *, locked: bool = False
) -> ScheduleView | None:
    if locked:
        await db.execute(LOCK, tenant_no, name)  # first: what is read next must be what the lock holds
    row = await db.fetchrow(SHOW, tenant_no, name, "", None, None, 1)
    return None if row is None else await view_of(db, names, row)


async def _found(db: Connection, names: Names, tenant_no: int, name: str, *, locked: bool = False) -> ScheduleView:
    view = await _find(db, names, tenant_no, name, locked=locked)
    if view is None:
        raise NotFound("schedule", name)
    return view


class ScheduleStore(TenantCalls):
    """Fits control/ports.ScheduleStore."""

    _put = named_call("admin", put)
    get = named_call("read", get)
    listed = named_call("read", listed)
    delete = named_call("admin", delete)
    pause = named_call("admin", pause)
    resume = named_call("admin", resume)
    trigger = named_call("admin", trigger)
    jobs = named_call("read", jobs)
    recent_jobs = tenant_call("read", recent_jobs)
    lag = tenant_call("read", lag)
    now = lane_call("upkeep", clock)

    async def put(
        self,
        tenant: str,
        name: str,
        spec: ScheduleSpec,
        *,
        expected: int | None,
        who: str,
        topics: TopicSet | None = None,
    ) -> tuple[ScheduleView, bool]:
        """Create or replace. Its topic is made first: behind a pooler, a put that is refused takes its names back."""
        await self._database.topics(tenant, [spec.topic])
        return await self._put(tenant, name, spec, expected=expected, who=who, topics=topics)
