"""Another open transaction holds an id or a key: only the callers that send that id or key wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from headgate.dispatch import locked as waiting
from headgate.dispatch import submits
from headgate.domain.errors import OutcomeUnknown, RowLocked
from headgate.domain.ids import TenantName, TopicName
from headgate.domain.jobs import Submission, SubmitAnswer
from headgate.domain.outcomes import Completed
from headgate.domain.states import State, SubmitReceipt
from headgate.store import submit as store_submit
from headgate.store.connect import Connection
from tests.integration.test_submit_claim import waiting as known_to_wait
from tests.support.dispatch_waits import SOON, soon
from tests.support.dispatching import Instance
from tests.support.queue import Queue
from tests.support.watched_store import Hold, failing_with

pytestmark = pytest.mark.usefixtures("known_names")
CREATED: Mapping[int, SubmitAnswer] = {}
Answers = Mapping[int, SubmitAnswer]


@pytest.fixture
async def known_names(db: Connection) -> None:
    """Else the first transaction to use a name would hold that, too."""
    await Queue(db).topic()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not turn "not done yet" into an error. Tests of the error set less themselves."""
    monkeypatch.setattr(store_submit, "_SEARCH_SECONDS", 60.0)
    monkeypatch.setattr(waiting, "GIVE_UP_SECONDS", 60.0)
    monkeypatch.setattr(submits, "GIVE_UP_SECONDS", 60.0)


class Foreign:
    """The open transaction of an application; one at a time."""

    def __init__(self, db: Connection) -> None:
        self.db = db
        self._transaction = db.transaction()

    async def holds(self, *, ids: Sequence[UUID] = (), keys: Sequence[str] = ()) -> list[UUID]:
        await self._transaction.start()
        submit = "SELECT headgate.submit('mail', 'x'::bytea, tenant => 'acme', "
        made = [await self.db.fetchval(submit + "id => $1::uuid)", job_id) for job_id in ids]
        return made + [await self.db.fetchval(submit + "key => $1::text)", key) for key in keys]

    async def ends(self, *, commits: bool) -> None:
        await (self._transaction.commit() if commits else self._transaction.rollback())


def job(one: Instance, **options: Any) -> Submission:
    values: dict[str, Any] = {"id": one.ids.make(1)[0], "payload": b"x", "new_id": "id" not in options} | options
    return Submission(tenant=TenantName("acme"), topic=TopicName("mail"), **values)


async def send(one: Instance, *jobs: Submission) -> Answers:
    return await one.submitter.submit(await one.store.fill(jobs), size=200 * len(jobs))


async def answer(task: asyncio.Task[Answers]) -> Answers:
    return await asyncio.wait_for(asyncio.shield(task), SOON.total_seconds())


@asynccontextmanager
async def one_flush(one: Instance) -> AsyncIterator[None]:
    """What is sent in here is one flush."""
    hold = one.store.before["submit"] = Hold()
    first = asyncio.create_task(send(one, job(one)))
    await hold.reached()
    yield
    await soon(lambda: one.submitter.writer.waiting_rows, "the next flush is queued")
    del one.store.before["submit"]
    hold.release()
    await answer(first)


@pytest.mark.parametrize("place", [0, 7, 20])
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("what", ["id", "key"])
async def test_other_rows_of_a_flush_with_a_locked_row_are_committed_at_once(
    one: Instance, db: Connection, what: str, commits: bool, place: int
) -> None:
    foreign = Foreign(db)
    meets = job(one, id=one.ids.make(1)[0]) if what == "id" else job(one, key="once")
    (theirs,) = await foreign.holds(ids=[meets.id] if what == "id" else [], keys=["once"] if what == "key" else [])
    jobs = [job(one, key=f"own-{n}") if n % 3 else job(one) for n in range(20)]
    jobs.insert(place, meets)
    async with one_flush(one):
        tasks = [asyncio.create_task(send(one, each)) for each in jobs]
        await soon(lambda: one.submitter.writer.waiting_rows == len(jobs), "all of them are queued")
    for task in (*tasks[:place], *tasks[place + 1 :]):
        assert await answer(task) == CREATED
    assert not tasks[place].done()  # and its lock is still held: no other has waited for it
    later = await one.submit(2)  # the next flush goes its way
    await foreign.ends(commits=commits)
    told = await answer(tasks[place])
    if commits:
        assert [(one_.receipt, one_.job_id) for one_ in told.values()] == [(SubmitReceipt.DUPLICATE, theirs)]
    else:
        assert told == CREATED
    assert (await one.states())[State.PENDING] == 1 + 20 + 1 + 2
    # In their order, the one that waited apart.
    async with one.store.lane("upkeep").use() as link:
        ranked = [row[0] for row in await link.fetch("SELECT id FROM headgate.jobs ORDER BY rank_class, rank_at")]
    expected = [each.id for each in jobs if each is not meets] + list(later)
    assert [job_id for job_id in ranked if job_id in set(expected)] == expected


