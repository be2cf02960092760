"""What a submit returns: the job's id, and calls to read its state and result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload
from uuid import UUID

from headgate.domain.errors import HeadgateError
from headgate.domain.ids import JobId, id_from_bytes
from headgate.sdk.client.producer import refusal
from headgate.sdk.codec import decode, decoder_of
from headgate.sdk.encryption import Encryption, Purpose
from headgate.sdk.errors import JobCancelled, JobDead, ResultTimeout, SubmitConflict
from headgate.sdk.records import record, state_word
from headgate.sdk.times import time_or_none
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as producer

if TYPE_CHECKING:
    from headgate.sdk.connection import Connection

R = TypeVar("R")
T = TypeVar("T")

RESULT_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One dependency. `met` is waiting or fulfilled; or dead, cancelled, gone: then it cannot be fulfilled."""

    id: JobId
    needs: str
    met: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job as it was when it was read.

    `state` is one of pending, running, scheduled, retrying, blocked, completed, dead, cancelled.
    """

    id: JobId
    tenant: str
    topic: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    cancel_requested: bool
    worker: str
    created_at: datetime
    run_at: datetime | None
    claimed_at: datetime | None
    lease_until: datetime | None
    finished_at: datetime | None
    last_error: str
    headers: dict[str, str] = field(default_factory=dict, hash=False)
    payload: bytes = b""
    """As it was submitted; on request."""
    raw_result: bytes = b""
    """The stored result, on request; `result()` decodes it."""
    progress: tuple[int, int, str] | None = None
    key: str = ""
    """Its idempotency key, until that expires."""
    unique_key: str = ""
    parents: tuple[Relation, ...] = ()
    parent_count: int = 0
    children: tuple[Relation, ...] = ()
    child_count: int = 0
    batch_id: JobId | None = None
    schedule: str | None = None
    """The schedule that made it, and for which occurrence; empty text when that schedule was deleted."""
    occurrence: datetime | None = None
    deadline: datetime | None = None
    tags: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """True once the job is completed, dead or cancelled."""
        return self.state in ("completed", "dead", "cancelled")

    @overload
    def result(self) -> Any: ...
    @overload
    def result(self, *, type: type[T]) -> T: ...
    def result(self, *, type: object = Any) -> object:  # noqa: A002
        """What the handler returned, decoded from JSON, as `type` if given; None if nothing is stored or was requested.

        It waits for nothing and raises nothing about the state of the job, as `hg.wait_result` and `handle.result` do.
        """
        return decode(self.raw_result, decoder_of(type), what="result") if self.raw_result else None


def job_info(found: jobs.JobInfo, encryption: Encryption | None = None) -> JobInfo:
    """Read a job off the wire. Raises MissingKey or DecryptionFailed for a payload or result that cannot be read.

    Without `encryption`, encrypted ones stay as they are.
    """
    payload, result, last_error = found.payload, found.result, found.last_error
    if encryption is not None:
        payload = encryption.open(payload, Purpose.PAYLOAD, found.id, what="the payload")
        result = encryption.open_result(result, found.id)
        last_error = encryption.open_text(last_error, found.id)
    progress = found.progress if found.HasField("progress") else None
    return record(
        JobInfo,
        found,
        last_error=last_error,
        payload=payload,
        raw_result=result,
        progress=(progress.done, progress.total, progress.message) if progress else None,
        parents=_relations(found.parents),
        children=_relations(found.children),
        schedule=found.lineage.schedule if found.HasField("lineage") else None,
        occurrence=time_or_none(found.lineage.occurrence_us),
    )


def _relations(found: Iterable[jobs.Relation]) -> tuple[Relation, ...]:
    return tuple(
        record(Relation, one, needs="ended" if one.needs == jobs.NEEDS_ENDED else "succeeded") for one in found
    )


@dataclass(slots=True, eq=False, repr=False)
class Handle(Generic[R]):
    """One submitted job. `created` is False if the same job existed before (a repeated id or key)."""

    _connection: Connection
    id: JobId
    _returns: object
    _: KW_ONLY
    created: bool = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of job {self.id}>"


class JobHandle(Handle[R]):
    """A submitted job, for async code."""

    __slots__ = ()

    @overload
    async def result(self, timeout: float = ...) -> R: ...  # noqa: ASYNC109
    @overload
    async def result(self, timeout: float = ..., *, type: type[T]) -> T: ...  # noqa: ASYNC109
    async def result(self, timeout: float = RESULT_TIMEOUT, *, type: object = None) -> object:  # noqa: A002, ASYNC109
        """Wait until the job is finished, and give what its handler returned.

        Decoded as the handler's return annotation, or as `type`. Raises JobDead, JobCancelled or ResultTimeout.
        """
        connection = self._connection
        found = await asyncio.wrap_future(connection.start_wait(self.id, timeout=timeout))
        kind, keys = type or self._returns, connection.encryption
        return value_of(found, kind, job_id=self.id, seconds=timeout, encryption=keys)

    async def info(self) -> JobInfo:
        """Read the job."""
        return job_info(await asyncio.wrap_future(self._connection.start_get(self.id)), self._connection.encryption)

    async def cancel(self, *, reason: str = "") -> bool:
        """End the job at once if it waits, or ask its worker to stop; False if that was requested before.

        Needs the scope `operate`. Raises NotFound, and Refused for a job that has ended.
        """
        from headgate.sdk.admin.jobs import Jobs

        (change,) = await Jobs(self._connection).cancel(self.id, reason=reason)
        change.raise_for_error()
        return change.changed


class SyncHandle(Handle[R]):
    """A submitted job, for code without an event loop."""

    __slots__ = ()

    @overload
    def result(self, timeout: float = ...) -> R: ...
    @overload
    def result(self, timeout: float = ..., *, type: type[T]) -> T: ...
    def result(self, timeout: float = RESULT_TIMEOUT, *, type: object = None) -> object:  # noqa: A002
        """As `JobHandle.result`, blocking."""
        connection = self._connection
        found = connection.start_wait(self.id, timeout=timeout).result()
        kind, keys = type or self._returns, connection.encryption
        return value_of(found, kind, job_id=self.id, seconds=timeout, encryption=keys)

    def info(self) -> JobInfo:
        """Read the job."""
        return job_info(self._connection.start_get(self.id).result(), self._connection.encryption)

    def cancel(self, *, reason: str = "") -> bool:
        """As `JobHandle.cancel`, blocking."""
        from headgate.sdk.admin.jobs import CANCEL, cancel_request, changes_of

        (change,) = changes_of(self._connection.call_blocking(CANCEL, cancel_request(self.id, reason)))
        change.raise_for_error()
        return change.changed


def value_of(
    found: jobs.JobInfo, kind: object, *, job_id: UUID, seconds: float, encryption: Encryption | None = None
) -> Any:
    """The result of a finished job, or the error that says why there is none."""
    last_error = found.last_error
    if encryption is not None:
        last_error = encryption.open_text(last_error, job_id.bytes)
    match found.state:
        case jobs.STATE_COMPLETED:
            result = found.result if encryption is None else encryption.open_result(found.result, job_id.bytes)
            return decode(result, decoder_of(kind), what="result") if result else None
        case jobs.STATE_DEAD:
            raise JobDead(job_id, last_error=last_error)
        case jobs.STATE_CANCELLED:
            raise JobCancelled(job_id)
        case _:
            retrying = found.state == jobs.STATE_RETRYING
            raise ResultTimeout(
                job_id,
                state=state_word(found.state),
                seconds=seconds,
                last_error=last_error,
                next_try=time_or_none(found.run_at_us) if retrying else None,
            )


def error_of(receipt: producer.SubmitReceipt, *, key: str) -> HeadgateError | None:
    """What is wrong with one job of a submit; None if it exists now."""
    if receipt.code == producer.SUBMIT_CONFLICT:
        first = id_from_bytes(receipt.id)
        return SubmitConflict(first, what=f'key "{key}"' if key else f"id {first}")
    if receipt.code == producer.SUBMIT_REFUSED:
        return refusal(receipt.error)
    return None
