"""What this worker holds: leases, slots, credit.

Three counts that are easily taken for one another:
- `held`: jobs whose lease is ours. Declared in every Hello and Beat, from delivery until the outcome is acknowledged,
  so that no lease expires while its outcome is on the way.
- `active`: jobs that take up a slot: delivered and not finished. A lost job is active until its handler has ended.
- `asked`: credit that is out on the present stream. A new stream begins with none.
Never more than the slots and what may wait for them (`prefetch`, or as `ReadAhead` finds) are asked for or active
together; that is the whole of the flow control.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from headgate.sdk.io_log import io_logger
from headgate.sdk.job import Reports
from headgate.sdk.outcomes import Outcome
from headgate.sdk.worker.forced_outcomes import abandoned, cancelled_unbegun
from headgate.sdk.worker.held_job import FINISHED, STARTED, HeldJob
from headgate.sdk.worker.outbox import Outbox
from headgate.sdk.worker.read_ahead import ReadAhead
from headgate.sdk.worker.timers import Timers
from headgate.wire import worker_pb2 as pb

if TYPE_CHECKING:
    from headgate.sdk.tasks import Task

log = io_logger("headgate.worker")

UNACKNOWLEDGED_MAX: Final = 20_000
"""Outcomes kept for the server's answer. Past that no more jobs are asked for: the server, not we, is behind."""


