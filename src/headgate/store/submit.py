"""Submitting: one flush, one call of `headgate.submit_v1`, one commit."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final
from uuid import UUID

import asyncpg

from headgate.domain import limits
from headgate.domain.dependencies import waves
from headgate.domain.errors import (
    BacklogFull,
    DependencyCycle,
    HeadgateError,
    InvalidInput,
    OutcomeUnknown,
    ReadOnly,
    RowLocked,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from headgate.domain.ids import JobId
from headgate.domain.jobs import SubmitAnswer
from headgate.domain.states import SubmitReceipt
from headgate.domain.tenants import QUOTA_KINDS, exceeded
from headgate.store import dependencies
from headgate.store.arguments import checked_kind
from headgate.store.connect import Connection
from headgate.store.errors import DRIVER_ERRORS, translate, translating
from headgate.store.flush import COLUMNS, SubmitFlush, replace_value, submit_arguments, value_at
from headgate.store.partitions import ensure_partitions

SUBMIT: Final = """
SELECT ord, receipt, job_id, detail
  FROM headgate.submit_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
                          $20, $21, $22, $23)"""
TOPIC_NAME: Final = "SELECT name FROM headgate.topics WHERE topic_no = $1"
# One row's fault; everything else concerns the whole flush, and halving it would only repeat the error.
_OF_A_ROW: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.RaiseError,  # an operator's own trigger
)
_SEARCH_SECONDS: Final = 0.1
"""How long a flush that met a lock may be divided to find the row. Its neighbours wait for that."""
_SEARCH_LOCK_TIMEOUT: Final = "5ms"
_SET_LOCK_TIMEOUT: Final = "SELECT pg_catalog.set_config('lock_timeout', $1, $2)"
_ROUNDS_FOR_DEPENDENCIES: Final = 50  # each means that another submit or the end of a job came first
_ROUNDS_FOR_KEYS: Final = 8  # each costs a flush, and a caller might send thousands that release the key in turn


async def submit(db: Connection, rows: object) -> dict[int, SubmitAnswer]:
    """Write a SubmitFlush; returns answers by index for all that was not simply created.

    A row the database cannot take is found by halving the flush: its neighbours are written, in their order. Ids that
    occur twice in the flush are sent one after the other, so that the second is answered as a repeat.
    """
    flush = checked_kind(rows, SubmitFlush, field="jobs")
    if len(flush) > limits.SUBMIT_FLUSH_MAX_ROWS:
        raise TooLarge(
            "jobs", size=len(flush), limit=limits.SUBMIT_FLUSH_MAX_ROWS, unit="rows", hint="send less at once"
        )
    flush.check_shape()
    answers: dict[int, SubmitAnswer] = {}
    rounds = _rounds(flush)
    for nth, indexes in enumerate(rounds):
        # The first copy of an id is committed by the time the next is sent, so that one is a resend in any case.
        part = flush if len(rounds) == 1 else flush.pick(indexes, resent=nth > 0)
        for index, answer in (await _or_refused(part, _submit(db, part), first=nth == 0)).items():
            answers[indexes[index]] = answer
    return answers


async def _or_refused(
    part: SubmitFlush, answers: Awaitable[dict[int, SubmitAnswer]], *, first: bool
) -> dict[int, SubmitAnswer]:
    """The answers of one part of a flush. A first part raises what it meets: nothing was written."""
    try:
        return await answers
    except StoreError as error:
        if first:
            raise
        return _refused(part, error)


def _refused(flush: SubmitFlush, error: StoreError) -> dict[int, SubmitAnswer]:
    """A part that fails for good is refused alone, for what went before is committed. Where it may pass, all of it is
    sent again; no caller may then get the answer that nothing was written."""
    if isinstance(error, OutcomeUnknown):
        raise error
    if isinstance(error, StoreUnavailable | StoreBusy | ReadOnly):
        raise OutcomeUnknown(f"{error}; a part was committed before: send it again") from error
    return {
        index: SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=error)
        for index, job_id in enumerate(flush.ids)
    }


async def _submit(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    """Write rows with ids that all differ: the plain ones first, then those with dependencies, parents first."""
    if not flush.dependencies:
        return await _submit_plain(db, flush)
    asked = dict(zip(flush.dependency_indexes, flush.dependencies, strict=True))
    plain = [index for index in range(len(flush)) if index not in asked]
    answers: dict[int, SubmitAnswer] = {}
    written = bool(plain)
    if plain:
        found = await _submit_plain(db, flush.pick(plain))
        answers |= {plain[index]: answer for index, answer in found.items()}
    locked = {flush.ids[index] for index in plain if _is_locked(answers.get(index))}
    by_tenant: dict[int, list[int]] = {}
    for index in asked:
        by_tenant.setdefault(flush.tenant_nos[index], []).append(index)
    for _, indexes in sorted(by_tenant.items()):
        order, tangled = waves([flush.ids[index] for index in indexes], [asked[index].depends_on for index in indexes])
        for wave in order:
            theirs = [indexes[at] for at in wave]
            # A child whose parent waits for a lock waits with it: alone it would be refused for an unknown parent.
            late = [index for index in theirs if locked.intersection(asked[index].depends_on)]
            answers |= {index: _locked(flush.ids[index]) for index in late}
            theirs = [index for index in theirs if index not in late]
            found = await _submit_dependent(db, flush.pick(theirs), first=not written) if theirs else {}
            written = written or bool(theirs)
            answers |= {theirs[index]: answer for index, answer in found.items()}
            locked |= {flush.ids[index] for index in (*late, *theirs) if _is_locked(answers.get(index))}
        for at in tangled:
            job_id = JobId(flush.ids[indexes[at]])
            cycle = DependencyCycle(f"job {job_id} waits for a job that waits for it; none of them was made")
            answers[indexes[at]] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=job_id, error=cycle)
    return answers


async def _submit_dependent(db: Connection, flush: SubmitFlush, *, first: bool) -> dict[int, SubmitAnswer]:
    """Write rows of one tenant that have dependencies; those that another submit was quicker than, once more."""
    answers: dict[int, SubmitAnswer] = {}
    indexes: Sequence[int] = range(len(flush))
    for nth in range(_ROUNDS_FOR_DEPENDENCIES):  # nearly always one
        if not indexes:
            return answers
        try:
            found, again = await _write_dependent(db, flush)
        except StoreError as error:
            if first and nth == 0:
                raise
            found, again = _refused(flush, error), []
        answers |= {indexes[index]: answer for index, answer in found.items()}
        indexes, flush = [indexes[index] for index in again], flush.pick(again)
    for index, job_id in zip(indexes, flush.ids, strict=True):
        busy = StoreBusy(f"job {job_id}: others with its unique key came and went all the time; send it again")
        answers[index] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=busy)
    return answers


async def _write_dependent(
    db: Connection, flush: SubmitFlush, until: float | None = None
) -> tuple[dict[int, SubmitAnswer], list[int]]:
    """Dependencies and jobs in one transaction; answers, and the indexes that are to be tried again."""
    with translating(writing=True, names=COLUMNS):
        try:
            async with db.transaction():
                return await _add_and_write(db, flush)
        except asyncpg.CheckViolationError as error:
            if error.constraint_name is not None:
                return await _isolate(db, flush, error), []
            await ensure_partitions(db)  # see fetch_into_days
            return {}, list(range(len(flush)))
        except _OF_A_ROW as error:
            return await _isolate(db, flush, error), []
        except asyncpg.LockNotAvailableError:
            again: list[int] = []

            async def write(part: SubmitFlush, start: int, until: float) -> dict[int, SubmitAnswer]:
                answers, theirs = await _write_dependent(db, part, until)
                again.extend(start + index for index in theirs)
                return answers

            return await _past_lock(db, flush, write, until), again


async def _add_and_write(db: Connection, flush: SubmitFlush) -> tuple[dict[int, SubmitAnswer], list[int]]:
    tenant_no, resent = flush.tenant_nos[0], set(flush.resent_indexes)
    noted = await dependencies.add(
        db,
        tenant_no,
        flush.ids,
        flush.topic_nos,
        flush.dependencies,
        [index in resent for index in range(len(flush))],
    )
    answers: dict[int, SubmitAnswer] = {}
    again: list[int] = []
    pushed: list[dependencies.Pushed] = []
    for index, (code, subject) in sorted(noted.items()):
        if code == dependencies.AGAIN:
            again.append(index)
        elif code == dependencies.CHANGED_BEFORE:
            answers[index] = SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=JobId(subject))
        elif code == dependencies.HELD:
            answers[index] = SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=JobId(subject))
            pushed.append(_pushed(flush, index, subject))
        elif code != dependencies.KNOWN:
            error = dependencies.refusal(code, subject)
            answers[index] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(flush.ids[index]), error=error)
    left = [index for index in range(len(flush)) if index not in noted or noted[index][0] == dependencies.KNOWN]
    if left:
        part = flush.pick(left)
        for at, index in enumerate(left):
            if index in noted:  # submitted before: without dependencies, its id is not new in any case
                replace_value(part.flags, at, 0)
                part.resent_indexes = sorted({*part.resent_indexes, at})
        exceptions = await answers_of(db, part, await db.fetch(SUBMIT, *submit_arguments(part)))
        orphans = _orphans(part, exceptions) if part.keys and exceptions else []
        answers |= {left[at]: answer for at, answer in exceptions.items() if at not in orphans}
        again += [left[at] for at in orphans]
        not_made = [left[at] for at in exceptions if left[at] not in noted]
        await dependencies.remove(db, tenant_no, [(flush.ids[index], flush.dependencies[index]) for index in not_made])
    await dependencies.push(db, tenant_no, pushed)
    return answers, sorted(again)


def _pushed(flush: SubmitFlush, index: int, holder: UUID) -> dependencies.Pushed:
    return dependencies.Pushed(
        holder=holder,
        call_id=flush.ids[index],
        asked=flush.dependencies[index],
        run_at=value_at(flush.run_ats, index),
        delay_ms=value_at(flush.delays_ms, index),
        payload=flush.payloads[index],
        priority=value_at(flush.priorities, index) or 0,
    )


async def _submit_plain(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    """Write rows with ids that all differ; those that met a key held by a row which was then not made, once more."""
    answers: dict[int, SubmitAnswer] = {}
    indexes: Sequence[int] = range(len(flush))
    for nth in range(_ROUNDS_FOR_KEYS):  # nearly always one
        if not indexes:
            return answers
        found = await _or_refused(flush, _write(db, flush), first=nth == 0)
        orphans = _orphans(flush, found) if flush.keys and found else []
        answers |= {indexes[index]: answer for index, answer in found.items() if index not in orphans}
        if not orphans:
            return answers
        indexes, flush = [indexes[index] for index in orphans], flush.pick(orphans)
    for index, job_id in zip(indexes, flush.ids, strict=True):
        busy = StoreBusy(f"job {job_id}: its key was held again and again by submits that failed; send it again")
        answers[index] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=busy)
    return answers


async def _write(db: Connection, flush: SubmitFlush, until: float | None = None) -> dict[int, SubmitAnswer]:
    with translating(writing=True, names=COLUMNS):
        try:
            # In a transaction (behind a pooler all are) one bad row must not end all of it.
            async with db.transaction() if db.is_in_transaction() else nullcontext():
                rows = await db.fetch(SUBMIT, *submit_arguments(flush))
            return await answers_of(db, flush, rows)
        except _OF_A_ROW as error:
            return await _isolate(db, flush, error)
        except asyncpg.LockNotAvailableError:
            return await _past_lock(db, flush, lambda part, _, until: _write(db, part, until), until)


async def _past_lock(
    db: Connection,
    flush: SubmitFlush,
    write: Callable[[SubmitFlush, int, float], Awaitable[dict[int, SubmitAnswer]]],
    until: float | None,
) -> dict[int, SubmitAnswer]:
    """Another open transaction holds a row, and nothing was written: find whose it is, write the others now.

    By halves, in their order, waiting a moment only for each. That may take until `until`; of what is left then, jobs
    that no other caller can know are written, and all others are answered as locked: the caller tries those again.
    """
    if len(flush) == 1:
        return {0: _locked(flush.ids[0])}
    if until is None:
        async with _hasty(db):
            return await _past_lock(db, flush, write, time.monotonic() + _SEARCH_SECONDS)
    if time.monotonic() > until:
        suspects = {*flush.resent_indexes, *flush.key_indexes, *flush.dependency_indexes} or {*range(len(flush))}
        free = [index for index in range(len(flush)) if index not in suspects]
        answers = {index: _locked(flush.ids[index]) for index in suspects}
        found = await _write(db, flush.pick(free), until) if free else {}
        return answers | {free[index]: answer for index, answer in found.items()}
    half = len(flush) // 2
    answers = await write(flush.pick(range(half)), 0, until)
    rest = flush.pick(range(half, len(flush)))
    nothing = len(answers) == half and all(map(_is_locked, answers.values()))
    later = await _or_refused(rest, write(rest, half, until), first=nothing)
    return answers | {half + index: answer for index, answer in later.items()}


@asynccontextmanager
async def _hasty(db: Connection) -> AsyncIterator[None]:
    """Wait for locks for some milliseconds only."""
    before: str = await db.fetchval("SELECT pg_catalog.current_setting('lock_timeout')")
    local = db.is_in_transaction()
    await db.execute(_SET_LOCK_TIMEOUT, _SEARCH_LOCK_TIMEOUT, local)
    try:
        yield
    finally:
        with suppress(*DRIVER_ERRORS):  # a session that broke is not used again
            await db.execute(_SET_LOCK_TIMEOUT, before, local)


def _locked(job_id: UUID) -> SubmitAnswer:
    error = RowLocked(
        f"job {job_id}: another transaction that is still open has its id or key, or a job it waits for; nothing of it "
        "was stored: send it again when that has ended"
    )
    return SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=error)


def _is_locked(answer: SubmitAnswer | None) -> bool:
    return answer is not None and isinstance(answer.error, RowLocked)


async def answers_of(db: Connection, flush: SubmitFlush, rows: Sequence[Any]) -> dict[int, SubmitAnswer]:
    """Rows of `submit_v1` by index, which SQL counts from 1."""
    answers = {
        ord_ - 1: SubmitAnswer(receipt=SubmitReceipt(receipt), job_id=JobId(job_id))
        for ord_, receipt, job_id, _ in rows
    }
    for ord_, receipt, job_id, detail in rows:
        if receipt == SubmitReceipt.REFUSED:
            limit, used, whose = detail
            full: HeadgateError = (
                exceeded(QUOTA_KINDS[whose], limit=limit, current=used)
                if whose
                else BacklogFull(await _topic_name(db, flush.topic_nos[ord_ - 1]), limit=limit, waiting=used)
            )
            answers[ord_ - 1] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=full)
    return answers


async def _topic_name(db: Connection, topic_no: int) -> str:
    """For a message about what is decided and committed: no error of this question may hide that."""
    try:
        return str(await db.fetchval(TOPIC_NAME, topic_no))
    except DRIVER_ERRORS:
        return f"number {topic_no}"


def _rounds(flush: SubmitFlush) -> list[Sequence[int]]:
    """The indexes, by how often their (tenant, id) stood before in this flush: nearly always one round of all."""
    if len(set(flush.ids)) == len(flush.ids):
        return [range(len(flush))]
    rounds: list[list[int]] = []
    copies: dict[tuple[int, UUID], int] = {}
    for index, pair in enumerate(zip(flush.tenant_nos, flush.ids, strict=True)):
        nth = copies.get(pair, 0)
        copies[pair] = nth + 1
        if nth == len(rounds):
            rounds.append([])
        rounds[nth].append(index)
    return [*rounds]


def _orphans(flush: SubmitFlush, answers: Mapping[int, SubmitAnswer]) -> list[int]:
    """Places that were taken for repeats of a neighbour with their key, which was then not made.

    That happens when the neighbour's id was there with another body. Its key is free again, so these may try again.
    """
    topics, ids = flush.topic_nos, flush.ids
    keys = {index: (topics[index], key) for index, key in zip(flush.key_indexes, flush.keys, strict=True)}
    not_made = {
        (keys[index], ids[index])
        for index, answer in answers.items()
        if index in keys and answer.receipt is SubmitReceipt.CONFLICT and answer.job_id == ids[index]
    }
    return sorted(
        index
        for index, answer in answers.items()
        if index in keys and answer.job_id != ids[index] and (keys[index], answer.job_id) in not_made
    )


async def _isolate(db: Connection, flush: SubmitFlush, error: asyncpg.PostgresError) -> dict[int, SubmitAnswer]:
    if len(flush) == 1:
        reason = translate(error, writing=True, names=COLUMNS)
        refused = InvalidInput("job", f"{flush.ids[0]} cannot be stored ({reason})")
        return {0: SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(flush.ids[0]), error=refused)}
    half = len(flush) // 2
    answers = await _submit(db, flush.pick(range(half)))
    rest = flush.pick(range(half, len(flush)))
    later = await _or_refused(rest, _submit(db, rest), first=False)
    return answers | {half + index: answer for index, answer in later.items()}
