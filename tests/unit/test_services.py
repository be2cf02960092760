"""The guardian of background services: what restarts one, and what ends it."""

from __future__ import annotations

import asyncio

import pytest

from headgate.ops.services import FIRST_DELAY, LONGEST_DELAY, STEADY_SECONDS, Services


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


class Restarts:
    """Restarts without waiting: notes each pause, and moves the clock of the services."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, first_delay: float = FIRST_DELAY) -> None:
        self.now, self.pauses = 1_000.0, list[float]()
        self.services = Services(fatal=(MemoryError,), now=lambda: self.now, first_delay=first_delay)
        rest = asyncio.sleep

        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            self.now += seconds
            await rest(0)

        monkeypatch.setattr("headgate.ops.services.asyncio.sleep", sleep)


async def test_pauses_grow_to_five_seconds_and_begin_again_after_a_steady_run(monkeypatch: pytest.MonkeyPatch) -> None:
    one, stays = Restarts(monkeypatch), asyncio.Event()

    async def run() -> None:
        if len(one.pauses) == 10:
            one.now += STEADY_SECONDS + 0.001
        if len(one.pauses) == 11:
            stays.set()
            await asyncio.Event().wait()
        raise KeyError("x")

    one.services.start("one", run)
    await asyncio.wait_for(stays.wait(), 20)
    await one.services.stop()
    expected = [min(LONGEST_DELAY, FIRST_DELAY * 2**n) for n in range(10)] + [FIRST_DELAY]
    assert one.pauses == [pytest.approx(delay, rel=0.25) for delay in expected]
    assert one.services.failures["one"] == 11


async def test_a_service_is_named_as_failing_for_ten_seconds_after_its_last_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, stays = Restarts(monkeypatch, first_delay=0.0), asyncio.Event()

    async def run() -> None:
        if one.pauses:
            stays.set()
            await asyncio.Event().wait()
        raise KeyError("x")

    one.services.start("claims", run)
    await asyncio.wait_for(stays.wait(), 20)
    one.now += STEADY_SECONDS - 0.001
    assert one.services.failing == "service claims fails: KeyError: 'x'"
    one.now += 0.001
    assert one.services.failing == ""
    await one.services.stop()


async def test_a_service_that_returns_before_the_stop_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, again = Restarts(monkeypatch), asyncio.Event()

    async def run() -> None:
        if one.pauses:
            again.set()
            await asyncio.Event().wait()

    one.services.start("one", run)
    await asyncio.wait_for(again.wait(), 20)
    assert "returned before the stop" in one.services.failing
    await one.services.stop()


@pytest.mark.parametrize("raises", [True, False], ids=["fails", "returns"])
async def test_a_service_that_ends_during_a_stop_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, *, raises: bool
) -> None:
    one, end, runs = Restarts(monkeypatch), asyncio.Event(), 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        await end.wait()
        if raises:
            raise KeyError("x")

    one.services.start("one", run)
    await asyncio.sleep(0)
    one.services.stopping()
    end.set()
    await asyncio.wait_for(one.services.finished("one", 20), 30)
    assert (runs, one.services.failures["one"]) == (1, 0)


async def test_an_error_that_no_restart_mends_ends_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = Restarts(monkeypatch)

    async def run() -> None:
        raise MemoryError("forgotten")

    one.services.start("claims", run)
    with pytest.raises(MemoryError, match="forgotten"):
        await asyncio.wait_for(one.services.until(asyncio.Event()), 20)
    assert "server_ends service=claims error=forgotten" in caplog.text
    assert not one.pauses


async def test_a_cancelled_service_ends_and_is_not_counted_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Restarts(monkeypatch)
    one.services.start("one", asyncio.Event().wait)  # type: ignore[arg-type]  # it never returns
    await asyncio.sleep(0)
    one.services._tasks["one"].cancel()
    await asyncio.wait_for(one.services.finished("one", 20), 30)
    assert not one.services.failures
    await asyncio.wait_for(one.services.until(asyncio.Event()), 20)  # the server ends without an error
