"""Schedules: kept, read, fired. What is due is decided in domain/schedules.py; fire_v1 carries it out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, assert_never
from uuid import UUID

import asyncpg

from headgate.control.schedule_ports import ScheduledJob, ScheduleView
from headgate.dispatch.scheduler import Due, Fired
from headgate.domain.errors import AlreadyExists, HeadgateError, NotFound, Refused, StoreError, VersionConflict
from headgate.domain.ids import JobId, TenantNo
from headgate.domain.schedules import (
    EPOCH,
    After,
    At,
    CatchUp,
    Cron,
    DueSchedule,
    Every,
    Firing,
    Overlap,
    ScheduleSpec,
    Timing,
    WhenFull,
    first_occurrence,
    never_fires,
    triggered_job_id,
)
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.validation import MILLISECOND, clean_text, to_ms
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.errors import translate, translating
from headgate.store.names import Names
from headgate.store.partitions import fetch_into_days

OVERLAPS: Final = (Overlap.ALLOW, Overlap.SKIP, Overlap.REPLACE)  # by their numbers in the table
CATCH_UPS: Final = (CatchUp.ONE, CatchUp.ALL, CatchUp.NONE)
WHEN_FULLS: Final = (WhenFull.WAIT, WhenFull.SKIP)
AGAIN_AFTER_ERROR: Final = timedelta(seconds=60)
KEEP_ENDED: Final = timedelta(days=7)

# index: schedules_due. The one statement of an idle second.
FIRST: Final = """
SELECT headgate.clock_v1(),
       (SELECT look_at FROM headgate.schedules WHERE look_at IS NOT NULL ORDER BY look_at LIMIT 1)"""
# Unlocked: fire_v1 compares before it swaps, so an instance that stops between the two holds
# nothing back from the others.
DUE: Final = """
SELECT schedule_no, tenant_no, version, kind, at, span_ms, expression, zone, overlap, catch_up, catch_up_most, next_at,
       ends_at, seed
  FROM headgate.schedules WHERE look_at <= $1 ORDER BY look_at LIMIT $2"""
FIRE: Final = """
SELECT schedule_no, topic_no, made, skipped, waits FROM headgate.fire_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)"""
# A schedule that replaces its earlier job, and for the new one there is no room: the earlier one stays. As in fire_v1
# the occurrence waits (when_full 0) or is skipped (1); $4 is the next one then, $5 the newest that was to be fired.
NO_ROOM: Final = """
UPDATE headgate.schedules s
   SET next_at = CASE s.when_full WHEN 0 THEN s.next_at ELSE $4 END,
       look_at = CASE s.when_full WHEN 0 THEN headgate.look_again_v1(coalesce(s.full_since, c.now), c.now) ELSE $4 END,
       full_since = CASE s.when_full WHEN 0 THEN coalesce(s.full_since, c.now) END,
       skipped = s.skipped + s.when_full,
       last_skip = CASE s.when_full WHEN 0 THEN s.last_skip ELSE 'refused' END,
       last_skip_at = CASE s.when_full WHEN 0 THEN s.last_skip_at ELSE $5 END,
       last_at = CASE s.when_full WHEN 0 THEN s.last_at ELSE greatest(s.last_at, $5) END
  FROM headgate.clock_v1() AS c(now)
 WHERE s.schedule_no = $1 AND s.version = $2 AND s.next_at = $3 AND s.look_at IS NOT NULL
RETURNING s.when_full"""
POSTPONE: Final = """
UPDATE headgate.schedules SET look_at = headgate.clock_v1() + $4, last_error = $5
 WHERE schedule_no = $1 AND version = $2 AND next_at = $3 AND look_at IS NOT NULL"""
# Once its moment is over, a schedule is of use to nobody but its jobs' history; that is read within days.
FORGET_ENDED: Final = """
WITH old AS (SELECT s.schedule_no FROM headgate.schedules s
              WHERE s.next_at IS NULL AND s.kind IN (0, 1) AND s.source = ''
                AND s.last_at < headgate.clock_v1() - $1::interval
              LIMIT 1000 FOR UPDATE SKIP LOCKED),
     gone AS (DELETE FROM headgate.schedules s USING old o WHERE s.schedule_no = o.schedule_no RETURNING 1)
