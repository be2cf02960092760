"""What the server says, part by part: deliveries, receipts, cancellations, lost leases, drain, errors."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from headgate.sdk import rpc
from headgate.sdk.job import STARTED, Job
from headgate.sdk.outcomes import failure
from headgate.sdk.worker.ledger import Ledger
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb

if TYPE_CHECKING:
    from headgate.sdk.worker.stream import WorkerStream

log = logging.getLogger("headgate.worker")

DRAIN_SECONDS: Final = 30.0
"""How long to stay with a draining server that names no time."""


class Stops(Protocol):
    """Stops handlers where they run."""

    def stop(self, jobs: list[Job]) -> None:
        """Cancel the handlers of these jobs where that is possible. From the I/O thread."""


class Inbound:
    """Acts on the frames of one worker's streams, on the I/O loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: WorkerStream,
        ledger: Ledger,
        slots: Stops,
        *,
        cancel_grace: float,
    ) -> None:
        self._loop, self._stream, self._ledger, self._slots = loop, stream, ledger, slots
        self._cancel_grace = cancel_grace
        self.receipts: Counter[str] = Counter()
        """How many outcomes were applied, duplicate, stale, unknown, invalid."""

    def take(self, frame: pb.ServerFrame) -> None:
        """Receipts first: they end runs that the same frame may begin again."""
        if frame.HasField("receipts"):
            self._answered(frame.receipts)
        if frame.HasField("lost"):
            self.lost(frame.lost)
        if frame.HasField("cancel"):
            self._cancel(frame.cancel)
        if frame.HasField("jobs"):
            replaced = self._ledger.deliver(frame.jobs)
            self._stream.outbound.jobs_seen = max(self._stream.outbound.jobs_seen, frame.jobs.seq)
            self._stop([job for job in replaced if self._ledger.lose(job)])
        if frame.HasField("quieted"):
            self._stream.quieted = True
            self._stream.changed.set()
        if frame.HasField("drain"):
            self._stream.leave(float(frame.drain.grace_seconds or DRAIN_SECONDS))
        if frame.HasField("error"):
            self._error(frame.error, frame.error_seq)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _answered(self, receipts: pb.Receipts) -> None:
        sent = self._ledger.outbox.answered(receipts.seq)
        if sent is None:
            return
        self.receipts["applied"] += len(sent.jobs) - len(receipts.odd)
        again: list[tuple[Job, jobs.Receipt]] = []
        locked: set[int] = set()
        for receipt in receipts.odd:
            word = jobs.ReceiptCode.Name(receipt.code).removeprefix("RECEIPT_").lower()
            self.receipts[word] += 1
            if receipt.place >= len(sent.jobs) or receipt.code in (jobs.RECEIPT_APPLIED, jobs.RECEIPT_DUPLICATE):
                continue
            job = sent.jobs[receipt.place]
            if receipt.code == jobs.RECEIPT_LOCKED:  # nothing was decided: it is still ours, and so is its outcome
                locked.add(receipt.place)
                continue
            log.warning(
                "the outcome of job %s, epoch %d, was not taken: %s %s", job.id, job.epoch, word, receipt.message
            )
            if receipt.code == jobs.RECEIPT_INVALID and receipt.place < len(sent.message.ids):
                again.append((job, receipt))
        self._ledger.acknowledged([job for place, job in enumerate(sent.jobs) if place not in locked])
        for place in sorted(locked):
            self._ledger.outbox.add_later(sent.jobs[place], self._ledger.outbox.outcome_at(sent, place))
        if locked:
            self._stream.release_soon()
        for job, receipt in again:
            # A result the server cannot take: the job is still leased to us, so say what became of it instead.
            self._ledger.held.setdefault(job.raw_id, job)
            self._ledger.outbox.add(job, failure("ResultRefused", receipt.message or "the server refused the result"))
        self._stream.changed.set()

    def lost(self, held: pb.Held) -> None:
        """These leases are another's now: stop the handlers, send no outcome."""
        doomed: list[Job] = []
        for raw_id, epoch in zip(held.ids, held.epochs, strict=True):
            job = self._ledger.held.get(raw_id)
            if job is not None and job.epoch == epoch and self._ledger.lose(job):
                log.warning("lost the lease of job %s, epoch %d: stopping its handler", job.id, epoch)
                doomed.append(job)
        self._stop(doomed)

    def _stop(self, doomed: list[Job]) -> None:
        for job in doomed:
            job.ask_to_stop()
        if doomed:
            self._slots.stop(doomed)
            self._watch(doomed)

    def _cancel(self, held: pb.Held) -> None:
        at_once: list[Job] = []
        later: list[Job] = []
        for raw_id, epoch in zip(held.ids, held.epochs, strict=True):
            job = self._ledger.held.get(raw_id)
            if job is None or job.epoch != epoch or job.cancel_requested:
                continue
            if self._ledger.cancel(job):
                # A handler that takes its Job can look at the flag and end in good order; the others cannot know.
                takes_job = getattr(getattr(job.handler, "arguments", None), "job_name", None) is not None
                (later if takes_job else at_once).append(job)
        if at_once:
            self._slots.stop(at_once)
        if later:
            self._loop.call_later(self._cancel_grace, self._slots.stop, later)
        self._watch(at_once + later)

    def _watch(self, stopping: list[Job]) -> None:
        """Say so once if a handler does not stop: its slot stays taken until it does."""

        def look() -> None:
            for job in stopping:
                if job.stage == STARTED:
                    log.error(
                        "did_not_stop: the handler of job %s (%s) still runs; its slot is lost", job.id, job.topic
                    )

        if stopping:
            self._loop.call_later(2 * self._cancel_grace + 1.0, look)

    def _error(self, error: jobs.Error, seq: int) -> None:
        log.warning("the server reports %s: %s", error.code, error.message)
        if error.code in rpc.RETRIED:
            self._stream.resend_soon(seq, error.retry_after_ms)
        elif seq and (sent := self._ledger.outbox.answered(seq)) is not None:
            # It will never take this frame. The leases of these jobs lapse: nothing else can be said about them.
            log.error("%d outcomes were refused as a whole and are given up: %s", len(sent.jobs), error.message)
            self._ledger.acknowledged(sent.jobs)
            self._stream.changed.set()
