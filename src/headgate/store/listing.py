"""Lists of jobs with filters, newest first. The order is that of the ids, which begin with their time, because the
primary keys hold it.

Two steps, repeated: choose the next ids from the narrowest order there is (the jobs of a tag, a schedule or a unique
key, those that ended badly, those that run, else all), then look them up by key and apply every filter. A page looks at
a bounded number of ids. A filter that matches little therefore gives short pages, even empty ones, each with a cursor
that continues; a cursor of None is the only sign of the end.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from time import monotonic
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain import limits
from headgate.domain.bulk import JobLine
from headgate.domain.errors import InvalidInput, TooSlow
from headgate.domain.filters import Term, body_matches
from headgate.domain.fingerprint import group_of
from headgate.domain.ids import id_from_bytes
from headgate.domain.pacing import Pace
from headgate.domain.states import State
from headgate.domain.validation import (
    check_aware,
    check_integer,
    check_priority,
    check_tags,
    check_text,
    shown,
)
from headgate.store.arguments import INT32_MAX, check_kind
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.listing_orders import days_of, look_up_arguments, order_of
from headgate.store.rows import from_row

LOOK_AT: Final = limits.LIST_LOOK_AT
CHUNK: Final = 1_000
BODIES_AT_MOST: Final = 2_000
"""How many payloads one page may read and decode, for a filter that looks into them."""
BODIES_AT_ONCE: Final = 100
STEP_SECONDS: Final = 5.0
"""How long one page may go on looking: then it ends where it is, short, and its cursor continues."""
BODY_MAX_BYTES: Final = 65_536
"""Larger payloads are not looked into: they match no condition on them."""
NEWEST: Final = UUID(int=2**128 - 1)
OLDEST: Final = UUID(int=0)

# Choosing: $1 tenant, $2 below this id, $3 how many, $4 the order to take them from.
CHOOSE: Final = "SELECT id FROM headgate.list_ids_v1($1, $2, $3, $4, $5, $6, $7, $8, $9) AS id ORDER BY id DESC"
CHOOSE_OLDEST: Final = """
SELECT id FROM headgate.list_ids_oldest_v1($1, $2, $3, $4, $5, $6, $7, $8, $9) AS id ORDER BY id"""

# Looking up: $2 the ids, $3 how many, then the filters, each of which may be NULL; a job that moves to the archive
# between the two steps is found there.
LOOK_UP: Final = """
SELECT u.id, u.topic_no, u.state, u.priority, u.attempt, u.max_attempts, u.worker, u.created_at, u.run_at, u.claimed_at,
       u.finished_at, u.last_error
  FROM unnest($2::uuid[]) AS k(id)
 CROSS JOIN LATERAL (  -- a probe per id: by `id = ANY`, PostgreSQL 16 and older may walk all of the tenant's rows
       (SELECT j.id, j.topic_no, j.state, j.priority, j.attempt, j.max_attempts,
               split_part(j.worker, chr(31), 1) AS worker, j.created_at, j.run_at, j.claimed_at,
               NULL::timestamptz AS finished_at, j.last_error
          FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = k.id LIMIT 1)
        UNION ALL
       (SELECT a.id, a.topic_no, a.state, a.priority, a.attempt, a.max_attempts,
               split_part(a.worker, chr(31), 1) AS worker, a.created_at, a.run_at, a.claimed_at,
               a.finished_at, a.last_error
          FROM headgate.archive a WHERE a.tenant_no = $1 AND a.id = k.id LIMIT 1)
       LIMIT 1) AS u
 WHERE ($4::smallint[] IS NULL OR u.state = ANY ($4)) AND ($5::int[] IS NULL OR u.topic_no = ANY ($5))
   AND ($6::timestamptz IS NULL OR u.created_at >= $6) AND ($7::timestamptz IS NULL OR u.created_at < $7)
   AND ($8::int IS NULL OR u.priority >= $8) AND ($9::int IS NULL OR u.priority <= $9)
   AND ($10::text[] IS NULL OR NOT EXISTS (
            SELECT FROM unnest($10) AS w(tag) WHERE NOT EXISTS (
                   SELECT FROM headgate.job_tags t WHERE t.tenant_no = $1 AND t.tag = w.tag AND t.job_id = u.id)))
   AND ($11::int[] IS NULL OR EXISTS (
            SELECT FROM headgate.schedule_jobs s
             WHERE s.tenant_no = $1 AND s.job_id = u.id AND s.schedule_no = ANY ($11)))
   AND ($12::int[] IS NULL OR NOT EXISTS (
            SELECT FROM headgate.schedule_jobs s
             WHERE s.tenant_no = $1 AND s.job_id = u.id AND s.schedule_no = ANY ($12)))
   -- One of several tags: $14 says which choice each tag of $13 belongs to, $15 how many choices there are.
   AND ($13::text[] IS NULL OR $15::int = (
            SELECT count(DISTINCT w.choice) FROM unnest($13, $14::int[]) AS w(tag, choice)
             WHERE EXISTS (SELECT FROM headgate.job_tags t
                            WHERE t.tenant_no = $1 AND t.tag = w.tag AND t.job_id = u.id)))
   AND ($16::text[] IS NULL OR NOT EXISTS (
            SELECT FROM headgate.job_tags t WHERE t.tenant_no = $1 AND t.job_id = u.id AND t.tag = ANY ($16)))
   AND ($17::timestamptz IS NULL OR u.finished_at >= $17) AND ($18::timestamptz IS NULL OR u.finished_at < $18)
   AND ($19::timestamptz IS NULL OR u.run_at >= $19) AND ($20::timestamptz IS NULL OR u.run_at < $20)
   AND ($21::timestamptz IS NULL OR u.claimed_at >= $21) AND ($22::timestamptz IS NULL OR u.claimed_at < $22)
   AND ($23::int[] IS NULL OR u.priority = ANY ($23)) AND ($24::int[] IS NULL OR u.priority <> ALL ($24))
   AND ($25::int IS NULL OR u.attempt >= $25) AND ($26::int IS NULL OR u.attempt <= $26)
   AND ($27::int[] IS NULL OR u.attempt = ANY ($27)) AND ($28::int[] IS NULL OR u.attempt <> ALL ($28))
   -- Texts that fit a pattern: one of each choice, as for tags. By LIKE and never by a regular expression: it gives up
   -- at the end of the text and tries nothing again, so no pattern takes longer than its length times the text's.
   AND ($29::text[] IS NULL OR $31::int = (
            SELECT count(DISTINCT w.choice) FROM unnest($29, $30::int[]) AS w(pattern, choice)
             WHERE coalesce(u.worker, '') LIKE w.pattern))
   AND ($32::text[] IS NULL OR coalesce(u.worker, '') NOT LIKE ALL ($32))
   -- Most jobs have no error: what is not there is not compared, a quarter of the time of a page that finds nothing.
   AND ($33::text[] IS NULL OR (u.last_error IS NOT NULL OR '' LIKE ANY ($33)) AND $35::int = (
            SELECT count(DISTINCT w.choice) FROM unnest($33, $34::int[]) AS w(pattern, choice),
                   (SELECT lower(coalesce(u.last_error, '')) AS text OFFSET 0) AS e  -- once, not for each pattern
             WHERE e.text LIKE lower(w.pattern)))
   AND ($36::text[] IS NULL OR NOT EXISTS (
            SELECT FROM unnest($36) AS w(pattern), (SELECT lower(coalesce(u.last_error, '')) AS text OFFSET 0) AS e
             WHERE e.text LIKE lower(w.pattern)))
   AND ($37::uuid[] IS NULL OR u.id = ANY ($37)) AND ($38::uuid[] IS NULL OR u.id <> ALL ($38))
   -- What had not ended by then is still alive, or ended too late to be meant.
   AND ($39::timestamptz IS NULL OR u.finished_at IS NULL OR u.finished_at <= $39)
   AND ($41::text[] IS NULL OR EXISTS (
            SELECT FROM headgate.unique_jobs q WHERE q.tenant_no = $1 AND q.job_id = u.id AND q.key = ANY ($41)))
   AND ($42::text[] IS NULL OR NOT EXISTS (
            SELECT FROM headgate.unique_jobs q WHERE q.tenant_no = $1 AND q.job_id = u.id AND q.key = ANY ($42)))
 ORDER BY CASE WHEN $40::boolean THEN u.id END, u.id DESC LIMIT $3"""
BODIES: Final = """
SELECT k.id, coalesce(u.payload, p.payload)
  FROM unnest($2::uuid[]) AS k(id)
 CROSS JOIN LATERAL (
       (SELECT j.payload FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = k.id LIMIT 1)
        UNION ALL
       (SELECT a.payload FROM headgate.archive a WHERE a.tenant_no = $1 AND a.id = k.id LIMIT 1)
       LIMIT 1) AS u
  LEFT JOIN headgate.payloads p ON p.tenant_no = $1 AND p.id = k.id
 WHERE octet_length(coalesce(u.payload, p.payload)) <= $3"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a list is to contain; None means any. `tags` means all of them; every `before` is exclusive.

    `filtering.py` makes one from the text people write.
    """

    states: frozenset[State] | None = None
    topic_nos: frozenset[int] | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    priority_from: int | None = None
    priority_to: int | None = None
    tags: Sequence[str] | None = None
    schedule_no: int | None = None
    schedule_nos: frozenset[int] | None = None
    not_schedule_nos: frozenset[int] | None = None
    tag_choices: tuple[frozenset[str], ...] = ()  # of each, at least one
    not_tags: frozenset[str] | None = None
    finished_from: datetime | None = None
    finished_before: datetime | None = None
    due_from: datetime | None = None
    due_before: datetime | None = None
    started_from: datetime | None = None
    started_before: datetime | None = None
    priorities: frozenset[int] | None = None
    not_priorities: frozenset[int] | None = None
    attempts_from: int | None = None
    attempts_to: int | None = None
    attempts: frozenset[int] | None = None
    not_attempts: frozenset[int] | None = None
    workers: tuple[tuple[str, ...], ...] = ()  # patterns for LIKE; of each choice one fits
    not_workers: tuple[tuple[str, ...], ...] = ()  # none of any choice fits
    errors: tuple[tuple[str, ...], ...] = ()
    not_errors: tuple[tuple[str, ...], ...] = ()
    unique_keys: frozenset[str] | None = None
    not_unique_keys: frozenset[str] | None = None
    ids: frozenset[UUID] | None = None
    not_ids: frozenset[UUID] | None = None
    ended_by: datetime | None = None  # not what ended after it
    groups: frozenset[str] | None = None  # of errors; judged here, not in SQL, and so are the bodies
    not_groups: frozenset[str] | None = None
    bodies: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        for name in ("created_from", "created_before"):
            if getattr(self, name) is not None:
                check_aware(getattr(self, name), field=name)
        for name in ("priority_from", "priority_to"):
            if getattr(self, name) is not None:
                check_priority(getattr(self, name), field=name)
        if self.tags is not None:
            check_tags(self.tags)
        if self.schedule_no is not None:
            check_integer(self.schedule_no, field="schedule_no", low=1, high=2**31 - 1)
        if self.states is not None:
            for state in _choice_of(self.states, field="states"):
                check_kind(state, State, field="states")
        if self.topic_nos is not None:
            for topic_no in _choice_of(self.topic_nos, field="topics"):
                check_integer(topic_no, field="topics", low=0, high=INT32_MAX)

    @property
    def is_open(self) -> bool:
        """True when everything matches."""
        return self == Filter()

    @property
    def is_counted(self) -> bool:
        """True when states and topics are all it asks about: then the rollups know how many match."""
        return self == Filter(states=self.states, topic_nos=self.topic_nos)

    @property
    def is_judged_here(self) -> bool:
        """True when SQL alone cannot tell what matches."""
        return bool(self.groups is not None or self.not_groups is not None or self.bodies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stretch of a list: what matched in it, and where it ended. `more` says whether anything may follow."""

    rows: list[JobLine]
    below: UUID
    more: bool
    looked: int


