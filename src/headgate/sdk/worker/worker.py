"""A worker put together: slots on the user's side, the stream on the I/O thread, signals."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_integer, check_worker_id
from headgate.sdk.connection import Connection
from headgate.sdk.io_thread import IoThread, io_thread
from headgate.sdk.job import Job
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.tasks import Task
from headgate.sdk.worker.inbound import Inbound
from headgate.sdk.worker.ledger import UNACKNOWLEDGED_MAX, Ledger
from headgate.sdk.worker.loop_slots import LoopSlots
from headgate.sdk.worker.outbound import Outbound, StreamSettings
from headgate.sdk.worker.process_slots import END_SECONDS, ProcessSlots
from headgate.sdk.worker.stopping import Stopper
from headgate.sdk.worker.stream import WorkerStream
from headgate.sdk.worker.thread_slots import ThreadSlots
from headgate.sdk.worker.time_limits import StuckSlots, TimeLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

log = logging.getLogger("headgate.worker")

CONCURRENCY: Final = 32
GRACE_SECONDS: Final = 30.0
CANCEL_GRACE_SECONDS: Final = 5.0
SLOT_GIVE_UP_SECONDS: Final = 2.0


class WorkerOptions(TypedDict, total=False):
    """How a worker works; everything has a default."""

    concurrency: int
    """Jobs run at the same time (32)."""
    prefetch: int
    """Jobs asked for beyond that, to wait here. They are leased, so other workers cannot have them. Left out: none
    while handlers take their time, and a twentieth of a second's worth of jobs when they are short."""
    topics: Sequence[str] | None
    """Only these of the registered topics (all)."""
    lease: Seconds
    """How long the server waits for a sign of life (the server's default)."""
    grace: Seconds
    """What running handlers get to finish after a request to stop (30 s)."""
    cancel_grace: Seconds
    """What a handler that takes its Job gets between the cancel flag and being cancelled (5 s)."""
    worker_id: str
    """The name of this process (host-pid-random); the same over all reconnects."""
    processes: int
    """How many processes for handlers with run_in="process" (one a core)."""


