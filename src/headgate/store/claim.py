"""Claiming: one call of `headgate.claim_v1`, committed before its jobs are sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from headgate.domain import limits
from headgate.domain.arrivals import ClaimNews, RankRange, Seen
from headgate.domain.dispatching import Claimed, ClaimRequest
from headgate.domain.errors import InvalidInput
from headgate.domain.keyrange import KeyRanges
from headgate.domain.validation import MILLISECOND, check_claim_size, check_integer, check_worker_id
from headgate.domain.workers import worker_id_of
from headgate.store.arguments import INT32_MAX, check_kind, check_parallel, check_rows, check_tenant_no
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating

# RETURNING has no order, so the rows are sorted here: best first, as the workers are to get them.
CLAIM: Final = """
SELECT id, topic_no, epoch, attempt, max_attempts, priority, rank_class, rank_at, created_at, lease_until, worker,
       headers, payload, run_at, note
  FROM headgate.claim_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
 ORDER BY rank_class, rank_at, id"""

_NAMES: Final = (
    *("tenant_no", "topic_nos", "ranges", "ranges", "ranges", "ranges", "ranges", "hints"),
    *("limit", "owner", "workers", "runs", "lease_ms", "seen", "seen"),
)
_TOPICS_MAX: Final = 100_000  # no tenant has that many; a list without any bound would be a way to fill the memory


_COLUMNS: Final = Claimed.__slots__[:-2]
NOTE: Final = len(_COLUMNS)  # behind the columns of a job: what a row is that is none


async def claim(db: Connection, request: ClaimRequest, *, owner: int) -> Claimed:
    """Claim for the instance `owner`."""
    arguments = claim_arguments(request, owner)
    if not request.topic_nos:
        return Claimed()
    with translating(writing=True, names=_NAMES):
        rows = await db.fetch(CLAIM, *arguments)
    return claimed(rows)


def claim_arguments(request: ClaimRequest, owner: int) -> tuple[object, ...]:
    """Those of `claim_v1`, checked."""
    workers, runs, limit = request.workers, request.runs, request.limit
    check_tenant_no(request.tenant_no)
    check_claim_size(limit, field="limit")
    check_integer(owner, field="owner", low=0, high=INT32_MAX)
    check_integer(request.lease_ms, field="lease_ms", low=1, high=86_400_000)
    if not check_rows(workers, field="workers", limit=limits.CLAIM_MAX, unit="workers"):
        raise InvalidInput("workers", "must name at least one worker")
    for worker in workers:
        check_worker_id(worker_id_of(worker), field="workers")
    check_rows(runs, field="runs", limit=limits.CLAIM_MAX, unit="runs")
    for run in runs:
        check_integer(run, field="runs", low=1, high=limits.CLAIM_MAX)
    many = len(workers)
    if many > 1 and (len(runs) != many or sum(runs) < limit):
        raise InvalidInput("runs", f"must give each of the {many} workers at least one of the {limit} jobs")
    check_rows(request.hints, field="hints", limit=_TOPICS_MAX, unit="ids")
    check_rows(request.topic_nos, field="topic_nos", limit=_TOPICS_MAX, unit="topics")
    where = _ranges(request.topic_nos, request.ranges)
    return (
        request.tenant_no,
        request.topic_nos,
        where.topic_nos,
        where.class_from,
        where.rank_from,
        where.class_to,
        where.rank_to,
        request.hints,
        limit,
        owner,
        workers,
        runs,
        request.lease_ms,
        *(request.seen or (None, None)),
    )


def claimed(rows: Sequence[Any]) -> Claimed:
    """Rows of `claim_v1`, sorted, as columns."""
    waits: list[tuple[int, float | None]] = []
    news: ClaimNews | None = None
    jobs = len(rows)
    while jobs and (note := (row := rows[jobs - 1])[NOTE]) is not None:  # they come last, having no rank
        jobs -= 1
        if note == "news":
            news = _news(Seen(row[10], row[7]), row[11])
        else:
            waits.append((row[1], None if row[9] is None else (row[9] - row[8]).total_seconds()))
    if not jobs:
        return Claimed(waits=tuple(waits), news=news)
    columns = zip(*rows[:jobs], strict=True)
    return Claimed(**dict(zip(_COLUMNS, columns, strict=False)), waits=tuple(waits), news=news)


def _news(seen: Seen, said: str | None) -> ClaimNews:
    if said is None:
        return ClaimNews(seen=seen)
    found: dict[str, Any] = json.loads(said)
    return ClaimNews(
        seen=seen,
        arrived=[RankRange(*one) for one in found.get("arrived", ())],
        locked=[RankRange(*one) for one in found.get("locked", ())],
        paused=frozenset(found.get("paused", ())),
        limited=frozenset(found.get("limited", ())),
        ended=(ended[0], ended[1]) if (ended := found.get("ended")) else None,
        restart="restart" in found,
    )


def _ranges(topic_nos: Sequence[int], ranges: KeyRanges | None) -> KeyRanges:
    if ranges is None:
        return KeyRanges.whole(topic_nos)
    check_kind(ranges, KeyRanges, field="ranges")
    columns = {name: getattr(ranges, name) for name in KeyRanges.__slots__}
    check_parallel("ranges", len(ranges.topic_nos), columns)
    return ranges


class ClaimCalls(Database):
    """Claims of one instance, which owns what it gets."""

    async def claim(self, request: ClaimRequest) -> Claimed:
        async with self.lane("claim").use("claim") as db:
            return await claim(db, request, owner=self.instance_no)

    def topic_name(self, topic_no: int) -> str:
        return self.names.topics_by_no[topic_no].name

    def payload_schema(self, topic_no: int) -> str | None:
        """The JSON Schema of its payloads, if it has one."""
        topic = self.names.topics_by_no[topic_no]
        return self.names.schemas.get(topic.tenant_no, {}).get(topic.name)

    def time_limit_ms(self, topic_no: int) -> int | None:
        """Of one attempt by the topic's rule; 0: no limit; None: no rule."""
        span = self.names.topics_by_no[topic_no].rules.time_limit
        return None if span is None else span // MILLISECOND
