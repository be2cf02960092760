"""A throttled run over three instances: each limit is never exceeded, and is still used to the full."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta

from headgate.domain.ids import TenantNo
from headgate.domain.outcomes import Completed, Outcome
from headgate.domain.states import State
from headgate.domain.topic_limits import Rate
from headgate.store import topics
from headgate.store.connect import Connection
from headgate.store.topics import TopicStore
from tests.integration.test_limits import no_drift
from tests.support.dispatch_workers import Run
from tests.support.dispatching import Instance
from tests.support.waiting import until_async

WORK = 0.8
SECOND = timedelta(seconds=1)
WARM = 3 * 3 * 6
LIMITS: Mapping[str, Mapping[str, object]] = {
    "slots": {"max_running": 6},
    "keys": {"max_running_per_key": 2},
    "order": {"ordered_by_key": True},
    "rate": {"rate": Rate(count=20, period=SECOND, burst=4)},
    "key-rate": {"key_rate": Rate(count=10, period=SECOND, burst=2)},
}
RUNS = """
SELECT t.name, coalesce(k.limit_key, ''), a.claimed_at, a.finished_at, a.id FROM headgate.archive a
  JOIN headgate.topics t ON t.topic_no = a.topic_no
  LEFT JOIN headgate.job_limit_keys k ON k.tenant_no = a.tenant_no AND k.job_id = a.id
 WHERE a.payload <> 'warm' AND a.created_at >= $1 ORDER BY 3"""
BEGUN_BEFORE = """
SELECT count(*) FROM (SELECT payload, claimed_at FROM headgate.jobs UNION ALL
                      SELECT payload, claimed_at FROM headgate.archive) AS j
 WHERE j.payload = 'x' AND j.claimed_at < (SELECT max(finished_at) FROM headgate.archive WHERE payload = 'small')"""


class Work:
    """A handler that takes as long as the test says."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def __call__(self, _run: Run) -> Outcome:
        await asyncio.sleep(self.seconds)
        return Completed()


@asynccontextmanager
async def instances(
    database: str,
    count: int,
    limits: Mapping[str, Mapping[str, object]],
    work: Work,
    *,
    tick_seconds: float = 1.0,
) -> AsyncIterator[list[Instance]]:
    """So many instances with limited topics, each with workers that could run far more of them."""
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(Instance(database, name=f"i{number}", tick_seconds=tick_seconds))
            for number in range(count)
        ]
        first = made[0].store
        await first.topics(made[0].tenant, list(limits))
        async with first.lane("upkeep").use() as db:
            tenant_no = TenantNo(await first.tenant_no(made[0].tenant))
            for name, changes in limits.items():
                await topics.set_topic(db, first.names, tenant_no, name, changes=changes)
        for one in made:
            one.start("announcements", one.wakes.run())
            one.start("hearing", one.store.listen(one.wakes.follow))
            for name in limits:
                await one.worker("", name, slots=20, handler=work)
            await one.ticker.run_once()
        yield made


async def ended(one: Instance, count: int) -> None:
    async def over() -> bool:
        return (await one.states()).get(State.COMPLETED, 0) == count

    await until_async(over, f"{count} jobs have ended")


def used(spans: Sequence[tuple[datetime, datetime]], limit: int) -> tuple[int, float]:
    """The most that ran at one instant, and how much of the limit was used until the last one began."""
    marks = sorted([(began, 1) for began, _ in spans] + [(over, -1) for _, over in spans])
    most = now = 0
    for _, step in marks:
        now += step
        most = max(most, now)
    begin, end = min(began for began, _ in spans), max(began for began, _ in spans)
    area = sum(((min(over, end) - began).total_seconds() for began, over in spans), 0.0)
    return most, area / (limit * (end - begin).total_seconds())


def bucket(starts: Sequence[datetime], rate: float, burst: int) -> float:
    """Fails when any window of time holds more starts than the bucket allows; says how much of it was used."""
    for first, began in enumerate(starts):
        for last in range(first, len(starts)):
            window = (starts[last] - began).total_seconds()
            # A hair for the microseconds a time is rounded to.
            assert last - first + 1 <= burst + rate * window + 1e-3, (first, last, window)
    span = (starts[-1] - starts[0]).total_seconds()
    return len(starts) / (burst + rate * span)


