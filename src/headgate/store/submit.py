"""Submitting: one flush, one call of `headgate.submit_v1`, one commit.

A `SubmitFlush` is parallel lists, not objects: the group writer fills it at some hundred thousand rows a second. A
column in which every row has the default stays an empty list, which the function reads as "the default for all".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg

from headgate.domain import limits
from headgate.domain.errors import (
    BacklogFull,
    DependencyCycle,
    HeadgateError,
    InvalidInput,
    OutcomeUnknown,
    ReadOnly,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from headgate.domain.ids import JobId
from headgate.domain.jobs import Submission, Submitted, body_digest
from headgate.domain.links import Links, waves
from headgate.domain.rank import rank_of
from headgate.domain.states import SubmitReceipt
from headgate.domain.validation import check_run_at, to_ms
from headgate.store import linking
from headgate.store.arguments import check_kind, check_parallel
from headgate.store.connect import Connection
from headgate.store.errors import translate, translating
from headgate.store.names import DEFAULT_POLICY_NO, Names, Topic
from headgate.store.partitions import ensure_partitions

SUBMIT: Final = """
SELECT ord, receipt, job_id, detail
  FROM headgate.submit_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
                          $20, $21, $22)"""
TOPIC_NAME: Final = "SELECT name FROM headgate.topics WHERE topic_no = $1"
# The columns of a flush by how they are filled; those of a key or a tag are sparse.
_FULL: Final = ("tenant_nos", "ids", "topic_nos", "payloads")
_ENDS_EARLY: Final = (
    *("priorities", "rank_classes", "rank_offsets", "delays_ms", "run_ats", "max_attempts", "policy_nos", "headers"),
    "flags",
)
_KEYED: Final = ("keys", "key_hashes", "key_windows_ms")
# One row's fault; everything else concerns the whole flush, and halving it would only repeat the error.
_OF_A_ROW: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.RaiseError,  # an operator's own trigger
)
_PASSING: Final = (StoreUnavailable, OutcomeUnknown, StoreBusy)
_ROUNDS_FOR_LINKS: Final = 50  # each means that another submit or the end of a job came first
_ROUNDS_FOR_KEYS: Final = 8  # each costs a flush, and somebody might send five thousand that free the key in turn

_Value = TypeVar("_Value")


@dataclass(slots=True)
class SubmitFlush:
    """Rows for one submit call. `add` validates nothing: a `Submission` has been checked when it was made."""

    tenant_nos: list[int] = field(default_factory=list)
    ids: list[UUID] = field(default_factory=list)
    topic_nos: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    # From here on a list may end early, or be empty: what is missing has the default.
    priorities: list[int | None] = field(default_factory=list)
    rank_classes: list[int | None] = field(default_factory=list)
    rank_offsets: list[int | None] = field(default_factory=list)
    delays_ms: list[int | None] = field(default_factory=list)
    run_ats: list[datetime | None] = field(default_factory=list)
    max_attempts: list[int | None] = field(default_factory=list)
    policy_nos: list[int | None] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)
    # Sparse: 1-based places in the flush, and what is there.
    stale_ords: list[int] = field(default_factory=list)
    key_ords: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    key_hashes: list[bytes] = field(default_factory=list)
    key_windows_ms: list[int] = field(default_factory=list)
    tag_ords: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    limit_ords: list[int] = field(default_factory=list)
    limit_keys: list[str] = field(default_factory=list)
    flags: list[int | None] = field(default_factory=list)  # ends early: bits of jobs.flags a job begins with
    link_ords: list[int] = field(default_factory=list)  # sparse, too; the last two are not arguments of the call
    links: list[Links] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, job: Submission, topic: Topic, *, policy_no: int | None = None) -> None:
        """Append one job; `policy_no` is the number of the submission's own policy, if it has one."""
        place = len(self.ids)
        self.tenant_nos.append(topic.tenant_no)
        self.ids.append(job.id)
        self.topic_nos.append(topic.no)
        self.payloads.append(job.payload)
        rules = topic.rules
        if job.priority != limits.PRIORITY_DEFAULT:
            rank_class, offset = rank_of(job.priority, rules.ageing_step)
            _put(self.priorities, place, job.priority)
            _put(self.rank_classes, place, rank_class)
            if offset:
                _put(self.rank_offsets, place, offset)
        if job.delay:
            _put(self.delays_ms, place, to_ms(job.delay))
        if job.run_at is not None:
            _put(self.run_ats, place, job.run_at)
        attempts = job.max_attempts or rules.max_attempts
        if attempts != limits.MAX_ATTEMPTS_DEFAULT:
            _put(self.max_attempts, place, attempts)
        policy_no = policy_no or topic.policy_no
        if policy_no != DEFAULT_POLICY_NO:
            _put(self.policy_nos, place, policy_no)
        if job.headers:
            _put(self.headers, place, json.dumps(dict(job.headers), ensure_ascii=False))
        if not job.fresh:
            self.stale_ords.append(place + 1)
        if job.key is not None and job.key_window is not None:
            self.key_ords.append(place + 1)
            self.keys.append(job.key)
            self.key_hashes.append(body_digest(job.topic, job.payload))
            self.key_windows_ms.append(to_ms(job.key_window))
        for tag in job.tags:
            self.tag_ords.append(place + 1)
            self.tags.append(tag)
        if job.links is not None:
            self.link_ords.append(place + 1)
            self.links.append(job.links)
            _put(self.flags, place, job.links.flags)
        if job.limit_key is not None:
            self.limit_ords.append(place + 1)
            self.limit_keys.append(job.limit_key)

    def add_plain(self, topic: Topic, ids: Sequence[UUID], payloads: Sequence[bytes], *, fresh: bool = True) -> None:
        """Append many jobs of one topic with nothing special about them: no work per job."""
        place = len(self.ids)
        count = len(ids)
        self.tenant_nos += [topic.tenant_no] * count
        self.ids += ids
        self.topic_nos += [topic.no] * count
        self.payloads += payloads
        if topic.rules.max_attempts != limits.MAX_ATTEMPTS_DEFAULT:
            self.max_attempts += [None] * (place - len(self.max_attempts)) + [topic.rules.max_attempts] * count
        if topic.policy_no != DEFAULT_POLICY_NO:
            self.policy_nos += [None] * (place - len(self.policy_nos)) + [topic.policy_no] * count
        if not fresh:
            self.stale_ords += range(place + 1, place + count + 1)

    def extend(self, other: SubmitFlush) -> None:
        """Append another flush's rows behind these."""
        start = len(self.ids)
        self.tenant_nos += other.tenant_nos
        self.ids += other.ids
        self.topic_nos += other.topic_nos
        self.payloads += other.payloads
        for name in (
            "priorities",
            "rank_classes",
            "rank_offsets",
            "delays_ms",
            "run_ats",
            "max_attempts",
            "policy_nos",
            "headers",
            "flags",
        ):
            theirs = getattr(other, name)
            if theirs:
                ours = getattr(self, name)
                ours += [None] * (start - len(ours)) + theirs
        self.stale_ords += [place + start for place in other.stale_ords]
        self.key_ords += [place + start for place in other.key_ords]
        self.keys += other.keys
        self.key_hashes += other.key_hashes
        self.key_windows_ms += other.key_windows_ms
        self.tag_ords += [place + start for place in other.tag_ords]
        self.tags += other.tags
        self.link_ords += [place + start for place in other.link_ords]
        self.links += other.links
        self.limit_ords += [place + start for place in other.limit_ords]
        self.limit_keys += other.limit_keys

    def never_fresh(self) -> None:
        """These rows are sent again: each may have been committed already."""
        self.stale_ords = list(range(1, len(self.ids) + 1))

    @property
    def plain(self) -> bool:
        """Nothing but new jobs of one topic that are due now: whoever claims after them finds them all."""
        odd = self.stale_ords or self.key_ords or self.tag_ords or self.limit_ords or self.link_ords
        if odd or self.delays_ms or self.run_ats:
            return False
        return len(self.ids) == 1 or (len(set(self.ids)) == len(self.ids) and len(set(self.topic_nos)) == 1)

    def soonest(self) -> tuple[int | None, datetime | None]:
        """When the first job that must wait falls due: the shortest delay and the earliest time given, if any."""
        delays = [delay for delay in self.delays_ms if delay is not None]
        run_ats = [run_at for run_at in self.run_ats if run_at is not None]
        return min(delays, default=None), min(run_ats, default=None)

    def pick(self, places: Sequence[int], *, resent: bool = False) -> SubmitFlush:
        """The rows at these places (ascending) as a flush of their own; `resent`: none of them counts as fresh."""
        piece = SubmitFlush()
        for name in (*_FULL, *_ENDS_EARLY):
            column = getattr(self, name)
            setattr(piece, name, [column[place] for place in places if place < len(column)])
        ords = {place + 1: ord_ for ord_, place in enumerate(places, 1)}
        piece.stale_ords = list(ords.values()) if resent else [ords[ord_] for ord_ in self.stale_ords if ord_ in ords]
        for ord_, key, digest, window in zip(
            self.key_ords, self.keys, self.key_hashes, self.key_windows_ms, strict=True
        ):
            if ord_ in ords:
                piece.key_ords.append(ords[ord_])
                piece.keys.append(key)
                piece.key_hashes.append(digest)
                piece.key_windows_ms.append(window)
        for ord_, tag in zip(self.tag_ords, self.tags, strict=True):
            if ord_ in ords:
                piece.tag_ords.append(ords[ord_])
                piece.tags.append(tag)
        for ord_, links in zip(self.link_ords, self.links, strict=True):
            if ord_ in ords:
                piece.link_ords.append(ords[ord_])
                piece.links.append(links)
        for ord_, limit_key in zip(self.limit_ords, self.limit_keys, strict=True):
            if ord_ in ords:
                piece.limit_ords.append(ords[ord_])
                piece.limit_keys.append(limit_key)
        return piece

    def check_shape(self) -> None:
        """Refuse lists that do not fit together; looks at their lengths, not at the rows."""
        for names, size, may_end_early in (
            (_FULL, len(self.ids), False),
            (_ENDS_EARLY, len(self.ids), True),
            (_KEYED, len(self.key_ords), False),
            (("tags",), len(self.tag_ords), False),
            (("limit_keys",), len(self.limit_ords), False),
            (("links",), len(self.link_ords), False),
        ):
            check_parallel("jobs", size, {name: getattr(self, name) for name in names}, may_end_early=may_end_early)
        for ords in (self.stale_ords, self.key_ords, self.tag_ords, self.limit_ords, self.link_ords):
            if ords and not 1 <= min(ords) <= max(ords) <= len(self.ids):
                raise InvalidInput(
                    "jobs", f"a place outside of 1 to {len(self.ids)} is marked as resent, keyed or tagged"
                )


