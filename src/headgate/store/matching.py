"""From the filter language to the rows it means: names looked up, relative times fixed, then the lists of listing.py.

A filter is compiled at a moment, `as_of`. A cursor carries that moment along, so that the second page of `created:>2h`
belongs to the same two hours as the first.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from time import monotonic
from typing import Final
from uuid import UUID

from headgate.domain import limits
from headgate.domain.bulk import Counted, JobLine, JobPage
from headgate.domain.errors import InvalidInput
from headgate.domain.filters import TIMES, Field, Glob, JobFilter, Op, Term, moment_of
from headgate.domain.pacing import Pace
from headgate.domain.states import State
from headgate.domain.timestamps import MICROSECOND, from_unix_us, unix_us
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_integer, check_page_size
from headgate.store import listing, reads
from headgate.store.arguments import check_tenant_no
from headgate.store.clock import clock
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.listing import Filter
from headgate.store.names import Names

COUNT_LOOK_AT: Final = 200_000
"""Ids that a count may look at: about a second of work. Past it the answer is "at least"."""
COUNT_MAX: Final = 100_000
COUNT_SECONDS: Final = 5.0
"""How long a count may go on, whatever it has seen by then: others wait for the same connection."""

TOPICS: Final = "SELECT topic_no, name FROM headgate.topics WHERE tenant_no = $1"
KEYS: Final = "SELECT job_id FROM headgate.idempotency_keys WHERE tenant_no = $1 AND key = ANY ($2::text[])"
SCHEDULES: Final = "SELECT schedule_no FROM headgate.schedules WHERE tenant_no = $1 AND name = ANY ($2::text[])"
RANGES: Final = {
    Field.CREATED: ("created_from", "created_before"),
    Field.DUE: ("due_from", "due_before"),
    Field.STARTED: ("started_from", "started_before"),
    Field.FINISHED: ("finished_from", "finished_before"),
    Field.PRIORITY: ("priority_from", "priority_to"),
    Field.ATTEMPTS: ("attempts_from", "attempts_to"),
}
CHOICES: Final = {Field.PRIORITY: ("priorities", "not_priorities"), Field.ATTEMPTS: ("attempts", "not_attempts")}
PATTERNS: Final = {Field.WORKER: ("workers", "not_workers"), Field.ERROR: ("errors", "not_errors")}


async def compiled(
    db: Connection, tenant_no: int, matching: JobFilter, *, as_of: datetime, topics: TopicSet | None = None
) -> Filter | None:
    """What the store looks for; None when nothing can match. `topics` are those that the caller may see."""
    check_tenant_no(tenant_no)
    parts: dict[str, object] = {}
    if matching.of(Field.STATE):
        parts["states"] = matching.states
    if topics is not None or matching.of(Field.TOPIC):
        parts["topic_nos"] = await topic_nos(db, tenant_no, matching.of(Field.TOPIC), topics)
    for term in matching.terms:
        if term.field in TIMES or term.op is not Op.IS:
            _narrow(parts, term, as_of)
        elif term.field in CHOICES:
            _choose(parts, CHOICES[term.field], {int(str(value)) for value in term.values}, negated=term.negated)
        elif term.field in PATTERNS:
            name = PATTERNS[term.field][term.negated]
            parts[name] = (*_choices(parts.get(name)), _patterns(term))
        elif term.field is Field.TAG:
            _tags(parts, term)
        elif term.field is Field.ERROR_GROUP:
            _choose(parts, ("groups", "not_groups"), set(map(str, term.values)), negated=term.negated)
        elif term.field is Field.ID:
            ids = {value for value in term.values if isinstance(value, UUID)}
            _choose(parts, ("ids", "not_ids"), ids, negated=term.negated)
        elif term.field is Field.KEY:
            _choose(parts, ("ids", "not_ids"), await _numbers(db, KEYS, tenant_no, term))
        elif term.field is Field.SCHEDULE:
            found = await _numbers(db, SCHEDULES, tenant_no, term)
            _choose(parts, ("schedule_nos", "not_schedule_nos"), found, negated=term.negated)
        elif term.field is Field.UNIQUE:
            _choose(parts, ("unique_keys", "not_unique_keys"), set(map(str, term.values)), negated=term.negated)
        elif term.field is Field.ARGS:
            parts["bodies"] = (*_terms(parts.get("bodies")), term)
    positive = ("states", "topic_nos", "priorities", "attempts", "groups", "ids", "schedule_nos", "unique_keys")
    if any(name in parts and not parts[name] for name in positive):
        return None
    return Filter(**parts)  # type: ignore[arg-type]  # each part by its own name


async def list_matching(
    db: Connection,
    names: Names,
    tenant_no: int,
    matching: JobFilter,
    *,
    topics: TopicSet | None = None,
    limit: int = limits.PAGE_DEFAULT,
    cursor: str = "",
    oldest: bool = False,
) -> JobPage:
    """One page of what a filter matches, newest first, or oldest."""
    check_page_size(limit)
    seal = sha256(repr((tenant_no, str(matching), topics and topics.listed, oldest)).encode()).digest()[:8]
    now = await clock(db)
    as_of, below = _place(now, cursor, seal, listing.OLDEST if oldest else listing.NEWEST)
    wanted = await compiled(db, tenant_no, matching, as_of=as_of, topics=topics)
    if wanted is None:
        return JobPage(jobs=[], cursor="", read_at=now)
    found = await listing.step(db, tenant_no, wanted, below=below, limit=limit, oldest=oldest)
    onward = f"{unix_us(as_of):x}.{listing.write_cursor(found.below, seal)}" if found.more else ""
    tags = await reads.tags(db, tenant_no, [row.id for row in found.rows]) if found.rows else {}
    rows = [replace(row, tags=tags[row.id]) if row.id in tags else row for row in found.rows]
    return JobPage(
        jobs=await lines(db, names, rows), cursor=onward, read_at=now, partial=found.more and len(rows) < limit
    )


async def count_matching(db: Connection, tenant_no: int, wanted: Filter | None, *, up_to: int = COUNT_MAX) -> Counted:
    """How many match: from the rollups where they know, else by looking, up to a bound."""
    check_integer(up_to, field="up_to", low=1, high=COUNT_MAX)
    if wanted is None:
        return Counted(by_state={}, exact=True)
    counts: Counter[State] = Counter()
    if wanted.is_counted:
        pace = Pace(time.monotonic)
        for topic_no, states in (await reads.counts(db, tenant_no)).items():
            await pace.rest()
            if wanted.topic_nos is None or topic_no in wanted.topic_nos:
                counts.update({s: n for s, n in states.items() if wanted.states is None or s in wanted.states})
        return Counted(by_state=dict(counts), exact=True)
    below, looked, more = listing.NEWEST, 0, True
    until = monotonic() + COUNT_SECONDS
    late = False
    while more and looked < COUNT_LOOK_AT and counts.total() < up_to and not late:
        left = min(listing.CHUNK, up_to - counts.total())
        found = await listing.step(db, tenant_no, wanted, below=below, limit=left)
        counts.update(row.state for row in found.rows)
        below, more = found.below, found.more
        looked += max(1, found.looked)
        late = monotonic() >= until
    return Counted(by_state=dict(counts), exact=not more)


async def lines(db: Connection, names: Names, rows: Iterable[JobLine]) -> list[JobLine]:
    """These with their topics' names."""
    return [replace(row, topic=(await names.topic_by_no(db, row.topic_no)).name) for row in rows]


