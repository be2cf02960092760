"""What the worker's protocol asks its stream to do."""

from __future__ import annotations

from headgate.sdk.worker.attempt_log import Settled
from headgate.sdk.worker.held_job import HeldJob


class Actions:
    """To be carried out in this order; each field is reset by the caller when it acts on it."""

    __slots__ = ("ended", "reconnect", "report", "settled", "start", "stop", "stop_worker", "take_back")

    def __init__(self) -> None:
        self.start: list[HeldJob] = []
        """Give these jobs to their slots."""
        self.stop: list[HeldJob] = []
        """Stop the handlers of these jobs."""
        self.settled: list[Settled] = []
        """Log these attempts, and call the hooks of those that failed. Of completed ones only if that is logged."""
        self.stop_worker = False
        """An operator asks this process to end: begin to stop, as after a signal."""
        self.take_back = False
        """Take from the slots what no handler has begun, and pass it to `taken_back`."""
        self.reconnect = False
        """End this stream and open another."""
        self.report = False
        """Report all outcomes in the outbox without a stream, then call `reported`."""
        self.ended = False
        """The worker has nothing more to do: end the stream. Stays set."""
