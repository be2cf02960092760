"""Progress of running jobs: it rides on beats, and is written once a second at most, many jobs in one statement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from itertools import islice
from typing import Final
from uuid import UUID

from headgate.dispatch.periodic import Periodic
from headgate.dispatch.ports import ProgressStore
from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.dispatch")
MOST_WAITING: Final = 10_000
"""Jobs of one tenant whose newest report waits to be written. More is dropped: progress is for people, and the next
report follows."""
ROWS_AT_ONCE: Final = 1_000
"""In one statement: tenants take turns by these (`turns`)."""


Reports = dict[UUID, tuple[int, Mapping[str, object]]]
"""By job: the epoch and the newest progress."""


class ProgressWriter(Periodic):
    """Keeps the newest report of each job, and writes them once a second."""

    def __init__(self, store: ProgressStore, *, every: float = 1.0) -> None:
        super().__init__("progress_failed error=%s", every, jitter=(1.0, 1.0))
        self._store = store
        self._newest: dict[int, Reports] = {}  # by tenant

    def note(self, tenant_no: int, job_id: UUID, epoch: int, progress: Mapping[str, object]) -> None:
        """A worker says how far it is. The report of an earlier attempt does not replace that of a later one."""
        reports = self._newest.setdefault(tenant_no, {})
        known = reports.get(job_id)
        if (known is None and len(reports) < MOST_WAITING) or (known is not None and known[0] <= epoch):
            reports[job_id] = (epoch, progress)

    async def run_once(self) -> int:
        """Write what is new; returns how many jobs. No tenant waits for another one's turn or error."""
        newest, self._newest = self._newest, {}
        async with asyncio.TaskGroup() as tasks:
            written = [tasks.create_task(self._write(tenant_no, reports)) for tenant_no, reports in newest.items()]
        return sum(task.result() for task in written)

    async def _write(self, tenant_no: int, reports: Reports) -> int:
        count, rest = 0, iter(reports.items())
        while some := dict(islice(rest, ROWS_AT_ONCE)):
            try:
                locked = await self._store.progress(tenant_no, some)
            except HeadgateError as error:
                log.warning("progress_dropped tenant=%d jobs=%d error=%s", tenant_no, len(reports) - count, error)
                break
            count += len(some) - len(locked)
            waiting = self._newest.setdefault(tenant_no, {}) if locked else {}
            for job_id in locked:  # the next round tries it again, unless there is a newer report
                waiting.setdefault(job_id, some[job_id])
        return count
