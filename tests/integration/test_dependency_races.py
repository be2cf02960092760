"""Dependencies under concurrency: ends, submits and locks at the same time, random graphs, and the sweep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from headgate.domain.dependencies import Unique
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Completed
from headgate.domain.states import Receipt, State, SubmitReceipt
from headgate.store import dependencies, verbs
from headgate.store.connect import Connection, connect
from tests.integration.test_dependencies import DIES, free, run, state
from tests.support.queue import Queue, new_id


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


@asynccontextmanager
async def rivals(dsn: str, count: int) -> AsyncIterator[list[Queue]]:
    connections = [await connect(dsn, application_name="rival") for _ in range(count)]
    try:
        yield [Queue(connection) for connection in connections]
    finally:
        for connection in connections:
            await connection.close()


async def blocked_on_a_lock(db: Connection) -> bool:
    return bool(
        await db.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await check():
            await asyncio.sleep(0.005)


async def test_two_that_end_the_last_two_parents_at_once_free_the_child(queue: Queue, database: str) -> None:
    async with rivals(database, 2) as (one, two):
        a, b = await queue.add(2)
        (child,) = await queue.add(1, depends_on=[a, b])
        await queue.claim()
        async with one.db.transaction():
            await one.settle((a, 1, Completed()))
            await two.settle((b, 1, Completed()))  # does not wait for the other
            assert await free(two) == []  # the first parent's end is not committed
        assert await free(queue) == [child]


@pytest.mark.parametrize("parent_first", [True, False])
async def test_a_parent_that_ends_while_its_child_is_submitted_is_not_missed(
    queue: Queue, database: str, parent_first: bool
) -> None:
    async with rivals(database, 2) as (one, two):
        (parent,) = await queue.add(topic="parents")
        await queue.claim(1, "parents")
        child = new_id()

        async def settle(who: Queue) -> None:
            await who.settle((parent, 1, Completed()))

        async def add(who: Queue) -> None:
            await who.submit(who.job(id=child, new_id=True, depends_on=[parent]))

        first, second = (settle, add) if parent_first else (add, settle)
        async with one.db.transaction():
            await first(one)
            waiting = asyncio.create_task(second(two))
            await until(lambda: blocked_on_a_lock(queue.db))
        await waiting
        assert await free(queue) == [child]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_resend_that_meets_its_first_copy_takes_nothing_away_from_it(
    queue: Queue, database: str, committed: bool
) -> None:
    async with rivals(database, 2) as (one, two):
        (parent,) = await queue.add()
        words = {"id": new_id(), "depends_on": [parent], "unique": Unique(key="k")}
        first = one.db.transaction()
        await first.start()
        await one.submit(one.job(new_id=True, **words))
        resend = asyncio.create_task(two.submit(two.job(**words)))
        await until(lambda: blocked_on_a_lock(queue.db))
        await (first.commit() if committed else first.rollback())
        (answer,) = await resend
        assert answer.receipt is (SubmitReceipt.DUPLICATE if committed else SubmitReceipt.CREATED)
        await run(queue, parent)
        assert await free(queue) == [words["id"]]
        assert (await queue.submit(queue.job(unique=Unique(key="k"))))[0].id == words["id"]


async def test_a_job_submitted_while_others_are_unblocked_is_claimable_at_once(queue: Queue, database: str) -> None:
    """It is due by a clock that was read later than that of the call which unblocks it."""
    (parent,) = await queue.add(1)
    await run(queue, parent)
    async with rivals(database, 2) as (one, two):
        async with one.db.transaction():
            await one.db.execute("LOCK TABLE headgate.dependency_checks IN ACCESS EXCLUSIVE MODE")
            unblocking = asyncio.create_task(dependencies.unblock_ready(two.db))
            await until(lambda: blocked_on_a_lock(queue.db))
            (child,) = await one.add(1, depends_on=[parent])
        unblocked, _ = await unblocking
    assert [job_id for _, _, job_id in unblocked] == [child]
    assert await state(queue, child) is State.PENDING


UNFINISHED = (
    "SELECT id, state, flags, epoch, attempt, owner, lease_until FROM headgate.jobs",
    "SELECT * FROM headgate.job_dependencies WHERE met <> 1",
    "SELECT * FROM headgate.dependency_checks",
    """SELECT application_name, state, wait_event_type, wait_event, xact_start, left(query, 60) FROM pg_stat_activity
        WHERE datname = current_database()""",
)
"""What a test that did not end in time shows of the database."""


async def test_random_graphs_end_with_every_job_done_exactly_once(queue: Queue, database: str) -> None:
    """Several connections submit children, end parents and free, all at once: nothing waits forever or runs early."""
    dice = Random(20261115)
    ended: dict[JobId, State] = {}
    parents_of: dict[JobId, list[JobId]] = {}
    submitted = 0
    async with rivals(database, 5) as (*workers, producer, freer):

        async def produce() -> None:
            nonlocal submitted
            known: list[JobId] = []
            for _ in range(120):
                picks = dice.sample(known[-12:], k=min(len(known[-12:]), dice.choice((0, 1, 1, 2, 4))))
                job_id = new_id()
                parents_of[job_id] = picks
                await producer.submit(
                    producer.job(id=job_id, new_id=True, depends_on=picks, needs=dice.choice(("succeeded", "ended")))
                )
                known.append(job_id)
                submitted += 1

        async def work(who: Queue) -> None:
            while len(ended) < 120:
                claimed = await who.claim(3)
                for job_id in claimed.ids:
                    assert all(parent in ended for parent in parents_of[JobId(job_id)]), "ran before its parents"
                for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True):
                    assert JobId(job_id) not in ended, "ran twice"
                    # Before the call: a child may be claimed by another before this one hears of its commit.
                    ended[JobId(job_id)] = State.COMPLETED
                    (answer,) = await who.settle((job_id, epoch, Completed()))
                    assert answer.receipt is Receipt.APPLIED
                await asyncio.sleep(0)

        async def release() -> None:
            while len(ended) < 120:
                await dependencies.unblock_ready(freer.db)
                await asyncio.sleep(0)

        try:
            async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
                tasks.create_task(produce())
                tasks.create_task(release())
                for worker in workers:
                    tasks.create_task(work(worker))
        except TimeoutError:
            left = [await queue.db.fetch(f"SELECT t::text FROM ({query}) AS t LIMIT 20") for query in UNFINISHED]
            pytest.fail(f"{submitted} submitted, {len(ended)} ended; left: {left}")
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.jobs") == 0
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_dependencies WHERE met <> 1") == 0


async def test_the_hot_path_neither_reads_nor_writes_what_belongs_to_dependencies(queue: Queue) -> None:
    await queue.add(1)  # the names are known now
    async with queue.db.transaction():  # whose own statistics are read at its end
        ids = await queue.add(100)
        await run(queue, *ids)
        touched = await queue.db.fetch(
            """SELECT relname FROM pg_stat_xact_user_tables WHERE schemaname = 'headgate'
                AND relname IN ('unique_jobs', 'job_dependencies', 'batches', 'batch_jobs', 'dependency_checks')
                AND n_tup_ins + n_tup_upd + n_tup_del + seq_scan + coalesce(idx_scan, 0) > 0"""
        )
    assert touched == []


class Model:
    """The rules of dependencies in a few lines: what every job's state must be once everything noted was decided."""

    def __init__(self) -> None:
        self.states: dict[JobId, State] = {}
        self.waits: set[JobId] = set()
        self.edges: dict[tuple[JobId, JobId], list[Any]] = {}  # (parent, child) -> needs, policy, met

    def submit(self, job_id: JobId, parents: list[JobId], needs: str, policy: str) -> None:
        for parent in parents:
            self.edges[parent, job_id] = [needs, policy, None]
            if self.states[parent].is_final:
                self._meet(parent, job_id)
        self.states[job_id] = State.BLOCKED if parents else State.PENDING
        if parents:
            self.waits.add(job_id)

    def end(self, job_id: JobId, how: State) -> None:
        self.states[job_id] = how
        self.waits.discard(job_id)
        for parent, child in self.edges:
            if parent == job_id:
                self._meet(parent, child)

    def redrive(self, job_id: JobId) -> None:
        self.states[job_id] = State.PENDING

    def _meet(self, parent: JobId, child: JobId) -> None:
        edge = self.edges[parent, child]
        needs, policy, met = edge
        if met is None:
            good = self.states[parent] is State.COMPLETED or needs == "ended" or policy == "ignore"
            edge[2] = True if good else None if policy == "block" else False

    def free(self) -> None:
        while True:
            for child in sorted(self.waits):
                mets = [edge[2] for (_, mine), edge in self.edges.items() if mine == child]
                if False in mets:
                    self.end(child, State.CANCELLED)
                    break
                if None not in mets:
                    self.waits.discard(child)
                    self.states[child] = State.PENDING
                    break
            else:
                return


