"""Admission on a real PostgreSQL: full of submits, an instance continues dispatching, and takes all it said it took."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.control.submit import Submits
from headgate.dispatch.submits import QUEUE_ROWS, REST_MOST_SECONDS, REST_TIMES, Submitter, SubmitWrite
from headgate.dispatch.writer import Account
from headgate.domain.errors import Overloaded
from headgate.domain.identity import Identity, Scope
from headgate.domain.states import State
from headgate.store.connect import Connection
from tests.support.dispatch_waits import SOON
from tests.support.dispatch_workers import completing
from tests.support.dispatching import Instance
from tests.support.drafts import Draft, read_draft
from tests.support.watched_store import Hold

PAGE = 1_000


async def submit_write(
    one: Instance, answered: list[str], topic: str = "flood", *, word: str = "created"
) -> SubmitWrite:
    ids = [job_id.bytes for job_id in one.ids.make(PAGE)]
    rows = await one.store.fill_plain(one.tenant, topic, ids, [b"x"] * PAGE, [], new_id=True)
    return SubmitWrite(
        rows,
        len(rows),
        200 * PAGE,
        done=lambda odd: answered.append("odd" if odd else word),
        failed=lambda error: answered.append(error.code),
    )


async def test_an_instance_full_of_submits_dispatches_settles_and_renews_and_answers_all_it_has_taken(
    one: Instance,
) -> None:
    first = await one.submit(50)
    hold = one.store.before["submit"] = Hold()
    answered: list[str] = []
    streams = [Account[SubmitWrite]() for _ in range(3)]
    taken, refused = 0, list[Overloaded]()
    for _ in range(QUEUE_ROWS // PAGE + 4):
        for stream in streams:
            try:
                one.submitter.writer.put(await submit_write(one, answered), stream)
                taken += 1
            except Overloaded as error:
                refused.append(error)
    await hold.reached()
    assert refused
    assert min(error.retry_after_ms for error in refused) >= 50
    assert not answered  # no one is notified of a commit that has not come
    assert one.submitter.writer.waiting_rows <= QUEUE_ROWS
    shares = [stream.rows for stream in streams]
    assert max(shares) - min(shares) <= 2 * PAGE  # in each other's presence, all get about the same
    # Nothing of this stands in the way of work that was taken before.
    worker = await one.worker("w", slots=50, handler=completing())
    await one.reach(50, State.COMPLETED)
    await asyncio.wait_for(_until(lambda: len(worker.receipts) == 50), SOON.total_seconds())  # told after the commit
    assert {job_id for job_id, _ in worker.receipts} == set(first)
    hold.release()
    await asyncio.wait_for(_until(lambda: len(answered) == taken), SOON.total_seconds())
    assert set(answered) == {"created"}
    assert (await one.states())[State.PENDING] == taken * PAGE


async def test_a_polite_caller_is_let_in_and_in_the_next_flush_while_a_greedy_one_is_refused(one: Instance) -> None:
    hold = one.store.before["submit"] = Hold()
    answered: list[str] = []
    greedy = Account[SubmitWrite]()
    one.submitter.writer.put(await submit_write(one, answered), greedy)
    await hold.reached()
    while greedy.rows < QUEUE_ROWS // 2:
        one.submitter.writer.put(await submit_write(one, answered), greedy)
    with pytest.raises(Overloaded):
        one.submitter.writer.put(await submit_write(one, answered), greedy)
    one.submitter.writer.put(
        await submit_write(one, answered, "calm", word="polite"), one.submitter.account_of_calls("acme")
    )
    hold.release()
    await asyncio.wait_for(_until(lambda: "polite" in answered), SOON.total_seconds())
    assert answered.index("polite") <= 4  # after what was in flight, and what went along
    await asyncio.wait_for(_until(lambda: not one.submitter.writer.waiting_rows), SOON.total_seconds())


async def test_submits_rest_only_after_large_flushes_and_only_while_outcomes_wait(one: Instance) -> None:
    waiting = False
    submitter = Submitter(one.store, one.wakes, one.times, outcomes_wait=lambda: waiting)
    assert submitter._rest(2_000, 0.1) == 0.0  # a burst with no one working is taken at full speed
    waiting = True
    assert submitter._rest(1, 0.1) == 0.0
    assert submitter._rest(2_000, 0.1) == pytest.approx(0.1 * REST_TIMES)
    assert submitter._rest(2_000, 60.0) == REST_MOST_SECONDS


async def _until(check: object) -> None:
    assert callable(check)
    while not check():
        await asyncio.sleep(0.005)


async def test_a_batch_is_admitted_before_its_names_are_looked_up(stepped: Instance, db: Connection) -> None:
    """A full queue refuses it without a statement; while its names are made known, it counts as waiting."""
    await stepped.submit(1)
    before = await db.fetchval("SELECT count(*) FROM headgate.topics")
    submits = Submits(stepped.store, stepped.submitter, make_id=lambda: stepped.ids.make(1)[0])
    caller = Identity(tenant=stepped.tenant, subject="test", scopes=frozenset(Scope))
    jobs = [Draft(topic=f"new-{n}") for n in range(10)]
    await stepped.store.count_statements()
    begun, writer = await stepped.store.sent(), stepped.submitter.writer
    with writer.holding(QUEUE_ROWS - 5, 1, Account()), pytest.raises(Overloaded):
        await submits.many(caller, jobs, read_draft, atomic=False)
    assert await stepped.store.sent() == begun
    seen: list[int] = []
    make = stepped.store.refusals

    async def watched(tenant: str, jobs: Any) -> Any:
        seen.append(writer.waiting_rows)
        return await make(tenant, jobs)

    stepped.store.refusals = watched  # type: ignore[method-assign]
    answer = await submits.many(caller, jobs, read_draft, atomic=False)
    assert (seen, len(answer), writer.waiting_rows) == ([10, 10], 10, 0)
    assert await db.fetchval("SELECT count(*) FROM headgate.topics") == before + 10