async def test_rows_of_one_frame_that_are_not_locked_are_committed_before_its_answer(
    one: Instance, db: Connection
) -> None:
    foreign = Foreign(db)
    await foreign.holds(keys=["once", "twice"])
    jobs = [job(one), job(one, key="once"), job(one), job(one, key="twice"), job(one, key="own")]
    task = asyncio.create_task(send(one, *jobs))
    await one.reach(3, State.PENDING)
    await soon(lambda: one.submitter.locked.rows == 2, "two of them wait")
    assert not task.done()
    await foreign.ends(commits=True)
    told = await answer(task)
    assert {place: each.receipt for place, each in told.items()} == {
        1: SubmitReceipt.DUPLICATE,
        3: SubmitReceipt.DUPLICATE,
    }
    assert one.submitter.locked.rows == 0


async def test_a_lock_that_is_never_given_back_ends_in_an_error_to_send_it_again(
    one: Instance, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "GIVE_UP_SECONDS", 0.2)
    foreign = Foreign(db)
    await foreign.holds(keys=["once"])
    with pytest.raises(RowLocked, match="nothing of it was stored") as caught:
        await answer(asyncio.create_task(send(one, job(one, key="once"))))
    assert caught.value.code == "row_locked"
    jobs = [job(one, key="once"), job(one)]
    with pytest.raises(OutcomeUnknown, match="the others of this call were committed"):
        await answer(asyncio.create_task(send(one, *jobs)))
    await foreign.ends(commits=False)
    assert (await one.states())[State.PENDING] == 1
    told = await send(one, jobs[0], job(one, id=jobs[1].id))
    assert {place: each.receipt for place, each in told.items()} == {1: SubmitReceipt.DUPLICATE}


async def test_fifty_locked_rows_delay_no_other_row(one: Instance, db: Connection) -> None:
    """Finding them all would take long: jobs no other caller can know are written, the others are tried alone."""
    foreign = Foreign(db)
    await foreign.holds(keys=[f"theirs-{n}" for n in range(50)])
    locked, plain = [job(one, key=f"theirs-{n}") for n in range(50)], [job(one) for _ in range(50)]
    async with one_flush(one):
        waits, goes = asyncio.create_task(send(one, *locked)), asyncio.create_task(send(one, *plain))
        await soon(lambda: one.submitter.writer.waiting_rows == 100, "all of them are queued")
    assert await answer(goes) == CREATED
    assert not waits.done()
    await foreign.ends(commits=False)
    assert await answer(waits) == CREATED


async def test_submit_and_claim_in_one_call_waits_no_longer(database: str, db: Connection) -> None:
    async with Instance(database, claims_along=True) as one:
        await known_to_wait(one)
        foreign = Foreign(db)
        meets = job(one)
        await foreign.holds(ids=[meets.id])
        waits = asyncio.create_task(send(one, meets))
        await soon(lambda: one.submitter.locked.rows == 1, "it waits by itself")
        assert await send(one, job(one)) == CREATED
        assert not waits.done()
        await foreign.ends(commits=False)
        assert await answer(waits) == CREATED


async def test_a_topic_made_by_an_open_transaction_delays_no_other_caller(one: Instance, db: Connection) -> None:
    async with db.transaction():
        await db.fetchval("SELECT headgate.submit('new', 'x'::bytea, tenant => 'acme')")
        waits = asyncio.create_task(one.submit(1, "new"))
        await asyncio.wait_for(one.submit(1, "another"), SOON.total_seconds())
        assert not waits.done()
    await asyncio.wait_for(waits, SOON.total_seconds())
    assert await db.fetchval("SELECT count(*) FROM headgate.topics WHERE name = 'new'") == 1


