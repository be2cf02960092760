"""Rules of topics in the database: declared by handlers, set and released by operators, applied to every submit."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from headgate.control.topics import Topics
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import InvalidInput, NotFound, QuotaExceeded
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.jobs import JobRules
from headgate.domain.schedules import Every, ScheduleSpec
from headgate.domain.timestamps import EPOCH
from headgate.domain.topic_rules import Origin
from headgate.domain.topic_sets import TopicSet
from headgate.store import schedules, topics
from headgate.store.connect import Connection
from headgate.store.names import Names
from headgate.store.topics import TopicStore
from tests.support.dispatching import Instance
from tests.support.queue import Queue, new_id

FIXED = RetryPolicy.fixed(timedelta(seconds=30))
JOB = """
SELECT j.priority, j.max_attempts, p.kind, p.base_ms, j.rank_class
  FROM headgate.jobs j JOIN headgate.retry_policies p ON p.policy_no = j.policy_no WHERE j.id = $1"""
DEFAULTS = (0, 20, 0, 1_000, -1)


@pytest.fixture
async def queue(db: Connection) -> Queue:
    queue = Queue(db)
    await queue.topic()
    return queue


async def declare(
    queue: Queue, rules: Mapping[str, object], *, topic: str = "mail", source: str = "shop", worker: str = "w1"
) -> bool:
    found = await topics.declare_topic(
        queue.db, queue.names, await queue.tenant_no(), topic, rules, source=source, worker=worker, actor="token"
    )
    return found is not None and found[1]


async def set_rules(queue: Queue, **rules: object) -> None:
    await topics.set_topic(queue.db, queue.names, await queue.tenant_no(), "mail", rules=rules, actor="ana")


async def release(queue: Queue, *settings: str) -> None:
    await topics.release_topic(
        queue.db, queue.names, await queue.tenant_no(), "mail", settings=settings, actor="ana", reason=""
    )


async def job_in_sql(queue: Queue, **options: object) -> tuple[object, ...]:
    """What a job gets that another program submits in SQL."""
    given = "".join(f", {name} => {value}" for name, value in options.items())
    job_id = await queue.db.fetchval(f"SELECT headgate.submit('mail', '{{}}'::jsonb, tenant => 'acme'{given})")
    return tuple(await queue.db.fetchrow(JOB, job_id))


async def job_in_python(queue: Queue, **options: Any) -> tuple[object, ...]:
    """What a job gets that an instance submits."""
    job = queue.job(**options)
    await queue.submit(job)
    return tuple(await queue.db.fetchrow(JOB, job.id))


async def test_what_a_handler_declares_counts_for_every_producer(queue: Queue) -> None:
    assert await job_in_sql(queue) == await job_in_python(queue) == DEFAULTS
    assert await declare(queue, {"max_attempts": 3, "retry": FIXED, "priority": 7})
    assert await job_in_sql(queue) == await job_in_python(queue) == (7, 3, 1, 30_000, -8)
    await declare(queue, {"priority": 7, "ageing_step": timedelta(seconds=1)})
    assert await job_in_sql(queue) == await job_in_python(queue) == (7, 20, 0, 1_000, -1)
    assert await declare(queue, {})
    assert await job_in_sql(queue) == await job_in_python(queue) == DEFAULTS


async def test_an_option_of_the_producer_wins_over_every_rule(queue: Queue) -> None:
    await declare(queue, {"max_attempts": 3, "retry": FIXED, "priority": 7})
    await set_rules(queue, max_attempts=4)
    assert (await job_in_sql(queue, max_attempts=9, priority=0))[:2] == (0, 9)
    own = await job_in_python(queue, max_attempts=9, priority=0, policy=RetryPolicy())
    assert own == (0, 9, 0, 1_000, -1)


async def test_what_an_operator_has_set_wins_until_it_is_released(queue: Queue) -> None:
    await declare(queue, {"max_attempts": 3, "priority": 7})
    await set_rules(queue, max_attempts=20)  # the default, and yet set
    assert (await job_in_sql(queue))[:2] == (7, 20)
    assert await declare(queue, {"max_attempts": 5, "priority": 8}), "a new release of the program"
    assert (await job_in_sql(queue))[:2] == (await job_in_python(queue))[:2] == (8, 20)
    await release(queue, "max_attempts")
    assert (await job_in_sql(queue))[:2] == (await job_in_python(queue))[:2] == (8, 5)
    await set_rules(queue, max_attempts=2, retry=FIXED, priority=-1)
    await release(queue)
    assert await job_in_sql(queue) == (8, 5, 0, 1_000, -9)


async def test_an_instance_and_its_cache_follow(stepped: Instance, db: Connection) -> None:
    store, other = TopicStore(stepped.store), Names()
    await store.declare_topic(stepped.tenant, "mail", {"max_attempts": 3}, source="shop", worker="w", actor="t")
    (known,) = await stepped.store.topics(stepped.tenant, ["mail"])
    assert (known.rules.max_attempts, known.unruled) == (3, {"retry", "priority"})
    await other.refresh(db)
    assert other.topics_by_no[known.no].rules.max_attempts == 3
    await store.declare_topic(stepped.tenant, "mail", {"max_attempts": 3}, source="shop", worker="v", actor="t")
    assert await other.refresh(db) == 0, "the same again is nothing that an instance has to read"


@pytest.mark.parametrize("plain", [True, False])
async def test_what_the_producer_knows_as_declared_counts_until_rules_are_stored(
    stepped: Instance, db: Connection, plain: bool
) -> None:
    """Else the jobs of an application whose worker has never started would have other rules than its code says."""
    known = JobRules(max_attempts=3, policy=FIXED, priority=7)

    async def submitted() -> tuple[object, ...]:
        job = Queue(db, tenant=stepped.tenant).job(declared=known)
        if plain:
            rows = await stepped.store.fill_plain(
                stepped.tenant, "mail", [job.id.bytes], [b"x"], (), new_id=True, declared=known
            )
        else:
            rows = await stepped.store.fill([job])
        assert await stepped.store.submit(rows) == {}
        return tuple(await db.fetchrow(JOB, job.id))

    assert await submitted() == (7, 3, 1, 30_000, -8)
    store = TopicStore(stepped.store)
    await store.set_topic(stepped.tenant, "mail", rules={"max_attempts": 20}, limits={}, actor="ana", reason="")
    assert await submitted() == (7, 20, 1, 30_000, -8)
    await store.declare_topic(
        stepped.tenant, "mail", {"priority": 1, "retry": RetryPolicy()}, source="shop", worker="w", actor="t"
    )
    assert await submitted() == (1, 20, 0, 1_000, -2)


async def test_plain_jobs_have_their_own_priority_or_that_of_the_topic(stepped: Instance, db: Connection) -> None:
    await TopicStore(stepped.store).set_topic(
        stepped.tenant, "mail", rules={"priority": 4}, limits={}, actor="ana", reason=""
    )
    ids = [Queue(db).job().id.bytes for _ in range(3)]
    rows = await stepped.store.fill_plain(
        stepped.tenant, "mail", ids, [b"x"] * 3, [0, 0, 9], new_id=True, unset_priorities=[0]
    )
    assert (rows.priorities, rows.rank_classes) == ([4, 0, 9], [-5, -1, -10])
    rows = await stepped.store.fill_plain(stepped.tenant, "mail", ids, [b"x"] * 3, (), new_id=True)
    assert rows.priorities == [4, 4, 4]


async def test_rules_without_limits_leave_no_row_that_every_submit_would_pay_for(queue: Queue) -> None:
    await declare(queue, {"max_attempts": 3, "time_limit": timedelta(seconds=5)})
    await set_rules(queue, max_attempts=4)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.topic_limits") == 0
    await declare(queue, {"max_running": 2})
    assert await queue.db.fetchval("SELECT max_running FROM headgate.topic_limits") == 2
    await declare(queue, {})
    assert await queue.db.fetchval("SELECT max_running FROM headgate.topic_limits") is None


async def test_schedules_take_the_rules_of_their_topic(queue: Queue) -> None:
    await declare(queue, {"max_attempts": 3, "retry": FIXED, "priority": 7})
    tenant_no, timing = await queue.tenant_no(), Every(interval=timedelta(minutes=1), anchor=EPOCH)
    for name, own in (("plain", {}), ("own", {"priority": 1, "max_attempts": 2})):
        spec = ScheduleSpec(topic="mail", timing=timing, **own)  # type: ignore[arg-type]
        await schedules.put(queue.db, queue.names, tenant_no, name, spec, expected=None, who="ana", topics=None)
    made = [
        (await schedules.trigger(queue.db, queue.names, tenant_no, name, request=new_id(), who="", reason=""))[0]
        for name in ("plain", "own")
    ]
    assert [tuple(await queue.db.fetchrow(JOB, job_id)) for job_id in made] == [
        (7, 3, 1, 30_000, -8),
        (1, 2, 1, 30_000, -2),
    ]


async def test_a_value_written_manually_stays_until_another_is_declared_or_set(queue: Queue) -> None:
    await queue.db.execute("UPDATE headgate.topics SET max_attempts = 11")
    await set_rules(queue, priority=1)
    assert (await job_in_sql(queue))[:2] == (1, 11)
    await declare(queue, {"max_attempts": 3})
    assert (await job_in_sql(queue))[:2] == (1, 3)


# ---------------------------------------------------------------------- the use case


def caller(*scopes: Scope, only: TopicSet | None = None) -> Identity:
    return Identity(tenant="acme", subject="eve", scopes=frozenset(scopes), topics=only)


WORKER = caller(Scope.WORK)


class Connected:
    """The workers that are connected."""

    def __init__(self, *workers: str) -> None:
        self.workers = frozenset(workers)

    async def __call__(self, tenant: str) -> frozenset[str]:
        assert tenant == "acme"
        return self.workers


def use_case(stepped: Instance, connected: Connected) -> Topics:
    return Topics(TopicStore(stepped.store), on_change=lambda _: None, connected=connected)


def conflicts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "topic_rules_conflict" in record.getMessage()]


async def test_a_conflict_between_two_workers_is_reported_once_and_shown_while_it_lasts(
    stepped: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    connected = Connected("w1", "w2")
    use = use_case(stepped, connected)
    caplog.set_level(logging.WARNING)
    (first,) = await use.declare(WORKER, [("mail", {"max_attempts": 5})], source="shop", worker="w1")
    assert (first.changed, first.version, first.conflict) == (True, 1, None)
    (second,) = await use.declare(WORKER, [("mail", {"max_attempts": 7})], source="bill", worker="w2")
    assert second.conflict is not None
    assert (second.version, second.conflict.source, second.conflict.rules) == (2, "shop", {"max_attempts": 5})
    assert len(conflicts(caplog)) == 1
    assert all(part in conflicts(caplog)[0] for part in ("mail", "max_attempts", "shop", "bill", "w1", "w2"))
    await use.declare(WORKER, [("mail", {"max_attempts": 5})], source="shop", worker="w1")  # it restarts
    await use.declare(WORKER, [("mail", {"max_attempts": 7})], source="bill", worker="w2")
    assert len(conflicts(caplog)) == 1, "the same conflict is logged once"
    view = await use.get(caller(Scope.READ), "mail")
    assert view.rules.max_attempts == 7
    assert view.conflict is not None
    assert view.conflict.source == "shop"
    connected.workers = frozenset({"w2"})
    assert (await use.get(caller(Scope.READ), "mail")).conflict is None, "the other worker has gone"
    ((shown,), _) = await use.page(caller(Scope.READ))
    assert shown.conflict is None


async def test_the_origin_of_each_rule_is_shown(stepped: Instance) -> None:
    use = use_case(stepped, Connected())
    await use.declare(WORKER, [("mail", {"max_attempts": 5, "max_running": 2})], source="shop", worker="w1")
    operator = caller(Scope.OPERATE)
    view = await use.set(operator, "mail", {"max_attempts": 3}, clear=["max_running"], reason="3 a.m.")
    origins = view.sources.origins()
    assert {name: (one.origin, one.by, one.reason) for name, one in origins.items()} == {
        "max_attempts": (Origin.OPERATOR, "eve", "3 a.m."),
        "max_running": (Origin.OPERATOR, "eve", "3 a.m."),
    }
    assert (view.rules.max_attempts, view.limits.max_running) == (3, None)
    view = await use.release(operator, "mail")
    assert {name: (one.origin, one.by, one.version) for name, one in view.sources.origins().items()} == {
        "max_attempts": (Origin.DECLARED, "shop", 1),
        "max_running": (Origin.DECLARED, "shop", 1),
    }
    assert (view.rules.max_attempts, view.limits.max_running) == (5, 2)
    with pytest.raises(InvalidInput, match=r'no setting "speed".*max_attempts'):
        await use.release(operator, "mail", ["speed"])
    with pytest.raises(NotFound, match="nowhere"):
        await use.release(operator, "nowhere")


async def test_a_declaration_needs_the_topics_of_its_token_and_stays_within_quotas(
    stepped: Instance, db: Connection
) -> None:
    use = use_case(stepped, Connected())
    limited = caller(Scope.WORK, only=TopicSet.of("mail"))
    with pytest.raises(PermissionDenied, match="other"):
        await use.declare(limited, [("other", {"max_attempts": 5})], source="s", worker="w")
    both = [("other", {"max_attempts": 5}), ("mail", {"max_attempts": 6})]
    assert [one.name for one in await use.declare(limited, both, source="s", worker="w")] == ["mail"]
    with pytest.raises(InvalidInput, match=r"topics\[mail\].max_attempts"):
        await use.declare(WORKER, [("mail", {"max_attempts": 0})], source="s", worker="w")
    with pytest.raises(InvalidInput, match="source"):
        await use.declare(WORKER, [("mail", {})], source="", worker="w")
    (nothing,) = await use.declare(WORKER, [("never-used", {})], source="s", worker="w")
    assert not nothing.changed
    assert await db.fetchval("SELECT count(*) FROM headgate.topics WHERE name IN ('never-used', 'other')") == 0
    await db.execute("UPDATE headgate.tenants SET max_topics = 0, max_policies = 0")
    with pytest.raises(QuotaExceeded, match="max_topics"):
        await use.declare(WORKER, [("never-used", {"max_attempts": 5})], source="s", worker="w")
    await db.execute("UPDATE headgate.tenants SET max_topics = 1000")
    with pytest.raises(QuotaExceeded, match="max_policies"):
        await use.declare(WORKER, [("mail", {"retry": FIXED})], source="s", worker="w")


async def test_declarations_and_releases_are_in_the_audit(stepped: Instance, db: Connection) -> None:
    use = use_case(stepped, Connected())
    for worker in ("w1", "w2"):
        await use.declare(WORKER, [("mail", {"max_attempts": 5})], source="shop", worker=worker)
    await use.set(caller(Scope.OPERATE), "mail", {"max_attempts": 3})
    await use.release(caller(Scope.OPERATE), "mail", reason="fixed")
    await use.release(caller(Scope.OPERATE), "mail")  # nothing is left to release
    rows = await db.fetch("SELECT verb, actor, target, reason, detail FROM headgate.audit ORDER BY audit_no")
    assert [tuple(row)[:4] for row in rows] == [
        ("declare_topic", "eve", "topic mail", ""),
        ("configure_topic", "eve", "topic mail", ""),
        ("release_topic", "eve", "topic mail", "fixed"),
    ]
    new = [json.loads(row["detail"])["new"]["max_attempts"] for row in rows]
    assert new == [5, 3, 5]