async def test_limits_are_never_exceeded_and_what_becomes_free_is_used_without_a_tick(
    database: str, db: Connection
) -> None:
    """Found by the tick alone, a free slot would wait for an hour here. `make bench` measures how much is used."""
    work = Work()
    async with instances(database, 3, LIMITS, work, tick_seconds=3_600.0) as made:
        for one in made:  # plans and connections: the first calls of a session take their time
            for name in ("slots", "keys", "order"):
                await one.submit(6, name, limit_key="warm", payload=b"warm")
        await ended(made[0], WARM)
        work.seconds = WORK
        ticks = sum(one.ticker.ticks for one in made)
        shares = await throttled(made, db, run=1)
        assert sum(one.ticker.ticks for one in made) == ticks
    await no_drift(db)
    sys.stdout.write("3 instances, no limit exceeded at any instant, used to:\n")
    for name, share in shares.items():
        sys.stdout.write(f"  {name:9} {share:6.1%}  {LIMITS[name]}\n")
    assert set(shares) == set(LIMITS)


async def throttled(made: Sequence[Instance], db: Connection, *, run: int) -> dict[str, float]:
    """Work under every limit at once; how much of each was used. Fails where one was exceeded."""
    since: datetime = await db.fetchval("SELECT headgate.clock_v1()")
    await made[0].submit(30, "slots")
    for number in range(4):
        await made[number % 3].submit(10, "keys", limit_key=f"k{number}")
    ordered = {f"k{number}": await made[number].submit(5, "order", limit_key=f"k{number}") for number in range(3)}
    await made[1].submit(70, "rate")
    for number in range(2):
        await made[number].submit(30, "key-rate", limit_key=f"k{number}")
    await ended(made[0], WARM + run * (30 + 40 + 15 + 70 + 60))
    found: dict[tuple[str, str], list[tuple[datetime, datetime]]] = {}
    order: dict[str, list[object]] = {}
    for name, key, began, over, job_id in await db.fetch(RUNS, since):
        found.setdefault((name, key), []).append((began, over))
        if name == "order":
            order.setdefault(key, []).append(job_id)
    assert order == ordered
    shares: dict[str, float] = {}
    for (name, key), spans in found.items():
        if name in ("rate", "key-rate"):
            rate, burst = (20, 4) if name == "rate" else (10, 2)
            share = bucket([began for began, _ in spans], rate, burst)
        else:
            limit = {"slots": 6, "keys": 2, "order": 1}[name]
            most, share = used(spans, limit)
            assert most == limit, (name, key, most)
        shares[name] = min(share, shares.get(name, 1.0))
    return shares


async def test_thousands_of_jobs_of_one_customer_do_not_delay_anothers_ten(database: str, db: Connection) -> None:
    work = Work()
    work.seconds = 0.2
    async with instances(database, 1, {"mail": {"fair_by_key": True, "max_running": 4}}, work) as (first,):
        await first.submit(5_000, limit_key="big")
        await first.submit(10, limit_key="small", payload=b"small")

        async def small_done() -> bool:
            return not await db.fetchval("SELECT count(*) FROM headgate.jobs WHERE payload = 'small'")

        await until_async(small_done, "the ten have ended")
        others = await db.fetchval(BEGUN_BEFORE)
    sys.stdout.write(
        f"ten jobs behind five thousand of another key: {others} of those had started when the ten had ended\n"
    )
    assert others <= 40


async def test_rules_and_limits_set_on_one_instance_hold_on_all(database: str, db: Connection) -> None:
    """Rules (attempts, retries, ageing) reach the others with their next tick; limits hold at once, everywhere."""
    work = Work()
    async with instances(database, 2, {"mail": {}}, work) as (first, second):
        await second.store.topics(second.tenant, ["mail"])
        await TopicStore(first.store).set_topic(
            first.tenant,
            "mail",
            rules={"max_attempts": 3, "ageing_step": timedelta(minutes=1)},
            limits={"max_running": 0},
            actor="eve",
            reason="",
        )

        async def heard() -> bool:
            (topic,) = await second.store.topics(second.tenant, ["mail"])
            return topic.rules.max_attempts == 3 and topic.rules.ageing_step == timedelta(minutes=1)

        await until_async(heard, "the other instance goes by the new rules")
        (job_id,) = await second.submit(1, priority=5)
        row = await db.fetchrow("SELECT max_attempts, rank_class, state FROM headgate.jobs WHERE id = $1", job_id)
        assert tuple(row) == (3, -1, State.PENDING)  # ageing: the class of priority 0
        await TopicStore(first.store).set_topic(
            first.tenant, "mail", rules={}, limits={"max_running": None}, actor="eve", reason="go"
        )
        await ended(first, 1)
