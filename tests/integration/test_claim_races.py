"""Races for jobs between many connections, in this process and in others, on one database."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.domain.backoff import RetryPolicy
from headgate.domain.dispatching import Claimed
from headgate.domain.errors import RowLocked
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.rank import rank_of
from headgate.domain.states import Receipt, State
from headgate.domain.timestamps import unix_us
from headgate.store import leases, reads, settle, upkeep, verbs
from headgate.store.connect import Connection, connect
from tests.support import store_calls
from tests.support.epochs import claims, counted, epochs_of
from tests.support.queue import Clock, Queue, stranger
from tests.support.waiting import until_async

SPAWN = multiprocessing.get_context("spawn")


@asynccontextmanager
async def queues(database: str, how_many: int) -> AsyncIterator[list[Queue]]:
    """Queues of one tenant with a connection each; at the end all are closed, and have reported their statistics."""
    async with AsyncExitStack() as stack:
        made: list[Queue] = []
        for number in range(how_many):
            connection = await connect(database, application_name="headgate racer", statement_timeout=None)
            # The first wait at the starting line until the last is there, however long an interpreter takes to start.
            await connection.execute("SET lock_timeout = 0")
            stack.push_async_callback(connection.close)
            made.append(Queue(connection, owner=number + 1))
            await made[-1].topic()
        yield made


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What PostgreSQL has counted in this database since it was made."""

    rollbacks: int
    deadlocks: int


UNHARMED = Damage(rollbacks=0, deadlocks=0)


