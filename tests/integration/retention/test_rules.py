"""Which jobs are removed, and when: the rules for all topics, and those of one."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Completed
from headgate.domain.retention import RetentionRules
from headgate.domain.states import State
from headgate.store import audit, retention, topics
from headgate.store.partitions import ensure_partitions
from tests.integration.retention.finishing import DAY, DIES, START, all_passes, counts_agree, end, known, later
from tests.support.queue import Clock, Queue


async def one_of_each(queue: Queue, topic: str = "mail") -> dict[State, JobId]:
    ends = ((State.COMPLETED, Completed()), (State.DEAD, DIES), (State.CANCELLED, None))
    return {state: (await end(queue, outcome, 1, topic))[0] for state, outcome in ends}


# ---------------------------------------------------------------------- rules


async def test_by_default_completed_and_cancelled_jobs_go_after_7_days_and_dead_ones_after_30(
    queue: Queue, clock: Clock
) -> None:
    jobs = await one_of_each(queue)
    await clock.set(START.replace(hour=0) + 8 * DAY - timedelta(microseconds=1))  # the day has been over for 7, but …
    await ensure_partitions(queue.db)
    await all_passes(queue.db)
    assert await known(queue, list(jobs.values())) == list(jobs.values())
    await clock.advance(microseconds=1)
    assert (await retention.run_pass(queue.db)).jobs == 2
    assert await known(queue, list(jobs.values())) == [jobs[State.DEAD]]
    await counts_agree(queue)
    await clock.set(START.replace(hour=0) + 31 * DAY - timedelta(microseconds=1))
    await ensure_partitions(queue.db)
    await all_passes(queue.db)
    assert await known(queue, list(jobs.values())) == [jobs[State.DEAD]]
    await clock.advance(microseconds=1)
    assert (await all_passes(queue.db)).days >= 1
    assert await known(queue, list(jobs.values())) == []
    await counts_agree(queue)


async def test_a_topic_keeps_its_jobs_by_its_own_rules(queue: Queue, clock: Clock) -> None:
    tenant = await queue.tenant_no()
    short, long, plain = [await one_of_each(queue, name) for name in ("short", "long", "plain")]
    await topics.set_topic(queue.db, queue.names, tenant, "short", rules={"keep_dead": DAY, "keep_cancelled": 2 * DAY})
    await topics.set_topic(queue.db, queue.names, tenant, "long", rules={"keep_completed": 90 * DAY})
    left = {}
    for day in (1, 2, 3, 8, 31, 91):
        await clock.set(START + day * DAY)
        await ensure_partitions(queue.db)
        await all_passes(queue.db)
        left[day] = [
            [state for state, job in jobs.items() if await known(queue, [job])] for jobs in (short, long, plain)
        ]
    done, dead, cancelled = State.COMPLETED, State.DEAD, State.CANCELLED
    assert left == {
        1: [[done, dead, cancelled]] * 3,
        2: [[done, cancelled], [done, dead, cancelled], [done, dead, cancelled]],
        3: [[done], [done, dead, cancelled], [done, dead, cancelled]],
        8: [[], [done, dead], [dead]],
        31: [[], [done], []],
        91: [[], [], []],
    }
    await counts_agree(queue)


async def test_rules_are_changed_at_run_time_and_days_that_were_walked_are_walked_again(
    queue: Queue, clock: Clock
) -> None:
    jobs = await one_of_each(queue)
    await later(clock, queue.db, days=10)
    assert (await all_passes(queue.db)).jobs == 2
    assert await retention.rules(queue.db) == RetentionRules()
    changed = await retention.set_rules(queue.db, {"dead": 9 * DAY}, actor="ana", reason="disk")
    assert changed == RetentionRules(dead=9 * DAY) == await retention.rules(queue.db)
    await all_passes(queue.db)
    assert await known(queue, list(jobs.values())) == []
    (entry,) = await queue.db.fetch("SELECT tenant_no, actor, verb, reason, detail FROM headgate.audit")
    assert entry[:4] == (0, "ana", "set_retention", "disk")
    detail = json.loads(entry[4])
    assert (detail["old"]["dead"], detail["new"]["dead"]) == (30 * 86_400, 9 * 86_400)
    for changes in ({}, {"dead": timedelta(hours=23)}, {"audit": 3_651 * DAY}):
        with pytest.raises(InvalidInput):
            await retention.set_rules(queue.db, changes, actor="ana", reason="")


async def test_status_says_what_is_kept_and_how_far_behind_the_removal_is(queue: Queue, clock: Clock) -> None:
    status = await retention.status(queue.db)
    assert (status.rules, status.days_waiting, status.oldest_waiting) == (RetentionRules(), 0, None)
    await one_of_each(queue)
    await later(clock, queue.db, days=1)
    await one_of_each(queue)
    await later(clock, queue.db, days=8)
    status = await retention.status(queue.db)
    yesterday = START.date() - DAY  # made with the schema, and empty
    assert (status.oldest_day, status.days_waiting, status.oldest_waiting) == (yesterday, 3, yesterday)
    await all_passes(queue.db)
    status = await retention.status(queue.db)
    assert (status.oldest_day, status.days_waiting, status.oldest_waiting) == (START.date(), 0, None)
    await later(clock, queue.db, days=40)  # as a whole, now
    assert (await retention.status(queue.db)).days_waiting > 2
    await all_passes(queue.db)
    status = await retention.status(queue.db)
    assert (status.days_waiting, status.oldest_waiting) == (0, None)


async def test_other_history_is_kept_for_its_own_time_and_no_longer(queue: Queue, clock: Clock) -> None:
    db, start = queue.db, clock.now
    await audit.record(db, 0, actor="ana", verb="pause", target="everything")
    await db.execute(
        "INSERT INTO headgate.instances (name, version, seen_at) VALUES ('other', '0', headgate.clock_v1())"
    )
    for seconds in (60, 300, 3_600):
        await db.execute("INSERT INTO headgate.flow_buckets VALUES (1, 1, $1, headgate.clock_v1())", seconds)
        await db.execute(
            "INSERT INTO headgate.latency_buckets VALUES (1, 1, $1, headgate.clock_v1(), '{}', '{}')", seconds
        )
    left = """
        SELECT (SELECT array_agg(seconds ORDER BY seconds) FROM headgate.flow_buckets WHERE topic_no = 1),
               (SELECT array_agg(seconds ORDER BY seconds) FROM headgate.latency_buckets WHERE topic_no = 1),
               (SELECT count(*) FROM headgate.instances WHERE name = 'other'),
               (SELECT count(*) FROM headgate.audit WHERE verb = 'pause')"""
    buckets, kept = [60, 300, 3_600], [1, 1]
    for days, is_over in ((2, "minutes"), (8, "five minutes"), (30, "hours, and servers"), (365, "the audit")):
        await clock.set(start + days * DAY)
        await retention.run_pass(db)
        assert list(await db.fetchrow(left) or ()) == [buckets or None, buckets or None, *kept], "not yet"
        await clock.advance(microseconds=1)
        buckets = buckets[1:]
        kept = [int(days < 30), int(days < 365)]
        await retention.run_pass(db)
        assert list(await db.fetchrow(left) or ()) == [buckets or None, buckets or None, *kept], is_over
