"""Settling: any mix of outcomes, one call of `headgate.settle_v1`, one commit, a receipt each.

The flush keeps completions apart from everything else, because that is the hot path: a completion that was applied
comes back as nothing at all.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final, TypeAlias
from uuid import UUID

from headgate.domain import limits
from headgate.domain.dispatching import Settled
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.outcomes import Abandon, Completed, Failed, Nack, Outcome, Snooze, kind_of
from headgate.domain.states import OutcomeKind, Receipt, State
from headgate.domain.validation import check_integer, shown, to_ms
from headgate.store.arguments import check_parallel, check_tenant_no, checked_kind
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.partitions import fetch_into_days

SETTLE: Final = """
SELECT ord, receipt, state, run_at, note, topic_no
  FROM headgate.settle_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, 100)"""
SETTLE_UNLOCKED: Final = """
SELECT ord, receipt, state, run_at, note, topic_no
  FROM headgate.settle_unlocked_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, 15)"""

# While a stream of events wants completions; $17: leave out what is locked.
SETTLE_RECORDED: Final = """
SELECT ord, receipt, state, run_at, note, topic_no
  FROM headgate.settle_recorded_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"""


_Repeat: TypeAlias = tuple[int, int, UUID, int, Outcome]  # index, tenant, job, epoch, outcome
_NAMES: Final = (
    *("tenant_no", "counts", "ids", "epochs", "results", "tenant_no", "counts", "ids", "epochs", "kinds"),
    *("delays", "permanents", "reasons", "error types", "error messages", "error traces"),
)
APPLIED: Final = Settled(receipt=Receipt.APPLIED, state=State.COMPLETED)
LOCKED: Final = Settled(receipt=Receipt.LOCKED)


@dataclass(slots=True)
class _Done:
    """Completions of one tenant."""

    indexes: list[int] = field(default_factory=list)
    ids: list[UUID] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    results: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Other:
    """All other outcomes of one tenant."""

    indexes: list[int] = field(default_factory=list)
    ids: list[UUID] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    delays_ms: list[int | None] = field(default_factory=list)
    permanents: list[bool] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    error_types: list[str | None] = field(default_factory=list)
    error_messages: list[str | None] = field(default_factory=list)
    error_traces: list[str | None] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class OutcomeFlush:
    """Outcomes for one settle call, each at the index in which it was added (from 0)."""

    _size: int = 0
    _done: dict[int, _Done] = field(default_factory=dict)
    _others: dict[int, _Other] = field(default_factory=dict)
    _seen: set[tuple[int, UUID]] = field(default_factory=set)
    _repeats: list[_Repeat] = field(default_factory=list)  # a job's second and later outcomes
    unmatched: bool = False  # reported by a caller that was not given these jobs
    recorded: bool = False  # note the completions for streams of events
    skip_locked: bool = False  # answer rows that others have locked with LOCKED; else such a row fails the call
    # Once it is settled: jobs that waited for some of these may be unblocked; events of some of these are to be
    # delivered; topics that may start more jobs.
    unblocks: bool = False
    webhooks: bool = False
    topics_with_capacity: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return self._size

    def add(self, tenant_no: int, job_id: UUID, epoch: int, outcome: Outcome) -> int:
        """Append one outcome and return its index. A job's second outcome waits for the verdict on its first."""
        if self._size >= limits.SETTLE_FLUSH_MAX_ROWS:
            raise TooLarge("outcomes", size=self._size + 1, limit=limits.SETTLE_FLUSH_MAX_ROWS, unit="rows")
        if not isinstance(outcome, Completed | Failed | Nack | Abandon | Snooze):
            raise InvalidInput("outcome", f"must be one of the five outcomes, got {shown(outcome)}")
        if tenant_no not in self._done and tenant_no not in self._others:
            check_tenant_no(tenant_no)
        # An epoch that was never given out is stale.
        check_integer(epoch, field="epoch", low=-limits.EPOCH_MAX, high=limits.EPOCH_MAX)
        index = self._size
        self._size += 1
        if (tenant_no, job_id) in self._seen:
            self._repeats.append((index, tenant_no, job_id, epoch, outcome))
            return index
        self._seen.add((tenant_no, job_id))
        if isinstance(outcome, Completed):
            done = self._done.setdefault(tenant_no, _Done())
            done.indexes.append(index)
            done.ids.append(job_id)
            done.epochs.append(epoch)
            done.results.append(outcome.result)
        else:
            self._add_other(index, tenant_no, job_id, epoch, outcome)
        return index

    def add_completed(
        self, tenant_no: int, ids: Sequence[UUID], epochs: Sequence[int], results: Sequence[bytes]
    ) -> range:
        """Append many completions, already checked, with no work per job; returns their indexes."""
        check_tenant_no(tenant_no)
        check_parallel("outcomes", len(ids), {"epochs": epochs, "results": results})
        start = self._size
        if not ids:  # else there is a statement for none: see settle_v1
            return range(start, start)
        if start + len(ids) > limits.SETTLE_FLUSH_MAX_ROWS:
            raise TooLarge("outcomes", size=start + len(ids), limit=limits.SETTLE_FLUSH_MAX_ROWS, unit="rows")
        pairs = set(zip(repeat(tenant_no), ids))
        if len(pairs) < len(ids) or not self._seen.isdisjoint(pairs):
            for job_id, epoch, result in zip(ids, epochs, results, strict=True):
                self.add(tenant_no, job_id, epoch, Completed(result=result))
            return range(start, self._size)
        self._seen |= pairs
        self._size += len(ids)
        done = self._done.setdefault(tenant_no, _Done())
        done.indexes += range(start, self._size)
        done.ids += ids
        done.epochs += epochs
        done.results += results
        return range(start, self._size)

    def _add_other(
        self, index: int, tenant_no: int, job_id: UUID, epoch: int, outcome: Failed | Nack | Abandon | Snooze
    ) -> None:
        other = self._others.setdefault(tenant_no, _Other())
        error = outcome.error if isinstance(outcome, Failed) else None
        other.indexes.append(index)
        other.ids.append(job_id)
        other.epochs.append(epoch)
        other.kinds.append(int(kind_of(outcome)))
        other.delays_ms.append(to_ms(outcome.delay) if isinstance(outcome, Nack | Snooze) else None)
        other.permanents.append(isinstance(outcome, Failed) and outcome.permanent)
        other.reasons.append(outcome.reason if isinstance(outcome, Nack) else None)
        other.error_types.append(error.type if error else None)
        other.error_messages.append(error.message if error else None)
        other.error_traces.append(error.traceback or None if error else None)

    def _jobs_at(self, indexes: Container[int]) -> set[tuple[int, UUID]]:
        """The jobs whose first outcomes are at these indexes."""
        return {
            (tenant_no, job_id)
            for by_tenant in (self._done, self._others)
            for tenant_no, part in by_tenant.items()
            for index, job_id in zip(part.indexes, part.ids, strict=True)
            if index in indexes
        }

    def _arguments(self) -> tuple[tuple[object, ...], list[int]]:
        """The call's arguments, and the index of each of its ords."""
        # Tenants ascending: all statements that wait for row locks take them in key order.
        done_by_tenant, others_by_tenant = dict(sorted(self._done.items())), dict(sorted(self._others.items()))
        done, others = list(done_by_tenant.values()), list(others_by_tenant.values())
        results = [result for part in done for result in part.results]
        arguments = (
            list(done_by_tenant),
            [len(part.ids) for part in done],
            [job_id for part in done for job_id in part.ids],
            [epoch for part in done for epoch in part.epochs],
            results if any(results) else [],
            list(others_by_tenant),
            [len(part.ids) for part in others],
            [job_id for part in others for job_id in part.ids],
            [epoch for part in others for epoch in part.epochs],
            [kind for part in others for kind in part.kinds],
            [delay for part in others for delay in part.delays_ms],
            [permanent for part in others for permanent in part.permanents],
            [reason for part in others for reason in part.reasons],
            [name for part in others for name in part.error_types],
            [message for part in others for message in part.error_messages],
            [trace for part in others for trace in part.error_traces],
        )
        indexes = [index for part in done for index in part.indexes]
        return arguments, indexes + [index for part in others for index in part.indexes]


