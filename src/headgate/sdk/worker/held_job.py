"""A job as its worker sees it: what the handler may see, and the state of its run.

One object for both, since one is made for every delivery. Handlers know it as a `Job`, whose type and `dir()` show
nothing of what is added here. The I/O thread writes these fields; the slot that runs the handler writes `began_at`,
`run_seconds`, `error` and `slot_task`. Each is a single attribute, so no lock is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from headgate.sdk.job import NO_HEADERS, NO_SCHEDULE, Job, Reports

if TYPE_CHECKING:
    from headgate.sdk.tasks import Task

WAITING, STARTED, FINISHED = 0, 1, 2
Facts: TypeAlias = tuple[bytes, int, str, bytes, int, int, int, int, int, str]
"""What a child process needs to make the same job: the first ten arguments of `HeldJob`."""


class HeldJob(Job):
    """One delivered job, until its outcome is acknowledged and its handler has ended."""

    __slots__ = (
        "abandoned",
        "began_at",
        "error",
        "handler",
        "lost",
        "outcome_queued",
        "past_deadline",
        "run_seconds",
        "slot_task",
        "stage",
        "started_at",
        "time_limit",  # set when it is exceeded, and read then
        "timed_out",
    )

    if TYPE_CHECKING:
        raw_id: bytes
        time_limit: float
    else:
        raw_id = Job._raw_id  # the same slot under a name for the worker

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
        handler: Task[Any, Any] | None = None,
    ) -> None:
        """Positional, because one is made for every delivery."""
        self._raw_id = raw_id
        self.epoch = epoch
        self.topic = topic
        self.payload = payload
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.priority = priority
        self.tenant = tenant
        self.cancel_requested = False
        self._created_us = created_us
        self._lease_until_us = lease_until_us
        self._deadline_us = 0
        self._headers = NO_HEADERS
        self._schedule = NO_SCHEDULE
        self._reports = reports
        self._id = None
        self._token = None
        self.handler = handler
        self.stage = WAITING
        self.lost = False  # the lease is another worker's
        self.abandoned = False  # abandoned: of its handler only a success counts
        self.outcome_queued = False
        self.timed_out = False  # its handler is being stopped because of its time limit, or of the deadline
        self.past_deadline = False  # because of the deadline
        self.started_at = 0.0  # when it was given to its slot
        self.began_at = 0.0  # when its handler began; 0: it has not
        self.run_seconds = 0.0  # how long its handler ran, where the slot has measured that
        self.error: BaseException | None = None  # what its handler raised, until the outcome is answered
        self.slot_task: asyncio.Task[None] | None = None  # the task on the user's loop that runs it, while it does

    def set_extras(
        self, headers: Mapping[str, str], schedule: tuple[str, int] = NO_SCHEDULE, deadline_us: int = 0
    ) -> None:
        """What few jobs have, so it is no argument: headers, a schedule (its name, and the occurrence), a deadline."""
        self._headers = dict(headers)
        self._schedule = schedule
        self._deadline_us = deadline_us

    @property
    def extras(self) -> tuple[dict[str, str], tuple[str, int], int]:
        """As given to `set_extras`."""
        return dict(self._headers), self._schedule, self._deadline_us

    @property
    def facts(self) -> Facts:
        """The arguments of the same job in a child process."""
        return (
            self.raw_id,
            self.epoch,
            self.topic,
            self.payload,
            self.attempt,
            self.max_attempts,
            self.priority,
            self._created_us,
            self._lease_until_us,
            self.tenant,
        )

    def request_cancel(self) -> None:
        """Ask the handler to end. The flag comes first: a token made just now looks at it."""
        self.cancel_requested = True
        if self._token is not None:
            self._token.set()
