"""A worker's protocol without a network: the test is its server, its slots and its clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from headgate import Headgate, Job
from headgate.sdk.outcomes import Outcome
from headgate.sdk.worker.actions import Actions
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.protocol import WorkerProtocol, WorkerSettings
from headgate.sdk.worker.timers import Timers
from headgate.wire import jobs_pb2, worker_pb2

BEAT_SECONDS = 20
TAKEN = [name for name in Actions.__slots__ if name != "ended"]


class NoReports:
    def progressed(self, job: Job, done: int, total: int, message: str) -> None:
        raise AssertionError("no handler runs here")

    def extended(self, job: Job, lease_seconds: int) -> None:
        raise AssertionError("no handler runs here")

    log_level = 0

    def logged(self, job: Job, level: int, logger: str, at_us: int, text: str) -> None:
        raise AssertionError("no handler runs here")


def make_protocol(
    *,
    slots: int = 4,
    prefetch: int | None = 0,
    slots_queue: int = 0,
    time_limit: float | None = None,
    lease_seconds: int = 0,
) -> WorkerProtocol:
    """A protocol with the topics `plain` and `takes-job`."""
    app = Headgate("127.0.0.1:1")
    app.register("plain", lambda n=0: n, time_limit=time_limit)
    app.register("takes-job", _takes_job)
    timers = Timers()
    ledger = Ledger(
        app.tasks, timers, concurrency=slots, prefetch=prefetch, slots_queue=slots_queue, reports=NoReports()
    )
    settings = WorkerSettings(
        worker_id="w",
        client="test",
        incarnation=7,
        topics=tuple(app.tasks),
        lease_seconds=lease_seconds,
        cancel_grace=5.0,
        slots=slots,
    )
    return WorkerProtocol(settings, ledger, timers, has_time_limits=time_limit is not None)


def _takes_job(job: Job) -> None: ...


class Driver:
    """Feeds one protocol, and keeps what it sends and asks for."""

    def __init__(self, protocol: WorkerProtocol) -> None:
        self.protocol = protocol
        self.now = 1_000.0
        self.sent: list[worker_pb2.WorkerFrame] = []
        self.started: list[HeldJob] = []
        self.stopped: list[HeldJob] = []
        self.unbegun: Callable[[], list[HeldJob]] = list
        """What the slots give back when asked."""
        self.reconnects = 0
        self.reports = 0
        self.stop_requests = 0
        self.protocol.begin(self.now)

    def act(self) -> Actions:
        """Carry out what is asked for; gives what was asked first."""
        first = actions = self._take()
        while any(getattr(actions, name) for name in TAKEN):
            self.started += actions.start
            self.stopped += actions.stop
            self.reconnects += actions.reconnect
            self.reports += actions.report
            self.stop_requests += actions.stop_worker
            if actions.take_back:
                self.protocol.taken_back(self.unbegun(), self.now)
            actions = self._take()
        return first

    def _take(self) -> Actions:
        taken, asked, empty = Actions(), self.protocol.actions, Actions()
        for name in TAKEN:
            setattr(taken, name, getattr(asked, name))
            setattr(asked, name, getattr(empty, name))
        return taken

    def connect(self, *, lost: list[HeldJob] | None = None) -> worker_pb2.Hello:
        """Open a stream; gives the Hello."""
        hello = self.protocol.hello(self.now).hello
        ack = worker_pb2.HelloAck(tenant="acme", beat_seconds=BEAT_SECONDS, lost=held(*(lost or [])))
        self.protocol.connect(ack, self.now)
        self.act()
        return hello

    def disconnect(self) -> None:
        self.protocol.disconnect(self.now)
        self.act()

    def receive(self, **parts: Any) -> Actions:
        self.protocol.receive(worker_pb2.ServerFrame(**parts), self.now)
        return self.act()

    def deliver(self, *ids: bytes, topic: str = "plain", epoch: int = 1, deadline_ms: int = 0) -> list[HeldJob]:
        """Deliver jobs; gives those that were started by it."""
        return self.receive(jobs=delivery(*ids, topic=topic, epoch=epoch, deadline_ms=deadline_ms)).start

    def finish(self, *jobs: HeldJob, outcome: Outcome | None = b"") -> None:
        self.protocol.finish(deque((job, outcome) for job in jobs), self.now)
        self.act()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with every timer at its time."""
        until = self.now + seconds
        while (due := self.protocol.timers.next_due) is not None and due <= until:
            self.now = max(self.now, due)
            self.protocol.timers.advance(self.now)
            self.act()
        self.now = until

    def send(self) -> list[worker_pb2.WorkerFrame]:
        """All frames that are to be sent now."""
        frames = []
        while (frame := self.protocol.next_frame(self.now)) is not None:
            frames.append(frame)
        self.act()
        self.sent += frames
        return frames

    def outcomes(self) -> list[worker_pb2.Outcomes]:
        """The outcomes that are to be sent now."""
        return [frame.outcomes for frame in self.send() if frame.HasField("outcomes")]

    def acknowledge(self, seq: int, *exceptions: jobs_pb2.Receipt) -> None:
        self.receive(receipts=worker_pb2.Receipts(seq=seq, exceptions=exceptions))


def delivery(
    *ids: bytes, topic: str = "plain", epoch: int = 1, deadline_ms: int = 0, epochs: list[int] | None = None
) -> worker_pb2.Jobs:
    count = len(ids)
    jobs = worker_pb2.Jobs(
        ids=ids,
        epochs=epochs or [epoch] * count,
        payloads=[b"{}"] * count,
        topic_names=[topic],
        attempts=[1] * count,
        max_attempts=[20] * count,
        created_us=[1_700_000_000_000_000] * count,
        lease_until_us=1_700_000_060_000_000,
    )
    for index in range(count if deadline_ms else 0):
        jobs.headers.add(index=index, deadline_us=1_700_000_000_000_000, deadline_in_ms=deadline_ms)
    return jobs


def held(*jobs: HeldJob) -> worker_pb2.Held:
    return worker_pb2.Held(ids=[job.raw_id for job in jobs], epochs=[job.epoch for job in jobs])


def ids_of(outcomes: worker_pb2.Outcomes) -> list[bytes]:
    """The jobs of one frame of outcomes, in the order of their receipts."""
    return [*outcomes.ids, *(other.id for other in outcomes.others)]


def raw_ids(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(1, count + 1)]
