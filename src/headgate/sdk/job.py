"""The job as its handler sees it: what it is, whether it should stop, and a way to say how far it is.

Built on the I/O thread, one for each delivery, and handed to the handler's thread or loop; so it is slim, and what few
handlers ask for is made when asked. Flags are written by the I/O thread and read by the handler; each is one
attribute, so that no lock is needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, cast
from uuid import UUID

from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId
from headgate.domain.validation import check_integer, clean_text, shown
from headgate.sdk.outcomes import Cancelled, Seconds, delay_in_ms

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOBODY: Final = ("", 0)
_NO_HEADERS: Final[Mapping[str, str]] = {}
_INT64: Final = 2**63 - 1
PROGRESS_TEXT_MAX_CHARS: Final = 1_000
WAITING, STARTED, FINISHED = 0, 1, 2


class Reports(Protocol):
    """Where a job's progress and wishes go: the worker's link, or a test's notebook."""

    def progressed(self, job: Job) -> None:
        """`job.last_progress` changed; may be called from any thread."""

    def extended(self, job: Job, lease_seconds: int) -> None:
        """The handler wants its lease to last this long from now; may be called from any thread."""


class _Done:
    """What `progress` and `extend` return: they have done their work, so awaiting it is allowed and costs nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE: Final = _Done()


class CancelToken:
    """Set when someone asks for the job to end; a thread waits for it by `wait`, a coroutine by `wait_async`."""

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
        told = loop.create_future()

        def tell() -> None:
            loop.call_soon_threadsafe(lambda: None if told.done() else told.set_result(None))

        with self._lock:
            if self._event.is_set():
                return
            self._watchers.append(tell)
        try:
            await told
        finally:
            with self._lock:
                if tell in self._watchers:
                    self._watchers.remove(tell)

    def on_set(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the job should end, from the thread that asks for it; at once if that was before."""
        with self._lock:
            if not self._event.is_set():
                self._watchers.append(tell)
                return
        tell()

    def set(self) -> None:
        """Ask for the end; for the worker and for tests."""
        with self._lock:
            self._event.set()
            watchers, self._watchers = self._watchers, []
        for tell in watchers:
            tell()


