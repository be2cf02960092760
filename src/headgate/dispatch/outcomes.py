"""The outcome writer: outcomes of many sessions in one flush, receipts after commit.

Outcomes are idempotent by job and epoch, so a flush whose fate is unknown is simply sent again; it is retried for as
long as the database is away, because a worker's finished work must not be lost to an outage. Workers wait for their
receipts. A flush that the database refuses for another reason, or that runs into a bug of ours, is halved until the row
it fails on stands alone: one caller's bad row is never another's error.

Every session has an account, the unary calls of a tenant share one, and all of a tenant's share its part of the queue
and of each flush (`writer`). Outcomes of jobs that their sender was not given here are written by a second writer, on a
connection of its own, with a short queue: to find that a job does not exist costs far more than to settle one that does
(ADR 27). There, too, the topics of a restricted token are checked: what it may not touch is answered as unknown.

One caller's lock does not delay another caller. A row that another transaction has locked is waited for a tenth of a
second; then the flush is written without it. Its sender gets the receipt LOCKED (nothing is decided), and it is tried
again by itself, without waiting, until the row is free or half a minute is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from random import uniform
from typing import Final
from uuid import UUID

from headgate.dispatch.delivery import Answer, Delivery
from headgate.dispatch.outcome_writes import LOCKED, OutcomeWrite, Part, halves, is_locked, permitted, release, tally
from headgate.dispatch.ports import OutcomeStore
from headgate.dispatch.writer import Account, GroupWriter, TenantAccount
from headgate.domain import failpoints
from headgate.domain.errors import (
    HeadgateError,
    InternalError,
    OutcomeUnknown,
    ReadOnly,
    SchemaMismatch,
    StorageFull,
    StoreBusy,
    StoreUnavailable,
)
from headgate.domain.outcomes import Abandon, Outcome
from headgate.domain.states import Receipt, State
from headgate.domain.tallies import Mark, Tallies

log = logging.getLogger("headgate.dispatch")
RETRIED = (StoreUnavailable, OutcomeUnknown, StoreBusy, StorageFull, ReadOnly)
MOST_REFUSALS = 100
"""Refused statements after which a flush of which nothing could be written is given up: then it is not the rows. Half
as many, and a single write is: it takes about 11 to find one bad row among 2,000."""

MOST_LOCK_REFUSALS: Final = 12
"""Lock timeouts of 15 ms in one flush from which locked jobs were left out: something else is locked, such as the
usage of a limit. It takes 11 halvings to find one row of 2,000; then what is left counts as locked."""
QUEUE_ROWS: Final = 60_000
"""Outcomes that may wait. A session alone may have a third of it: what the SDK has unanswered at most."""
UNMATCHED_QUEUE_ROWS, UNMATCHED_QUEUE_BYTES, UNMATCHED_FLUSH_ROWS = 20_000, 16_000_000, 1_000
UNMATCHED_REST_ROWS: Final = 200
"""After a flush of so many outcomes that match no delivery, that writer rests for as long as it took, so that at most
half of one processor of the database goes into looking for jobs that do not exist."""
UNMATCHED_REST_SECONDS: Final = 0.5
"""The longest such rest: a flush that took longer mostly waited, as in an outage, and used no processor."""
LOCKED_SECONDS: Final = 30.0
"""How long an outcome whose row is locked is tried again here. Its sender may send it again at any time."""
LOCKED_MOST: Final = 10_000
"""Outcomes that are tried again; more are their senders' to send again."""
_TRY_FIRST, _TRY_LONGEST = 0.1, 1.0


