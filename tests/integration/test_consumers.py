"""Maximum consumers: so many sessions receive jobs of a topic at once, over all instances; the others take over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from headgate.dispatch.consumers import BETWEEN_CALLS_SECONDS, TTL_SECONDS, VALID_SECONDS, Consumers
from headgate.dispatch.worker_calls import PulledJobs, WorkerCalls
from headgate.domain.errors import StoreUnavailable
from headgate.domain.identity import Identity, Scope
from headgate.domain.outcomes import Completed
from headgate.domain.wakes import TopicReady
from headgate.store.connect import Connection
from headgate.store.topics import TopicStore
from tests.support.dispatch_waits import soon
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue, links
from tests.support.waiting import until_async
from tests.support.watched_store import Hold

ACTIVE = "SELECT count(DISTINCT session) FROM headgate.topic_consumers WHERE active AND until > headgate.clock_v1()"
PULLER = Identity(tenant="acme", subject="script", scopes=frozenset(Scope))


async def limit(one: Instance, most: int | None, topic: str = "mail") -> None:
    await TopicStore(one.store).set_topic(
        "acme", topic, rules={"max_consumers": most}, limits={}, actor="ana", reason=""
    )


class Shop:
    """Instances over one database, and their consumers, which move only when the test says so."""

    def __init__(self, *instances: Instance, now: Any = None) -> None:
        self.instances = instances
        self.consumers = [
            Consumers(one.store, one.sessions, one.pulls, one.demands, now=now or one.now) for one in instances
        ]

    async def round(self) -> None:
        for one, consumers in zip(self.instances, self.consumers, strict=True):
            await one.store.refresh_names()
            await consumers.run_once()

    async def worker(self, at: int, *topics: str, slots: int = 5) -> Worker:
        one = self.instances[at]
        worker = await one.worker("", *(topics or ("mail",)))
        await one.rules.request_jobs(worker.session, list(topics or ("mail",)), slots)
        return worker

    async def claim(self, at: int, worker: str, *, wait_ms: int = 0) -> PulledJobs:
        """One call of a worker over HTTP."""
        return await WorkerCalls(self.instances[at].rules).claim(PULLER, worker, ["mail"], wait_ms=wait_ms)

    async def complete(self, at: int, worker: str, pulled: PulledJobs) -> None:
        (jobs,) = pulled.deliveries
        outcomes = [(job_id, epoch, Completed()) for job_id, epoch in zip(jobs.ids, jobs.epochs, strict=True)]
        await WorkerCalls(self.instances[at].rules).report(PULLER, worker, outcomes, size=1)

    async def active(self) -> int:
        async with self.instances[0].store.lane("upkeep").use() as db:
            return int(await db.fetchval(ACTIVE))


@asynccontextmanager
async def shop_of(database: str, count: int, *, running: bool = False, now: Any = None) -> AsyncIterator[Shop]:
    instances = [
        Instance(database, name=f"i{n}", running=running, **({} if now is None else {"now": now})) for n in range(count)
    ]
    for one in instances:
        await one.__aenter__()
    try:
        await limit(instances[0], 1)
        yield Shop(*instances, now=now)
    finally:
        for one in instances:
            await one.__aexit__(None, None, None)


def receiving(workers: Iterable[Worker], topic_no: int) -> list[bool]:
    """For which workers the topic would be claimed now."""
    return [any(topic_no in demand.topic_nos for demand in worker.session.credit) for worker in workers]


async def test_of_all_sessions_on_two_instances_one_receives_and_the_next_takes_over(database: str) -> None:
    async with shop_of(database, 2) as shop:
        workers = []
        for at in (0, 1, 0):
            workers.append(await shop.worker(at))
            await shop.round()
        (no,) = await shop.instances[0].topic_nos("mail")
        assert receiving(workers, no) == [True, False, False]
        assert [worker.session.standby for worker in workers] == [(), ("mail",), ("mail",)]
        workers[0].lose()
        await shop.round()
        await shop.round()  # the place that the first instance gave back is taken in the second's next round
        assert receiving(workers, no) == [False, True, False]
        await limit(shop.instances[0], 2)
        await shop.round()
        assert receiving(workers, no) == [False, True, True]


async def test_no_more_than_the_maximum_ever_receive_however_rounds_and_ends_fall(database: str) -> None:
    async with shop_of(database, 2) as shop:
        await limit(shop.instances[0], 2)
        (no,) = await shop.instances[0].topic_nos("mail")
        workers = [await shop.worker(n % 2) for n in range(6)]
        most = 0
        for ended in workers[:5]:
            await asyncio.gather(*(consumers.run_once() for consumers in shop.consumers))
            most = max(most, sum(receiving(workers, no)))
            ended.lose()
            await asyncio.gather(*(consumers.run_once() for consumers in reversed(shop.consumers)))
            most = max(most, sum(receiving(workers, no)))
        assert most == 2
        await shop.round()
        assert receiving(workers, no) == [False] * 5 + [True]


async def test_a_stand_by_gets_jobs_of_its_other_topics_and_keeps_its_credit(database: str) -> None:
    async with shop_of(database, 1, running=True) as shop:
        (one,) = shop.instances
        first = await shop.worker(0)
        await shop.round()
        second = await shop.worker(0, "mail", "other")
        await shop.round()
        await one.submit(1, "other")
        assert len(await second.take()) == 1
        await one.submit(2)
        assert len(await first.take()) == 2
        first.lose()
        await shop.round()
        await one.submit(3)
        taken = 0
        while taken < 3:
            taken += len(await second.take())
        # Of five: one job of "other", three of "mail". A claim that is under way has reserved what is left.
        await soon(lambda: sum(second.session.credit.values()) == 1, "the credit is conserved")


async def test_a_worker_is_informed_when_it_becomes_stand_by_and_when_it_is_a_consumer(database: str) -> None:
    async with shop_of(database, 1) as shop:
        first, second = await shop.worker(0), await shop.worker(0)
        await shop.round()
        assert (await second.hear()).standby == ("mail",)
        await shop.round()
        await limit(shop.instances[0], None)
        await shop.round()
        assert (await second.hear()).standby == ()  # and nothing in between: it is told when it changes
        (no,) = await shop.instances[0].topic_nos("mail")
        assert receiving([first, second], no) == [True, True]


async def test_a_lowered_maximum_takes_places_back(database: str) -> None:
    async with shop_of(database, 2) as shop:
        await limit(shop.instances[0], 3)
        workers = [await shop.worker(n % 2) for n in range(3)]
        (no,) = await shop.instances[0].topic_nos("mail")
        await shop.round()
        assert receiving(workers, no) == [True, True, True]
        await limit(shop.instances[0], 1)
        await shop.round()
        await shop.round()
        assert receiving(workers, no) == [True, False, False]


async def test_an_instance_that_does_not_renew_stops_claiming_before_others_take_over(database: str) -> None:
    clock = 1_000.0
    async with shop_of(database, 2, running=True, now=lambda: clock) as shop:
        one, two = shop.instances
        await two.store.refresh_names()  # its next tick is an hour away
        frozen = await shop.worker(0)
        await shop.consumers[0].run_once()
        # A claim that was sent while its place was valid may take a job that is committed meanwhile: let it end.
        await soon(lambda: one.store.got == [0], "the first claim is answered")
        successor = await shop.worker(1)
        await shop.consumers[1].run_once()
        (no,) = await one.topic_nos("mail")
        assert receiving([frozen, successor], no) == [True, False]
        assert VALID_SECONDS < TTL_SECONDS
        clock += VALID_SECONDS + 0.1
        assert not shop.consumers[0].are_valid()
        await one.submit(1)
        claims = one.claimer.claims
        one.demands.wake_all()
        await asyncio.sleep(0)
        assert await one.claimer.run_once() == 0
        assert one.claimer.claims == claims  # it asked nothing of the database
        async with one.store.lane("upkeep").use() as db:  # its rows are too old by the database's clock as well
            await db.execute(
                "UPDATE headgate.topic_consumers SET until = until - interval '1 minute' WHERE worker ~ 'i0'"
            )
        await shop.consumers[1].run_once()
        assert receiving([successor], no) == [True]
        assert len(await successor.take()) == 1
        await shop.consumers[0].run_once()  # it is back: its session waits behind the other
        assert frozen.session.standby == ("mail",)


@asynccontextmanager
async def without_ticks(one: Instance) -> AsyncIterator[None]:
    """Only wakes can find jobs: a tick waits until the end."""
    one.store.before["tick"] = hold = Hold()
    try:
        yield
    finally:
        hold.release()


async def test_a_session_that_gets_a_place_finds_the_jobs_that_waited_for_it(database: str) -> None:
    async with shop_of(database, 2, running=True) as shop, without_ticks(shop.instances[1]):
        one, two = shop.instances
        await two.store.refresh_names()
        first = await shop.worker(0)
        await shop.consumers[0].run_once()
        await soon(lambda: one.store.got == [0], "the first claim is answered")
        second = await shop.worker(1)
        await shop.consumers[1].run_once()
        assert second.session.standby == ("mail",)
        first.lose()
        await one.submit(1)  # no one receives it, and the other instance is not notified
        for consumers in shop.consumers:
            await consumers.run_once()
        assert len(await second.take()) == 1


async def test_a_wake_is_kept_while_the_first_claim_for_a_place_is_under_way(database: str) -> None:
    async with shop_of(database, 2, running=True) as shop, without_ticks(shop.instances[1]):
        one, two = shop.instances
        await two.store.refresh_names()
        worker = await shop.worker(1)
        two.store.after["claim"] = hold = Hold()
        await shop.consumers[1].run_once()
        await hold.reached()  # it has looked, and found nothing
        await one.submit(1)
        two.wakes.follow([TopicReady((await one.topic_nos("mail"))[0])])
        hold.release()
        assert len(await worker.take()) == 1


async def test_a_busy_consumer_keeps_its_place_when_another_of_its_topics_appears(database: str) -> None:
    async with shop_of(database, 1) as shop:
        (one,) = shop.instances
        busy = await one.worker("", "mail")
        await one.rules.request_jobs(busy.session, ["mail", "later"], 1)
        await shop.round()
        await one.submit(1)
        assert await one.claimer.run_once() == 1
        assert sum(busy.session.credit.values()) == 0
        await one.topic_nos("later")
        waiting = await shop.worker(0)
        await shop.round()
        assert (busy.session.standby, waiting.session.standby) == ((), ("mail",))


async def test_places_are_renewed_by_the_service_and_given_back_when_it_stops(database: str) -> None:
    async with shop_of(database, 1) as shop:
        await shop.worker(0)
        running = asyncio.create_task(shop.consumers[0].run())
        await until_async(shop.active, "the session has its place")
        before = shop.consumers[0].rounds

        async def renewed() -> bool:
            return shop.consumers[0].rounds > before

        await until_async(renewed, "the place is renewed")
        shop.consumers[0].stop()
        await asyncio.wait_for(running, timedelta(seconds=10).total_seconds())
        assert await shop.active() == 0


async def test_without_such_topics_nothing_is_asked(stepped: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise StoreUnavailable("asked")

    monkeypatch.setattr(stepped.store, "hold_consumers", refused)
    worker = await stepped.worker("w")
    await stepped.rules.request_jobs(worker.session, ["mail"], 1)
    consumers = Consumers(stepped.store, stepped.sessions, stepped.pulls, stepped.demands, now=stepped.now)
    assert not await consumers.run_once()


# ---------------------------------------------------------------------- workers that claim by single calls


async def test_a_pull_worker_keeps_its_place_between_calls_while_it_holds_jobs_and_for_a_while_after(
    database: str,
) -> None:
    clock = 1_000.0
    async with shop_of(database, 1, running=True, now=lambda: clock) as shop:
        await shop.instances[0].submit(3)

        async def claimed(worker: str) -> PulledJobs:
            """The first call may bring a place only, which the next round gives."""
            if len(first := await shop.claim(0, worker)):
                return first
            await shop.round()
            return await shop.claim(0, worker)

        held = await claimed("a")
        assert len(held) == 1
        held.written()
        clock += BETWEEN_CALLS_SECONDS + 1
        assert len(await claimed("b")) == 0, "the first one runs a job"
        await shop.complete(0, "a", held)
        clock += BETWEEN_CALLS_SECONDS - 1
        assert len(await claimed("b")) == 0, "its next call may be on its way"
        clock += 2
        assert len(await claimed("b")) == 1
        assert len(await claimed("a")) == 0, "it is a stand-by now"


async def test_a_pull_worker_counts_once_however_many_calls_it_makes_to_whichever_instance(database: str) -> None:
    clock = 1_000.0
    async with shop_of(database, 2, running=True, now=lambda: clock) as shop:
        calls = [asyncio.create_task(shop.claim(at, "a", wait_ms=60_000)) for at in (0, 0, 1)]
        await soon(lambda: sum(len(one.sessions.with_calls()) for one in shop.instances) == 3, "all of them wait")
        await shop.round()
        await shop.round()
        assert await shop.active() == 1
        other = asyncio.create_task(shop.claim(1, "b", wait_ms=60_000))
        await soon(lambda: len(shop.instances[1].sessions.with_calls()) == 2, "it waits")
        await shop.round()
        await shop.instances[0].submit(2)
        await shop.instances[1].submit(1)
        assert [len(await call) for call in calls] == [1, 1, 1]
        assert not other.done()
        # The place is that of the worker: an instance that it calls no more does not free it for others.
        for _ in range(3):
            clock += BETWEEN_CALLS_SECONDS / 2
            assert len(await shop.claim(1, "a")) == 0
            await shop.round()
        assert await shop.active() == 1
        await shop.instances[1].submit(1)
        assert len(await shop.claim(1, "a")) == 1
        assert not other.done()
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)


HOLD = "SELECT session, waiting FROM headgate.hold_consumers_v1($1, ARRAY[$2::int], ARRAY[$3::uuid], '{w}', 10000)"


async def places(db: Connection, instance_no: int, topic_no: int, session: UUID) -> int:
    """Renew the place of one session of an instance: its number among those that wait, 0 if it has a place."""
    return {row[0]: row[1] for row in await db.fetch(HOLD, instance_no, topic_no, session)}[session]


async def test_only_its_own_instance_takes_a_place_back(db: Connection) -> None:
    """Another one cannot stop its claims: until it has heard of the lower maximum, its consumer counts."""
    topic_no, first, second, third = (await Queue(db).topic()).no, uuid4(), uuid4(), uuid4()
    await db.execute("UPDATE headgate.topics SET max_consumers = 2")
    assert [await places(db, 1, topic_no, first), await places(db, 2, topic_no, second)] == [0, 0]
    await db.execute("UPDATE headgate.topics SET max_consumers = 1")
    assert await places(db, 1, topic_no, first) == 0
    active = "SELECT active FROM headgate.topic_consumers WHERE session = $1"
    assert await db.fetchval(active, second)
    assert await places(db, 3, topic_no, third) > 0
    assert await places(db, 2, topic_no, second) > 0
    assert not await db.fetchval(active, second)


async def test_a_place_of_the_time_ahead_is_free_after_a_step_back_of_the_clock(db: Connection) -> None:
    clock, topic_no = await Clock.install(db), (await Queue(db).topic()).no
    await db.execute("UPDATE headgate.topics SET max_consumers = 1")
    assert await places(db, 1, topic_no, uuid4()) == 0
    await clock.advance(hours=-2)
    assert await places(db, 2, topic_no, uuid4()) == 0


async def test_rounds_of_two_instances_at_the_same_moment_follow_each_other(database: str, db: Connection) -> None:
    topic_no = (await Queue(db).topic()).no
    await db.execute("UPDATE headgate.topics SET max_consumers = 1")
    async with links(database, 2) as (first, second):
        async with first.transaction():
            assert await places(first, 1, topic_no, uuid4()) == 0, "active"
            other = asyncio.create_task(places(second, 2, topic_no, uuid4()))

            async def waits() -> bool:
                found = "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = $1"
                return other.done() or bool(await db.fetchval(found, second.get_server_pid()))

            await until_async(waits, "the second round begins")
        with suppress(asyncpg.LockNotAvailableError):  # it waits for a second at most, and is then tried again
            assert await other == 1, "the first of those that wait"
