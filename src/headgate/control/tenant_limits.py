"""What an instance keeps of the quotas of tenants in memory: the rate of submits, and the number of worker sessions.

Read from the database for tenants that submit or connect here, at most every few seconds, and never while nothing
happens. A submit never waits for it: until the quotas of a tenant are known, and for as long as the database does not
answer, its rate is not limited. The rate holds on each instance; what a tenant may have waiting or stored is decided by
the database, for all instances (ADR 47).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from headgate.domain.errors import StoreError
from headgate.domain.rate_limits import Bucket, milliseconds
from headgate.domain.tenants import TenantRateLimited, check_count
from headgate.domain.topic_limits import Rate

log = logging.getLogger("headgate.tenants")
READ_AGAIN_SECONDS: Final = 5.0


class LimitStore(Protocol):
    """Where quotas are read."""

    async def limits(self, name: str, /) -> tuple[Rate | None, int | None, int]: ...


class _Known:
    """The quotas of one tenant, as they were read last."""

    __slots__ = ("bucket", "elsewhere", "max_sessions", "read_at")

    def __init__(self) -> None:
        self.bucket: Bucket | None = None
        self.max_sessions: int | None = None
        self.elsewhere = 0
        self.read_at = float("-inf")


class TenantLimits:
    """The quotas of the tenants that use this instance."""

    def __init__(self, store: LimitStore | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        """Without a store, nothing is limited."""
        self._store, self._now = store, now
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self.refused = 0

    def take(self, tenant: str, count: int) -> None:
        """Count jobs that a tenant submits. Raises TenantRateLimited: then nothing is counted."""
        now, known = self._now(), self._known.get(tenant)
        if known is None or now - known.read_at >= READ_AGAIN_SECONDS:
            self._read_again(tenant)
        if known is None or known.bucket is None:
            return
        wait = known.bucket.take(count, now)
        if wait:
            self.refused += 1
            raise TenantRateLimited(tenant, rate=known.bucket.rate, retry_after_ms=milliseconds(wait))

    async def check_session(self, tenant: str, here: Callable[[], int]) -> None:
        """Raise TenantQuotaExceeded if a tenant may not open one more session; `here` counts those of this instance."""
        known = self._known.get(tenant)
        if known is None or self._now() - known.read_at >= READ_AGAIN_SECONDS:
            await asyncio.shield(self._read_again(tenant))
            known = self._known.get(tenant)
        if known is not None and known.max_sessions is not None:
            check_count("max_sessions", here() + known.elsewhere, known.max_sessions)

    def changed(self, tenant: str = "") -> None:
        """Read a tenant again at its next use; without one, all of them."""
        for name in [tenant] if tenant else list(self._known):
            if name in self._known:
                self._known[name].read_at = float("-inf")

    async def close(self) -> None:
        """End reads that are under way."""
        for task in (reading := list(self._reading.values())):
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    def _read_again(self, tenant: str) -> asyncio.Task[None]:
        """At most one read of a tenant is under way."""
        if (reading := self._reading.get(tenant)) is None:
            reading = asyncio.get_running_loop().create_task(self._read(tenant), name=f"quotas of {tenant}")
            self._reading[tenant] = reading
            reading.add_done_callback(lambda _: self._reading.pop(tenant, None))
        return reading

    async def _read(self, tenant: str) -> None:
        known = self._known.get(tenant) or _Known()
        try:
            if self._store is not None:
                rate, known.max_sessions, known.elsewhere = await self._store.limits(tenant)
                if rate is None:
                    known.bucket = None
                elif known.bucket is None or known.bucket.rate != rate:
                    known.bucket = Bucket(rate, self._now())
        except StoreError as error:
            log.warning('quotas_not_read tenant=%s error=%s effect="those read before count"', tenant, error)
        known.read_at = self._now()
        self._known[tenant] = known
