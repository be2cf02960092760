"""What is not wrong enough to be refused: nothing to do, someone else's, one bad row among many."""

from __future__ import annotations

import pytest

from headgate.domain.dispatching import Renewal, Settled
from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.ids import TenantNo
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Snooze
from headgate.domain.states import Receipt, State, SubmitReceipt
from headgate.store import control, leases, reads, settle, submit, verbs
from headgate.store.flush import SubmitFlush, fill
from headgate.store.listing import Filter
from headgate.store.names import Names
from headgate.store.settle import OutcomeFlush
from tests.integration.bad_input.refusals import DAY, NUL, SURROGATE, World, digest
from tests.support import store_calls
from tests.support.epochs import epochs_of
from tests.support.queue import make_ids, new_id

# --- nothing to do ----------------------------------------------------------------------------------------------------


async def test_empty_lists_are_no_error_and_do_nothing(world: World) -> None:
    db, tenant = world.db, world.tenant
    before = await digest(db)
    assert await submit.submit(db, SubmitFlush()) == {}
    assert await store_calls.submit_all(db, Names(), []) == []
    assert await settle.settle(db, OutcomeFlush()) == {}
    assert await leases.renew(db, []) == {}
    assert await leases.renew(db, [leases.Held(tenant_no=tenant, ids=[], epochs=[], lease_ms=1)]) == {}
    empty = await store_calls.claim(db, tenant_no=tenant, topic_nos=[], limit=1, owner=1, lease_ms=1, workers=["w"])
    assert len(empty) == 0
    assert await verbs.cancel(db, tenant, []) == {}
    assert await verbs.redrive(db, tenant, []) == {}
    assert await verbs.reprioritise(db, tenant, [], priority=1) == {}
    assert await verbs.discard(db, tenant, []) == set()
    assert await Names().topics(db, world.queue.names._tenants["acme"], []) == []
    assert await digest(db) == before


async def test_exactly_the_limit_is_accepted(world: World) -> None:
    ids = make_ids.make(5_000)
    db, tenant = world.db, world.tenant
    flush = SubmitFlush(
        tenant_nos=[tenant] * 5_000, ids=[*ids], topic_nos=[world.topic] * 5_000, payloads=[b""] * 5_000
    )
    assert await submit.submit(db, flush) == {}
    claimed = await world.queue.claim(5_000)
    assert len(claimed) == 5_000
    held = leases.Held(tenant_no=tenant, ids=claimed.ids, epochs=claimed.epochs, lease_ms=86_400_000)
    assert await leases.renew(db, [held]) == {}
    outcomes = OutcomeFlush()
    outcomes.add_completed(tenant, claimed.ids, claimed.epochs, [b""] * 5_000)
    assert await settle.settle(db, outcomes) == {}
    assert len(await verbs.redrive(db, tenant, claimed.ids)) == 5_000


# --- someone else's --------------------------------------------------------------------------------------------------


async def test_another_tenants_jobs_are_unknown_to_every_verb(world: World) -> None:
    db, tenant = world.db, world.tenant
    theirs = list(world.theirs)
    _, running, dead = theirs
    before = await digest(db)
    for read in (reads.get, reads.payload, reads.result):
        for job_id in (*theirs, new_id()):
            with pytest.raises(NotFound) as caught:
                await read(db, tenant, job_id)  # type: ignore[operator]
            # The same words as for a job that never existed.
            assert str(caught.value) == f'no job "{job_id}"'
    assert await reads.events(db, tenant, dead) == []
    assert await verbs.cancel(db, tenant, theirs) == {}
    assert await verbs.redrive(db, tenant, theirs) == {}
    assert await verbs.reprioritise(db, tenant, theirs, priority=9) == {}
    assert await verbs.discard(db, tenant, theirs) == set()
    held = leases.Held(tenant_no=tenant, ids=[running], epochs=[1], lease_ms=60_000)
    assert await leases.renew(db, [held]) == {(tenant, running, 1): Renewal(lost=True, cancel=False)}
    for outcome in (Completed(), Failed(error=ErrorInfo(type="E")), Snooze(delay=DAY)):
        settled = await store_calls.settle_one(db, tenant, running, 1, outcome)
        assert settled == Settled(receipt=Receipt.UNKNOWN)
    claimed = await store_calls.claim(
        db, tenant_no=tenant, topic_nos=[world.their_topic], limit=9, owner=1, lease_ms=1, workers=["w"], hints=theirs
    )
    assert len(claimed) == 0
    assert world.their_topic not in await reads.counts(db, tenant)
    listed = await store_calls.list_jobs(db, tenant, limit=1_000)
    assert not {row.id for row in listed.rows} & set(theirs)
    assert await digest(db) == before


async def test_targets_that_do_not_exist_cannot_be_paused(world: World) -> None:
    before = await digest(world.db)
    for target in ((999, 0), (999, world.topic), (world.tenant, world.their_topic), (world.tenant, 999)):
        with pytest.raises(NotFound, match="target"):
            await control.pause(world.db, target)
        assert not await control.resume(world.db, target)
    assert await digest(world.db) == before


async def test_unknown_names_and_numbers_are_not_found(world: World) -> None:
    before = await digest(world.db)
    names = Names()
    with pytest.raises(NotFound, match='no tenant "999"'):
        await names.topic(world.db, TenantNo(999), "mail")
    for number in (0, 999, -1, None):
        with pytest.raises(NotFound, match="topic"):
            await names.topic_by_no(world.db, number)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await names.topic_by_no(world.db, "x")  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="retry policy"):
        await names.policy_by_no(world.db, 999)
    assert await digest(world.db) == before


