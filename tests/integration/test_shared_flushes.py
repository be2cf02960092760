"""Many callers in one flush: each gets the answers of its own rows, in order, and gives back the room it had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from headgate.control.submit import Submits
from headgate.dispatch.submits import SubmitAccount
from headgate.dispatch.writer import Account
from headgate.domain.errors import Conflict, HeadgateError, InvalidInput, OutcomeUnknown, StoreUnavailable
from headgate.domain.ids import JobId, TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Completed
from headgate.domain.states import State, SubmitReceipt
from headgate.store.connect import Connection
from tests.integration.test_submit_claim import waiting
from tests.support.dispatch_waits import SOON, settle_down, soon
from tests.support.dispatching import Instance
from tests.support.queue import Queue, new_id
from tests.support.watched_store import Hold, failing_with

CREATED, DUPLICATE, CONFLICT = SubmitReceipt.CREATED, SubmitReceipt.DUPLICATE, SubmitReceipt.CONFLICT
REFUSED = SubmitReceipt.REFUSED
LARGE = b"L" * 2_000
REFUSE_BAD = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN IF NEW.payload = 'bad' THEN RAISE 'an operator does not like it'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON headgate.jobs FOR EACH ROW EXECUTE FUNCTION public.refuse()"""


def job(tenant: str, job_id: JobId | None = None, **options: Any) -> Submission:
    values: dict[str, Any] = {"payload": b"x", "new_id": job_id is None, "id": job_id or new_id()} | options
    return Submission(tenant=TenantName(tenant), topic=TopicName("mail"), **values)


async def in_one_flush(one: Instance, *writes: list[Submission]) -> list[dict[int, tuple[SubmitReceipt, UUID]]]:
    """The answer to each caller when their writes share a flush, by place."""
    hold = one.store.before["submit"] = Hold()
    first = asyncio.create_task(one.submit())
    await hold.reached()
    filled = [await one.store.fill(jobs) for jobs in writes]
    tasks = [asyncio.create_task(one.submitter.submit(rows, size=1)) for rows in filled]
    await soon(lambda: one.submitter.writer.waiting_rows == sum(map(len, writes)), "all are queued")
    del one.store.before["submit"]
    flushes = one.submitter.writer.flushes
    hold.release()
    told = [await asyncio.wait_for(task, SOON.total_seconds()) for task in (first, *tasks)][1:]
    await soon(lambda: one.submitter.writer.flushes - flushes == 2, "it was one flush")
    return [{place: (each.receipt, each.job_id) for place, each in one_.items()} for one_ in told]  # type: ignore[attr-defined]


async def stored(db: Connection, tenant: str) -> set[tuple[UUID, bytes, tuple[str, ...]]]:
    """The live jobs of a tenant: id, body, tags."""
    rows = await db.fetch(
        """SELECT j.id, coalesce(j.payload, p.payload), ARRAY(SELECT t.tag FROM headgate.job_tags t
                  WHERE t.tenant_no = j.tenant_no AND t.job_id = j.id ORDER BY 1)
             FROM headgate.jobs j JOIN headgate.tenants n USING (tenant_no)
             LEFT JOIN headgate.payloads p ON p.tenant_no = j.tenant_no AND p.id = j.id WHERE n.name = $1""",
        tenant,
    )
    return {(row[0], row[1], tuple(row[2])) for row in rows}


# ---------------------------------------------------------------------- several tenants


async def test_each_tenant_of_a_flush_has_the_receipts_of_its_own_rows(one: Instance, db: Connection) -> None:
    """The same ids and keys in all three: what one tenant has says nothing about another's."""
    same, other, keyed = new_id(), new_id(), new_id()
    await one.submit()  # the tenant of the tests
    for tenant, jobs in {
        "ants": [job("ants", same), job("ants", keyed, key="k")],
        "bees": [job("bees", other, payload=b"another")],
    }.items():
        await Queue(db, tenant=tenant).submit(*jobs)
    told = await in_one_flush(
        one,
        [job("cats", same), job("ants", other), job("bees", same)],
        [job("bees", other), job("ants", same), job("cats", other)],
        [job("bees", key="k"), job("ants", key="k"), job("cats", key="k")],
    )
    assert told == [
        {},
        {0: (CONFLICT, other), 1: (DUPLICATE, same)},
        {1: (DUPLICATE, keyed)},
    ]
    assert {found[0] for found in await stored(db, "ants")} == {same, keyed, other}
    assert len(await stored(db, "bees")) == 3
    assert len(await stored(db, "cats")) == 3


