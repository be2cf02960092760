"""Beats: "I am alive and hold these", with the progress and the lease extensions that handlers asked for.

One timer serves all that is regular on a stream: it makes a beat due, notices a server that has fallen silent, and
sends again what the server has left unanswered.
"""

from __future__ import annotations

import logging
from typing import Final

from headgate.sdk.worker.actions import Actions
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.timers import Timers
from headgate.wire import worker_pb2 as pb

log = logging.getLogger("headgate.worker")

BEAT_SECONDS: Final = 20.0
"""Until the server says otherwise."""
BEAT_MAX_JOBS: Final = 2_000
"""Jobs whose progress one beat carries, and as many extensions. The rest follows: the server refuses beats of too many
(10,000), and may refuse large ones (8 MB)."""
PROGRESS_SECONDS: Final = 1.0
"""Progress of all jobs is sent together, at most this often."""
RESEND_SECONDS: Final = 10.0
PROBE_SECONDS: Final = 5.0
"""A worker that holds jobs sends something about this often, an empty frame if need be: a connection that is gone
without a sign then fails here in time to reconnect, for which servers wait for some seconds only."""


def silence_limit(beat_seconds: float) -> float:
    """For how long a server may send nothing before it counts as lost.

    It answers every beat at once. It renews our leases when half of their time is left, one and a half beats: a worker
    that reaches another instance within that loses nothing. The rest is slack for a busy machine.
    """
    return min(2 * beat_seconds, beat_seconds + max(1.0, beat_seconds / 3))


class Beats:
    """When to beat, and with what."""

    def __init__(self, ledger: Ledger, timers: Timers, actions: Actions, *, lease_seconds: int) -> None:
        self._ledger, self._timers, self._actions = ledger, timers, actions
        self._lease_seconds = lease_seconds
        self.due = False
        self.probe = False
        """True if a frame is due, even an empty one."""
        self.last_frame_at = self.sent_at = 0.0
        self.jobs_seen = 0
        """The number of the last delivery on this stream."""
        self._interval = BEAT_SECONDS
        self._next_at = 0.0
        self._progress_sent_at = 0.0
        self._progress: dict[bytes, tuple[HeldJob, int, int, str]] = {}  # the latest of each job; bounded by the slots
        self._extensions: dict[bytes, tuple[HeldJob, int]] = {}

    def connect(self, beat_seconds: int, now: float) -> None:
        """A stream begins, on which the server asks for a beat this often; a shorter lease needs them more often."""
        interval = float(beat_seconds or BEAT_SECONDS)
        if self._lease_seconds:
            interval = min(interval, self._lease_seconds / 3)
        self._interval, self._next_at, self.last_frame_at, self.jobs_seen = interval, now + interval, now, 0
        self.sent_at, self.probe = now, False
        self._set_timer(now)

    def disconnect(self) -> None:
        """The stream has ended."""
        self._timers.cancel("beat")

    def add_progress(self, job: HeldJob, progress: tuple[int, int, str], now: float) -> None:
        """A handler reported progress: it is sent with that of others."""
        self._progress[job.raw_id] = (job, *progress)
        if "progress" not in self._timers:
            self._timers.set("progress", max(now, self._progress_sent_at + PROGRESS_SECONDS), self._send_progress)

    def add_extension(self, job: HeldJob, lease_seconds: int) -> None:
        """A handler asks for a longer lease: that is sent at once."""
        self._extensions[job.raw_id] = job, lease_seconds
        self.due = True

    def fill(self, beat: pb.Beat, now: float) -> None:
        """Write the beat that is due."""
        self.due, self._next_at = False, now + self._interval
        beat.held.CopyFrom(self._ledger.held_message())
        beat.jobs_seen = self.jobs_seen
        if self._progress:
            self._progress_sent_at = now
        held = self._ledger.held
        for raw_id in list(self._progress)[:BEAT_MAX_JOBS]:  # the oldest first
            job, done, total, message = self._progress.pop(raw_id)
            if held.get(raw_id) is job:
                part = beat.progress.add(id=raw_id, epoch=job.epoch)
                part.progress.done, part.progress.total, part.progress.message = done, total, message
        for raw_id in list(self._extensions)[:BEAT_MAX_JOBS]:
            job, seconds = self._extensions.pop(raw_id)
            if held.get(raw_id) is job:
                beat.extensions.add(id=raw_id, epoch=job.epoch, lease_seconds=seconds)
        if self._progress or self._extensions:  # more than one beat carries
            self._progress_sent_at = now
            self._timers.set("progress", now + PROGRESS_SECONDS, self._send_progress)

    def _send_progress(self, _now: float) -> None:
        if self._progress or self._extensions:
            self.due = True

    def _set_timer(self, now: float) -> None:
        self._timers.set("beat", now + min(self._interval / 4, PROBE_SECONDS / 2), self._on_timer)

    def _on_timer(self, now: float) -> None:
        silent = now - self.last_frame_at
        if silent > silence_limit(self._interval):
            log.warning('server_silent seconds=%.1f effect="reconnecting"', silent)
            self._actions.reconnect = True
            return
        if now >= self._next_at - self._interval / 8:
            self.due = True
        elif self._ledger.held and now - self.sent_at > PROBE_SECONDS * 0.9:
            self.probe = True
        self._ledger.outbox.resend_sent_before(now - RESEND_SECONDS)
        self._set_timer(now)
