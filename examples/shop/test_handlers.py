"""Tests of single handlers, in memory: no server, no database, and a clock that moves by itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import pytest

from examples.shop import jobs
from examples.shop.services import bank, carrier, mail_server
from headgate import Batch, JobDead, Unique
from headgate.testing import Box

AMOUNT = Decimal("9.90")


@pytest.fixture
def box() -> Iterator[Box]:
    bank.charged.clear()
    carrier.fetched.clear()
    mail_server.sent.clear()
    with jobs.hg.testing() as box:
        yield box
    bank.down, carrier.drivers = False, 1


def test_a_handler_is_a_function() -> None:
    assert jobs.render_invoice(7, "9.90") == jobs.render_invoice(7, "9.90")
    jobs.send_email("ada@example.com", "Hello")
    assert mail_server.sent[-1] == ("ada@example.com", "Hello")


async def test_a_bank_that_is_down_is_asked_again(box: Box) -> None:
    bank.down = True
    charge = await jobs.charge_card.submit(7, "4242", AMOUNT)
    await box.drain(until=0)  # only what is due now
    assert (box.job(charge).state, box.job(charge).attempt) == ("retrying", 1)
    assert "the bank does not answer" in box.job(charge).last_error
    bank.down = False
    await box.drain()
    assert await charge.result() == "charged 9.90"
    assert bank.charged == {7: AMOUNT}


async def test_a_declined_card_ends_the_order(box: Box) -> None:
    charge = await jobs.charge_card.submit(7, "declined", AMOUNT)
    ship = await jobs.ship_order.with_options(depends_on=[charge]).submit(7, "ada@example.com")
    await box.drain()
    assert box.job(charge).attempt == 1
    with pytest.raises(JobDead, match="the card is declined"):
        await charge.result()
    assert box.job(ship).state == "cancelled"
    assert carrier.fetched == []


async def test_no_driver_costs_no_attempt(box: Box) -> None:
    carrier.drivers = 0
    ship = await jobs.ship_order.submit(7, "ada@example.com")
    await box.drain(until=timedelta(minutes=2))
    assert (box.job(ship).state, box.job(ship).attempt) == ("scheduled", 0)


async def test_the_search_engine_is_notified_once(box: Box) -> None:
    unique = Unique(key="book", on_conflict="reschedule", debounce_max=timedelta(seconds=5))
    for _ in range(3):
        await jobs.refresh_search.with_options(unique=unique, delay=0.5).submit("book")
    drained = await box.drain()
    assert drained.results == ["book is nearly sold out"]


async def test_an_import_reports_how_far_it_is(box: Box) -> None:
    catalogue = await jobs.import_catalogue.submit(["lamp", "chair"], AMOUNT)
    await box.drain(until=catalogue)
    assert box.job(catalogue).progress == (2, 2, "chair")
    assert [job.arguments["article"] for job in box.of(jobs.import_article)] == ["lamp", "chair"]


async def test_an_import_whose_outcome_was_lost_runs_again(box: Box) -> None:
    """The worker was lost after the batch was sealed, and before the server had stored the outcome."""
    catalogue = await jobs.import_catalogue.submit(["lamp", "chair"], AMOUNT)
    await box.drain(until=catalogue)
    await jobs.hg.admin.jobs.redrive([catalogue.id])
    await box.drain(until=catalogue)
    assert (box.job(catalogue).state, len(box.of(jobs.import_article))) == ("completed", 2)


async def test_an_import_that_was_interrupted_submits_each_article_once(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(self: Batch) -> None:
        raise ConnectionError("the worker is lost")

    catalogue = await jobs.import_catalogue.submit(["lamp", "chair"], AMOUNT)
    with monkeypatch.context() as patched:
        patched.setattr(Batch, "seal", lost)
        await box.drain(until=0)
    assert (box.job(catalogue).state, len(box.of(jobs.import_article))) == ("retrying", 2)
    await box.drain(until=catalogue)
    assert (box.job(catalogue).state, len(box.of(jobs.import_article))) == ("completed", 2)


def test_the_shop_has_eleven_handlers() -> None:
    assert len(jobs.hg.tasks) == 11
    assert {task.run_in for task in jobs.hg.tasks.values()} == {"loop", "thread", "process"}
