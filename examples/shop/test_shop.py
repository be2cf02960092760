"""The shop as a whole: its web app, its database and a worker, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from decimal import Decimal

import httpx
import pytest

from examples.shop import api, jobs
from examples.shop.models import Order, Product, database
from examples.shop.services import bank, carrier, mail_server
from headgate import NotFound, TopicInfo
from headgate.testing import AttachedApp, LocalServer


@pytest.fixture
async def shop(headgate_server: LocalServer) -> AsyncIterator[AttachedApp]:
    """The app of the shop on a real server, with nothing in it but one product."""
    database.url = headgate_server.database_url
    bank.charged.clear()
    carrier.fetched.clear()
    mail_server.sent.clear()
    with headgate_server.attach(jobs.hg) as attached:
        async with api.lifespan(api.app):
            async with database.begin() as session:
                await session.merge(Product(article="book", price=Decimal("9.90"), stock=3))
            yield attached


@pytest.fixture
async def browser(shop: AttachedApp) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


async def test_an_order_is_paid_reserved_shipped_and_invoiced(shop: AttachedApp, browser: httpx.AsyncClient) -> None:
    answer = await browser.post("/orders", json={"customer": "ada@example.com", "article": "book", "count": 2})
    assert answer.status_code == 202, answer.text
    order, job = answer.json()["order"], answer.json()["job"]
    await shop.drain()
    assert (await browser.get(f"/jobs/{job}")).json()["state"] == "completed"
    assert bank.charged == {order: Decimal("19.80")}
    assert carrier.fetched == [order]
    assert mail_server.sent == [("ada@example.com", f"Order {order} is shipped")]
    async with database.begin() as session:
        assert (await session.get_one(Order, order)).state == "shipped"
        assert (await session.get_one(Product, "book")).stock == 1
    done = [info async for info in jobs.hg.admin.jobs_matching("state:completed")]
    topics = {"confirm-order", "charge-card", "reserve-stock", "ship-order", "render-invoice", "send-email"}
    assert {info.topic for info in done} == topics | {"refresh-search"}


async def test_an_order_that_is_refused_leaves_no_job(shop: AttachedApp, browser: httpx.AsyncClient) -> None:
    answer = await browser.post("/orders", json={"customer": "eve@example.com", "article": "pen", "count": 1})
    assert (answer.status_code, answer.json()["detail"]) == (404, "no article pen")
    assert [info async for info in jobs.hg.admin.jobs_matching("topic:confirm-order")] == []


async def test_an_import_is_a_batch_that_can_be_watched_and_cancelled(
    shop: AttachedApp, browser: httpx.AsyncClient
) -> None:
    catalogue = {"articles": ["lamp", "chair"], "price": "5.00"}
    first = (await browser.post("/imports", json=catalogue)).json()
    again = (await browser.post("/imports", json=catalogue)).json()
    assert first == again, "one import of the same articles at a time"
    other = (await browser.post("/imports", json={"articles": ["sofa"], "price": "1"})).json()
    assert (await browser.delete(f"/jobs/{other}")).status_code == 204
    assert (await browser.delete(f"/jobs/{other}")).status_code == 409
    await shop.drain()
    assert (await browser.get(f"/jobs/{first}")).json()["state"] == "completed"
    assert (await browser.get(f"/jobs/{other}")).json()["state"] == "cancelled"
    batch = await jobs.hg.batch_status(await jobs.hg.wait_result(first))
    assert batch.counts == {"completed": 2}
    assert batch.callback_id is not None
    assert "2 articles imported" in await jobs.hg.wait_result(batch.callback_id)
    assert (await browser.get("/jobs/0198c0de-0000-7000-8000-000000000000")).status_code == 404


async def test_imports_whose_lists_begin_alike_are_different(shop: AttachedApp, browser: httpx.AsyncClient) -> None:
    articles = [f"article-{number:03}" for number in range(30)]
    one, two = [
        (await browser.post("/imports", json={"articles": [*articles, last], "price": "1"})).json()
        for last in ("lamp", "sofa")
    ]
    assert one != two


async def declared(topic: str) -> TopicInfo:
    """The topic, once a worker has stored what its handler declares: it does so while it runs."""
    async with asyncio.timeout(30):
        while True:
            with suppress(NotFound):
                info = await jobs.hg.admin.topics.get(topic)
                if info.rate is not None:
                    return info
            await asyncio.sleep(0.02)


async def test_the_schedule_and_the_limits_are_stored(shop: AttachedApp) -> None:
    assert (await jobs.hg.sync_schedules()).changed == ("nightly-report",)
    await jobs.hg.admin.schedules.trigger("nightly-report")
    await shop.drain()
    (report,) = [info async for info in jobs.hg.admin.jobs_matching("topic:nightly-report")]
    assert (report.state, (await jobs.hg.get(report.id)).schedule) == ("completed", "nightly-report")
    async with shop.worker():
        limits = await declared("send-email")
    assert (limits.max_running_per_key, limits.rate) == (1, jobs.MAIL_RATE)
