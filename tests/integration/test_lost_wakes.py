"""Wakes that come when no worker can take anything, or never come: at most one tick late, and never lost."""

from __future__ import annotations

import pytest

from headgate.dispatch.demand import Demand
from headgate.dispatch.session import SESSION_BYTES
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance

LARGE = SESSION_BYTES // 5  # a demand that knows what its jobs weigh claims about five of these


def demand_of(one: Instance) -> Demand:
    (demand,) = one.demands.by_wanted.values()
    return demand


async def full_worker(one: Instance, slots: int = 50) -> Worker:
    """A worker that reads nothing, with as much before it as a session takes."""
    worker = await one.worker(slots=slots)
    await one.submit(8, payload=bytes(LARGE // 8 * 8)[: 1024 * 1024])
    while not worker.session.is_full:
        assert await one.claimer.run_once(), "there is more"
    return worker


async def test_a_wake_while_every_session_is_full_costs_no_claim_and_is_kept_until_one_has_capacity(
    stepped: Instance,
) -> None:
    worker = await full_worker(stepped)
    await stepped.submit(3, priority=5)
    claims = len(stepped.store.asked)
    assert await stepped.claimer.run_once() == 0
    assert len(stepped.store.asked) == claims, "all that have credit are full: nothing is asked"
    assert demand_of(stepped).delayed
    while worker.session.is_full:  # it reads a frame or two, and has room: no wake says that there is work
        await worker.take()
    assert await stepped.claimer.run_once(), "without a tick and without another wake"


async def test_a_session_with_capacity_gets_waiting_jobs_while_the_others_are_full(stepped: Instance) -> None:
    await full_worker(stepped)
    await stepped.submit(3)
    assert await stepped.claimer.run_once() == 0
    fresh = await stepped.worker(slots=2)
    assert await stepped.claimer.run_once() == 2, "the wake was kept, though the full one has most of the credit"
    assert len(await fresh.take()) == 2


@pytest.mark.parametrize("lost", ["the room", "the submit"])
async def test_a_lost_wake_costs_a_tick_and_no_more(stepped: Instance, lost: str) -> None:
    worker = await full_worker(stepped)
    if lost == "the room":
        worker.session.on_capacity = None
        await stepped.submit(3)
    assert await stepped.claimer.run_once() == 0
    while worker.session.queued_bytes:
        await worker.take()
    while await stepped.claimer.run_once():
        await worker.take()
    if lost == "the submit":  # of another instance, whose NOTIFY never arrives
        async with Instance(stepped.store._dsn, name="two", running=False) as two:
            await two.submit(3)
    if lost == "the room":
        assert not demand_of(stepped).wake_pending
    assert await stepped.claimer.run_once() == 0, "no claimer knows"
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 3


async def test_a_tick_wakes_a_demand_whose_sessions_were_full_at_the_tick_before(stepped: Instance) -> None:
    worker = await full_worker(stepped)
    worker.session.on_capacity = None
    await stepped.submit(3)
    for _ in range(3):
        await stepped.ticker.run_once()
        assert await stepped.claimer.run_once() == 0, "still full"
    while worker.session.queued_bytes:
        await worker.take()
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() > 0
