"""Lists of jobs with filters, newest first. The order is that of the ids, which begin with their time, because the
primary keys hold it.

Two steps, repeated: choose the next ids from the narrowest order there is (a tag's or schedule's own jobs, those that
ended badly, those that run, else all), then look them up by key and apply every filter. A page looks at a bounded
number of ids. A filter that matches little therefore gives short pages, even empty ones, each with a cursor that goes
on; a cursor of None is the only sign of the end.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId
from headgate.domain.states import State
from headgate.domain.validation import (
    check_aware,
    check_integer,
    check_page_size,
    check_priority,
    check_tags,
    check_text,
    shown,
)
from headgate.store.arguments import INT32_MAX, check_kind, check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating

LOOK_AT: Final = 20_000
"""How many ids one page may look at: at some microseconds each, the worst page costs well under 100 ms."""
CHUNK: Final = 1_000
NEWEST: Final = UUID(int=2**128 - 1)

# Choosing: $1 tenant, $2 below this id, $3 how many, $4 the order to take them from.
CHOOSE: Final = "SELECT id FROM headgate.list_ids_v1($1, $2, $3, $4, $5, $6, $7) AS id ORDER BY id DESC"

# Looking up: $2 the ids, then the filters, each of which may be NULL; a job that moves to the archive between the two
# steps is found there.
LOOK_UP: Final = """
SELECT u.id, u.topic_no, u.state, u.priority, u.attempt, u.max_attempts, u.worker, u.created_at, u.run_at, u.claimed_at,
       u.finished_at, u.last_error
  FROM unnest($2::uuid[]) AS k(id)
 CROSS JOIN LATERAL (  -- a probe per id: by `id = ANY`, PostgreSQL 16 and older may walk all of the tenant's rows
       (SELECT j.id, j.topic_no, j.state, j.priority, j.attempt, j.max_attempts, j.worker, j.created_at, j.run_at,
               j.claimed_at, NULL::timestamptz AS finished_at, j.last_error
          FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = k.id LIMIT 1)
        UNION ALL
       (SELECT a.id, a.topic_no, a.state, a.priority, a.attempt, a.max_attempts, a.worker, a.created_at, a.run_at,
               a.claimed_at, a.finished_at, a.last_error
          FROM headgate.archive a WHERE a.tenant_no = $1 AND a.id = k.id LIMIT 1)
       LIMIT 1) AS u
 WHERE ($3::smallint[] IS NULL OR u.state = ANY ($3)) AND ($4::int[] IS NULL OR u.topic_no = ANY ($4))
   AND ($5::timestamptz IS NULL OR u.created_at >= $5) AND ($6::timestamptz IS NULL OR u.created_at < $6)
   AND ($7::int IS NULL OR u.priority >= $7) AND ($8::int IS NULL OR u.priority <= $8)
   AND ($9::text[] IS NULL OR NOT EXISTS (
            SELECT FROM unnest($9) AS w(tag) WHERE NOT EXISTS (
                   SELECT FROM headgate.job_tags t WHERE t.tenant_no = $1 AND t.tag = w.tag AND t.job_id = u.id)))
   AND ($10::int IS NULL OR EXISTS (
            SELECT FROM headgate.schedule_jobs s WHERE s.tenant_no = $1 AND s.job_id = u.id AND s.schedule_no = $10))
 ORDER BY u.id DESC LIMIT $11"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a list is to contain; None means any. `tags` means all of them; `created_before` is exclusive."""

    states: frozenset[State] | None = None
    topic_nos: frozenset[int] | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    priority_from: int | None = None
    priority_to: int | None = None
    tags: Sequence[str] | None = None
    schedule_no: int | None = None

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

    def digest(self, tenant_no: int) -> bytes:
        """Eight bytes that tie a cursor to the list it came from."""
        parts = (
            tenant_no,
            self.states and sorted(self.states),
            self.topic_nos and sorted(self.topic_nos),
            self.created_from and self.created_from.timestamp(),
            self.created_before and self.created_before.timestamp(),
            self.priority_from,
            self.priority_to,
            self.tags and sorted(self.tags),
            self.schedule_no,
        )
        return sha256(repr(parts).encode()).digest()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a list: never the payload or the result."""

    id: JobId
    topic_no: int
    state: State
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page, newest first. It may be short or empty although more follows: only `cursor is None` is the end."""

    rows: list[Row]
    cursor: str | None