_NAMES: Final = tuple(column.name for column in fields(SubmitFlush))  # the arguments are the columns, in their order


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitAnswer:
    """What became of a row that was not simply created. `error` only with REFUSED."""

    receipt: SubmitReceipt
    job_id: JobId
    error: HeadgateError | None = None


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
    """The answers of one part of a flush; if it fails for good, it is refused alone: what went before is committed.

    A first part raises: nothing was written. What may pass or leaves an outcome open raises in any case, and the whole
    flush is sent again.
    """
    try:
        return await answers
    except _PASSING:
        raise
    except StoreError as error:
        if first:
            raise
        return _refused(part, error)


def _refused(flush: SubmitFlush, error: StoreError) -> dict[int, SubmitAnswer]:
    if isinstance(error, ReadOnly):  # a failover between two parts: all of it is to be sent again, elsewhere
        raise OutcomeUnknown(f"{error}; a part may have been committed before: send it again") from error
    return {
        place: SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=error)
        for place, job_id in enumerate(flush.ids)
    }


async def _submit(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    """Write rows with ids that all differ: the plain ones first, then those with links, parents before children."""
    if not flush.links:
        return await _submit_plain(db, flush)
    linked = {ord_ - 1: links for ord_, links in zip(flush.link_ords, flush.links, strict=True)}
    plain = [place for place in range(len(flush)) if place not in linked]
    answers: dict[int, SubmitAnswer] = {}
    if plain:
        found = await _submit_plain(db, flush.pick(plain))
        answers |= {plain[place]: answer for place, answer in found.items()}
    by_tenant: dict[int, list[int]] = {}
    for place in linked:
        by_tenant.setdefault(flush.tenant_nos[place], []).append(place)
    for _, places in sorted(by_tenant.items()):
        order, tangled = waves([flush.ids[place] for place in places], [linked[place].depends_on for place in places])
        for wave in order:
            theirs = [places[at] for at in wave]
            found = await _submit_linked(db, flush.pick(theirs))
            answers |= {theirs[place]: answer for place, answer in found.items()}
        for at in tangled:
            job_id = JobId(flush.ids[places[at]])
            cycle = DependencyCycle(f"job {job_id} waits for a job that waits for it; none of them was made")
            answers[places[at]] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=job_id, error=cycle)
    return answers


