"""Waiting for results: woken at once when the job ends on this instance, else by one query for all every 200 ms."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from headgate.control.ports import JobStore
from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.results")


class Waiters:
    """The calls on this instance that wait for a job to end."""

    def __init__(self, store: JobStore, *, every: float = 0.2) -> None:
        self._store, self._every = store, every
        self._waiting: dict[tuple[int, UUID], set[asyncio.Future[None]]] = {}
        self._some = asyncio.Event()
        self._stopped = False

    def any(self) -> bool:
        """Whether any call waits; checked for every flush."""
        return bool(self._waiting)

    async def wait(self, tenant_no: int, job_id: UUID, seconds: float) -> None:
        """Return when the job has ended, the time is over, or the instance stops."""
        if self._stopped:
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault((tenant_no, job_id), set())
        waiting.add(ended)
        self._some.set()
        try:
            await asyncio.wait_for(ended, seconds)
        except TimeoutError:
            return
        finally:
            waiting.discard(ended)
            if not waiting:
                self._waiting.pop((tenant_no, job_id), None)

    def ended(self, tenant_no: int, job_id: UUID) -> None:
        """Wake the calls that wait for a job which has ended."""
        for waiter in self._waiting.get((tenant_no, job_id), ()):
            if not waiter.done():
                waiter.set_result(None)

    async def run(self) -> None:
        """Poll for jobs that ended on other instances while any call waits, until `stop`."""
        while not self._stopped:
            self._some.clear()
            if not self._waiting:
                await self._some.wait()
            await asyncio.sleep(self._every)
            await self.run_once()

    async def run_once(self) -> None:
        """One query per tenant, for all jobs that calls wait for."""
        by_tenant: dict[int, list[UUID]] = {}
        for tenant_no, job_id in self._waiting:
            by_tenant.setdefault(tenant_no, []).append(job_id)
        for tenant_no, ids in by_tenant.items():
            try:
                for job_id in await self._store.finished(tenant_no, ids):
                    self.ended(tenant_no, job_id)
            except HeadgateError as error:
                log.warning("result_poll_failed error=%s", error)

    def stop(self) -> None:
        """End the loop and wake all calls: their clients must ask another instance."""
        self._stopped = True
        self._some.set()
        for waiting in self._waiting.values():
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
