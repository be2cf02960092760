"""Ids by their first digits: jobs wherever they lie, batches, operations; bounded however many ids share the digits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.bulk import Plan, Verb
from headgate.domain.dependencies import NewBatch
from headgate.domain.errors import InvalidInput
from headgate.domain.filter_parser import parse
from headgate.domain.identity import Identity, Scope
from headgate.domain.ids import IdKind, JobId, id_range, new_job_id, parse_job_id
from headgate.domain.outcomes import Completed
from headgate.domain.topic_sets import TopicSet
from headgate.store import batches, bulk, id_prefixes
from headgate.store.batches import list_batches, open_batch, seal_batch
from headgate.store.connect import Connection
from headgate.store.id_prefixes import find_ids
from tests.support import explain
from tests.support.admin import Desk
from tests.support.dispatching import Instance
from tests.support.queue import Queue, new_id

PREFIX = "0123abcd"


def made(number: int, prefix: str = PREFIX) -> JobId:
    return JobId(UUID(f"{prefix}-0000-7000-8000-{number:012x}"))


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def found(
    queue: Queue, prefix: str, *, kind: IdKind = IdKind.JOB, topics: set[str] | None = None
) -> tuple[list[UUID], bool]:
    seen = None if topics is None else TopicSet.of(*topics)
    return await find_ids(queue.db, await queue.tenant_no(), kind, id_range(prefix), topics=seen, limit=5)


async def test_live_and_finished_jobs_are_found_by_any_number_of_digits(queue: Queue) -> None:
    done = made(1)
    await queue.submit(queue.job(id=done))
    claimed = await queue.claim()
    await queue.settle((done, claimed.epochs[0], Completed()))
    await queue.submit(queue.job(id=made(2)), queue.job("print", id=made(3)), queue.job(id=made(4, "0123abce")))
    assert await found(queue, PREFIX) == ([made(1), made(2), made(3)], False)
    assert await found(queue, str(made(2))[:-1]) == ([made(1), made(2), made(3)], False)
    assert await found(queue, str(made(2))) == ([made(2)], False)
    assert await found(queue, "0123") == ([made(1), made(2), made(3), made(4, "0123abce")], False)
    assert await found(queue, "0123ABCE") == ([made(4, "0123abce")], False)
    assert await found(queue, "0123abcf") == ([], False)
    assert await found(queue, PREFIX, topics={"print"}) == ([made(3)], False)
    assert await found(queue, PREFIX, topics=set()) == ([], False)


async def test_many_ids_with_the_same_digits_cost_no_more_than_a_few(queue: Queue) -> None:
    await queue.submit(*(queue.job(id=made(number)) for number in range(3_000)))
    tenant = await queue.tenant_no()
    assert await found(queue, PREFIX) == ([made(number) for number in range(5)], True)
    ids, more = await found(queue, PREFIX, topics={"print"})
    assert (ids, more) == ([], True)  # the first thousand are of another topic: more digits are needed
    low, high = id_range(PREFIX)
    cost = await explain.cost(queue.db, id_prefixes.JOBS, tenant, low, high, 6)
    assert cost.pages < 100, cost


async def test_batches_and_operations_are_found_and_batches_listed(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    ids = [made(number) for number in range(1, 4)]
    for one, topics in zip(ids, ({"mail"}, {"mail", "print"}, None), strict=True):
        owners = None if topics is None else TopicSet.of(*topics)
        await open_batch(queue.db, queue.names, tenant, NewBatch(id=one, name=f"batch {one.int % 16}", topics=owners))
    await queue.submit(queue.job(batch=ids[0]), queue.job(batch=ids[0]))
    await seal_batch(queue.db, tenant, ids[1])
    assert await found(queue, PREFIX, kind=IdKind.BATCH) == (ids, False)
    assert await found(queue, PREFIX, kind=IdKind.BATCH, topics={"mail"}) == (ids[:1], False)
    assert await found(queue, PREFIX, kind=IdKind.BULK) == ([], False)

    listed, following = await list_batches(queue.db, tenant)
    assert [(one.id, one.total, one.sealed_at is None) for one in listed] == [
        (ids[2], 0, True),
        (ids[1], 0, False),
        (ids[0], 2, True),
    ]
    assert following is None

    async def ids_of_page(**options: Any) -> list[UUID]:
        return [one.id for one in (await list_batches(queue.db, tenant, **options))[0]]

    assert await ids_of_page(open_only=True) == [ids[2], ids[0]]
    assert await ids_of_page(limit=1, before=ids[2]) == [ids[1]]
    assert await ids_of_page(topics=TopicSet.of("mail")) == [ids[0]]
    callback = queue.job("done")
    await open_batch(queue.db, queue.names, tenant, NewBatch(id=new_id()), callback=callback)
    newest = (await list_batches(queue.db, tenant))[0][0]
    assert (newest.callback_id, newest.callback_state and newest.callback_state.label) == (callback.id, "blocked")


async def test_the_cursor_of_a_list_of_batches_names_no_batch_of_other_topics(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "LOOK_AT", 3)
    tenant = await queue.tenant_no()
    ids = [new_job_id(now_ms=1_763_200_000_000 + number, random_bits=b"a random t") for number in range(8)]
    for number, one in enumerate(ids):
        owners = TopicSet.of("mail" if number in (0, 4) else "print")
        await open_batch(queue.db, queue.names, tenant, NewBatch(id=one, topics=owners))
    listed, cursors, before = list[UUID](), list[UUID](), None
    while True:
        page, before = await list_batches(queue.db, tenant, before=before, topics=TopicSet.of("mail"))
        listed += [one.id for one in page]
        if before is None:
            break
        cursors.append(before)
    assert listed == [ids[4], ids[0]]
    assert cursors
    assert not set(cursors) & (set(ids) - {ids[0], ids[4]})
    assert [parse_job_id(one) for one in cursors] == cursors, "clients check what they send back"


@pytest.mark.parametrize("wrong", ["", "abc", "not hex", "0" * 33])
def test_a_prefix_has_4_to_32_hexadecimal_digits(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="must be 4 to 32 hexadecimal digits"):
        id_range(wrong)


async def test_a_token_for_some_topics_does_not_learn_how_many_ids_others_have(stepped: Instance) -> None:
    (job_id,) = await stepped.submit(1)
    limited = Identity(tenant="acme", subject="eve", scopes=frozenset({Scope.READ}), topics=TopicSet.of("mail"))
    verbs = Desk(stepped).verbs
    with pytest.raises(InvalidInput, match=r"prefix.*at least 12 digits"):
        await verbs.find_ids(limited, IdKind.JOB, str(job_id)[:12])  # 11 digits and a dash
    assert await verbs.find_ids(limited, IdKind.JOB, str(job_id)[:13]) == ([job_id], False)
    assert await verbs.find_ids(replace(limited, topics=None), IdKind.JOB, str(job_id)[:8]) == ([job_id], False)


@pytest.mark.parametrize("kind", IdKind)
async def test_ids_of_another_tenant_are_not_found(queue: Queue, kind: IdKind) -> None:
    other = Queue(queue.db, tenant="other")
    for number, one in enumerate((queue, other)):
        tenant_no = await one.tenant_no()
        if kind is IdKind.JOB:
            await one.submit(one.job(id=made(number)))
        elif kind is IdKind.BATCH:
            await open_batch(one.db, one.names, tenant_no, NewBatch(id=made(number)))
        else:
            plan = Plan(verb=Verb.CANCEL, matching=parse("topic:mail"))
            await bulk.start(one.db, one.names, tenant_no, made(number), plan, who="ana")
    assert await found(queue, PREFIX, kind=kind) == ([made(0)], False)
    assert await found(other, PREFIX, kind=kind) == ([made(1)], False)
