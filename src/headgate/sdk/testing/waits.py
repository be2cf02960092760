"""Waiting for results in a box: `await handle.result()`, in a test and in a handler.

In a test, a job has ended or it has not: nothing runs while the test waits. A handler may wait for another job, as it
may with a real worker: the drain runs others meanwhile. What nothing can end raises at once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from headgate.domain.dependencies import Met
from headgate.domain.states import State
from headgate.sdk.errors import NotDrained
from headgate.sdk.tasks import Task
from headgate.sdk.testing.attempts import Attempt
from headgate.sdk.testing.messages import job_message
from headgate.sdk.testing.store import BoxStore, StoredJob
from headgate.wire import jobs_pb2 as jobs

Tasks = Mapping[str, Task[Any, Any]]


class _Result(Future[jobs.JobInfo]):
    """A future on which the thread of the drain may not block: only the drain can complete it."""

    def __init__(self) -> None:
        super().__init__()
        self.drains_in: int | None = None

    def result(self, timeout: float | None = None) -> jobs.JobInfo:
        if not self.done() and threading.get_ident() == self.drains_in:
            self.cancel()
            raise NotDrained("a handler blocks its thread for the result of another job; use `await handle.result()`")
        return super().result(timeout)


@dataclass(slots=True, kw_only=True, eq=False)
class _Wait:
    job: StoredJob
    attempt: Attempt
    until: datetime
    future: _Result


class Waits:
    """The handlers of a drain that wait for results. The caller serialises calls."""

    def __init__(self, store: BoxStore) -> None:
        self._store = store
        self._open: list[_Wait] = []

    def now(self, job: StoredJob, tasks: Tasks, *, plain: bool) -> Future[jobs.JobInfo]:
        """The job if it has ended; else raises NotDrained, which says why it has not."""
        if not job.state.is_final:
            what = self.reason(job, tasks)
            if plain:
                raise NotDrained(f"a plain handler cannot wait for another job in the box: {what}; make it async")
            raise NotDrained(f"{what}; call `await box.drain()` first")
        ended: Future[jobs.JobInfo] = Future()
        ended.set_result(job_message(self._store, job))
        return ended

    def add(self, job: StoredJob, attempt: Attempt, timeout: timedelta) -> Future[jobs.JobInfo]:
        """Have a handler wait until the job has ended, or the clock of the box has moved on by `timeout`."""
        wait = _Wait(job=job, attempt=attempt, until=self._store.now + timeout, future=_Result())
        wait.future.drains_in = attempt.thread
        self._open.append(wait)
        attempt.waits += 1

        def over(_: Future[jobs.JobInfo]) -> None:
            attempt.waits -= 1
            if wait in self._open:
                self._open.remove(wait)

        wait.future.add_done_callback(over)
        return wait.future

    def ended(self, job: StoredJob) -> None:
        """The job has ended."""
        for wait in [wait for wait in self._open if wait.job is job]:
            wait.future.set_result(job_message(self._store, job))

    def next_end(self) -> datetime | None:
        """When the first of them has waited for as long as it wanted."""
        return min((wait.until for wait in self._open), default=None)

    def expire(self) -> None:
        """Answer those whose time is over with the job as it is: that is a ResultTimeout."""
        for wait in [wait for wait in self._open if wait.until <= self._store.now]:
            wait.future.set_result(job_message(self._store, wait.job))

    def give_up(self, tasks: Tasks) -> None:
        """Nothing runs any more: an error for each."""
        for wait in list(self._open):
            wait.future.set_exception(NotDrained(f"the drain has ended, and {self.reason(wait.job, tasks)}"))

    def reason(self, job: StoredJob, tasks: Tasks) -> str:
        """Why a job has not ended."""
        what = f'job {job.id} of topic "{job.topic}" is {job.state.label}'
        if job.state is State.BLOCKED:
            parents = [edge.parent for edge in self._store.dependencies.of_child(job.id) if edge.met is Met.WAITING]
            open_batches = [one for one in parents if one in self._store.batches]
            if open_batches:
                return f"{what}: batch {open_batches[0]} is not sealed"
            return f"{what}: it waits for {', '.join(map(str, parents[:3])) or 'nothing'}"
        if job.state in (State.SCHEDULED, State.RETRYING):
            what += f" until {job.record.run_at:%Y-%m-%dT%H:%M:%S.%fZ} (it is {self._store.now:%H:%M:%S.%f} in the box)"
        if job.topic not in tasks:
            what += ", and this app has no handler for it (see box.complete)"
        return what