class Worker:
    """Runs the registered handlers. Made by `Headgate.worker(...)`; one run each."""

    def __init__(
        self, connection: Connection, tasks: Mapping[str, Task[Any, Any]], **options: Unpack[WorkerOptions]
    ) -> None:
        unknown = sorted(options.keys() - WorkerOptions.__annotations__.keys())
        if unknown:
            raise InvalidInput("worker", f"has no option {', '.join(unknown)}")
        self._connection = connection
        self._tasks = _chosen(tasks, options.get("topics"))
        self._concurrency = check_integer(
            options.get("concurrency", CONCURRENCY), field="concurrency", low=1, high=50_000
        )
        self._prefetch = (
            check_integer(options["prefetch"], field="prefetch", low=0, high=50_000) if "prefetch" in options else None
        )
        self._processes = check_integer(
            options.get("processes", os.cpu_count() or 1), field="processes", low=1, high=1_000
        )
        self.worker_id = check_worker_id(options.get("worker_id") or new_worker_id())
        lease = -(-delay_in_ms(options["lease"], field="lease") // 1000) if "lease" in options else 0
        self._settings = StreamSettings(
            worker_id=self.worker_id,
            token=connection.token,
            topics=tuple(self._tasks),
            lease_seconds=check_integer(lease, field="lease", low=0, high=86_400),
        )
        self._grace = delay_in_ms(options.get("grace", GRACE_SECONDS), field="grace") / 1000
        self._cancel_grace = delay_in_ms(options.get("cancel_grace", CANCEL_GRACE_SECONDS), field="cancel_grace") / 1000
        self._stream: WorkerStream | None = None
        self._stopper: Stopper | None = None
        self._stops = 0
        self.ended = threading.Event()
        """Set when nothing is held or owed any more, from the I/O thread: handlers may still run."""
        self.left_behind = 0
        """How many async handlers did not end with the worker, though cancelled."""
        self.beside: Callable[[], Coroutine[Any, Any, None]] | None = None  # to be done once while it works

    async def run(self, *, signals: bool = False) -> None:
        """Work until `stop()`, a signal (with `signals`), a cancellation, or an error that stands.

        A cancellation hands running jobs back and ends within seconds; `stop()` lets them finish first.
        """
        if self._stream is not None:
            raise RuntimeError("a worker runs once; make another one")
        self._io = io_thread()  # only now: a worker may be made before a fork
        slots = Slots(self._tasks, concurrency=self._concurrency, processes=self._processes)
        stream = self._stream = self._compose(slots)
        if self._stops:  # asked to stop before it began
            self._io.soon(self._tell_stopper)
        running_stream = self._io.start(stream.run())
        running_stream.add_done_callback(lambda _: self.ended.set())
        running = asyncio.wrap_future(running_stream)
        stuck_slots = StuckSlots(self._io.loop, stream, slots=self._concurrency)
        self._io.soon(stuck_slots.start)
        beside = None if self.beside is None else asyncio.create_task(self.beside(), name="beside a worker")
        try:
            with _signals(self._io, self.stop) if signals else _nothing():
                try:
                    await asyncio.shield(running)
                except asyncio.CancelledError:
                    self._io.soon(cast("Stopper", self._stopper).hurry)
                    await asyncio.wait((running,), timeout=10.0)
                    raise
        finally:
            self._io.soon(stuck_slots.stop)
            if beside is not None:
                beside.cancel()
            self._io.soon(stream.close)
            stuck = await slots.close()
            if stuck:
                log.error("did_not_stop: %d handlers still run and were left behind", stuck)
                self.left_behind = stuck

    def stop(self) -> None:
        """Ask the worker to finish what it has started and end; asked a second time, it does not wait for handlers.

        From any thread, and from signal handlers.
        """
        self._stops += 1
        if self._stopper is not None:
            self._io.soon(self._tell_stopper)

    @property
    def connected(self) -> bool:
        """True while a stream to a server is open."""
        return self._stream is not None and self._stream.connected

    @property
    def receipts(self) -> dict[str, int]:
        """How many outcomes were applied, duplicate, stale, unknown or invalid so far."""
        return dict(self._stream.inbound.receipts) if self._stream is not None else {}

    def _tell_stopper(self) -> None:
        if self._stopper is not None:
            self._stopper.begin(self._grace)
            if self._stops > 1:
                self._stopper.hurry()

    def _compose(self, slots: Slots) -> WorkerStream:
        stream = WorkerStream(self._io, self._connection.addresses, self._settings)
        slots.open(stream.report)
        start = slots.start
        limits = TimeLimits(self._io.loop, stream, slots)
        if any(task.time_limit is not None for task in self._tasks.values()):

            def start(jobs: list[Job]) -> None:
                slots.start(jobs)
                limits.watch(jobs)

        ledger = stream.ledger = Ledger(
            self._tasks,
            concurrency=self._concurrency,
            prefetch=self._prefetch,
            lead=slots.lead,
            start=start,
            watch_deadline=limits.watch_deadline,
            reports=stream,
        )
        stream.outbound = Outbound(self._settings, ledger)
        stream.inbound = Inbound(self._io.loop, stream, ledger, slots, cancel_grace=self._cancel_grace)

        def hand_back_unstarted() -> None:
            ledger.hand_back_waiting()
            for job in slots.take_back():
                ledger.hand_back(job)
                ledger.finish(job, None)

        stream.hand_back_unstarted = hand_back_unstarted
        self._stopper = Stopper(
            stream, slots, self._connection.addresses, worker_id=self.worker_id, token=self._connection.token
        )
        return stream


class Slots:
    """All places where handlers run; a job goes where its task says."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any]], *, concurrency: int, processes: int) -> None:
        self._kinds = {task.run_in for task in tasks.values()}
        self._concurrency, self._processes = concurrency, processes
        self._only_loop = self._kinds == {"loop"}
        # Slots of several kinds share their number, which only the ledger can see to.
        self.lead = UNACKNOWLEDGED_MAX if self._only_loop else 0

    def open(self, report: Callable[[Job, Any], None]) -> None:
        """Make the slots that are needed; on the user's loop, before the stream exists: processes come first."""
        size = self._concurrency
        self._process = ProcessSlots(report, size=self._processes) if "process" in self._kinds else None
        self._thread = ThreadSlots(report, size=size)
        self._loop = LoopSlots(asyncio.get_running_loop(), report, size=size)

    def start(self, jobs: list[Job]) -> None:
        """Hand jobs to their slots. From the I/O thread."""
        if self._only_loop:
            self._loop.feed(jobs)
            return
        by_kind: dict[str, list[Job]] = {}
        for job in jobs:
            by_kind.setdefault(cast("Task[Any, Any]", job.handler).run_in, []).append(job)
        if batch := by_kind.get("loop"):
            self._loop.feed(batch)
        if batch := by_kind.get("thread"):
            self._thread.feed(batch)
        if self._process is not None and (batch := by_kind.get("process")):
            self._process.feed(batch)

    def stop(self, jobs: list[Job]) -> None:
        """Cancel async handlers, interrupt processes; a thread is told by its Job's flag. From the I/O thread."""
        self._loop.cancel([job for job in jobs if cast("Task[Any, Any]", job.handler).run_in == "loop"])
        if self._process is not None:
            self._process.stop(jobs)

    def take_back(self) -> list[Job]:
        """Take back what no slot has begun. From the I/O thread."""
        taken = self._loop.take_back() + self._thread.take_back()
        return taken + self._process.take_back() if self._process is not None else taken

    async def close(self) -> int:
        """End the slots; gives how many handlers could not be ended."""
        self._thread.close()
        if self._process is not None:
            self._process.close()
        stuck = await self._loop.close(give_up_seconds=SLOT_GIVE_UP_SECONDS)
        if self._process is not None:
            await asyncio.to_thread(self._process.join, END_SECONDS)
        return stuck


def new_worker_id() -> str:
    """host-pid-random: readable in a list of workers, and never the same twice."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}"


def _chosen(tasks: Mapping[str, Task[Any, Any]], topics: Sequence[str] | None) -> dict[str, Task[Any, Any]]:
    if topics is not None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if missing := [name for name in names if name not in tasks]:
            known = ", ".join(tasks) or "none"
            raise InvalidInput(
                "topics", f"has {missing[0]!r}, which no handler is registered for", hint=f"known: {known}"
            )
        tasks = {name: tasks[name] for name in names}
    if not tasks:
        raise InvalidInput("topics", "is empty: no handler is registered", hint="decorate a function with @hg.job(...)")
    return dict(tasks)


@contextmanager
def _signals(io: IoThread, stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM and SIGINT ask for the stop.

    Plain handlers rather than the loop's: these also run while a handler blocks the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        log.warning("signals are not handled: the worker does not run in the main thread; call stop() instead")
        yield
        return

    def asked(number: int, _frame: FrameType | None) -> None:
        stop()
        # Not here: a second signal may come in the middle of the first one's line, and a log cannot be entered twice.
        io.soon(log.info, "%s: stopping", signal.Signals(number).name)

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