class Ledger:
    """Takes deliveries in, starts them while slots are free, and turns what handlers report into outcomes."""

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        timers: Timers,
        *,
        concurrency: int,
        prefetch: int | None,
        slots_queue: int = 0,
        reports: Reports,
    ) -> None:
        """`slots_queue`: how many jobs the slots take beyond their number, and keep in order themselves."""
        self.held: dict[bytes, HeldJob] = {}
        self.outbox = Outbox()
        self.active = 0
        self.delivered = 0
        """How many jobs were ever taken in."""
        self.asked = 0
        self.resting = False
        """True: no more jobs are wanted; what still arrives is abandoned unstarted."""
        self.withdrawing = False
        """True: the credit that is out is to be taken back."""
        self.quiet_unconfirmed = False
        """True while jobs may still arrive although none are wanted: the server has not answered Quiet."""
        self.timed: set[HeldJob] = set()
        """Active jobs with a timer for their deadline or their time limit, to be cancelled when they end."""
        self.unreported: list[tuple[HeldJob, Outcome]] = []
        """Failures of handlers that are not sent, because the lease of their job was lost."""
        self.time_rules: dict[str, float] = {}
        """By topic, as last delivered: how many seconds an attempt may take; 0: no limit."""
        self.tenant = ""
        self.refused_topics: set[str] = set()
        self._tasks, self._timers, self._reports = tasks, timers, reports
        self._concurrency, self._prefetch = concurrency, prefetch
        self._startable = concurrency + slots_queue
        self._ahead = ReadAhead()
        self.reads_ahead = prefetch is None
        """Whether `ReadAhead` finds how many jobs to hold beyond the slots; else the user has said it."""
        self._started = 0
        self._waiting: deque[HeldJob] = deque()  # bounded by the credit: what is delivered was asked for

    # --- credit ------------------------------------------------------------------------------------------------------

    def credit(self) -> int:
        """How many more jobs to ask for now."""
        if self.outbox.count >= UNACKNOWLEDGED_MAX:
            return 0
        ahead = self._ahead.jobs if self._prefetch is None else self._prefetch
        return max(0, self._concurrency + ahead - self.active - self.asked)

    def stalled(self, now: float) -> None:
        """What was read ahead is not begun in time: the credit for more of it is taken back."""
        self._ahead.stalled(now)
        self.withdrawing = self.asked > 0

    def rest(self) -> None:
        """Want no more jobs."""
        self.resting = True
        self.quiet_unconfirmed = self.asked > 0

    def new_stream(self) -> None:
        """Credit belongs to a stream: none is out, so nothing can arrive."""
        self.asked = 0
        self.quiet_unconfirmed = self.withdrawing = False

    # --- deliveries --------------------------------------------------------------------------------------------------

    def deliver(self, frame: pb.Jobs) -> tuple[list[HeldJob], list[tuple[HeldJob, float]]]:
        """Take delivered jobs in; gives the older runs that some of them replace, and deadlines, in seconds from now.

        Raises ValueError if the arrays are not parallel: then nothing of the frame is taken.
        """
        new, replaced, deadlines = self._unpack(frame)
        self.delivered += len(new)
        for job in new:
            self.held[job.raw_id] = job
            self.active += 1
            if job.handler is None:
                self._refuse(job)
            elif self.resting:
                self._hand_back(job)
            else:
                self._waiting.append(job)
        return replaced, deadlines

    def _unpack(self, frame: pb.Jobs) -> tuple[list[HeldJob], list[HeldJob], list[tuple[HeldJob, float]]]:
        ids, names = list(frame.ids), list(frame.topic_names)
        count = len(ids)
        self.asked = max(0, self.asked - count)
        tasks = [self._tasks.get(name) for name in names]
        if frame.time_limits_ms or self.time_rules:
            self._set_time_rules(names, frame.time_limits_ms)
        topics = frame.topics or [0] * count
        if count and (not names or max(topics) >= len(names)):
            raise ValueError("a job's topic is not in the frame's table")
        rows = zip(
            ids,
            frame.epochs,
            topics,
            frame.payloads,
            frame.attempts,
            frame.max_attempts,
            frame.priorities or [0] * count,
            frame.created_us,
            strict=True,
        )
        lease, tenant, reports, held = frame.lease_until_us, self.tenant, self._reports, self.held
        new: list[HeldJob] = []
        replaced: list[HeldJob] = []
        by_index: dict[int, HeldJob] = {}
        has_extras = bool(frame.headers)
        for index, (raw_id, epoch, topic, payload, attempt, most, priority, created) in enumerate(rows):
            known = held.get(raw_id)
            if known is not None:
                if known.epoch >= epoch:  # the same delivery, or an older one, again
                    continue
                replaced.append(known)
            job = HeldJob(
                raw_id,
                epoch,
                names[topic],
                payload,
                attempt,
                most,
                priority,
                created,
                lease,
                tenant,
                reports,
                tasks[topic],
            )  # fmt: skip -- one line a field would hide the loop
            new.append(job)
            if has_extras:
                by_index[index] = job
        deadlines: list[tuple[HeldJob, float]] = []
        for extra in frame.headers:
            if (found := by_index.get(extra.index)) is not None:
                found.set_extras(extra.headers, (extra.schedule, extra.occurrence_us), extra.deadline_us)
                if extra.deadline_us:
                    deadlines.append((found, extra.deadline_in_ms / 1000))
        return new, replaced, deadlines

    def _set_time_rules(self, names: list[str], limits_ms: Sequence[int]) -> None:
        for name, limit_ms in zip(names, limits_ms or [-1] * len(names), strict=True):
            if limit_ms < 0:  # no rule, or none any more
                self.time_rules.pop(name, None)
            else:
                self.time_rules[name] = limit_ms / 1000

    def time_limit(self, job: HeldJob) -> float | None:
        """Seconds that an attempt may take: by the rule of its topic as last delivered, or as its handler declares."""
        ruled = self.time_rules.get(job.topic)
        return cast("Task[Any, Any]", job.handler).time_limit if ruled is None else ruled or None

    def _refuse(self, job: HeldJob) -> None:
        """Abandon what has no handler here, and ask for that topic no more: another worker may have one."""
        if job.topic not in self.refused_topics:
            self.refused_topics.add(job.topic)
            log.warning('no_handler topic=%s effect="jobs of this topic are abandoned"', job.topic)
        self._hand_back(job)

    def start_waiting(self, now: float) -> list[HeldJob]:
        """The jobs to be given to the slots now."""
        batch: list[HeldJob] = []
        waiting = self._waiting
        while waiting and self._started < self._startable:
            job = waiting.popleft()
            if job.stage == FINISHED:  # lost, cancelled or abandoned meanwhile
                continue
            job.stage = STARTED
            job.started_at = now
            self._started += 1
            batch.append(job)
        return batch

    # --- endings -----------------------------------------------------------------------------------------------------

    def finish(self, job: HeldJob, outcome: Outcome | None, now: float) -> None:
        """A handler has ended: its slot is free, and its outcome is sent unless the job is no longer ours.

        Of a job that was given up only a success counts: all else is the consequence of having been cut short.
        """
        if job.stage == FINISHED:
            return
        self._release(job)
        self._ahead.finished(job.run_seconds or now - job.started_at, now, len(job.payload))
        if job.lost:
            self._note_unreported(job, outcome)
        elif outcome is not None and (not job.abandoned or isinstance(outcome, bytes)):
            self.settle(job, outcome)

    def _note_unreported(self, job: HeldJob, outcome: Outcome | None) -> None:
        """Keep an error that is not the consequence of having been stopped: its author should see it."""
        if outcome is not None and not isinstance(outcome, bytes) and outcome.failed.type not in ("", "Cancelled"):
            self.unreported.append((job, outcome))

    def lose(self, job: HeldJob) -> bool:
        """The lease is another worker's. True if a handler runs that should be stopped; its outcome is not sent."""
        if self.held.get(job.raw_id) is job:
            del self.held[job.raw_id]
        if job.stage == FINISHED:
            job.lost = not job.outcome_queued  # what was sent is answered by its receipt; nothing is sent any more
            return False
        job.lost = True
        if job.stage == STARTED:
            return True
        self._release(job)
        return False

    def cancel(self, job: HeldJob) -> bool:
        """The job should end. True if a handler runs that should be stopped; else it is settled here."""
        job.request_cancel()
        if job.stage == STARTED:
            return True
        if job.stage != FINISHED:
            self.end_unbegun(job, cancelled_unbegun())
        return False

    def end_unbegun(self, job: HeldJob, outcome: Outcome) -> None:
        """A job that no slot has taken ends with this outcome."""
        self._release(job)
        self.settle(job, outcome)

    def hand_back_waiting(self) -> None:
        """Abandon what no slot has taken."""
        while self._waiting:
            job = self._waiting.popleft()
            if job.stage != FINISHED:
                self._hand_back(job)

    def taken_back(self, job: HeldJob) -> None:
        """Abandon a job that its slot has not begun."""
        if job.stage != FINISHED:
            self._hand_back(job)

    def hand_back(self, job: HeldJob) -> None:
        """Abandon a job whose handler is not waited for."""
        job.abandoned = True
        self.settle(job, abandoned())

    def running(self) -> list[HeldJob]:
        """Held jobs whose handlers have not ended."""
        return [job for job in self.held.values() if job.stage == STARTED]

    def held_message(self) -> pb.Held:
        """All that is held, as every Hello and Beat declares it."""
        return pb.Held(ids=list(self.held), epochs=[job.epoch for job in self.held.values()])

    def acknowledged(self, jobs: list[HeldJob]) -> None:
        """The outcomes of these were answered: their leases are over."""
        held = self.held
        for job in jobs:
            if held.get(job.raw_id) is job:  # else a later run of the same job was delivered already
                del held[job.raw_id]

    def settle(self, job: HeldJob, outcome: Outcome) -> None:
        """Send this outcome, unless the job is lost or has one already."""
        if not job.lost and not job.outcome_queued:
            job.outcome_queued = True
            self.outbox.add(job, outcome)

    def _hand_back(self, job: HeldJob) -> None:
        self._release(job)
        self.hand_back(job)

    def _release(self, job: HeldJob) -> None:
        if job.stage == STARTED:
            self._started -= 1
        job.stage = FINISHED
        self.active -= 1
        if self.timed and job in self.timed:
            self.timed.discard(job)
            self._timers.cancel((job, "deadline"))
            self._timers.cancel((job, "limit"))
