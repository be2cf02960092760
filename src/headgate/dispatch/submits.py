"""Submitting: many callers' jobs in one flush, answers after commit.

A flush whose fate is unknown is sent again as one whose ids may be known, so nothing is made twice. When the database
stays away, callers get an error after a few seconds; their own repeat is safe as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import uniform
from typing import TypeAlias
from uuid import UUID

from headgate.dispatch.claimer import Claimer
from headgate.dispatch.locked import LockedRows, LockedWrite
from headgate.dispatch.ports import SubmitRows, SubmitStore
from headgate.dispatch.tick_times import TickTimes
from headgate.dispatch.wakes import Wakes
from headgate.dispatch.writer import Account, GroupWriter
from headgate.domain.errors import HeadgateError, OutcomeUnknown, ReadOnly, RowLocked, StoreBusy, StoreUnavailable
from headgate.domain.jobs import SubmitAnswer
from headgate.domain.states import SubmitReceipt
from headgate.domain.tallies import Tallies

log = logging.getLogger("headgate.submit")
GIVE_UP_SECONDS = 5.0
QUEUE_ROWS, QUEUE_BYTES = 16_000, 32_000_000
"""What may wait to be submitted: a fraction of a second's worth. One stream alone may have half of it, which is what
one `submit_many` of the SDK has on its way. More would not be written sooner, only answered later."""
FLUSH_ROWS, FLUSH_BYTES = 3_000, 3_000_000
"""More at once than other writers: a bulk submit waits for commits more than for anything else, and jobs that no worker
works on yet are not delayed by it. In turns, medians: 2,000 at once 80,000 jobs/s, 4,000 at once 86,000; but whole
cycles lose some percent by 4,000."""
REST_FROM_ROWS, REST_TIMES, REST_MOST_SECONDS = 500, 2.0, 0.25
"""After a large flush during which outcomes had to wait, submits rest for so many times as long as it took. Else they
would take in twice what the same processors can then get done, and get less done for it (ADR 15)."""
SubmitAccount: TypeAlias = "Account[SubmitWrite]"
CLAIMED_ALONG_ROWS = 16
"""Flushes up to this size take along the claim of a demand that waits. Larger ones come under load, where claims of
their own run beside them."""


@dataclass(slots=True)
class SubmitWrite:
    """One frame's jobs."""

    flush: SubmitRows
    rows: int  # when it was put: a flush that others join grows
    size: int
    done: Callable[[Mapping[int, SubmitAnswer]], None]
    failed: Callable[[HeadgateError], None]

    def fail(self, error: HeadgateError) -> None:
        self.failed(error)


