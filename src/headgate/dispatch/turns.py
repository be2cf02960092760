"""Turns: one call at a time on a connection, tenants in turn, and a bound on what waits (ADR 27).

A plain lock serves in the order of arrival: three hundred calls of one tenant would make the next tenant wait for all
of them. Here it waits for the call that is being served, and for one of each other tenant.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from headgate.dispatch.writer import LONGEST_HINT_MS, SHORTEST_HINT_MS
from headgate.domain.errors import Overloaded

CALL_ROWS: Final = 50
"""What a call weighs besides its rows: a thousand small ones are too many as well."""


class Turns:
    """Serves one caller at a time, the tenants that wait in turn, each tenant's callers in the order they came."""

    def __init__(self, name: str, *, most_rows: int = 50_000, now: Callable[[], float] = time.monotonic) -> None:
        self._name, self._most_rows, self._now = name, most_rows, now
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}  # by tenant, in the order of their turns
        self._rows: dict[int, int] = {}  # by tenant: what waits or is being served
        self._busy = False
        self._seconds = 0.0  # what a turn takes, lately
        self.served = self.refused = 0

    @asynccontextmanager
    async def turn(self, tenant_no: int, rows: int) -> AsyncIterator[None]:
        """Wait for the turn, and keep it for the length of the block. Raises Overloaded if too much waits."""
        weight = CALL_ROWS + rows
        waiting = self._rows.get(tenant_no, 0)
        if waiting and waiting + weight > self._most_rows:
            self.refused += 1
            raise Overloaded(
                f"{self._name}: calls with {waiting} jobs of this tenant wait, the limit is {self._most_rows}",
                retry_after_ms=self._retry_after_ms(tenant_no),
            )
        self._rows[tenant_no] = waiting + weight
        try:
            if self._busy:
                await self._wait(tenant_no)
            self._busy = True
            began = self._now()
            try:
                yield
            finally:
                self._seconds += 0.2 * (self._now() - began - self._seconds)
                self.served += 1
                self._pass_on()
        finally:
            self._rows[tenant_no] -= weight
            if not self._rows[tenant_no]:
                del self._rows[tenant_no]

    async def _wait(self, tenant_no: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_no, deque()).append(turn)  # bounded by the rows of its tenant
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the turn in the same moment
                self._pass_on()
            else:
                self._leave(tenant_no, turn)
            raise

    def _leave(self, tenant_no: int, turn: asyncio.Future[None]) -> None:
        """Take a caller that left out of the line: it would stay there until a turn is passed on."""
        line = self._waiting.get(tenant_no)
        if line is None or turn not in line:  # it was passed over in the same moment
            return
        line.remove(turn)
        if not line:
            del self._waiting[tenant_no]

    def _pass_on(self) -> None:
        """Give the turn to the next caller: of the tenant that has waited longest for one."""
        while self._waiting:
            tenant_no, line = next(iter(self._waiting.items()))
            del self._waiting[tenant_no]
            turn = line.popleft()
            if line:
                self._waiting[tenant_no] = line  # at the end of the line of tenants
            if not turn.done():  # else its caller has left, and has not run since
                turn.set_result(None)
                return
        self._busy = False

    def _retry_after_ms(self, tenant_no: int) -> int:
        """When half of what this tenant has waiting should be served."""
        line = self._waiting.get(tenant_no, ())
        seconds = self._seconds * len(line) / 2 * max(1, len(self._waiting))
        return round(min(LONGEST_HINT_MS, max(SHORTEST_HINT_MS, 1000 * seconds)))