async def _submit_linked(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    """Write rows of one tenant that have links; those that somebody else was quicker than, once more."""
    answers: dict[int, SubmitAnswer] = {}
    places: Sequence[int] = range(len(flush))
    for _ in range(_ROUNDS_FOR_LINKS):  # nearly always one
        if not places:
            return answers
        try:
            found, again = await _write_linked(db, flush)
        except _PASSING:
            raise
        except StoreError as error:  # for good, and of these rows alone: others of the flush are committed
            found, again = _refused(flush, error), []
        answers |= {places[place]: answer for place, answer in found.items()}
        places, flush = [places[place] for place in again], flush.pick(again)
    for place, job_id in zip(places, flush.ids, strict=True):
        busy = StoreBusy(f"job {job_id}: others with its unique key came and went all the time; send it again")
        answers[place] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=busy)
    return answers


async def _write_linked(db: Connection, flush: SubmitFlush) -> tuple[dict[int, SubmitAnswer], list[int]]:
    """Links and jobs in one transaction; answers, and the places that are to be tried again."""
    with translating(writing=True, names=_NAMES):
        try:
            async with db.transaction():
                return await _link_and_write(db, flush)
        except asyncpg.CheckViolationError as error:
            if error.constraint_name is not None:
                return await _isolate(db, flush, error), []
            await ensure_partitions(db)  # see fetch_into_days
            return {}, list(range(len(flush)))
        except _OF_A_ROW as error:
            return await _isolate(db, flush, error), []


