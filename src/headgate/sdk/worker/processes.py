"""Slots for CPU-bound functions: other processes, spawned (never forked: gRPC does not survive a fork).

The child finds the function by its name, decodes the payload itself and sends the outcome back as bytes. Its `Job` has
the job's facts; progress, extensions and cancellations do not cross the border.
"""

from __future__ import annotations

import functools
import importlib
import logging
import multiprocessing
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, cast

from headgate.sdk.job import Job
from headgate.sdk.outcomes import failure
from headgate.sdk.tasks import Task
from headgate.sdk.worker.execution import attempt_sync
from headgate.sdk.worker.slots import Report
from headgate.wire import jobs_pb2 as pb

log = logging.getLogger("headgate.worker")

Facts = tuple[bytes, int, str, bytes, int, int, int, int, int, str]


class ProcessSlots:
    """Runs plain handlers in other processes."""

    def __init__(self, report: Report, *, size: int) -> None:
        self._report = report
        self._size = min(size, os.cpu_count() or 1)
        self._pool = self._new_pool()
        # Started now, by the caller's thread: the first job should not have the I/O thread wait for a child.
        self._pool.submit(int).add_done_callback(lambda ready: ready.exception())

    def feed(self, jobs: list[Job]) -> None:
        """Hand over jobs to run. From the I/O thread."""
        for job in jobs:
            task = cast("Task[Any, Any]", job.handler)
            where = (task.function.__module__, task.name)
            try:
                running = self._pool.submit(run_in_child, where, facts_of(job), dict(job.headers))
            except RuntimeError:  # a child died, and with it the pool
                self._pool = self._new_pool()
                running = self._pool.submit(run_in_child, where, facts_of(job), dict(job.headers))
            running.add_done_callback(functools.partial(self._done, job))

    def close(self) -> None:
        """Start nothing more; a child that is busy is left to end by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, job: Job, running: Future[tuple[bool, bytes]]) -> None:
        if running.cancelled():
            self._report(job, pb.Outcome(abandon=pb.Abandon()))
        elif error := running.exception():
            log.warning("a worker process died while running job %s: %s", job.id, error)
            self._report(job, failure("ProcessDied", f"the process that ran the job died: {error}"))
        else:
            completed, raw = running.result()
            self._report(job, raw if completed else pb.Outcome.FromString(raw))

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(max_workers=self._size, mp_context=context, initializer=_ignore_signals)


def facts_of(job: Job) -> Facts:
    """What a child needs to know of a job, in the order of Job's own arguments."""
    return (
        job.raw_id,
        job.epoch,
        job.topic,
        job.payload,
        job.attempt,
        job.max_attempts,
        job.priority,
        job.created_us,
        job.lease_until_us,
        job.tenant,
    )


def run_in_child(where: tuple[str, str], facts: Facts, headers: dict[str, str]) -> tuple[bool, bytes]:
    """In the child: run one job; gives whether it completed, and the result or the outcome as bytes."""
    try:
        task = _find(*where)
    except Exception as error:  # noqa: BLE001 -- told as the job's failure: the parent cannot know why
        missing = failure("HandlerNotFound", f"{where[0]}.{where[1]} cannot be imported in another process: {error}")
        return False, missing.SerializeToString()
    job = Job(*facts, _Unheard())
    job.with_headers(headers)
    outcome = attempt_sync(task, job)
    return (True, outcome) if isinstance(outcome, bytes) else (False, outcome.SerializeToString())


class _Unheard:
    """Progress and extensions of a job in a child: said once to be without effect there."""

    def progressed(self, job: Job) -> None:
        log.warning('job %s: progress is not reported from run_in="process"', job.id)

    def extended(self, job: Job, lease_seconds: int) -> None:
        log.warning('job %s: extend(%d) has no effect in run_in="process"', job.id, lease_seconds)


@functools.cache
def _find(module: str, name: str) -> Task[Any, Any]:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, Task):
        return found
    # Registered by hg.register(): the module has the function itself.
    from headgate.sdk.addresses import addresses_of
    from headgate.sdk.connection import Connection
    from headgate.sdk.options import Prepared

    return Task(Connection(addresses_of(None), token=""), "process", found, options=Prepared({}))


def _ignore_signals() -> None:
    # A terminal's Ctrl-C reaches every process of the group; the parent decides what becomes of the jobs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