async def step(
    db: Connection, tenant_no: int, matching: Filter, *, below: UUID, limit: int, oldest: bool = False
) -> Step:
    """Go down from an id until `limit` jobs matched, LOOK_AT ids were looked at, or there are no more.

    With `oldest` it goes up instead, and `below` means above.
    """
    choice = order_of(matching)
    # With no filter every id chosen is a row, so no more are chosen than the page needs. Running and waiting jobs lie
    # in another order, so all of them are taken at once.
    chunk = limit if matching.is_open else max(limit, CHUNK)
    if matching.bodies:
        chunk = min(chunk, BODIES_AT_ONCE)
    at_once = LOOK_AT if choice[0] in ("running", "waiting") else chunk
    rows: list[JobLine] = []
    more, looked, bodies = True, 0, 0
    until, late = monotonic() + STEP_SECONDS, False
    with translating(writing=False), _told_to_narrow():
        while more and len(rows) < limit and looked < LOOK_AT and bodies < BODIES_AT_MOST and not late:
            ids = await _choose(db, tenant_no, matching, choice, below, at_once, oldest=oldest)
            more = len(ids) == at_once
            looked += len(ids)
            for start in range(0, len(ids), chunk):
                part = ids[start : start + chunk]
                # What is judged here may fail, so all that SQL lets through is needed.
                wanted = len(part) if matching.is_judged_here else limit - len(rows)
                found = [
                    _row(one)
                    for one in await db.fetch(
                        LOOK_UP, tenant_no, part, max(1, wanted), *look_up_arguments(matching, oldest=oldest)
                    )
                ]
                if matching.is_judged_here:
                    bodies += len(found) if matching.bodies else 0
                    found = await _judged(db, tenant_no, matching, found)
                rows += found[: limit - len(rows)]
                below = part[-1]
                if len(rows) == limit:  # a full page ends at its last row
                    below = rows[-1].id
                    more = more or below != ids[-1]
                    break
                late = monotonic() >= until  # after a chunk at least: the next page must not begin where this one did
                if late or (matching.bodies and bodies >= BODIES_AT_MOST):
                    more = more or below != ids[-1]
                    break
    return Step(rows=rows, below=below, more=more, looked=looked)


