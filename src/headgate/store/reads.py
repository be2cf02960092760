"""Reading jobs, and the counts; lists are in listing.py.

Live and finished jobs are read in one statement, and so in one snapshot: a job on its way from `jobs` to `archive` is
seen once, never twice and never not at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from headgate.domain import limits
from headgate.domain.dependencies import DependencyView
from headgate.domain.errors import NotFound
from headgate.domain.flags import HAS_RELATIONS, JobFlag
from headgate.domain.headers import deadline_us_of, of_caller
from headgate.domain.ids import JobId
from headgate.domain.job_logs import LogPage
from headgate.domain.pacing import Pace
from headgate.domain.states import EventKind, OutcomeKind, State
from headgate.domain.timestamps import from_unix_us
from headgate.domain.validation import check_integer
from headgate.domain.views import FlowMinute, JobEvent, JobView
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.dependencies import relations
from headgate.store.errors import translating
from headgate.store.job_logs import read_log_lines, read_newest_lines
from headgate.store.rows import from_row
from headgate.store.schedules import lineage
from headgate.store.tenant_calls import TenantCalls

# index: jobs_pkey, archive_pkey; idempotency_keys_of_job. tenant_no + 0: else all keys of the tenant may be read.
GET: Final = """
SELECT j.id, j.topic_no, j.state, j.priority, j.attempt, j.max_attempts, j.epoch, j.policy_no, j.last_outcome,
       j.flags & 16 /* cancel_requested */ <> 0, j.owner, split_part(j.worker, chr(31), 1), j.created_at, j.run_at,
       j.claimed_at,
       j.lease_until, NULL::timestamptz, j.last_error, j.headers, j.rank_class, j.rank_at, j.flags,
       j.progress, headgate.clock_v1(), i.key
  FROM headgate.jobs j LEFT JOIN headgate.idempotency_keys i
    ON i.job_id = j.id AND i.tenant_no + 0 = $1 AND i.expires_at > headgate.clock_v1()
 WHERE j.tenant_no = $1 AND j.id = $2
 UNION ALL
SELECT a.id, a.topic_no, a.state, a.priority, a.attempt, a.max_attempts, a.epoch, a.policy_no, a.last_outcome,
       a.flags & 16 /* cancel_requested */ <> 0, a.owner, split_part(a.worker, chr(31), 1), a.created_at, a.run_at,
       a.claimed_at,
       NULL, a.finished_at, a.last_error, a.headers, NULL, NULL, a.flags, a.progress, headgate.clock_v1(), i.key
  FROM headgate.archive a LEFT JOIN headgate.idempotency_keys i
    ON i.job_id = a.id AND i.tenant_no + 0 = $1 AND i.expires_at > headgate.clock_v1()
 WHERE a.tenant_no = $1 AND a.id = $2"""
PAYLOAD: Final = """
SELECT coalesce(f.payload, p.payload)
  FROM (SELECT j.payload FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = $2
         UNION ALL
        SELECT a.payload FROM headgate.archive a WHERE a.tenant_no = $1 AND a.id = $2) AS f
  LEFT JOIN headgate.payloads p ON p.tenant_no = $1 AND p.id = $2"""
RESULT: Final = """
SELECT j.state, NULL::bytea, j.last_error FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = $2
 UNION ALL
