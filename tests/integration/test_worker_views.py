"""What people see of workers: the connection, the last sign of life and the last assignment apart; and who is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from headgate.dispatch.departures import KEPT_SECONDS
from headgate.dispatch.presence import WRITE_SECONDS
from headgate.dispatch.session_ends import SessionSilent
from headgate.dispatch.session_rules import Hello
from headgate.domain.identity import Scope
from headgate.domain.timestamps import unix_us
from headgate.domain.workers import WorkerState, worker_state
from tests.support.admin import OPERATOR, READER, Desk, moment, someone
from tests.support.dispatch_waits import ManualClock
from tests.support.dispatching import Instance


@pytest.fixture
async def stepped(database: str, seconds: ManualClock) -> AsyncIterator[Instance]:
    """An instance that moves only when the test calls it; leases are of a minute."""
    async with Instance(database, running=False, now=seconds) as instance:
        yield instance


async def test_an_open_stream_without_heartbeats_is_silent_and_not_idle(
    stepped: Instance, seconds: ManualClock
) -> None:
    await stepped.worker("ant", slots=1)
    (shown,) = (await Desk(stepped).verbs.workers(READER)).workers
    assert (worker_state(shown), shown.seen_at) == (WorkerState.IDLE, moment(seconds()))
    heard = moment(seconds())
    seconds.advance(41)  # two of three beats in a lease of a minute are missing
    (shown,) = (await Desk(stepped).verbs.workers(READER)).workers
    assert (worker_state(shown), shown.seen_at, shown.connected_at) == (WorkerState.SILENT, heard, heard)


async def test_a_worker_that_beats_but_asks_for_nothing_is_not_shown_as_idle(stepped: Instance) -> None:
    await stepped.worker("ant")
    (shown,) = (await Desk(stepped).verbs.workers(READER)).workers
    assert worker_state(shown) is WorkerState.NOT_ASKING


async def test_the_last_assignment_is_shown_apart_from_the_last_sign_of_life(
    stepped: Instance, seconds: ManualClock
) -> None:
    await stepped.submit(1)
    worker = await stepped.worker("ant", slots=1)
    assert (await Desk(stepped).verbs.workers(READER)).workers[0].assigned_at is None
    assert await stepped.claimer.run_once() == 1
    assigned = moment(seconds())
    seconds.advance(30)
    worker.session.mark_seen()
    (shown,) = (await Desk(stepped).verbs.workers(READER)).workers
    assert (shown.assigned_at, shown.seen_at) == (assigned, moment(seconds()))
    assert worker_state(shown) is WorkerState.BUSY


async def test_the_program_and_the_clock_of_a_worker_are_what_it_said(stepped: Instance, seconds: ManualClock) -> None:
    ahead = unix_us(moment(seconds()) + timedelta(seconds=90))
    hello = Hello(worker_id="ant", client="shop/2.1", clock_us=ahead)
    await stepped.rules.open(someone(Scope.WORK), hello)
    (shown,) = (await Desk(stepped).verbs.workers(READER)).workers
    assert (shown.client, shown.skew) == ("shop/2.1", timedelta(seconds=90))


async def test_a_worker_that_is_lost_is_listed_until_it_is_back_and_one_that_stopped_is_not(
    stepped: Instance, seconds: ManualClock
) -> None:
    desk = Desk(stepped)
    await stepped.submit(1)
    worker = await stepped.worker("ant", slots=1)
    stopped = await stepped.worker("bee", slots=1)
    assert await stepped.claimer.run_once() == 1
    worker.disconnect()
    stepped.rules.finish(stopped.session)
    stopped.session.withdrawn = True
    stopped.disconnect()
    found = await desk.verbs.workers(READER)
    assert not found.workers
    (lost,) = found.lost
    assert (lost.worker, lost.reason, lost.holding, lost.at) == ("ant", "connection_lost", 1, moment(seconds()))
    await stepped.worker("ant", slots=1)
    assert not (await desk.verbs.workers(READER)).lost


async def test_a_lost_worker_is_listed_for_an_hour_and_only_with_its_topics(
    stepped: Instance, seconds: ManualClock
) -> None:
    desk = Desk(stepped)
    worker = await stepped.worker("ant", slots=1)
    worker.session.topics = ["mail"]
    worker.session.end(SessionSilent("it sent nothing"))
    worker.disconnect()
    assert [one.reason for one in (await desk.verbs.workers(READER)).lost] == ["session_silent"]
    assert not (await desk.verbs.workers(someone(Scope.READ, topics=["sms"]))).lost
    seconds.advance(KEPT_SECONDS)
    assert not (await desk.verbs.workers(READER)).lost


async def test_other_instances_show_the_same_and_a_heartbeat_costs_no_write(
    stepped: Instance, database: str, seconds: ManualClock
) -> None:
    async with Instance(database, name="two", running=False, now=seconds) as two:
        await two.submit(1)
        beating, gone = await two.worker("bee", slots=1), await two.worker("cat", slots=1)
        beating.session.client = "shop/2.1"
        assert await two.claimer.run_once() == 1
        gone.disconnect()
        there = Desk(two)
        assert await there.presence.run_once()
        found = await Desk(stepped).verbs.workers(READER)
        (shown,) = found.workers
        assert (shown.worker, shown.client, shown.assigned_at) == ("bee", "shop/2.1", moment(seconds()))
        assert (shown.silent, shown.seen_at) == (False, None)
        assert [(one.worker, one.instance, one.reason) for one in found.lost] == [("cat", "two", "connection_lost")]
        for _ in range(3):
            seconds.advance(WRITE_SECONDS)
            beating.session.mark_seen()
            assert not await there.presence.run_once(), "a heartbeat changes nothing that others must know"
        heard = moment(seconds())
        seconds.advance(41)
        assert await there.presence.run_once()
        (shown,) = (await Desk(stepped).verbs.workers(READER)).workers
        assert (worker_state(shown), shown.seen_at) == (WorkerState.SILENT, heard)
        await stepped.worker("cat")  # it has come over
        assert not (await Desk(stepped).verbs.workers(READER)).lost


async def test_a_quiet_worker_is_quiet_and_not_idle(stepped: Instance) -> None:
    await stepped.worker("ant", slots=1)
    desk = Desk(stepped)
    await desk.verbs.quiet(OPERATOR, "ant")
    (shown,) = (await desk.verbs.workers(READER)).workers
    assert worker_state(shown) is WorkerState.QUIET
