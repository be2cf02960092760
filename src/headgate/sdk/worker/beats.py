"""Beats: "I am alive and hold these", with the progress and the lease extensions that handlers asked for.

One timer serves all that is regular on a stream: it makes a beat due, notices a server that has fallen silent, and
sends again what the server has left unanswered.
"""

from __future__ import annotations

from typing import Final

from headgate.sdk.io_log import io_logger
from headgate.sdk.worker.actions import Actions
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.timers import Timers
from headgate.wire import worker_pb2 as pb

log = io_logger("headgate.worker")

BEAT_SECONDS: Final = 20.0
"""Until the server says otherwise."""
BEAT_MAX_JOBS: Final = 2_000
"""Jobs whose progress one beat carries, and as many extensions. The rest follows: the server refuses beats of too many
(10,000), and may refuse large ones (8 MB)."""
PROGRESS_SECONDS: Final = 1.0
"""Progress of all jobs is sent together, at most this often."""
RESEND_SECONDS: Final = 10.0
PROBE_SECONDS, QUIET_SECONDS = 3.0, 6.0
"""A worker that holds jobs and has received nothing for the first of these sends an empty beat, which every server
answers at once. After the second it reconnects: its connection may be gone without a sign, and servers wait only 10 s
for a worker to come back (ADR 34). Only time counts in which this process ran."""
TICK_SECONDS: Final = 1.0


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
        """True if a beat is due that only asks for an answer."""
        self.last_frame_at = 0.0
        self.jobs_seen = 0
        """The number of the last delivery on this stream."""
        self._interval = BEAT_SECONDS
        self._next_at = 0.0
        self._looked_at = self._quiet = 0.0  # the last look of the timer; for how long nothing has been received
        self._patient = False  # the last stream was left as quiet: it may have been busy with something large
        self._progress_sent_at = 0.0
        self._progress: dict[bytes, tuple[HeldJob, int, int, str]] = {}  # the latest of each job; bounded by the slots
        self._extensions: dict[bytes, tuple[HeldJob, int]] = {}

    def connect(self, beat_seconds: int, now: float) -> None:
        """A stream begins, on which the server asks for a beat this often; a shorter lease needs them more often."""
        interval = float(beat_seconds or BEAT_SECONDS)
        if self._lease_seconds:
            interval = min(interval, self._lease_seconds / 3)
        self._interval, self._next_at, self.last_frame_at, self.jobs_seen = interval, now + interval, now, 0
        self._looked_at, self._quiet, self.probe = now, 0.0, False
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
        self._timers.set("beat", now + min(self._interval / 4, TICK_SECONDS), self._on_timer)

    def _on_timer(self, now: float) -> None:
        silent = now - self.last_frame_at
        if silent > silence_limit(self._interval) or self._is_quiet(now):
            log.warning('server_silent seconds=%.1f effect="reconnecting"', silent)
            self._actions.reconnect = True
            return
        if now >= self._next_at - self._interval / 8:
            self.due = True
        self._ledger.outbox.resend_sent_before(now - RESEND_SECONDS)
        self._set_timer(now)

    def _is_quiet(self, now: float) -> bool:
        """Whether a worker that holds jobs has asked for an answer without success; asks for it first.

        A large result on a slow network delays the answer. So after one stream was left, the next is left only when
        the server is silent, until an answer was quick again.
        """
        before, self._looked_at = self._looked_at, now
        if self.last_frame_at >= before or not self._ledger.held:
            if PROBE_SECONDS <= self._quiet < QUIET_SECONDS:
                self._patient = False
            self._quiet = 0.0
            return False
        asked = self._quiet >= PROBE_SECONDS
        self._quiet += min(now - before, 2 * TICK_SECONDS)  # not a longer gap: this process stalled
        if self._quiet >= PROBE_SECONDS and not asked:
            self.probe = True
        if self._quiet < QUIET_SECONDS or self._patient:
            return False
        self._patient = True
        return True
