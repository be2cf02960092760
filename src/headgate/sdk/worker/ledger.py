"""What this worker holds: leases, slots, credit. All of it belongs to the I/O loop; no other thread touches it.

Three counts that are easily taken for one another:
- `held`: jobs whose lease is ours. Declared in every Hello and Beat, from delivery until the outcome is acknowledged,
  so that no lease lapses while its outcome is on the way.
- `active`: jobs that take up a slot: delivered and not finished. A lost job is active until its handler has ended.
- `asked`: credit that is out on the present stream. A new stream begins with none.
Never more than the slots and what may wait for them (`prefetch`, or as `ReadAhead` finds) are asked for or active
together; that is the whole of the flow control.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from headgate.sdk.job import FINISHED, STARTED, Job, Reports
from headgate.sdk.outcomes import cancelled_unbegun
from headgate.sdk.tasks import Task
from headgate.sdk.worker.outbox import Outbox, Outcome, abandon
from headgate.sdk.worker.read_ahead import ReadAhead
from headgate.wire import worker_pb2 as pb

log = logging.getLogger("headgate.worker")

UNACKNOWLEDGED_MAX: Final = 20_000
"""Outcomes kept for the server's answer. Past that no more jobs are asked for: the server, not we, is behind."""

Start = Callable[[list[Job]], None]


