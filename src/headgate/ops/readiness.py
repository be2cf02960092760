"""Readiness: an instance is ready while the database answers its ticks and none of its services fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger("headgate.server")
UNREADY_SECONDS = 3.0
"""Without an answer of the database for longer than this (and a tick's time), new work is better off elsewhere;
sessions stay."""
_LOOK_SECONDS: Final = 0.2


class Health(Protocol):
    """What tells load balancers and clients."""

    ready: bool

    def set(self, *, ready: bool) -> None: ...


class Ticks(Protocol):
    """The sign that the database answers."""

    ticks: int
    error: str


class Readiness:
    """Watches the ticks and the services of one instance."""

    def __init__(
        self,
        health: Health,
        ticks: Ticks,
        *,
        tick_seconds: float,
        failing: Callable[[], str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`failing` names the services that failed lately, and why."""
        self._health, self._ticks, self._failing, self._now = health, ticks, failing, now
        self._tick_seconds = tick_seconds
        self._seen, self._seen_at = ticks.ticks, now()
        self._stopped = asyncio.Event()
        self.reason = ""
        """Why the instance is not ready, as last seen."""

    def run_once(self) -> str:
        """Look, and tell if it has changed; returns why the instance is not ready."""
        now = self._now()
        if self._ticks.ticks != self._seen:
            self._seen, self._seen_at = self._ticks.ticks, now
        reason = self._failing()
        if not reason and now - self._seen_at > UNREADY_SECONDS + self._tick_seconds:
            reason = self._ticks.error or "the database does not answer"
        if self._health.ready == bool(reason) and not self._stopped.is_set():
            if reason:
                log.warning("not_ready reason=%s", reason)
            else:
                log.warning("ready_again")
            self._health.set(ready=not reason)
        self.reason = reason
        return reason

    async def run(self) -> None:
        """Watch until `stop`."""
        self._seen_at = self._now()
        while not self._stopped.is_set():
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._stopped.wait()
            except TimeoutError:
                self.run_once()

    def stop(self) -> None:
        """Change nothing any more: a drain has begun."""
        self._stopped.set()