def bounded(wanted: Filter, as_of: datetime) -> Filter:
    """The filter without what was submitted, or ended, after a moment."""
    before = as_of + MICROSECOND
    if wanted.created_before is not None:
        before = min(before, wanted.created_before)
    return replace(wanted, created_before=before, ended_by=as_of)


# --- the parts --------------------------------------------------------------------------------------------------------


def _place(now: datetime, cursor: str, seal: bytes, begin: UUID) -> tuple[datetime, UUID]:
    if not cursor:
        return now, begin
    stamp, _, rest = cursor.partition(".")
    try:
        as_of = from_unix_us(int(stamp, 16))
    except (ValueError, OverflowError):
        raise InvalidInput("cursor", "does not belong to this list", hint="start again without a cursor") from None
    return as_of, listing.read_cursor(rest, seal)


async def topic_nos(db: Connection, tenant_no: int, terms: Iterable[Term], topics: TopicSet | None) -> frozenset[int]:
    """The numbers of the topics that all terms match, of those the caller may see."""
    with translating(writing=False):
        known = await db.fetch(TOPICS, tenant_no)
    tests = [_topic_test(term) for term in terms]
    found, pace = set(), Pace(time.monotonic)
    for number, name in known:
        await pace.rest()
        if (topics is None or name in topics) and all(test(name) for test in tests):
            found.add(number)
    return frozenset(found)


