"""Slots for CPU-bound functions: other processes, spawned (never forked: gRPC does not survive a fork).

Each child has a pipe and, in this process, a thread that does nothing but serve it: send a job, receive what the
child says, pass on a cancellation, end a child that does not stop. So the I/O thread waits for no child: it puts jobs
into a queue and writes a byte to wake a thread. The messages are in `process_pipe`; how a handler is stopped is in
`process_child`.

- A cancellation: the child's token at once; then, as for an async handler, `Cancelled` is raised in it; a moment later
  (`UNWIND_SECONDS`) the process is killed. The next job gets a new one.
- A child that dies (a crash in C code, `os._exit`, the kernel out of memory) fails its job with the way it died;
  other slots notice nothing, and the next job gets a new one. What it sent before it died counts. One that died while
  idle costs no job anything. A job that was sent to a dying child and not begun runs again in another one.
- `close`: idle children end by themselves, busy ones are killed: their jobs have been abandoned by then.
- This process is killed: its pipes are closed, and the children end.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import signal
import socket
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from queue import Empty, SimpleQueue
from typing import Any, Final, cast

from headgate.sdk.job import takes_log
from headgate.sdk.job_log_capture import add_line
from headgate.sdk.outcomes import Outcome, failure
from headgate.sdk.tasks import Task
from headgate.sdk.worker import process_child
from headgate.sdk.worker.execution import open_payload, seal_outcome
from headgate.sdk.worker.forced_outcomes import out_of_time, unbegun
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.loop_slots import Report
from headgate.sdk.worker.middleware import log_begun
from headgate.sdk.worker.process_pipe import (
    BROKEN,
    Begun,
    Cancel,
    Done,
    Extend,
    Log,
    Pipe,
    Progress,
    Run,
    Stop,
    ToChild,
    ToParent,
)
from headgate.wire import jobs_pb2 as pb

log = logging.getLogger("headgate.worker")

UNWIND_SECONDS: Final = 1.5
"""What a handler gets to clean up after `Cancelled` was raised in it: less than a stopping worker waits for it."""
END_SECONDS: Final = process_child.EXIT_SECONDS + 1.0
"""How long a child may take to end once its pipe is closed."""
_context = multiprocessing.get_context("spawn")


class ProcessSlots:
    """Runs plain handlers in other processes, at most `size` at a time."""

    def __init__(self, report: Report, *, size: int, middleware: tuple[tuple[str, str], ...] = ()) -> None:
        """`middleware`: module and name of each."""
        self._report, self._size, self._middleware = report, size, middleware
        self._inbox: SimpleQueue[HeldJob | None] = SimpleQueue()  # bounded by the ledger's concurrency
        self._idle = threading.Semaphore(0)
        self._slots: list[_Slot] = []
        self._threads: list[threading.Thread] = []
        self._running: dict[HeldJob, _Slot] = {}
        atexit.register(self.kill)  # without close(), multiprocessing would wait for the children at exit
        self._new_slot()  # now: the first job should not wait for an interpreter to start
        self._idle.release()

    # --- from the I/O thread -----------------------------------------------------------------------------------------

    def feed(self, jobs: list[HeldJob]) -> None:
        """Queue jobs."""
        for job in jobs:
            self._inbox.put(job)
            if len(self._slots) < self._size and not self._idle.acquire(blocking=False):
                self._new_slot()

    def take_back(self) -> list[HeldJob]:
        """Take back what no process has begun."""
        taken: list[HeldJob] = []
        while True:
            try:
                job = self._inbox.get_nowait()
            except Empty:
                return taken
            if job is not None:
                taken.append(job)

    def stop(self, jobs: list[HeldJob]) -> None:
        """Stop the handlers of these jobs, if they still run."""
        for job in jobs:
            if slot := self._running.get(job):
                slot.stop(job)

    def _new_slot(self) -> None:
        slot = _Slot(f"headgate-process-{len(self._slots) + 1}", self._middleware)
        thread = threading.Thread(target=self._serve, args=(slot,), name=slot.name, daemon=True)
        self._slots.append(slot)
        self._threads.append(thread)
        thread.start()

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Start nothing more, and end all children: idle ones exit normally."""
        for _ in self._threads:
            self._inbox.put(None)
        for slot in self._slots:
            slot.close()

    def join(self, seconds: float) -> None:
        """Wait until all children have ended; after `seconds` they are killed."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.kill()
        atexit.unregister(self.kill)

    def kill(self) -> None:
        """End all children at once."""
        for slot in self._slots:
            slot.kill()

    # --- a thread for each child -------------------------------------------------------------------------------------

    def _serve(self, slot: _Slot) -> None:
        try:
            slot.prepare()
        except OSError as error:
            log.warning("process_not_started error=%s", error)
        while (job := self._inbox.get()) is not None:
            self._running[job] = slot  # first: a stop from now on finds it, and an earlier one has set its flag
            try:
                outcome = slot.run(job)
            except Exception as error:
                log.exception("process_failed job_id=%s", job.id)
                outcome = failure("ProcessFailed", f"the job could not be run in a process of its own: {error}")
            finally:
                del self._running[job]
            self._report(job, outcome)
            del job, outcome  # payload and result may be large, and the next job far away
            self._idle.release()
        slot.end()


class _ChildDiedError(Exception):
    """The child ended without the outcome of its job."""


class _Slot:
    """One child and its successors. All but `stop`, `close` and `kill` belong to the thread that serves it."""

    def __init__(self, name: str, middleware: tuple[tuple[str, str], ...]) -> None:
        self.name, self._middleware = name, middleware
        self._process: SpawnProcess | None = None
        self._pipe: Pipe[ToParent] | None = None
        self._number = 0
        self._used = False  # whether the child has run a job to its end
        self._stopping: HeldJob | None = None
        self._closed = False
        self._wake_reader, self._wake = socket.socketpair()  # a byte on it: look at the flags
        self._wake_reader.settimeout(0)
        self._wake.settimeout(0)

    # --- from other threads ------------------------------------------------------------------------------------------

    def stop(self, job: HeldJob) -> None:
        """Have this job's handler stopped."""
        self._stopping = job
        self.wake()

    def close(self) -> None:
        """Have the child end, whatever it does."""
        self._closed = True
        self.wake()

    def kill(self) -> None:
        """End the child at once."""
        process = self._process
        if process is not None and process.is_alive():
            process.kill()

    def wake(self) -> None:
        try:
            self._wake.send(b"!")
        except OSError:  # full: it is awake; or closed: it is over
            return

    # --- in its own thread -------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Have a living child."""
        if self._process is not None and self._process.is_alive():
            return
        self._discard_child()
        ours, theirs = _context.Pipe()
        level = min(logging.getLogger().getEffectiveLevel(), logging.getLogger("headgate.job").getEffectiveLevel())
        try:
            # Not a daemon: a handler may well have a pool of its own.
            process = _context.Process(target=process_child.main, args=(theirs, level), name=self.name, daemon=False)
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._process, self._pipe = process, Pipe(ours, ToParent)

    def run(self, job: HeldJob) -> Outcome | None:
        """Run one job to its end, or to the child's."""
        if job.lost or job.abandoned:
            return None
        if job.cancel_requested:
            return unbegun(job)
        task = cast("Task[Any, Any]", job.handler)
        if (refused := open_payload(task, job)) is not None:
            return refused
        self._number += 1
        order = Run(
            *(self._number, task.function.__module__, task.name, job.facts, *job.extras),
            middleware=self._middleware,
            bad_payload=task.bad_payload,
        )
        job.cancelled.on_set(self.wake)
        self._send_job(order)
        try:
            return self._listen(job)
        except _ChildDiedError:
            if not self._used or job.began_at or self._stopping is job or self._closed:
                return self._died(job)
        # It was dying when it was handed the job, and has not begun it. Once: a module may end its process on import.
        self._collect_dead()
        self._send_job(order)
        try:
            return self._listen(job)
        except _ChildDiedError:
            return self._died(job)

    def _send_job(self, order: Run) -> None:
        try:
            self.prepare()
            self._send(order)
        except OSError:  # it died in this moment, and has seen nothing of the job
            self.kill()
            self.prepare()
            self._send(order)

    def _listen(self, job: HeldJob) -> Outcome | None:
        process, pipe = cast("SpawnProcess", self._process), cast("Pipe[ToParent]", self._pipe)
        cancel_sent, kill_at = False, 0.0
        while True:
            timeout = max(0.0, kill_at - time.monotonic()) if kill_at else None
            ready = wait([pipe.connection, process.sentinel, self._wake_reader], timeout=timeout)
            # The pipe first, and once more when it is dead: what it sent before it died counts.
            if pipe.connection in ready or (process.sentinel in ready and pipe.connection.poll()):
                try:
                    message = pipe.recv()
                except BROKEN:
                    raise _ChildDiedError from None
                if isinstance(message, Done):
                    self._used = True
                    job.run_seconds = time.monotonic() - job.began_at if job.began_at else 0.0
                    return _outcome(job, completed=message.completed, raw=message.raw)
                self._receive(job, message)
            elif process.sentinel in ready:
                raise _ChildDiedError
            if self._wake_reader in ready:
                self._wake_reader.recv(4096)
            if job.cancel_requested and not cancel_sent:
                cancel_sent = True
                self._send_if_alive(Cancel(self._number))
            if self._stopping is job and not kill_at:
                kill_at = time.monotonic() + UNWIND_SECONDS
                self._send_if_alive(Stop(self._number))
            if self._closed or (kill_at and time.monotonic() >= kill_at):
                process.kill()
                self._discard_child()
                if job.timed_out:
                    return out_of_time(job)
                if not self._closed:
                    log.warning('did_not_stop job_id=%s topic=%s effect="its process was killed"', job.id, job.topic)
                return failure("Cancelled", "the job was cancelled on request, and its process ended by force")

    def _receive(self, job: HeldJob, message: ToParent) -> None:
        match message:
            case Begun():
                job.began_at = time.monotonic()
                log_begun(job)
            # By number: a thread that an earlier handler left behind may still report for its job.
            case Progress(number=self._number):
                job.progress(message.done, message.total, message.message)
            case Extend(number=self._number):
                job.extend(message.seconds)
            case Log(fields={"name": str(name), "levelno": int(level)} as fields):
                # By id, and the number of its attempt: see above.
                known = (fields.get("job_id"), fields.get("attempt")) == (str(job.id), job.attempt)
                if known and takes_log(job, level):
                    created = fields.get("created")
                    at = created if isinstance(created, float) else time.time()
                    add_line(job, level, name, at, str(fields.get("msg")))
                logger = logging.getLogger(name)
                if logger.isEnabledFor(level):
                    logger.handle(logging.makeLogRecord(fields))

    def _send_if_alive(self, message: ToChild) -> None:
        try:
            self._send(message)
        except OSError:  # it is dying: the next look will see it
            return

    def _send(self, message: ToChild) -> None:
        cast("Pipe[ToParent]", self._pipe).send(message)

    def _died(self, job: HeldJob) -> Outcome:
        process = self._collect_dead()
        if job.timed_out:
            return out_of_time(job)
        how = _ending(process.exitcode)
        log.warning("process_died job_id=%s topic=%s reason=%s", job.id, job.topic, how)
        return failure("ProcessDied", f"the process that ran the job died: {how}")

    def _collect_dead(self) -> SpawnProcess:
        process = cast("SpawnProcess", self._process)
        process.join(1.0)
        process.kill()  # it has closed its pipe: there is no way back
        self._discard_child()
        return process

    def _discard_child(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.join()
        self._pipe = self._process = None
        self._used = False

    def end(self) -> None:
        """End an idle child normally."""
        if self._pipe is not None and self._process is not None:
            self._pipe.close()
            self._process.join(END_SECONDS)
            self._process.kill()
            self._process.join()
        self._wake_reader.close()
        self._wake.close()


def _outcome(job: HeldJob, *, completed: bool, raw: bytes) -> Outcome:
    """What a child reported."""
    task = cast("Task[Any, Any]", job.handler)
    if completed:
        return seal_outcome(raw, task, job)
    outcome = pb.Outcome.FromString(raw)
    # The child knows that its handler was interrupted; why, only we do.
    stopped = job.timed_out and outcome.failed.type == "Cancelled"
    return out_of_time(job) if stopped else seal_outcome(outcome, task, job)


def _ending(code: int | None) -> str:
    """How a process ended, as text."""
    if code is None:
        return "it does not answer"
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (was the machine out of memory?)" if name == "SIGKILL" else f"{name}, a crash in native code?"