class Ledger:
    """Takes deliveries in, starts them while slots are free, and turns what handlers report into outcomes."""

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        *,
        concurrency: int,
        prefetch: int | None,
        lead: int = 0,
        start: Start,
        watch_deadline: Callable[[Job, float], None],
        reports: Reports,
    ) -> None:
        self.held: dict[bytes, Job] = {}
        self.outbox = Outbox()
        self.active = 0
        self.asked = 0
        self.resting = False
        """True: no more jobs are wanted; what still comes is handed back unstarted."""
        self.timers: dict[Job, dict[str, asyncio.TimerHandle]] = {}
        """What waits for the deadline or the time limit of an active job, by kind. A timer keeps its job in memory."""
        self.tenant = ""
        self.refused_topics: set[str] = set()
        self._tasks, self._start, self._reports = tasks, start, reports
        self._watch_deadline = watch_deadline
        self._concurrency, self._prefetch = concurrency, prefetch
        # `lead`: what slots take beyond their number, and keep in order themselves.
        self._startable = concurrency + lead
        self._ahead = ReadAhead()
        self._started = 0
        self._waiting: deque[Job] = deque()  # bounded by the credit: what is delivered was asked for

    # --- credit ------------------------------------------------------------------------------------------------------

    def credit(self) -> int:
        """How many more jobs to ask for now."""
        if len(self.outbox) >= UNACKNOWLEDGED_MAX:
            return 0
        ahead = self._ahead.jobs if self._prefetch is None else self._prefetch
        return max(0, self._concurrency + ahead - self.active - self.asked)

    @property
    def may_speak(self) -> bool:
        """Whether a frame from here might have something in it: for a writer that is not to be woken for nothing."""
        return self.resting or self.outbox.unsent or self.credit() > 0

    # --- deliveries --------------------------------------------------------------------------------------------------

    def deliver(self, frame: pb.Jobs) -> list[Job]:
        """Take delivered jobs in and start what has a slot; gives those that replaced an older run of the same job.

        Raises ValueError if the arrays are not parallel: then nothing of the frame is taken.
        """
        new, replaced = self._unpack(frame)
        for job in new:
            self.held[job.raw_id] = job
            self.active += 1
            if job.handler is None:
                self._refuse(job)
            elif self.resting:
                self._hand_back(job)
            else:
                self._waiting.append(job)
        self.start_waiting()
        return replaced

    def _unpack(self, frame: pb.Jobs) -> tuple[list[Job], list[Job]]:
        ids, names = list(frame.ids), list(frame.topic_names)
        count = len(ids)
        self.asked = max(0, self.asked - count)
        tasks = [self._tasks.get(name) for name in names]
        places = frame.topics or [0] * count
        if count and (not names or max(places) >= len(names)):
            raise ValueError("a job's topic is not in the frame's table")
        rows = zip(
            ids,
            frame.epochs,
            places,
            frame.payloads,
            frame.attempts,
            frame.max_attempts,
            frame.priorities or [0] * count,
            frame.created_us,
            strict=True,
        )
        lease, tenant, reports, held = frame.lease_until_us, self.tenant, self._reports, self.held
        new: list[Job] = []
        replaced: list[Job] = []
        seen: dict[int, Job] = {}
        for at, (raw_id, epoch, place, payload, attempt, most, priority, created) in enumerate(rows):
            known = held.get(raw_id)
            if known is not None:
                if known.epoch >= epoch:  # this very delivery, or an older one, again: it is being taken care of
                    continue
                replaced.append(known)
            job = Job(
                raw_id,
                epoch,
                names[place],
                payload,
                attempt,
                most,
                priority,
                created,
                lease,
                tenant,
                reports,
                tasks[place],
            )  # fmt: skip -- one line a field would hide the loop
            new.append(job)
            seen[at] = job
        for extra in frame.headers:
            if extra.place in seen:
                job = seen[extra.place]
                job.with_headers(extra.headers, (extra.schedule, extra.occurrence_us), extra.deadline_us)
                if extra.deadline_us:
                    self._watch_deadline(job, extra.deadline_in_ms / 1000)
        return new, replaced

    def _refuse(self, job: Job) -> None:
        """Hand back what nobody here can do, and ask for that topic no more: another worker may know it."""
        if job.topic not in self.refused_topics:
            self.refused_topics.add(job.topic)
            log.warning("no handler for topic %s in this worker: its jobs are handed back from now on", job.topic)
        self._hand_back(job)

    def start_waiting(self) -> None:
        """Hand waiting jobs to the slots while these take more."""
        if not self._waiting:
            return
        batch: list[Job] = []
        now = time.monotonic()
        while self._waiting and self._started < self._startable:
            job = self._waiting.popleft()
            if job.stage == FINISHED:  # lost, cancelled or handed back meanwhile
                continue
            job.stage = STARTED
            job.started_at = now
            self._started += 1
            batch.append(job)
        if batch:
            self._start(batch)

    # --- endings -----------------------------------------------------------------------------------------------------

    def finish(self, job: Job, outcome: Outcome | None, now: float = 0.0) -> None:
        """A handler has ended (at `now`): its slot is free, and its outcome is sent unless the job is no longer ours.

        Of a job that was given up only a success counts: all else is the consequence of having been cut short.
        """
        if job.stage == FINISHED:
            return
        self._release(job)
        if now:
            self._ahead.finished(job.took or now - job.started_at, now)
        if outcome is not None and (not job.abandoned or isinstance(outcome, bytes)):
            self._settle(job, outcome)

    def lose(self, job: Job) -> bool:
        """The lease is another's now. True if a handler runs that should be stopped; its outcome will not be sent."""
        if self.held.get(job.raw_id) is job:
            del self.held[job.raw_id]
        if job.stage == FINISHED:  # what was sent is answered by its receipt
            return False
        job.lost = True
        if job.stage == STARTED:
            return True
        self._release(job)
        return False

    def cancel(self, job: Job) -> bool:
        """Someone asked for the job's end. True if a handler runs that should be told; else it is answered here."""
        job.ask_to_stop()
        if job.stage == STARTED:
            return True
        if job.stage != FINISHED:
            self._release(job)
            self._settle(job, cancelled_unbegun())
        return False

    def end_unbegun(self, job: Job, outcome: Outcome) -> None:
        """A job that no slot has taken ends so."""
        self._release(job)
        self._settle(job, outcome)

    def hand_back_waiting(self) -> None:
        """Give up what no slot has taken."""
        while self._waiting:
            job = self._waiting.popleft()
            if job.stage != FINISHED:
                self._hand_back(job)

    def hand_back(self, job: Job) -> None:
        """Give up one job that was handed to a slot but not begun, or that will not be waited for."""
        job.abandoned = True
        self._settle(job, abandon())

    def running(self) -> list[Job]:
        """Held jobs whose handlers have not ended."""
        return [job for job in self.held.values() if job.stage == STARTED]

    def acknowledged(self, jobs: list[Job]) -> None:
        """The outcomes of these were answered: their leases are over."""
        held = self.held
        for job in jobs:
            if held.get(job.raw_id) is job:  # else a later run of the same job was delivered already
                del held[job.raw_id]

    def _hand_back(self, job: Job) -> None:
        self._release(job)
        self.hand_back(job)

    def _settle(self, job: Job, outcome: Outcome) -> None:
        if not job.lost and not job.settled:
            job.settled = True
            self.outbox.add(job, outcome)

    def _release(self, job: Job) -> None:
        if job.stage == STARTED:
            self._started -= 1
        job.stage = FINISHED
        self.active -= 1
        if self.timers and (timers := self.timers.pop(job, None)) is not None:
            for timer in timers.values():
                timer.cancel()
