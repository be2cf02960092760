"""What a call for some jobs reads does not grow with the number of other jobs, whatever the statistics say.

A queue is empty now and then. Statistics that are taken at that moment let every plan look equally cheap, also one that
reads all rows of a tenant; and a session keeps its plans until the next ANALYZE.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

import pytest

from headgate.domain.dependencies import Dependencies, NewBatch, Unique
from headgate.domain.ids import JobId
from headgate.domain.job_logs import AttemptLines, LogLevel, LogLine
from headgate.domain.outcomes import Completed, Outcome
from headgate.store import dependencies, reads, verbs
from headgate.store.batches import open_batch
from headgate.store.connect import Connection
from headgate.store.job_logs import add_log_lines
from tests.integration.test_dependencies import DIES
from tests.support.queue import Queue, new_id

JOBS: Final = 500
SOME: Final = 20
MOST: Final = 15 * SOME
"""Entries of one index that a call for SOME jobs may read."""
READ: Final = """
SELECT c.relname, pg_stat_get_xact_tuples_returned(c.oid) FROM pg_class c
 WHERE c.relnamespace = 'headgate'::regnamespace"""
ONE_LINE: Final = """
INSERT INTO headgate.job_logs (tenant_no, job_id, epoch, seq, attempt, at, stored_at, level, logger, line)
VALUES ($1, $2, 1, 1, 1, now(), now(), 2, '', '')"""
FORGET: Final = "SELECT headgate.forget_jobs_v1($1, $2, $3, $4, $5, $5)"
TABLES: Final = """
SELECT format('ANALYZE headgate.%I', relname) FROM pg_class
 WHERE relkind IN ('r', 'p') AND relnamespace = 'headgate'::regnamespace"""


class Related:
    """Jobs with a batch, tags and keys of every kind; and parents, each with a child."""

    def __init__(self, db: Connection, batch: JobId) -> None:
        self.queue = Queue(db)
        self.batch = batch
        self.epochs: dict[UUID, int] = {}

    async def members(self, count: int) -> list[JobId]:
        done = await self.queue.submit(
            *(
                self.queue.job(
                    batch=self.batch, tags=("all", f"tag-{nth}"), limit_key=f"limit-{nth}", key=f"key-{new_id()}",
                    unique=Unique(key=f"unique-{new_id()}"),
                )
                for nth in range(count)
            )
        )  # fmt: skip
        return [one.id for one in done]

    async def children(self, parents: list[JobId]) -> list[JobId]:
        done = await self.queue.submit(*(self.queue.job("child", depends_on=(parent,)) for parent in parents))
        return [one.id for one in done]

    async def claimed(self, topic: str) -> list[UUID]:
        claimed = await self.queue.claim(JOBS // 2, topic)
        self.epochs |= dict(zip(claimed.ids, claimed.epochs, strict=True))
        return list(claimed.ids)

    async def settle(self, ids: list[UUID], outcome: Outcome) -> None:
        await self.queue.settle(*((job_id, self.epochs[job_id], outcome) for job_id in ids))


@pytest.mark.parametrize(
    ("analysed", "plan"), [(False, "auto"), (True, "auto"), (True, "force_generic_plan")], ids=str
)  # fmt: skip
async def test_a_call_for_some_jobs_reads_no_rows_of_others(db: Connection, *, analysed: bool, plan: str) -> None:
    related = Related(db, new_id())
    queue, tenant = related.queue, await related.queue.tenant_no()
    await open_batch(db, queue.names, tenant, NewBatch(id=related.batch), callback=queue.job("done"))
    await related.members(1)
    await related.children(await queue.add(1, "parent"))
    await db.execute(ONE_LINE, tenant, new_id())
    if analysed:
        for (analyse,) in await db.fetch(TABLES):
            await db.execute(analyse)
    members, parents = await related.members(JOBS), await queue.add(JOBS, "parent")
    children = await related.children(parents)
    running, running_parents = await related.claimed("mail"), await related.claimed("parent")
    pending = [job_id for job_id in members if job_id not in related.epochs][:SOME]
    dead, dead_parents = running[-SOME:], running_parents[-SOME:]
    await related.settle([*dead, *dead_parents], DIES)
    other = await queue.topic("other")
    written = zip(children[:SOME], parents[:SOME], strict=True)
    taken_back = [(child, Dependencies(depends_on=(parent,))) for child, parent in written]
    line = LogLine(17, 0, LogLevel.INFO, "app", "text")  # the 17th is the first for which others are read
    logged = [AttemptLines(job_id, related.epochs[job_id], 1, [line]) for job_id in (*running[:10], *dead[:10])]
    lines = [LogLine(seq, 0, LogLevel.INFO, "app", "text") for seq in (1, 2)]
    await add_log_lines(db, tenant, [AttemptLines(job_id, related.epochs[job_id], 1, lines) for job_id in running])
    now = [await db.fetchval("SELECT headgate.clock_v1()")] * SOME
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "complete members": lambda: related.settle(running[:SOME], Completed()),
        "complete parents": lambda: related.settle(running_parents[:SOME], Completed()),
        "fail members": lambda: related.settle(running[:SOME], DIES),
        "fail parents": lambda: related.settle(running_parents[:SOME], DIES),
        "cancel": lambda: verbs.cancel(db, tenant, pending),
        "cancel children": lambda: verbs.cancel(db, tenant, children[:SOME]),
        "reprioritise": lambda: verbs.reprioritise(db, tenant, pending, priority=3),
        "move": lambda: verbs.move(db, tenant, pending, topic_no=other.no),
        "redrive": lambda: verbs.redrive(db, tenant, dead),
        "redrive parents": lambda: verbs.redrive(db, tenant, dead_parents),
        "discard": lambda: verbs.discard(db, tenant, dead),
        "discard parents": lambda: verbs.discard(db, tenant, dead_parents),
        "submit members": lambda: related.members(SOME),
        "submit children": lambda: related.children(parents[-SOME:]),
        "store log lines": lambda: add_log_lines(db, tenant, logged),
        "read a job": lambda: reads.get(db, tenant, pending[0]),
        "read a finished job": lambda: reads.get(db, tenant, dead[0]),
        "forget log lines": lambda: db.execute(FORGET, [tenant] * SOME, dead, [0] * SOME, [6] * SOME, now),
        "take dependencies back": lambda: dependencies.remove(db, tenant, taken_back),
    }
    await db.execute(f"SET plan_cache_mode = {plan}")
    too_many = {}
    for name, call in calls.items():
        before = dict(await db.fetch(READ))
        transaction = db.transaction()
        await transaction.start()
        await call()
        read = {index: count - before.get(index, 0) for index, count in await db.fetch(READ)}
        await transaction.rollback()
        if name == "forget log lines":  # one step of a function that looks at other tables, too
            read = {index: count for index, count in read.items() if index.startswith("job_logs")}
            assert sum(read.values()) > 0
        too_many |= {(name, index): count for index, count in read.items() if count > MOST}
    assert not too_many