async def test_an_atomic_batch_that_meets_a_lock_waits_alone(one: Instance, db: Connection) -> None:
    foreign = Foreign(db)
    await foreign.holds(keys=["once"])
    batch = await one.store.fill([job(one), job(one, key="once"), job(one)])
    other = await one.store.fill([job(one), job(one)])
    waits = asyncio.create_task(one.store.submit_atomic(batch))
    assert await send(one, job(one)) == CREATED
    assert await one.store.submit_atomic(other) == CREATED
    assert not waits.done()
    await foreign.ends(commits=False)
    assert await answer(waits) == CREATED
    assert (await one.states())[State.PENDING] == 1 + 2 + 3


async def test_a_child_waits_with_its_parent_that_meets_a_lock(one: Instance, db: Connection) -> None:
    foreign = Foreign(db)
    parent = job(one, id=one.ids.make(1)[0])
    await foreign.holds(ids=[parent.id])
    child = job(one, depends_on=[parent.id])
    grandchild = job(one, depends_on=[child.id])
    task = asyncio.create_task(send(one, grandchild, child, parent, job(one)))
    await soon(lambda: one.submitter.locked.rows == 3, "the three wait")
    await foreign.ends(commits=False)
    assert await answer(task) == CREATED
    assert await one.states() == {State.PENDING: 2, State.BLOCKED: 2}


async def test_a_write_that_does_not_fit_the_queue_is_answered_at_once(
    one: Instance, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MOST_ROWS", 1)
    foreign = Foreign(db)
    await foreign.holds(keys=["once", "twice"])
    first = asyncio.create_task(send(one, job(one, key="once")))
    await soon(lambda: one.submitter.locked.rows == 1, "the first waits")
    with pytest.raises(RowLocked):
        await answer(asyncio.create_task(send(one, job(one, key="twice"))))
    assert not first.done()
    await foreign.ends(commits=False)
    assert await answer(first) == CREATED
    assert one.submitter.locked.rows == 0


async def test_an_instance_that_ends_answers_waiting_callers(one: Instance, db: Connection) -> None:
    foreign = Foreign(db)
    await foreign.holds(keys=["once"])
    task = asyncio.create_task(send(one, job(one, key="once")))
    await soon(lambda: one.submitter.locked.rows == 1, "it waits")
    one.submitter.locked.stop()
    with pytest.raises(RowLocked):
        await answer(task)
    await asyncio.wait_for(one.tasks.pop("locked submits"), SOON.total_seconds())
    await foreign.ends(commits=False)


async def test_after_a_try_with_unknown_outcome_no_caller_gets_the_answer_that_nothing_was_stored(
    one: Instance, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "GIVE_UP_SECONDS", 0.2)
    foreign = Foreign(db)
    await foreign.holds(keys=["once"])
    one.store.after["submit_locked"] = failing_with(OutcomeUnknown("the connection was lost"))
    with pytest.raises(OutcomeUnknown, match="may have been committed"):
        await answer(asyncio.create_task(send(one, job(one, key="once"))))
    await foreign.ends(commits=False)


@asynccontextmanager
async def about_to_be_written(one: Instance, db: Connection, mine: Submission) -> AsyncIterator[asyncio.Task[Answers]]:
    """A submit whose lock is free again, and whose next try begins at the end of this."""
    foreign = Foreign(db)
    await foreign.holds(ids=[mine.id])
    gate = one.store.before["submit_locked"] = Hold()
    task = asyncio.create_task(send(one, mine))
    await gate.reached()
    await foreign.ends(commits=False)
    yield task
    del one.store.before["submit_locked"]
    gate.release()


async def test_a_job_whose_fate_was_unknown_and_that_has_run_since_is_not_made_again(
    one: Instance, db: Connection
) -> None:
    mine = job(one)

    async def runs_and_answers_nothing() -> None:
        del one.store.after["submit_locked"]
        await Queue(db).settle((mine.id, (await Queue(db).claim()).epochs[0], Completed()))
        raise OutcomeUnknown("the connection was lost")

    async with about_to_be_written(one, db, mine) as task:
        one.store.after["submit_locked"] = runs_and_answers_nothing
    assert [told.receipt for told in (await answer(task)).values()] == [SubmitReceipt.DUPLICATE]
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 0


async def test_a_submit_that_is_cancelled_in_its_call_has_an_unknown_fate(one: Instance, db: Connection) -> None:
    async with about_to_be_written(one, db, job(one)) as task:
        hold = one.store.after["submit_locked"] = Hold()
    await hold.reached()
    one.tasks["locked submits"].cancel()
    with pytest.raises(OutcomeUnknown):
        await answer(task)
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 1
