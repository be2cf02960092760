"""Background services: rounds until a stop, and what becomes of a round that fails."""

from __future__ import annotations

import asyncio

import pytest

from headgate.dispatch.periodic import Periodic, wait_at_most
from headgate.domain.errors import StoreUnavailable


class Rounds(Periodic):
    def __init__(self) -> None:
        super().__init__("rounds_failed error=%s", 0.0)
        self.done = 0

    async def run_once(self) -> None:
        self.done += 1
        if self.done == 1:
            raise StoreUnavailable("planted")
        if self.done == 3:
            self.stop()
            self.stop()


async def test_a_round_that_fails_is_logged_and_the_next_one_follows_until_a_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Rounds()
    await asyncio.wait_for(service.run(), 10)
    assert service.done == 3
    assert "rounds_failed error=planted" in caplog.text


async def test_a_stop_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Rounds()
    monkeypatch.setattr(service, "_seconds", 3600.0)
    running = asyncio.create_task(service.run())
    await asyncio.sleep(0)
    service.stop()
    await asyncio.wait_for(running, 10)
    assert service.done == 0


async def test_an_event_that_is_there_is_seen_without_any_wait() -> None:
    event = asyncio.Event()
    assert not await wait_at_most(event, 0.0)
    event.set()
    assert await wait_at_most(event, 0.0)
