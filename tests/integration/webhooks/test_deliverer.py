"""The service that delivers: what it claims it sends and records; it is idle unless woken."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from headgate.dispatch.webhook_deliverer import WebhookDeliverer
from headgate.domain.errors import StoreUnavailable
from headgate.domain.webhooks import ClaimedDelivery, DeliveryState, Sent, Verdict
from headgate.store.queue_state import QueueStateStore
from tests.support.dispatch_waits import soon
from tests.support.waiting import until_async
from tests.support.webhook_receiver import verified
from tests.support.webhooks import SECRET, Hooks, Remembering


@asynccontextmanager
async def running(deliverer: WebhookDeliverer) -> AsyncIterator[WebhookDeliverer]:
    task = asyncio.create_task(deliverer.run())
    try:
        yield deliverer
    finally:
        deliverer.stop()
        await asyncio.wait_for(task, 10)


async def test_what_is_due_is_signed_sent_and_recorded(hooks: Hooks) -> None:
    await hooks.create()
    (job_id,) = await hooks.complete()
    receivers = Remembering()
    deliverer = WebhookDeliverer(hooks.deliveries, receivers, clock=time.time)
    assert await deliverer.run_once() == 1
    await deliverer.finished()
    ((url, headers, body),) = receivers.posted
    assert url == "http://127.0.0.1:9/hook"
    assert verified(SECRET, headers, body)
    assert json.loads(body)["data"]["job_id"] == str(job_id)
    assert [row["state"] for row in await hooks.rows()] == [DeliveryState.DELIVERED]
    assert await deliverer.run_once() == 0


async def test_every_attempt_has_the_same_id_and_a_time_of_its_own(hooks: Hooks) -> None:
    await hooks.create()
    await hooks.complete()
    receivers = Remembering(500, 500)
    times = iter((1_000.0, 2_000.0, 3_000.0))
    deliverer = WebhookDeliverer(hooks.deliveries, receivers, clock=lambda: next(times))
    for _ in range(3):
        await deliverer.run_once()
        await deliverer.finished()
        await hooks.db.execute("UPDATE headgate.webhook_deliveries SET next_at = headgate.clock_v1() WHERE state = 0")
    assert len({headers["webhook-id"] for _, headers, _ in receivers.posted}) == 1
    assert [headers["webhook-timestamp"] for _, headers, _ in receivers.posted] == ["1000", "2000", "3000"]
    assert len({body for *_, body in receivers.posted}) == 1
    assert [row["attempts"] for row in await hooks.rows()] == [3]


async def test_it_asks_the_database_for_nothing_until_it_is_woken(hooks: Hooks) -> None:
    calls = 0

    class Counting:
        async def note_ready(self) -> int:
            return 0

        async def claim(self, **options: int) -> Sequence[ClaimedDelivery]:
            nonlocal calls
            calls += 1
            return await hooks.deliveries.claim(**options)

        async def record(self, delivery: ClaimedDelivery, sent: Sent, verdict: Verdict) -> tuple[bool, str]:
            return await hooks.deliveries.record(delivery, sent, verdict)

    receivers = Remembering()
    async with running(WebhookDeliverer(Counting(), receivers, clock=time.time)) as deliverer:
        await soon(lambda: calls == 1, "it looks once at its start")
        await hooks.create()
        await hooks.complete(10)
        assert calls == 1
        deliverer.wake()
        await soon(lambda: len(receivers.posted) == 10, "all are sent, four at a time")
    assert calls <= 12


async def test_a_stop_waits_for_requests_that_are_under_way_and_records_them(hooks: Hooks) -> None:
    await hooks.create()
    await hooks.complete()
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow:
        async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Sent:
            del url, headers, body
            asked.set()
            await answer.wait()
            return Sent(status=200)

    async with running(WebhookDeliverer(hooks.deliveries, Slow(), clock=time.time)) as deliverer:
        deliverer.wake()
        await asyncio.wait_for(asked.wait(), 10)
        deliverer.stop()
        answer.set()
    assert [row["state"] for row in await hooks.rows()] == [DeliveryState.DELIVERED]


async def test_a_record_that_the_database_does_not_take_is_tried_again(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    failures = 2

    class Flaky:
        note_ready, claim = hooks.deliveries.note_ready, hooks.deliveries.claim

        async def record(self, delivery: ClaimedDelivery, sent: Sent, verdict: Verdict) -> tuple[bool, str]:
            nonlocal failures
            if failures:
                failures -= 1
                raise StoreUnavailable("away")
            return await hooks.deliveries.record(delivery, sent, verdict)

    await hooks.create()
    await hooks.complete()
    deliverer = WebhookDeliverer(Flaky(), Remembering(), clock=time.time)
    await deliverer.run_once()
    await deliverer.finished()
    assert [row["state"] for row in await hooks.rows()] == [DeliveryState.DELIVERED]
    assert not caplog.records


async def test_a_record_that_is_not_taken_does_not_delay_a_stop(hooks: Hooks, caplog: pytest.LogCaptureFixture) -> None:
    refused = asyncio.Event()

    class Away:
        note_ready, claim = hooks.deliveries.note_ready, hooks.deliveries.claim

        async def record(self, delivery: ClaimedDelivery, sent: Sent, verdict: Verdict) -> tuple[bool, str]:
            del delivery, sent, verdict
            refused.set()
            raise StoreUnavailable("away")

    await hooks.create()
    await hooks.complete()
    deliverer = WebhookDeliverer(Away(), Remembering(), clock=time.time)
    async with running(deliverer):
        await asyncio.wait_for(refused.wait(), 10)
    assert "webhook_record_failed" in caplog.text
    assert [row["state"] for row in await hooks.rows()] == [DeliveryState.SENDING], "its lease brings it back"


async def test_a_claim_that_the_database_refuses_is_logged_and_the_next_wake_claims_again(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = [StoreUnavailable("away")]

    class Flaky:
        record, note_ready = hooks.deliveries.record, hooks.deliveries.note_ready

        async def claim(self, **bounds: int) -> Sequence[ClaimedDelivery]:
            if refusals:
                raise refusals.pop()
            return await hooks.deliveries.claim(**bounds)

    await hooks.create()
    await hooks.complete()
    receivers = Remembering()
    async with running(WebhookDeliverer(Flaky(), receivers, clock=time.time)) as deliverer:
        await soon(lambda: "webhook_claim_failed" in caplog.text, "the refusal is logged")
        deliverer.wake()
        await soon(lambda: receivers.posted, "it is sent")


async def test_endpoints_that_fail_have_half_of_the_slots_and_those_that_are_under_way_count(hooks: Hooks) -> None:
    answer = asyncio.Event()
    posted: list[str] = []

    class Slow:
        async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Sent:
            del headers, body
            posted.append(url)
            await answer.wait()
            return Sent(status=200)

    for number in range(3):
        await hooks.create(url=f"http://127.0.0.1:{9000 + number}/")
    await hooks.complete(2)
    await hooks.db.execute("UPDATE headgate.webhooks SET failing_since = headgate.clock_v1()")
    deliverer = WebhookDeliverer(hooks.deliveries, Slow(), slots=4, clock=time.time)
    assert await deliverer.run_once() == 2
    assert await deliverer.run_once() == 0, "the third endpoint fails as well"
    answer.set()
    await deliverer.finished()
    assert len(set(posted)) == 2


async def test_a_cancelled_deliverer_leaves_no_request_behind(hooks: Hooks) -> None:
    asked, cut = asyncio.Event(), asyncio.Event()

    class Endless:
        async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Sent:
            del url, headers, body
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                cut.set()
            raise AssertionError

    await hooks.create()
    await hooks.complete()
    task = asyncio.create_task(WebhookDeliverer(hooks.deliveries, Endless(), clock=time.time).run())
    await asyncio.wait_for(asked.wait(), 10)
    task.cancel()
    await asyncio.wait((task,))
    await asyncio.wait_for(cut.wait(), 10)


async def test_no_more_requests_than_slots_are_under_way(hooks: Hooks) -> None:
    for number in range(6):
        await hooks.create(url=f"http://127.0.0.1:{9000 + number}/")
    await hooks.complete(4)
    under_way, most = 0, 0

    class Watching:
        async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Sent:
            nonlocal under_way, most
            del url, headers, body
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return Sent(status=200)

    async with running(WebhookDeliverer(hooks.deliveries, Watching(), slots=5, clock=time.time)) as deliverer:
        deliverer.wake()

        async def all_delivered() -> bool:
            return all(row["state"] == DeliveryState.DELIVERED for row in await hooks.rows())

        await until_async(all_delivered, "all are delivered")
    assert most <= 5


async def test_requests_are_counted_by_what_became_of_them_and_what_waits_is_measured(hooks: Hooks) -> None:
    enabled, other = await hooks.create(), await hooks.create(url="http://127.0.0.1:9/other")
    await hooks.complete(3)
    await hooks.update(other.id, enabled=False)
    await hooks.db.execute("UPDATE headgate.webhook_deliveries SET next_at = next_at - interval '1 hour'")
    reading = QueueStateStore(hooks.database)

    async def read() -> tuple[int, int]:
        state = await reading.queue_state(topics=[], topics_max=1)
        return state.webhooks_pending, round(state.webhooks_oldest_due_seconds / 3600)

    assert await read() == (6, 1)
    deliverer = WebhookDeliverer(hooks.deliveries, Remembering(200, 500, 410), clock=time.time)
    assert await deliverer.run_once() == 3
    await deliverer.finished()
    assert sum(deliverer.attempts.values()) == 3
    assert deliverer.attempts["delivered"] == 1
    assert deliverer.attempts["retried"] >= 1
    pending, hours = await read()
    assert hours == 0, f"those of a disabled endpoint do not count: {enabled.id}"
    assert pending == 3 + deliverer.attempts["retried"]
