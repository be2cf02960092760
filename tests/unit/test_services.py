"""The guardian of background services: what restarts one, and what ends it."""

from __future__ import annotations

import asyncio

from headgate.ops.services import Services


async def test_a_service_whose_wait_was_cancelled_by_another_task_is_restarted() -> None:
    services, runs, again = Services(first_delay=0.001), 0, asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waited.cancel()
            await waited
        again.set()
        await asyncio.Event().wait()

    services.start("one", run)
    await asyncio.wait_for(again.wait(), 20)
    assert services.failures["one"] == 1
    assert "one" in services.failing
    await asyncio.wait_for(services.stop(), 20)
    assert runs == 2
