"""Submitting: one flush, one call of `headgate.submit_v1`, one commit."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from headgate.domain import limits
from headgate.domain.dependencies import waves
from headgate.domain.errors import (
    BacklogFull,
    DependencyCycle,
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
from headgate.domain.jobs import Submission, SubmitAnswer, Submitted
from headgate.domain.states import SubmitReceipt
from headgate.store import dependencies
from headgate.store.arguments import check_kind
from headgate.store.connect import Connection
from headgate.store.errors import DRIVER_ERRORS, translate, translating
from headgate.store.flush import COLUMNS, SubmitFlush, fill, replace_value, submit_arguments, value_at
from headgate.store.names import Names
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
_ROUNDS_FOR_KEYS: Final = 8  # each costs a flush, and somebody might send five thousand that free the key in turn


async def submit(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    """Write a flush; returns answers by 0-based place for all that was not simply created.

    A row the database cannot take is found by halving the flush: its neighbours are written, in their order. Ids that
    occur twice in the flush are sent one after the other, so that the second is answered as a repeat.
    """
    check_kind(flush, SubmitFlush, field="jobs")
    if len(flush) > limits.SUBMIT_FLUSH_MAX_ROWS:
        raise TooLarge(
            "jobs", size=len(flush), limit=limits.SUBMIT_FLUSH_MAX_ROWS, unit="rows", hint="send less at once"
        )
    flush.check_shape()
    answers: dict[int, SubmitAnswer] = {}
    rounds = _rounds(flush)
    for nth, places in enumerate(rounds):
        # The first copy of an id is committed by the time the next is sent, so that one is a resend whatever it says.
        part = flush if len(rounds) == 1 else flush.pick(places, resent=nth > 0)
        for place, answer in (await _or_refused(part, _submit(db, part), first=nth == 0)).items():
            answers[places[place]] = answer
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
    sent again; nobody may then be told that nothing was written."""
    if isinstance(error, OutcomeUnknown):
        raise error
    if isinstance(error, StoreUnavailable | StoreBusy | ReadOnly):
        raise OutcomeUnknown(f"{error}; a part was committed before: send it again") from error
    return {
        place: SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=error)
        for place, job_id in enumerate(flush.ids)
    }


async def _submit(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    """Write rows with ids that all differ: the plain ones first, then those with dependencies, parents first."""
    if not flush.dependencies:
        return await _submit_plain(db, flush)
    asked = {ord_ - 1: one for ord_, one in zip(flush.dependency_ords, flush.dependencies, strict=True)}
    plain = [place for place in range(len(flush)) if place not in asked]
    answers: dict[int, SubmitAnswer] = {}
    written = bool(plain)
    if plain:
        found = await _submit_plain(db, flush.pick(plain))
        answers |= {plain[place]: answer for place, answer in found.items()}
    locked = {flush.ids[place] for place in plain if _is_locked(answers.get(place))}
    by_tenant: dict[int, list[int]] = {}
    for place in asked:
        by_tenant.setdefault(flush.tenant_nos[place], []).append(place)
    for _, places in sorted(by_tenant.items()):
        order, tangled = waves([flush.ids[place] for place in places], [asked[place].depends_on for place in places])
        for wave in order:
            theirs = [places[at] for at in wave]
            # A child whose parent waits for a lock waits with it: alone it would be refused for an unknown parent.
            late = [place for place in theirs if locked.intersection(asked[place].depends_on)]
            answers |= {place: _locked(flush.ids[place]) for place in late}
            theirs = [place for place in theirs if place not in late]
            found = await _submit_dependent(db, flush.pick(theirs), first=not written) if theirs else {}
            written = written or bool(theirs)
            answers |= {theirs[place]: answer for place, answer in found.items()}
            locked |= {flush.ids[place] for place in (*late, *theirs) if _is_locked(answers.get(place))}
        for at in tangled:
            job_id = JobId(flush.ids[places[at]])
            cycle = DependencyCycle(f"job {job_id} waits for a job that waits for it; none of them was made")
            answers[places[at]] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=job_id, error=cycle)
    return answers