@contextmanager
def _told_to_narrow() -> Iterator[None]:
    """A page looks at a bounded number of ids; where even that takes too long, less of it is what helps."""
    try:
        yield
    except asyncpg.QueryCanceledError as error:
        raise TooSlow(
            "the list took too long and was cancelled: the filter is too broad for this database as it is now; narrow "
            "it (a topic, a state, a span of time) or ask for a smaller page"
        ) from error


async def still_matching(db: Connection, tenant_no: int, matching: Filter, ids: Sequence[UUID]) -> list[JobLine]:
    """Those of the given jobs that match at this moment, newest first."""
    with translating(writing=False), _told_to_narrow():
        found = [
            _row(one) for one in await db.fetch(LOOK_UP, tenant_no, ids, max(1, len(ids)), *look_up_arguments(matching))
        ]
        return await _judged(db, tenant_no, matching, found)


async def _choose(
    db: Connection,
    tenant_no: int,
    matching: Filter,
    choice: tuple[str, str | None, int | None],
    below: UUID,
    at_once: int,
    *,
    oldest: bool,
) -> list[UUID]:
    if matching.ids is not None:  # there is nothing to walk
        left = (one for one in matching.ids if (one > below if oldest else one < below))
        return sorted(left, reverse=not oldest)[:at_once]
    since, until = days_of(matching)
    found = await db.fetch(
        CHOOSE_OLDEST if oldest else CHOOSE, tenant_no, below, at_once, *choice, LOOK_AT, since, until
    )
    return [row[0] for row in found]


