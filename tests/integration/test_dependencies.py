"""Jobs that wait for jobs, against a real PostgreSQL: who is freed, cancelled or refused, and every race in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.dependencies import Unique
from headgate.domain.errors import DependencyCycle, HeadgateError, NotFound, TooLarge
from headgate.domain.ids import JobId
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Outcome
from headgate.domain.states import EventKind, Receipt, State, SubmitReceipt
from headgate.store import dependencies, reads, verbs
from headgate.store.connect import Connection, connect
from headgate.store.flush import fill
from headgate.store.partitions import ensure_partitions
from headgate.store.submit import submit
from tests.support.queue import Clock, Queue, new_id
from tests.support.store_calls import drop_expired

DIES = Failed(error=ErrorInfo(type="ValueError", message="boom"), permanent=True)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def free(queue: Queue) -> list[UUID]:
    """Decide everything that was noted, cascades included."""
    freed: list[UUID] = []
    more = True
    while more:
        found, more = await dependencies.unblock_ready(queue.db)
        freed += [job_id for _, _, job_id in found]
    return freed


async def state(queue: Queue, job_id: UUID) -> State:
    return (await reads.get(queue.db, await queue.tenant_no(), job_id)).state


async def run(queue: Queue, *ids: UUID, outcome: Outcome | None = None) -> None:
    """Claim everything there is and end these."""
    claimed = await queue.claim(1000)
    epochs = dict(zip(claimed.ids, claimed.epochs, strict=True))
    await queue.settle(*((job_id, epochs[job_id], outcome or Completed()) for job_id in ids))


async def refused(queue: Queue, *jobs: Submission) -> list[HeadgateError | None]:
    flush = await fill(queue.db, queue.names, jobs)
    answers = await submit(queue.db, flush)
    return [answers[place].error if place in answers else None for place in range(len(flush))]


async def test_a_job_waits_until_all_it_depends_on_have_succeeded(queue: Queue) -> None:
    parents = await queue.add(3)
    (child,) = await queue.add(1, depends_on=parents)
    assert await state(queue, child) is State.BLOCKED
    await run(queue, *parents[:2])
    assert await free(queue) == []
    assert await state(queue, child) is State.BLOCKED
    await queue.settle((parents[2], 1, Completed()))
    assert await free(queue) == [child]
    assert (await queue.claim()).ids == (child,)
    history = await reads.events(queue.db, await queue.tenant_no(), child)
    assert [(event.kind, event.state, event.reason) for event in history] == [
        (EventKind.BLOCKED, State.BLOCKED, "waits for 3 other jobs"),
        (EventKind.UNBLOCKED, State.PENDING, "all it waited for has been done"),
    ]
    counts = (await reads.counts(queue.db, await queue.tenant_no()))[(await queue.topic()).no]
    assert counts == {State.COMPLETED: 3, State.RUNNING: 1}


@pytest.mark.parametrize(
    ("needs", "policy", "ending", "becomes"),
    [
        ("succeeded", "cancel", "completed", State.PENDING),
        ("succeeded", "cancel", "dead", State.CANCELLED),
        ("succeeded", "cancel", "cancelled", State.CANCELLED),
        ("succeeded", "ignore", "dead", State.PENDING),
        ("succeeded", "ignore", "cancelled", State.PENDING),
        ("succeeded", "block", "dead", State.BLOCKED),
        ("succeeded", "block", "cancelled", State.BLOCKED),
        ("ended", "cancel", "completed", State.PENDING),
        ("ended", "cancel", "dead", State.PENDING),
        ("ended", "cancel", "cancelled", State.PENDING),
    ],
)
@pytest.mark.parametrize("before", [False, True], ids=["parent ends later", "parent ended before"])
async def test_what_a_parents_end_means_for_its_child(
    queue: Queue, needs: str, policy: str, ending: str, becomes: State, before: bool
) -> None:
    (parent,) = await queue.add(topic="parents")
    tenant = await queue.tenant_no()

    async def end() -> None:
        if ending == "cancelled":
            await verbs.cancel(queue.db, tenant, [parent])
        else:
            await queue.claim(1, "parents")
            await queue.settle((parent, 1, Completed() if ending == "completed" else DIES))

    if before:
        await end()
    (child,) = await queue.add(1, depends_on=[parent], needs=needs, on_parent_failure=policy)
    if not before:
        assert await free(queue) == []
        await end()
    await free(queue)
    assert await state(queue, child) is becomes
    if becomes is State.CANCELLED:
        last = (await reads.events(queue.db, tenant, child))[-1]
        assert (last.kind, last.reason) == (EventKind.CANCELLED, f"it waited for {parent}, which is {ending}")


async def test_who_waits_on_runs_once_the_parent_was_redriven_and_succeeds(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    tenant = await queue.tenant_no()
    (early,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, DIES))
    (late,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")  # it is dead already
    assert await free(queue) == []
    await verbs.redrive(queue.db, tenant, [parent])
    await queue.claim(1, "parents")
    await queue.settle((parent, 2, Completed()))
    assert set(await free(queue)) == {early, late}


async def test_a_discarded_parent_leaves_no_child_waiting_for_ever(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    (child,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")
    tenant = await queue.tenant_no()
    await verbs.cancel(queue.db, tenant, [parent])
    await free(queue)
    assert await state(queue, child) is State.BLOCKED
    await verbs.discard(queue.db, tenant, [parent])
    await free(queue)
    assert await state(queue, child) is State.CANCELLED


async def test_a_dropped_day_leaves_no_rows_and_no_waiting_children(queue: Queue) -> None:
    clock, tenant = await Clock.install(queue.db), await queue.tenant_no()
    dead, fine = await queue.add(2, topic="parents")
    (done,) = await queue.add(1, depends_on=[fine], unique=Unique(key="k"))
    (child,) = await queue.add(1, depends_on=[dead, fine], on_parent_failure="block")
    await queue.claim(2, "parents")
    await queue.settle((dead, 1, DIES), (fine, 1, Completed()))
    assert await free(queue) == [done]
    await run(queue, done)
    await clock.advance(days=40)
    await ensure_partitions(queue.db)
    assert await drop_expired(queue.db, keep=timedelta(days=2))
    await free(queue)
    assert await state(queue, child) is State.CANCELLED
    assert (await reads.events(queue.db, tenant, child))[-1].reason == f"it waited for {dead}, which is gone"
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.unique_jobs") == 0
    assert await queue.db.fetch("SELECT child_id, parent_id FROM headgate.job_dependencies") == [(child, dead)]


async def test_a_cancelled_parent_cancels_down_the_line(queue: Queue) -> None:
    (first,) = await queue.add()
    line = [first]
    for _ in range(5):
        line += await queue.add(1, depends_on=[line[-1]])
    await verbs.cancel(queue.db, await queue.tenant_no(), [first], who="ann", reason="wrong file")
    await free(queue)
    assert {await state(queue, job_id) for job_id in line} == {State.CANCELLED}


async def test_the_end_of_a_parent_with_very_many_children_is_worked_off_in_parts(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    children: list[JobId] = []
    for _ in range(3):
        children += await queue.add(2_000, depends_on=[parent])
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, Completed()))
    # The flush has noted one end, not six thousand children.
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.dependency_checks") == 1
    assert sorted(await free(queue)) == sorted(children)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.dependency_checks") == 0


async def test_a_freed_job_keeps_its_delay_its_place_and_its_priority(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    (older,) = await queue.add(1, depends_on=[parent])
    (later,) = await queue.add(1, depends_on=[parent], delay=timedelta(hours=1))
    (urgent,) = await queue.add(1, depends_on=[parent], priority=9)
    (younger,) = await queue.add()
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, Completed()))
    assert set(await free(queue)) == {older, urgent}
    assert await state(queue, later) is State.SCHEDULED
    assert (await queue.claim()).ids == (urgent, older, younger)


async def test_a_cancelled_child_stays_cancelled_and_a_redriven_one_waits_no_more(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    (child,) = await queue.add(1, depends_on=[parent])
    tenant = await queue.tenant_no()
    await verbs.cancel(queue.db, tenant, [child])
    await verbs.redrive(queue.db, tenant, [child])
    assert await state(queue, child) is State.PENDING
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, Completed()))
    assert await free(queue) == []
    assert await state(queue, child) is State.PENDING


async def test_a_repeated_submit_of_a_waiting_job_is_the_same_job(queue: Queue) -> None:
    parents = await queue.add(2)
    job = queue.job(depends_on=parents, id=new_id())
    await queue.submit(job)
    (again,) = await queue.submit(job)
    assert (again.id, again.receipt) == (job.id, SubmitReceipt.DUPLICATE)
    await run(queue, *parents)
    assert await free(queue) == [job.id]
    claimed = await queue.claim()
    await queue.settle((job.id, claimed.epochs[0], Completed()))
    (again,) = await queue.submit(job)  # finished by now
    assert (again.id, again.receipt) == (job.id, SubmitReceipt.DUPLICATE)
    assert await state(queue, job.id) is State.COMPLETED


async def test_a_keyed_duplicate_leaves_no_links_behind(queue: Queue) -> None:
    (parent,) = await queue.add()
    (first,) = await queue.submit(queue.job(key="once"))
    (second,) = await queue.submit(queue.job(key="once", depends_on=[parent], unique=None))
    assert (second.id, second.receipt) == (first.id, SubmitReceipt.DUPLICATE)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_dependencies") == 0


# ---------------------------------------------------------------- refused


async def test_unknown_and_foreign_parents_are_refused_alike(queue: Queue) -> None:
    stranger = Queue(queue.db, tenant="other")
    (foreign,) = await stranger.add()
    unknown = new_id()
    one, two, fine = await refused(
        queue, queue.job(depends_on=[unknown]), queue.job(depends_on=[foreign]), queue.job(tags=["fine"])
    )
    assert isinstance(one, NotFound)
    assert isinstance(two, NotFound)
    assert (str(one), str(two)) == (f'no parent job "{unknown}"', f'no parent job "{foreign}"')
    assert fine is None
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_dependencies") == 0


async def test_jobs_that_wait_for_each_other_are_refused(queue: Queue) -> None:
    a, b, c, outside = (new_id() for _ in range(4))
    answers = await refused(
        queue,
        queue.job(id=a, depends_on=[b]),
        queue.job(id=b, depends_on=[c]),
        queue.job(id=c, depends_on=[a]),
        queue.job(id=outside, tags=["fine"]),
    )
    assert [type(answer) for answer in answers] == [DependencyCycle] * 3 + [type(None)]
    with pytest.raises(DependencyCycle, match="cannot wait for itself"):
        queue.job(id=a, depends_on=[a])


async def test_parents_and_children_may_come_in_one_flush_in_any_order(queue: Queue) -> None:
    a, b, c = (new_id() for _ in range(3))
    assert (
        await refused(queue, queue.job(id=c, depends_on=[b, a]), queue.job(id=b, depends_on=[a]), queue.job(id=a))
        == [None] * 3
    )
    for job_id in (a, b, c):
        claimed = await queue.claim()
        assert claimed.ids == (job_id,)
        await queue.settle((job_id, 1, Completed()))
        await free(queue)


async def test_too_many_parents_are_refused_with_the_way_out(queue: Queue) -> None:
    with pytest.raises(TooLarge, match=r"depends_on: 1001 jobs .* limit of 1000 jobs; submit them as a batch"):
        queue.job(depends_on=[new_id() for _ in range(1001)])


# ---------------------------------------------------------------- races


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
    """Several connections submit children, end parents and free, all at once: nothing waits for ever or runs early."""
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


# ---------------------------------------------------------------- against a model


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


# ---------------------------------------------------------------------- no waiting for locks, and the last net


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
