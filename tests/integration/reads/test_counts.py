"""Counts of jobs by state, and flows by the minute."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from headgate.domain.outcomes import Abandon, Completed, Nack, Snooze
from headgate.domain.states import State
from headgate.domain.stats import TopicLatencies
from headgate.store import latencies, reads, upkeep, verbs
from headgate.store.connect import Connection
from tests.integration.reads.walking import BOOM, FATAL, HOUR
from tests.support.queue import Clock, Queue, links

# --- counts -----------------------------------------------------------------------------------------------------------


async def counted(db: Connection) -> dict[int, dict[State, int]]:
    """The counts as a count over the jobs themselves."""
    rows = await db.fetch(
        "SELECT topic_no, state, count(*) FROM (SELECT topic_no, state FROM headgate.jobs"
        " UNION ALL SELECT topic_no, state FROM headgate.archive) AS j GROUP BY 1, 2"
    )
    found: dict[int, dict[State, int]] = {}
    for topic_no, state, n in rows:
        found.setdefault(topic_no, {})[State(state)] = n
    return found


async def busy_hour(queue: Queue, rounds: int = 12) -> None:
    """Every verb that moves a job."""
    tenant = await queue.tenant_no()
    for n in range(rounds):
        await queue.add(10, "mail")
        later = await queue.add(6, "letters", delay=HOUR)
        claimed = await queue.claim(8, "mail", "letters")
        said = [Completed(), BOOM, FATAL, Snooze(delay=HOUR), Abandon(), Nack(delay=timedelta(0), reason="")]
        await queue.settle(
            *(
                (i, e, said[(n + k) % 6])
                for k, (i, e) in enumerate(zip(claimed.ids, claimed.epochs, strict=True))
                if k < 7
            )
        )
        await verbs.cancel(queue.db, tenant, [*later[:3], *claimed.ids[7:]])
        await verbs.redrive(queue.db, tenant, later[:1])
        await verbs.discard(queue.db, tenant, later[1:2])


async def test_counts_are_exact_before_and_after_folding(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await busy_hour(queue)
    expected = await counted(queue.db)
    assert await reads.counts(queue.db, tenant) == expected
    assert await upkeep.fold_flows(queue.db, limit=7) == 7
    assert await reads.counts(queue.db, tenant) == expected
    flows = await queue.db.fetchval("SELECT sum(n) FROM headgate.flow_deltas")
    while await upkeep.fold_flows(queue.db, limit=25):
        assert await reads.counts(queue.db, tenant) == expected
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.flow_deltas") == 0
    assert flows > 0
    await busy_hour(queue, 1)
    assert await reads.counts(queue.db, tenant) == await counted(queue.db)


async def test_counts_stay_exact_while_four_fold_and_others_work(queue: Queue, database: str) -> None:
    """At any moment the counts add up to the number of jobs there are; in the end each of them is right."""
    tenant = await queue.tenant_no()
    await queue.topic("mail")
    await queue.topic("letters")
    await queue.add(40, "still")
    async with links(database, 7) as (worker, reader, checker, *folders):
        over = asyncio.Event()

        looks, folded = 0, Counter[Connection]()

        async def work() -> None:
            busy = Queue(worker)
            await busy_hour(busy, 40)
            while looks <= 5 or folded.total() <= 100 or len(+folded) < 2:  # until it was a race
                await busy_hour(busy, 5)
            over.set()

        async def fold(link: Connection) -> None:
            while not over.is_set():
                folded[link] += await upkeep.fold_flows(link, limit=5)

        async def look() -> None:
            nonlocal looks
            still = (await queue.topic("still")).no
            while not over.is_set():
                async with reader.transaction(isolation="repeatable_read"):  # both counts of one moment
                    assert await reads.counts(reader, tenant) == await counted(reader)
                assert (await reads.counts(checker, tenant))[still] == {State.PENDING: 40}
                looks += 1

        await asyncio.gather(work(), look(), *(fold(link) for link in folders))
    while await upkeep.fold_flows(queue.db):
        pass
    assert await reads.counts(queue.db, tenant) == await counted(queue.db)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.flow_deltas") == 0


async def test_flows_by_the_minute_tell_what_happened(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    topic = (await queue.topic()).no
    minute = clock.now.replace(second=0, microsecond=0)
    for n in range(3):
        await clock.set(minute + timedelta(minutes=n, seconds=59))
        await queue.add(n + 1)
        claimed = await queue.claim(n + 1)
        await queue.settle(*((job_id, 1, Completed()) for job_id in claimed.ids))
        await upkeep.fold_flows(queue.db, limit=2)
    while await upkeep.fold_flows(queue.db, limit=2):
        pass
    rows = await queue.db.fetch(
        "SELECT at, topic_no, seconds, submitted, started, completed, pending_change, changes"
        " FROM headgate.flow_buckets WHERE topic_no = $1 AND seconds = 60 ORDER BY 1",
        topic,
    )
    assert [tuple(row) for row in rows] == [
        (minute + timedelta(minutes=n), topic, 60, n + 1, n + 1, n + 1, 0, 3 * (n + 1)) for n in range(3)
    ]
    hours = await queue.db.fetch(
        "SELECT topic_no, sum(submitted), sum(completed) FROM headgate.flow_buckets WHERE seconds = 3600 GROUP BY 1"
    )
    assert sorted(tuple(row) for row in hours) == [(0, 6, 6), (topic, 6, 6)], "all topics together, and each"


async def test_what_is_folded_in_two_rounds_is_what_is_folded_at_once(db: Connection, clock: Clock) -> None:
    """Every change of state; of one topic at once, of the other in two rounds into the same intervals."""
    every = """
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT 1, $1, f, t, 100 + 10 * f + t, $2
          FROM generate_series(-1, 7) AS f, generate_series(-1, 7) AS t WHERE f <> t"""
    parts = [clock.now.replace(minute=7, second=n, microsecond=0) for n in (1, 59)]
    for at in parts:
        await db.execute(every, 1, at)
    await upkeep.fold_flows(db)
    for at in parts:
        await db.execute(every, 2, at)
        await upkeep.fold_flows(db)
    for table in ("flow_buckets", "state_counts"):
        read = f"SELECT (to_jsonb(b) - 'topic_no')::text FROM headgate.{table} b WHERE topic_no = $1"
        rows = [{row[0] for row in await db.fetch(read, topic_no)} for topic_no in (1, 2)]
        assert rows[0] == rows[1]
        assert rows[0]
    sums = """
        SELECT count(*) FILTER (WHERE a.submitted = 2 * b.submitted AND a.started = 2 * b.started
                                  AND a.completed = 2 * b.completed
                                  AND a.retried = 2 * b.retried AND a.failed = 2 * b.failed AND a.dead = 2 * b.dead
                                  AND a.cancelled = 2 * b.cancelled AND a.pending_change = 2 * b.pending_change
                                  AND a.changes = 2 * b.changes), count(*)
          FROM headgate.flow_buckets a JOIN headgate.flow_buckets b USING (tenant_no, seconds, at)
         WHERE a.topic_no = 0 AND b.topic_no = 1"""
    assert tuple(await db.fetchrow(sums) or ()) == (3, 3), "the tenant has the sum of its topics"


async def test_latencies_of_several_topics_and_instances_are_added_each_to_its_own(
    db: Connection, clock: Clock
) -> None:
    first = [TopicLatencies(topic_no=n, pickup=[n] * 20, run=[10 * n] * 20) for n in (1, 2)]
    for _ in range(2):
        await latencies.record(db, [(1, one) for one in first])
    rows = await db.fetch("SELECT topic_no, pickup, run FROM headgate.latency_buckets WHERE topic_no > 0")
    assert len(rows) == 6
    for topic_no, pickup, run in rows:
        assert (set(pickup), set(run)) == ({2 * topic_no}, {20 * topic_no})
