"""Progress of running jobs: it rides on beats, and is written once a second at most, all jobs in one statement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from uuid import UUID

from headgate.dispatch.ports import ProgressStore
from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.dispatch")
MOST_WAITING = 100_000
"""Jobs whose newest word waits to be written. More is dropped: progress is for people, and the next word follows."""


class ProgressWriter:
    """Keeps the newest word of each job and writes it down now and then."""

    def __init__(self, store: ProgressStore, *, every: float = 1.0) -> None:
        self._store, self._every = store, every
        self._newest: dict[tuple[int, UUID], tuple[int, Mapping[str, object]]] = {}

    def note(self, tenant_no: int, job_id: UUID, epoch: int, progress: Mapping[str, object]) -> None:
        """A worker says how far it is. The word of an earlier attempt does not replace that of a later one."""
        known = self._newest.get((tenant_no, job_id))
        if len(self._newest) < MOST_WAITING and (known is None or known[0] <= epoch):
            self._newest[tenant_no, job_id] = (epoch, progress)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.run_once()
            except HeadgateError as error:
                log.warning("progress_failed error=%s", error)

    async def run_once(self) -> int:
        """Write what is new; returns how many jobs."""
        if not self._newest:
            return 0
        newest, self._newest = self._newest, {}
        by_tenant: dict[int, dict[UUID, tuple[int, Mapping[str, object]]]] = {}
        for (tenant_no, job_id), word in newest.items():
            by_tenant.setdefault(tenant_no, {})[job_id] = word
        for tenant_no, words in by_tenant.items():
            await self._store.progress(tenant_no, words)
        return len(newest)