async def _submit_dependent(db: Connection, flush: SubmitFlush, *, first: bool) -> dict[int, SubmitAnswer]:
    """Write rows of one tenant that have dependencies; those that somebody else was quicker than, once more."""
    answers: dict[int, SubmitAnswer] = {}
    places: Sequence[int] = range(len(flush))
    for nth in range(_ROUNDS_FOR_DEPENDENCIES):  # nearly always one
        if not places:
            return answers
        try:
            found, again = await _write_dependent(db, flush)
        except StoreError as error:
            if first and nth == 0:
                raise
            found, again = _refused(flush, error), []
        answers |= {places[place]: answer for place, answer in found.items()}
        places, flush = [places[place] for place in again], flush.pick(again)
    for place, job_id in zip(places, flush.ids, strict=True):
        busy = StoreBusy(f"job {job_id}: others with its unique key came and went all the time; send it again")
        answers[place] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=busy)
    return answers


async def _write_dependent(
    db: Connection, flush: SubmitFlush, until: float | None = None
) -> tuple[dict[int, SubmitAnswer], list[int]]:
    """Dependencies and jobs in one transaction; answers, and the places that are to be tried again."""
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
                again.extend(start + place for place in theirs)
                return answers

            return await _past_lock(db, flush, write, until), again


async def _add_and_write(db: Connection, flush: SubmitFlush) -> tuple[dict[int, SubmitAnswer], list[int]]:
    tenant_no, stale = flush.tenant_nos[0], set(flush.stale_ords)
    told = await dependencies.add(
        db,
        tenant_no,
        flush.ids,
        flush.topic_nos,
        flush.dependencies,
        [ord_ in stale for ord_ in range(1, len(flush) + 1)],
    )
    answers: dict[int, SubmitAnswer] = {}
    again: list[int] = []
    pushed: list[dependencies.Pushed] = []
    for place, (code, subject) in sorted(told.items()):
        if code == dependencies.AGAIN:
            again.append(place)
        elif code == dependencies.CHANGED_BEFORE:
            answers[place] = SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=JobId(subject))
        elif code == dependencies.HELD:
            answers[place] = SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=JobId(subject))
            pushed.append(_pushed(flush, place, subject))
        elif code != dependencies.KNOWN:
            error = dependencies.refusal(code, subject)
            answers[place] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(flush.ids[place]), error=error)
    left = [place for place in range(len(flush)) if place not in told or told[place][0] == dependencies.KNOWN]
    if left:
        part = flush.pick(left)
        for at, place in enumerate(left):
            if place in told:  # submitted before: without dependencies, and not fresh whatever it says
                replace_value(part.flags, at, 0)
                part.stale_ords = sorted({*part.stale_ords, at + 1})
        odd = await answers_of(db, part, await db.fetch(SUBMIT, *submit_arguments(part)))
        orphans = _orphans(part, odd) if part.keys and odd else []
        answers |= {left[at]: answer for at, answer in odd.items() if at not in orphans}
        again += [left[at] for at in orphans]
        not_made = [left[at] for at in odd if left[at] not in told]
        await dependencies.remove(db, tenant_no, [(flush.ids[place], flush.dependencies[place]) for place in not_made])
    await dependencies.push(db, tenant_no, pushed)
    return answers, sorted(again)


def _pushed(flush: SubmitFlush, place: int, holder: UUID) -> dependencies.Pushed:
    return dependencies.Pushed(
        holder=holder,
        call_id=flush.ids[place],
        asked=flush.dependencies[place],
        run_at=value_at(flush.run_ats, place),
        delay_ms=value_at(flush.delays_ms, place),
        payload=flush.payloads[place],
        priority=value_at(flush.priorities, place) or 0,
    )


