"""Turns on a connection that the calls of all tenants share."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from headgate.dispatch.turns import CALL_ROWS, Turns
from headgate.dispatch.writer import LONGEST_HINT_MS, SHORTEST_HINT_MS
from headgate.domain.errors import Overloaded


class Calls:
    """Calls that each take a turn; they are served in the order that is noted."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.order: list[str] = []
        self.at_once = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.free = asyncio.Event()

    async def begin(self, name: str, tenant_no: int, rows: int = 1) -> asyncio.Task[None]:
        async def call() -> None:
            async with self.turns.turn(tenant_no, rows):
                self.at_once += 1
                assert self.at_once == 1
                await self.free.wait()
                self.order.append(name)
                self.at_once -= 1

        task = asyncio.create_task(call())
        self.tasks.append(task)
        for _ in range(3):
            await asyncio.sleep(0)
        return task

    async def finish(self) -> None:
        self.free.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_tenant_waits_for_one_call_of_another_however_many_wait() -> None:
    calls = Calls(Turns("calls"))
    for number in range(20):
        await calls.begin(f"greedy {number}", 1)
    await calls.begin("polite 0", 2)
    await calls.begin("polite 1", 2)
    await calls.begin("third", 3)
    await calls.finish()
    assert calls.order[:6] == ["greedy 0", "greedy 1", "polite 0", "third", "greedy 2", "polite 1"]
    assert [name for name in calls.order if name.startswith("greedy")] == [f"greedy {number}" for number in range(20)]


async def test_what_waits_of_a_tenant_is_bounded_and_the_rest_is_refused_with_a_hint() -> None:
    turns = Turns("heartbeats", most_rows=5_000)
    calls = Calls(turns)
    for number in range(10):
        await calls.begin(f"greedy {number}", 1, rows=2_000)
    await calls.begin("polite", 2, rows=4_000)
    await calls.begin("too large for the limit, but alone", 3, rows=9_000)
    refused = [task.exception() for task in calls.tasks if task.done()]
    assert len(refused) == turns.refused == 8
    for error in refused:
        assert isinstance(error, Overloaded)
        assert SHORTEST_HINT_MS <= error.retry_after_ms <= LONGEST_HINT_MS
        assert f"{2 * (2_000 + CALL_ROWS)} jobs of this tenant wait" in str(error)
    await calls.finish()
    assert Counter(name.split()[0] for name in calls.order) == {"greedy": 2, "polite": 1, "too": 1}
    async with turns.turn(1, 2_000):  # nothing is counted any more
        assert turns.served == 4
    assert not turns._rows
    assert not turns._waiting


async def test_a_caller_that_leaves_passes_its_turn_on() -> None:
    calls = Calls(Turns("calls"))
    await calls.begin("first", 1)
    waiting = await calls.begin("leaves while it waits", 1)
    await calls.begin("second", 2)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert list(calls.turns._waiting) == [2], "nothing is kept of one that left"
    await calls.finish()
    assert calls.order == ["first", "second"]
    async with asyncio.timeout(60), calls.turns.turn(1, 1):
        assert calls.turns.served == 2


async def test_a_caller_that_is_cancelled_in_the_moment_it_is_given_the_turn_passes_it_on() -> None:
    turns = Turns("calls")
    served: list[str] = []

    async def call(name: str) -> None:
        async with turns.turn(1, 1):
            served.append(name)

    async with turns.turn(1, 1):
        unlucky, lucky = asyncio.create_task(call("unlucky")), asyncio.create_task(call("lucky"))
        await asyncio.sleep(0)
    unlucky.cancel()  # its turn was given to it just now; it has not run since
    async with asyncio.timeout(60):
        await asyncio.gather(unlucky, lucky, return_exceptions=True)
    assert served == ["lucky"]


async def test_an_error_ends_a_turn() -> None:
    turns = Turns("calls")
    with pytest.raises(ValueError, match="no"):
        async with turns.turn(1, 1):
            raise ValueError("no")
    async with asyncio.timeout(60), turns.turn(1, 1):
        pass