@pytest.mark.parametrize("seed", range(4))
async def test_any_history_leaves_every_job_where_the_model_has_it(queue: Queue, seed: int) -> None:
    dice, model, tenant = Random(seed), Model(), await queue.tenant_no()
    for _ in range(60):
        known = list(model.states)
        finished = [job_id for job_id in known if model.states[job_id].is_final]
        queued = [job_id for job_id in known if model.states[job_id].is_queued]
        match dice.choice(["submit", "submit", "run", "run", "run", "cancel", "redrive"]):
            case "submit":
                parents = dice.sample(known, k=min(len(known), dice.choice((0, 1, 2, 3))))
                words = {
                    "needs": dice.choice(("succeeded", "ended")),
                    "on_parent_failure": dice.choice(("cancel", "ignore", "block")),
                }
                (job_id,) = await queue.add(1, depends_on=parents, **words)
                model.submit(job_id, parents, words["needs"], words["on_parent_failure"])
            case "run":
                claimed = await queue.claim(1)
                for one, epoch in zip(claimed.ids, claimed.epochs, strict=True):
                    good = dice.random() < 0.6
                    assert model.states[JobId(one)] is State.PENDING
                    await queue.settle((one, epoch, Completed() if good else DIES))
                    model.end(JobId(one), State.COMPLETED if good else State.DEAD)
            case "cancel" if queued:
                await verbs.cancel(queue.db, tenant, [job_id := dice.choice(queued)])
                model.end(job_id, State.CANCELLED)
            case "redrive" if finished:
                await verbs.redrive(queue.db, tenant, [job_id := dice.choice(finished)])
                model.redrive(job_id)
        await free(queue)
        model.free()
        assert {job_id: await state(queue, job_id) for job_id in model.states} == model.states