def _topic_test(term: Term) -> Callable[[str], bool]:
    """Whether a name passes a term; names without wildcards are looked up, however many there are."""
    globs = [value for value in term.values if isinstance(value, Glob)]
    plain = frozenset(one.parts[0] for one in globs if one.is_plain)
    patterns = [one for one in globs if not one.is_plain]
    return lambda name: (name in plain or any(one.matches(name) for one in patterns)) is not term.negated


async def _numbers(db: Connection, statement: str, tenant_no: int, term: Term) -> set[object]:
    with translating(writing=False):
        return {row[0] for row in await db.fetch(statement, tenant_no, [str(value) for value in term.values])}


def _narrow(parts: dict[str, object], term: Term, as_of: datetime) -> None:
    """Take one comparison into the range; several narrow it further."""
    low, high = RANGES[term.field]
    op = term.op.opposite if term.negated else term.op
    value = moment_of(term.values[0], now=as_of) if term.field in TIMES else term.values[0]
    if isinstance(value, datetime):  # low is inclusive, high is not
        at = value + (MICROSECOND if op in (Op.ABOVE, Op.TO) else timedelta(0))
        if op in (Op.ABOVE, Op.FROM):
            parts[low] = max(at, _moment(parts.get(low)) or at)
        else:
            parts[high] = min(at, _moment(parts.get(high)) or at)
        return
    number = int(str(value)) + (1 if op is Op.ABOVE else -1 if op is Op.BELOW else 0)  # both are inclusive
    if not limits.PRIORITY_MIN <= number <= limits.PRIORITY_MAX:  # beyond the last there is: nothing matches
        parts["ids"] = frozenset()
    elif op in (Op.ABOVE, Op.FROM):
        parts[low] = max(number, _number(parts.get(low), number))
    else:
        parts[high] = min(number, _number(parts.get(high), number))


def _moment(value: object) -> datetime | None:
    return value if isinstance(value, datetime) else None


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


def _choose(
    parts: dict[str, object], names: tuple[str, str], values: Iterable[object], *, negated: bool = False
) -> None:
    """Either of several, or none of them; a second choice narrows the first."""
    name, given = names[negated], frozenset(values)
    before = parts.get(name)
    if isinstance(before, frozenset):
        given = before | given if negated else before & given
    parts[name] = given


def _tags(parts: dict[str, object], term: Term) -> None:
    given = frozenset(str(value) for value in term.values)
    if term.negated:
        _choose(parts, ("", "not_tags"), given, negated=True)
        return
    before = parts.get("tag_choices")
    parts["tag_choices"] = (*(before if isinstance(before, tuple) else ()), given)


def _choices(value: object) -> tuple[tuple[str, ...], ...]:
    return value if isinstance(value, tuple) else ()


def _terms(value: object) -> tuple[Term, ...]:
    return value if isinstance(value, tuple) else ()


def _patterns(term: Term) -> tuple[str, ...]:
    """The values of a term as patterns for LIKE. An error is searched, a worker must fit as a whole."""
    around = "%" if term.field is Field.ERROR else ""
    return tuple(
        f"{around}{'%'.join(map(_literally, value.parts))}{around}" for value in term.values if isinstance(value, Glob)
    )


def _literally(text: str) -> str:
    return re.sub(r"[\\%_]", r"\\\g<0>", text)
