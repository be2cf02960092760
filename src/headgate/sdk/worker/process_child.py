"""The other end of a process slot: what runs in the child.

The *main thread* runs one handler after the other, as a handler with signals or a pool of its own expects it.
A *reader thread* receives what the parent sends, so that a cancellation is seen while the handler computes, and ends
the process as soon as the pipe is closed: a child never outlives its worker, not even one that was killed.
Progress, extensions and log records are sent by the thread that reports them, one message each; a full pipe makes
only that thread wait.

A handler that is to be stopped gets `Cancelled` raised in it, by a signal, since nothing else reaches one that sleeps
or computes. That must not happen in the middle of a message: `send` puts it off until the message is out.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import logging
import logging.handlers
import os
import signal
import threading
import time
from collections.abc import Sequence
from itertools import islice
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

from headgate.domain.job_logs import cut_line
from headgate.domain.validation import clean_text
from headgate.sdk.hooks import Middleware
from headgate.sdk.job import Job
from headgate.sdk.job_context import JobFields, current_job
from headgate.sdk.job_log_capture import LEVELS
from headgate.sdk.outcomes import Cancelled, failure, outcome_of
from headgate.sdk.tasks import Task
from headgate.sdk.worker.execution import attempt_sync
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.middleware import find_middleware
from headgate.sdk.worker.process_pipe import (
    BROKEN,
    Begun,
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

LOG_TEXT_MAX_BYTES: Final = 16_384
LOG_FIELDS_MAX: Final = 64
"""So no record is too large for one message; two dozen fields are the standard library's own."""
_INT64: Final = range(-(2**63), 2**63)
EXIT_SECONDS: Final = 2.0
"""How long the interpreter has to exit normally (atexit, pools of the handler's) once its work is over."""


def main(pipe: Connection[Any, Any], log_level: int) -> None:
    """Run jobs until the parent closes the pipe."""
    Child(pipe).run(log_level)


