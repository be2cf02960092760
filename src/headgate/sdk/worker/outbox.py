"""Outcomes on their way: kept until the server has answered, and sent again after a reconnect.

Its bound is the ledger's: no jobs are asked for while too many outcomes are unanswered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from headgate.sdk.outcomes import Outcome
from headgate.sdk.worker.held_job import HeldJob
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb

FRAME_OUTCOMES: Final = 2_000
FRAME_BYTES: Final = 1_000_000


@dataclass(slots=True)
class SentOutcomes:
    """The outcomes of one frame, and their jobs in the same order."""

    message: pb.Outcomes
    jobs: list[HeldJob]
    sent_at: float

    def outcome_at(self, index: int) -> Outcome:
        """What was sent for the job at this index: completions come first, then the others."""
        message = self.message
        if index < len(message.ids):
            return message.results[index] if message.results else b""
        return message.others[index - len(message.ids)]


class Outbox:
    """Outcomes not sent, and by seq those not answered."""

    def __init__(self) -> None:
        self._unsent: deque[tuple[HeldJob, Outcome]] = deque()
        self._unanswered: dict[int, SentOutcomes] = {}
        self._resend: deque[int] = deque()
        self._later: list[tuple[HeldJob, Outcome]] = []
        self._seq = 0
        self.count = 0  # of all that is not answered

    @property
    def unsent(self) -> bool:
        """Whether something is to be sent, or sent again."""
        return bool(self._unsent or self._resend)

    @property
    def resending(self) -> bool:
        """Whether something is to be sent again."""
        return bool(self._resend)

    def add(self, job: HeldJob, outcome: Outcome) -> None:
        """Take one outcome for sending."""
        self._unsent.append((job, outcome))
        self.count += 1

    def add_later(self, job: HeldJob, outcome: Outcome) -> None:
        """Take one outcome that is to be sent when `release` is called."""
        self._later.append((job, outcome))
        self.count += 1

    def release(self) -> None:
        """Send what was put off."""
        self._unsent.extend(self._later)
        self._later.clear()

    def new_stream(self) -> None:
        """Everything unanswered is sent again, oldest first."""
        self.release()
        self._resend = deque(sorted(self._unanswered))

    def resend_sent_before(self, sent_before: float) -> None:
        """Send again what was sent before that time and is not answered.

        A server may lose track of them, and a repeated outcome is harmless.
        """
        waiting = set(self._resend)
        late = [seq for seq, sent in self._unanswered.items() if sent.sent_at < sent_before and seq not in waiting]
        self._resend.extend(late)

    def resend(self, seq: int) -> None:
        """Send this frame again, unless it was answered meanwhile."""
        if seq in self._unanswered and seq not in self._resend:
            self._resend.append(seq)

    def fill(self, into: pb.Outcomes, *, now: float) -> bool:
        """Write the next frame's worth into `into`; False if there is nothing to send."""
        while self._resend:
            again = self._unanswered.get(self._resend.popleft())
            if again is not None:  # else answered meanwhile
                again.sent_at = now
                into.CopyFrom(again.message)
                return True
        if not self._unsent:
            return False
        done: list[HeldJob] = []
        results: list[bytes] = []
        others: list[HeldJob] = []
        size = 0
        unsent = self._unsent
        while unsent and size < FRAME_BYTES and len(done) + len(others) < FRAME_OUTCOMES:
            job, outcome = unsent.popleft()
            if isinstance(outcome, bytes):
                done.append(job)
                results.append(outcome)
                size += len(outcome)
            else:
                outcome.id, outcome.epoch = job.raw_id, job.epoch
                into.others.append(outcome)
                others.append(job)
                size += outcome.ByteSize()
        self._seq += 1
        into.seq = self._seq
        into.ids.extend([job.raw_id for job in done])
        into.epochs.extend([job.epoch for job in done])
        if any(results):
            into.results.extend(results)
        self._unanswered[self._seq] = SentOutcomes(into, done + others, now)
        return True

    def answered(self, seq: int) -> SentOutcomes | None:
        """The server has answered this frame; None if it was answered before."""
        sent = self._unanswered.pop(seq, None)
        if sent is not None:
            self.count -= len(sent.jobs)
        return sent

    def all_unacknowledged(self) -> list[jobs.Outcome]:
        """All that is not answered, oldest first, as messages for a unary report."""
        found: list[tuple[HeldJob, Outcome]] = []
        for seq in sorted(self._unanswered):
            sent = self._unanswered[seq]
            found.extend((job, sent.outcome_at(index)) for index, job in enumerate(sent.jobs))
        return [_message(job, outcome) for job, outcome in (*found, *self._unsent, *self._later)]

    def clear(self) -> None:
        """Forget everything: it was reported without a stream, or cannot be."""
        self._unsent.clear()
        self._later.clear()
        self._unanswered.clear()
        self._resend.clear()
        self.count = 0


def _message(job: HeldJob, outcome: Outcome) -> jobs.Outcome:
    if isinstance(outcome, bytes):
        outcome = jobs.Outcome(completed=jobs.Completed(result=outcome))
    outcome.id, outcome.epoch = job.raw_id, job.epoch
    return outcome
