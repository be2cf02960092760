"""Log lines of jobs on their way: sent once a second while a handler runs, and at the latest with its outcome.

Handlers add lines from wherever they run, also in the middle of another line: memory that is allocated can start the
garbage collector, and with it a `__del__` that logs; signal handlers log as well. So adding a line does not
wait for the lock of the buffers. It is left in a queue, and the thread that holds the lock sorts it into the buffer of
its attempt.

Lines are for people: what does not fit is dropped, and nothing is sent again. Every line has a number, counted in the
attempt, so that readers see how many are missing.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Protocol

from headgate.domain.job_logs import LineBuffer, LogLevel, LogLine
from headgate.sdk.worker.held_job import FINISHED, HeldJob
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.timers import Timers
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb

SEND_SECONDS: Final = 1.0
"""How long a line waits for others, unless its job ends before."""
MOST_BYTES: Final = 8_388_608
"""Of all jobs that wait: while no server is connected, for one. Lines beyond it are dropped."""
FRAME_BYTES: Final = 1_000_000
FRAME_JOBS: Final = 1_000
FRAME_LINES: Final = 5_000
"""What one frame carries; the server refuses twice as much."""
QUEUED_LINES: Final = 2_000
"""Of all jobs, while another thread holds the lock: no longer than it takes to write a frame. Further lines are
dropped, and not counted as missing."""


class _Into(Protocol):
    def append(self, value: pb.JobLines, /) -> None: ...


class _Attempt:
    __slots__ = ("buffer", "seq")

    def __init__(self) -> None:
        self.buffer, self.seq = LineBuffer(), 0


class LineOutbox:
    """The lines that are not sent, by attempt. `add` is for any thread, the rest for the I/O loop."""

    def __init__(self, ledger: Ledger, timers: Timers) -> None:
        self._ledger, self._timers = ledger, timers
        self.queue: deque[tuple[HeldJob, LogLevel, str, int, str]] = deque()
        """Lines that were added while another thread held the lock."""
        self._lock = threading.Lock()
        self.attempts: dict[HeldJob, _Attempt] = {}
        """Those that have logged something, until they have ended. Without these and a `queue`, `fill` has nothing to
        do: its caller looks first, for each frame."""
        self._size = 0
        self.due = False
        """True if lines have waited long enough."""

    def add(self, job: HeldJob, level: int, logger: str, at_us: int, text: str) -> None:
        """A handler has logged a line."""
        if len(self.queue) >= QUEUED_LINES:
            return
        self.queue.append((job, LogLevel.of_logging(level), logger, at_us, text))
        # The holder of the lock takes the line, if there is one: this thread, perhaps. It looks again after the
        # release; what comes while a frame is written waits for the next one.
        while self.queue and self._lock.acquire(blocking=False):
            try:
                self._sort()
            finally:
                self._lock.release()

    def _sort(self) -> None:
        """Move lines from the queue to their attempts; with the lock. Lines may be added meanwhile."""
        while self.queue:
            job, level, logger, at_us, text = self.queue.popleft()
            attempt = self.attempts.get(job)
            if attempt is None:
                attempt = self.attempts[job] = _Attempt()
            attempt.seq += 1
            if self._size >= MOST_BYTES:
                continue  # the gap in the numbers is seen
            before = attempt.buffer.size
            attempt.buffer.add(LogLine(attempt.seq, at_us, level, logger, text))
            self._size += attempt.buffer.size - before

    def wait_for_more(self, now: float) -> None:
        """Lines were added: have them sent in a second, with others that come until then."""
        if "logs" not in self._timers:
            self._timers.set("logs", now + SEND_SECONDS, self._send)

    def _send(self, _now: float) -> None:
        self.due = bool(self.attempts or self.queue)

    def fill(self, into: _Into) -> bool:
        """Write lines that are due, or else those of handlers that have ended; False if there are none.

        Lines of a job that is not held any more are dropped: its attempt is another worker's, or was answered. Those of
        ended handlers are first: their outcomes are in this frame. What does not fit follows in the next one, when the
        server may have stored the outcome, and then ignores them. Outcomes do not wait for lines.
        """
        held, size, lines, sent = self._ledger.held, 0, 0, 0
        with self._lock:
            self._sort()
            ended = [job for job in self.attempts if job.stage == FINISHED]
            running = [job for job in self.attempts if job.stage != FINISHED] if self.due else []
            for job in (*ended, *running):
                if size >= FRAME_BYTES or lines >= FRAME_LINES or sent >= FRAME_JOBS:
                    self.due = True  # the next frame has the rest
                    return True
                attempt = self.attempts[job]
                taken = attempt.buffer.lines()
                self._size -= attempt.buffer.size
                size += attempt.buffer.size
                is_held = held.get(job.raw_id) is job
                if job.stage == FINISHED or not is_held:
                    del self.attempts[job]
                elif taken:
                    attempt.buffer = LineBuffer()
                if taken and is_held:
                    into.append(_message(job, taken))
                    lines, sent = lines + len(taken), sent + 1
            self.due = False
        return sent > 0


def _message(job: HeldJob, lines: list[LogLine]) -> pb.JobLines:
    return pb.JobLines(
        id=job.raw_id,
        epoch=job.epoch,
        attempt=job.attempt,
        lines=[
            jobs.LogLine(
                seq=line.seq,
                at_us=line.at_us,
                level=jobs.LogLevel.ValueType(line.level),
                logger=line.logger,
                text=line.text,
            )
            for line in lines
        ],
    )
