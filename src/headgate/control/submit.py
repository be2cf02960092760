"""Submitting jobs: permission, admission, checks, atomicity. Every transport uses this; it only translates.

Plain jobs have nothing but an id, a topic and a payload (and a priority). Many of one topic travel as parallel lists,
without an object per job. Jobs with options are read one by one; a bad one is refused by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headgate.control.payload_check import PayloadCheck
from headgate.control.ports import Account, Rows, SubmitQueue, SubmitStore
from headgate.control.rate_limits import RateLimits
from headgate.control.tenant_limits import TenantLimits
from headgate.domain import limits
from headgate.domain.errors import (
    Conflict,
    HeadgateError,
    InvalidInput,
    OutcomeUnknown,
    PayloadMismatch,
    QuotaExceeded,
    TooLarge,
)
from headgate.domain.identity import Identity, PermissionDenied
from headgate.domain.ids import JobId, are_job_ids
from headgate.domain.jobs import JobRules, Submission, SubmitAnswer
from headgate.domain.pacing import Pace
from headgate.domain.rate_limits import RateClass, RateLimited
from headgate.domain.states import SubmitReceipt
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_priority, check_topic

PAYLOAD_HINT = "store the data elsewhere and send a reference; the limit is payload_max of the server, at most 1 MiB"
JOB_BYTES = 200
"""What a job that waits keeps in memory besides its payload."""
CALL_BYTES = 4_000
"""What a unary call that waits keeps in memory besides its jobs."""


class RawJob(Protocol):
    """One job as its transport has received it."""

    @property
    def id(self) -> bytes: ...
    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def new_id(self) -> bool: ...


class PlainJobs(Protocol):
    """Plain jobs of one topic, as parallel lists; those without a priority of their own have the topic's."""

    @property
    def topic(self) -> str: ...
    @property
    def ids(self) -> Sequence[bytes]: ...
    @property
    def payloads(self) -> Sequence[bytes]: ...
    @property
    def priorities(self) -> Sequence[int]: ...
    @property
    def unset_priorities(self) -> Sequence[int]: ...
    @property
    def new_id(self) -> bool: ...


Job = TypeVar("Job", bound=RawJob)
Job_contra = TypeVar("Job_contra", bound=RawJob, contravariant=True)


class ReadJob(Protocol[Job_contra]):
    """How a transport's message becomes a submission; raises InvalidInput naming the field."""

    def __call__(
        self, job: Job_contra, /, *, tenant: str, sees: TopicSet | None, make_id: Callable[[], JobId]
    ) -> Submission: ...


@dataclass(slots=True)  # frozen would take three times as long to make
class SubmitResult:
    """What happened to one job. `job_id`: the 16 bytes of the job that exists now, empty if there is none."""

    index: int
    job_id: bytes
    receipt: SubmitReceipt = SubmitReceipt.CREATED
    error: HeadgateError | None = None


