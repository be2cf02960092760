"""The worker's side of the Work stream: frames and events in, frames and actions out.

It reads no clock, opens no connection and starts no handler: `stream` passes the time in (monotonic seconds) and
carries out its `actions`. So every sequence of frames can be tested without a server. It belongs to the I/O loop.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.sdk.errors import RETRIED
from headgate.sdk.io_log import io_logger
from headgate.sdk.outcomes import Outcome, failure
from headgate.sdk.worker.actions import Actions
from headgate.sdk.worker.attempt_log import Settled
from headgate.sdk.worker.beats import Beats
from headgate.sdk.worker.held_job import STARTED, HeldJob
from headgate.sdk.worker.job_logs import LineOutbox
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.outbox import SentOutcomes
from headgate.sdk.worker.stale_jobs import StaleJobs
from headgate.sdk.worker.stop_sequence import StopSequence
from headgate.sdk.worker.stuck_slots import LOOK_SECONDS, StuckSlots
from headgate.sdk.worker.time_limits import TimeLimits
from headgate.sdk.worker.timers import Timers
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb

log = io_logger("headgate.worker")

READY_MAX: Final = 100_000
"""What the server accepts in one Ready."""
RESEND_SOON_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 30.0
"""How long to stay with a draining server that names no time."""
GATHER_SECONDS: Final = 0.005
"""How long outcomes wait for others while jobs wait here: a frame costs each side as much as ten or twenty jobs."""
_APPLIED: Final = jobs.Receipt()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Who this worker is, what it asks for, and how long its handlers have to end."""

    worker_id: str
    client: str
    incarnation: int
    """The same over all reconnects of a process, and never 0."""
    topics: tuple[str, ...]
    lease_seconds: int
    cancel_grace: float
    slots: int


