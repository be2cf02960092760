"""Unique keys, dependencies, batches and retry policies of `headgate.submit`: as through a server."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.dependencies import NewBatch, Unique
from headgate.domain.errors import StoreBusy
from headgate.domain.limits import KEY_MAX_CHARS, PARENTS_MAX, RETRY_CAP_MAX_MS, RETRY_DELAYS_MAX
from headgate.domain.outcomes import Completed
from headgate.domain.states import State
from headgate.store import settle as settling
from headgate.store.batches import batch_status, open_batch, seal_batch
from headgate.store.connect import Connection
from headgate.store.settle import OutcomeFlush
from tests.integration.test_dependencies import DIES, free, run, state
from tests.integration.test_dependency_races import blocked_on_a_lock, until
from tests.integration.test_sql_submit import sql_submit
from tests.support.epochs import epochs_of
from tests.support.queue import Queue, new_id, stranger

LINKS = ("unique_jobs", "job_dependencies", "batch_jobs", "dependency_checks", "unique_calls")


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db, tenant="default")


async def rows_of(db: Connection, *tables: str) -> int:
    return sum([await db.fetchval(f"SELECT count(*) FROM headgate.{table}") for table in tables])


async def test_one_live_job_has_a_unique_key_whichever_way_it_is_submitted(queue: Queue, db: Connection) -> None:
    first = await sql_submit(db, unique_key="customer-7")
    assert await sql_submit(db, unique_key="customer-7", payload=b"another") == first
    (same,) = await queue.submit(queue.job(unique=Unique(key="customer-7")))
    assert same.id == first
    other = await sql_submit(db, unique_key="customer-7", topic="another")
    assert other != first
    await run(queue, first)
    second = await sql_submit(db, unique_key="customer-7")
    assert second not in (first, other)
    assert await db.fetchval("SELECT count(*) FROM headgate.unique_jobs WHERE live") == 2


async def test_a_submit_with_a_unique_key_replaces_or_postpones_the_live_job(queue: Queue, db: Connection) -> None:
    first = await sql_submit(db, unique_key="k", payload=b"one", priority=1)
    assert await sql_submit(db, unique_key="k", payload=b"two", priority=5, on_conflict="replace") == first
    row = await db.fetchrow("SELECT payload, priority, state FROM headgate.jobs WHERE id = $1", first)
    assert tuple(row) == (b"two", 5, State.PENDING)
    hour = timedelta(hours=1)
    assert await sql_submit(db, unique_key="k", delay=hour, on_conflict="reschedule") == first
    assert await state(queue, first) is State.SCHEDULED
    await sql_submit(db, unique_key="k", delay=hour, on_conflict="reschedule", debounce_max=timedelta(milliseconds=1))
    assert await state(queue, first) is State.PENDING
    assert await db.fetchval("SELECT payload FROM headgate.jobs WHERE id = $1", first) == b"two"


async def test_a_job_waits_for_parents_of_the_same_transaction_and_of_others(queue: Queue, db: Connection) -> None:
    (older,) = await queue.add()
    async with db.transaction():
        parent = await sql_submit(db)
        child = await sql_submit(db, depends_on=[older, parent, parent], on_parent_failure="ignore")
        grandchild = await sql_submit(db, depends_on=[child], needs="ended")
    assert [await state(queue, job_id) for job_id in (parent, child, grandchild)] == [
        State.PENDING,
        State.BLOCKED,
        State.BLOCKED,
    ]
    await run(queue, older, outcome=DIES)
    assert await free(queue) == []
    await queue.settle((parent, 1, Completed()))
    assert await free(queue) == [child]
    await run(queue, child, outcome=DIES)
    assert await free(queue) == [grandchild]


async def test_parents_that_have_ended_let_the_job_go(queue: Queue, db: Connection) -> None:
    (parent,) = await queue.add()
    await run(queue, parent)
    child = await sql_submit(db, depends_on=[parent])
    assert await free(queue) == [child]


async def test_a_job_joins_an_open_batch(queue: Queue, db: Connection) -> None:
    tenant, callback = await queue.tenant_no(), queue.job("done")
    batch = NewBatch(id=new_id())
    await open_batch(db, queue.names, tenant, batch, callback=callback)
    member = await sql_submit(db, batch=batch.id)
    await seal_batch(db, tenant, batch.id)
    assert (await batch_status(db, tenant, batch.id)).total == 1
    await run(queue, member)
    assert await free(queue) == [callback.id]
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="is sealed") as sealed:
        await sql_submit(db, batch=batch.id)
    assert sealed.value.hint == "headgate code: batch_sealed"


@pytest.mark.parametrize("field", ["depends_on", "batch"])
async def test_what_does_not_exist_is_refused_and_nothing_is_written(queue: Queue, db: Connection, field: str) -> None:
    await queue.topic()
    unknown = new_id()
    with pytest.raises(asyncpg.NoDataFoundError, match=str(unknown)) as missing:
        await sql_submit(db, unique_key="k", **{field: [unknown] if field == "depends_on" else unknown})
    assert missing.value.hint == "headgate code: not_found"
    assert await rows_of(db, "jobs", *LINKS) == 0


async def test_a_rollback_leaves_nothing_of_a_job_with_dependencies(queue: Queue, db: Connection) -> None:
    (parent,) = await queue.add()
    batch = NewBatch(id=new_id())
    await open_batch(db, queue.names, await queue.tenant_no(), batch, callback=None)
    transaction = db.transaction()
    await transaction.start()
    await sql_submit(db, unique_key="k", depends_on=[parent], batch=batch.id, key="once", tags=["t"])
    await transaction.rollback()
    assert await rows_of(db, *LINKS, "idempotency_keys", "job_tags") == 0
    assert await db.fetchval("SELECT array_agg(id) FROM headgate.jobs") == [parent]
    await run(queue, parent)
    assert await free(queue) == []


async def test_a_repeat_by_key_or_id_has_no_dependencies_of_its_own(queue: Queue, db: Connection) -> None:
    (parent,) = await queue.add(topic="parents")
    known, wanted = new_id(), {"depends_on": [parent], "key": "once"}
    first = await sql_submit(db, id=known, **wanted)
    assert first == known
    before = await rows_of(db, *LINKS)
    assert await sql_submit(db, **wanted) == first
    assert await sql_submit(db, id=known, **wanted) == first
    assert await rows_of(db, *LINKS) == before
    for asked, created in (({}, True), ({"key": "k"}, True), ({"key": "k"}, False), ({"unique_key": "u"}, True)):
        statement = "SELECT (headgate.submit_returning('mail', 'x'::bytea, key => $1, unique_key => $2)).created"
        assert await db.fetchval(statement, asked.get("key"), asked.get("unique_key")) is created


async def test_a_parent_held_by_an_open_transaction_delays_no_other_outcome(
    queue: Queue, db: Connection, database: str
) -> None:
    parent, other = await queue.add(2)
    await queue.claim()
    base = dict(zip((parent, other), await epochs_of(db, [parent, other], 0), strict=True))
    async with stranger(database) as session:
        child = await sql_submit(session, depends_on=[parent])
        await db.execute("SET lock_timeout = '50ms'")
        flush = OutcomeFlush()
        flush.add(await queue.tenant_no(), parent, base[parent] + 1, Completed())
        with pytest.raises(StoreBusy) as busy:
            await settling.settle(db, flush)
        assert busy.value.locked  # dispatch then writes the flush without that row: test_locked_outcomes.py
        await queue.settle((other, 1, Completed()))
        assert await state(queue, other) is State.COMPLETED
    await queue.settle((parent, 1, Completed()))
    assert await free(queue) == [child]


async def test_two_transactions_with_one_unique_key_make_one_job(queue: Queue, db: Connection, database: str) -> None:
    await queue.topic()
    async with stranger(database) as session:
        first = await sql_submit(session, unique_key="k")
        later = asyncio.create_task(sql_submit(db, unique_key="k"))
        await until(lambda: blocked_on_a_lock(session))
        assert not later.done()
    assert await asyncio.wait_for(later, 60) == first
    assert await rows_of(db, "jobs") == 1


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_one_snapshot_is_not_enough_for_dependencies(db: Connection, queue: Queue, isolation: Any) -> None:
    (parent,) = await queue.add()
    for options in ({"unique_key": "k"}, {"depends_on": [parent]}, {"batch": new_id()}):
        with pytest.raises(asyncpg.InvalidTransactionStateError, match="need READ COMMITTED") as refused:
            async with db.transaction(isolation=isolation):
                await sql_submit(db, **options)
        assert refused.value.hint == "headgate code: isolation_level"


POLICIES = [
    RetryPolicy(),
    RetryPolicy.fixed(timedelta(seconds=3)),
    RetryPolicy.exponential_full_jitter(timedelta(seconds=1), cap=timedelta(hours=1)),
    RetryPolicy.explicit(timedelta(0), timedelta(seconds=5)),
    *(RetryPolicy(kind=kind) for kind in BackoffKind if kind is not BackoffKind.EXPLICIT),
]


def as_json(policy: RetryPolicy) -> dict[str, object]:
    found: dict[str, object] = {
        "kind": policy.kind.name.lower(),
        "base_ms": policy.base_ms,
        "cap_ms": policy.cap_ms,
        "delays_ms": list(policy.delays_ms),
    }
    return found


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind.name)
async def test_a_retry_policy_is_that_of_the_domain(queue: Queue, db: Connection, policy: RetryPolicy) -> None:
    job_id = await sql_submit(db, retry=json.dumps(as_json(policy)))
    policy_no = await db.fetchval("SELECT policy_no FROM headgate.jobs WHERE id = $1", job_id)
    assert policy_no == await queue.names.policy_no(db, await queue.tenant_no(), policy)
    short = {name: value for name, value in as_json(policy).items() if value and name != "cap_ms"}
    if policy.cap_ms == RetryPolicy().cap_ms:
        assert await sql_submit(db, retry=json.dumps(short))
        assert await db.fetchval("SELECT count(DISTINCT policy_no) FROM headgate.jobs") == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"unique_key": ""}, "unique_key: must be 1 to 255"),
        ({"unique_key": "k" * (KEY_MAX_CHARS + 1)}, "unique_key: must be 1 to 255"),
        ({"unique_key": "a\nb"}, "unique_key: must be 1 to 255"),
        ({"unique_key": "k", "on_conflict": "drop"}, "on_conflict: must be keep"),
        ({"unique_key": "k", "on_conflict": None}, "on_conflict: must be keep"),
        ({"unique_key": "k", "debounce_max": timedelta(1)}, "debounce_max: has no meaning with keep"),
        ({"on_conflict": "replace", "debounce_max": timedelta(0)}, "debounce_max: must be between 1 millisecond"),
        ({"on_conflict": "replace", "debounce_max": timedelta(2_000)}, "debounce_max: must be between 1 millisecond"),
        ({"depends_on": [uuid4()]}, "depends_on: must be UUIDs of version 7 or 8"),
        ({"depends_on": [None]}, "depends_on: must be UUIDs of version 7 or 8"),
        ({"depends_on": [new_id()] * (PARENTS_MAX + 1)}, "depends_on: 1001 jobs is over the limit of 1000"),
        ({"needs": "luck"}, "needs: must be succeeded or ended"),
        ({"on_parent_failure": None}, "on_parent_failure: must be cancel, ignore or block"),
        ({"retry": "[]"}, "retry: kind must be one of quadratic"),
        ({"retry": '{"kind": "sometimes"}'}, "retry: kind must be one of quadratic"),
        ({"retry": '{"kind": "fixed", "colour": 1}'}, "retry: has another field"),
        ({"retry": '{"kind": "fixed", "base_ms": "1"}'}, "retry: base_ms and cap_ms must be numbers"),
        ({"retry": '{"kind": "fixed", "base_ms": 0}'}, "retry: base_ms must be a whole number from 1"),
        ({"retry": '{"kind": "fixed", "base_ms": 1.5}'}, "retry: base_ms must be a whole number from 1"),
        ({"retry": '{"kind": "fixed", "base_ms": 5, "cap_ms": 4}'}, "retry: base_ms must be a whole number from 1"),
        ({"retry": f'{{"kind": "fixed", "cap_ms": {RETRY_CAP_MAX_MS + 1}}}'}, "retry: base_ms must be a whole number"),
        ({"retry": '{"kind": "fixed", "delays_ms": [1]}'}, "retry: delays_ms must be a list of 1 to 100"),
        ({"retry": '{"kind": "explicit"}'}, "retry: delays_ms must be a list of 1 to 100"),
        ({"retry": '{"kind": "explicit", "delays_ms": 3}'}, "retry: delays_ms must be a list"),
        ({"retry": '{"kind": "explicit", "delays_ms": [-1]}'}, "retry: delays_ms must be a list of 1 to 100"),
        ({"retry": '{"kind": "explicit", "delays_ms": ["1"]}'}, "retry: delays_ms must be a list of 1 to 100"),
        (
            {"retry": json.dumps({"kind": "explicit", "delays_ms": [1] * (RETRY_DELAYS_MAX + 1)})},
            "retry: delays_ms must be a list of 1 to 100",
        ),
    ],
)
async def test_a_bad_option_is_refused_with_its_name(db: Connection, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await sql_submit(db, **options)
    assert refused.value.args[0].startswith(problem)
    assert refused.value.hint == "headgate code: invalid_input"


async def test_a_job_cannot_wait_for_itself(db: Connection) -> None:
    own: UUID = new_id()
    with pytest.raises(asyncpg.InvalidParameterValueError, match="cannot wait for itself"):
        await sql_submit(db, id=own, depends_on=[own])


DECLARED = "SELECT job_id FROM headgate.submit_returning('mail', 'x'::bytea, declared => $1)"


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ("[]", "must be a JSON object"),
        ('{"max_attempts": "3"}', "max_attempts must be a whole number from 1 to 10000"),
        ('{"max_attempts": 1.5}', "max_attempts must be a whole number from 1 to 10000"),
        ('{"max_attempts": 1e30}', "max_attempts must be a whole number from 1 to 10000"),
        ('{"priority": "high"}', "priority must be a whole number"),
        ('{"priority": 2147483648}', "priority must be a whole number"),
    ],
)
async def test_a_bad_declaration_is_refused_with_its_name(db: Connection, declared: str, problem: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await db.fetchval(DECLARED, declared)
    assert refused.value.args[0].startswith(f"declared: {problem}")
    assert refused.value.hint == "headgate code: invalid_input"


async def test_what_is_declared_as_null_is_not_declared(db: Connection) -> None:
    job_id = await db.fetchval(DECLARED, '{"priority": 7.0, "max_attempts": null, "retry": null}')
    row = await db.fetchrow("SELECT priority, max_attempts, policy_no FROM headgate.jobs WHERE id = $1", job_id)
    assert tuple(row) == (7, 20, 1)