async def _link_and_write(db: Connection, flush: SubmitFlush) -> tuple[dict[int, SubmitAnswer], list[int]]:
    tenant_no, stale = flush.tenant_nos[0], set(flush.stale_ords)
    told = await linking.link(
        db, tenant_no, flush.ids, flush.topic_nos, flush.links, [ord_ in stale for ord_ in range(1, len(flush) + 1)]
    )
    answers: dict[int, SubmitAnswer] = {}
    again: list[int] = []
    pushed: list[linking.Pushed] = []
    for place, (code, subject) in sorted(told.items()):
        if code == linking.AGAIN:
            again.append(place)
        elif code == linking.HELD:
            answers[place] = SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=JobId(subject))
            pushed.append(_pushed(flush, place, subject))
        elif code != linking.KNOWN:
            error = linking.refusal(code, subject)
            answers[place] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(flush.ids[place]), error=error)
    left = [place for place in range(len(flush)) if place not in told or told[place][0] == linking.KNOWN]
    if left:
        part = flush.pick(left)
        for at, place in enumerate(left):
            if place in told:  # submitted before: without links, and not fresh whatever it says
                _set(part.flags, at, 0)
                part.stale_ords = sorted({*part.stale_ords, at + 1})
        odd = await _call(db, part)
        orphans = _orphans(part, odd) if part.keys and odd else []
        answers |= {left[at]: answer for at, answer in odd.items() if at not in orphans}
        again += [left[at] for at in orphans]
        not_made = [left[at] for at in odd if left[at] not in told]
        await linking.unlink(db, tenant_no, [(flush.ids[place], flush.links[place]) for place in not_made])
    await linking.push(db, tenant_no, pushed)
    return answers, sorted(again)