async def bodies(db: Connection, tenant_no: int, ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """The payloads of jobs, without those that are too large to be looked into."""
    found = await db.fetch(BODIES, tenant_no, ids, BODY_MAX_BYTES)
    return {job_id: raw for job_id, raw in found}  # noqa: C416 - records are no pairs to a type checker


async def _judged(db: Connection, tenant_no: int, matching: Filter, rows: list[JobLine]) -> list[JobLine]:
    """Of rows that SQL let through, those that pass what SQL cannot judge."""
    kept: list[JobLine] = []
    found = await bodies(db, tenant_no, [row.id for row in rows]) if matching.bodies and rows else {}
    pace = Pace(time.monotonic)
    for row in rows:
        await pace.rest()
        if _fits(matching, row, found.get(row.id)):
            kept.append(row)
    return kept


def _fits(matching: Filter, row: JobLine, raw: bytes | None) -> bool:
    if matching.groups is not None or matching.not_groups is not None:
        group = group_of(row.last_error).id
        if matching.groups is not None and group not in matching.groups:
            return False
        if matching.not_groups is not None and group in matching.not_groups:
            return False
    if not matching.bodies:
        return True
    if raw is None:  # too large to be looked into
        return False
    body = _decoded(raw)
    return all(body_matches(term, body) for term in matching.bodies)


def _decoded(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None  # opaque bytes are a legal payload; no path leads into them


def _choice_of(values: object, *, field: str) -> Set[object]:
    if not isinstance(values, Set):
        raise InvalidInput(field, f"must be a frozenset, got {shown(values)}")
    if not values:
        raise InvalidInput(field, "is an empty choice, which nothing can match; leave it out for any")
    return values


def _row(record: asyncpg.Record) -> JobLine:
    return from_row(JobLine, record, state=State(record[2]))  # the topic and the tags are looked up later


def write_cursor(below: UUID, digest: bytes) -> str:
    """A place in a list, as text."""
    return base64.urlsafe_b64encode(below.bytes + _seal(below.bytes, digest)).decode()


def read_cursor(cursor: str, digest: bytes) -> UUID:
    """The place a cursor names; raises InvalidInput for one of another list."""
    problem = InvalidInput("cursor", "does not belong to this list", hint="start again without a cursor")
    check_text(cursor, field="cursor", high=1_000)
    try:
        raw = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise problem from error
    if len(raw) != 24 or raw[16:] != _seal(raw[:16], digest) or len(cursor) != 32:  # superfluous padding decodes too
        raise problem
    return id_from_bytes(raw[:16])


def _seal(place: bytes, digest: bytes) -> bytes:
    # Over the place too, so that a cursor that was cut or mistyped is refused rather than read as another place.
    return sha256(place + digest).digest()[:8]