async def settle(db: Connection, rows: object) -> dict[int, Settled]:
    """Write an OutcomeFlush; returns by index whatever is not simply a completion that was applied."""
    flush = checked_kind(rows, OutcomeFlush, field="outcomes")
    if not flush._size:
        return {}
    answers = await _settle_firsts(db, flush)
    if flush._repeats:
        answers |= await _settle_repeats(db, flush, answers)
    return answers


async def _settle_firsts(db: Connection, flush: OutcomeFlush) -> dict[int, Settled]:
    arguments, indexes = flush._arguments()
    with translating(writing=True, names=_NAMES):
        if flush.recorded:
            rows = await fetch_into_days(db, SETTLE_RECORDED, *arguments, flush.skip_locked)
        else:
            rows = await fetch_into_days(db, SETTLE_UNLOCKED if flush.skip_locked else SETTLE, *arguments)
    answers: dict[int, Settled] = {}
    for ord_, receipt, state, run_at, note, topic_no in rows:
        if note is None:
            answers[indexes[ord_ - 1]] = Settled(
                receipt=Receipt(receipt), state=None if state is None else State(state), run_at=run_at
            )
        elif note == "capacity":
            flush.topics_with_capacity.add(topic_no)
        elif note == "webhook":
            flush.webhooks = True
        else:
            flush.unblocks = True
    return answers


