"""Names: asking for jobs makes no topic, a new one is known at once, quotas hold, and only changes are read."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from headgate.dispatch import session_rules
from headgate.dispatch.session_rules import reporting_errors
from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import HeadgateError, QuotaExceeded, TooLarge
from headgate.domain.ids import TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.states import State
from headgate.store import topics
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.names import Names
from tests.support.dispatch_waits import SOON, soon
from tests.support.dispatch_workers import Worker, completing
from tests.support.dispatching import Instance, listening
from tests.support.queue import Queue
from tests.support.waiting import until_async
from tests.support.watched_store import Hold

TOPICS = "SELECT count(*) FROM headgate.topics"
SECOND = timedelta(seconds=1)


def ask(worker: Worker, *names: str, count: int = 1, lease_ms: int = 60_000) -> None:
    worker.instance.demands.ask(worker.session, names, lease_ms, count)


def job(one: Instance, topic: str, **options: Any) -> Submission:
    values: dict[str, Any] = {"id": one.ids.make(1)[0], "new_id": True} | options
    return Submission(tenant=TenantName(one.tenant), topic=TopicName(topic), **values)


# ---------------------------------------------------------------------- asking for topics that do not exist


async def test_asking_for_10_000_names_asks_nothing_of_the_database_and_makes_no_topic(
    stepped: Instance, db: Connection
) -> None:
    workers = [await stepped.worker(f"w{n}") for n in range(10)]
    before = await db.fetchval(TOPICS)
    await stepped.store.count_statements()
    begun = await stepped.store.sent()
    for n, worker in enumerate(workers):
        ask(worker, *(f"new-{n}-{m}" for m in range(1_000)), count=5)
    assert await stepped.store.sent() == begun
    for _ in range(3):
        await stepped.ticker.run_once()
        assert await stepped.claimer.run_once() == 0
    assert await db.fetchval(TOPICS) == before
    assert stepped.store.asked == [], "there is nothing to claim from"
    assert sum(worker.session.credit[demand] for worker in workers for demand in worker.session.credit) == 50


async def test_a_session_waits_for_a_bounded_number_of_names_and_combinations(stepped: Instance) -> None:
    worker = await stepped.worker()
    for n in range(limits.SESSION_DEMANDS_MAX):
        ask(worker, "mail" if n % 2 else f"new-{n}", lease_ms=1_000 * (n + 1))
    for names, lease_ms in ((("mail",), 999_000), (("mail", "more"), 60_000)):
        with pytest.raises(TooLarge, match="65 combinations of topics and lease_seconds is over the limit of 64"):
            ask(worker, *names, lease_ms=lease_ms)
    ask(worker, "mail", lease_ms=2_000, count=3)  # one that it has
    other = await stepped.worker("other")
    ask(other, *(f"x{n}" for n in range(limits.SESSION_UNKNOWN_TOPICS_MAX)))
    with pytest.raises(TooLarge, match="1001 topics without any job so far is over the limit of 1000"):
        ask(other, "one-more")
    ask(other, "mail", lease_ms=7_000)
    assert len(stepped.demands.by_wanted) == limits.SESSION_DEMANDS_MAX + 2


async def test_combinations_without_open_credit_make_space_for_others(stepped: Instance) -> None:
    worker = await stepped.worker()
    for n in range(limits.SESSION_DEMANDS_MAX):
        ask(worker, "mail", lease_ms=1_000 * (n + 1))
    await stepped.submit(limits.SESSION_DEMANDS_MAX)
    assert await stepped.claimer.run_once() == limits.SESSION_DEMANDS_MAX
    for n in range(limits.SESSION_DEMANDS_MAX):
        ask(worker, "mail", lease_ms=1_000 * (n + 100))
    assert len(worker.session.credit) == len(stepped.demands.by_wanted) == limits.SESSION_DEMANDS_MAX


async def test_a_job_of_a_new_topic_starts_at_once_where_it_was_submitted(one: Instance) -> None:
    worker = await one.worker("w", handler=completing())  # the tick of `one` is an hour away
    ask(worker, "new", "mail", count=5)
    ids = [*await one.submit(1, "new"), *await one.submit(1, "mail"), *await one.submit(1, "new")]
    await one.reach(3, State.COMPLETED)
    assert worker.tracker.times == dict.fromkeys(ids, 1)
    assert one.claimer.claimed == 3, "what the claim brought went to the worker, not back"
    await soon(lambda: one.free() == 5, "all credit is back: each handler that ends asks for one more")


async def test_a_job_of_a_new_topic_starts_at_once_on_another_instance(one: Instance, database: str) -> None:
    one.wakes.apart_seconds = 0.01
    one.start("announcements", one.wakes.run())
    async with Instance(database, name="two") as two:
        await soon(lambda: two.ticker.ticks, "the first tick is over")
        two.start("notifications", two.store.listen(two.wakes.follow))
        await until_async(lambda: listening(two), "two listens")
        await one.ticker.run_once()  # it knows the other
        worker = await two.worker("w", handler=completing())
        ask(worker, "new", count=2)
        await soon(lambda: two.ticker.ticks >= 2, "it has looked whether another instance has made the topic")
        (made,) = await one.submit(1, "new")
        await one.reach(1, State.COMPLETED)
        assert worker.tracker.times == {made: 1}


async def test_a_topic_that_another_instance_has_made_is_found_without_waiting_for_a_tick(
    one: Instance, database: str
) -> None:
    async with Instance(database, name="two", running=False) as two:
        (made,) = await two.submit(1, "new")
    worker = await one.worker("w", handler=completing())
    ask(worker, "new")
    await one.reach(1, State.COMPLETED)
    assert worker.tracker.times == {made: 1}


async def test_a_tick_finds_a_new_topic_without_a_notification(stepped: Instance, db: Connection) -> None:
    worker = await stepped.worker()
    ask(worker, "new", count=3)
    async with db.transaction():
        await db.fetchval("SELECT headgate.submit('new', 'x'::bytea, tenant => $1)", stepped.tenant)
        await Queue(db, tenant="other").topic("new")  # of no concern
        await stepped.ticker.run_once()
        assert await stepped.claimer.run_once() == 0
        # Others come and are read meanwhile: the transaction that commits last was the first to begin.
        await stepped.submit(1, "elsewhere")
        await stepped.ticker.run_once()
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 1
    assert len(await worker.take()) == 1
    assert stepped.free() == 2


async def test_credit_is_kept_when_a_topic_appears_while_a_claim_is_in_flight(one: Instance) -> None:
    worker = await one.worker("w", handler=completing())
    ask(worker, "mail", "new", count=5)
    await soon(lambda: one.store.got, "it has looked, and found nothing")
    hold = one.store.after["claim"] = Hold()
    ids = await one.submit(2, "mail")
    await hold.reached()
    ids += await one.submit(1, "new")
    hold.release()
    await one.reach(3, State.COMPLETED)
    assert worker.tracker.times == dict.fromkeys(ids, 1)
    assert one.claimer.claimed == 3, "what the claim brought went to the worker, not back"
    await soon(lambda: one.free() == 5, "all credit is back: each handler that ends asks for one more")


async def test_a_quiet_worker_gets_jobs_of_a_topic_that_appeared_meanwhile(stepped: Instance) -> None:
    worker = await stepped.worker()
    ask(worker, "new", count=2)
    stepped.demands.quiet(worker.session)
    ask(worker, "new", "newer")
    await stepped.submit(1, "new")
    assert await stepped.claimer.run_once() == 0
    stepped.demands.resume_worker(worker.session)
    assert await stepped.claimer.run_once() == 1
    assert stepped.free() == 2


async def test_a_session_that_names_many_other_topics_each_time_is_read_slowly(
    stepped: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(session_rules, "asyncio", SimpleNamespace(sleep=pause))
    worker = await stepped.worker()

    async def ready(*names: str) -> list[float]:
        pauses.clear()
        with reporting_errors(worker.session):
            await stepped.rules.request_jobs(worker.session, names, 1)
        return list(pauses)

    many, others = ([f"{name}{n}" for n in range(1_000)] for name in "ab")
    assert [await ready(*many), await ready(*many), await ready(), await ready("mail")] == [[0.1], [], [], []]
    assert [await ready(*others), await ready(*others)] == [[0.1], [0.1]]  # refused: it waits for 1,000 others already
    assert worker.session.topics == ["mail"]


async def test_a_worker_that_leaves_leaves_no_name_behind(stepped: Instance) -> None:
    worker = await stepped.worker()
    ask(worker, "new", "mail", count=2)
    stepped.demands.revoke(worker.session)
    demands = stepped.demands
    assert (demands.by_wanted, demands._by_name, demands.by_topic) == ({}, {}, {})


# ---------------------------------------------------------------------- quotas


async def test_a_tenant_has_a_quota_of_topics_and_others_do_not_feel_it(stepped: Instance, db: Connection) -> None:
    await stepped.submit(1, "mail")
    await db.execute("UPDATE headgate.tenants SET max_topics = 3")
    await stepped.submit(1, "a")
    await stepped.store.count_statements()
    begun = await stepped.store.sent()
    refused = await stepped.store.refusals(stepped.tenant, [job(stepped, name) for name in ("b", "mail", "c", "b")])
    assert sorted(refused) == [0, 2, 3]  # both do not fit: none of them is made
    assert await stepped.store.sent() == begun + 1
    assert await db.fetchval(TOPICS) == 2
    await stepped.submit(1, "b")
    with pytest.raises(
        QuotaExceeded, match=r'topic "c" is new, and the tenant has its quota of 3 .max_topics.;'
    ) as over:
        await stepped.submit(1, "c")
    assert over.value.code == "quota_exceeded"
    with pytest.raises(asyncpg.ConfigurationLimitExceededError, match="quota of 3 topics") as caught:
        await db.fetchval("SELECT headgate.submit('c', 'x'::bytea, tenant => $1)", stepped.tenant)
    assert caught.value.hint == "headgate code: quota_exceeded"
    for known in ("mail", "a", "b"):
        await stepped.submit(1, known)
    assert await Queue(db, tenant="other").add(1, "c")
    await db.execute("UPDATE headgate.tenants SET max_topics = 4")
    await stepped.submit(1, "c")


async def test_a_tenant_has_a_quota_of_retry_policies(stepped: Instance, db: Connection) -> None:
    await stepped.submit(1, "mail")
    await db.execute("UPDATE headgate.tenants SET max_policies = 2")
    fixed = [RetryPolicy.fixed(n * SECOND) for n in range(1, 5)]
    await stepped.submit(1, policy=fixed[0])
    jobs = [job(stepped, "mail", policy=policy) for policy in (fixed[0], RetryPolicy(), None, fixed[2], fixed[3])]
    await stepped.store.count_statements()
    begun = await stepped.store.sent()
    assert sorted(await stepped.store.refusals(stepped.tenant, jobs)) == [3, 4]
    assert await stepped.store.sent() == begun + 1
    await stepped.submit(1, policy=RetryPolicy.explicit(SECOND, 3 * SECOND))
    with pytest.raises(QuotaExceeded, match="retry: this policy is new, and the tenant has its quota of 2"):
        await stepped.submit(1, policy=fixed[1])
    count = "SELECT count(*) FROM headgate.retry_policies WHERE tenant_no > 0"
    assert await db.fetchval(count) == 2
    assert await Queue(db, tenant="other").add(1, policy=fixed[1])
    # Another instance, which remembers none of them.
    async with Instance(stepped.store._dsn, name="two", running=False) as two:
        await two.submit(1, policy=fixed[0])
        with pytest.raises(QuotaExceeded):
            await two.submit(1, policy=fixed[1])


async def test_the_quotas_are_those_of_the_limits(db: Connection) -> None:
    await Names().tenant(db, "acme")
    row = await db.fetchrow("SELECT max_topics, max_policies FROM headgate.tenants")
    assert tuple(row or ()) == (limits.TOPICS_MAX, limits.RETRY_POLICIES_MAX)


# ---------------------------------------------------------------------- reading what has changed


async def test_a_tick_asks_for_names_only_when_some_have_changed(stepped: Instance, db: Connection) -> None:
    await Queue(db).names.topics(db, await Queue(db).tenant_no(), [f"t{n}" for n in range(500)])

    async with stepped.store.lane("upkeep").use() as reader:
        assert await stepped.store.names.refresh(reader) == 500
        assert await stepped.store.names.refresh(reader) == 0
    assert stepped.store.names.topic_no((await Queue(db).tenant_no()), "t499") is not None
    await stepped.store.count_statements()
    await stepped.ticker.run_once()
    begun = await stepped.store.sent()
    for _ in range(5):
        await stepped.ticker.run_once()
    assert await stepped.store.sent() == begun + 5, "the tick itself, and nothing for the names"
    await db.execute("UPDATE headgate.topics SET max_attempts = 7 WHERE name = 't3'")
    await stepped.ticker.run_once()
    assert await stepped.store.sent() == begun + 7
    (topic,) = await stepped.store.topics(stepped.tenant, ["t3"])
    assert topic.rules.max_attempts == 7


async def test_what_any_transaction_changes_is_read_once_whenever_it_commits(db: Connection, database: str) -> None:
    queue, names = Queue(db), Names()
    tenant = await queue.tenant_no()
    await queue.topic("mail")
    async with Instance(database, name="reader", running=False) as reader, reader.store.lane("upkeep").use() as other:
        await names.refresh(other)
        transaction = db.transaction()
        await transaction.start()
        await Names().topics(db, tenant, ["late"])
        await db.execute("UPDATE headgate.topics SET max_attempts = 3 WHERE name = 'mail'")
        for n in range(3):
            await Names().topics(other, tenant, [f"early-{n}"])
            assert await names.refresh(other) == 1
        assert names.topic_no(tenant, "late") is None
        await transaction.commit()
        assert await names.refresh(other) == 2
        assert names.topic_no(tenant, "late") is not None
        assert names.known_topic_of(tenant, "mail").rules.max_attempts == 3
        # Limits are kept beside the topic; what instances remember of them changes with it.
        no = names.known_topic_of(tenant, "late").no
        await topics.set_topic(db, Names(), tenant, "late", changes={"max_running_per_key": 1})
        assert await names.refresh(other) == 1
        assert names.topics_by_no[no].keyed


FAILS_AT_COMMIT = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'no commit' USING ERRCODE = 'object_in_use'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON headgate.topics DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION public.refuse()"""


