"""What the worker's protocol asks its stream to do."""

from __future__ import annotations

from headgate.sdk.worker.held_job import HeldJob


class Actions:
    """To be carried out in the order of the fields. They collect until they are taken."""

    __slots__ = ("reconnect", "report", "start", "stop", "take_back")

    def __init__(self) -> None:
        self.start: list[HeldJob] = []
        """Give these jobs to their slots."""
        self.stop: list[HeldJob] = []
        """Stop the handlers of these jobs."""
        self.take_back = False
        """Take from the slots what no handler has begun, and pass it to `taken_back`."""
        self.reconnect = False
        """End this stream and open another."""
        self.report = False
        """Report all outcomes in the outbox without a stream, then call `reported`."""

    def __bool__(self) -> bool:
        return bool(self.start or self.stop or self.take_back or self.reconnect or self.report)

    def take(self) -> Actions:
        """What has collected; it starts again with nothing."""
        taken = Actions()
        taken.start, taken.stop, self.start, self.stop = self.start, self.stop, taken.start, taken.stop
        taken.take_back, taken.reconnect, taken.report = self.take_back, self.reconnect, self.report
        self.take_back = self.reconnect = self.report = False
        return taken
