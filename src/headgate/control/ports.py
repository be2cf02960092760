"""What the use cases ask of the store and of this instance's dispatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Self, TypeVar
from uuid import UUID

from headgate.domain.dependencies import BatchStatus, NewBatch
from headgate.domain.errors import HeadgateError
from headgate.domain.jobs import Submission, SubmitAnswer
from headgate.domain.views import JobView


class SubmitRows(Protocol):
    """Jobs on their way to the database, as parallel lists."""

    payloads: list[bytes]

    def __len__(self) -> int: ...
    def extend(self, other: Self, /) -> None: ...
    def pick(self, indexes: Sequence[int], /) -> Self: ...


Rows = TypeVar("Rows", bound=SubmitRows)
Rows_contra = TypeVar("Rows_contra", bound=SubmitRows, contravariant=True)
Account = TypeVar("Account")
"""What one caller has waiting to be submitted; made and read by the queue only."""


class SubmitStore(Protocol[Rows]):
    """Rows for submissions, and the one write that does not go through the queue."""

    async def refusals(self, tenant: str, jobs: Sequence[Submission]) -> Mapping[int, HeadgateError]: ...
    async def fill(self, jobs: Sequence[Submission]) -> Rows: ...
    async def fill_plain(
        self,
        tenant: str,
        topic: str,
        ids: Sequence[bytes],
        payloads: Sequence[bytes],
        priorities: Sequence[int],
        *,
        new_id: bool,
    ) -> Rows: ...
    async def submit_atomic(self, rows: Rows) -> Mapping[int, SubmitAnswer]: ...


class SubmitQueue(Protocol[Rows_contra, Account]):
    """The queue in front of the database; answers come after the commit, for rows that were not simply created."""

    def new_account(self) -> Account: ...
    def account_of_calls(self, tenant: str) -> Account: ...
    def admit(self, rows: int, size: int, account: Account) -> None: ...
    def holding(self, rows: int, size: int, account: Account) -> AbstractContextManager[None]: ...
    def put(
        self,
        rows: Rows_contra,
        size: int,
        account: Account,
        *,
        done: Callable[[Mapping[int, SubmitAnswer]], None],
        failed: Callable[[HeadgateError], None],
    ) -> None: ...
    async def submit(
        self, rows: Rows_contra, *, size: int, account: Account, admitted: bool = False
    ) -> Mapping[int, SubmitAnswer]: ...
    def submitted(self, rows: Rows_contra) -> None: ...
    def look_again(self, rows: Rows_contra, answers: Mapping[int, SubmitAnswer]) -> None: ...


class BatchStore(Protocol):
    """Opening, sealing and reading batches of a tenant. All raise NotFound for another tenant's."""

    async def open_batch(self, tenant: str, batch: NewBatch, *, callback: Submission | None) -> BatchStatus: ...
    async def seal_batch(self, tenant: str, batch_id: UUID) -> BatchStatus: ...
    async def batch(self, tenant: str, batch_id: UUID) -> BatchStatus: ...


class JobStore(Protocol):
    """Reading jobs."""

    async def tenant_no(self, tenant: str) -> int: ...
    async def job(self, tenant: str, job_id: UUID, *, payload: bool, result: bool, events: bool) -> JobView: ...
    async def finished(self, tenant_no: int, ids: Sequence[UUID]) -> list[UUID]: ...