async def _submit_plain(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    """Write rows with ids that all differ; those that met a key held by a row which was then not made, once more."""
    answers: dict[int, SubmitAnswer] = {}
    places: Sequence[int] = range(len(flush))
    for nth in range(_ROUNDS_FOR_KEYS):  # nearly always one
        if not places:
            return answers
        found = await _or_refused(flush, _write(db, flush), first=nth == 0)
        orphans = _orphans(flush, found) if flush.keys and found else []
        answers |= {places[place]: answer for place, answer in found.items() if place not in orphans}
        if not orphans:
            return answers
        places, flush = [places[place] for place in orphans], flush.pick(orphans)
    for place, job_id in zip(places, flush.ids, strict=True):
        busy = StoreBusy(f"job {job_id}: its key was held again and again by submits that failed; send it again")
        answers[place] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=busy)
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
        suspects = {ord_ - 1 for ord_ in (*flush.stale_ords, *flush.key_ords, *flush.dependency_ords)} or {
            *range(len(flush))
        }
        free = [place for place in range(len(flush)) if place not in suspects]
        answers = {place: _locked(flush.ids[place]) for place in suspects}
        found = await _write(db, flush.pick(free), until) if free else {}
        return answers | {free[place]: answer for place, answer in found.items()}
    half = len(flush) // 2
    answers = await write(flush.pick(range(half)), 0, until)
    rest = flush.pick(range(half, len(flush)))
    nothing = len(answers) == half and all(map(_is_locked, answers.values()))
    later = await _or_refused(rest, write(rest, half, until), first=nothing)
    return answers | {half + place: answer for place, answer in later.items()}


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
    """Rows of `submit_v1` by 0-based place."""
    answers = {
        ord_ - 1: SubmitAnswer(receipt=SubmitReceipt(receipt), job_id=JobId(job_id))
        for ord_, receipt, job_id, _ in rows
    }
    for ord_, receipt, job_id, detail in rows:
        if receipt == SubmitReceipt.REFUSED:
            topic = await _topic_name(db, flush.topic_nos[ord_ - 1])
            full = BacklogFull(topic, limit=detail[0], waiting=detail[1])
            answers[ord_ - 1] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=full)
    return answers


async def _topic_name(db: Connection, topic_no: int) -> str:
    """For a message about what is decided and committed: no error of this question may hide that."""
    try:
        return str(await db.fetchval(TOPIC_NAME, topic_no))
    except DRIVER_ERRORS:
        return f"number {topic_no}"


async def submit_all(
    db: Connection, names: Names, jobs: Sequence[Submission], *, now: datetime | None = None
) -> list[Submitted]:
    """Submit checked jobs in flushes; one answer per job, in order. A refused row raises its error at the end."""
    answers: list[Submitted] = []
    for start in range(0, len(jobs), limits.SUBMIT_FLUSH_MAX_ROWS):
        flush = await fill(db, names, jobs[start : start + limits.SUBMIT_FLUSH_MAX_ROWS], now=now)
        odd = await submit(db, flush)
        for place, job_id in enumerate(flush.ids):
            answer = odd.get(place)
            if answer is not None and answer.error is not None:
                raise answer.error
            receipt = SubmitReceipt.CREATED if answer is None else answer.receipt
            answers.append(Submitted(id=JobId(job_id) if answer is None else answer.job_id, receipt=receipt))
    return answers


def _rounds(flush: SubmitFlush) -> list[Sequence[int]]:
    """The places, by how often their (tenant, id) stood before in this flush: nearly always one round of all."""
    if len(set(flush.ids)) == len(flush.ids):
        return [range(len(flush))]
    rounds: list[list[int]] = []
    copies: dict[tuple[int, UUID], int] = {}
    for place, pair in enumerate(zip(flush.tenant_nos, flush.ids, strict=True)):
        nth = copies.get(pair, 0)
        copies[pair] = nth + 1
        if nth == len(rounds):
            rounds.append([])
        rounds[nth].append(place)
    return [*rounds]


def _orphans(flush: SubmitFlush, answers: Mapping[int, SubmitAnswer]) -> list[int]:
    """Places that were taken for repeats of a neighbour with their key, which was then not made.

    That happens when the neighbour's id was there with another body. Its key is free again, so these may try anew.
    """
    topics, ids = flush.topic_nos, flush.ids
    keys = {ord_ - 1: (topics[ord_ - 1], key) for ord_, key in zip(flush.key_ords, flush.keys, strict=True)}
    not_made = {
        (keys[place], ids[place])
        for place, answer in answers.items()
        if place in keys and answer.receipt is SubmitReceipt.CONFLICT and answer.job_id == ids[place]
    }
    return sorted(
        place
        for place, answer in answers.items()
        if place in keys and answer.job_id != ids[place] and (keys[place], answer.job_id) in not_made
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
    return answers | {half + place: answer for place, answer in later.items()}