class WorkerProtocol:
    """What one worker holds, owes and asks for."""

    def __init__(self, settings: WorkerSettings, ledger: Ledger, timers: Timers, *, has_time_limits: bool) -> None:
        self._settings, self.ledger, self.timers = settings, ledger, timers
        self._has_time_limits = has_time_limits
        self.actions = Actions()
        self.connected = False
        self.receipts: Counter[str] = Counter()
        """How many outcomes were applied, duplicate, stale, unknown, invalid."""
        self.beats = Beats(ledger, timers, self.actions, lease_seconds=settings.lease_seconds)
        self.logs = LineOutbox(ledger, timers)
        self._time_limits = TimeLimits(ledger, timers, self.actions)
        self.stop_sequence = StopSequence(ledger, timers, self.actions)
        self._stuck_slots = StuckSlots(settings.slots)
        self._stale_jobs = StaleJobs(ledger, timers, self.actions, slots=settings.slots)
        self._resumed = False
        self._first_connected_at = 0.0
        self._stop_asked = False  # by an operator
        self.draining = False  # the server ends: connect elsewhere when what runs has ended
        self._drain_over = False
        self._topics_sent: tuple[str, ...] = ()
        self._gathering = self._gathered = False  # outcomes wait for others; or have done so, and are to be sent

    # --- start --------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """The worker starts."""
        self._look_for_stuck_slots(now)

    def _look_for_stuck_slots(self, now: float) -> None:
        self._stuck_slots.look(self.ledger.running(), now)
        self.timers.set("stuck", now + LOOK_SECONDS, self._look_for_stuck_slots)

    # --- the stream --------------------------------------------------------------------------------------------------

    def hello(self, now: float) -> pb.WorkerFrame:
        """The first frame of a stream: who we are, and all that we hold."""
        return pb.WorkerFrame(
            hello=pb.Hello(
                worker_id=self._settings.worker_id,
                client=self._settings.client,
                held=self.ledger.held_message(),
                resumed=self._resumed,
                incarnation=self._settings.incarnation,
                connected_ms=int((now - self._first_connected_at) * 1000) if self._resumed else 0,
            )
        )

    def connect(self, ack: pb.HelloAck, now: float) -> None:
        """The server has answered our Hello: what is unacknowledged is sent again on this stream."""
        if not self._resumed:
            self._first_connected_at = now
        self.connected = self._resumed = True
        self.draining = self._drain_over = False
        self.timers.cancel("drain")
        self._topics_sent = ()
        self.ledger.tenant = ack.tenant
        self.ledger.new_stream()
        self.ledger.outbox.new_stream()
        self.beats.connect(ack.beat_seconds, now)
        self._lose(ack.lost, now)

    def disconnect(self, now: float) -> None:
        """The stream has ended."""
        self.connected = False
        self.beats.disconnect()
        self.ledger.new_stream()
        self.stop_sequence.advance(now)

    @property
    def may_end_stream(self) -> bool:
        """True if this stream has nothing left to carry, and should be closed."""
        if not self.draining:
            return self.actions.ended
        return self.actions.ended or self._drain_over or not (self.ledger.active or self.ledger.outbox.count)

    def may_send(self, now: float) -> bool:
        """Whether `next_frame` may have something, or the stream is to end: a writer is not woken for nothing."""
        ledger = self.ledger
        if self.beats.due or self.beats.probe or self.logs.due or self.draining or self.actions.ended:
            return True
        if ledger.withdrawing:
            return True
        if (self._gathering or ledger.active > self._settings.slots) and self._gathers(now):
            return False
        if ledger.outbox.unsent:
            return True
        return ledger.asked > 0 if ledger.resting else ledger.credit() > 0

    def _gathers(self, now: float) -> bool:
        """Whether outcomes wait for those of the jobs that wait here: these keep the slots busy."""
        ledger = self.ledger
        if ledger.resting or self.draining or self.actions.ended or ledger.outbox.resending:
            return False
        if self._gathering:
            return ledger.active > 0
        if self._gathered or not ledger.outbox.unsent:
            return False
        self._gathering = True
        self.timers.set("gather", now + GATHER_SECONDS, self._end_gathering)
        return True

    def _end_gathering(self, _now: float) -> None:
        self._gathering, self._gathered = False, True

    # --- frames in ---------------------------------------------------------------------------------------------------

    def receive(self, frame: pb.ServerFrame, now: float) -> None:
        """Take one frame. Receipts come first: they end runs that the same frame may begin again."""
        self.beats.last_frame_at = now
        if frame.HasField("receipts"):
            self._answered(frame.receipts, now)
        if frame.HasField("lost"):
            self._lose(frame.lost, now)
        if frame.HasField("cancel"):
            self._cancel(frame.cancel, now)
        if frame.HasField("jobs"):
            self._deliver(frame.jobs, now)
        if frame.HasField("quieted"):
            self.ledger.quiet_unconfirmed = False
        if frame.HasField("standby"):
            self._stand_by(frame.standby.topics)
        if frame.HasField("drain"):
            self._drain(float(frame.drain.grace_seconds or DRAIN_SECONDS), now)
        if frame.HasField("stop"):
            self._stop_worker(frame.stop)
        if frame.HasField("error"):
            self._error(frame.error, frame.error_seq, now)
        if self.ledger.resting:
            self.stop_sequence.advance(now)

    def _stand_by(self, topics: Sequence[str]) -> None:
        if topics:
            log.info(
                'standby topics=%s effect="other workers receive their jobs; this one takes over when a place is free"',
                ", ".join(topics),
            )
        else:
            log.info('standby_over effect="jobs of all topics are received"')

    def _deliver(self, delivered: pb.Jobs, now: float) -> None:
        replaced, deadlines = self.ledger.deliver(delivered)
        self.beats.jobs_seen = max(self.beats.jobs_seen, delivered.seq)
        if deadlines:
            self._time_limits.delivered(deadlines, now)
        self._start_waiting(now)
        if self.ledger.active > self._settings.slots:
            self._stale_jobs.watch(now)
        if replaced:
            self._stop([job for job in replaced if self.ledger.lose(job)], now)

    def _start_waiting(self, now: float) -> None:
        if batch := self.ledger.start_waiting(now):
            self.actions.start += batch
            if self._has_time_limits or self.ledger.time_rules:
                self._time_limits.started(batch, now)

    def _answered(self, receipts: pb.Receipts, now: float) -> None:
        ledger, outbox = self.ledger, self.ledger.outbox
        sent = outbox.answered(receipts.seq)
        if sent is None:
            return
        self.receipts["applied"] += len(sent.jobs) - len(receipts.exceptions)
        if sent.message.others or log.isEnabledFor(logging.DEBUG):
            self.actions.settled += _settled(sent, receipts)
        invalid: list[tuple[HeldJob, jobs.Receipt]] = []
        locked: set[int] = set()
        for receipt in receipts.exceptions:
            code, index = receipt_name(receipt), receipt.index
            self.receipts[code] += 1
            if index >= len(sent.jobs) or receipt.code in (jobs.RECEIPT_APPLIED, jobs.RECEIPT_DUPLICATE):
                continue
            job = sent.jobs[index]
            if receipt.code == jobs.RECEIPT_LOCKED:  # nothing was decided: it is still ours, and so is its outcome
                locked.add(index)
                continue
            log.warning(
                "outcome_not_applied job_id=%s epoch=%d receipt=%s message=%s", job.id, job.epoch, code, receipt.message
            )
            if receipt.code == jobs.RECEIPT_INVALID and index < len(sent.message.ids):
                invalid.append((job, receipt))
        ledger.acknowledged([job for index, job in enumerate(sent.jobs) if index not in locked])
        if locked:
            for index in sorted(locked):
                outbox.add_later(sent.jobs[index], sent.outcome_at(index))
            if "locked" not in self.timers:
                self.timers.set("locked", now + RESEND_SOON_SECONDS, self._send_locked)
        for job, receipt in invalid:
            # A result the server cannot take: the job is still leased to us, so report a failure instead.
            ledger.held.setdefault(job.raw_id, job)
            outbox.add(job, failure("ResultRefused", receipt.message or "the server refused the result"))

    def _send_locked(self, _now: float) -> None:
        self.ledger.outbox.release()

    def _lose(self, lost: pb.Held, now: float) -> None:
        """These leases are another worker's: stop the handlers, send no outcome."""
        stopped: list[HeldJob] = []
        for raw_id, epoch in zip(lost.ids, lost.epochs, strict=True):
            job = self.ledger.held.get(raw_id)
            if job is not None and job.epoch == epoch and self.ledger.lose(job):
                log.warning('lease_lost job_id=%s epoch=%d effect="its handler is stopped"', job.id, epoch)
                stopped.append(job)
        self._stop(stopped, now)

    def _stop(self, stopped: list[HeldJob], now: float) -> None:
        if stopped:
            for job in stopped:
                job.request_cancel()
            self.actions.stop += stopped
            self._check_stopped(stopped, now)

    def _cancel(self, cancelled: pb.Held, now: float) -> None:
        at_once: list[HeldJob] = []
        later: list[HeldJob] = []
        for raw_id, epoch in zip(cancelled.ids, cancelled.epochs, strict=True):
            job = self.ledger.held.get(raw_id)
            if job is None or job.epoch != epoch or job.cancel_requested:
                continue
            if self.ledger.cancel(job):
                # A handler that takes its Job can look at the flag and clean up first; the others cannot.
                takes_job = job.handler is not None and job.handler.arguments.job_name is not None
                (later if takes_job else at_once).append(job)
        self.actions.stop += at_once
        if later:
            self.timers.set(object(), now + self._settings.cancel_grace, self._stop_later, later)
        self._check_stopped(at_once + later, now)

    def _stop_later(self, later: list[HeldJob], _now: float) -> None:
        self.actions.stop += later

    def _check_stopped(self, stopping: list[HeldJob], now: float) -> None:
        if stopping:
            self.timers.set(object(), now + 2 * self._settings.cancel_grace + 1.0, self._log_running, stopping)

    def _log_running(self, stopping: list[HeldJob], _now: float) -> None:
        """Say so once if a handler does not stop: its slot stays taken until it does."""
        for job in stopping:
            if job.stage == STARTED:
                log.error('did_not_stop job_id=%s topic=%s effect="its slot is lost"', job.id, job.topic)

    def _drain(self, seconds: float, now: float) -> None:
        """The server ends: finish here what is begun, then connect elsewhere."""
        if not self.draining:
            log.info('server_draining effect="reconnecting when running jobs have ended"')
            self.draining = True
            self.timers.set("drain", now + seconds, self._end_drain)
            self.ledger.hand_back_waiting()
            self.actions.take_back = True

    def _stop_worker(self, stop: pb.Stop) -> None:
        """An operator asks this process to end. Said again on every stream, done once."""
        if not self._stop_asked:
            self._stop_asked = True
            log.info("stopping asked_by=%s reason=%s", stop.by, stop.reason)
            self.actions.stop_worker = True

    def _end_drain(self, _now: float) -> None:
        self._drain_over = True

    def _error(self, error: jobs.Error, seq: int, now: float) -> None:
        log.warning("server_error code=%s message=%s", error.code, error.message)
        outbox = self.ledger.outbox
        if error.code in RETRIED:
            wait = error.retry_after_ms / 1000 or RESEND_SOON_SECONDS
            if seq:
                self.timers.set(("resend", seq), now + wait, self._resend, seq)
            else:
                self.timers.set(("resend before", now), now + wait, self._resend_older, wait / 2)
        elif seq and (sent := outbox.answered(seq)) is not None:
            # It will never accept this frame. The leases of these jobs expire: nothing else can be reported about them.
            log.error("outcomes_refused jobs=%d error=%s", len(sent.jobs), error.message)
            self.ledger.acknowledged(sent.jobs)
            first = len(sent.message.ids)
            self.actions.settled += [
                Settled(job, sent.outcome_at(index), None) for index, job in enumerate(sent.jobs) if index >= first
            ]

    def _resend(self, seq: int, _now: float) -> None:
        self.ledger.outbox.resend(seq)

    def _resend_older(self, age: float, now: float) -> None:
        self.ledger.outbox.resend_sent_before(now - age)

    # --- events of handlers ------------------------------------------------------------------------------------------

    def finish(self, ended: deque[tuple[HeldJob, Outcome | None]], now: float) -> None:
        """Handlers have ended: take all of the queue, and start what has waited for their slots."""
        finish = self.ledger.finish
        while ended:
            finish(*ended.popleft(), now)
        if self.ledger.unreported:
            self.actions.settled += [Settled(job, outcome, None) for job, outcome in self.ledger.unreported]
            self.ledger.unreported.clear()
        self._start_waiting(now)
        if self.ledger.resting:
            self.stop_sequence.advance(now)

    def taken_back(self, unbegun: list[HeldJob], now: float) -> None:
        """The slots have given back what no handler has begun."""
        for job in unbegun:
            self.ledger.taken_back(job)
        self.stop_sequence.taken_back(now)

    def close(self) -> None:
        """End at once; what is unacknowledged stays in the outbox."""
        self.actions.ended = True

    # --- frames out --------------------------------------------------------------------------------------------------

    def next_frame(self, now: float) -> pb.WorkerFrame | None:
        """All there is to send now, in one frame; None if there is nothing."""
        ledger = self.ledger
        if (
            (self._gathering or ledger.active > self._settings.slots)
            and not (self.beats.due or self.beats.probe or self.logs.due)
            and self._gathers(now)
        ):
            return None
        frame, full = pb.WorkerFrame(), False
        if (ledger.resting and ledger.asked) or ledger.withdrawing:
            ledger.asked, ledger.withdrawing, ledger.quiet_unconfirmed = 0, False, ledger.resting
            frame.quiet.SetInParent()
            full = True
        # Before the outcomes, and in the same frame: the server takes lines of jobs that are held.
        logs = self.logs
        if (logs.attempts or logs.queue) and (logs.due or ledger.outbox.unsent) and logs.fill(frame.logs):
            full = True
        if ledger.outbox.count:
            if ledger.outbox.fill(frame.outcomes, now=now):
                full = True
                self._gathered = False
                if self._gathering:
                    self._gathering = False
                    self.timers.cancel("gather")
            else:
                frame.ClearField("outcomes")
        if self.beats.due:
            self.beats.fill(frame.beat, now)
            full = True
        elif self.beats.probe:
            frame.beat.SetInParent()  # without jobs_seen: what it does not list is not given up
            full = True
        self.beats.probe = False
        if not (ledger.resting or self.draining or self.actions.ended) and self._ask(frame):
            full = True
        return frame if full else None

    def _ask(self, frame: pb.WorkerFrame) -> bool:
        topics, refused = self._settings.topics, self.ledger.refused_topics
        if refused:
            topics = tuple(topic for topic in topics if topic not in refused)
        count = min(self.ledger.credit(), READY_MAX)
        if not count or not topics:
            return False
        if topics != self._topics_sent:
            frame.ready.topics.extend(topics)
            self._topics_sent = topics
        frame.ready.count = count
        frame.ready.lease_seconds = self._settings.lease_seconds
        self.ledger.asked += count
        return True


def receipt_name(receipt: jobs.Receipt) -> str:
    """The name of a receipt's code: applied, duplicate, stale, unknown, invalid, locked."""
    return jobs.ReceiptCode.Name(receipt.code).removeprefix("RECEIPT_").lower()


def _settled(sent: SentOutcomes, receipts: pb.Receipts) -> list[Settled]:
    """The attempts that this answer settles; completed ones only if they are logged."""
    answers = {receipt.index: receipt for receipt in receipts.exceptions}
    first_other, found = len(sent.message.ids), []
    for index in range(0 if log.isEnabledFor(logging.DEBUG) else first_other, len(sent.jobs)):
        receipt = answers.get(index, _APPLIED)
        if receipt.code in (jobs.RECEIPT_APPLIED, jobs.RECEIPT_DUPLICATE):
            found.append(Settled(sent.jobs[index], sent.outcome_at(index), receipt))
        elif index >= first_other and receipt.code != jobs.RECEIPT_LOCKED:
            found.append(Settled(sent.jobs[index], sent.outcome_at(index), None))
    return found
