"""What a test sees of a box: its jobs, and the attempts that a drain made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from headgate.domain.ids import JobId
from headgate.sdk.codec import decode, decoder_of
from headgate.sdk.encryption import Encryption
from headgate.sdk.options import JobOptions
from headgate.sdk.tasks import Task
from headgate.sdk.testing.store import StoredJob

OutcomeName = Literal["completed", "failed", "nack", "snooze", "abandon"]


class BoxJob:
    """One job of a box, as it is now. Can be given where a job id or a handle can: `depends_on=[job]`."""

    __slots__ = ("_encryption", "_stored", "_tasks")

    def __init__(
        self, stored: StoredJob, tasks: Mapping[str, Task[Any, Any]], encryption: Encryption | None = None
    ) -> None:
        self._stored, self._tasks, self._encryption = stored, tasks, encryption

    def __repr__(self) -> str:
        return f"<BoxJob {self.id} of {self.topic}, {self.state}, attempt {self.attempt} of {self.max_attempts}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoxJob) and other._stored is self._stored

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> JobId:
        """The job's id, as its handle has it."""
        return self._stored.id

    @property
    def topic(self) -> str:
        """The topic it was submitted to."""
        return self._stored.topic

    @property
    def payload(self) -> bytes:
        """The body as bytes, decrypted; `stored_payload` is what a server would have."""
        if self._encryption is None:
            return self._stored.payload
        return self._encryption.open_payload(self._stored.payload, self.id.bytes)

    @property
    def stored_payload(self) -> bytes:
        """The body as it is stored."""
        return self._stored.payload

    @property
    def arguments(self) -> Any:
        """The payload decoded from JSON: for a task, its arguments by name."""
        return msgspec.json.decode(self.payload)

    @property
    def options(self) -> JobOptions:
        """The options of its submit; empty for the callback of a batch."""
        return self._stored.options

    @property
    def state(self) -> str:
        """One of pending, running, scheduled, retrying, blocked, completed, dead, cancelled."""
        return self._stored.state.label

    @property
    def attempt(self) -> int:
        """Attempts made so far; Snooze and Abandon cost none."""
        return self._stored.record.attempt

    @property
    def max_attempts(self) -> int:
        """Attempts allowed."""
        return self._stored.record.max_attempts

    @property
    def priority(self) -> int:
        """Higher runs first."""
        return self._stored.record.priority

    @property
    def run_at(self) -> datetime:
        """When it is, or was, due by the clock of the box."""
        return self._stored.record.run_at

    @property
    def last_error(self) -> str:
        """The error of the last attempt that failed; empty if none did."""
        error = self._stored.last_error
        return error if self._encryption is None else self._encryption.open_text(error, self.id.bytes)

    @property
    def progress(self) -> tuple[int, int, str] | None:
        """What its handler reported last: done, total, message."""
        return self._stored.progress

    @property
    def result(self) -> Any:
        """What its handler returned, as `handle.result()` gives it; None before."""
        if not self._stored.result:
            return None
        task = self._tasks.get(self.topic)
        kind = Any if task is None else task.arguments.returns
        result = self._stored.result
        if self._encryption is not None:
            result = self._encryption.open_result(result, self.id.bytes)
        return decode(result, decoder_of(kind), what="result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt that a drain made."""

    job: BoxJob
    attempt: int
    at: datetime
    """When it began, by the clock of the box."""
    outcome: OutcomeName
    state: str
    """The state of the job after it."""
    next_at: datetime | None = None
    """When the job is due again; None if it is not."""
    error: BaseException | None = None
    """What the handler raised, `Nack` and the like included; None if it returned, or if it was not started."""
    message: str = ""
    """The error as it is stored with the job."""

    @property
    def result(self) -> Any:
        """What the handler returned, as `handle.result()` gives it; None if it did not complete."""
        return self.job.result if self.outcome == "completed" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What a drain did."""

    runs: tuple[Run, ...]
    """All attempts in their order."""

    @property
    def results(self) -> list[Any]:
        """What the handlers returned whose attempts completed, in order."""
        return [run.result for run in self.runs if run.outcome == "completed"]

    @property
    def failed(self) -> list[Run]:
        """The attempts that failed."""
        return [run for run in self.runs if run.outcome == "failed"]

    def raise_for_errors(self) -> None:
        """Raise an ExceptionGroup of what handlers raised in attempts that failed, if any did."""
        if not self.failed:
            return
        errors = [run.error if isinstance(run.error, Exception) else RuntimeError(run.message) for run in self.failed]
        topics = ", ".join(sorted({run.job.topic for run in self.failed}))
        raise ExceptionGroup(f"{len(errors)} attempts failed, of {topics}", errors)
