"""Deliveries: leased to one instance at a time, recorded, retried, given up, sent again, removed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headgate.domain.errors import Refused
from headgate.domain.outcomes import Completed
from headgate.domain.webhooks import DeliveryState, Verdict
from headgate.store import audit, retention, verbs, webhook_deliveries, webhooks
from headgate.store.connect import Connection
from headgate.store.database import Database
from tests.support.queue import Clock
from tests.support.webhooks import Hooks

DELIVERED, LATER = Verdict(delivered=True), Verdict(wait=timedelta(seconds=5))
ORPHANS = """
SELECT (SELECT count(*) FROM headgate.webhook_attempts a
         WHERE NOT EXISTS (SELECT FROM headgate.webhook_deliveries d WHERE d.delivery_no = a.delivery_no)),
       (SELECT count(*) FROM headgate.webhook_deliveries d
         WHERE NOT EXISTS (SELECT FROM headgate.webhooks w WHERE w.webhook_no = d.webhook_no))"""


async def test_a_delivery_is_leased_to_one_instance_at_a_time(hooks: Hooks, database: str, clock: Clock) -> None:
    await hooks.create()
    await hooks.complete(4)
    other = Database(database, unsafe=True)
    try:
        rival = Hooks(hooks.db, other)
        # One after the other: two at once would leave out the endpoint whose row the first one has locked.
        mine, theirs = await hooks.claim(), await rival.claim()
        assert (len(mine), len(theirs)) == (4, 0)
        await clock.advance(seconds=31)  # the lease is over: whoever had it may be dead
        again = await rival.claim()
        assert {one.id for one in again} == {one.id for one in mine}
        assert {(one.attempt, one.tried) for one in again} == {(2, 2)}
        # The first one comes back late: its attempt is logged, and the delivery stays with the second.
        late = {one.id: one for one in mine}[again[0].id]
        assert await hooks.record(late, 200, DELIVERED) == (False, "")
        assert await rival.record(again[0], 200, DELIVERED) == (True, "")
        assert await rival.record(again[0], 500, LATER) == (False, "")
        assert [row["state"] for row in await hooks.rows()].count(DeliveryState.DELIVERED) == 1
    finally:
        await other.close()


async def test_two_instances_that_claim_at_once_never_get_the_same(hooks: Hooks, database: str) -> None:
    for number in range(8):
        await hooks.create(url=f"http://127.0.0.1:{9000 + number}/")
    await hooks.complete(4)
    other = Database(database, unsafe=True)
    try:
        rival = Hooks(hooks.db, other)
        found: list[int] = []
        for _ in range(20):
            mine, theirs = await asyncio.gather(hooks.claim(3), rival.claim(3))
            found += [one.no for one in (*mine, *theirs)]
            if len(found) == 32:
                break
        assert sorted(found) == sorted(set(found))
        assert len(found) == 32
    finally:
        await other.close()


async def test_a_failed_attempt_is_tried_again_after_its_wait(hooks: Hooks, clock: Clock) -> None:
    made = await hooks.create()
    await hooks.complete()
    (one,) = await hooks.claim()
    assert await hooks.record(one, 500, LATER) == (True, "")
    assert (await hooks.get(made.id)).failing_since == clock.now
    assert not await hooks.claim()
    await clock.advance(seconds=5)
    (again,) = await hooks.claim()
    assert (again.id, again.attempt, again.failing) == (one.id, 2, True)
    await hooks.record(again, 200, DELIVERED)
    assert (await hooks.get(made.id)).failing_since is None
    view = await hooks.shown(made, one.id)
    assert (view.state, view.attempts, view.status, view.next_at) == (DeliveryState.DELIVERED, 2, 200, None)
    assert [(entry.number, entry.status, entry.response, entry.duration_ms) for entry in view.log] == [
        (1, 500, "body", 7),
        (2, 200, "body", 7),
    ]


async def test_an_endpoint_gets_a_bounded_number_of_requests_at_once(hooks: Hooks) -> None:
    await hooks.create()
    await hooks.complete(10)
    assert len(await hooks.claim(per_webhook=4)) == 4
    assert not await hooks.claim(per_webhook=4)


async def test_a_dead_endpoint_does_not_delay_the_others(hooks: Hooks, clock: Clock) -> None:
    dead = await hooks.create(topics=("dead",))
    alive = await hooks.create(topics=("alive",))
    await hooks.complete(50, "dead")
    for one in await hooks.claim(1):
        await hooks.record(one, None, LATER)
    await clock.advance(minutes=1)
    await hooks.complete(3, "alive")
    claimed = await hooks.claim(4)
    assert [one.data["topic"] for one in claimed].count("alive") == 3
    assert [one.data["topic"] for one in claimed].count("dead") == 1, "one request at a time"
    assert [one for one in await hooks.claim(4, failing=0) if one.data["topic"] == "dead"] == []
    assert (await hooks.get(dead.id)).failing_since is not None
    assert (await hooks.get(alive.id)).failing_since is None


async def test_endpoints_take_turns(hooks: Hooks, clock: Clock) -> None:
    for number in range(3):
        await hooks.create(url=f"http://127.0.0.1:{9000 + number}/")
    await hooks.complete(3)
    served = []
    for _ in range(3):
        (one,) = await hooks.claim(1)
        served.append(one.url)
        await clock.advance(seconds=1)
    assert len(set(served)) == 3
    await clock.advance(minutes=1)
    assert len({one.url for one in await hooks.claim(3)}) == 3, "also within one claim"


async def test_failing_endpoints_take_turns_when_only_some_of_them_get_a_request(hooks: Hooks, clock: Clock) -> None:
    for number in range(3):
        await hooks.create(url=f"http://127.0.0.1:{9000 + number}/")
    await hooks.complete(2)
    for one in await hooks.claim(10):
        await hooks.record(one, 500, LATER)
    served = []
    for _ in range(3):
        await clock.advance(minutes=1)
        (one,) = await hooks.claim(10, failing=1)
        served.append(one.url)
        await hooks.record(one, 500, LATER)
    assert len(set(served)) == 3


async def test_a_failing_endpoint_that_has_its_request_takes_no_place_of_another(hooks: Hooks, clock: Clock) -> None:
    for number in range(2):
        await hooks.create(url=f"http://127.0.0.1:{9000 + number}/")
    await hooks.complete(6)
    for one in await hooks.claim(10, per_webhook=1):
        await hooks.record(one, 500, LATER)
    (first,) = await hooks.claim(10, failing=1)
    await clock.advance(seconds=1)
    for _ in range(2):  # the other one, although it was served last
        (second,) = await hooks.claim(10, failing=1)
        assert second.url != first.url
        await hooks.record(second, 500, LATER)
        await clock.advance(seconds=1)


async def test_an_endpoint_that_has_all_its_requests_takes_no_place_of_another(hooks: Hooks, clock: Clock) -> None:
    await hooks.create(topics=("slow",))
    await hooks.complete(9, "slow")
    assert len(await hooks.claim()) == 4
    await clock.advance(seconds=1)
    await hooks.create(topics=("quick",))
    await hooks.complete(2, "quick")
    assert [one.data["topic"] for one in await hooks.claim(1)] == ["quick"]
    await clock.advance(seconds=1)
    assert [one.data["topic"] for one in await hooks.claim(1)] == ["quick"], "served last, and the other one is full"


async def test_an_endpoint_that_is_gone_is_disabled_and_audited(hooks: Hooks) -> None:
    made = await hooks.create()
    await hooks.complete(2)
    one, other = await hooks.claim()
    assert await hooks.record(one, 410, Verdict(gone=True)) == (True, "the endpoint answered 410 Gone")
    await hooks.record(other, 500, LATER)
    found = await hooks.get(made.id)
    assert (found.spec.enabled, found.disabled_reason) == (False, "the endpoint answered 410 Gone")
    assert not await hooks.claim()
    (entry, *_) = await audit.entries(hooks.db, await hooks.tenant_no())
    assert (entry.actor, entry.verb, entry.target) == ("headgate", "disable_webhook", f"webhook {made.id}")


async def test_an_endpoint_that_fails_for_three_days_is_disabled_and_audited(hooks: Hooks, clock: Clock) -> None:
    made = await hooks.create()
    await hooks.complete()
    (one,) = await hooks.claim()
    await hooks.record(one, 500, LATER)
    await clock.advance(days=2, hours=23)
    (one,) = await hooks.claim()
    await hooks.record(one, 500, LATER)
    assert (await hooks.get(made.id)).spec.enabled
    await clock.advance(hours=2)
    (one,) = await hooks.claim()
    recorded, reason = await hooks.record(one, 500, LATER)
    assert recorded
    assert reason.startswith("no delivery has succeeded since ")
    assert not (await hooks.get(made.id)).spec.enabled
    (entry, *_) = await audit.entries(hooks.db, await hooks.tenant_no())
    assert (entry.verb, entry.reason) == ("disable_webhook", reason)
    # Enabled again, it gets what waited, and the time that a new one has.
    enabled = await hooks.update(made.id, enabled=True)
    assert (enabled.failing_since, enabled.disabled_at, enabled.disabled_reason) == (None, None, "")
    await clock.advance(seconds=5)
    assert [again.id for again in await hooks.claim()] == [one.id]


async def test_two_failures_days_apart_do_not_disable_an_endpoint_and_pings_do_not_count(
    hooks: Hooks, clock: Clock
) -> None:
    made = await hooks.create()
    await webhooks.ping(hooks.db, await hooks.tenant_no(), made.id, who="ana")
    (ping,) = await hooks.claim()
    await hooks.record(ping, 500, Verdict())
    assert (await hooks.get(made.id)).failing_since is None
    await hooks.complete()
    (old,) = await hooks.claim()
    await hooks.record(old, 500, Verdict())
    await clock.advance(days=9)
    await hooks.complete()
    for reason in ("", "", "no delivery has succeeded since "):
        (new,) = await hooks.claim()
        assert (await hooks.record(new, 500, LATER))[1].startswith(reason)
        assert (await hooks.get(made.id)).spec.enabled is (reason == "")
        await clock.advance(minutes=1)


async def test_a_disabled_endpoint_refuses_a_test_and_a_resend(hooks: Hooks) -> None:
    made = await hooks.create()
    await hooks.complete()
    (one,) = await hooks.claim()
    await hooks.record(one, 500, Verdict())
    await hooks.update(made.id, enabled=False)
    tenant_no = await hooks.tenant_no()
    with pytest.raises(Refused, match="the endpoint is disabled; enable it first"):
        await webhook_deliveries.resend(hooks.db, tenant_no, made.id, one.id, who="ana", reason="")
    with pytest.raises(Refused, match="the endpoint is disabled; enable it first"):
        await webhooks.ping(hooks.db, tenant_no, made.id, who="ana")


async def test_the_last_fifty_attempts_of_a_delivery_are_kept(hooks: Hooks, clock: Clock) -> None:
    await hooks.create()
    await hooks.complete()
    for _ in range(52):
        (one,) = await hooks.claim()
        await hooks.record(one, 500, LATER)
        await clock.advance(seconds=5)
    kept = await hooks.db.fetch("SELECT attempt FROM headgate.webhook_attempts ORDER BY attempt")
    assert [row[0] for row in kept] == list(range(3, 53))


async def test_a_resend_has_the_same_id_and_begins_the_schedule_again(hooks: Hooks, clock: Clock) -> None:
    made = await hooks.create()
    await hooks.complete()
    (one,) = await hooks.claim()
    tenant_no = await hooks.tenant_no()
    with pytest.raises(Refused, match="is being sent"):
        await webhook_deliveries.resend(hooks.db, tenant_no, made.id, one.id, who="ana", reason="")
    await hooks.record(one, 500, Verdict())
    assert (await hooks.shown(made, one.id)).state is DeliveryState.FAILED
    view = await webhook_deliveries.resend(hooks.db, tenant_no, made.id, one.id, who="ana", reason="fixed")
    assert (view.state, view.id) == (DeliveryState.WAITING, one.id)
    (again,) = await hooks.claim()
    assert (again.id, again.attempt, again.tried) == (one.id, 2, 1)
    (entry, *_) = await audit.entries(hooks.db, tenant_no)
    assert (entry.verb, entry.reason) == ("resend_delivery", "fixed")
    for tried in (1, 2):  # earlier attempts do not count for disabling the endpoint either
        assert again.tried == tried
        await clock.advance(days=4)
        assert await hooks.record(again, 500, LATER) == (True, "")
        await clock.advance(seconds=5)
        (again,) = await hooks.claim()


async def test_deliveries_are_listed_in_pages_and_by_state(hooks: Hooks) -> None:
    made = await hooks.create()
    await hooks.complete(4)
    for one in await hooks.claim(2):
        await hooks.record(one, 200, DELIVERED)
    tenant_no = await hooks.tenant_no()
    first = await webhook_deliveries.listed(hooks.db, tenant_no, made.id, limit=3)
    rest = await webhook_deliveries.listed(hooks.db, tenant_no, made.id, before=first[-1].id, limit=3)
    assert len({one.id for one in (*first, *rest)}) == 4
    waiting = await webhook_deliveries.listed(hooks.db, tenant_no, made.id, state=DeliveryState.WAITING, limit=9)
    assert len(waiting) == 2


async def test_a_result_is_read_when_it_is_sent_and_only_if_asked_for(hooks: Hooks) -> None:
    await hooks.create(include_result=True)
    await hooks.create()
    await hooks.complete()
    results = {one.with_result: one.result for one in await hooks.claim()}
    assert results == {True: b'{"ok": true}', False: None}


async def test_the_result_of_a_later_run_is_not_sent_with_the_event_of_an_earlier_one(hooks: Hooks) -> None:
    await hooks.create(include_result=True)
    (job_id,) = await hooks.complete()
    await verbs.redrive(hooks.db, await hooks.tenant_no(), [job_id])
    await hooks.queue.claim()
    await hooks.queue.settle((job_id, 2, Completed(result=b"again")))
    assert [one.result for one in sorted(await hooks.claim(), key=lambda one: one.at)] == [None, b"again"]


async def test_an_endpoint_that_has_expired_is_sent_nothing_more(hooks: Hooks, clock: Clock) -> None:
    await hooks.create(ttl=timedelta(minutes=1))
    await hooks.complete()
    await clock.advance(minutes=1)
    assert await hooks.claim() == []


# ---------------------------------------------------------------------- retention


async def _forgotten(db: Connection, chunk: int = 1_000) -> None:
    for _ in range(20):
        if not await db.fetchval(retention.FORGET_DELIVERIES, retention.DELIVERIES_KEPT, chunk, 5, 9):
            return
    raise AssertionError("there is always more")


async def test_deliveries_and_their_attempts_are_removed_after_a_week(hooks: Hooks, clock: Clock) -> None:
    await hooks.create()
    await hooks.complete(3)
    one, two, _ = await hooks.claim()
    await hooks.record(one, 200, DELIVERED)
    await hooks.record(two, 500, Verdict())
    await clock.advance(days=6)
    await _forgotten(hooks.db)
    assert len(await hooks.rows()) == 3
    await clock.advance(days=1, seconds=1)
    await _forgotten(hooks.db)
    assert [row["state"] for row in await hooks.rows()] == [DeliveryState.SENDING], "what is not over stays"
    assert await hooks.db.fetchval("SELECT count(*) FROM headgate.webhook_attempts") == 0


async def test_what_waits_for_a_disabled_endpoint_is_kept_for_a_week_and_sent_when_it_is_enabled(
    hooks: Hooks, clock: Clock
) -> None:
    made = await hooks.create()
    await hooks.complete(2)
    await hooks.update(made.id, enabled=False)
    await clock.advance(days=6, hours=23)
    await _forgotten(hooks.db)
    assert await hooks.claim() == [], "it is disabled"
    await hooks.update(made.id, enabled=True)
    first, second = await hooks.claim()
    await hooks.record(first, 200, DELIVERED)
    await hooks.update(made.id, enabled=False)
    await clock.advance(days=7)
    await _forgotten(hooks.db)
    assert await hooks.rows() == []
    del second


async def test_an_endpoint_that_is_enabled_again_or_gets_another_url_does_not_count_as_failing(hooks: Hooks) -> None:
    made = await hooks.create()
    await hooks.complete(3)
    for changes in ({"url": "http://127.0.0.1:8/hook"}, {"enabled": False}):
        (one,) = await hooks.claim(1)
        await hooks.record(one, 500, LATER)
        assert (await hooks.get(made.id)).failing_since is not None
        await hooks.update(made.id, description="still fails")
        assert (await hooks.get(made.id)).failing_since is not None
        await hooks.update(made.id, **changes)
        await hooks.update(made.id, enabled=True)
        assert (await hooks.get(made.id)).failing_since is None


async def test_nothing_is_left_of_a_deleted_or_expired_endpoint(hooks: Hooks, clock: Clock) -> None:
    deleted = await hooks.create()
    expired = await hooks.create(ttl=timedelta(minutes=10))
    await hooks.create()
    await hooks.complete(4)
    for one in await hooks.claim(12):
        await hooks.record(one, 500, LATER)
    await webhooks.delete(hooks.db, await hooks.tenant_no(), deleted.id, who="ana", reason="")
    assert await hooks.db.fetchval("SELECT count(*) FROM headgate.webhook_secrets") == 2, "its secret goes at once"
    await clock.advance(minutes=11)
    await _forgotten(hooks.db, chunk=3)
    assert len(await hooks.rows()) == 4
    assert await hooks.db.fetchval("SELECT count(*) FROM headgate.webhooks") == 3, "an event may be on its way"
    await clock.advance(hours=2)
    await _forgotten(hooks.db)
    assert await hooks.db.fetchval("SELECT count(*) FROM headgate.webhooks") == 1
    assert await hooks.db.fetchval("SELECT count(*) FROM headgate.webhook_secrets") == 1
    assert tuple(await hooks.db.fetchrow(ORPHANS) or ()) == (0, 0)
    del expired


async def test_an_endpoint_with_a_huge_backlog_is_disabled(hooks: Hooks) -> None:
    made = await hooks.create()
    await hooks.complete(7)
    await _forgotten(hooks.db)
    assert (await hooks.get(made.id)).spec.enabled, "it does not fail"
    (one,) = await hooks.claim(1)
    await hooks.record(one, 500, LATER)
    await _forgotten(hooks.db)
    assert (await hooks.get(made.id)).disabled_reason == "more than 5 deliveries waited for it"
    (entry, *_) = await audit.entries(hooks.db, await hooks.tenant_no())
    assert entry.verb == "disable_webhook"


async def test_an_endpoint_that_succeeds_too_slowly_is_disabled_with_a_higher_limit(hooks: Hooks) -> None:
    made = await hooks.create()
    await hooks.complete(9)
    await _forgotten(hooks.db)
    assert (await hooks.get(made.id)).spec.enabled
    await hooks.complete(1)
    await _forgotten(hooks.db)
    assert (await hooks.get(made.id)).disabled_reason == "more than 9 deliveries waited for it: it answers too slowly"


async def test_an_attempt_that_is_recorded_after_its_delivery_is_gone_leaves_nothing(hooks: Hooks) -> None:
    await hooks.create()
    await hooks.complete()
    (one,) = await hooks.claim()
    await hooks.db.execute("DELETE FROM headgate.webhook_deliveries")
    assert await hooks.record(one, 200, DELIVERED) == (False, "")
    assert tuple(await hooks.db.fetchrow(ORPHANS) or ()) == (0, 0)
