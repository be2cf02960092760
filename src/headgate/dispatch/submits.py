"""Submitting: many callers' jobs in one flush, answers after commit.

A flush whose fate is unknown is sent again as not fresh, so nothing is made twice. When the database stays away,
callers are told so after a few seconds; their own repeat is safe as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from random import uniform
from typing import Protocol, TypeAlias, Unpack

from headgate.dispatch.locked import LockedRows, LockedWrite
from headgate.dispatch.ports import Claim, ClaimCall, ClaimedJobs, SubmitAnswerRow, SubmitRows, SubmitStore
from headgate.dispatch.writer import Account, GroupWriter
from headgate.domain.errors import HeadgateError, OutcomeUnknown, RowLocked, StoreBusy, StoreUnavailable

log = logging.getLogger("headgate.submit")
GIVE_UP_SECONDS = 5.0
QUEUE_ROWS, QUEUE_BYTES = 16_000, 32_000_000
"""What may wait to be submitted: a fraction of a second's worth. One stream alone may have half of it, which is what
one `submit_many` of the SDK has on its way. More would not be written sooner, only answered later."""
FLUSH_ROWS, FLUSH_BYTES = 3_000, 3_000_000
"""More at once than other writers: a bulk submit waits for commits more than for anything else, and jobs that nobody
works on yet are not held up by it. In turns, medians: 2,000 at once 80,000 jobs/s, 4,000 at once 86,000; but whole
cycles lose some percent by 4,000."""
CALL_BYTES = 4_000
"""What a unary call that waits keeps in memory besides its job."""
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
    size: int
    done: Callable[[Mapping[int, SubmitAnswerRow]], None]
    failed: Callable[[HeadgateError], None]
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(self.flush)

    def fail(self, error: HeadgateError) -> None:
        self.failed(error)


class OnSubmitted(Protocol):
    """Topics that have new jobs; how many bytes one has on average; whether they were claimed for already."""

    def __call__(self, topic_nos: set[int], mean_bytes: float, /, *, claimed: bool) -> None: ...


class Submitter:
    """The submit writer of an instance."""

    def __init__(
        self,
        store: SubmitStore,
        *,
        on_submitted: OnSubmitted,
        claim_with: Callable[[int, Claim], Awaitable[None]] | None = None,
        on_due_in: Callable[[float], None] = lambda _: None,
        on_due_at: Callable[[datetime], None] = lambda _: None,
        outcomes_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._on_submitted = on_submitted  # topics that have new jobs, once they are committed; their mean weight
        self._claim_with = claim_with  # claims for a topic by a call that submits to it, if anybody waits for that
        # When the first of those that must wait falls due: in so many seconds, or by the database's clock.
        self._on_due_in, self._on_due_at = on_due_in, on_due_at
        self.writer: GroupWriter[SubmitWrite] = GroupWriter(
            "submits",
            self._write,
            max_rows=FLUSH_ROWS,
            max_bytes=FLUSH_BYTES,
            queue_rows=QUEUE_ROWS,
            queue_bytes=QUEUE_BYTES,
            rest=self._rest,
        )
        self.locked = LockedRows(store, on_submitted=self.submitted)
        self._outcomes_wait = outcomes_wait  # whether work that is done waits to be written
        self._callers: dict[str, SubmitAccount] = {}  # by tenant: as many as there are tenants

    def account_of_calls(self, tenant: str) -> SubmitAccount:
        """The account that all unary calls of a tenant share."""
        found = self._callers.get(tenant)
        if found is None:
            found = self._callers[tenant] = Account()
        return found

    def admit(self, rows: int, size: int, account: SubmitAccount) -> None:
        """Raises Overloaded if so much has no place now: asked before a frame is read any further."""
        self.writer.admit(rows, size, account)

    def put(self, write: SubmitWrite, account: SubmitAccount | None = None, *, admitted: bool = False) -> None:
        """Queue one frame's jobs. Raises Overloaded, unless it was admitted just now."""
        self.writer.put(write, account, admitted=admitted)

    def submitted(self, flush: SubmitRows, *, claimed: bool = False) -> None:
        """Jobs were committed, here or by another way: let dispatch know."""
        if not len(flush):
            return
        mean_bytes = sum(map(len, flush.payloads)) / len(flush)
        self._on_submitted(set(flush.topic_nos), mean_bytes, claimed=claimed)
        delay_ms, run_at = flush.soonest()
        if delay_ms is not None:
            self._on_due_in(delay_ms / 1000)
        if run_at is not None:
            self._on_due_at(run_at)

    async def submit(
        self, flush: SubmitRows, *, size: int, account: SubmitAccount | None = None, admitted: bool = False
    ) -> Mapping[int, SubmitAnswerRow]:
        """Submit and wait: for unary calls."""
        answer: asyncio.Future[Mapping[int, SubmitAnswerRow]] = asyncio.get_running_loop().create_future()
        self.put(
            SubmitWrite(
                flush,
                size,
                done=lambda answers: None if answer.done() else answer.set_result(answers),
                failed=lambda error: None if answer.done() else answer.set_exception(error),
            ),
            account,
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
        odd, unknown = await self._claiming_along(flush)
        claimed = odd is not None
        if odd is None:
            odd, unknown = await self._until_given_up(flush, unknown=unknown)
        self.submitted(flush, claimed=claimed)
        for write, start, length in zip(writes, starts, lengths, strict=True):
            answers = {place: odd[start + place] for place in range(length) if start + place in odd} if odd else {}
            locked = [place for place, answer in answers.items() if isinstance(answer.error, RowLocked)]
            if locked:
                rows = flush.pick([start + place for place in locked])
                self.locked.put(LockedWrite(rows, locked, length, answers, write.done, write.failed, unknown=unknown))
            else:
                write.done(answers)

    async def _claiming_along(self, flush: SubmitRows) -> tuple[Mapping[int, SubmitAnswerRow] | None, bool]:
        """Submit and claim in one call if somebody waits for these jobs; None if it was not done, True if who knows."""
        if self._claim_with is None or not 0 < len(flush) <= CLAIMED_ALONG_ROWS or not flush.plain:
            return None, False
        said: Mapping[int, SubmitAnswerRow] | None = None
        unknown = False

        async def claim(**asked: Unpack[ClaimCall]) -> ClaimedJobs:
            nonlocal said
            answers, got = await self._store.submit_and_claim(flush, **asked)
            said = answers
            return got

        try:
            await self._claim_with(flush.topic_nos[0], claim)
            if said is not None:
                await asyncio.sleep(0)  # the job is on its way first, then its receipt
        except (StoreUnavailable, OutcomeUnknown, StoreBusy) as error:
            log.warning("submit_and_claim_failed rows=%d error=%s", len(flush), error)
            unknown = isinstance(error, OutcomeUnknown)
            flush.never_fresh()
        except HeadgateError as error:  # about one of the rows, most likely: by itself, the flush finds which
            log.warning("submit_and_claim_refused rows=%d error=%s", len(flush), error)
        return said, unknown

    async def _until_given_up(self, flush: SubmitRows, *, unknown: bool) -> tuple[Mapping[int, SubmitAnswerRow], bool]:
        """`unknown`: it may have been committed by an earlier try, and then no error of a later one denies that."""
        deadline, wait = time.monotonic() + GIVE_UP_SECONDS, 0.05
        while True:
            try:
                return await self._store.submit(flush), unknown
            except HeadgateError as error:
                unknown = unknown or isinstance(error, OutcomeUnknown)
                passing = isinstance(error, StoreUnavailable | OutcomeUnknown | StoreBusy)
                if not passing or time.monotonic() + wait > deadline:
                    if unknown and not isinstance(error, OutcomeUnknown):
                        raise OutcomeUnknown(
                            f"{error}; an earlier try may have been committed: send it again"
                        ) from error
                    raise
                log.warning("submits_delayed rows=%d error=%s", len(flush), error)
                flush.never_fresh()
                await asyncio.sleep(wait * uniform(0.5, 1.0))  # noqa: S311 - jitter
                wait = min(1.0, wait * 2)


def sizes(payloads: Sequence[bytes]) -> int:
    """Bytes that a write keeps in memory."""
    return sum(map(len, payloads)) + 200 * len(payloads)