class Submitter:
    """The submit writer of an instance."""

    def __init__(
        self,
        store: SubmitStore,
        wakes: Wakes,
        times: TickTimes,
        *,
        claimer: Claimer | None = None,
        outcomes_wait: Callable[[], bool] = lambda: False,
        on_unblock: Callable[[], None] = lambda: None,
        on_passed_over: Callable[[int, UUID], None] = lambda _tenant_no, _job_id: None,
        tallies: Tallies | None = None,
    ) -> None:
        """Without a claimer, no submit takes along the claim of a demand that waits for its jobs."""
        self._store, self._wakes, self._times, self._claimer = store, wakes, times, claimer
        self._tallies = tallies or Tallies()
        self.writer: GroupWriter[SubmitWrite] = GroupWriter(
            "submits",
            self._write,
            max_rows=FLUSH_ROWS,
            max_bytes=FLUSH_BYTES,
            queue_rows=QUEUE_ROWS,
            queue_bytes=QUEUE_BYTES,
            rest=self._rest,
        )
        # Raises Overloaded if so much has no place now; and counts what is written without the queue.
        self.admit, self.holding = self.writer.admit, self.writer.holding
        self.locked = LockedRows(store, on_submitted=self.submitted, on_tried=self.look_again)
        self._on_unblock = on_unblock  # jobs that wait for others may be claimable
        self._on_passed_over = on_passed_over  # (tenant, job): a claim may have passed it over while it was locked
        self._outcomes_wait = outcomes_wait  # whether work that is done waits to be written
        self._callers: dict[str, SubmitAccount] = {}  # by tenant: as many as there are tenants

    def account_of_calls(self, tenant: str) -> SubmitAccount:
        """The account that all unary calls of a tenant share."""
        found = self._callers.get(tenant)
        if found is None:
            found = self._callers[tenant] = Account()
        return found

    def new_account(self) -> SubmitAccount:
        """The account of one stream."""
        return Account()

    def put(
        self,
        flush: SubmitRows,
        size: int,
        account: SubmitAccount | None = None,
        *,
        done: Callable[[Mapping[int, SubmitAnswer]], None],
        failed: Callable[[HeadgateError], None],
        admitted: bool = False,
    ) -> None:
        """Queue one frame's jobs. Raises Overloaded, unless it was admitted just now."""
        self.writer.put(SubmitWrite(flush, len(flush), size, done=done, failed=failed), account, admitted=admitted)

    def submitted(self, flush: SubmitRows, answers: Mapping[int, SubmitAnswer], *, claimed: bool = False) -> None:
        """Jobs were committed, here or by another way: count them, and wake who waits for them, now or when due.

        `answers`: of those that were not simply created.
        """
        if not len(flush):
            return
        self._tallies.submitted(flush.topic_nos, _not_created(answers) if answers else ())
        mean_bytes = sum(map(len, flush.payloads)) / len(flush)
        self._wakes.jobs_submitted(set(flush.topic_nos), mean_bytes, claimed=claimed)
        delay_ms, run_at = flush.soonest()
        if delay_ms is not None:
            self._times.due_in(delay_ms / 1000)
        if run_at is not None:
            self._times.due_at(run_at)

    def look_again(self, flush: SubmitRows, answers: Mapping[int, SubmitAnswer]) -> None:
        """Some were submitted with dependencies: follow what that may mean for their parents and for them."""
        if flush.may_unblock:
            self._on_unblock()
            for tenant_no, job_id in flush.passed_over(answers):
                self._on_passed_over(tenant_no, job_id)

    async def submit(
        self, flush: SubmitRows, *, size: int, account: SubmitAccount | None = None, admitted: bool = False
    ) -> Mapping[int, SubmitAnswer]:
        """Submit and wait: for unary calls."""
        answer: asyncio.Future[Mapping[int, SubmitAnswer]] = asyncio.get_running_loop().create_future()
        self.put(
            flush,
            size,
            account,
            done=lambda answers: None if answer.done() else answer.set_result(answers),
            failed=lambda error: None if answer.done() else answer.set_exception(error),
            admitted=admitted,
        )
        return await answer

    def _rest(self, rows: int, spent: float) -> float:
        """Work that was taken goes first. Where no outcomes wait (few workers, or slow ones), nothing is held back."""
        if rows < REST_FROM_ROWS or not self._outcomes_wait():
            return 0.0
        return min(REST_MOST_SECONDS, REST_TIMES * spent)

    async def _write(self, writes: list[SubmitWrite]) -> None:
        flush = writes[0].flush
        starts = [0]
        for write in writes[1:]:
            starts.append(len(flush))
            flush.extend(write.flush)
        # extend() has made the first write's rows the whole flush: its own length is where the second one starts.
        lengths = [*(stop - start for start, stop in pairwise(starts)), len(flush) - starts[-1]]
        exceptions, unknown = await self._submit_and_claim(flush)
        claimed = exceptions is not None
        if exceptions is None:
            exceptions, unknown = await self._until_given_up(flush, unknown=unknown)
        self.submitted(flush, exceptions, claimed=claimed)
        for write, start, length in zip(writes, starts, lengths, strict=True):
            answers: dict[int, SubmitAnswer] = {}
            if exceptions:
                rows = range(length)
                answers = {row: exceptions[start + row] for row in rows if start + row in exceptions}
            locked = [row for row, answer in answers.items() if isinstance(answer.error, RowLocked)]
            if locked:
                left = flush.pick([start + row for row in locked])
                self.locked.put(LockedWrite(left, locked, length, answers, write.done, write.failed, unknown=unknown))
            else:
                write.done(answers)

    async def _submit_and_claim(self, flush: SubmitRows) -> tuple[Mapping[int, SubmitAnswer] | None, bool]:
        """Submit and claim in one call if a demand waits for these jobs.

        Returns None if they are still to be submitted, and whether they may have been committed nevertheless.
        """
        if self._claimer is None or not 0 < len(flush) <= CLAIMED_ALONG_ROWS or not flush.plain:
            return None, False
        try:
            answers = await self._claimer.submit_and_claim(flush)
            if answers is not None:
                await asyncio.sleep(0)  # the job is on its way first, then its receipt
        except (StoreUnavailable, OutcomeUnknown, StoreBusy) as error:
            log.warning("submit_and_claim_failed rows=%d error=%s", len(flush), error)
            flush.mark_resent()
            return None, isinstance(error, OutcomeUnknown)
        except HeadgateError as error:  # about one of the rows, most likely: by itself, the flush finds which
            log.warning("submit_and_claim_refused rows=%d error=%s", len(flush), error)
            return None, False
        return answers, False

    async def _until_given_up(self, flush: SubmitRows, *, unknown: bool) -> tuple[Mapping[int, SubmitAnswer], bool]:
        """`unknown`: it may have been committed by an earlier try, and then no error of a later one denies that."""
        deadline, wait = time.monotonic() + GIVE_UP_SECONDS, 0.05
        while True:
            try:
                answers = await self._store.submit(flush)
                self.look_again(flush, answers)
                return answers, unknown
            except HeadgateError as error:
                unknown = unknown or isinstance(error, OutcomeUnknown)
                passing = isinstance(error, StoreUnavailable | OutcomeUnknown | StoreBusy) or (
                    isinstance(error, ReadOnly) and error.may_pass
                )
                if not passing or time.monotonic() + wait > deadline:
                    if unknown and not isinstance(error, OutcomeUnknown):
                        raise OutcomeUnknown(
                            f"{error}; an earlier try may have been committed: send it again"
                        ) from error
                    raise
                log.warning("submits_delayed rows=%d error=%s", len(flush), error)
                flush.mark_resent()
                await asyncio.sleep(wait * uniform(0.5, 1.0))  # noqa: S311 - jitter
                wait = min(1.0, wait * 2)


def _not_created(answers: Mapping[int, SubmitAnswer]) -> list[int]:
    return [index for index, answer in answers.items() if answer.receipt is not SubmitReceipt.CREATED]