class Child:
    """One process of a worker, from inside."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe: Pipe[ToChild] = Pipe(pipe, ToChild)
        self._lock = threading.Lock()  # one message at a time, whichever thread sends it
        self._inbox: SimpleQueue[Run | None] = SimpleQueue()
        self._main = threading.get_ident()
        self._busy = False
        self._number = 0  # of the job that runs: what the parent says of an older one came too late
        self._job: HeldJob | None = None
        self._cancelled = -1  # the number of the last job that the parent wants to end
        self._stopped = -1  # the number of the job that is to be interrupted
        self._shielded = True  # no interruption now: no handler runs, or a message is half sent

    def run(self, log_level: int) -> None:
        """Run jobs until the pipe is closed."""
        # A terminal's Ctrl-C, or a supervisor's SIGTERM, may reach every process of the group; the parent decides what
        # becomes of the jobs.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._interrupt)
        root = logging.getLogger()
        root.setLevel(log_level)
        root.addHandler(_Forwarder(self))
        threading.Thread(target=self._read, name="headgate-parent", daemon=True).start()
        while (order := self._inbox.get()) is not None:
            self._attempt(order)

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _attempt(self, order: Run) -> None:
        try:
            outcome = self._outcome(order)
        except Cancelled as error:  # it came in the moment between the handler's end and the shield
            outcome = outcome_of(error, cancelled=True)
        self._shielded, self._job = True, None
        self._busy = False
        if isinstance(outcome, bytes):
            self.send(Done(order.number, completed=True, raw=outcome))
        else:
            self.send(Done(order.number, completed=False, raw=outcome.SerializeToString()))

    def _outcome(self, order: Run) -> Any:
        try:
            task = find(order.module, order.name)
            middleware = find_middleware(order.middleware)
        except BaseException as error:  # noqa: BLE001 -- reported as the job's failure: the parent cannot know why
            where = f"{order.module}.{order.name}"
            return failure("HandlerNotFound", f"{where} cannot be imported in another process: {error}")
        # The worker's process has the keys, and how the task was registered: a module may have the function alone.
        task.encryption, task.bad_payload = None, order.bad_payload
        job = HeldJob(*order.facts, _ToParent(self, order.number))
        job.set_extras(order.headers, order.schedule, order.deadline_us)
        self._number, self._job = order.number, job
        if self._cancelled == order.number:  # asked for while the module was imported
            job.request_cancel()
        self.send(Begun())  # its time counts from here: not from the import of its module
        self._shielded = False
        self._raise_if_stopped()
        # A context of its own for each job, as in a thread.
        return contextvars.copy_context().run(_attempt, task, job, middleware)

    def _interrupt(self, *_: object) -> None:
        """The signal, in the main thread: from the parent through our reader, or from another process."""
        if not self._shielded:
            self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._stopped == self._number:
            self._stopped = -1
            raise Cancelled("the handler was asked to stop")

    # --- the parent --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                self._receive(self._pipe.recv())
        except BROKEN:
            pass
        if self._busy:
            os._exit(1)  # the parent has ended and its lease is lost: the result of the handler is discarded
        self._inbox.put(None)
        time.sleep(EXIT_SECONDS)
        os._exit(0)

    def _receive(self, message: ToChild) -> None:
        number = message.number
        if isinstance(message, Run):
            self._busy = True
            self._inbox.put(message)
            return
        stop = isinstance(message, Stop)
        self._stopped = number if stop else self._stopped
        self._cancelled = number  # before the job is looked at: the main thread does it the other way round
        job = self._job
        if job is None or self._number != number:
            return
        job.request_cancel()
        if stop and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._main, signal.SIGTERM)

    def send(self, message: ToParent) -> None:
        """Send one message to the parent, from any thread."""
        handler = threading.get_ident() == self._main and not self._shielded
        if handler:
            self._shielded = True
        try:
            with self._lock:
                self._pipe.send(message)
        except OSError:
            return  # the parent has ended; the reader ends this process
        finally:
            if handler:
                self._shielded = False
        if handler:
            self._raise_if_stopped()


def _attempt(task: Task[Any, Any], job: HeldJob, middleware: Sequence[Middleware]) -> Any:
    current_job.set(job)
    return attempt_sync(task, job, middleware)


class _ToParent:
    """Sends a job's progress and extensions to the parent."""

    def __init__(self, child: Child, number: int) -> None:
        self._child, self._number = child, number

    def progressed(self, job: Job, done: int, total: int, message: str) -> None:
        """See `Reports`."""
        self._child.send(Progress(self._number, done, total, message))

    log_level = LEVELS["OFF"]  # the parent takes the lines from the records that it gets

    def logged(self, job: Job, level: int, logger: str, at_us: int, text: str) -> None:
        """See `Reports`."""

    def extended(self, job: Job, lease_seconds: int) -> None:
        """See `Reports`."""
        self._child.send(Extend(self._number, lease_seconds))


class _Forwarder(logging.handlers.QueueHandler):
    """Sends log records to the worker's process, whose handlers know what to do with them.

    It is there before the handler's module is imported: a `basicConfig` in it then does nothing, and a `dictConfig`
    replaces this handler.
    """

    def __init__(self, child: Child) -> None:
        super().__init__(queue=None)  # type: ignore[arg-type]  # emit() is our own, and uses none
        self._child = child
        self.addFilter(JobFields())  # here: in the worker's process the job is not known

    def emit(self, record: logging.LogRecord) -> None:
        """Send one; what is neither a number nor a text travels as text."""
        try:
            found = vars(self.prepare(record)) | {"args": None}
            fields = {clean_text(name, 200): _plain(value) for name, value in islice(found.items(), LOG_FIELDS_MAX)}
        except Exception:  # noqa: BLE001 -- as every logging handler: a record that cannot be made must not fail a job
            self.handleError(record)
            return
        self._child.send(Log(fields))  # may raise Cancelled in the handler


def _plain(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, float) or (isinstance(value, int) and value in _INT64):
        return value
    return cut_line(str(value), most=LOG_TEXT_MAX_BYTES)  # as lines of other handlers: with the end of a traceback


@functools.cache
def find(module: str, name: str) -> Task[Any, Any]:
    """Find a handler by name, importing its module if need be."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, Task):
        return found
    # Registered by hg.register(): the module has the function itself.
    from headgate.sdk.addresses import addresses_of
    from headgate.sdk.connection import Connection as ServerConnection
    from headgate.sdk.options import PLAIN

    return Task(ServerConnection(addresses_of(None), token=""), "process", found, options=PLAIN)
