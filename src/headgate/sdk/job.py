"""The job as its handler sees it: its fields, whether it should stop, and how to report progress.

The worker makes one for each delivery (`worker.held_job`), so it is slim: what few handlers ask for is made when asked.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Final, Protocol, cast

from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId, id_from_bytes
from headgate.domain.validation import check_integer, clean_text, shown
from headgate.sdk.outcomes import Cancelled, Seconds, delay_in_ms
from headgate.sdk.times import time_of, time_or_none

NO_SCHEDULE: Final = ("", 0)
NO_HEADERS: Final[Mapping[str, str]] = {}
_INT64: Final = 2**63 - 1
PROGRESS_TEXT_MAX_CHARS: Final = 1_000


class Reports(Protocol):
    """Where a handler's progress and lease extensions go: to the worker's stream, its parent process, or a test."""

    def progressed(self, job: Job, done: int, total: int, message: str) -> None:
        """The handler reported progress; may be called from any thread."""

    def extended(self, job: Job, lease_seconds: int) -> None:
        """The handler asks for a lease of this length from now; may be called from any thread."""

    log_level: int
    """Records of `logging` with this level and above go to the log of the job."""

    def logged(self, job: Job, level: int, logger: str, at_us: int, text: str) -> None:
        """The handler logged a line; may be called from any thread."""


class _Done:
    """What `progress` and `extend` return, so that async code may await it; the work is done already."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE: Final = _Done()


class CancelToken:
    """Set once the job should end; a thread waits for it by `wait`, a coroutine by `wait_async`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """True once the job should end."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the job should end, or until `timeout` seconds are over; True in the first case."""
        return self._event.wait(timeout)

    async def wait_async(self) -> None:
        """Wait on the running loop until the job should end."""
        loop = asyncio.get_running_loop()
        event = loop.create_future()

        def notify() -> None:
            loop.call_soon_threadsafe(lambda: None if event.done() else event.set_result(None))

        with self._lock:
            if self._event.is_set():
                return
            self._watchers.append(notify)
        try:
            await event
        finally:
            with self._lock:
                if notify in self._watchers:
                    self._watchers.remove(notify)

    def on_set(self, notify: Callable[[], None]) -> None:
        """Call `notify` when the job should end, from the thread that asks for it; at once if that was before."""
        with self._lock:
            if not self._event.is_set():
                self._watchers.append(notify)
                return
        notify()

    def set(self) -> None:
        """Set it; for the worker and for tests."""
        with self._lock:
            self._event.set()
            watchers, self._watchers = self._watchers, []
        for notify in watchers:
            notify()


class Job:
    """One attempt at one job; made by the worker, and by `headgate.testing.fake_job` in tests.

    (id, `epoch`) names this attempt. Times are UTC by the database's clock.
    """

    __slots__ = (
        "_created_us",
        "_deadline_us",
        "_headers",
        "_id",
        "_lease_until_us",
        "_raw_id",
        "_reports",
        "_schedule",
        "_token",
        "attempt",
        "cancel_requested",
        "epoch",
        "max_attempts",
        "payload",
        "priority",
        "tenant",
        "topic",
    )

    topic: str
    payload: bytes
    """The body as bytes."""
    attempt: int
    """Counts from 1."""
    max_attempts: int
    priority: int
    tenant: str
    epoch: int
    """Grows with every delivery of the job."""
    cancel_requested: bool
    """True once the job should end."""

    _raw_id: bytes
    _id: JobId | None
    _created_us: int
    _lease_until_us: int
    _deadline_us: int
    _headers: Mapping[str, str]
    _schedule: tuple[str, int]
    _reports: Reports | None
    _token: CancelToken | None

    def __dir__(self) -> list[str]:
        return [name for name in dir(Job) if not name.startswith("_") or name.startswith("__")]

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.topic}, attempt {self.attempt} of {self.max_attempts}>"

    @property
    def id(self) -> JobId:
        """The job's id, the same in every attempt."""
        if self._id is None:
            self._id = id_from_bytes(self._raw_id)
        return self._id

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers given at submit, such as a trace context."""
        return self._headers

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that made the job; None if none did."""
        return self._schedule[0] or None

    @property
    def occurrence(self) -> datetime | None:
        """The occurrence of its schedule that made the job; of a triggered schedule, when it was triggered."""
        name, at_us = self._schedule
        return time_of(at_us) if name else None

    @property
    def deadline(self) -> datetime | None:
        """When the worker stops the handler if it still runs; None if the job has no deadline."""
        return time_or_none(self._deadline_us)

    @property
    def created_at(self) -> datetime:
        """When the job was submitted."""
        return time_of(self._created_us)

    @property
    def lease_until(self) -> datetime:
        """Until when the lease ran at delivery; the worker keeps renewing it while the handler runs."""
        return time_of(self._lease_until_us)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry job_id, topic and attempt."""
        fields = {"job_id": str(self.id), "topic": self.topic, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger(f"headgate.job.{self.topic}"), fields)

    @property
    def cancelled(self) -> CancelToken:
        """A token to wait on; `cancel_requested` is the same as a flag."""
        if self._token is None:
            token = CancelToken()
            self._token = token
            if self.cancel_requested:  # asked for between the test and the assignment
                token.set()
        return self._token

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the job should end."""
        if self.cancel_requested:
            raise Cancelled(f"job {self.id} was cancelled on request")

    def progress(self, done: int, total: int = 0, message: str = "") -> _Done:
        """Report progress; `total` 0 means not known. Shown on the job within about a second.

        Does not block; async code may await it.
        """
        check_integer(done, field="done", low=0, high=_INT64)
        check_integer(total, field="total", low=0, high=_INT64)
        if total and done > total:
            raise InvalidInput("done", f"must be at most total ({total}), got {done}")
        if not isinstance(message, str):
            raise InvalidInput("message", f"must be a str, got {shown(message)}")
        if self._reports is not None:
            self._reports.progressed(self, done, total, clean_text(message, PROGRESS_TEXT_MAX_CHARS))
        return _DONE

    def extend(self, seconds: Seconds) -> _Done:
        """Ask for a lease of at least this long from now, in case this process cannot renew it meanwhile.

        Long jobs do not need it: the worker renews the leases of what runs. Does not block; async code may await it.
        """
        lease = -(-delay_in_ms(seconds, field="seconds") // 1000)
        check_integer(lease, field="seconds", low=1, high=86_400)
        if self._reports is not None:
            self._reports.extended(self, lease)
        return _DONE


def takes_log(job: Job, level: int) -> bool:
    """Whether a record of `logging` with this level goes to the log of the job."""
    reports = job._reports
    return reports is not None and level >= reports.log_level


def add_log_line(job: Job, level: int, logger: str, at_us: int, text: str) -> None:
    """Add a line to the log of the job. For the worker: handlers log as usual."""
    if job._reports is not None:
        job._reports.logged(job, level, logger, at_us, text)


class _ThisJob:
    """A stand-in for type checkers; using it means the function was called directly, not by a worker."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"this_job.{name} was used outside of a worker; use headgate.testing.run_inline")

    def __repr__(self) -> str:
        return "this_job"


this_job: Final = cast("Job", _ThisJob())
"""The default of a `job` parameter, so that type checkers let `.submit()` leave it out:
`async def send(to: str, *, job: Job = this_job)`."""
