"""Schedules: kept, read, fired. What is due is decided in domain/schedules.py; fire_v1 carries it out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, assert_never
from uuid import UUID

import asyncpg

from headgate.domain.errors import AlreadyExists, NotFound, Refused, StoreError, VersionConflict
from headgate.domain.ids import JobId, TenantNo
from headgate.domain.schedules import (
    After,
    At,
    CatchUp,
    Cron,
    Every,
    Overlap,
    ScheduleSpec,
    Timing,
    WhenFull,
    first_occurrence,
    never_fires,
    triggered_job_id,
)
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.validation import MILLISECOND, to_ms
from headgate.domain.views import ScheduledJob, ScheduleView
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.names import Names

OVERLAPS: Final = (Overlap.ALLOW, Overlap.SKIP, Overlap.REPLACE)  # by their numbers in the table
CATCH_UPS: Final = (CatchUp.ONE, CatchUp.ALL, CatchUp.NONE)
WHEN_FULLS: Final = (WhenFull.WAIT, WhenFull.SKIP)

# One statement for one schedule ($2) and for a page of them. index: schedules_tenant_no_name_key
SHOW: Final = """
SELECT s.schedule_no, s.name, s.version, t.name, s.priority, s.max_attempts, s.policy_no, s.payload, s.headers, s.tags,
       s.kind, s.at, s.span_ms, s.expression, s.zone, s.overlap, s.catch_up, s.catch_up_most, s.ends_at, s.next_at,
       s.last_at, s.last_job_id, s.fired, s.skipped, s.last_skip, s.last_skip_at, s.last_error, s.paused, s.paused_by,
       s.paused_at, s.reason, s.source, s.created_at, s.changed_at, s.changed_by, s.when_full, s.full_since
  FROM headgate.schedules s JOIN headgate.topics t ON t.topic_no = s.topic_no
 WHERE s.tenant_no = $1 AND ($2::text IS NULL OR s.name = $2) AND s.name > $3
   AND ($4::text[] IS NULL OR t.name = ANY ($4)) AND ($5::text IS NULL OR s.source = $5)
 ORDER BY s.name LIMIT $6"""
LOCK: Final = "SELECT FROM headgate.schedules WHERE tenant_no = $1 AND name = $2 FOR UPDATE"
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
    topics: frozenset[str] | None = None,
) -> tuple[ScheduleView, bool]:
    """Create or replace; says whether anything was written. Raises AlreadyExists or VersionConflict.

    `topics`: those the caller may see. A schedule of another topic is never replaced: to the caller there is none.
    """
    topic = await names.topic(db, tenant_no, spec.topic)
    policy_no = None if spec.policy is None else await names.policy_no(db, tenant_no, spec.policy)
    with translating(writing=True):
        async with db.transaction():
            now: datetime = await db.fetchval("SELECT headgate.clock_v1()")
            before = await _find(db, names, tenant_no, name, locked=True)
            made = None
            if before is None:
                if expected:
                    raise NotFound("schedule", name)
                first = first_occurrence(spec.timing, now=now, last=None, ends_at=spec.ends_at)
                if first is None:
                    raise never_fires(spec)
                values = _values(spec, topic.no, policy_no, first)
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
                spec = _resolved(spec, before.spec)
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
                await db.execute(UPDATE, tenant_no, name, *_values(spec, topic.no, policy_no, first), now, who)
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
    topics: Sequence[str] | None,
    source: str | None,
) -> list[ScheduleView]:
    """A page in the order of names."""
    with translating(writing=False):
        rows = await db.fetch(SHOW, tenant_no, None, after, topics, source, limit)
        return [await _view(db, names, row) for row in rows]


async def delete(
    db: Connection, names: Names, tenant_no: int, name: str, *, expected: int | None, who: str, reason: str
) -> None:
    """Remove it; the jobs it made stay as they are."""
    with translating(writing=True):
        async with db.transaction():
            before = await _found(db, names, tenant_no, name, locked=True)
            if expected is not None and expected != before.version:
                raise _stale(before, expected)
            await db.execute(DELETE, tenant_no, before.schedule_no)
            await _note(db, tenant_no, before, verb="delete_schedule", who=who, reason=reason)


async def pause(db: Connection, names: Names, tenant_no: int, name: str, *, who: str, reason: str) -> ScheduleView:
    """Fire no more. Pausing again takes the new reason."""
    with translating(writing=True):
        async with db.transaction():
            before = await _found(db, names, tenant_no, name, locked=True)
            await db.execute(PAUSE, tenant_no, before.schedule_no, who, reason)
            await _note(db, tenant_no, before, verb="pause_schedule", who=who, reason=reason)
            return await _found(db, names, tenant_no, name)


async def resume(db: Connection, names: Names, tenant_no: int, name: str, *, who: str, reason: str) -> ScheduleView:
    """Go on from now; harmless when it runs."""
    with translating(writing=True):
        async with db.transaction():
            before = await _found(db, names, tenant_no, name, locked=True)
            if not before.paused:
                return before
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
        async with db.transaction():
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
    return [
        ScheduledJob(
            job_id=JobId(row[0]),
            occurrence=row[1],
            covers_from=row[2],
            triggered=row[3],
            state=None if row[4] is None else State(row[4]),
        )
        for row in rows
    ]


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
    return None if row is None else await _view(db, names, row)


async def _found(db: Connection, names: Names, tenant_no: int, name: str, *, locked: bool = False) -> ScheduleView:
    view = await _find(db, names, tenant_no, name, locked=locked)
    if view is None:
        raise NotFound("schedule", name)
    return view


async def _view(db: Connection, names: Names, row: asyncpg.Record) -> ScheduleView:
    spec = ScheduleSpec(
        topic=row[3],
        priority=row[4],
        max_attempts=row[5],
        policy=None if row[6] is None else await names.policy_by_no(db, row[6]),
        payload=row[7],
        headers=json.loads(row[8] or "{}"),
        tags=tuple(row[9]),
        timing=timing_of(*row[10:15]),
        overlap=OVERLAPS[row[15]],
        catch_up=CATCH_UPS[row[16]],
        catch_up_most=row[17],
        ends_at=row[18],
        source=row[31],
        when_full=WHEN_FULLS[row[35]],
    )
    return ScheduleView(
        schedule_no=row[0],
        name=row[1],
        version=row[2],
        spec=spec,
        next_at=row[19],
        last_at=row[20],
        last_job_id=None if row[21] is None else JobId(row[21]),
        fired=row[22],
        skipped=row[23],
        last_skip=row[24] or "",
        last_skip_at=row[25],
        last_error=row[26] or "",
        paused=row[27],
        paused_by=row[28],
        paused_at=row[29],
        reason=row[30],
        created_at=row[32],
        changed_at=row[33],
        changed_by=row[34],
        full_since=row[36],
    )


def timing_of(kind: int, at: datetime | None, span_ms: int | None, expression: str | None, zone: str | None) -> Timing:
    span = (span_ms or 0) * MILLISECOND
    if kind == 3 and expression is not None and zone is not None:
        return Cron(expression=expression, zone=zone)
    if kind == 2 and at is not None:
        return Every(interval=span, anchor=at)
    if kind == 1 and at is not None:
        return After(delay=span, at=at)
    if kind == 0 and at is not None:
        return At(at=at)
    raise StoreError(f"a row of headgate.schedules has a kind {kind} that this release does not know")


def _values(spec: ScheduleSpec, topic_no: int, policy_no: int | None, first: datetime | None) -> tuple[object, ...]:
    """The columns from topic_no to next_at, in the order of INSERT and UPDATE."""
    at: datetime | None = None
    span_ms: int | None = None
    expression: str | None = None
    zone: str | None = None
    match spec.timing:
        case At(at=moment):
            kind, at = 0, moment
        case After(delay=delay, at=moment):
            kind, at, span_ms = 1, moment or first, to_ms(delay)
        case Every(interval=interval, anchor=anchor):
            kind, at, span_ms = 2, anchor, to_ms(interval)
        case Cron():
            kind, expression, zone = 3, spec.timing.expression, spec.timing.zone
        case _:
            assert_never(spec.timing)
    return (
        topic_no,
        spec.priority,
        spec.max_attempts,
        policy_no,
        spec.payload,
        json.dumps(dict(spec.headers), ensure_ascii=False) if spec.headers else None,
        list(spec.tags),
        kind,
        at,
        span_ms,
        expression,
        zone,
        OVERLAPS.index(spec.overlap),
        CATCH_UPS.index(spec.catch_up),
        spec.catch_up_most,
        spec.ends_at,
        spec.source,
        WHEN_FULLS.index(spec.when_full),
        first,
    )


def _resolved(spec: ScheduleSpec, before: ScheduleSpec) -> ScheduleSpec:
    """The same delay put again means the moment it meant the first time."""
    if isinstance(spec.timing, After) and isinstance(before.timing, After) and spec.timing.delay == before.timing.delay:
        spec = replace(spec, timing=before.timing)
    return spec


def summary(view: ScheduleView) -> dict[str, object]:
    """What an audit keeps of a schedule: enough to see what changed, and never the payload."""
    spec, timing = view.spec, view.spec.timing
    match timing:
        case At(at=at):
            when = f"at {at.isoformat()}"
        case After(delay=delay):
            when = f"after {delay}"
        case Every(interval=interval, anchor=anchor):
            when = f"every {interval} from {anchor.isoformat()}"
        case Cron(expression=expression, zone=zone):
            when = f"{expression} {zone}"
        case _:
            assert_never(timing)
    return {
        "version": view.version,
        "topic": spec.topic,
        "when": when,
        "priority": spec.priority,
        "overlap": spec.overlap.value,
        "catch_up": spec.catch_up.value,
        "when_full": spec.when_full.value,
        "paused": view.paused,
        "payload_bytes": len(spec.payload),
    }


class ScheduleStore:
    """Fits control/schedule_ports.ScheduleStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> datetime:
        async with self._database.lane("read").use() as db:
            with translating(writing=False):
                at: datetime = await db.fetchval("SELECT headgate.clock_v1()")
        return at

    async def put(
        self,
        tenant: str,
        name: str,
        spec: ScheduleSpec,
        *,
        expected: int | None,
        who: str,
        topics: frozenset[str] | None,
    ) -> tuple[ScheduleView, bool]:
        tenant_no = TenantNo(await self._database.tenant_no(tenant))
        async with self._database.lane("admin").use() as db:
            return await put(db, self._database.names, tenant_no, name, spec, expected=expected, who=who, topics=topics)

    async def get(self, tenant: str, name: str) -> ScheduleView:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.lane("read").use() as db:
            return await get(db, self._database.names, tenant_no, name)

    async def listed(
        self, tenant: str, *, after: str, limit: int, topics: Sequence[str] | None, source: str | None
    ) -> list[ScheduleView]:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.lane("read").use() as db:
            return await listed(
                db, self._database.names, tenant_no, after=after, limit=limit, topics=topics, source=source
            )

    async def delete(self, tenant: str, name: str, *, expected: int | None, who: str, reason: str) -> None:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.lane("admin").use() as db:
            await delete(db, self._database.names, tenant_no, name, expected=expected, who=who, reason=reason)

    async def pause(self, tenant: str, name: str, *, who: str, reason: str) -> ScheduleView:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.lane("admin").use() as db:
            return await pause(db, self._database.names, tenant_no, name, who=who, reason=reason)

    async def resume(self, tenant: str, name: str, *, who: str, reason: str) -> ScheduleView:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.lane("admin").use() as db:
            return await resume(db, self._database.names, tenant_no, name, who=who, reason=reason)

    async def trigger(
        self, tenant: str, name: str, *, request: JobId, who: str, reason: str
    ) -> tuple[JobId, bool, int]:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.lane("admin").use() as db:
            return await trigger(db, self._database.names, tenant_no, name, request=request, who=who, reason=reason)

    async def jobs(self, tenant: str, name: str, *, before: datetime | None, limit: int) -> list[ScheduledJob]:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.lane("read").use() as db:
            return await jobs(db, self._database.names, tenant_no, name, before=before, limit=limit)