async def test_behind_a_pooler_a_topic_is_cached_only_when_its_transaction_has_committed(
    db: Connection, database: str
) -> None:
    store = Database(database, direct_dsn=database, pooler=True)
    seen: list[str] = []
    store.names.on_topic = lambda _tenant, name, _no: seen.append(name)
    try:
        await store.tenant_no("acme")
        await db.execute(FAILS_AT_COMMIT)
        with pytest.raises(HeadgateError):
            await store.topics("acme", ["mail"])
        assert store.names.cached("acme", "mail") is None
        assert seen == []
        await db.execute("DROP TRIGGER refuse ON headgate.topics")
        (topic,) = await store.topics("acme", ["mail"])
        assert topic.no == await db.fetchval("SELECT topic_no FROM headgate.topics WHERE name = 'mail'")
        assert seen == ["mail"]
    finally:
        await store.close()


async def test_a_look_that_answers_late_does_not_undo_a_newer_one(db: Connection) -> None:
    queue, names = Queue(db), Names()
    tenant = await queue.tenant_no()
    await queue.topic("mail")

    class Slow:
        """Reads at once, and answers when the test permits it."""

        def __init__(self) -> None:
            self.read, self.answer = asyncio.Event(), asyncio.Event()

        async def fetch(self, *asked: Any) -> Any:
            rows = await db.fetch(*asked)
            self.read.set()
            await self.answer.wait()
            return rows

    slow = Slow()
    late = asyncio.create_task(names.refresh(slow))  # type: ignore[arg-type]
    await asyncio.wait_for(slow.read.wait(), SOON.total_seconds())
    await db.execute("UPDATE headgate.topics SET max_attempts = 3")
    await names.refresh(db)
    slow.answer.set()
    await asyncio.wait_for(late, SOON.total_seconds())
    assert names.known_topic_of(tenant, "mail").rules.max_attempts == 3