async def test_an_epoch_that_never_was_is_stale(world: World) -> None:
    before = await digest(world.db)
    for epoch in (0, 2, -1, 2**31 - 1):
        for outcome in (Completed(), Failed(error=ErrorInfo(type="E"))):
            answer = await store_calls.settle_one(world.db, world.tenant, world.running, epoch, outcome)
            assert answer.receipt is Receipt.STALE
    assert await digest(world.db) == before


async def test_what_a_worker_says_is_mended_rather_than_refused(world: World) -> None:
    """A NUL or a lone surrogate in an error text must not cost the job its outcome."""
    error = ErrorInfo(type=NUL, message=SURROGATE, traceback="line 1\nline 2\x00")
    answer = await store_calls.settle_one(
        world.db, world.tenant, world.running, (await epochs_of(world.db, [world.running]))[0], Failed(error=error)
    )
    assert answer.receipt is Receipt.APPLIED
    (event,) = await reads.events(world.db, world.tenant, world.running)
    assert (event.error_type, event.error_message, event.error_trace) == ("a�b", "a�b", "line 1\nline 2�")


# --- cursors ----------------------------------------------------------------------------------------------------------


async def test_a_cursor_belongs_to_its_list_and_cannot_be_changed(world: World) -> None:
    db, tenant = world.db, world.tenant
    page = await store_calls.list_jobs(db, tenant, limit=1)
    cursor = page.cursor
    assert cursor is not None
    assert (await store_calls.list_jobs(db, tenant, limit=1_000, cursor=cursor)).rows
    foreign = [(world.their_tenant, Filter(), cursor), (tenant, Filter(states=frozenset({State.DEAD})), cursor)]
    changed = [cursor[:at] + ("A" if cursor[at] != "A" else "B") + cursor[at + 1 :] for at in range(len(cursor))]
    cut = [cursor[:-1], cursor[:-4], cursor[1:], cursor + "A", cursor * 2, cursor + "=", " " + cursor]
    for whose, matching, text in [*foreign, *((tenant, Filter(), text) for text in (*changed, *cut))]:
        with pytest.raises(InvalidInput, match="start again without a cursor") as caught:
            await store_calls.list_jobs(db, whose, matching=matching, cursor=text)
        assert caught.value.field == "cursor"


# --- one bad row among many -------------------------------------------------------------------------------------------

BAD = (3, 250, 499)


@pytest.mark.parametrize(
    "error_code", ["check_violation", "raise_exception", "program_limit_exceeded", "string_data_right_truncation"]
)
async def test_a_row_that_the_database_refuses_does_not_affect_the_others(world: World, error_code: str) -> None:
    """Three of 500 make the insert fail: the other 497 are created in their order, the three are notified."""
    await world.db.execute(
        f"""CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF new.payload = 'poison' THEN RAISE EXCEPTION 'no poison here' USING ERRCODE = '{error_code}'; END IF;
                RETURN new; END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON headgate.jobs FOR EACH ROW EXECUTE FUNCTION public.refuse()"""
    )
    queue = world.queue
    jobs = [
        queue.job(
            "many",
            payload=b"poison" if n in BAD else b"%d" % n,
            key=f"k{n}",
            tags=[f"t{n}"],
            priority=0,
            headers={"n": str(n)},
        )
        for n in range(500)
    ]
    flush = await fill(queue.db, queue.names, jobs)
    answers = await submit.submit(queue.db, flush)
    assert sorted(answers) == list(BAD)
    for place in BAD:
        answer = answers[place]
        assert (answer.receipt, answer.job_id) == (SubmitReceipt.REFUSED, jobs[place].id)
        assert isinstance(answer.error, InvalidInput)
        assert str(jobs[place].id) in str(answer.error)
        assert "no poison here" in str(answer.error)
    claimed = await queue.claim(500, "many")
    good = [n for n in range(500) if n not in BAD]
    assert list(claimed.ids) == [jobs[n].id for n in good]
    assert list(claimed.payloads) == [b"%d" % n for n in good]
    assert list(claimed.headers) == [f'{{"n": "{n}"}}' for n in good]
    tags = await queue.db.fetch("SELECT job_id, tag FROM headgate.job_tags WHERE tag LIKE 't%'")
    assert {(row["job_id"], row["tag"]) for row in tags} == {(jobs[n].id, f"t{n}") for n in good}
    # Nothing is left of the refused ones: their keys are free.
    kept = await queue.db.fetch("SELECT key FROM headgate.idempotency_keys WHERE key LIKE 'k%'")
    assert {row["key"] for row in kept} == {f"k{n}" for n in good}


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("payloads", "text", "payloads: cannot be stored"),
        ("payloads", None, "jobs_payload"),
        ("topic_nos", "mail", "topic_nos: cannot be stored"),
        ("topic_nos", 2**31, "int32"),
        ("priorities", "high", "priorities: cannot be stored"),
        ("max_attempts", 0, "jobs_attempts"),
        ("headers", "not json", "json"),
        ("headers", '{"a": "\\u0000"}', "Unicode escape"),
        ("run_ats", "tomorrow", "run_ats: cannot be stored"),
        ("delays_ms", 2**62, "cannot be stored"),
    ],
)
async def test_a_row_that_was_never_checked_does_not_affect_the_others(
    world: World, column: str, value: object, says: str
) -> None:
    flush = await fill(world.db, world.queue.names, [world.queue.job("many") for _ in range(20)])
    values = getattr(flush, column)
    if values:
        values[7] = value
    else:
        values.extend([None] * 7 + [value])
    answers = await submit.submit(world.db, flush)
    assert list(answers) == [7]
    assert answers[7].receipt is SubmitReceipt.REFUSED
    assert says in str(answers[7].error)
    claimed = await world.queue.claim(20, "many")
    assert list(claimed.ids) == [job_id for place, job_id in enumerate(flush.ids) if place != 7]