async def test_a_finished_job_of_one_tenant_undoes_no_other_row_of_the_flush(one: Instance, db: Connection) -> None:
    """All have the same id; one of them has run. Large bodies and tags go to those that were made."""
    same = new_id()
    ants = Queue(db, tenant="ants")
    await ants.submit(job("ants", same, payload=LARGE))
    await ants.settle((same, (await ants.claim()).epochs[0], Completed()))
    told = await in_one_flush(
        one,
        [job("bees", same, payload=LARGE + b"b", tags=("b",)), job("ants", same, payload=LARGE, tags=("a",))],
        [job("cats", same, payload=LARGE + b"c", tags=("c",))],
    )
    assert told == [{1: (DUPLICATE, same)}, {}]
    assert await stored(db, "ants") == set()
    assert await stored(db, "bees") == {(same, LARGE + b"b", ("b",))}
    assert await stored(db, "cats") == {(same, LARGE + b"c", ("c",))}
    assert await db.fetchval("SELECT count(*) FROM headgate.job_tags") == 2


async def test_what_one_tenant_has_finished_is_made_for_another_in_the_same_flush(
    one: Instance, db: Connection
) -> None:
    """Two tenants, two ids, each has finished the other's new one: only what is finished is undone."""
    first, second = new_id(), new_id()
    for tenant, done in (("ants", first), ("bees", second)):
        queue = Queue(db, tenant=tenant)
        await queue.submit(job(tenant, done))
        await queue.settle((done, (await queue.claim()).epochs[0], Completed()))
    told = await in_one_flush(one, [job("ants", first), job("ants", second)], [job("bees", first), job("bees", second)])
    assert told == [{0: (DUPLICATE, first)}, {1: (DUPLICATE, second)}]
    assert await stored(db, "ants") == {(second, b"x", ())}
    assert await stored(db, "bees") == {(first, b"x", ())}


async def test_a_large_body_sent_under_the_id_of_a_finished_job_is_not_kept(one: Instance, db: Connection) -> None:
    """The finished job had a small one: a row of bodies would belong to no job, or to the wrong one."""
    done = new_id()
    queue = Queue(db, tenant="ants")
    await queue.submit(job("ants", done))
    await queue.settle((done, (await queue.claim()).epochs[0], Completed()))
    told = await in_one_flush(one, [job("ants", done, payload=LARGE), job("bees", done, payload=LARGE)])
    assert told == [{0: (CONFLICT, done)}]
    bodies = await db.fetch("SELECT n.name, p.id FROM headgate.payloads p JOIN headgate.tenants n USING (tenant_no)")
    assert [tuple(row) for row in bodies] == [("bees", done)]


# ---------------------------------------------------------------------- order, and bad rows


@pytest.mark.parametrize("bad", [{0}, {16}, {32}, {0, 1, 15, 16, 17, 31, 32}])
async def test_rows_beside_those_that_cannot_be_stored_keep_their_order(
    one: Instance, db: Connection, bad: set[int]
) -> None:
    await db.execute(REFUSE_BAD)
    jobs = [job("acme", payload=b"bad" if place in bad else b"%d" % place) for place in range(33)]
    told = await in_one_flush(one, jobs[:10], jobs[10:11], jobs[11:])
    refused = {
        start + place: said for start, each in zip((0, 10, 11), told, strict=True) for place, said in each.items()
    }
    assert refused == {place: (REFUSED, jobs[place].id) for place in bad}
    ranked = await db.fetch("SELECT payload FROM headgate.jobs ORDER BY rank_class, rank_at")
    assert [row[0] for row in ranked][1:] == [b"%d" % place for place in range(33) if place not in bad]