class Job:
    """One attempt at one job.

    `payload` is the body as bytes. `attempt` counts from 1; a handler may give up early by comparing it with
    `max_attempts`. (id, `epoch`) names this very run. Times are UTC by the database's clock.
    """

    __slots__ = (
        "_headers",
        "_id",
        "_made_by",
        "_reports",
        "_token",
        "abandoned",
        "attempt",
        "begun_at",
        "cancel_requested",
        "created_us",
        "deadline_us",
        "epoch",
        "handler",
        "last_progress",
        "lease_until_us",
        "lost",
        "max_attempts",
        "over_time",
        "past_deadline",
        "payload",
        "priority",
        "raw_id",
        "settled",
        "stage",
        "started_at",
        "tenant",
        "took",
        "topic",
        "where",
    )

    def __init__(
        self,
        raw_id: bytes,
        epoch: int,
        topic: str,
        payload: bytes,
        attempt: int,
        max_attempts: int,
        priority: int,
        created_us: int,
        lease_until_us: int,
        tenant: str,
        reports: Reports | None,
        handler: object = None,
    ) -> None:
        """For the worker and for tests; positional, because one is made for every delivery."""
        self.raw_id = raw_id
        self.epoch = epoch
        self.topic = topic
        self.payload = payload
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.priority = priority
        self.tenant = tenant
        self.cancel_requested = False
        self.lost = False
        self.abandoned = False
        self.settled = False  # its outcome is on the way
        self.started_at = 0.0  # when it was given a slot, on the monotonic clock
        self.last_progress: tuple[int, int, str] | None = None
        self.handler = handler
        self.stage = WAITING  # kept by the worker's ledger
        self.begun_at = 0.0  # by the monotonic clock, once its handler runs; 0: it has not begun
        self.took = 0.0  # seconds its handler ran, where the slot has measured them
        self.over_time = False  # its handler is being stopped because of that limit, or of the deadline
        self.past_deadline = False  # because of the deadline
        self.deadline_us = 0
        self.where: asyncio.Task[None] | None = None  # the slot on the user's loop that runs it, while it does
        self.created_us = created_us
        self.lease_until_us = lease_until_us
        self._reports = reports
        self._headers: Mapping[str, str] = _NO_HEADERS
        self._made_by: tuple[str, int] = _NOBODY
        self._id: JobId | None = None
        self._token: CancelToken | None = None

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.topic}, attempt {self.attempt} of {self.max_attempts}>"

    @property
    def id(self) -> JobId:
        """The job's id, the same in every attempt."""
        if self._id is None:
            self._id = JobId(UUID(bytes=self.raw_id))
        return self._id

    @property
    def headers(self) -> Mapping[str, str]:
        """What the producer sent along: trace context and the like."""
        return self._headers

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that made the job; None if none did."""
        return self._made_by[0] or None

    @property
    def occurrence(self) -> datetime | None:
        """For which occurrence of its schedule the job was made; of a triggered one, when that was."""
        name, at_us = self._made_by
        return _EPOCH + timedelta(microseconds=at_us) if name else None

    @property
    def deadline(self) -> datetime | None:
        """When the worker stops the handler if it still runs; None if the job has no deadline."""
        return _EPOCH + timedelta(microseconds=self.deadline_us) if self.deadline_us else None

    @property
    def created_at(self) -> datetime:
        """When the job was submitted."""
        return _EPOCH + timedelta(microseconds=self.created_us)

    @property
    def lease_until(self) -> datetime:
        """Until when the lease ran at delivery; the worker keeps renewing it while the handler runs."""
        return _EPOCH + timedelta(microseconds=self.lease_until_us)

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
        """End the attempt here if someone asked for it."""
        if self.cancel_requested:
            raise Cancelled(f"job {self.id} was cancelled on request")

    def progress(self, done: int, total: int = 0, message: str = "") -> _Done:
        """Say how far the job is; `total` 0 means not known. Shown on the job within about a second.

        Done when it returns, in a thread and on a loop alike; in async code you may await it.
        """
        check_integer(done, field="done", low=0, high=_INT64)
        check_integer(total, field="total", low=0, high=_INT64)
        if total and done > total:
            raise InvalidInput("done", f"must be at most total ({total}), got {done}")
        if not isinstance(message, str):
            raise InvalidInput("message", f"must be a str, got {shown(message)}")
        self.last_progress = (done, total, clean_text(message, PROGRESS_TEXT_MAX_CHARS))
        if self._reports is not None:
            self._reports.progressed(self)
        return _DONE

    def extend(self, seconds: Seconds) -> _Done:
        """Ask for a lease of at least this long from now, for a stretch in which even this process may be silent.

        Not needed for long jobs: the worker renews what runs. Done when it returns; may be awaited.
        """
        lease = -(-delay_in_ms(seconds, field="seconds") // 1000)
        check_integer(lease, field="seconds", low=1, high=86_400)
        if self._reports is not None:
            self._reports.extended(self, lease)
        return _DONE

    # --- for the worker ----------------------------------------------------------------------------------------------

    def with_headers(
        self, headers: Mapping[str, str], made_by: tuple[str, int] = _NOBODY, deadline_us: int = 0
    ) -> None:
        """What few jobs have, so it is no argument: headers, a schedule (its name, and the occurrence), a deadline."""
        self._headers = dict(headers)
        self._made_by = made_by
        self.deadline_us = deadline_us

    @property
    def made_by(self) -> tuple[str, int]:
        """As given to `with_headers`."""
        return self._made_by

    def ask_to_stop(self) -> None:
        """Set the flag first: a token made just now looks at it."""
        self.cancel_requested = True
        if self._token is not None:
            self._token.set()


class _ThisJob:
    """A stand-in for type checkers; using it means the function was called directly, not by a worker."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"this_job.{name} was used outside of a worker; use headgate.sdk.testing.run_inline")

    def __repr__(self) -> str:
        return "this_job"


this_job: Final = cast("Job", _ThisJob())
"""The default of a `job` parameter, so that type checkers let `.submit()` leave it out:
`async def send(to: str, *, job: Job = this_job)`."""
