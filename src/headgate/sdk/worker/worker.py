"""A worker put together: slots on the user's side, the stream on the I/O thread, signals."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from headgate.domain.errors import InvalidInput
from headgate.domain.release import version
from headgate.domain.validation import check_integer, check_worker_id
from headgate.sdk import rpc
from headgate.sdk.connection import Connection
from headgate.sdk.errors import OutsideBox
from headgate.sdk.hooks import Hooks
from headgate.sdk.io_log import io_logger
from headgate.sdk.io_thread import IoThread, io_thread
from headgate.sdk.job_log_capture import DEFAULT_LEVEL, LEVELS, capture_job_logs, level_number
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.tasks import Task
from headgate.sdk.worker.attempt_log import HOOKS_CLOSE_SECONDS, AttemptLog
from headgate.sdk.worker.final_report import REPORT_SECONDS
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.protocol import WorkerProtocol, WorkerSettings
from headgate.sdk.worker.slots import Slots
from headgate.sdk.worker.stop_sequence import FLUSH_SECONDS, UNWIND_SECONDS
from headgate.sdk.worker.stream import LAST_WRITE_SECONDS, WorkerStream
from headgate.sdk.worker.timers import Timers
from headgate.sdk.worker.worker_hooks import WORKER_HOOK_SECONDS, call_worker_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

log = io_logger("headgate.worker")

CONCURRENCY: Final = 32
GRACE_SECONDS: Final = 30.0
CANCEL_GRACE_SECONDS: Final = 5.0


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
    job_logs: str
    """Records that handlers log with this level and above are shown with their job: DEBUG, INFO, WARNING (the default),
    ERROR, CRITICAL, or OFF."""


class Worker:
    """Runs the registered handlers. Made by `Headgate.worker(...)`; one run each."""

    def __init__(
        self,
        connection: Connection,
        tasks: Mapping[str, Task[Any, Any]],
        hooks: Hooks | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        unknown = sorted(options.keys() - WorkerOptions.__annotations__.keys())
        if unknown:
            raise InvalidInput("worker", f"has no option {', '.join(unknown)}")
        self._connection, self._hooks = connection, hooks or Hooks()
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
        self._topics = tuple(self._tasks)
        self._lease_seconds = check_integer(lease, field="lease", low=0, high=86_400)
        self._grace = delay_in_ms(options.get("grace", GRACE_SECONDS), field="grace") / 1000
        self._cancel_grace = delay_in_ms(options.get("cancel_grace", CANCEL_GRACE_SECONDS), field="cancel_grace") / 1000
        self._log_level = level_number(options.get("job_logs", DEFAULT_LEVEL))
        self._stream: WorkerStream | None = None
        self._stops = 0
        self._stop_asked_at: float | None = None
        self.ended = threading.Event()
        """Set when nothing is held or owed any more, from the I/O thread: handlers may still run."""
        self.left_behind = 0
        """How many async handlers did not end with the worker, though cancelled."""
        self.beside: Callable[[], Coroutine[Any, Any, None]] | None = None  # to be done once while it works

    async def run(self, *, signals: bool = False) -> None:
        """Work until `stop()`, a signal (with `signals`), an operator's stop, a cancellation, or a lasting error.

        A cancellation hands running jobs back and ends within seconds; `stop()` lets them finish first.
        """
        if self._stream is not None:
            raise RuntimeError("a worker runs once; make another one")
        if self._connection.box is not None:
            raise OutsideBox("a worker needs a server, and the box has none; call `await box.drain()` instead")
        self._io = io_thread()  # only now: a worker may be made before a fork
        with _signals(self._io, self.stop) if signals else _nothing():  # also while hooks run
            await self._run()

    async def _run(self) -> None:
        began = time.monotonic()
        slots = Slots(
            self._tasks,
            concurrency=self._concurrency,
            processes=self._processes,
            middleware=self._hooks.middleware,
        )
        self._log_started(slots)
        await call_worker_hooks("on_start", self._hooks.on_start, self)
        attempts = AttemptLog(self._hooks, asyncio.get_running_loop(), self._io.log_lines)
        stream = self._stream = self._compose(slots, attempts)
        if self._stops:  # asked to stop before it began
            self._io.loop.call_soon_threadsafe(self._stop, stream)
        on_io = asyncio.run_coroutine_threadsafe(stream.run(), self._io.loop)
        on_io.add_done_callback(lambda _: self.ended.set())
        running = asyncio.wrap_future(on_io)
        beside = None if self.beside is None else asyncio.create_task(self.beside(), name="beside a worker")
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self._io.loop.call_soon_threadsafe(stream.hurry)
            await asyncio.wait((running,), timeout=10.0)
            raise
        finally:
            if beside is not None:
                beside.cancel()
            self._io.loop.call_soon_threadsafe(stream.close)
            stuck = await slots.close()
            if stuck:
                log.error('did_not_stop handlers=%d effect="they keep running"', stuck)
                self.left_behind = stuck
            await attempts.close()
            await call_worker_hooks("on_stop", self._hooks.on_stop, self)
            log.info(
                "worker_stopped worker=%s seconds=%.0f outcomes=%d",
                *(self.worker_id, time.monotonic() - began, stream.protocol.receipts["applied"]),
            )

    def stop(self) -> None:
        """Ask the worker to finish what it has started and end; asked a second time, it does not wait for handlers.

        From any thread, and from signal handlers.
        """
        self._stops += 1
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
        if self._stream is not None:
            self._io.loop.call_soon_threadsafe(self._stop, self._stream)

    @property
    def end_seconds(self) -> float:
        """How long its hooks may take after `ended`."""
        failures = HOOKS_CLOSE_SECONDS if self._hooks.at_failures else 0.0
        return failures + (WORKER_HOOK_SECONDS if self._hooks.on_stop else 0.0)

    @property
    def overdue(self) -> bool:
        """True if it was asked to stop so long ago that every step of the stop has used up its time."""
        if self._stop_asked_at is None:
            return False
        reports = REPORT_SECONDS * len(self._connection.addresses)
        steps = WORKER_HOOK_SECONDS + UNWIND_SECONDS + FLUSH_SECONDS + reports + 2 * LAST_WRITE_SECONDS
        return time.monotonic() > self._stop_asked_at + self._grace + steps

    @property
    def tasks(self) -> dict[str, Task[Any, Any]]:
        """The tasks that it runs, by topic."""
        return dict(self._tasks)

    @property
    def connected(self) -> bool:
        """True while a stream to a server is open."""
        return self._stream is not None and self._stream.protocol.connected

    @property
    def receipts(self) -> dict[str, int]:
        """How many outcomes were applied, duplicate, stale, unknown or invalid so far."""
        return dict(self._stream.protocol.receipts) if self._stream is not None else {}

    def _stop(self, stream: WorkerStream) -> None:
        stream.stop(self._grace)
        if self._stops > 1:
            stream.hurry()

    def _stop_for_operator(self) -> None:
        """Stop as after a signal; on the I/O loop. It does not count as one: a signal after it is the first."""
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
        if self._stream is not None:
            self._stream.stop(self._grace)

    def _log_started(self, slots: Slots) -> None:
        log.info(
            "worker_started version=%s worker=%s server=%s topics=%s concurrency=%d threads=%d processes=%d",
            *(version(), self.worker_id, ",".join(map(str, self._connection.addresses)), ",".join(self._topics)),
            *(self._concurrency, slots.threads, slots.processes),
        )

    def _compose(self, slots: Slots, attempts: AttemptLog) -> WorkerStream:
        addresses, token = self._connection.addresses, self._connection.token
        if self._log_level < LEVELS["OFF"]:
            capture_job_logs()
        stream = WorkerStream(
            self._io,
            addresses,
            slots,
            attempts,
            worker_id=self.worker_id,
            token=token,
            log_level=self._log_level,
        )
        stream.on_stop = self._stop_for_operator
        timers = Timers()
        ledger = Ledger(
            self._tasks,
            timers,
            concurrency=self._concurrency,
            prefetch=self._prefetch,
            slots_queue=slots.queue_size,
            reports=stream,
        )
        settings = WorkerSettings(
            worker_id=self.worker_id,
            client=rpc.CLIENT,
            incarnation=secrets.randbelow(2**32 - 1) + 1,
            topics=self._topics,
            lease_seconds=self._lease_seconds,
            cancel_grace=self._cancel_grace,
            slots=self._concurrency,
        )
        has_time_limits = any(task.time_limit is not None for task in self._tasks.values())
        stream.protocol = WorkerProtocol(settings, ledger, timers, has_time_limits=has_time_limits)
        slots.open(stream.report)
        return stream


def new_worker_id() -> str:
    """host-pid-random: readable in a list of workers, and never the same twice."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}"


def _chosen(tasks: Mapping[str, Task[Any, Any]], topics: Sequence[str] | None) -> dict[str, Task[Any, Any]]:
    if topics is not None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if missing := [name for name in names if name not in tasks]:
            near = get_close_matches(missing[0], tasks, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(tasks) or 'none'}"
            raise InvalidInput("topics", f"has {missing[0]!r}, which no handler is registered for", hint=hint)
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
        log.warning('signals_not_handled reason="the worker does not run in the main thread" hint="call stop()"')
        yield
        return

    def asked(number: int, _frame: FrameType | None) -> None:
        # Not here: a second signal may come in the middle of the first one's line, and a log cannot be entered twice.
        io.loop.call_soon_threadsafe(log.info, "stopping signal=%s", signal.Signals(number).name)
        stop()

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