SELECT a.state, a.result, a.last_error FROM headgate.archive a WHERE a.tenant_no = $1 AND a.id = $2"""
EVENTS: Final = """
SELECT at, kind, epoch, attempt, state, run_at, claimed_at, split_part(worker, chr(31), 1), actor, reason,
       error_type, error_message, error_trace, detail, event_no
  FROM headgate.job_events
 WHERE tenant_no = $1 AND job_id = $2
       -- Numbers alone do not tell the order: each connection takes some in advance.
   AND ($4::bigint IS NULL OR (at, event_no) < (SELECT e.at, e.event_no FROM headgate.job_events e
                                                 WHERE e.tenant_no = $1 AND e.job_id = $2 AND e.event_no = $4))
 ORDER BY at DESC, event_no DESC LIMIT $3"""
# index: job_tags_of_job
TAGS: Final = """
SELECT job_id, array_agg(tag ORDER BY tag) FROM headgate.job_tags
 WHERE tenant_no = $1 AND job_id = ANY ($2::uuid[]) GROUP BY job_id"""
FINISHED: Final = "SELECT id FROM headgate.archive WHERE tenant_no = $1 AND id = ANY ($2)"
# The folded counts and what has not been folded yet: together exact at any moment.
COUNTS: Final = """
SELECT s.topic_no, s.state, sum(s.n)::bigint
  FROM (SELECT c.topic_no, c.state, c.n FROM headgate.state_counts c WHERE c.tenant_no = $1
         UNION ALL
        SELECT d.topic_no, d.to_state, d.n FROM headgate.flow_deltas d WHERE d.tenant_no = $1
         UNION ALL
        SELECT d.topic_no, d.from_state, -d.n FROM headgate.flow_deltas d WHERE d.tenant_no = $1) AS s
 WHERE s.state >= 0 /* pending */ GROUP BY 1, 2 HAVING sum(s.n) <> 0"""
# The current minute and the previous one: folded, and not folded yet. index: flow_buckets_at
FLOWS: Final = """
SELECT f.topic_no, f.minute, sum(f.submitted)::bigint, sum(f.completed)::bigint, sum(f.retried)::bigint,
       sum(f.failed)::bigint, sum(f.dead)::bigint
  FROM (SELECT b.topic_no, b.at AS minute, b.submitted, b.completed, b.retried, b.failed, b.dead
          FROM headgate.flow_buckets b
         WHERE b.seconds = 60 AND b.at >= date_trunc('minute', $2::timestamptz) - interval '1 minute'
           AND b.tenant_no = $1 AND b.topic_no > 0
         UNION ALL
        SELECT d.topic_no, date_trunc('minute', d.at), c.submitted, c.completed, c.retried, c.failed, c.dead
          FROM headgate.flow_deltas d
         CROSS JOIN LATERAL headgate.flow_columns_v1(d.from_state, d.to_state, d.n) AS c
         WHERE d.at >= date_trunc('minute', $2::timestamptz) - interval '1 minute' AND d.tenant_no = $1) AS f
 GROUP BY 1, 2 ORDER BY 2"""
_KEY: Final = ("tenant_no", "job_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job stands, and what it left behind when it has completed."""

    state: State
    result: bytes | None
    last_error: str | None


async def get(db: Connection, tenant_no: int, job_id: UUID) -> JobView:
    """The job, live or finished. Raises NotFound, also for another tenant's."""
    check_tenant_no(tenant_no)
    with translating(writing=False, names=_KEY):
        row = await db.fetchrow(GET, tenant_no, job_id)
    if row is None:
        raise NotFound("job", str(job_id))
    headers: dict[str, str] = json.loads(row[18]) if row[18] else {}
    deadline_us = deadline_us_of(headers) if headers else 0
    return JobView(
        id=JobId(row[0]),
        topic_no=row[1],
        state=State(row[2]),
        priority=row[3],
        attempt=row[4],
        max_attempts=row[5],
        epoch=row[6],
        policy_no=row[7],
        last_outcome=None if row[8] is None else OutcomeKind(row[8]),
        cancel_requested=row[9],
        owner=row[10],
        worker=row[11],
        created_at=row[12],
        run_at=row[13],
        claimed_at=row[14],
        lease_until=row[15],
        finished_at=row[16],
        last_error=row[17],
        headers=of_caller(headers) if headers else headers,
        deadline=from_unix_us(deadline_us) if deadline_us else None,
        rank_class=row[19],
        rank_at=row[20],
        flags=row[21],
        progress=json.loads(row[22]) if row[22] else None,
        read_at=row[23],
        key=row[24] or "",
    )


async def payload(db: Connection, tenant_no: int, job_id: UUID) -> bytes:
    """The payload of a job, from whichever table has it."""
    check_tenant_no(tenant_no)
    with translating(writing=False, names=_KEY):
        row = await db.fetchrow(PAYLOAD, tenant_no, job_id)
    if row is None:
        raise NotFound("job", str(job_id))
    body: bytes = row[0]
    return body


async def result(db: Connection, tenant_no: int, job_id: UUID) -> JobResult:
    """The job's state and, once it has completed, its result."""
    check_tenant_no(tenant_no)
    with translating(writing=False, names=_KEY):
        row = await db.fetchrow(RESULT, tenant_no, job_id)
    if row is None:
        raise NotFound("job", str(job_id))
    state = State(row[0])
    return JobResult(state=state, result=(row[1] or b"") if state is State.COMPLETED else None, last_error=row[2])