class OutcomeWriter:
    """Settles, tells the senders, and tells who waits for results."""

    def __init__(
        self,
        store: OutcomeStore,
        *,
        on_returned: Callable[[int, UUID], None],
        on_final: Callable[[int, UUID], None],
        awaited: Callable[[], bool],
        on_due: Callable[[datetime], None] = lambda _: None,
        on_limit_opened: Callable[[set[int]], None] = lambda _: None,
        on_unblock: Callable[[], None] = lambda: None,
        on_webhook: Callable[[], None] = lambda: None,
        unmatched: bool = False,
        tallies: Tallies | None = None,
    ) -> None:
        """`unmatched`: for outcomes of jobs that were not given to their sender here."""
        self._store, self._tallies = store, tallies or Tallies()
        self._on_returned = on_returned  # (tenant, job): a job is claimable again, maybe below the watermark
        self._on_final = on_final  # (tenant, job): a job has ended
        self._on_limit_opened = on_limit_opened  # topics in which a limit lets others start now
        self._on_unblock = on_unblock  # jobs that waited for some of these may be claimable
        self._on_webhook = on_webhook  # events of some of these are to be delivered
        self._awaited = awaited  # whether anybody here waits for a result at all
        self._on_due = on_due  # when, by the database's clock, a job of this flush falls due again
        self._locked: set[tuple[int, UUID, int]] = set()  # (tenant, job, epoch): outcomes that are tried again
        self._unmatched = unmatched
        self.writer: GroupWriter[OutcomeWrite] = (
            GroupWriter(
                "outcomes of jobs that were not given to their sender",
                self._write,
                max_rows=UNMATCHED_FLUSH_ROWS,
                queue_rows=UNMATCHED_QUEUE_ROWS,
                queue_bytes=UNMATCHED_QUEUE_BYTES,
                rest=unmatched_rest,
            )
            if unmatched
            else GroupWriter("outcomes", self._write, queue_rows=QUEUE_ROWS)
        )
        # By tenant, its account and that of its calls: as many as there are tenants.
        self._tenants: dict[int, tuple[TenantAccount[OutcomeWrite], Account[OutcomeWrite]]] = {}

    def put(self, write: OutcomeWrite) -> None:
        """Queue one frame's outcomes, in the account of its session, or of its tenant's calls. Raises Overloaded."""
        self.writer.put(write, self._account(write))

    def _account(self, write: OutcomeWrite) -> Account[OutcomeWrite]:
        session = write.session
        if session is not None and (account := session.accounts.get(self)) is not None:
            return account
        of_tenant = self._tenants.get(write.tenant_no)
        if of_tenant is None:
            tenant: TenantAccount[OutcomeWrite] = TenantAccount()
            of_tenant = self._tenants[write.tenant_no] = (tenant, Account(tenant))
        if session is None:
            return of_tenant[1]
        account = session.accounts[self] = Account(of_tenant[0])
        return account

    def abandon_unsent(self, delivery: Delivery) -> None:
        """Abandon jobs that never reached a worker: at once, at no cost. If this fails, the lease brings them back."""
        if failpoints.armed:
            failpoints.armed.touch("abandon_unsent.before_queue")
        back = [(job_id, epoch, Abandon()) for job_id, epoch in zip(delivery.ids, delivery.epochs, strict=True)]
        marks = {job_id: (0, topic_no, 0.0) for job_id, topic_no in zip(delivery.ids, delivery.topic_nos, strict=True)}
        self._settle_undelivered(delivery.tenant_no, back, "never sent", marks)

    def end_late(self, tenant_no: int, late: Sequence[tuple[UUID, int, Outcome]]) -> None:
        """Settle jobs that were claimed after their deadline. If this fails, the lease brings them back."""
        self._settle_undelivered(tenant_no, late, "past its deadline")

    def _settle_undelivered(
        self,
        tenant_no: int,
        jobs: Sequence[tuple[UUID, int, Outcome]],
        problem: str,
        marks: Mapping[UUID, Mark] | None = None,
    ) -> None:
        write = OutcomeWrite(
            tenant_no,
            (),
            (),
            (),
            jobs,
            done=lambda _: None,
            failed=lambda error: log.warning(
                "undelivered_not_settled reason=%s jobs=%d error=%s", problem, len(jobs), error
            ),
            marks=marks,
        )
        try:
            self.put(write)
        except HeadgateError as error:
            write.fail(error)

    async def _write(self, writes: list[OutcomeWrite]) -> None:
        answers: list[dict[int, Answer]] = [{} for _ in writes]
        parts = [(write, range(write.rows), answer) for write, answer in zip(writes, answers, strict=True)]
        refused: dict[int, HeadgateError] = {}
        if self._unmatched and any(write.topics is not None for write in writes):
            known, refused = await self._topics_of_restricted(writes)
            parts = permitted([part for part in parts if id(part[0]) not in refused], known)
        failed = refused | await self._settle(parts)
        for write, answer in zip(writes, answers, strict=True):
            if failed and id(write) in failed:
                write.fail(failed[id(write)])
            else:
                self._settled(write, answer)
                if self._locked or answer:
                    self._try_locked_again(write, answer)

    async def _topics_of_restricted(
        self, writes: Sequence[OutcomeWrite]
    ) -> tuple[dict[int, Mapping[UUID, str]], dict[int, HeadgateError]]:
        """The topics of the jobs that restricted tokens report, by tenant: one look-up for each tenant.

        And the error of each write, by its identity, whose tenant's topics could not be looked up.
        """
        restricted: dict[int, list[OutcomeWrite]] = {}
        for write in writes:
            if write.topics is not None:
                restricted.setdefault(write.tenant_no, []).append(write)
        known: dict[int, Mapping[UUID, str]] = {}
        refused: dict[int, HeadgateError] = {}
        for tenant_no, theirs in restricted.items():
            ids = [write.key(row)[1] for write in theirs for row in range(write.rows)]
            try:
                known[tenant_no] = await self._topics_of(tenant_no, ids)
            except HeadgateError as error:
                refused |= dict.fromkeys(map(id, theirs), error)
            except Exception as error:  # a bug fails this tenant's writes only
                log.exception("topics_not_known tenant=%d rows=%d", tenant_no, len(ids))
                refused |= dict.fromkeys(map(id, theirs), InternalError("outcomes", error))
        return known, refused

    async def _topics_of(self, tenant_no: int, ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """Ask again while the database is away: an outage does not refuse an outcome."""
        wait = 0.05
        while True:
            try:
                return await self._store.topics_of(tenant_no, ids)
            except RETRIED as error:
                log.warning("outcomes_delayed rows=%d error=%s", len(ids), error)
                await asyncio.sleep(wait * uniform(0.5, 1.0))  # noqa: S311 - jitter
                wait = min(2.0, wait * 2)

    async def _settle(self, parts: Sequence[Part]) -> dict[int, HeadgateError]:
        """Write rows of writes, and note their answers; returns what is wrong with whole writes, by their identity.

        Raises what concerns none of them in particular.
        """
        failed: dict[int, HeadgateError] = {}
        refusals: Counter[int] = Counter()
        locks = 0
        written = False
        waiting = self._apart(parts) if self._locked else [parts]
        while waiting:
            part = [one for one in waiting.pop() if id(one[0]) not in failed] if failed else waiting.pop()
            try:
                if part:
                    await self._settle_part(part)
                    written = True
            except Exception as cause:
                write, rows, answers = part[0]
                error = cause if isinstance(cause, HeadgateError) else InternalError("outcomes", cause)
                if error is not cause:  # a bug of ours: whose row it is about can be found like that of any other error
                    log.exception("settle_failed rows=%d", sum(len(rows) for _, rows, _ in part))
                if isinstance(error, StoreBusy) and error.locked:
                    locks += 1
                    if locks >= MOST_LOCK_REFUSALS or (len(part) == 1 and len(rows) == 1):
                        for _, rows, answers in part:
                            answers.update(dict.fromkeys(rows, LOCKED))
                    else:
                        waiting += reversed(halves(part))
                    continue
                refusals[id(write) if len(part) == 1 else 0] += 1
                if isinstance(error, (*RETRIED, SchemaMismatch)) or (not written and refusals.total() > MOST_REFUSALS):
                    if error is cause:
                        raise
                    raise error from cause
                if refusals[id(write)] > MOST_REFUSALS // 2:
                    failed[id(write)] = error
                elif len(part) > 1 or len(rows) > 1:
                    # The front half is written first: of a job's two outcomes the first one counts.
                    waiting += reversed(halves(part))
                else:
                    log.warning("outcome_refused tenant=%d error=%s", write.tenant_no, error)
                    answers[rows[0]] = error.with_traceback(None)
        return failed

    def _apart(self, parts: Sequence[Part]) -> list[Sequence[Part]]:
        """What was found locked before is written last, by itself: it may cost time to find out what it waits for."""
        again = {
            id(write)
            for write, _, _ in parts
            if write.tries or any(write.key(row) in self._locked for row in range(write.rows))
        }
        last, first = [[one for one in parts if (id(one[0]) in again) is found] for found in (True, False)]
        return [part for part in (last, first) if part]  # taken from the end

    async def _settle_part(self, parts: Sequence[Part]) -> None:
        wait = 0.05
        skip_locked = bool(self._locked)
        while True:
            flush = self._store.new_outcomes()
            flush.skip_locked = skip_locked
            flush.unmatched = self._unmatched
            added: list[Sequence[int]] = []
            for write, rows, _ in parts:
                done, first_other = slice(rows.start, rows.stop), len(write.ids)
                others = write.others[max(0, rows.start - first_other) : max(0, rows.stop - first_other)]
                indexes: Sequence[int] = flush.add_completed(
                    write.tenant_no, write.ids[done], write.epochs[done], write.results[done]
                )
                if others:
                    indexes = [*indexes, *(flush.add(write.tenant_no, *other) for other in others)]
                added.append(indexes)
            try:
                exceptions = await self._store.settle(flush)
            except RETRIED as error:
                if isinstance(error, StoreBusy) and error.locked:
                    if skip_locked:
                        raise
                    skip_locked = True
                    continue
                log.warning("outcomes_delayed rows=%d error=%s", sum(len(rows) for _, rows, _ in parts), error)
                await asyncio.sleep(wait * uniform(0.5, 1.0))  # noqa: S311 - jitter
                wait = min(2.0, wait * 2)
                continue
            if flush.topics_with_capacity:
                self._on_limit_opened(flush.topics_with_capacity)
            if flush.unblocks:
                self._on_unblock()
            if flush.webhooks:
                self._on_webhook()
            if exceptions:
                for (_, rows, answers), indexes in zip(parts, added, strict=True):
                    found = zip(rows, indexes, strict=True)
                    answers.update({row: exceptions[index] for row, index in found if index in exceptions})
            return

    def _settled(self, write: OutcomeWrite, answers: Mapping[int, Answer]) -> None:
        tally(self._tallies, write, release(write, answers), answers, time.monotonic())
        due: datetime | None = None
        for row, (job_id, _, _) in enumerate(write.others, len(write.ids)):
            answer = answers.get(row)
            if answer is None or isinstance(answer, HeadgateError) or answer.receipt is not Receipt.APPLIED:
                continue
            if answer.state is State.PENDING:
                self._on_returned(write.tenant_no, job_id)
            elif answer.state is not None and answer.state.is_final:
                self._on_final(write.tenant_no, job_id)
            elif answer.run_at is not None:
                due = answer.run_at if due is None else min(due, answer.run_at)
        if due is not None:
            self._on_due(due)
        if self._awaited():
            for row, job_id in enumerate(write.ids):
                if row not in answers:
                    self._on_final(write.tenant_no, job_id)
        write.done(answers)

    def _try_locked_again(self, write: OutcomeWrite, answers: Mapping[int, Answer]) -> None:
        """Try the rows of a write that are locked again in a moment, unless that is about to be done already."""
        loop = asyncio.get_running_loop()
        if write.tries:
            self._forget(write)
        locked = [row for row, answer in answers.items() if is_locked(answer)]
        if not locked:
            return
        again = OutcomeWrite(
            write.tenant_no, [], [], [], [], done=lambda _: None, failed=lambda _: None, session=write.session
        )
        again.tries, again.marks = write.tries + 1, write.marks
        again.until = write.until or loop.time() + LOCKED_SECONDS
        if not write.tries:
            log.warning("outcomes_locked rows=%d first=%s", len(locked), write.key(locked[0])[1])
        if loop.time() > again.until:
            log.warning("outcomes_given_up rows=%d reason=locked first=%s", len(locked), write.key(locked[0])[1])
            return
        kept: list[int] = []
        for row in sorted(locked):
            if (key := write.key(row)) in self._locked or len(self._locked) >= LOCKED_MOST:
                continue
            self._locked.add(key)
            kept.append(row)
        again.copy_rows(write, kept)
        if again.rows:
            wait = min(_TRY_LONGEST, _TRY_FIRST * 2**write.tries)
            loop.call_later(wait * uniform(0.75, 1.0), self._put_again, again)  # noqa: S311 - jitter

    def _put_again(self, write: OutcomeWrite) -> None:
        try:
            self.put(write)
        except HeadgateError:  # this instance stops, or has too much to do: their receipts said to send again
            self._forget(write)

    def _forget(self, write: OutcomeWrite) -> None:
        self._locked.difference_update(write.key(row) for row in range(write.rows))


def unmatched_rest(rows: int, spent: float) -> float:
    """How long the writer of unmatched outcomes rests after a flush of so many rows that took so many seconds."""
    return min(spent, UNMATCHED_REST_SECONDS) if rows >= UNMATCHED_REST_ROWS else 0.0
