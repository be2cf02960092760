"""Figures over time: from rollups, without a hole, and bounded whatever lies in the tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headgate.domain.errors import NotFound
from headgate.domain.histogram import WAITS_US
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.states import State
from headgate.domain.stats import FAILING_WITHIN, WINDOWS, Flows, Series, TopicLatencies, window_of
from headgate.domain.topic_sets import TopicSet
from headgate.store import control, latencies, series, upkeep
from headgate.store.connect import Connection
from tests.integration.reads.test_counts import busy_hour, counted
from tests.support.explain import cost
from tests.support.queue import Clock, Queue

MINUTE = timedelta(minutes=1)
WIDTH = len(WAITS_US) + 1


async def read(queue: Queue, since: str = "15m", topic: str = "", topics: TopicSet | None = None) -> Series:
    tenant = await queue.tenant_no()
    return await series.series(queue.db, tenant, window=window_of(since), topic=topic, topics=topics)


async def fold(db: Connection) -> None:
    while await upkeep.fold_flows(db):
        pass


async def run(queue: Queue, count: int, topic: str = "mail") -> None:
    claimed = await queue.claim(count, topic)
    pairs = zip(claimed.ids, claimed.epochs, strict=True)
    await queue.settle(*((job_id, epoch, Completed()) for job_id, epoch in pairs))


async def test_a_series_shows_what_happened_in_each_minute_and_gaps_where_no_server_ran(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    start = clock.now.replace(second=30, microsecond=0)
    for minute in range(10):
        await clock.set(start + minute * MINUTE)
        if minute in (4, 5):  # no server
            continue
        await upkeep.note_served(queue.db)
        await upkeep.note_served(queue.db)
        await queue.add(minute)
        if minute == 8:
            await run(queue, 3)
    found = await read(queue)
    assert len(found.intervals) == 15
    assert [b.at - a.at for a, b in zip(found.intervals, found.intervals[1:], strict=False)] == [MINUTE] * 14
    last = found.intervals[-10:]
    assert [one.flows and one.flows.submitted for one in last] == [0, 1, 2, 3, None, None, 6, 7, 8, 9]
    assert [one.depth for one in last] == [0, 1, 3, 6, None, None, 12, 19, 24, 33]
    assert all(one.flows is None for one in found.intervals[:5]), "before the first server"
    assert found.total == Flows(submitted=36, started=3, completed=3)
    assert found.counts == {State.PENDING: 33, State.COMPLETED: 3}


@pytest.mark.parametrize("since", WINDOWS)
async def test_a_series_is_the_same_before_and_after_folding(queue: Queue, since: str) -> None:
    await busy_hour(queue, 2)
    before = await read(queue, since)
    await fold(queue.db)
    after = await read(queue, since)
    assert _flows(after.intervals) == _flows(before.intervals)
    assert after.counts == before.counts
    everything: dict[State, int] = {}
    for states in (await counted(queue.db)).values():
        for state, n in states.items():
            everything[state] = everything.get(state, 0) + n
    assert after.counts == everything
    assert after.intervals[-1].depth == everything[State.PENDING]


def _flows(intervals: object) -> list[Flows]:
    return [one.flows for one in intervals if one.flows is not None]  # type: ignore[attr-defined]


async def test_the_topics_of_a_tenant_add_up_to_its_own_series(queue: Queue) -> None:
    await queue.add(3, "mail")
    await queue.add(4, "image")
    await run(queue, 2, "image")
    await fold(queue.db)
    await queue.add(1, "image")
    mail, image = await read(queue, topic="mail"), await read(queue, topic="image")
    both = await read(queue)
    assert (mail.total.submitted, image.total.submitted, both.total.submitted) == (3, 5, 8)
    assert (mail.intervals[-1].depth, image.intervals[-1].depth, both.intervals[-1].depth) == (3, 3, 6)
    some = await read(queue, topics=TopicSet.of("im*"))
    assert (some.total, some.counts) == (image.total, image.counts), "a token for some topics sees those"
    with pytest.raises(NotFound):
        await read(queue, topic="none")


async def test_nothing_of_other_tenants_is_in_a_series(queue: Queue) -> None:
    await queue.add(3)
    other = Queue(queue.db, tenant="other")
    await other.add(5)
    await fold(queue.db)
    assert (await read(queue)).total.submitted == 3
    assert (await read(other)).total.submitted == 5


async def test_a_series_is_read_within_the_transaction_that_a_pooler_needs(queue: Queue) -> None:
    await queue.add(3)
    async with queue.db.transaction():
        assert (await read(queue)).total.submitted == 3


async def test_latencies_of_instances_add_up_and_outlive_them(queue: Queue) -> None:
    tenant, mail = await queue.tenant_no(), (await queue.topic("mail")).no
    image = (await queue.topic("image")).no
    fast, slow = [0] * WIDTH, [0] * WIDTH
    fast[2], slow[10] = 98, 2  # 2 to 5 ms; 1 to 2 s
    for counts in (fast, slow):  # two instances
        await latencies.record(queue.db, [(tenant, TopicLatencies(topic_no=mail, pickup=counts, run=fast))])
    await latencies.record(queue.db, [(tenant, TopicLatencies(topic_no=image, pickup=slow, run=slow))])
    found = await read(queue, topic="mail")
    assert found.pickup is not None
    assert found.run is not None
    assert (found.pickup.count, found.run.count) == (100, 196)
    assert 0.002 < found.pickup.p50 < 0.005
    assert 1 < found.pickup.p99 <= 2
    assert found.run.p99 < 0.005
    both = await read(queue)
    assert both.pickup is not None
    assert both.pickup.count == 102, "all topics together"
    latest = both.intervals[-1]
    assert latest.pickup == both.pickup or both.intervals[-2].pickup is not None
    assert both.intervals[0].pickup is None, "a gap where no job was started"


async def test_a_series_shows_the_longest_wait_of_a_due_job_in_each_interval(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    start = clock.now.replace(minute=10, second=0, microsecond=0)
    await clock.set(start)

    async def look(after: timedelta, *, fresh: bool = False) -> None:
        await clock.set(start + after)
        if fresh:
            await run(queue, 5, "mail")
        await fold(queue.db)
        await upkeep.note_served(queue.db)
        await upkeep.record_ages(queue.db)

    await look(timedelta(0))
    await queue.add(5, "mail")
    await look(timedelta(seconds=70))
    await look(timedelta(seconds=110))
    await look(timedelta(seconds=130), fresh=True)  # all have started: nothing waits any more
    await clock.set(start + 4 * MINUTE)  # and then no server runs
    found = await read(queue)
    assert [_seconds(one.oldest_due) for one in found.intervals[-5:]] == [0, 110, 0, None, None]
    assert all(one.oldest_due is None for one in found.intervals[:-5])
    coarse = await read(queue, "6h")
    assert _seconds(coarse.intervals[-1].oldest_due) == 110, "five minutes keep the longest wait"
    assert _seconds((await read(queue, "7d")).intervals[-1].oldest_due) == 110


async def test_the_wait_in_a_paused_topic_is_shown_for_that_topic_alone(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await clock.set(clock.now.replace(second=0, microsecond=0))
    await queue.add(1, "held")
    await clock.advance(seconds=20)
    await queue.add(1, "mail")
    held = (await queue.tenant_no(), (await queue.topic("held")).no)
    await control.pause(queue.db, held)
    await fold(queue.db)
    await upkeep.note_served(queue.db)

    async def newest(**which: Any) -> float | None:
        return _seconds((await read(queue, **which)).intervals[-1].oldest_due)

    await clock.advance(seconds=10)
    await upkeep.record_ages(queue.db)
    assert await newest(topic="held") == 30
    assert await newest(topic="mail") == 10
    assert await newest() == 10, "as the oldest due job of the overview: a pause is no delay"
    assert await newest(topics=TopicSet.of("held", "mail")) == 10

    await control.resume(queue.db, held)
    await upkeep.record_ages(queue.db)
    assert await newest() == 30
    await control.pause(queue.db, held)
    await clock.advance(seconds=5)
    await upkeep.record_ages(queue.db)
    assert await newest() == 30, "it did wait for so long while it could be started"
    assert await newest(topic="held") == 35


async def test_a_pause_of_another_tenant_or_one_that_is_over_is_no_pause_of_a_wait(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await clock.set(clock.now.replace(second=0, microsecond=0))
    await queue.add(1, "mail")
    other = Queue(queue.db, tenant="other")
    await control.pause(queue.db, (await other.tenant_no(), 0))
    mail = (await queue.tenant_no(), (await queue.topic("mail")).no)
    await control.pause(queue.db, mail, until=clock.now + timedelta(seconds=10))
    await fold(queue.db)
    await upkeep.note_served(queue.db)
    await clock.advance(seconds=20)
    await upkeep.record_ages(queue.db)
    assert _seconds((await read(queue)).intervals[-1].oldest_due) == 20
    await control.pause(queue.db, mail, until=clock.now + timedelta(hours=1))
    await clock.advance(seconds=10)
    await upkeep.record_ages(queue.db)
    assert _seconds((await read(queue)).intervals[-1].oldest_due) == 20, "a pause that will end is one"


async def test_ages_of_many_topics_are_looked_up_some_at_a_time(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    for topic in ("a", "b", "c"):
        await queue.add(1, topic)
    await clock.advance(seconds=20)
    await fold(queue.db)
    numbers = [(await queue.topic(topic)).no for topic in ("a", "b", "c")]
    after = await upkeep.record_ages(queue.db, limit=2)
    assert after == numbers[1]
    assert (await read(queue, topic="c")).intervals[-1].oldest_due is None
    assert await upkeep.record_ages(queue.db, after, limit=2) == 0, "from the first one again"
    for topic in ("a", "b", "c"):
        assert _seconds((await read(queue, topic=topic)).intervals[-1].oldest_due) == 20


async def test_looking_up_ages_costs_the_same_with_few_and_many_jobs(queue: Queue) -> None:
    async def pages() -> int:
        await fold(queue.db)
        await upkeep.record_ages(queue.db)
        return (await cost(queue.db, "SELECT headgate.record_ages_v1($1, $2)", 0, 500)).pages

    await queue.add(20)
    few = await pages()
    for _ in range(3):
        await queue.add(1_000)
    assert await pages() <= few + 10


async def test_looking_up_ages_reads_pending_counts_by_their_index_and_updates_of_counts_stay_hot(queue: Queue) -> None:
    await queue.add(3)
    await fold(queue.db)
    await queue.add(1)
    async with queue.db.transaction():
        await upkeep.fold_flows(queue.db)
        await upkeep.record_ages(queue.db)
        (found,) = await queue.db.fetch(
            "SELECT pg_stat_get_xact_tuples_updated(t), pg_stat_get_xact_tuples_hot_updated(t),"
            " pg_stat_get_xact_numscans(t), pg_stat_get_xact_numscans('headgate.state_counts_pending'::regclass)"
            " FROM (SELECT 'headgate.state_counts'::regclass::oid) AS c(t)"
        )
    updated, hot, whole, by_index = found
    assert (updated, hot) == (1, 1)
    assert (whole, by_index) == (0, 1)


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


async def test_what_fails_is_grouped_by_topic_and_kind_of_error(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await fail(queue, 2, "mail", "no answer from 10.0.0.7 in 15 s")
    await clock.advance(hours=2)
    await fail(queue, 3, "mail", "no answer from 10.0.0.8 in 30 s")
    await fail(queue, 1, "mail", "no answer from 10.0.0.9 in 20 s", permanent=True)
    await fail(queue, 2, "image", "disk full")
    tenant = await queue.tenant_no()

    async def failing(**more: object) -> list[tuple[str, int, str]]:
        options = {"within": FAILING_WITHIN, "limit": 20} | more
        found = await series.failing(queue.db, queue.names, tenant, **options)  # type: ignore[arg-type]
        assert found.exact
        return [(one.topic, one.count, one.title) for one in found.groups]

    assert await failing() == [("mail", 4, "Boom: no answer from # in # s"), ("image", 2, "Boom: disk full")]
    assert await failing(topic="image") == [("image", 2, "Boom: disk full")]
    assert await failing(topics=TopicSet.of("image")) == [("image", 2, "Boom: disk full")]
    await clock.advance(hours=2)
    assert await failing() == [], "an hour later nothing fails any more"


async def fail(queue: Queue, count: int, topic: str, message: str, *, permanent: bool = False) -> None:
    await queue.add(count, topic)
    claimed = await queue.claim(count, topic)
    error = Failed(error=ErrorInfo(type="Boom", message=message), permanent=permanent)
    await queue.settle(*((job_id, epoch, error) for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True)))


async def test_figures_cost_the_same_with_few_and_many_jobs(queue: Queue) -> None:
    tenant = await queue.tenant_no()

    async def pages() -> dict[str, int]:
        now = await queue.db.fetchval(series.NOW)
        asked = {
            series.FLOWS: (tenant, [0], 60, now - timedelta(hours=1)),
            series.LATENCIES: (tenant, [0], 60, now - timedelta(hours=1)),
            series.FAILING: (tenant, None, now - FAILING_WITHIN, 20),
        }
        found = {}
        for statement, arguments in asked.items():
            await cost(queue.db, statement, *arguments)
            found[statement] = (await cost(queue.db, statement, *arguments)).pages
        return found

    await fail(queue, 30, "mail", "x")
    await fold(queue.db)
    few = await pages()
    for _ in range(3):
        await queue.add(1_000)
        await fail(queue, 200, "mail", "x")
    await fold(queue.db)
    many = await pages()
    assert all(many[statement] <= few[statement] + 40 for statement in few), (few, many)
