"""Jobs that have ended, and passes of retention over them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from headgate.domain.errors import NotFound
from headgate.domain.ids import JobId
from headgate.domain.outcomes import ErrorInfo, Failed, Outcome
from headgate.domain.retention import Removed
from headgate.domain.states import State
from headgate.store import reads, retention, verbs
from headgate.store.connect import Connection
from headgate.store.partitions import ensure_partitions
from tests.support.queue import Clock, Queue

DAY = timedelta(days=1)
DIES = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
START = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC) + timedelta(hours=12)


async def end(
    queue: Queue, outcome: Outcome | None, count: int = 1, topic: str = "mail", **options: object
) -> list[JobId]:
    """Jobs that ended so; None: they were cancelled."""
    jobs = await queue.add(count, topic, **options)
    if outcome is None:
        await verbs.cancel(queue.db, await queue.tenant_no(), jobs, who="ana")
        return jobs
    claimed = await queue.claim(count, topic)
    assert set(claimed.ids) == set(jobs)
    await queue.settle(*((i, e, outcome) for i, e in zip(claimed.ids, claimed.epochs, strict=True)))
    return jobs


async def later(clock: Clock, db: Connection, **span: float) -> None:
    await clock.advance(**span)
    await ensure_partitions(db)


async def known(queue: Queue, jobs: Sequence[UUID]) -> list[UUID]:
    found: list[UUID] = []
    for job_id in jobs:
        try:
            found.append((await reads.get(queue.db, await queue.tenant_no(), job_id)).id)
        except NotFound:
            continue
    return found


async def all_passes(db: Connection) -> Removed:
    """Pass after pass until nothing is left to do: every one of them does something, so it comes to an end."""
    jobs = days = other = 0
    while True:
        done = await retention.run_pass(db)
        jobs, days, other = jobs + done.jobs, days + done.days, other + done.other
        if not (done.jobs or done.days or done.other or done.more):
            return Removed(jobs=jobs, days=days, other=other)


async def counts_agree(queue: Queue) -> None:
    """The counts that are reported are those of the rows."""
    tenant = await queue.tenant_no()
    for topic_no, states in (await reads.counts(queue.db, tenant)).items():
        for state in State:
            there = await queue.db.fetchval(
                "SELECT (SELECT count(*) FROM headgate.jobs WHERE (tenant_no, topic_no, state) = ($1, $2, $3))"
                " + (SELECT count(*) FROM headgate.archive WHERE (tenant_no, topic_no, state) = ($1, $2, $3))",
                tenant,
                topic_no,
                int(state),
            )
            assert states.get(state, 0) == there, state


TABLES = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'headgate' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"""


async def end_all(queue: Queue, topic: str, outcome: Outcome | None, jobs: Sequence[UUID] = ()) -> None:
    if outcome is None:
        await verbs.cancel(queue.db, await queue.tenant_no(), list(jobs), who="ana")
        return
    claimed = await queue.claim(50, topic)
    await queue.settle(*((i, e, outcome) for i, e in zip(claimed.ids, claimed.epochs, strict=True)))


async def rows(db: Connection) -> dict[str, int]:
    return {
        name: await db.fetchval(f"SELECT count(*) FROM headgate.{name}")
        for name in sorted(row[0] for row in await db.fetch(TABLES))
    }