async def list_jobs(
    db: Connection,
    tenant_no: int,
    *,
    matching: Filter | None = None,
    limit: int = limits.PAGE_DEFAULT,
    cursor: str | None = None,
) -> Page:
    """One page of the tenant's jobs. Pass the page's cursor, with the same filter, to go on."""
    check_tenant_no(tenant_no)
    check_page_size(limit)
    matching = Filter() if matching is None else matching
    check_kind(matching, Filter, field="matching")
    below = NEWEST if cursor is None else _read_cursor(cursor, matching.digest(tenant_no))
    choice = _choice(matching)
    # With no filter every id chosen is a row, so no more are chosen than the page needs. Running and waiting jobs lie
    # in another order, so all of them are taken at once.
    chunk = limit if matching.is_open else max(limit, CHUNK)
    step = LOOK_AT if choice[0] in ("running", "waiting") else chunk
    rows: list[Row] = []
    more, looked = True, 0
    with translating(writing=False):
        while more and len(rows) < limit and looked < LOOK_AT:
            ids: list[UUID] = [row[0] for row in await db.fetch(CHOOSE, tenant_no, below, step, *choice, LOOK_AT)]
            more = len(ids) == step
            looked += len(ids)
            for start in range(0, len(ids), chunk):
                part = ids[start : start + chunk]
                found = await db.fetch(LOOK_UP, tenant_no, part, *_arguments(matching), limit - len(rows))
                rows += [_row(record) for record in found]
                below = part[-1]
                if len(rows) == limit:  # a full page ends at its last row
                    below = rows[-1].id
                    more = more or below != ids[-1]
                    break
    return Page(rows=rows, cursor=_write_cursor(below, matching.digest(tenant_no)) if more else None)


def _choice_of(values: object, *, field: str) -> Set[object]:
    if not isinstance(values, Set):
        raise InvalidInput(field, f"must be a frozenset, got {shown(values)}")
    if not values:
        raise InvalidInput(field, "is an empty choice, which nothing can match; leave it out for any")
    return values


def _choice(matching: Filter) -> tuple[str, str | None, int | None]:
    """The narrowest order that holds everything the filter can match, with the tag or the schedule that owns it."""
    if matching.tags:
        return "tagged", matching.tags[0], None
    if matching.schedule_no is not None:
        return "scheduled", None, matching.schedule_no
    for few, name in (
        ({State.RUNNING}, "running"),
        ({State.SCHEDULED, State.RETRYING}, "waiting"),
        ({State.DEAD, State.CANCELLED}, "unhappy"),
        ({state for state in State if not state.is_final}, "live"),
        ({state for state in State if state.is_final}, "finished"),
    ):
        if matching.states is not None and matching.states <= few:
            return name, None, None
    return "all", None, None


def _arguments(matching: Filter) -> tuple[object, ...]:
    return (
        None if matching.states is None else [int(state) for state in matching.states],
        None if matching.topic_nos is None else list(matching.topic_nos),
        matching.created_from,
        matching.created_before,
        matching.priority_from,
        matching.priority_to,
        None if not matching.tags else list(matching.tags),
        matching.schedule_no,
    )


def _row(record: asyncpg.Record) -> Row:
    # The columns of LOOK_UP are the fields of Row, in their order.
    values = dict(zip(Row.__slots__, record, strict=True))
    values["state"] = State(record[2])
    return Row(**values)


def _write_cursor(below: UUID, digest: bytes) -> str:
    return base64.urlsafe_b64encode(below.bytes + _seal(below.bytes, digest)).decode()


def _read_cursor(cursor: str, digest: bytes) -> UUID:
    problem = InvalidInput("cursor", "does not belong to this list", hint="start again without a cursor")
    check_text(cursor, field="cursor", high=1_000)
    try:
        raw = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise problem from error
    if len(raw) != 24 or raw[16:] != _seal(raw[:16], digest) or len(cursor) != 32:  # superfluous padding decodes too
        raise problem
    return UUID(bytes=raw[:16])


def _seal(place: bytes, digest: bytes) -> bytes:
    # Over the place too, so that a cursor that was cut or mistyped is refused rather than read as another place.
    return sha256(place + digest).digest()[:8]