async def _settle_repeats(db: Connection, firsts: OutcomeFlush, answered: Mapping[int, Settled]) -> dict[int, Settled]:
    """A job's second and later outcomes, one after the other; equal ones are sent once, or a worker that stutters would
    cost a call for each. If its first one could not be decided, neither are they: the first one counts."""
    answers: dict[int, Settled] = {}
    locked = firsts._jobs_at({index for index, answer in answered.items() if answer.receipt is Receipt.LOCKED})
    said: dict[tuple[int, UUID, int, OutcomeKind], list[_Repeat]] = {}
    for row in firsts._repeats:
        index, tenant_no, job_id, epoch, outcome = row
        if (tenant_no, job_id) in locked:
            answers[index] = LOCKED
            continue
        said.setdefault((tenant_no, job_id, epoch, kind_of(outcome)), []).append(row)
    waiting = list(said.values())
    while waiting:
        flush = OutcomeFlush()
        flush.recorded = firsts.recorded
        flush.skip_locked = True  # rare, and its firsts are committed: failing now would tell them "duplicate"
        for (_, tenant_no, job_id, epoch, outcome), *_ in waiting:
            flush.add(tenant_no, job_id, epoch, outcome)
        found = await _settle_firsts(db, flush)
        firsts.topics_with_capacity |= flush.topics_with_capacity
        firsts.unblocks = firsts.unblocks or flush.unblocks
        firsts.webhooks = firsts.webhooks or flush.webhooks
        later = {index: None for index, *_ in flush._repeats}  # in their order
        for index, ((first, *_), *copies) in enumerate(waiting):
            if index in later:
                continue
            answer = found.get(index, APPLIED)
            if index in found:
                answers[first] = answer
            if answer.receipt is Receipt.APPLIED:
                answer = replace(answer, receipt=Receipt.DUPLICATE)
            answers |= {copy: answer for copy, *_ in copies}
        waiting = [waiting[index] for index in later]
    _renew_states(firsts._repeats, answers)
    return answers


def _renew_states(repeats: Sequence[_Repeat], answers: dict[int, Settled]) -> None:
    """A copy got the answer of its first one. Tell it the state that an outcome between the two has led to."""
    applied: dict[tuple[int, UUID], Settled] = {}
    asked: set[tuple[int, UUID, int, OutcomeKind]] = set()
    for index, tenant_no, job_id, epoch, outcome in repeats:
        job, said = (tenant_no, job_id), (tenant_no, job_id, epoch, kind_of(outcome))
        answer = answers.get(index, APPLIED)
        if answer.receipt is Receipt.APPLIED:
            applied[job] = answer
        elif said in asked and job in applied:
            answers[index] = replace(answer, state=applied[job].state, run_at=applied[job].run_at)
        asked.add(said)


class OutcomeCalls(Database):
    """Fits dispatch/ports.OutcomeStore."""

    new_outcomes = OutcomeFlush

    async def settle(self, rows: object) -> dict[int, Settled]:
        flush = checked_kind(rows, OutcomeFlush, field="outcomes")
        flush.recorded = self.records_completions
        async with self.lane("unmatched" if flush.unmatched else "settle").use("settle") as db:
            return await settle(db, flush)
