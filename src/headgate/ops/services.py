"""Background services of one process: each is restarted when it fails; only errors listed as fatal end the process.

An exception that a service does not handle is logged with its traceback and counted, and the service runs again after a
growing, jittered delay. While a service keeps failing, `failing` names it and the instance is not ready. Ending the
process instead would turn a fault of one service into an outage of all, and a fault that recurs after each start into
an instance that is never up (ADR 23).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from random import uniform
from typing import Any, Final, Protocol

log = logging.getLogger("headgate.services")
FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0
STEADY_SECONDS: Final = 10.0
"""A service that has run this long without a failure is healthy again: the next delay is the first one."""

Run = Callable[[], Coroutine[Any, Any, None]]


class Service(Protocol):
    """The shape of a background service. It also has `run_once`, one round, which tests call."""

    async def run(self) -> None:
        """Round after round until `stop`."""

    def stop(self) -> None:
        """End after the round that is under way."""


class Services:
    """Starts services, restarts those that fail, and ends when a service fails with an error listed in `fatal`."""

    def __init__(
        self,
        *,
        fatal: tuple[type[Exception], ...] = (),
        now: Callable[[], float] = time.monotonic,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self._fatal, self._now, self._first_delay = fatal, now, first_delay
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self._failed_at: dict[str, tuple[float, str]] = {}  # last failure of each: time and reason
        self.failures: Counter[str] = Counter()

    def start(self, name: str, run: Run) -> None:
        """Run a service until it returns after `stopping`, or until `stop`."""
        self._tasks[name] = asyncio.create_task(self._keep(name, run), name=name)

    def stopping(self) -> None:
        """From now on a service may return, and one that fails is not restarted."""
        self._stopping = True

    @property
    def failing(self) -> str:
        """Services that failed within the last ten seconds, with reasons; empty if there are none."""
        since = self._now() - STEADY_SECONDS
        return "; ".join(f"service {name} fails: {why}" for name, (at, why) in self._failed_at.items() if at > since)

    async def until(self, stop: asyncio.Event) -> None:
        """Return at `stop`; raises the fatal error of a service."""
        stopping = asyncio.create_task(stop.wait(), name="stop signal")
        done, _ = await asyncio.wait({stopping, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done - {stopping}:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.critical("server_ends service=%s error=%s", task.get_name(), error)
                raise error

    async def finished(self, name: str, seconds: float) -> None:
        """Wait until a service has ended, for at most `seconds`."""
        task = self._tasks.get(name)
        if task is not None:
            await asyncio.wait({task}, timeout=seconds)

    async def stop(self) -> None:
        """Cancel the services that still run, and wait for them."""
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _keep(self, name: str, run: Run) -> None:
        delay = self._first_delay
        while True:
            began = self._now()
            try:
                await run()
                if self._stopping:
                    return
                why = "it returned before the stop"
                log.error("service_failed service=%s error=%s", name, why)
            except self._fatal:
                raise
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._stopping or task is None or task.cancelling():
                    raise
                # The service itself was not cancelled, only something it awaited: a bug like any other.
                why = "something it waited for was cancelled"
                log.exception("service_failed service=%s", name)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                log.exception("service_failed service=%s", name)
                if self._stopping:
                    return
            self.failures[name] += 1
            self._failed_at[name] = (self._now(), why)
            if self._now() - began > STEADY_SECONDS:
                delay = self._first_delay
            # Jittered: instances that fail at the same time must not restart in step.
            pause = delay * uniform(0.75, 1.25)  # noqa: S311 - not a secret
            log.warning("service_restarts service=%s failures=%d seconds=%.2f", name, self.failures[name], pause)
            await asyncio.sleep(pause)
            delay = min(LONGEST_DELAY, delay * 2)


def report_callback_errors(loop: asyncio.AbstractEventLoop, failures: Counter[str]) -> None:
    """Log and count what callbacks, timers and abandoned tasks of this loop raise, with their source."""

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        source = next((context[key] for key in ("handle", "task", "future", "protocol") if key in context), None)
        failures["callbacks"] += 1
        log.error(
            "callback_failed message=%s source=%s", context.get("message"), source, exc_info=context.get("exception")
        )

    loop.set_exception_handler(report)