async def test_a_locked_child_delays_no_other_and_is_unblocked_when_the_lock_ends(queue: Queue, database: str) -> None:
    (parent,) = await queue.add()
    locked, other = [await queue.add(depends_on=[parent]) for _ in range(2)]
    foreign = await connect(database, application_name="headgate test")
    try:
        holding = foreign.transaction()
        await holding.start()
        await foreign.execute("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", locked[0])
        await run(queue, parent)
        # No call waits for the lock; and once the other is decided, asking again at once would free nothing.
        told = [(await asyncio.wait_for(dependencies.unblock_ready(queue.db), 5))[1] for _ in range(3)]
        assert told == [True, False, False]
        assert await state(queue, other[0]) is State.PENDING
        assert await state(queue, locked[0]) is State.BLOCKED
        await holding.rollback()
    finally:
        foreign.terminate()
    assert await free(queue) == locked
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.dependency_checks") == 0


async def test_the_sweep_mends_waits_that_are_over_and_leaves_the_others_alone(queue: Queue) -> None:
    ended, dead, alive, gone = await queue.add(4)
    told = await queue.add(depends_on=[ended])
    in_vain = await queue.add(depends_on=[dead])
    for_nothing = await queue.add(depends_on=[gone])
    waiting = [
        *await queue.add(depends_on=[alive]),
        *await queue.add(depends_on=[dead], on_parent_failure="block"),
        *await queue.add(depends_on=[ended, alive]),
    ]
    claimed = await queue.claim(10)
    epochs = dict(zip(claimed.ids, claimed.epochs, strict=True))
    await queue.settle((ended, epochs[ended], Completed()), (dead, epochs[dead], DIES), (gone, epochs[gone], DIES))
    assert (await dependencies.mend_waits(queue.db))[1] == [], "what is noted needs no mending"
    # What a bug would leave behind: ends that were not noted, and a parent that is nowhere.
    await queue.db.execute("DELETE FROM headgate.dependency_checks")
    await queue.db.execute("UPDATE headgate.job_dependencies SET met = 0 WHERE parent_id = $1", ended)
    await queue.db.execute("DELETE FROM headgate.archive WHERE id = $1", gone)
    place, mended = dependencies.BEGINNING, []
    for _ in range(10):
        place, some = await dependencies.mend_waits(queue.db, place, limit=2)
        mended += some
    assert len(mended) == 4  # one of them of a child that waits for another parent besides
    assert await free(queue) == told
    assert [await state(queue, job) for (job,) in (in_vain, for_nothing)] == [State.CANCELLED] * 2
    assert {await state(queue, job) for job in waiting} == {State.BLOCKED}
    assert (await dependencies.mend_waits(queue.db))[1] == []
