"""queue.ready: told when a topic gets its first pending job, to each endpoint or to one of a group."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from uuid import UUID

from headgate.domain.outcomes import Completed
from headgate.domain.webhooks import Mode
from headgate.store import retention
from tests.support.queue import Clock
from tests.support.webhooks import Hooks

READY = "queue.ready"
TOLD = """
SELECT w.id, d.data FROM headgate.webhook_deliveries d JOIN headgate.webhooks w ON w.webhook_no = d.webhook_no
 ORDER BY d.delivery_no"""


async def told(hooks: Hooks) -> list[tuple[UUID, str]]:
    """All events so far: the endpoint, and the topic."""
    await hooks.deliveries.note_ready()
    return [(webhook_id, json.loads(data)["topic"]) for webhook_id, data in await hooks.db.fetch(TOLD)]


async def _drained(hooks: Hooks, topic: str = "mail") -> None:
    claimed = await hooks.queue.claim(100, topic)
    await hooks.queue.settle(
        *((job_id, epoch, Completed()) for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True))
    )


async def test_a_topic_is_announced_with_its_first_job(hooks: Hooks, clock: Clock) -> None:
    made = await hooks.create(READY)
    await hooks.queue.topic("mail")
    assert await told(hooks) == []
    await hooks.queue.add(3)
    await clock.advance(seconds=2)
    assert await told(hooks) == [(made.id, "mail")]
    await clock.advance(seconds=20)
    assert len(await told(hooks)) == 1, "it was not empty meanwhile"
    await _drained(hooks)
    await clock.advance(seconds=2)
    assert len(await told(hooks)) == 1
    await hooks.queue.add(1)
    await clock.advance(seconds=2)
    assert len(await told(hooks)) == 2


async def test_a_topic_is_announced_at_most_once_in_the_interval(hooks: Hooks, clock: Clock) -> None:
    await hooks.create(READY, min_interval=timedelta(seconds=10))
    for _ in range(4):
        await hooks.queue.add(1)
        await clock.advance(seconds=2)
        await told(hooks)
        await _drained(hooks)
        await clock.advance(seconds=2)
        await told(hooks)
    assert len(await told(hooks)) == 2, "at second 2, and at second 14"


async def test_a_topic_that_stays_full_is_announced_again_every_minute(hooks: Hooks, clock: Clock) -> None:
    """It may have been emptied and filled between two looks, with nobody told."""
    await hooks.create(READY)
    await hooks.queue.add(1)
    for seconds, events in ((2, 1), (30, 1), (31, 2), (30, 2), (31, 3)):
        await clock.advance(seconds=seconds)
        assert len(await told(hooks)) == events


async def test_it_is_looked_at_once_a_second_at_the_most(hooks: Hooks, clock: Clock) -> None:
    await hooks.create(READY)
    assert await hooks.deliveries.note_ready() == 1
    assert await hooks.deliveries.note_ready() == 0
    await clock.advance(seconds=30)
    assert await hooks.deliveries.note_ready() == 1


async def test_fanout_tells_each_endpoint_and_a_group_one_of_its_members_in_turn(hooks: Hooks, clock: Clock) -> None:
    each = [await hooks.create(READY) for _ in range(2)]
    group = [await hooks.create(READY, mode=Mode.GROUP, group="workers") for _ in range(2)]
    chosen = []
    for turn in range(4):
        await hooks.queue.add(1)
        await clock.advance(seconds=30)
        events = (await told(hooks))[turn * 3 :]
        assert {one.id for one in each} <= {webhook_id for webhook_id, _ in events}
        (member,) = {webhook_id for webhook_id, _ in events} - {one.id for one in each}
        chosen.append(member)
        await _drained(hooks)
        await clock.advance(seconds=30)
        await told(hooks)
    assert chosen in ([group[0].id, group[1].id] * 2, [group[1].id, group[0].id] * 2)


async def test_members_of_a_group_share_the_topics_that_are_ready_at_once(hooks: Hooks, clock: Clock) -> None:
    group = [await hooks.create(READY, mode=Mode.GROUP, group="workers") for _ in range(2)]
    for topic in ("a", "b", "c", "d"):
        await hooks.queue.add(1, topic)
    await clock.advance(seconds=2)
    events = await told(hooks)
    assert sorted(topic for _, topic in events) == ["a", "b", "c", "d"]
    assert Counter(webhook_id for webhook_id, _ in events) == {group[0].id: 2, group[1].id: 2}


async def test_what_a_group_was_told_is_forgotten_after_a_week(hooks: Hooks, clock: Clock) -> None:
    await hooks.create(READY, mode=Mode.GROUP, group="workers")
    await hooks.queue.add(1)
    await clock.advance(seconds=2)
    assert len(await told(hooks)) == 1
    await clock.advance(days=7)
    await hooks.db.fetchval(retention.FORGET_DELIVERIES, retention.DELIVERIES_KEPT, 100, 5, 9)
    assert await hooks.db.fetchval("SELECT count(*) FROM headgate.webhook_ready") == 0


async def test_a_hash_group_tells_the_same_member_of_a_topic_each_time(hooks: Hooks, clock: Clock) -> None:
    members = [await hooks.create(READY, mode=Mode.HASH, group="workers") for _ in range(3)]
    topics = [f"topic-{number}" for number in range(12)]
    by_turn = []
    for turn in range(2):
        for topic in topics:
            await hooks.queue.add(1, topic)
        await clock.advance(seconds=30)
        by_turn.append({topic: webhook_id for webhook_id, topic in (await told(hooks))[turn * len(topics) :]})
        for topic in topics:
            await _drained(hooks, topic)
        await clock.advance(seconds=30)
        await told(hooks)
    assert by_turn[0] == by_turn[1]
    assert set(by_turn[0]) == set(topics)
    assert len(set(by_turn[0].values())) > 1, "they share the topics"
    assert set(by_turn[0].values()) <= {one.id for one in members}


async def test_only_topics_of_the_endpoint_and_its_tenant_are_announced(hooks: Hooks, clock: Clock) -> None:
    made = await hooks.create(READY, topics=("mail.*",))
    theirs = Hooks(hooks.db, hooks.database, tenant="other")
    await theirs.queue.add(1, "mail.us")
    for topic in ("mail", "mail.eu"):
        await hooks.queue.add(1, topic)
    await clock.advance(seconds=2)
    assert await told(hooks) == [(made.id, "mail.eu")]