async def damage(database: str, *, commits: int) -> Damage:
    """The database's own counts, when all other sessions have ended and at least `commits` transactions are in them."""
    async with queues(database, 1) as (queue,):

        async def reported() -> bool:
            others, seen = await queue.db.fetchrow(
                "SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                "           AND pid <> pg_backend_pid() AND backend_type = 'client backend'),"
                "       (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())"
            )
            return others == 0 and seen >= commits

        await until_async(reported, "all sessions have ended and reported")
        rollbacks, deadlocks = await queue.db.fetchrow(
            "SELECT xact_rollback, deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        return Damage(rollbacks=rollbacks, deadlocks=deadlocks)


@asynccontextmanager
async def start_line(starter: Queue, *, racers: int) -> AsyncIterator[None]:
    """Hold back the claims begun inside, in whatever process, until so many stand at the pause lock; then let go."""
    await starter.db.execute("SELECT pg_advisory_lock(4847423, 1)")

    async def all_wait() -> bool:
        waiting: int = await starter.db.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            "   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return waiting == racers

    yield
    await until_async(all_wait, f"{racers} claims wait for the start")
    await starter.db.execute("SELECT pg_advisory_unlock(4847423, 1)")


async def at_once(
    starter: Queue, claimers: list[Queue], claim: Callable[[Queue], Coroutine[Any, Any, Claimed]]
) -> list[Claimed]:
    """Let all claim in the same moment."""
    async with start_line(starter, racers=len(claimers)):
        claims = [asyncio.create_task(claim(claimer)) for claimer in claimers]
    return await asyncio.gather(*claims)


def all_ids(batches: list[Claimed]) -> list[UUID]:
    return [job_id for batch in batches for job_id in batch.ids]


@pytest.mark.req("D15", "P5", "P8", "T16")
@pytest.mark.parametrize("how_many", [2, 8])
async def test_the_batches_of_simultaneous_claims_are_disjoint_and_cut_from_the_top(
    database: str, how_many: int
) -> None:
    dice = random.Random(how_many)
    async with queues(database, how_many + 1) as (starter, *claimers):
        topics = ("mail", "sms", "push")
        jobs = [starter.job(dice.choice(topics), priority=dice.randint(-3, 3)) for _ in range(1_500)]
        await starter.submit(*jobs)
        order = [job.id for job in sorted(jobs, key=lambda job: -(job.priority or 0))]  # stable: FIFO within a priority
        for start in range(0, 1_000, 25 * how_many):
            batches = await at_once(starter, claimers, lambda claimer: claimer.claim(25, *topics))
            assert [len(batch) for batch in batches] == [25] * how_many
            taken = all_ids(batches)
            assert len(set(taken)) == len(taken), "two claimers got the same job"
            assert set(taken) == set(order[start : start + 25 * how_many]), "not the top of the order"
            for batch in batches:
                places = [order.index(job_id) for job_id in batch.ids]
                assert places == sorted(places), "a batch is not in order"


PLANS = {
    "no nested loops": "SET enable_nestloop = off",
    "no index scans": "SET enable_indexscan = off; SET enable_indexonlyscan = off",
    "only sequential scans": "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off",
    "generic plans": "SET plan_cache_mode = force_generic_plan",
    "custom plans": "SET plan_cache_mode = force_custom_plan",
}


@pytest.mark.req("T14")
@pytest.mark.parametrize("plan", PLANS)
async def test_a_claim_never_takes_more_than_it_asked_for_whatever_the_plan(database: str, plan: str) -> None:
    async with queues(database, 5) as (starter, *claimers):
        ids = await starter.add(300)
        for claimer in claimers:
            await claimer.db.execute(PLANS[plan])
        taken: list[UUID] = []
        for _ in range(10):
            batches = await at_once(starter, claimers, lambda claimer: claimer.claim(7))
            assert [len(batch) for batch in batches] == [7, 7, 7, 7]
            taken += all_ids(batches)
        assert sorted(taken) == sorted(ids[: len(taken)])
        running: int = await starter.db.fetchval("SELECT count(*) FROM headgate.jobs WHERE state = 1")
        assert running == len(taken), "a job was taken and given to nobody"


# ------------------------------------------------------------------------------------------------- draining a backlog


async def drain(claimer: Queue, *, batch: int) -> list[tuple[UUID, int]]:
    """Claim and complete until nothing is left; what was delivered, as (job, epoch)."""
    delivered: list[tuple[UUID, int]] = []
    while len(claimed := await claimer.claim(batch)):
        told = list(zip(claimed.ids, claimed.epochs, strict=True))
        delivered += told
        answers = await claimer.settle(*((job_id, epoch, Completed()) for job_id, epoch in told))
        assert all(answer.receipt is Receipt.APPLIED for answer in answers)
    return delivered


async def drain_with_many(database: str, how_many: int, batch: int) -> list[tuple[UUID, int]]:
    # A settle gives up a lock after 100 ms (ADR 20), which is a rollback. A machine that stalls must not bring any.
    waiting = settle.SETTLE.replace(", 100)", ", 0)")
    assert waiting != settle.SETTLE
    with patch.object(settle, "SETTLE", waiting):
        async with queues(database, how_many) as claimers:
            parts = await asyncio.gather(*(drain(claimer, batch=batch) for claimer in claimers))
    return [delivery for part in parts for delivery in part]


def drain_in_this_process(database: str, how_many: int, batch: int) -> list[tuple[UUID, int]]:
    return asyncio.run(drain_with_many(database, how_many, batch))


@pytest.mark.req("D2", "D4", "D15")
async def test_twenty_claimers_on_one_topic_share_the_jobs_without_a_single_conflict(database: str) -> None:
    async with queues(database, 1) as (queue,):
        ids = await queue.add(4_000)
    delivered = await drain_with_many(database, 20, 10)
    assert sorted(counted(delivered)) == sorted((job_id, 1) for job_id in ids), "each job once, each at its first claim"
    assert await damage(database, commits=800) == UNHARMED


@pytest.mark.req("D2", "D15", "T8")
async def test_thirty_two_claimers_in_four_processes_deliver_each_of_fifty_thousand_jobs_once(database: str) -> None:
    async with queues(database, 1) as (queue,):
        ids = [job_id for _ in range(10) for job_id in await queue.add(5_000)]
        loop = asyncio.get_running_loop()
        with ProcessPoolExecutor(3, mp_context=SPAWN) as others:
            async with start_line(queue, racers=32):
                here = asyncio.create_task(drain_with_many(database, 8, 100))
                elsewhere = [loop.run_in_executor(others, drain_in_this_process, database, 8, 100) for _ in range(3)]
            parts = await asyncio.gather(here, *elsewhere)
    assert all(parts), "a process got no job: the race was none"
    delivered = [delivery for part in parts for delivery in part]
    assert len(delivered) == len(ids)
    assert sorted(counted(delivered)) == sorted((job_id, 1) for job_id in ids)
    assert await damage(database, commits=500) == UNHARMED


# --------------------------------------------------------------------------------------- everything at the same time


BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom"))
FATAL = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
AT_ONCE, SOON = timedelta(0), timedelta(milliseconds=1)
MAX_ATTEMPTS = 3
LEASE = timedelta(milliseconds=20)  # about as long as a batch takes: some are reaped while they are settled


def outcome_of(job_id: UUID, epoch: int) -> Outcome | None:
    """What this attempt comes to, None for a worker that never reports. The same in every process."""
    odds: list[tuple[int, Outcome | None]] = [
        (10, BOOM),
        (13, Nack(delay=AT_ONCE, reason="not now")),
        (16, Nack(delay=SOON, reason="limited")),
        (20, Abandon()),
        (23, Snooze(delay=SOON)),
        (26, FATAL),
        (30, None),
    ]
    roll = random.Random(f"{job_id}:{epoch}").randrange(100)
    return next((outcome for below, outcome in odds if roll < below), Completed())


@dataclass(slots=True)
class Log:
    """What one worker saw."""

    delivered: list[tuple[UUID, int, int]] = field(default_factory=list)  # job, epoch, attempt
    ended: list[tuple[UUID, State | None]] = field(default_factory=list)  # what an applied outcome led to
    receipts: Counter[Receipt] = field(default_factory=Counter)
    repeats: Counter[Receipt] = field(default_factory=Counter)
    calls: int = 0
    lock_timeouts: int = 0


async def work(worker: Queue, log: Log) -> None:
    """Claim and settle until no job is left alive."""

    async def next_batch() -> Claimed | bool:
        claimed = await worker.claim(100, lease=LEASE, workers=[f"worker-{worker.owner}"])
        log.calls += 1
        # With nothing to claim: is there anything that may still come back?
        return claimed if len(claimed) else not await worker.db.fetchval("SELECT EXISTS (SELECT FROM headgate.jobs)")

    while not isinstance(claimed := await until_async(next_batch, "a job falls due or all have ended"), bool):
        log.delivered += zip(claimed.ids, claimed.epochs, claimed.attempts, strict=True)
        found = [
            (job_id, epoch, outcome_of(job_id, epoch))
            for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True)
        ]
        told = [(job_id, epoch, outcome) for job_id, epoch, outcome in found if outcome is not None]
        answers = await worker.settle(*told)
        log.calls += 1
        log.receipts.update(answer.receipt for answer in answers)
        log.ended += [
            (job_id, answer.state)
            for (job_id, _, _), answer in zip(told, answers, strict=True)
            if answer.receipt is Receipt.APPLIED
        ]
        # A worker that lost the reply says some of it again.
        log.repeats.update(answer.receipt for answer in await worker.settle(*told[::10]))
        log.lock_timeouts = worker.lock_timeouts


