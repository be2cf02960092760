"""Log lines of jobs: written once a second at most, many jobs in one statement, and the first to go when there is much.

They are for people. A database that is slow fills the buffer, and what does not fit is dropped: the numbers of the
lines tell readers how many (ADR 51). No outcome and no lease waits for them.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final
from uuid import UUID

from headgate.dispatch.periodic import Periodic
from headgate.dispatch.ports import LogStore
from headgate.domain.errors import HeadgateError, ReadOnly, StoreUnavailable
from headgate.domain.job_logs import AttemptLines, LineBuffer

log = logging.getLogger("headgate.dispatch")
MOST_LINES: Final = 5_000
MOST_BYTES: Final = 2_097_152
"""Lines of one tenant that wait to be written. Also the maximum that is stored per second."""
LINES_AT_ONCE: Final = 1_000
"""In one statement, or as many as one attempt has: tenants take turns by these."""


class _Waiting:
    """What waits of one tenant."""

    __slots__ = ("attempts", "dropped", "lines", "size")

    def __init__(self) -> None:
        self.attempts: dict[
            tuple[UUID, int], tuple[int, LineBuffer]
        ] = {}  # by job and epoch: its number, and the lines
        self.lines = self.size = self.dropped = 0

    def add(self, given: AttemptLines) -> None:
        if self.lines + len(given.lines) > MOST_LINES or self.size >= MOST_BYTES:
            self.dropped += len(given.lines)
            return
        _, buffer = self.attempts.setdefault((given.job_id, given.epoch), (given.attempt, LineBuffer()))
        lines, size = len(buffer), buffer.size
        buffer.extend(given.lines)
        self.lines += len(buffer) - lines
        self.size += buffer.size - size

    def parts(self) -> deque[list[AttemptLines]]:
        """All of it, in parts of one statement each."""
        found: deque[list[AttemptLines]] = deque()
        left = 0
        for (job_id, epoch), (attempt, buffer) in self.attempts.items():
            if not found or left < len(buffer):
                found.append([])
                left = LINES_AT_ONCE
            found[-1].append(AttemptLines(job_id, epoch, attempt, buffer.lines()))
            left -= len(buffer)
        return found


class LogWriter(Periodic):
    """Keeps lines of jobs, and writes them once a second."""

    def __init__(self, store: LogStore, *, every: float = 1.0) -> None:
        super().__init__("job_logs_failed error=%s", every, jitter=(1.0, 1.0))
        self._store = store
        self._waiting: dict[int, _Waiting] = {}  # by tenant

    def note(self, tenant_no: int, given: AttemptLines) -> None:
        """A worker sends lines of an attempt that it holds. Never waits, and never fails."""
        if given.lines:
            self._waiting.setdefault(tenant_no, _Waiting()).add(given)

    async def run(self) -> None:
        """Until `stop`; then once more, for what came meanwhile."""
        await super().run()
        await self.try_once()

    async def run_once(self) -> int:
        """Write what waits, tenants in turn; returns how many lines are new. What cannot be written is dropped.

        Raises StoreUnavailable: one line in the log for all tenants while the database is down.
        """
        waiting, self._waiting = self._waiting, {}
        stored = 0
        turns = deque((tenant_no, one.parts()) for tenant_no, one in waiting.items())
        while turns:
            tenant_no, parts = turns.popleft()
            part = parts.popleft() if parts else []
            try:
                stored += await self._store.add_log_lines(tenant_no, part) if part else 0
            except (StoreUnavailable, ReadOnly) as error:
                rest = [part, *parts, *(one for _, others in turns for one in others)]
                lines = sum(len(one.lines) for some in rest for one in some) + sum(x.dropped for x in waiting.values())
                raise StoreUnavailable(f"{lines} lines were dropped: {error}") from error
            except HeadgateError as error:
                waiting[tenant_no].dropped += sum(len(one.lines) for rest in (part, *parts) for one in rest)
                log.warning("job_logs_failed tenant=%d error=%s", tenant_no, error)
                parts.clear()
            if parts:
                turns.append((tenant_no, parts))
        for tenant_no, one in waiting.items():
            if one.dropped:
                log.warning("job_logs_dropped tenant=%d lines=%d", tenant_no, one.dropped)
        return stored
