"""Failed logins: what is logged of them, who waits, and that nothing grows."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headgate.control import failed_logins
from headgate.control.failed_logins import (
    FREE_FAILURES,
    HELD_IN_ALL,
    HELD_PER_PEER,
    HELD_SECONDS,
    LINES_PER_SECOND,
    LOG_SECONDS,
    PEERS,
    FailedLogins,
)


class Env:
    """Failed logins with a clock of their own; held answers wait until they are let go."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held: list[float] = []
        self.free = asyncio.Event()
        self.logins = FailedLogins(now=lambda: self.now, hold=self._hold)

    async def _hold(self, seconds: float) -> None:
        self.held.append(seconds)
        await self.free.wait()

    async def fail(self, address: str, times: int = 1) -> list[asyncio.Task[None]]:
        """The answers that are held back."""
        tasks = [asyncio.create_task(self.logins.failed(address, "unknown token")) for _ in range(times)]
        await asyncio.sleep(0)
        return [task for task in tasks if not task.done()]

    async def let_go(self, tasks: list[asyncio.Task[None]]) -> None:
        self.free.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
        self.free.clear()


async def test_the_first_failures_of_an_address_are_answered_at_once_and_the_next_ones_late() -> None:
    env = Env()
    assert await env.fail("10.0.0.1", FREE_FAILURES) == []
    late = await env.fail("10.0.0.1", 3)
    assert len(late) == 3
    assert env.held == [HELD_SECONDS] * 3
    assert await env.fail("10.0.0.2", FREE_FAILURES) == [], "another address has failures of its own"
    await env.let_go(late)
    env.now += FREE_FAILURES + 3
    assert await env.fail("10.0.0.1") == [], "in time it is forgotten"


async def test_answers_held_back_are_bounded_for_an_address_and_in_all() -> None:
    env = Env()
    late: list[asyncio.Task[None]] = []
    for number in range(100):
        late += await env.fail(f"10.0.0.{number}", FREE_FAILURES + 100)
        assert len(late) <= (number + 1) * HELD_PER_PEER
    assert len(late) == HELD_IN_ALL
    await env.let_go(late)
    assert len(await env.fail("10.0.0.1")) == 1, "what was let go makes room"
    env.free.set()


async def test_addresses_are_forgotten_and_those_of_one_ipv6_network_count_as_one() -> None:
    env = Env()
    for number in range(2 * PEERS):
        await env.fail(f"10.1.{number // 256}.{number % 256}")
    assert len(env.logins) == PEERS
    late = []
    for number in range(FREE_FAILURES + 2):
        late += await env.fail(f"[2001:db8::{number:x}]")
    assert len(late) == 2
    assert await env.fail("[2001:db8:1::1]") == []
    await env.let_go(late)


async def test_a_line_for_each_address_now_and_then_with_the_number_of_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = Env()
    with caplog.at_level(logging.WARNING, logger=failed_logins.log.name):
        held = await env.fail("10.0.0.1", 40)
        env.now += LOG_SECONDS
        held += await env.fail("10.0.0.1")
    assert [record.getMessage() for record in caplog.records] == [
        "login_failed peer=10.0.0.1 reason=unknown token failures=1",
        "login_failed peer=10.0.0.1 reason=unknown token failures=40",
    ]
    assert env.logins.count == 41
    await env.let_go(held)


async def test_many_addresses_at_once_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    env = Env()
    with caplog.at_level(logging.WARNING, logger=failed_logins.log.name):
        for number in range(1_000):
            await env.fail(f"10.2.{number // 256}.{number % 256}")
        assert len(caplog.records) == LINES_PER_SECOND
        env.now += 1
        await env.fail("10.9.9.9")
        assert len(caplog.records) == LINES_PER_SECOND + 1
