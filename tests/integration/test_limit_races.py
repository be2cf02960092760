"""Limits under many connections at once: never exceeded at any instant, no one left behind, no deadlocks."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.errors import RowLocked
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.store import topics, verbs
from headgate.store.connect import Connection, connect
from tests.integration.test_claim_races import UNHARMED, damage, queues
from tests.integration.test_limits import no_drift
from tests.support import store_calls
from tests.support.queue import Queue

KEYS = 6
PER_KEY, PER_TOPIC = 2, 5
SOON = timedelta(milliseconds=5)
# One statement: one snapshot, in which every committed claim and outcome is whole.
RUNNING = """
SELECT t.name, k.limit_key, count(*), min(count(*)) OVER (), sum(count(*)) OVER (PARTITION BY t.name)
  FROM headgate.jobs j JOIN headgate.topics t ON t.topic_no = j.topic_no
  JOIN headgate.job_limit_keys k ON k.tenant_no = j.tenant_no AND k.job_id = j.id
 WHERE j.state = 1 GROUP BY 1, 2"""
OVERLAPS = """
SELECT a.topic_no, k.limit_key, a.claimed_at, a.finished_at FROM headgate.archive a
  JOIN headgate.job_limit_keys k ON k.tenant_no = a.tenant_no AND k.job_id = a.id
 WHERE a.attempt = 1 AND a.state = 5"""


def outcome(dice: random.Random) -> Outcome:
    odds = dice.random()
    if odds < 0.6:
        return Completed()
    if odds < 0.7:
        return Abandon()
    if odds < 0.8:
        return Nack(delay=dice.choice((timedelta(0), SOON)), reason="later")
    if odds < 0.9:
        return Snooze(delay=SOON)
    return Failed(error=ErrorInfo(type="E", message="boom"))


async def submit_some(queue: Queue, dice: random.Random, names: Sequence[str], made: set[UUID]) -> None:
    policy = RetryPolicy(kind=BackoffKind.FIXED, base_ms=2, cap_ms=2)
    jobs = [
        queue.job(
            dice.choice(names),
            limit_key=f"k{dice.randrange(KEYS)}",
            priority=dice.choice((0, 0, 0, 5)),
            max_attempts=3,
            policy=policy,
            delay=dice.choice((None, None, SOON)),
        )
        for _ in range(dice.randrange(1, 15))
    ]
    made |= {done.id for done in await queue.submit(*jobs)}


async def race(queue: Queue, seed: int, names: Sequence[str], made: set[UUID], rounds: int) -> None:
    """Claim, settle, cancel, reprioritise, promote, reap, at random; then work off what is left."""
    dice = random.Random(seed)
    tenant_no = await queue.tenant_no()
    for _ in range(rounds):
        if dice.random() < 0.5:
            await submit_some(queue, dice, names, made)
        got = await queue.claim(dice.randrange(1, 8), *names)
        if dice.random() < 0.2:
            await store_calls.promote(queue.db)
        if dice.random() < 0.1:
            await queue.db.fetch("SELECT topic_no FROM headgate.admit_due_v1(100)")
        if dice.random() < 0.2 and made:
            some = dice.sample(sorted(made), min(3, len(made)))
            if dice.random() < 0.5:
                await verbs.cancel(queue.db, tenant_no, some)
            else:
                await verbs.reprioritise(queue.db, tenant_no, some, priority=dice.randrange(-5, 6))
        await queue.settle(*((job, epoch, outcome(dice)) for job, epoch in zip(got.ids, got.epochs, strict=True)))


async def work_off(queue: Queue, names: Sequence[str]) -> None:
    while await queue.db.fetchval("SELECT count(*) FROM headgate.jobs"):
        await store_calls.promote(queue.db)
        await queue.db.fetch("SELECT topic_no FROM headgate.admit_due_v1(100)")
        got = await queue.claim(20, *names)
        await queue.settle(*((job, epoch, Completed()) for job, epoch in zip(got.ids, got.epochs, strict=True)))


async def set_limits(queue: Queue, changes: Mapping[str, object]) -> None:
    """As TopicStore does: a job that an outcome holds at the moment is waited for between tries."""
    while True:
        with suppress(RowLocked):
            await topics.set_topic(queue.db, queue.names, await queue.tenant_no(), "mail", changes=changes)
            return


async def watch(db: Connection, stop: asyncio.Event) -> tuple[int, dict[str, int], dict[str, int]]:
    """Count what runs, snapshot after snapshot: how often, and the most of a key and of a topic that was ever seen."""
    looks, by_key, by_topic = 0, {}, {}
    while not stop.is_set():
        for name, _, n, _, of_topic in await db.fetch(RUNNING):
            by_key[name] = max(by_key.get(name, 0), n)
            by_topic[name] = max(by_topic.get(name, 0), of_topic)
        looks += 1
    return looks, by_key, by_topic


async def test_no_limit_is_exceeded_at_any_instant_and_no_job_is_left_behind(database: str) -> None:
    names = ("both", "ordered", "fair")
    stop = asyncio.Event()
    made: set[UUID] = set()
    async with queues(database, 8) as racers:
        first = racers[0]
        tenant_no = await first.tenant_no()
        for name, changes in (
            ("both", {"max_running": PER_TOPIC, "max_running_per_key": PER_KEY}),
            ("ordered", {"ordered_by_key": True}),
            ("fair", {"fair_by_key": True, "max_running": PER_TOPIC}),
        ):
            await first.topic(name)
            await topics.set_topic(first.db, first.names, tenant_no, name, changes=changes)
        watcher = await connect(database, application_name="headgate watcher")
        watching = asyncio.create_task(watch(watcher, stop))
        await asyncio.gather(*(race(queue, seed, names, made, 40) for seed, queue in enumerate(racers)))
        async with asyncio.timeout(60):
            await asyncio.gather(*(work_off(queue, names) for queue in racers))
        stop.set()
        looks, by_key, by_topic = await watching
        await watcher.close()
        await no_drift(first.db)
        ended = await first.db.fetchval("SELECT count(*) FROM headgate.archive")
        assert ended == len(made)
        assert await first.db.fetchval("SELECT count(*) FROM headgate.limit_line") == 0
        runs: dict[tuple[int, str], list[tuple[object, int]]] = {}
        for topic_no, key, began, over in await first.db.fetch(OVERLAPS):
            runs.setdefault((topic_no, key), []).extend(((began, 1), (over, -1)))
        most: dict[int, int] = {}
        for (topic_no, _), marks in runs.items():
            now = 0
            for _, step in sorted(marks, key=lambda mark: (mark[0], mark[1])):  # type: ignore[arg-type,return-value]
                now += step
                most[topic_no] = max(most.get(topic_no, 0), now)
        both, ordered = (await first.topic("both")).no, (await first.topic("ordered")).no
    sys.stdout.write(
        f"{len(made)} jobs, {looks} snapshots: most of a key {by_key}, of a topic {by_topic}; by times {most}\n"
    )
    assert by_key["both"] <= PER_KEY
    assert by_topic["both"] <= PER_TOPIC
    assert by_topic["fair"] <= PER_TOPIC
    assert by_key["ordered"] == 1
    assert most[both] <= PER_KEY
    assert most[ordered] == 1
    harm = await damage(database, commits=100)
    assert harm.deadlocks == UNHARMED.deadlocks


async def test_limits_that_change_while_jobs_run_leave_nothing_behind(database: str) -> None:
    made: set[UUID] = set()
    async with queues(database, 5) as (first, *racers):
        await first.topic("mail")

        async def change() -> None:
            dice = random.Random(7)
            for _ in range(15):
                changes: dict[str, object] = {
                    "max_running": dice.choice((None, 1, 4)),
                    "max_running_per_key": dice.choice((None, 1, 3)),
                    "ordered_by_key": dice.random() < 0.3,
                    "fair_by_key": dice.random() < 0.3,
                }
                async with asyncio.timeout(60):
                    await set_limits(first, changes)
                await first.db.fetch("SELECT topic_no FROM headgate.admit_due_v1(100)")

        await asyncio.gather(
            change(), *(race(queue, seed, ("mail",), made, 30) for seed, queue in enumerate(racers, 100))
        )
        async with asyncio.timeout(60):
            await asyncio.gather(*(work_off(queue, ("mail",)) for queue in racers))
        await no_drift(first.db)
        assert await first.db.fetchval("SELECT count(*) FROM headgate.archive") == len(made)
    assert (await damage(database, commits=100)).deadlocks == 0
