"""Quotas of tenants: what is refused, by which sentence, and what a submit pays for them (ADR 47)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from headgate.control.tenant_limits import READ_AGAIN_SECONDS, TenantLimits
from headgate.domain.errors import BacklogFull, QuotaExceeded, TooLarge
from headgate.domain.outcomes import Completed
from headgate.domain.schedules import Every
from headgate.domain.states import SubmitReceipt
from headgate.domain.tenants import QUOTAS, Quota, TenantRateLimited, checked_quotas
from headgate.domain.topic_limits import Rate
from headgate.store import tenants, topics, upkeep
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from headgate.store.flush import fill
from headgate.store.submit import submit
from headgate.store.tenants import TenantStore
from tests.integration.schedules.bench import MINUTE, NOON, Bench
from tests.support.queue import Clock, Queue, new_id


@pytest.fixture
async def queue(db: Connection) -> Queue:
    made = Queue(db)
    await made.topic()
    return made


async def limit(queue: Queue, **quotas: Any) -> None:
    await tenants.set_quotas(
        queue.db, await queue.tenant_no(), queue.tenant, checked_quotas(quotas), actor="test", reason=""
    )


async def shown(queue: Queue) -> tuple[dict[str, Quota], dict[str, int]]:
    (view,) = await tenants.show(queue.db, name=queue.tenant)
    return dict(view.quotas), dict(view.used)


async def refusals(queue: Queue, *jobs: Any) -> list[Exception | None]:
    flush = await fill(queue.db, queue.names, jobs)
    answers = await submit(queue.db, flush)
    return [answers[index].error if index in answers else None for index in range(len(jobs))]


async def test_a_full_backlog_of_a_tenant_refuses_what_does_not_fit_and_says_what_to_do(queue: Queue) -> None:
    await limit(queue, max_backlog=5)
    other = Queue(queue.db, tenant="other")
    await queue.add(4, "mail")
    found = await refusals(queue, *(queue.job(topic) for topic in ("mail", "report", "report")))
    assert [type(one).__name__ for one in found] == ["NoneType", "TenantQuotaExceeded", "TenantQuotaExceeded"]
    assert isinstance(found[1], QuotaExceeded)
    assert (found[1].code, found[1].column, found[1].quota) == ("quota_exceeded", "max_backlog", 5)
    assert "has 4 of 5 (max_backlog" in str(found[1])
    assert "headgate tenant set" in str(found[1])
    await other.add(20)  # another tenant has nothing to do with it
    claimed = await queue.claim(3)
    await queue.settle(*((one, epoch, Completed()) for one, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
    assert await refusals(queue, queue.job("report"), queue.job("report"), queue.job("report")) == [None, None, None]
    assert (await shown(queue))[1]["max_backlog"] == 5


async def test_a_repeat_is_answered_although_the_quota_is_full(queue: Queue) -> None:
    await limit(queue, max_backlog=1)
    job, keyed = queue.job(), queue.job(key="once")
    await limit(queue, max_backlog=2)
    assert await refusals(queue, job, keyed) == [None, None]
    again = await queue.submit(queue.job(id=job.id), queue.job(key="once"))
    assert [one.id for one in again] == [job.id, keyed.id]


async def test_the_backlogs_of_a_topic_and_of_its_tenant_hold_together(queue: Queue) -> None:
    await limit(queue, max_backlog=3)
    await topics.set_topic(queue.db, queue.names, await queue.tenant_no(), "mail", changes={"max_backlog": 1})
    found = await refusals(queue, *(queue.job(topic) for topic in ("mail", "mail", "report")))
    assert isinstance(found[1], BacklogFull)
    assert (found[0], found[2]) == (None, None)


async def test_stored_bytes_are_measured_and_a_full_store_refuses_new_jobs(queue: Queue) -> None:
    (done, *_) = await queue.add(3, payload=b"x" * 2_000)  # apart from the job
    await queue.add(2, payload=b"y" * 100)
    claimed = await queue.claim(1)
    await queue.settle((claimed.ids[0], claimed.epochs[0], Completed(result=b"r" * 500)))
    assert done == claimed.ids[0]
    await upkeep.measure_stored(queue.db)
    assert (await shown(queue))[1].get("max_stored_bytes") is None, "no quota asks for it"
    await limit(queue, max_stored_bytes=6_700)
    await upkeep.measure_stored(queue.db)
    assert (await shown(queue))[1]["max_stored_bytes"] == 3 * 2_000 + 2 * 100 + 500
    assert await refusals(queue, queue.job(payload=b"z" * 100)) != [None], "6,700 of 6,700"
    await limit(queue, max_stored_bytes=6_701)
    assert await refusals(queue, queue.job(payload=b"z" * 100)) == [None], "what is measured counts"
    await upkeep.measure_stored(queue.db)
    (error,) = await refusals(queue, queue.job())
    assert "6800B of 6701B (max_stored_bytes" in str(error)
    await queue.db.execute("DELETE FROM headgate.jobs; DELETE FROM headgate.payloads")
    await upkeep.measure_stored(queue.db)
    assert await refusals(queue, queue.job()) == [None]


async def test_a_payload_over_the_quota_is_refused_by_every_way_to_submit_and_its_neighbours_are_not(
    queue: Queue,
) -> None:
    await limit(queue, max_payload_bytes=4, max_backlog=4)
    (before,) = await queue.add(1, payload=b"1234")
    other = Queue(queue.db, tenant="other")
    large = queue.job(payload=b"12345")
    found = await refusals(queue, large, queue.job(payload=b"1234"), other.job(payload=b"12345"))
    assert [type(one).__name__ for one in found] == ["TooLarge", "NoneType", "NoneType"]
    assert "payload: 5 bytes is over the limit of 4 bytes; store the data elsewhere" in str(found[0])
    assert "raise max_payload_bytes of the tenant with `headgate tenant set`" in str(found[0])
    found = await refusals(queue, queue.job(), large, queue.job(), queue.job())
    assert [type(one).__name__ for one in found] == ["NoneType", "TooLarge", "NoneType", "TenantQuotaExceeded"]
    submit = "SELECT headgate.submit('mail', $1::bytea, tenant => 'acme')"
    with pytest.raises(asyncpg.PostgresError, match=r"5 bytes is over the limit of 4 bytes of tenant .acme.") as told:
        await queue.db.fetchval(submit, b"12345")
    assert (told.value.sqlstate, told.value.hint) == ("54000", "headgate code: too_large")
    await limit(queue, max_payload_bytes=2, max_backlog=None)
    answers = await submit_again(queue, before, b"1234")
    assert answers[0].error is None, "what was submitted before is answered as such"


async def submit_again(queue: Queue, job_id: Any, payload: bytes) -> Any:
    return await submit(queue.db, await fill(queue.db, queue.names, [queue.job(id=job_id, payload=payload)]))


async def test_the_payload_of_a_schedule_is_checked_when_it_is_put_and_an_old_one_goes_on_firing(
    db: Connection,
) -> None:
    bench = Bench(db, await Clock.install(db, NOON))
    await bench.queue.topic()
    await bench.put(timing=Every(interval=MINUTE), payload=b"12345")
    await limit(bench.queue, max_payload_bytes=4)
    with pytest.raises(TooLarge, match="5 bytes is over the limit of 4 bytes"):
        await bench.put("second", timing=Every(interval=MINUTE), payload=b"12345")
    await bench.put(timing=Every(interval=timedelta(minutes=2)), payload=b"12345")  # another time, the same payload
    await bench.clock.advance(minutes=2)
    assert (await bench.scheduler.run_once()).made == 1


async def test_a_large_table_is_sampled_and_the_estimate_is_near(queue: Queue) -> None:
    await limit(queue, max_stored_bytes=10**12)
    await queue.db.execute(
        "INSERT INTO headgate.payloads "
        "SELECT $1, gen_random_uuid(), repeat('x', 1500)::bytea FROM generate_series(1, 8000)",
        await queue.tenant_no(),
    )
    await queue.db.execute("SELECT headgate.measure_stored_v1(200, 1)")  # of about 1,600 pages
    assert 0.5 * 12e6 < (await shown(queue))[1]["max_stored_bytes"] < 1.5 * 12e6


async def test_sql_submits_keep_the_quotas_of_their_tenant(queue: Queue) -> None:
    await limit(queue, max_backlog=1)
    submit = "SELECT headgate.submit('mail', 'x'::bytea, tenant => 'acme')"
    await queue.db.fetchval(submit)
    with pytest.raises(asyncpg.PostgresError, match=r"has 1 of 1 .max_backlog") as told:
        await queue.db.fetchval(submit)
    assert told.value.hint == "headgate code: quota_exceeded"


async def test_a_schedule_of_a_tenant_with_a_full_quota_stays_due(db: Connection) -> None:
    bench = Bench(db, await Clock.install(db, NOON))
    await bench.queue.topic()
    await limit(bench.queue, max_backlog=1)
    await bench.queue.add(1)
    await bench.put(timing=Every(interval=MINUTE))
    await bench.clock.advance(minutes=1)
    done = await bench.scheduler.run_once()
    assert (done.made, done.skipped, done.waiting) == (0, 0, 1)
    claimed = await bench.queue.claim(1)
    await bench.queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 1


async def test_schedules_are_counted_when_one_is_made_and_not_when_one_is_changed(db: Connection) -> None:
    bench = Bench(db, await Clock.install(db, NOON))
    await bench.queue.topic()
    await limit(bench.queue, max_schedules=1)
    await bench.put(timing=Every(interval=MINUTE))
    await bench.put(timing=Every(interval=timedelta(minutes=2)))
    with pytest.raises(QuotaExceeded, match=r"has 1 of 1 .max_schedules"):
        await bench.put("second", timing=Every(interval=MINUTE))


async def test_defaults_count_for_tenants_without_a_quota_of_their_own(queue: Queue) -> None:
    await limit(queue, max_backlog=7)
    other = Queue(queue.db, tenant="other")
    await other.tenant_no()
    await tenants.set_defaults(
        queue.db, checked_quotas({"max_backlog": 3, "submit_rate": "5/1s"}), actor="test", reason=""
    )
    assert (await shown(queue))[0]["max_backlog"] == 7
    assert (await shown(other))[0]["max_backlog"] == 3
    later = Queue(queue.db, tenant="later")
    await later.tenant_no()
    assert (await shown(later))[0] == (await shown(other))[0]
    await limit(queue, max_backlog=None)
    assert (await shown(queue))[0]["max_backlog"] == 3
    await tenants.set_defaults(queue.db, dict.fromkeys(QUOTAS), actor="test", reason="")
    assert (await shown(later))[0]["max_backlog"] is None
    verbs = await queue.db.fetch("SELECT verb, tenant_no FROM headgate.audit ORDER BY audit_no DESC LIMIT 2")
    assert [tuple(row) for row in verbs] == [("set_tenant_defaults", 0), ("set_tenant", await queue.tenant_no())]


# ---------------------------------------------------------------------- in memory


class Ticking:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store(database: str) -> AsyncIterator[DispatchStore]:
    made = DispatchStore(database)
    yield made
    await made.close()


async def test_a_rate_is_limited_by_tenant_without_a_statement_per_submit(queue: Queue, store: DispatchStore) -> None:
    sent: list[str] = []
    await store.tenant_no("acme")
    async with store.as_tenant("read", await queue.tenant_no()) as db:
        db.add_query_logger(lambda record: sent.append(record.query))
    clock = Ticking()
    limits = TenantLimits(TenantStore(store), now=clock)
    await limit(queue, submit_rate=Rate(count=100, period=timedelta(seconds=1), burst=150))
    limits.take("acme", 1_000)  # not known yet: it is read while this is taken
    await asyncio.gather(*limits._reading.values())
    for _ in range(150):
        limits.take("acme", 1)
    with pytest.raises(TenantRateLimited, match="tenant acme is limited to 100/1s:150") as told:
        limits.take("acme", 1)
    assert (told.value.code, told.value.retry_after_ms) == ("rate_limited", 10)
    await asyncio.gather(*limits._reading.values())
    await asyncio.sleep(0)  # the driver calls loggers from the loop
    assert len(sent) == 1, "of 150 submits, one was followed by a read"
    clock.now += READ_AGAIN_SECONDS
    limits.take("acme", 10)
    await asyncio.gather(*limits._reading.values())
    assert len(sent) == 2, "one statement in five seconds, however many jobs there were"
    await limit(queue, submit_rate=None)
    limits.changed("acme")
    limits.take("acme", 1)
    await asyncio.gather(*limits._reading.values())
    limits.take("acme", 100_000)
    await limits.close()


async def test_sessions_of_all_instances_count(queue: Queue, store: DispatchStore) -> None:
    tenant_no = await queue.tenant_no()
    await queue.db.execute(
        "INSERT INTO headgate.instances (name, version, summary) VALUES ('elsewhere', '', $1)",
        f'{{"counts": {{"{tenant_no}": 3}}}}',
    )
    limits = TenantLimits(TenantStore(store))
    await limits.check_session("acme", lambda: 1_000)
    await limit(queue, max_sessions=5)
    limits.changed()
    await limits.check_session("acme", lambda: 1)
    with pytest.raises(QuotaExceeded, match=r"has 5 of 5 .max_sessions"):
        await limits.check_session("acme", lambda: 2)
    await limits.close()


@pytest.mark.parametrize("full", ["tenant", "topic"])
async def test_what_was_submitted_before_is_answered_as_such_by_a_tenant_that_is_full(
    db: Connection, full: str
) -> None:
    """Live, finished, and under a key; not under a key whose time is over."""
    queue, clock = Queue(db), await Clock.install(db)
    done = queue.job(id=new_id())
    await queue.submit(done, queue.job(key="once", key_window=timedelta(hours=2)), queue.job(key="old"))
    await queue.settle((done.id, (await queue.claim(1)).epochs[0], Completed()))
    if full == "tenant":
        await db.execute("UPDATE headgate.tenants SET max_backlog = 0")
    else:
        changes = {"max_backlog": 0}
        await topics.set_topic(db, queue.names, await queue.tenant_no(), "mail", changes=changes)
    await clock.advance(hours=1)
    await db.execute("UPDATE headgate.idempotency_keys SET expires_at = headgate.clock_v1() WHERE key = 'old'")
    told = await submit(
        db, await fill(db, queue.names, [done, queue.job(key="once"), queue.job(key="old"), queue.job()])
    )
    duplicate, refused = SubmitReceipt.DUPLICATE, SubmitReceipt.REFUSED
    assert [told[place].receipt for place in range(4)] == [duplicate, duplicate, refused, refused]