async def work_with_many(database: str, how_many: int) -> list[Log]:
    logs = [Log() for _ in range(how_many)]
    async with queues(database, how_many) as workers:
        await asyncio.gather(*(work(worker, log) for worker, log in zip(workers, logs, strict=True)))
    return logs


def work_in_this_process(database: str, how_many: int) -> list[Log]:
    return asyncio.run(work_with_many(database, how_many))


async def keep(done: asyncio.Event, step: Callable[[], Awaitable[object]]) -> int:
    """Repeat a background verb until the work is over; how often it was called."""
    for calls in count():
        if done.is_set():
            return calls
        await step()
        await asyncio.sleep(0)
    raise AssertionError


@pytest.mark.req("D2")
async def test_nothing_is_lost_or_doubled_when_everything_happens_at_the_same_time(database: str) -> None:
    dice = random.Random(7)
    policy = RetryPolicy.fixed(timedelta(milliseconds=1))
    async with queues(database, 7) as (queue, reaper, promoter, renewer, canceller, mover, folder):
        tenant = await queue.tenant_no()
        ids: list[UUID] = []
        for priority in (0, 5, -5, 1):
            ids += await queue.add(3_000, priority=priority, max_attempts=MAX_ATTEMPTS, policy=policy)

        async def watchdog_gave_up() -> bool:
            return reaper.lock_timeouts > 0

        async def hold_archive() -> None:
            """Keep outcomes from being written until the watchdog, too, has given up a lock."""
            async with stranger(database) as other:
                await other.execute("LOCK TABLE ONLY headgate.archive IN SHARE MODE")
                await until_async(watchdog_gave_up, "the watchdog gives up a lock")

        async def reap_some() -> None:
            # As an instance does. A lock that takes 100 ms may be that of a session that adds pages to a table, and was
            # stopped by a busy machine.
            try:
                await leases.reap(reaper.db, limit=200)
            except RowLocked:
                reaper.lock_timeouts += 1
                _, problems = await leases.reap_each(reaper.db, limit=200)
                assert all(problem.startswith("55P03") for *_, problem in problems), problems

        async def renew_some() -> None:
            some = []
            for nth in (1, 2):
                picked = dice.sample(ids, 20)
                epochs = await epochs_of(renewer.db, picked, nth)
                some.append(leases.Held(tenant_no=tenant, ids=picked, epochs=epochs, lease_ms=20))
            await leases.renew(renewer.db, some)

        async def cancel_some() -> None:
            await verbs.cancel(canceller.db, tenant, dice.sample(ids, 5))

        async def move_some() -> None:
            await verbs.reprioritise(mover.db, tenant, dice.sample(ids, 20), priority=dice.randint(-5, 5))

        with ProcessPoolExecutor(1, mp_context=SPAWN) as other:
            async with start_line(queue, racers=8):
                here = asyncio.create_task(work_with_many(database, 4))
                elsewhere = asyncio.get_running_loop().run_in_executor(other, work_in_this_process, database, 4)
            done = asyncio.Event()
            background = [
                asyncio.create_task(keep(done, step))
                for step in (
                    reap_some,
                    lambda: store_calls.promote(promoter.db, limit=200),
                    renew_some,
                    cancel_some,
                    move_some,
                    lambda: upkeep.fold_flows(folder.db),
                )
            ]
            working = asyncio.gather(here, elsewhere, hold_archive())
            # A deadlock, or any other error, of a background verb is seen here, and not as work that never ends.
            all_of_it: list[asyncio.Future[Any]] = [working, *background]
            await asyncio.wait(all_of_it, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await asyncio.gather(*(verb for verb in background if verb.done()))
            logs_here, logs_elsewhere, _ = await working
            logs = logs_here + logs_elsewhere
            done.set()
            calls = await asyncio.gather(*background)

        assert all(calls)
        assert all(log.delivered for log in logs), "a worker got nothing: the race was none"
        finished = await queue.db.fetch("SELECT id, state, attempt, epoch FROM headgate.archive")
        assert await queue.db.fetchval("SELECT count(*) FROM headgate.jobs") == 0
        assert sorted(row["id"] for row in finished) == sorted(ids), "every job ends, and ends once"

        # Each epoch of each job was delivered to exactly one worker, and no job ran more often than it may.
        delivered = sorted((job_id, epoch) for log in logs for job_id, epoch, _ in log.delivered)
        assert delivered == sorted(
            (row["id"], epoch)
            for row in finished
            for epoch in range(row["epoch"] - claims(row["epoch"]) + 1, row["epoch"] + 1)
        )
        assert max(attempt for log in logs for *_, attempt in log.delivered) == MAX_ATTEMPTS
        assert max(row["attempt"] for row in finished) == MAX_ATTEMPTS

        # What the workers were notified is what the rows say. The rest died of expired leases, or was cancelled.
        said = Counter(state for log in logs for _, state in log.ended)
        states = Counter(State(row["state"]) for row in finished)
        assert said[State.COMPLETED] == states[State.COMPLETED]
        assert said[State.DEAD] <= states[State.DEAD]
        assert states[State.CANCELLED] > 0
        receipts: Counter[Receipt] = sum((log.receipts for log in logs), Counter())
        assert set(receipts) <= {Receipt.APPLIED, Receipt.STALE}, "an outcome sent once was taken for a repeat"
        repeats: Counter[Receipt] = sum((log.repeats for log in logs), Counter())
        assert set(repeats) <= {Receipt.DUPLICATE, Receipt.STALE}, "an outcome sent twice was applied twice"
        assert repeats[Receipt.DUPLICATE] > 0

        # The counts for people agree, folded halfway through or not.
        assert await reads.counts(queue.db, tenant) == {(await queue.topic()).no: dict(states)}
    # Rolled back is exactly what gave up a lock after 100 ms and was tried again (ADR 20).
    given_up = reaper.lock_timeouts + sum(log.lock_timeouts for log in logs)
    assert await damage(database, commits=sum(log.calls for log in logs)) == replace(UNHARMED, rollbacks=given_up)


# ------------------------------------------------------------------------------------------------- a reference sort


AGEING_STEP = timedelta(seconds=1)
STEPS = {"strict-a": None, "strict-b": None, "ageing": AGEING_STEP}
NOON = datetime(2025, 11, 15, 12, tzinfo=UTC)
priorities = st.integers(-3, 3) | st.sampled_from([-(2**31), -10, 10, 2**31 - 1])
a_flush = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), priorities), min_size=1, max_size=15)
tenants = count(1)


