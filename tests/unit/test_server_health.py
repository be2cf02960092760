"""What a server knows about its own condition: readiness, a late event loop, a drain, its limit on connections."""

from __future__ import annotations

import asyncio
import logging
import resource
from types import SimpleNamespace

import pytest

from headgate.ops import drain_log, loop_lag, readiness
from headgate.ops.files import CONNECTIONS_MAX, CONNECTIONS_MIN, RESERVED, connections_allowed
from headgate.ops.loop_lag import LoopLag
from headgate.ops.readiness import UNREADY_SECONDS, Readiness

TICK = 1.0


class Health:
    def __init__(self) -> None:
        self.ready = True

    def set(self, *, ready: bool) -> None:
        self.ready = ready


class Watched:
    """A Readiness whose clock, ticks and failures are in the hands of the test."""

    def __init__(self) -> None:
        self.now, self.failing = 100.0, ""
        self.ticks, self.health = SimpleNamespace(ticks=0, error=""), Health()
        self.readiness = Readiness(
            self.health, self.ticks, tick_seconds=TICK, failing=lambda: self.failing, now=lambda: self.now
        )

    def after(self, seconds: float) -> bool:
        """Whether the instance is ready so many seconds later."""
        self.now += seconds
        self.readiness.run_once()
        return self.health.ready


def test_an_instance_is_ready_until_the_database_has_not_answered_for_three_seconds_and_a_tick() -> None:
    one = Watched()
    assert one.after(UNREADY_SECONDS + TICK)
    assert not one.after(0.001)
    assert one.readiness.reason == "the database does not answer"
    one.ticks.ticks += 1
    assert one.after(0.2)
    assert one.readiness.reason == ""


def test_the_reason_is_the_error_of_the_last_tick() -> None:
    one = Watched()
    one.ticks.error = "the database is read-only"
    assert not one.after(UNREADY_SECONDS + TICK + 0.001)
    assert one.readiness.reason == "the database is read-only"


def test_an_instance_with_a_service_that_fails_is_not_ready_and_says_which() -> None:
    one = Watched()
    one.failing = "service claims fails: KeyError: 'x'"
    assert not one.after(0.2)
    assert one.readiness.reason == one.failing
    one.failing = ""
    assert one.after(0.2)


def test_an_instance_that_drains_does_not_become_ready_again() -> None:
    one = Watched()
    one.readiness.stop()
    one.health.ready = False  # the drain has said so
    one.ticks.ticks += 1
    assert not one.after(0.2)


async def test_the_time_before_an_instance_runs_is_none_without_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was built, and then migrated or waited for the other processes of its port."""
    monkeypatch.setattr(readiness, "_LOOK_SECONDS", 0.001)
    now, health, looked = 100.0, Health(), asyncio.Event()

    def failing() -> str:
        looked.set()
        return ""

    watch = Readiness(health, SimpleNamespace(ticks=0, error=""), tick_seconds=TICK, failing=failing, now=lambda: now)
    now += 600
    running = asyncio.create_task(watch.run())
    await asyncio.wait_for(looked.wait(), 30)
    watch.stop()
    await running
    assert health.ready


async def test_the_lag_of_the_event_loop_is_measured_in_milliseconds_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times = iter((10.0, 11.2, 20.0, 20.5, 30.0, 30.4))

    async def slept(_: float) -> None: ...

    monkeypatch.setattr(loop_lag, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(loop_lag, "asyncio", SimpleNamespace(sleep=slept))
    lag = LoopLag()
    assert await lag.run_once() == pytest.approx(700)
    assert [record.getMessage() for record in caplog.records] == ["loop_lag ms=700"]
    assert await lag.run_once() == lag.ms == 0
    assert await lag.run_once() == 0, "a timer that is early is not late"
    assert len(caplog.records) == 1


async def test_a_drain_says_what_it_waits_for_until_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, waits = 0.0, list[float]()

    async def slept(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    monkeypatch.setattr(drain_log, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(drain_log, "asyncio", SimpleNamespace(sleep=slept))
    left = iter(((2, 5), (1, 1), (1, 1), (0, 0)))
    with caplog.at_level(logging.INFO):
        await asyncio.wait_for(drain_log.log_drain(lambda: next(left), grace=8), 10)
    lines = [record.getMessage().partition(" effect")[0] for record in caplog.records]
    assert lines == [
        "draining workers=2 jobs=5 seconds_left=8",
        "draining workers=1 jobs=1 seconds_left=3",
        "draining workers=1 jobs=1 seconds_left=0",
    ]
    assert waits == [drain_log.EVERY_SECONDS] * 3


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [
        (1_024, 4_096, 4_096 - RESERVED),
        (4_096, 4_096, 4_096 - RESERVED),
        (70, 70, CONNECTIONS_MIN),
        (1 << 20, 1 << 20, CONNECTIONS_MAX),
        (1_024, resource.RLIM_INFINITY, CONNECTIONS_MAX),
    ],
)
def test_some_files_are_kept_from_clients(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, allowed: int) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    assert connections_allowed() == allowed
    assert limits[-1] == (hard, hard)


def test_a_limit_that_cannot_be_raised_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int, new: tuple[int, int]) -> None:
        raise ValueError(new)

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", refused)
    assert connections_allowed() == 1_024 - RESERVED