async def events(
    db: Connection, tenant_no: int, job_id: UUID, *, before: int | None = None, limit: int = limits.JOB_EVENTS_MAX
) -> list[JobEvent]:
    """The newest entries of the job's history, or those before the one numbered `before`: oldest first.

    The history outlives the job itself.
    """
    check_tenant_no(tenant_no)
    check_integer(limit, field="limit", low=1, high=10_000)
    with translating(writing=False, names=_KEY):
        rows = await db.fetch(EVENTS, tenant_no, job_id, limit, before)
    return [
        from_row(JobEvent, row, kind=EventKind(row[1]), state=State(row[4]), detail=json.loads(row[13] or "{}"))
        for row in reversed(rows)
    ]


async def tags(db: Connection, tenant_no: int, ids: Sequence[UUID]) -> dict[UUID, Sequence[str]]:
    """The tags of those of these jobs that have some."""
    check_tenant_no(tenant_no)
    with translating(writing=False):
        rows = await db.fetch(TAGS, tenant_no, ids)
    return {job_id: tuple(found) for job_id, found in rows}


async def counts(db: Connection, tenant_no: int) -> dict[int, dict[State, int]]:
    """Jobs by topic number and state, from the rollups: exact, and never a count over the jobs themselves."""
    check_tenant_no(tenant_no)
    with translating(writing=False):
        rows = await db.fetch(COUNTS, tenant_no)
    by_topic: dict[int, dict[State, int]] = {}
    pace = Pace(time.monotonic)
    for topic_no, state, n in rows:
        await pace.rest()
        by_topic.setdefault(topic_no, {})[State(state)] = n
    return by_topic


async def flows(db: Connection, tenant_no: int, now: datetime) -> dict[int, list[FlowMinute]]:
    """What changed in this minute and the one before it, by topic number, from the rollups."""
    check_tenant_no(tenant_no)
    with translating(writing=False):
        rows = await db.fetch(FLOWS, tenant_no, now)
    by_topic: dict[int, list[FlowMinute]] = {}
    for topic_no, minute, submitted, completed, retried, failed, dead in rows:
        one = FlowMinute(
            minute=minute, submitted=submitted, completed=completed, retried=retried, failed=failed, dead=dead
        )
        by_topic.setdefault(topic_no, []).append(one)
    return by_topic


read_payload, read_result, read_events = payload, result, events  # the port has arguments of these names


class JobStore(TenantCalls):
    """Fits control's port for reading jobs."""

    async def job(
        self,
        tenant: str,
        job_id: UUID,
        *,
        payload: bool,
        result: bool,
        events: bool,
        events_before: int | None = None,
        events_limit: int = limits.JOB_EVENTS_MAX,
    ) -> JobView:
        """One job, with what was asked for. Raises NotFound."""
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.as_tenant("read", tenant_no) as db:
            view = await get(db, tenant_no, job_id)
            topic = await self._database.names.topic_by_no(db, view.topic_no)
            related = view.flags & HAS_RELATIONS
            history: Sequence[JobEvent] = ()
            if events:  # and one more, to know whether there are older ones
                history = await read_events(db, tenant_no, job_id, before=events_before, limit=events_limit + 1)
            return replace(
                view,
                tenant=tenant,
                topic=topic.name,
                tags=(await tags(db, tenant_no, [job_id])).get(job_id, ()) if view.flags & JobFlag.TAGGED else (),
                payload=await read_payload(db, tenant_no, job_id) if payload else None,
                result=(await read_result(db, tenant_no, job_id)).result if result else None,
                events=history[-events_limit:],
                older_events=len(history) > events_limit,
                dependencies=await relations(db, tenant_no, job_id) if related else DependencyView(),
                lineage=await lineage(db, tenant_no, job_id) if view.flags & JobFlag.FROM_SCHEDULE else None,
            )

    async def logs(
        self,
        tenant: str,
        job_id: UUID,
        *,
        since: datetime,
        attempt: int | None,
        after: tuple[int, int],
        limit: int,
        newest: bool,
    ) -> LogPage:
        """Log lines of a job that was submitted at `since`: those beyond `after`, or the newest ones."""
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.as_tenant("read", tenant_no) as db:
            if newest:
                return await read_newest_lines(db, tenant_no, job_id, since=since, attempt=attempt, limit=limit)
            return await read_log_lines(db, tenant_no, job_id, since=since, attempt=attempt, after=after, limit=limit)

    async def finished(self, tenant_no: int, ids: Sequence[UUID]) -> list[UUID]:
        """Those of these jobs that have ended."""
        async with self._database.as_tenant("read", tenant_no) as db:
            with translating(writing=False):
                rows = await db.fetch(FINISHED, tenant_no, list(ids))
        return [row[0] for row in rows]
