"""Figures over time, from the rollups: never a count over the jobs themselves.

A series reads one row for each interval and topic, and what has not been folded yet, in one snapshot. Topic 0 is the
sum of a tenant's topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import asyncpg

from headgate.domain.errors import NotFound
from headgate.domain.histogram import WAITS_US
from headgate.domain.states import State
from headgate.domain.stats import SERIES_TOPICS_MAX, Failing, Flows, Interval, Latency, Series, Window, depths
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import MILLISECOND
from headgate.store import matching, reads
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.dead_letters import grouped
from headgate.store.errors import translating
from headgate.store.names import Names
from headgate.store.tenant_calls import TenantCalls, named_call, tenant_call

ALL_TOPICS: Final = 0
FAILING_LOOK_AT: Final = 2_000
TOPIC_NO: Final = "SELECT topic_no FROM headgate.topics WHERE tenant_no = $1 AND name = $2"
NOW: Final = "SELECT headgate.clock_v1()"
# Folded (index: flow_buckets_pkey), and not folded yet. $2: topics, or 0 alone for all of them.
FLOWS: Final = """
SELECT f.at, sum(f.submitted)::bigint, sum(f.started)::bigint, sum(f.completed)::bigint, sum(f.retried)::bigint,
       sum(f.failed)::bigint, sum(f.dead)::bigint, sum(f.cancelled)::bigint, sum(f.pending_change)::bigint,
       max(f.oldest_ms), max(f.oldest_paused_ms)
  FROM (SELECT b.at, b.submitted, b.started, b.completed, b.retried, b.failed, b.dead, b.cancelled, b.pending_change,
               b.oldest_ms, b.oldest_paused_ms
          FROM headgate.flow_buckets b
         WHERE b.tenant_no = $1 AND b.topic_no = ANY ($2::int[]) AND b.seconds = $3 AND b.at >= $4
         UNION ALL
        SELECT date_bin($3 * interval '1 second', d.at, timestamptz 'epoch'), c.submitted, c.started, c.completed,
               c.retried, c.failed, c.dead, c.cancelled, c.pending_change, NULL, NULL
          FROM headgate.flow_deltas d
         CROSS JOIN LATERAL headgate.flow_columns_v1(d.from_state, d.to_state, d.n) AS c
         WHERE d.tenant_no = $1 AND ($2::int[] = '{0}' OR d.topic_no = ANY ($2::int[])) AND d.at >= $4) AS f
 GROUP BY 1"""
# When a server was running: the rows of tenant 0. index: flow_buckets_pkey
SERVED: Final = """
SELECT b.at FROM headgate.flow_buckets b WHERE b.tenant_no = 0 AND b.topic_no = 0 AND b.seconds = $1 AND b.at >= $2"""
# index: latency_buckets_pkey
LATENCIES: Final = """
SELECT l.at, l.pickup, l.run FROM headgate.latency_buckets l
 WHERE l.tenant_no = $1 AND l.topic_no = ANY ($2::int[]) AND l.seconds = $3 AND l.at >= $4"""
FAILING: Final = """
SELECT topic_no, error, n, first_at, last_at, sample_id, looked_at, oldest_at
  FROM headgate.failing_v1($1, $2, $3, $4)"""


async def series(
    db: Connection, tenant_no: int, *, window: Window, topic: str = "", topics: TopicSet | None = None
) -> Series:
    """The series of a topic, or of all topics that the caller may see. Raises NotFound for a topic."""
    check_tenant_no(tenant_no)
    with translating(writing=False):
        # One snapshot for all statements. Behind a pooler the lane has begun a transaction, and the level is its own.
        nested = db.is_in_transaction()
        async with db.transaction(isolation=None if nested else "repeatable_read", readonly=not nested):
            now: datetime = await db.fetchval(NOW)
            numbers, partial = await _numbers(db, tenant_no, topic, topics)
            begin = _begin(now, window)
            flows = {row[0]: row for row in await db.fetch(FLOWS, tenant_no, numbers, window.seconds, begin)}
            served = {row[0] for row in await db.fetch(SERVED, window.seconds, begin)}
            latencies = await db.fetch(LATENCIES, tenant_no, numbers, window.seconds, begin)
            by_topic = await reads.counts(db, tenant_no)
    counts: Counter[State] = Counter()
    for number, of_topic in by_topic.items():
        if numbers == [ALL_TOPICS] or number in numbers:
            counts.update(of_topic)
    return _series(now, window, topic, flows, served, latencies, counts, partial=partial)


async def failing(
    db: Connection,
    names: Names,
    tenant_no: int,
    *,
    within: timedelta,
    topic: str = "",
    topics: TopicSet | None = None,
    limit: int,
) -> Failing:
    """The errors of failed attempts within this time, largest group first."""
    check_tenant_no(tenant_no)
    with translating(writing=False):
        now: datetime = await db.fetchval(NOW)
        numbers: Sequence[int] | None = None
        if topic or topics is not None:
            numbers, _ = await _numbers(db, tenant_no, topic, topics, most=None)
        since = now - within
        rows = await db.fetch(FAILING, tenant_no, numbers, since, FAILING_LOOK_AT)
    looked = rows[0][6] if rows else 0
    oldest: datetime | None = rows[0][7] if rows else None
    groups = await grouped(db, names, rows)
    exact = looked < FAILING_LOOK_AT or oldest is None or oldest < since
    return Failing(since=since, groups=groups[:limit], looked_at=looked, exact=exact and len(groups) <= limit)


async def _numbers(
    db: Connection, tenant_no: int, topic: str, topics: TopicSet | None, *, most: int | None = SERIES_TOPICS_MAX
) -> tuple[list[int], bool]:
    """The numbers of the topics to read, and whether some are left out. Raises NotFound."""
    if topic:
        number = await db.fetchval(TOPIC_NO, tenant_no, topic)
        if number is None:
            raise NotFound("topic", topic)
        return [number], False
    if topics is None:
        return [ALL_TOPICS], False
    found = sorted(await matching.topic_nos(db, tenant_no, (), topics))
    return found[:most], most is not None and len(found) > most


def _begin(now: datetime, window: Window) -> datetime:
    """When the first interval begins: intervals are counted from 1970, as those of the rollups."""
    since = (now - window.span).timestamp()
    step = window.seconds
    return datetime.fromtimestamp((since // step + 1) * step, tz=now.tzinfo)


def _series(
    now: datetime,
    window: Window,
    topic: str,
    flows: Mapping[datetime, asyncpg.Record],
    served: set[datetime],
    latencies: Sequence[asyncpg.Record],
    counts: Mapping[State, int],
    *,
    partial: bool,
) -> Series:
    times = [_begin(now, window)]
    while times[-1] + window.step <= now:
        times.append(times[-1] + window.step)
    depth = depths(counts.get(State.PENDING, 0), [flows[at][8] if at in flows else 0 for at in times])
    pickups = {at: [0] * (len(WAITS_US) + 1) for at in times}
    runs = {at: [0] * (len(WAITS_US) + 1) for at in times}
    for at, pickup, run in latencies:
        if at in pickups:
            pickups[at] = added(pickups[at], pickup)
            runs[at] = added(runs[at], run)
    intervals = []
    for at, pending in zip(times, depth, strict=True):
        known = at in served or at in flows
        intervals.append(
            Interval(
                at=at,
                flows=_flows(flows.get(at)) if known else None,
                depth=pending if known else None,
                oldest_due=_oldest(flows.get(at), served=at in served, paused_too=bool(topic)),
                pickup=Latency.of(pickups[at]),
                run=Latency.of(runs[at]),
            )
        )
    return Series(
        now=now,
        window=window,
        topic=topic,
        intervals=intervals,
        counts={state: n for state, n in counts.items() if n},
        pickup=Latency.of(_total(pickups.values())),
        run=Latency.of(_total(runs.values())),
        partial=partial,
    )


def _flows(row: asyncpg.Record | None) -> Flows:
    if row is None:
        return Flows()
    return Flows(
        submitted=row[1],
        started=row[2],
        completed=row[3],
        retried=row[4],
        failed=row[5],
        dead=row[6],
        cancelled=row[7],
    )


def _oldest(row: asyncpg.Record | None, *, served: bool, paused_too: bool) -> timedelta | None:
    """The longest wait that was noted. A server that ran and noted none has seen none; else nothing is known."""
    noted = [] if row is None else [row[9], row[10] if paused_too else None]
    longest = max((ms for ms in noted if ms is not None), default=0 if served else None)
    return None if longest is None else longest * MILLISECOND


def added(mine: Sequence[int], theirs: Sequence[int]) -> list[int]:
    """The sum of two histograms."""
    return [one + other for one, other in zip(mine, theirs, strict=True)]


def _total(histograms: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*histograms, strict=True)]


class StatsStore(TenantCalls):
    """Fits control's port for figures."""

    series = tenant_call("read", series)
    failing = named_call("read", failing)