@pytest.fixture
async def clock(db: Connection) -> Clock:
    return await Clock.install(db, NOON)


@pytest.mark.req("P7", "P15", "T17")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flushes=st.lists(st.tuples(a_flush, st.integers(0, 5_000)), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
async def test_claims_over_many_topics_come_in_the_order_of_a_reference_sort(
    db: Connection, clock: Clock, flushes: list[tuple[list[tuple[str, int]], int]], sizes: list[int]
) -> None:
    queue = Queue(db, tenant=f"tenant-{next(tenants)}")  # the tests' database is one for all examples
    for name, step in STEPS.items():
        topic = await queue.topic(name)
        await db.execute("UPDATE headgate.topics SET ageing_step_us = $2 WHERE topic_no = $1", topic.no, _us(step))
    await queue.names.refresh(db)
    reference: list[tuple[int, int, UUID]] = []
    for rows, wait_ms in flushes:
        jobs = [queue.job(topic, priority=priority) for topic, priority in rows]
        await queue.submit(*jobs)
        for place, job in enumerate(jobs, start=1):
            rank_class, offset = rank_of(job.priority, STEPS[job.topic])
            reference.append((rank_class, unix_us(clock.now) + place + offset, job.id))
        await clock.advance(milliseconds=wait_ms)
    claimed: list[UUID] = []
    for turn in count():
        batch = await queue.claim(sizes[turn % len(sizes)], *STEPS)
        claimed += batch.ids
        if not len(batch):
            break
    assert claimed == [job_id for *_, job_id in sorted(reference)]


def _us(step: timedelta | None) -> int | None:
    return None if step is None else step // timedelta(microseconds=1)