def _pushed(flush: SubmitFlush, place: int, holder: UUID) -> linking.Pushed:
    return linking.Pushed(
        holder=holder,
        links=flush.links[place],
        run_at=_get(flush.run_ats, place),
        delay_ms=_get(flush.delays_ms, place),
        payload=flush.payloads[place],
        priority=_get(flush.priorities, place) or 0,
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


async def _write(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    with translating(writing=True, names=_NAMES):
        try:
            return await _call(db, flush)
        except _OF_A_ROW as error:
            return await _isolate(db, flush, error)


async def _call(db: Connection, flush: SubmitFlush) -> dict[int, SubmitAnswer]:
    return await answers_of(db, flush, await db.fetch(SUBMIT, *submit_arguments(flush)))


async def answers_of(db: Connection, flush: SubmitFlush, rows: Sequence[Any]) -> dict[int, SubmitAnswer]:
    """Rows of `submit_v1` by 0-based place."""
    answers = {
        ord_ - 1: SubmitAnswer(receipt=SubmitReceipt(receipt), job_id=JobId(job_id))
        for ord_, receipt, job_id, _ in rows
    }
    for ord_, receipt, job_id, detail in rows:
        if receipt == SubmitReceipt.REFUSED:
            topic = await db.fetchval(TOPIC_NAME, flush.topic_nos[ord_ - 1])
            full = BacklogFull(topic, limit=detail[0], waiting=detail[1])
            answers[ord_ - 1] = SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(job_id), error=full)
    return answers


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


async def fill(db: Connection, names: Names, jobs: Iterable[Submission], *, now: datetime | None = None) -> SubmitFlush:
    """Look up the names and lay the jobs out as a flush; `now`, if given, bounds how far ahead a run_at may lie."""
    flush = SubmitFlush()
    for job in jobs:
        if job.run_at is not None and now is not None:
            check_run_at(job.run_at, now=now)
        topic = await names.topic(db, await names.tenant(db, job.tenant), job.topic)
        policy_no = None if job.policy is None else await names.policy_no(db, job.policy)
        flush.add(job, topic, policy_no=policy_no)
    return flush


def _put(column: list[_Value | None], place: int, value: _Value) -> None:
    """Set the value at `place`, leaving defaults in the places that were passed over."""
    column.extend([None] * (place - len(column)))
    column.append(value)


def _get(column: list[_Value | None], place: int) -> _Value | None:
    return column[place] if place < len(column) else None


def _set(column: list[_Value | None], place: int, value: _Value) -> None:
    if place < len(column):
        column[place] = value


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
    tenants, ids = flush.tenant_nos, flush.ids
    keys = {ord_ - 1: (tenants[ord_ - 1], key) for ord_, key in zip(flush.key_ords, flush.keys, strict=True)}
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


def submit_arguments(flush: SubmitFlush) -> tuple[object, ...]:
    """Those of `submit_v1`."""
    return (
        flush.tenant_nos,
        flush.ids,
        flush.topic_nos,
        flush.payloads,
        flush.priorities,
        flush.rank_classes,
        flush.rank_offsets,
        flush.delays_ms,
        flush.run_ats,
        flush.max_attempts,
        flush.policy_nos,
        flush.headers,
        flush.stale_ords,
        flush.key_ords,
        flush.keys,
        flush.key_hashes,
        flush.key_windows_ms,
        flush.tag_ords,
        flush.tags,
        flush.limit_ords,
        flush.limit_keys,
        flush.flags,
    )


async def _isolate(db: Connection, flush: SubmitFlush, error: asyncpg.PostgresError) -> dict[int, SubmitAnswer]:
    if len(flush) == 1:
        reason = translate(error, writing=True, names=_NAMES)
        refused = InvalidInput("job", f"{flush.ids[0]} cannot be stored ({reason})")
        return {0: SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=JobId(flush.ids[0]), error=refused)}
    half = len(flush) // 2
    answers = await _submit(db, flush.pick(range(half)))
    rest = flush.pick(range(half, len(flush)))
    later = await _or_refused(rest, _submit(db, rest), first=False)
    return answers | {half + place: answer for place, answer in later.items()}
