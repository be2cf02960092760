"""What streams of events read: committed rows by the transactions that wrote them, from a snapshot on.

Each page is read as of one snapshot, which is taken first: rows of later transactions are left for the next page, so
the statements of a page need not be one. A page that is not complete ends with a whole transaction.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from headgate.domain.events import COMPLETED, TOPIC_CHANGED, TOPIC_PAUSED, TOPIC_RESUMED, Position, StreamEvent
from headgate.domain.ids import JobId
from headgate.domain.limits import SETTLE_FLUSH_MAX_ROWS
from headgate.domain.states import EventKind, State
from headgate.domain.timestamps import unix_us
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.tenant_calls import TenantCalls
from headgate.store.verbs import states

COMPLETIONS_KEPT: Final = timedelta(minutes=10)
FLUSHES_A_PAGE: Final = 20
COMPLETIONS_A_PAGE: Final = 2_000
"""A page ends with the transaction that reaches one of them. A flush has up to 5,000, and some hundreds as a rule."""
POSITION: Final = """
SELECT pg_catalog.pg_current_snapshot()::text, (SELECT count(*) FROM headgate.epoch_floors),
       (extract(epoch FROM headgate.clock_v1()) * 1000)::bigint"""
# $1 tenants, $2 the first transaction after the last snapshot, $3 those that were under way in it, $4 the snapshot to
# read as of, $5 rows of a page. Rows of transactions that were under way are `late`: they are few, and come whole.
JOB_EVENTS: Final = """
SELECT f.late, f.xid::text::bigint, t.no, f.event_no, f.at, f.kind, f.job_id, f.state, f.epoch, f.attempt, f.run_at,
       split_part(f.worker, chr(31), 1), f.actor, f.reason, f.error_type, f.error_message, f.detail
  FROM unnest($1::int[]) AS t(no)
 CROSS JOIN LATERAL (
       (SELECT false AS late, e.xid, e.event_no, e.at, e.kind, e.job_id, e.state, e.epoch, e.attempt, e.run_at,
               e.worker, e.actor, e.reason, e.error_type, e.error_message, e.detail
          FROM headgate.job_events e                                                  -- index: job_events_followed
         WHERE e.tenant_no = t.no AND e.xid >= $2::text::xid8
           AND pg_catalog.pg_visible_in_snapshot(e.xid, $4::text::pg_snapshot)
         ORDER BY e.xid FETCH FIRST ($5) ROWS WITH TIES)
        UNION ALL
       (SELECT true, e.xid, e.event_no, e.at, e.kind, e.job_id, e.state, e.epoch, e.attempt, e.run_at, e.worker,
               e.actor, e.reason, e.error_type, e.error_message, e.detail
          FROM headgate.job_events e                                                  -- index: job_events_followed
         WHERE e.tenant_no = t.no AND e.xid = ANY ($3::text[]::xid8[])
           AND pg_catalog.pg_visible_in_snapshot(e.xid, $4::text::pg_snapshot))) AS f"""
# $6: completions of a page.
COMPLETIONS: Final = """
SELECT f.late, f.xid::text::bigint, t.no, f.at, f.ids, f.topic_nos, f.epochs, f.attempts
  FROM unnest($1::int[]) AS t(no)
 CROSS JOIN LATERAL (
       (SELECT false AS late, p.xid, p.at, p.ids, p.topic_nos, p.epochs, p.attempts
          FROM (SELECT c.*, sum(cardinality(c.ids)) OVER (ORDER BY c.xid RANGE UNBOUNDED PRECEDING EXCLUDE GROUP)
                       AS before
                  FROM (SELECT c.xid, c.at, c.ids, c.topic_nos, c.epochs, c.attempts
                          FROM headgate.completions c                                 -- index: completions_followed
                         WHERE c.tenant_no = t.no AND c.xid >= $2::text::xid8
                           AND pg_catalog.pg_visible_in_snapshot(c.xid, $4::text::pg_snapshot)
                         ORDER BY c.xid FETCH FIRST ($5) ROWS WITH TIES) AS c) AS p
         WHERE coalesce(p.before, 0) < $6)
        UNION ALL
       (SELECT true, c.xid, c.at, c.ids, c.topic_nos, c.epochs, c.attempts
          FROM headgate.completions c                                                 -- index: completions_followed
         WHERE c.tenant_no = t.no AND c.xid = ANY ($3::text[]::xid8[])
           AND pg_catalog.pg_visible_in_snapshot(c.xid, $4::text::pg_snapshot))) AS f"""
CHANGES: Final = """
SELECT f.late, f.xid::text::bigint, t.no, f.audit_no, f.at, f.verb, f.target, f.actor, f.reason, f.detail
  FROM unnest($1::int[]) AS t(no)
 CROSS JOIN LATERAL (
       (SELECT false AS late, a.xid, a.audit_no, a.at, a.verb, a.target, a.actor, a.reason, a.detail
          FROM headgate.audit a                                                       -- index: audit_followed
         WHERE a.tenant_no = t.no AND a.xid >= $2::text::xid8
           AND pg_catalog.pg_visible_in_snapshot(a.xid, $4::text::pg_snapshot)
         ORDER BY a.xid FETCH FIRST ($5) ROWS WITH TIES)
        UNION ALL
       (SELECT true, a.xid, a.audit_no, a.at, a.verb, a.target, a.actor, a.reason, a.detail
          FROM headgate.audit a                                                       -- index: audit_followed
         WHERE a.tenant_no = t.no AND a.xid = ANY ($3::text[]::xid8[])
           AND pg_catalog.pg_visible_in_snapshot(a.xid, $4::text::pg_snapshot))) AS f"""
# Completions are noted without a break as long as `until` is moved on in time.
RECORD: Final = """
UPDATE headgate.event_recording r
   SET since = CASE WHEN r.until > c.now THEN r.since ELSE c.now END, until = c.now + $1::interval
  FROM (SELECT headgate.clock_v1() AS now) AS c
 WHERE r.one RETURNING r.since"""
# An instance begins with the tick that sees it; a flush of before may take a moment longer.
ALL_RECORD: Final = """
SELECT NOT EXISTS (SELECT FROM headgate.instances i
                    WHERE i.seen_at > headgate.clock_v1() - interval '10 seconds'
                      AND i.seen_at < r.since + interval '1 second')
  FROM headgate.event_recording r WHERE r.one"""
MEMBERS: Final = """
SELECT b.job_id FROM headgate.batch_jobs b WHERE b.tenant_no = $1 AND b.batch_id = $2 AND b.job_id = ANY ($3)"""
# From the beginning of the table, where the oldest are.
FORGET: Final = """
WITH gone AS (
    DELETE FROM headgate.completions c
     WHERE c.ctid = ANY (ARRAY(SELECT x.ctid FROM headgate.completions x
                                WHERE x.at < headgate.clock_v1() - $1::interval LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1)
SELECT count(*) FROM gone"""
_Answer = TypeVar("_Answer")
_VERBS: Final = {"pause": TOPIC_PAUSED, "resume": TOPIC_RESUMED}


async def forget_completions(db: Connection, *, limit: int = 10_000) -> int:
    """Delete the notes of completions that streams of events need no more; returns how many flushes there were."""
    with translating(writing=True):
        gone: int = await db.fetchval(FORGET, COMPLETIONS_KEPT, limit)
    return gone


class EventStore(TenantCalls):
    """Fits control's port for streams of events."""

    kept: timedelta = COMPLETIONS_KEPT

    async def _read(self, call: Callable[[Connection], Coroutine[Any, Any, _Answer]]) -> _Answer:
        """Read by the connection of streams. A caller that leaves waits for its statement: it costs no connection."""
        left: asyncio.CancelledError | None = None
        try:
            async with self._database.lane("events").use() as db:
                reading = asyncio.create_task(call(db), name="read events")
                try:
                    try:
                        await asyncio.wait((reading,))
                    except asyncio.CancelledError as error:
                        left = error
                        await asyncio.wait((reading,))
                finally:
                    reading.cancel()  # it is over, unless the caller was cancelled twice
                answer = reading.result()
        finally:
            if left is not None:
                raise left
        return answer

    async def position(self) -> Position:
        """Where the stream is now. Positions are taken one after the other: a later one is never the earlier state."""

        async def call(db: Connection) -> Position:
            with translating(writing=False):
                ((snapshot, restores, at_ms),) = await db.fetch(POSITION)
            return Position.of(snapshot, at_ms=at_ms, restores=restores)

        return await self._read(call)

    async def since(
        self, tenant_nos: Collection[int], seen: Position, until: Position, *, completed: bool, rows: int = 500
    ) -> tuple[list[StreamEvent], Position]:
        """Events of tenants that `until` shows and `seen` does not, in order; and how far that is, if not all."""
        return await self._read(
            partial(self._since, [*sorted(tenant_nos)], seen, until, completed=completed, rows=rows)
        )

    async def _since(
        self, tenants: list[int], seen: Position, until: Position, db: Connection, *, completed: bool, rows: int
    ) -> tuple[list[StreamEvent], Position]:
        arguments = (str(seen.xmax), [str(one) for one in seen.running], until.snapshot)
        with translating(writing=False):
            jobs = await db.fetch(JOB_EVENTS, tenants, *arguments, rows)
            done = (
                await db.fetch(COMPLETIONS, tenants, *arguments, FLUSHES_A_PAGE, COMPLETIONS_A_PAGE)
                if completed
                else []
            )
            changes = await db.fetch(CHANGES, [0, *tenants], *arguments, rows)
        ends = (_end(jobs, rows), _end(done, FLUSHES_A_PAGE), _end_of_completions(done), _end(changes, rows))
        cut = min(filter(None, ends), default=None)
        if cut is not None:
            jobs, done, changes = (_up_to(some, cut) for some in (jobs, done, changes))
        topics = await self._topics_of(db, jobs)
        events = [_job_event(row, topics.get((row[2], row[6]), "")) for row in jobs]
        names = self._database.names
        for row in done:
            known = {topic_no: (await names.topic_by_no(db, topic_no)).name for topic_no in set(row[5])}
            events += [_completed(row, index, known[topic_no]) for index, topic_no in enumerate(row[5])]
            await asyncio.sleep(0)  # a flush has thousands of them
        events += [event for row in changes if (event := _change(row)) is not None]
        events.sort(key=lambda event: (event.xid, event.at, event.id))
        return events, until if cut is None else until.cut(cut)

    async def _topics_of(self, db: Connection, rows: Sequence[Any]) -> dict[tuple[int, UUID], str]:
        """The topics of jobs, by tenant and job; without those that were removed."""
        found: dict[tuple[int, UUID], str] = {}
        for tenant_no in {row[2] for row in rows}:
            ids = list({row[6] for row in rows if row[2] == tenant_no})
            for start in range(0, len(ids), SETTLE_FLUSH_MAX_ROWS):
                known = await states(db, tenant_no, ids[start : start + SETTLE_FLUSH_MAX_ROWS])
                for job_id, (_, topic_no, _) in known.items():
                    found[tenant_no, job_id] = (await self._database.names.topic_by_no(db, topic_no)).name
        return found

    async def record(self) -> datetime:
        """Have completions noted for the next ten minutes, on all instances; says since when they are."""
        async with self._database.lane("upkeep").use() as db:
            with translating(writing=True):
                since: datetime = await db.fetchval(RECORD, COMPLETIONS_KEPT)
        return since

    async def all_record(self) -> bool:
        """Whether all instances note completions by now."""

        async def call(db: Connection) -> bool:
            with translating(writing=False):
                return bool(await db.fetchval(ALL_RECORD))

        return await self._read(call)

    async def members(self, tenant_no: int, batch_id: UUID, ids: Collection[UUID]) -> set[UUID]:
        """Those of these jobs that belong to a batch."""

        async def call(db: Connection) -> set[UUID]:
            with translating(writing=False):
                return {row[0] for row in await db.fetch(MEMBERS, tenant_no, batch_id, list(ids))}

        return await self._read(call)


def _end(rows: Sequence[Any], limit: int) -> int | None:
    """The last transaction of a page if there may be more of some tenant: all of it is in the page."""
    ends: list[int] = []
    for tenant_no in {row[2] for row in rows}:
        found = [row[1] for row in rows if row[2] == tenant_no and not row[0]]
        if len(found) >= limit:
            ends.append(max(found))
    return min(ends, default=None)


def _end_of_completions(rows: Sequence[Any]) -> int | None:
    """The same for a page that has as many completions as one may have."""
    counts: Counter[int] = Counter()
    ends: dict[int, int] = {}
    for late, xid, tenant_no, _, ids, *_ in rows:
        if not late:
            counts[tenant_no] += len(ids)
            ends[tenant_no] = max(xid, ends.get(tenant_no, 0))
    return min((end for tenant_no, end in ends.items() if counts[tenant_no] >= COMPLETIONS_A_PAGE), default=None)


def _up_to(rows: Sequence[Any], xid: int) -> list[Any]:
    return [row for row in rows if row[0] or row[1] <= xid]


def _job_event(row: Any, topic: str) -> StreamEvent:
    _, xid, tenant_no, number, at, kind, job_id, state, epoch, attempt, run_at, worker, actor, reason, *error = row
    error_type, error_message, detail = error
    data = {
        "state": State(state).label,
        "epoch": epoch,
        "attempt": attempt,
        "run_at_us": unix_us(run_at) if run_at else None,
        "worker": worker,
        "actor": actor,
        "reason": reason,
        "error_type": error_type,
        "error_message": error_message,
        "detail": json.loads(detail) if detail else None,
    }
    return StreamEvent(
        id=f"j{number}",
        kind=f"job.{EventKind(kind).label}",
        at=at,
        tenant_no=tenant_no,
        xid=xid,
        topic=topic,
        job_id=JobId(job_id),
        data={name: value for name, value in data.items() if value not in (None, "")},
    )


def _completed(row: Any, index: int, topic: str) -> StreamEvent:
    _, xid, tenant_no, at, ids, _, epochs, attempts = row
    return StreamEvent(
        id=f"c{xid}-{ids[index]}",
        kind=COMPLETED,
        at=at,
        tenant_no=tenant_no,
        xid=xid,
        topic=topic,
        job_id=JobId(ids[index]),
        data={"state": State.COMPLETED.label, "epoch": epochs[index], "attempt": attempts[index]},
    )


def _change(row: Any) -> StreamEvent | None:
    """A change of a topic, or a pause of all topics; None: it is about something else."""
    _, xid, tenant_no, number, at, verb, target, actor, reason, detail = row
    kind, _, name = target.partition(" ")
    if kind != "topic" and verb not in _VERBS:
        return None
    data = {"target": kind, "actor": actor, "reason": reason, "detail": json.loads(detail) if detail else None}
    if verb not in _VERBS:
        data["verb"] = verb
    return StreamEvent(
        id=f"a{number}",
        kind=_VERBS.get(verb, TOPIC_CHANGED),
        at=at,
        tenant_no=tenant_no,
        xid=xid,
        topic=name if kind == "topic" else "",
        data={name: value for name, value in data.items() if value not in (None, "")},
    )
