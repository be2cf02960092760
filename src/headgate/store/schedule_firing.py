"""Firing schedules: what is due is read unlocked, planned by the scheduler, and fired in one transaction (fire_v1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import asyncpg

from headgate.domain import failpoints
from headgate.domain.errors import HeadgateError, Refused
from headgate.domain.schedules import Due, DueSchedule, Fired, Firing
from headgate.domain.timestamps import EPOCH
from headgate.domain.validation import clean_text
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translate, translating
from headgate.store.partitions import fetch_into_days
from headgate.store.schedule_rows import CATCH_UPS, OVERLAPS, timing_of

KEEP_ENDED: Final = timedelta(days=7)
AGAIN_AFTER_ERROR: Final = timedelta(seconds=60)
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
# A schedule that replaces its earlier job, and there is no capacity for the new one: the earlier one stays. As in
# fire_v1, the occurrence waits (when_full 0) or is skipped (1); $4 is the next one then, $5 the newest that was due.
NO_CAPACITY: Final = """
UPDATE headgate.schedules s
   SET next_at = CASE s.when_full WHEN 0 THEN s.next_at ELSE $4 END,
       look_at = CASE s.when_full WHEN 0 THEN headgate.look_again_v1(coalesce(s.full_since, c.now), c.now) ELSE $4 END,
       full_since = CASE s.when_full WHEN 0 THEN coalesce(s.full_since, c.now) END,
       skipped = s.skipped + s.when_full,
       last_skip = CASE s.when_full WHEN 0 THEN s.last_skip ELSE 'refused' END,
       last_skip_at = CASE s.when_full WHEN 0 THEN s.last_skip_at ELSE $5 END,
       skips_at = CASE s.when_full WHEN 0 THEN s.skips_at ELSE ($5 || s.skips_at)[:20] END,
       skips_why = CASE s.when_full WHEN 0 THEN s.skips_why ELSE ('refused'::text || s.skips_why)[:20] END,
       last_at = CASE s.when_full WHEN 0 THEN s.last_at ELSE greatest(s.last_at, $5) END
  FROM headgate.clock_v1() AS c(now)
 WHERE s.schedule_no = $1 AND s.version = $2 AND s.next_at = $3 AND s.look_at IS NOT NULL
RETURNING s.when_full"""
POSTPONE: Final = """
UPDATE headgate.schedules SET look_at = headgate.clock_v1() + $4, last_error = $5
 WHERE schedule_no = $1 AND version = $2 AND next_at = $3 AND look_at IS NOT NULL"""
# Once its moment is over, a schedule is needed only for the history of its jobs, which is read within days.
FORGET_ENDED: Final = """
WITH old AS (SELECT s.schedule_no FROM headgate.schedules s
              WHERE s.next_at IS NULL AND s.kind IN (0, 1) AND s.source = ''
                AND s.last_at < headgate.clock_v1() - $1::interval
              LIMIT 1000 FOR UPDATE SKIP LOCKED),
     gone AS (DELETE FROM headgate.schedules s USING old o WHERE s.schedule_no = o.schedule_no RETURNING 1)
SELECT count(*) FROM gone"""
# Classes of errors that concern the whole call: connection, resources, transaction, locks, operator, database itself.
_OF_ALL: Final = {"08", "25", "28", "3D", "40", "42", "53", "55", "57", "58", "XX"}


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
            timing=timing_of(*row[3:8]),
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
                if len(firings) > 1:  # each alone in the end: those that replace a job and find no capacity, too
                    middle = len(firings) // 2
                    first = await fire(db, firings[:middle])
                    return first + await fire(db, firings[middle:])
                if error.sqlstate == "HG002":
                    return await _no_capacity(db, firings[0])
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


async def _no_capacity(db: Connection, firing: Firing) -> Fired:
    one = firing.schedule
    skips = await db.fetchval(
        NO_CAPACITY, one.schedule_no, one.version, one.due, firing.next_at, firing.runs[-1].occurrence
    )
    return Fired() if skips is None else Fired(schedules=skips, skipped=skips, waiting=1 - skips)


async def postpone(db: Connection, schedule: DueSchedule, error: HeadgateError) -> None:
    """Look at it again in a minute, its cursor unmoved: else it would stand at the head of the line forever."""
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
    runs = [(ord_, run) for ord_, firing in enumerate(firings, 1) for run in firing.runs]
    return (
        [firing.schedule.schedule_no for firing in firings],
        [firing.schedule.version for firing in firings],
        [firing.schedule.due for firing in firings],
        [firing.next_at for firing in firings],
        [firing.missed for firing in firings],
        [ord_ for ord_, _ in runs],
        [run.id for _, run in runs],
        [run.occurrence for _, run in runs],
        [run.covers_from for _, run in runs],
    )


class FiringStore:
    """Fits the scheduler's port, on a lane of its own: firing waits for no other call."""

    def __init__(self, database: Database) -> None:
        self._fire = database.lane("schedule")

    async def due(self, *, limit: int) -> Due:
        async with self._fire.use() as db:
            return await due(db, limit=limit)

    async def fire(self, firings: Sequence[Firing]) -> Fired:
        async with self._fire.use() as db:
            if failpoints.armed:
                await failpoints.armed.reach("schedule.before_commit")
            fired = await fire(db, firings)
            if failpoints.armed:
                await failpoints.armed.reach("schedule.after_mark")
        if failpoints.armed:
            await failpoints.armed.reach("schedule.after_commit")
        return fired

    async def postpone(self, schedule: DueSchedule, error: HeadgateError) -> None:
        async with self._fire.use() as db:
            await postpone(db, schedule, error)

    async def forget_ended(self) -> int:
        async with self._fire.use() as db:
            return await forget_ended(db)
