"""What the worker says: outcomes, beats with progress and wishes, and how many more jobs it will take."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from headgate.sdk import rpc
from headgate.sdk.job import Job
from headgate.sdk.worker.ledger import Ledger
from headgate.wire import worker_pb2 as pb

READY_MAX: Final = 100_000
"""What the server takes in one Ready."""
BEAT_MOST: Final = 2_000
"""Jobs whose progress one beat carries, and as many extensions. The rest follows: the server refuses beats of too many
(10,000), and may refuse large ones (8 MB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream tells about its worker."""

    worker_id: str
    token: str
    topics: tuple[str, ...]
    lease_seconds: int


class Outbound:
    """Makes the frames of one worker's streams, on the I/O loop; `progress` and `extensions` are filled by handlers."""

    def __init__(self, settings: StreamSettings, ledger: Ledger) -> None:
        self._settings, self._ledger = settings, ledger
        # The latest of each job, put there by any thread; bounded by the slots.
        self.progress: dict[bytes, Job] = {}
        self.extensions: dict[bytes, tuple[Job, int]] = {}
        self.jobs_seen = 0  # the number of the last delivery on this stream
        self._incarnation = secrets.randbelow(2**32 - 1) + 1  # the same over all reconnects, and never 0: that is none
        self._resumed = False
        self._topics_sent: tuple[str, ...] = ()

    def hello(self) -> pb.WorkerFrame:
        """The first frame of a stream: who we are, and all that we hold."""
        return pb.WorkerFrame(
            hello=pb.Hello(
                worker_id=self._settings.worker_id,
                client=rpc.CLIENT,
                held=self._held(),
                resumed=self._resumed,
                incarnation=self._incarnation,
            )
        )

    def greeted(self) -> None:
        """The stream is open: credit and topics belong to a stream, and what is unanswered is said again."""
        self._resumed = True
        self._topics_sent = ()
        self.jobs_seen = 0
        self._ledger.asked = 0
        self._ledger.outbox.new_stream()

    def next_frame(self, *, now: float, beat: bool, ask: bool, quiet: bool = False) -> pb.WorkerFrame | None:
        """All there is to say, in one frame; None if there is nothing."""
        frame, full = pb.WorkerFrame(), beat or quiet
        if quiet:
            frame.quiet.SetInParent()
        if len(self._ledger.outbox):
            if self._ledger.outbox.fill(frame.outcomes, now=now):
                full = True
            else:
                frame.ClearField("outcomes")
        if beat:
            self._fill_beat(frame.beat)
        if ask and self._ask(frame):
            full = True
        return frame if full else None

    def _ask(self, frame: pb.WorkerFrame) -> bool:
        topics = self._settings.topics
        if self._ledger.refused_topics:
            topics = tuple(topic for topic in topics if topic not in self._ledger.refused_topics)
        count = min(self._ledger.credit(), READY_MAX)
        if not count or not topics:
            return False
        if topics != self._topics_sent:
            frame.ready.topics.extend(topics)
            self._topics_sent = topics
        frame.ready.count = count
        frame.ready.lease_seconds = self._settings.lease_seconds
        self._ledger.asked += count
        return True

    def _fill_beat(self, beat: pb.Beat) -> None:
        beat.held.CopyFrom(self._held())
        beat.jobs_seen = self.jobs_seen
        held = self._ledger.held
        # By pop, since handlers' threads put more meanwhile; the oldest first.
        for raw_id in list(self.progress)[:BEAT_MOST]:
            job = self.progress.pop(raw_id)
            if held.get(raw_id) is job and job.last_progress is not None:
                done, total, message = job.last_progress
                word = beat.progress.add(id=raw_id, epoch=job.epoch)
                word.progress.done, word.progress.total, word.progress.message = done, total, message
        for raw_id in list(self.extensions)[:BEAT_MOST]:
            job, seconds = self.extensions.pop(raw_id)
            if held.get(raw_id) is job:
                beat.extensions.add(id=raw_id, epoch=job.epoch, lease_seconds=seconds)

    def _held(self) -> pb.Held:
        held = self._ledger.held
        return pb.Held(ids=list(held), epochs=[job.epoch for job in held.values()])