SELECT count(*) FROM gone"""

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
# Classes of errors that concern the whole call: connection, resources, transaction, locks, operator, database itself.
_OF_ALL: Final = {"08", "25", "28", "3D", "40", "42", "53", "55", "57", "58", "XX"}


# --- firing --------------------------------------------------------------------------------------------------------


async def due(db: Connection, *, limit: int) -> Due:
    """What is due by the database's clock, the longest overdue first; or else when something will be."""
    with translating(writing=False):
        now, upcoming = await db.fetchrow(FIRST) or (EPOCH, None)
        if upcoming is None or upcoming > now:
            return Due(now=now, schedules=(), next_look=upcoming)
        rows = await db.fetch(DUE, now, limit)
    found = [
        DueSchedule(
            schedule_no=row[0],
            tenant_no=row[1],
            version=row[2],
            timing=_timing(*row[3:8]),
            overlap=OVERLAPS[row[8]],
            catch_up=CATCH_UPS[row[9]],
            catch_up_most=row[10],
            due=row[11],
            ends_at=row[12],
            seed=row[13],
        )
        for row in rows
    ]
    return Due(now=now, schedules=found)


async def fire(db: Connection, firings: Sequence[Firing]) -> Fired:
    """Carry out plans in one transaction; a schedule the database cannot fire is found by halving, and put off.

    Its neighbours fire, and its own cursor stays where it was.
    """
    if not firings:
        return Fired()
    try:
        with translating(writing=True):
            try:
                rows = await fetch_into_days(db, FIRE, *_arguments(firings))
            except asyncpg.PostgresError as error:
                if (error.sqlstate or "")[:2] in _OF_ALL:
                    raise
                if len(firings) > 1:  # each alone in the end: those that replace a job and find no room, too
                    middle = len(firings) // 2
                    first = await fire(db, firings[:middle])
                    return first + await fire(db, firings[middle:])
                if error.sqlstate == "HG002":
                    return await _no_room(db, firings[0])
                raise Refused(f"schedule cannot be fired: {translate(error, writing=True)}") from error
    except Refused as error:
        await postpone(db, firings[0].schedule, error)
        return Fired(postponed=1)
    return Fired(
        schedules=len(rows),
        made=sum(row[2] for row in rows),
        skipped=sum(row[3] for row in rows),
        waiting=sum(row[4] for row in rows),
        topic_nos=frozenset(row[1] for row in rows if row[2]),
    )


async def _no_room(db: Connection, firing: Firing) -> Fired:
    one = firing.schedule
    skips = await db.fetchval(
        NO_ROOM, one.schedule_no, one.version, one.due, firing.next_at, firing.runs[-1].occurrence
    )
    return Fired() if skips is None else Fired(schedules=skips, skipped=skips, waiting=1 - skips)


async def postpone(db: Connection, schedule: DueSchedule, error: HeadgateError) -> None:
    """Look at it again in a minute, its cursor unmoved: else it would stand at the head of the line for ever."""
    with translating(writing=True):
        await db.execute(
            POSTPONE,
            schedule.schedule_no,
            schedule.version,
            schedule.due,
            AGAIN_AFTER_ERROR,
            clean_text(str(error), 1_000),
        )


async def forget_ended(db: Connection) -> int:
    """Delete what ran once, a week later; returns how many."""
    with translating(writing=True):
        gone: int = await db.fetchval(FORGET_ENDED, KEEP_ENDED)
    return gone


def _arguments(firings: Sequence[Firing]) -> tuple[list[object], ...]:
    runs = [(place, run) for place, firing in enumerate(firings, 1) for run in firing.runs]
    return (
        [firing.schedule.schedule_no for firing in firings],
        [firing.schedule.version for firing in firings],
        [firing.schedule.due for firing in firings],
        [firing.next_at for firing in firings],
        [firing.missed for firing in firings],
        [place for place, _ in runs],
        [run.id for _, run in runs],
        [run.occurrence for _, run in runs],
        [run.covers_from for _, run in runs],
    )


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
    """The schedule that made a job (empty when it was deleted), the occurrence, and whether somebody triggered it."""
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
        f'schedule "{view.name}" has version {view.version}, not {expected}: somebody changed it; read it and try again'
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
        timing=_timing(*row[10:15]),
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


def _timing(kind: int, at: datetime | None, span_ms: int | None, expression: str | None, zone: str | None) -> Timing:
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