class Submits(Generic[Rows, Account]):
    """Submit for a caller, by its rights and within what may wait."""

    def __init__(
        self,
        store: SubmitStore[Rows],
        queue: SubmitQueue[Rows, Account],
        *,
        make_id: Callable[[], JobId],
        payload_max: int = limits.PAYLOAD_MAX_BYTES,
        payloads: PayloadCheck | None = None,
        rates: RateLimits | None = None,
        tenants: TenantLimits | None = None,
        refused: Counter[str] | None = None,
    ) -> None:
        """`refused` counts the jobs that were not taken, by the code of the error."""
        self._store, self._queue, self._make_id = store, queue, make_id
        self._payload_max, self._tenants = payload_max, tenants or TenantLimits()
        self._rates = RateLimits() if rates is None else rates
        self.payloads = payloads or PayloadCheck(store.schemas_of, store.payload_sizes_of)
        self._refused: Counter[str] = Counter() if refused is None else refused

    def stream_account(self) -> Account:
        """What one stream has waiting, counted apart from other streams and calls."""
        return self._queue.new_account()

    async def one(self, caller: Identity, job: Job, read: ReadJob[Job], *, plain: bool) -> SubmitResult:
        """Submit one job and wait for its commit; `plain` says that it has no options."""
        try:
            return await self._one(caller, job, read, plain=plain)
        except HeadgateError as error:
            self._refused[error.code] += 1
            raise

    async def _one(self, caller: Identity, job: Job, read: ReadJob[Job], *, plain: bool) -> SubmitResult:
        account = self._queue.account_of_calls(caller.tenant)
        size = len(job.payload) + CALL_BYTES
        self._queue.admit(1, size, account)
        self._take(caller, 1)
        if plain and len(job.payload) <= self._payload_max and are_job_ids((job.id,)):
            caller.allowed([check_topic(job.topic)])
            job_id = job.id
            rows = await self._store.fill_plain(
                caller.tenant, job.topic, [job_id], [job.payload], (), new_id=job.new_id
            )
        else:
            submission = self.submission(caller, job, read)
            job_id = submission.id.bytes
            rows = await self._store.fill([submission])
        if self._store.checks_payloads(caller.tenant):  # known only now: `fill` has looked the topic up
            self.payloads.refuse(caller.tenant, job.topic, job.payload)
        answer = (await self._queue.submit(rows, size=size, account=account)).get(0)
        if answer is not None and answer.error is not None:
            raise answer.error
        return self._result(0, job_id, answer)

    async def many(
        self, caller: Identity, jobs: Sequence[Job], read: ReadJob[Job], *, atomic: bool
    ) -> list[SubmitResult]:
        """Submit many jobs and wait for their commit: a result for each, in order; `atomic`: all or nothing."""
        try:
            return await self._many(caller, jobs, read, atomic=atomic)
        except HeadgateError as error:
            self._refused[error.code] += len(jobs)
            raise

    async def _many(
        self, caller: Identity, jobs: Sequence[Job], read: ReadJob[Job], *, atomic: bool
    ) -> list[SubmitResult]:
        if not jobs:
            raise InvalidInput("jobs", "is empty; give at least one job")
        _check_count(len(jobs))
        if len(jobs) > limits.SUBMIT_FLUSH_MAX_ROWS and atomic:
            raise TooLarge("jobs", size=len(jobs), limit=limits.SUBMIT_FLUSH_MAX_ROWS, unit="jobs in one atomic batch")
        account = self._queue.account_of_calls(caller.tenant)
        size = sum(len(job.payload) for job in jobs) + JOB_BYTES * len(jobs) + CALL_BYTES
        # Before anything is asked of the database, and counted while new names are stored there.
        with self._queue.holding(len(jobs), size, account):
            self._take(caller, len(jobs))
            rows, indexes, ids, results = await self._fill(caller, jobs, read, first=0)
        if atomic and results and isinstance(mismatch := results[0].error, PayloadMismatch):
            raise mismatch.within(f"jobs[{results[0].index}].")
        if atomic and results:
            raise InvalidInput(f"jobs[{results[0].index}]", str(results[0].error), hint="nothing was submitted")
        self._count(results)
        if rows is not None:
            write = self._write_atomic if atomic else self._write_parts
            answers = await write(rows, account)
            results += [self._result(index, ids[row], answers.get(row)) for row, index in enumerate(indexes)]
        return sorted(results, key=lambda one: one.index)

    async def frame(
        self,
        caller: Identity,
        plain: PlainJobs | None,
        jobs: Sequence[Job],
        read: ReadJob[Job],
        account: Account,
        *,
        done: Callable[[list[SubmitResult]], None],
        failed: Callable[[HeadgateError], None],
        declared: JobRules | None = None,
    ) -> None:
        """Queue one frame of a stream; its plain jobs have the first indexes, and `declared` is about them.

        After the commit `done` gets the jobs that were not created with the id they were sent with; `failed` is called
        instead if nothing was written. Raises when the frame is refused as a whole: then neither is called.
        """
        count = len(jobs) + (0 if plain is None else len(plain.ids))

        def not_written(error: HeadgateError) -> None:
            self._refused[error.code] += count
            failed(error)

        try:
            await self._frame(caller, plain, jobs, read, account, done=done, failed=not_written, declared=declared)
        except HeadgateError as error:
            self._refused[error.code] += count
            raise

    async def _frame(
        self,
        caller: Identity,
        plain: PlainJobs | None,
        jobs: Sequence[Job],
        read: ReadJob[Job],
        account: Account,
        *,
        done: Callable[[list[SubmitResult]], None],
        failed: Callable[[HeadgateError], None],
        declared: JobRules | None,
    ) -> None:
        if plain is None and not jobs:
            raise InvalidInput("frame", "carries no jobs; give plain or jobs")
        first = 0 if plain is None else _check_plain_counts(plain)  # before anything is made of each of them
        size = sum(len(job.payload) for job in jobs) + JOB_BYTES * (first + len(jobs))
        if plain is not None:
            size += sum(map(len, plain.payloads))
        # Before anything else is done with it: under overload, refusing must cost little.
        self._queue.admit(first + len(jobs), size, account)
        self._take(caller, first + len(jobs))
        rows: Rows | None = None
        indexes, ids, refused = list[int](), list[bytes](), list[SubmitResult]()
        if plain is not None:
            try:
                rows = await self._fill_plain(caller, plain, declared)
                indexes, ids = list(range(first)), list(plain.ids)
                if self._store.checks_payloads(caller.tenant, plain.topic):
                    rows, indexes, refused = await self._matching(caller, plain, rows)
                    ids = [ids[index] for index in indexes]
            except (InvalidInput, PermissionDenied, QuotaExceeded) as error:
                if not jobs:
                    raise
                # Another caller's jobs may share the frame: they are not refused for this.
                refused = [self._refusal(index, error) for index in range(first)]
        if jobs:
            others, other_indexes, other_ids, bad = await self._fill(caller, jobs, read, first=first)
            refused += bad
            if others is not None:
                indexes += other_indexes
                ids += other_ids
                if rows is None:
                    rows = others
                else:
                    rows.extend(others)
        if rows is None:
            self._count(refused)
            done(refused)
            return
        # The producer knows the ids that it has sent; the reply must contain those that were made here.
        unnamed = {first + position for position, job in enumerate(jobs) if not job.id}

        def committed(answers: Mapping[int, SubmitAnswer]) -> None:
            results = [self._result(indexes[row], ids[row], answer) for row, answer in answers.items()]
            results += [
                SubmitResult(index, ids[row])
                for row, index in enumerate(indexes)
                if index in unnamed and row not in answers
            ]
            if refused:
                self._count(refused)
            done([*results, *refused])

        self._queue.put(rows, size, account, done=committed, failed=failed)

    def _take(self, caller: Identity, count: int) -> None:
        """Count jobs by the rates of the credential and of the tenant: by both, or by none. Raises RateLimited."""
        self._rates.take(caller, RateClass.SUBMIT, count)
        try:
            self._tenants.take(caller.tenant, count)
        except RateLimited:
            self._rates.give_back(caller, RateClass.SUBMIT, count)
            raise

    def submission(self, caller: Identity, job: Job, read: ReadJob[Job]) -> Submission:
        """Read a job with options, of a topic that the caller's token permits."""
        submission = read(job, tenant=caller.tenant, sees=caller.topics, make_id=self._make_id)
        caller.allowed([submission.topic])
        if (size := len(submission.payload)) > self._payload_max:
            raise TooLarge("payload", size=size, limit=self._payload_max, hint=PAYLOAD_HINT)
        return submission

    async def _fill_plain(self, caller: Identity, plain: PlainJobs, declared: JobRules | None) -> Rows:
        check_topic(plain.topic)
        caller.allowed([plain.topic])
        if not plain.ids:
            raise InvalidInput("plain.ids", "is empty; give one for each job")
        if len(plain.payloads) != len(plain.ids):
            raise InvalidInput("plain.payloads", f"{len(plain.payloads)} payloads for {len(plain.ids)} ids")
        if plain.priorities and len(plain.priorities) != len(plain.ids):
            raise InvalidInput("plain.priorities", f"{len(plain.priorities)} priorities for {len(plain.ids)} ids")
        if plain.unset_priorities and max(plain.unset_priorities) >= len(plain.priorities):
            raise InvalidInput(
                "plain.unset_priorities",
                f"has index {max(plain.unset_priorities)}, and there are {len(plain.priorities)} priorities",
            )
        if not are_job_ids(plain.ids):
            raise InvalidInput("plain.ids", "must each be the 16 bytes of a UUID of version 7")
        if (size := max(map(len, plain.payloads))) > self._payload_max:
            raise TooLarge("payload", size=size, limit=self._payload_max, hint=PAYLOAD_HINT)
        for priority in set(plain.priorities):
            check_priority(priority)
        return await self._store.fill_plain(
            caller.tenant,
            plain.topic,
            list(plain.ids),
            list(plain.payloads),
            list(plain.priorities),
            new_id=plain.new_id,
            unset_priorities=plain.unset_priorities,
            declared=declared,
        )

    async def _matching(
        self, caller: Identity, plain: PlainJobs, rows: Rows
    ) -> tuple[Rows | None, list[int], list[SubmitResult]]:
        """Of plain jobs of a topic with a schema or size: rows that fit it, their indexes, a result for each other."""
        bad = await self.payloads.mismatches(caller.tenant, [(plain.topic, payload) for payload in plain.payloads])
        left = [index for index in range(len(plain.ids)) if index not in bad]
        refused = [self._refusal(index, error) for index, error in bad.items()]
        return (rows.pick(left) if left else None) if bad else rows, left, refused

    async def _fill(
        self, caller: Identity, jobs: Sequence[Job], read: ReadJob[Job], *, first: int
    ) -> tuple[Rows | None, list[int], list[bytes], list[SubmitResult]]:
        """Rows of the jobs that can be taken, with their indexes and ids; and a result for each that cannot."""
        _check_count(len(jobs))
        good, indexes, refused = list[Submission](), list[int](), list[SubmitResult]()
        pace = Pace(time.monotonic)
        for index, job in enumerate(jobs, first):
            await pace.rest()
            try:
                good.append(self.submission(caller, job, read))
                indexes.append(index)
            except HeadgateError as error:
                refused.append(self._refusal(index, error))
        over = dict(await self._store.refusals(caller.tenant, good)) if good else {}
        if good and self._store.checks_payloads(caller.tenant):
            payloads = [(job.topic, job.payload) for job in good]
            over = {**await self.payloads.mismatches(caller.tenant, payloads), **over}
        if over:
            refused += [self._refusal(indexes[row], error) for row, error in over.items()]
            left = [row for row in range(len(good)) if row not in over]
            good, indexes = [good[row] for row in left], [indexes[row] for row in left]
        rows = await self._store.fill(good) if good else None
        return rows, indexes, [job.id.bytes for job in good], refused

    async def _write_atomic(self, rows: Rows, account: Account) -> Mapping[int, SubmitAnswer]:
        with self._queue.holding(len(rows), _size(rows), account):
            answers = await self._store.submit_atomic(rows)
        self._queue.look_again(rows, answers)
        for row, answer in answers.items():
            if answer.error is not None:  # refused, and so nothing was submitted
                raise answer.error
            if answer.receipt is SubmitReceipt.CONFLICT:
                raise Conflict(f"jobs[{row}], and so nothing was submitted", first=answer.job_id)
        self._queue.submitted(rows, answers)
        return answers

    async def _write_parts(self, rows: Rows, account: Account) -> Mapping[int, SubmitAnswer]:
        size = _size(rows)
        self._queue.admit(len(rows), size, account)  # all of it or nothing: a call has one answer to being overloaded
        starts = range(0, len(rows), limits.SUBMIT_FLUSH_MAX_ROWS)
        parts = [rows.pick(range(start, min(len(rows), start + limits.SUBMIT_FLUSH_MAX_ROWS))) for start in starts]
        written = await asyncio.gather(
            *(self._queue.submit(part, size=size // len(parts), account=account, admitted=True) for part in parts),
            return_exceptions=True,
        )
        failed = [one for one in written if isinstance(one, BaseException)]
        if failed and len(failed) < len(written):
            raise OutcomeUnknown(f"{failed[0]}; a part of the batch was committed: send it again") from failed[0]
        if failed:
            raise failed[0]
        return {
            start + row: answer
            for start, answers in zip(starts, written, strict=True)
            if not isinstance(answers, BaseException)
            for row, answer in answers.items()
        }

    def _result(self, index: int, sent: bytes, answer: SubmitAnswer | None) -> SubmitResult:
        if answer is None:
            return SubmitResult(index, sent)
        error = answer.error
        if error is None and answer.receipt is SubmitReceipt.CONFLICT:
            error = Conflict("the id or key is in use", first=answer.job_id)
        if error is not None:
            self._refused[error.code] += 1
        return SubmitResult(index, answer.job_id.bytes, answer.receipt, error)

    def _count(self, refused: Iterable[SubmitResult]) -> None:
        """Count refused jobs: once, with the answer, which is one error if the rest is not written either."""
        for one in refused:
            if one.error is not None:
                self._refused[one.error.code] += 1

    @staticmethod
    def _refusal(index: int, error: HeadgateError) -> SubmitResult:
        """A job that was refused before it reached the database; counted when its caller is answered."""
        # Without its traceback, which leads back to the request and would keep all of it in memory.
        return SubmitResult(index, b"", SubmitReceipt.REFUSED, error.with_traceback(None))


def taken(result: SubmitResult) -> SubmitResult:
    """The result of one job that was submitted alone. Raises Conflict if its id or key has another payload."""
    if result.receipt is SubmitReceipt.CONFLICT and result.error is not None:
        raise result.error
    return result


def _check_plain_counts(plain: PlainJobs) -> int:
    """How many plain jobs there are; raises TooLarge."""
    for name, count in (
        ("ids", len(plain.ids)),
        ("payloads", len(plain.payloads)),
        ("priorities", len(plain.priorities)),
        ("unset_priorities", len(plain.unset_priorities)),
    ):
        if count > limits.SUBMIT_FLUSH_MAX_ROWS:
            raise TooLarge(f"plain.{name}", size=count, limit=limits.SUBMIT_FLUSH_MAX_ROWS, unit="jobs")
    return len(plain.ids)


def _check_count(count: int) -> None:
    if count > limits.SUBMIT_BATCH_MAX:
        raise TooLarge("jobs", size=count, limit=limits.SUBMIT_BATCH_MAX, unit="jobs")


def _size(rows: Rows) -> int:
    return sum(map(len, rows.payloads)) + JOB_BYTES * len(rows) + CALL_BYTES