# ---------------------------------------------------------------------- room


def submits(one: Instance) -> Submits[Any, SubmitAccount]:
    return Submits(one.store, one.submitter, make_id=new_id)


def is_empty(one: Instance, *accounts: SubmitAccount) -> bool:
    writer = one.submitter.writer
    parts = [(writer._rows, writer._bytes), *((account.rows, account.size) for account in accounts)]
    return parts == [(0, 0)] * len(parts) and not writer._waiting and not any(one_.writes for one_ in accounts)


async def _conflict(one: Instance) -> list[Submission]:
    (there,) = await one.submit()
    return [job("acme"), job("acme", there, payload=b"another")]


async def _refused(one: Instance) -> list[Submission]:
    async with one.store.lane("upkeep").use() as db:
        await db.execute(REFUSE_BAD)
    return [job("acme"), job("acme", payload=b"bad"), job("acme")]


async def _plain(one: Instance) -> list[Submission]:
    return [job("acme"), job("acme")]


@pytest.mark.parametrize(
    ("jobs", "fault", "error"),
    [
        (_conflict, None, Conflict),
        (_refused, None, InvalidInput),
        (_plain, StoreUnavailable("the database is away"), StoreUnavailable),
        (_plain, asyncio.CancelledError(), asyncio.CancelledError),
        (_plain, None, None),
    ],
    ids=["conflict", "bad row", "outage", "cancelled", "written"],
)
async def test_an_atomic_batch_gives_back_its_share_of_the_queue_however_it_ends(
    one: Instance,
    jobs: Callable[[Instance], Any],
    fault: BaseException | None,
    error: type[BaseException] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account: SubmitAccount = Account()
    rows = await one.store.fill(await jobs(one))
    before = (await one.states()).total()
    seen: list[tuple[int, int, int]] = []
    call = one.store._submit_atomic

    async def watched(flush: Any) -> Any:
        writer = one.submitter.writer
        seen.append((writer._rows, account.rows, int(writer._bytes == account.size > 200 * len(rows))))
        if fault is not None:
            raise fault
        return await call(flush)

    monkeypatch.setattr(one.store, "_submit_atomic", watched)
    batch = submits(one)._write_atomic(rows, account)
    if error is None:
        assert await batch == {}
    else:
        with pytest.raises(error):
            await batch
    assert seen == [(len(rows), len(rows), 1)]  # it counted while it waited
    assert is_empty(one, account)
    assert (await one.states()).total() == before + (len(rows) if error is None else 0)  # all, or nothing


async def test_an_atomic_batch_of_a_caller_that_left_gives_back_its_share_of_the_queue(
    one: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    account: SubmitAccount = Account()
    hold = Hold()

    async def stuck(flush: Any) -> Any:
        await hold()

    monkeypatch.setattr(one.store, "_submit_atomic", stuck)
    rows = await one.store.fill([job("acme"), job("acme")])
    task = asyncio.create_task(submits(one)._write_atomic(rows, account))
    await hold.reached()
    assert not is_empty(one, account)
    task.cancel()
    await asyncio.wait({task})
    assert is_empty(one, account)


async def test_callers_that_go_away_leave_nothing_behind(one: Instance) -> None:
    """Queued or in flight: what was taken is written once, its room comes back; callers that left are not called."""
    hold = one.store.before["submit"] = Hold()
    account = one.submitter.account_of_calls("acme")
    flying = asyncio.create_task(one.submitter.submit(await one.store.fill([job("acme")]), size=100, account=account))
    await hold.reached()
    queued = [
        asyncio.create_task(one.submitter.submit(await one.store.fill([job("acme")]), size=100, account=account))
        for _ in range(5)
    ]
    await soon(lambda: account.rows == 5, "five are queued")
    for task in (flying, *queued[:4]):
        task.cancel()
    await asyncio.wait({flying, *queued[:4]})
    assert all(task.cancelled() for task in (flying, *queued[:4]))
    del one.store.before["submit"]
    hold.release()
    assert await asyncio.wait_for(queued[4], SOON.total_seconds()) == {}
    await settle_down()
    assert is_empty(one, account)
    assert one.submitter.writer.faults == 0
    assert (await one.states())[State.PENDING] == 6


async def test_a_caller_that_goes_away_while_its_row_is_locked_leaves_nothing_behind(
    one: Instance, db: Connection
) -> None:
    await Queue(db).topic()
    account = one.submitter.account_of_calls("acme")
    async with db.transaction():
        await db.fetchval("SELECT headgate.submit('mail', 'x'::bytea, tenant => 'acme', key => 'k')")
        rows = await one.store.fill([job("acme", key="k")])
        task = asyncio.create_task(one.submitter.submit(rows, size=100, account=account))
        await soon(lambda: one.submitter.locked.rows == 1, "it waits")
        task.cancel()
        await asyncio.wait({task})
    await soon(lambda: one.submitter.locked.rows == 0, "it was tried to its end")
    assert is_empty(one, account)
    assert one.submitter.locked._bytes == 0


# ---------------------------------------------------------------------- unknown fate


@pytest.mark.parametrize("committed", [True, False])
async def test_a_lost_answer_of_submit_and_claim_is_asked_for_as_a_repeat_and_never_denied(
    database: str, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    async with Instance(database, claims_along=True) as one:
        await waiting(one)
        lost = failing_with(OutcomeUnknown("the connection was lost"))
        (one.store.after if committed else one.store.before)["submit_and_claim"] = lost
        sent: list[list[int]] = []
        write = one.store.submit

        async def watched(rows: Any) -> Any:
            sent.append(list(rows.resent_indexes))
            return await write(rows)

        monkeypatch.setattr(one.store, "submit", watched)
        rows = await one.store.fill([job("acme")])
        told = await asyncio.wait_for(one.submitter.submit(rows, size=100), SOON.total_seconds())
        assert sent == [[0]]  # not as new
        assert [each.receipt for each in told.values()] == ([DUPLICATE] if committed else [])
        assert (await one.states()).total() == 1


@pytest.mark.parametrize("error", [StoreUnavailable("away"), InvalidInput("job", "is bad")])
async def test_after_a_lost_answer_of_submit_and_claim_no_later_error_says_that_nothing_was_stored(
    database: str, monkeypatch: pytest.MonkeyPatch, error: HeadgateError
) -> None:
    monkeypatch.setattr("headgate.dispatch.submits.GIVE_UP_SECONDS", 0.1)
    async with Instance(database, claims_along=True) as one:
        await waiting(one)
        one.store.after["submit_and_claim"] = failing_with(OutcomeUnknown("the connection was lost"))
        one.store.before["submit"] = failing_with(*[error] * 20)
        rows = await one.store.fill([job("acme")])
        with pytest.raises(OutcomeUnknown, match="may have been committed"):
            await asyncio.wait_for(one.submitter.submit(rows, size=100), SOON.total_seconds())


async def test_a_flush_whose_fate_was_unknown_and_that_has_run_since_makes_no_second_job(
    one: Instance, db: Connection
) -> None:
    mine = job("acme")

    async def runs_and_answers_nothing() -> None:
        del one.store.after["submit"]
        queue = Queue(db)
        await queue.settle((mine.id, (await queue.claim()).epochs[0], Completed()))
        raise OutcomeUnknown("the connection was lost")

    one.store.after["submit"] = runs_and_answers_nothing
    rows = await one.store.fill([mine])
    told = await asyncio.wait_for(one.submitter.submit(rows, size=1), SOON.total_seconds())
    assert [(each.receipt, each.job_id) for each in told.values()] == [(DUPLICATE, mine.id)]
    assert await stored(db, "acme") == set()
