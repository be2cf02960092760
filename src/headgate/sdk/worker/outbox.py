"""Outcomes on their way: kept until the server has answered, and sent again after a reconnect.

Belongs to the I/O loop. Its bound is the ledger's: no jobs are asked for while too many outcomes are unanswered.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from headgate.sdk.job import Job
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb

FRAME_OUTCOMES: Final = 2_000
FRAME_BYTES: Final = 1_000_000

Outcome: TypeAlias = bytes | jobs.Outcome
"""What one attempt came to: the result's bytes, or anything else as a message without id and epoch."""


def abandon() -> jobs.Outcome:
    """The outcome that hands a job back."""
    return jobs.Outcome(abandon=jobs.Abandon())


class Sent:
    """One frame's outcomes, and whose they are in the order of their places."""

    __slots__ = ("jobs", "message", "sent_at")

    def __init__(self, message: pb.Outcomes, jobs: list[Job], sent_at: float) -> None:
        self.message, self.jobs, self.sent_at = message, jobs, sent_at


class Outbox:
    """Outcomes not sent, and by seq those not answered."""

    def __init__(self) -> None:
        self._unsent: deque[tuple[Job, Outcome]] = deque()
        self._unanswered: dict[int, Sent] = {}
        self._resend: deque[int] = deque()
        self._later: list[tuple[Job, Outcome]] = []
        self._seq = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def unsent(self) -> bool:
        """Whether something is to be sent, or sent again."""
        return bool(self._unsent or self._resend)

    def add(self, job: Job, outcome: Outcome) -> None:
        """Take one outcome for sending."""
        self._unsent.append((job, outcome))
        self._count += 1

    def add_later(self, job: Job, outcome: Outcome) -> None:
        """Take one outcome that is to be sent when `release` is called."""
        self._later.append((job, outcome))
        self._count += 1

    def release(self) -> bool:
        """Send what was put off; True if there is any."""
        later, self._later = self._later, []
        self._unsent.extend(later)
        return bool(later)

    def new_stream(self) -> None:
        """Everything unanswered is sent again, oldest first."""
        self.release()
        self._resend = deque(sorted(self._unanswered))

    def overdue(self, *, sent_before: float) -> bool:
        """Send again what was sent before that time and is not answered; True if there is any.

        A server may lose track of them, and a repeated outcome is harmless.
        """
        waiting = set(self._resend)
        late = [seq for seq, sent in self._unanswered.items() if sent.sent_at < sent_before and seq not in waiting]
        self._resend.extend(late)
        return bool(late)

    def resend(self, seq: int) -> bool:
        """Send this frame again; False if it was answered meanwhile, or waits for that already."""
        if seq not in self._unanswered or seq in self._resend:
            return False
        self._resend.append(seq)
        return True

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
        done: list[Job] = []
        results: list[bytes] = []
        others: list[Job] = []
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
        self._unanswered[self._seq] = Sent(into, done + others, now)
        return True

    def outcome_at(self, sent: Sent, place: int) -> Outcome:
        """What was sent at this place of a frame."""
        message = sent.message
        if place < len(message.ids):
            return message.results[place] if message.results else b""
        return message.others[place - len(message.ids)]

    def answered(self, seq: int) -> Sent | None:
        """The server has answered this frame; None if it was answered before."""
        sent = self._unanswered.pop(seq, None)
        if sent is not None:
            self._count -= len(sent.jobs)
        return sent

    def everything(self) -> list[tuple[Job, jobs.Outcome]]:
        """All that is not answered, as messages, for a unary report."""
        found: list[tuple[Job, jobs.Outcome]] = []
        for seq in sorted(self._unanswered):
            sent = self._unanswered[seq]
            message = sent.message
            results = message.results or [b""] * len(message.ids)
            for job, result in zip(sent.jobs, results, strict=False):
                found.append((job, _completed(job, result)))
            found.extend(zip(sent.jobs[len(message.ids) :], message.others, strict=True))
        for job, outcome in (*self._unsent, *self._later):
            if isinstance(outcome, bytes):
                outcome = _completed(job, outcome)
            outcome.id, outcome.epoch = job.raw_id, job.epoch
            found.append((job, outcome))
        return found

    def clear(self) -> None:
        """Forget everything: it was reported by other means, or cannot be."""
        self._unsent.clear()
        self._later.clear()
        self._unanswered.clear()
        self._resend.clear()
        self._count = 0


def _completed(job: Job, result: bytes) -> jobs.Outcome:
    return jobs.Outcome(id=job.raw_id, epoch=job.epoch, completed=jobs.Completed(result=result))
