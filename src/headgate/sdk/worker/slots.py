"""All slots of a worker: a job runs where its task says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from headgate.sdk.hooks import Middleware
from headgate.sdk.outcomes import Outcome
from headgate.sdk.tasks import Task
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.ledger import UNACKNOWLEDGED_MAX
from headgate.sdk.worker.loop_slots import LoopSlots
from headgate.sdk.worker.middleware import chain, log_skipped, names_of, plain_only
from headgate.sdk.worker.process_slots import END_SECONDS, ProcessSlots
from headgate.sdk.worker.thread_slots import ThreadSlots

GIVE_UP_SECONDS: Final = 2.0
"""How long cancelled handlers on the loop have to end when the slots are closed."""


class Slots:
    """The slots on the user's loop, in threads and in processes."""

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        *,
        concurrency: int,
        processes: int,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        """`middleware` is what was registered, outermost first."""
        self._kinds = {task.run_in for task in tasks.values()}
        self._concurrency, self._processes, self._middleware = concurrency, processes, middleware
        self._only_loop = self._kinds == {"loop"}
        # Slots of several kinds share their number, which only the ledger can keep.
        self.queue_size = UNACKNOWLEDGED_MAX if self._only_loop else 0

    def open(self, report: Callable[[HeldJob, Outcome | None], None]) -> None:
        """Make the slots that are needed; on the user's loop, before the stream is opened: processes come first."""
        size, middleware = self._concurrency, chain(self._middleware)
        plain = plain_only(middleware)
        self._process = None
        if "process" in self._kinds:
            self._process = ProcessSlots(report, size=self._processes, middleware=names_of(plain))
        self._thread = ThreadSlots(report, size=size, middleware=plain)
        self._loop = LoopSlots(asyncio.get_running_loop(), report, size=size, middleware=middleware)
        if self._kinds != {"loop"}:
            log_skipped(middleware)

    @property
    def threads(self) -> int:
        """How many threads may run handlers."""
        return self._concurrency if "thread" in self._kinds else 0

    @property
    def processes(self) -> int:
        """How many processes may run handlers."""
        return min(self._processes, self._concurrency) if "process" in self._kinds else 0

    def start(self, jobs: list[HeldJob]) -> None:
        """Give jobs to their slots. From the I/O thread."""
        if self._only_loop:
            self._loop.feed(jobs)
            return
        by_kind: dict[str, list[HeldJob]] = {}
        for job in jobs:
            by_kind.setdefault(cast("Task[Any, Any]", job.handler).run_in, []).append(job)
        if batch := by_kind.get("loop"):
            self._loop.feed(batch)
        if batch := by_kind.get("thread"):
            self._thread.feed(batch)
        if self._process is not None and (batch := by_kind.get("process")):
            self._process.feed(batch)

    def stop(self, jobs: list[HeldJob]) -> None:
        """Cancel async handlers, interrupt processes; a thread sees its Job's flag. From the I/O thread."""
        self._loop.cancel([job for job in jobs if cast("Task[Any, Any]", job.handler).run_in == "loop"])
        if self._process is not None:
            self._process.stop(jobs)

    def take_back(self) -> list[HeldJob]:
        """Take back what no slot has begun. From the I/O thread."""
        taken = self._loop.take_back() + self._thread.take_back()
        return taken + self._process.take_back() if self._process is not None else taken

    async def close(self) -> int:
        """End the slots; gives how many handlers could not be ended."""
        self._thread.close()
        if self._process is not None:
            self._process.close()
        stuck = await self._loop.close(give_up_seconds=GIVE_UP_SECONDS)
        if self._process is not None:
            await asyncio.to_thread(self._process.join, END_SECONDS)
        return stuck
