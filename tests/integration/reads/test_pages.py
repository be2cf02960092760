"""Pages of a list while jobs move, and what a page costs."""

from __future__ import annotations

import asyncio
import random
from itertools import product
from typing import Any

import pytest

from headgate.domain.errors import InvalidInput, StoreBusy
from headgate.domain.outcomes import Completed
from headgate.domain.states import State
from headgate.store import reads, verbs
from headgate.store.connect import connect
from headgate.store.listing import LOOK_AT, Filter
from tests.integration.reads.walking import HOUR, ids_of
from tests.support import store_calls
from tests.support.queue import Clock, Queue, links

# --- lists while jobs move --------------------------------------------------------------------------------------------


async def test_jobs_that_arrive_between_pages_do_not_disturb(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    before = await queue.add(50)
    seen, cursor = [], None
    while True:
        page = await store_calls.list_jobs(queue.db, tenant, limit=7, cursor=cursor)
        seen += [row.id for row in page.rows]
        await queue.add(5)
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == before[::-1]


@pytest.mark.parametrize("matching", [{}, {"priority_from": 0}, {"states": frozenset(State)}])
async def test_a_job_that_moves_between_pages_is_seen_once(queue: Queue, matching: dict[str, Any]) -> None:
    """To the archive, back by a redrive, and away again: its place in the list is its id's, wherever it lies."""
    tenant = await queue.tenant_no()
    jobs = await queue.add(60)
    chance = random.Random(11)
    seen, cursor = [], None
    while True:
        page = await store_calls.list_jobs(queue.db, tenant, matching=Filter(**matching), limit=9, cursor=cursor)
        seen += [row.id for row in page.rows]
        claimed = await queue.claim(15)
        await queue.settle(*((i, epoch, Completed()) for i, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
        await verbs.redrive(queue.db, tenant, chance.sample(jobs, 20))
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == jobs[::-1]


@pytest.mark.parametrize("states", [None, frozenset({State.COMPLETED})])
async def test_a_job_that_ended_before_it_was_created_is_listed_by_its_time_of_creation(
    queue: Queue, states: frozenset[State] | None
) -> None:
    """The clock was set back over midnight meanwhile."""
    clock = await Clock.install(queue.db)
    await clock.set(clock.now.replace(hour=0, minute=10))
    (job,) = await queue.add(1)
    created = clock.now
    claimed = await queue.claim(1)
    await clock.advance(hours=-1)
    await queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
    wanted = Filter(created_from=created, states=states)
    page = await store_calls.list_jobs(queue.db, await queue.tenant_no(), matching=wanted)
    assert [row.id for row in page.rows] == [job]


async def test_a_job_that_moves_while_it_is_read_is_never_missing_nor_doubled(queue: Queue, database: str) -> None:
    """Reader and worker at full speed: every read finds the job exactly once."""
    tenant = await queue.tenant_no()
    jobs = await queue.add(4)
    over = asyncio.Event()
    turns = rounds = 0

    async def work() -> None:
        nonlocal turns
        worker = await connect(database, application_name="worker")
        mine = Queue(worker)
        while turns < 60 or rounds <= 10:
            turns += 1
            claimed = await mine.claim(4)
            await mine.settle(*((i, epoch, Completed()) for i, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
            await verbs.redrive(worker, tenant, jobs)
        over.set()
        await worker.close()

    async def read() -> None:
        nonlocal rounds
        while not over.is_set():
            assert await ids_of(queue.db, tenant) == jobs[::-1]
            assert (await reads.get(queue.db, tenant, jobs[0])).id == jobs[0]
            assert await reads.payload(queue.db, tenant, jobs[1]) == b"x"
            counts = (await reads.counts(queue.db, tenant)).values()
            assert sum(n for states in counts for n in states.values()) == 4
            rounds += 1

    async with asyncio.timeout(60):
        await asyncio.gather(work(), read())


async def test_a_cursor_continues_only_with_the_list_it_came_from(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await queue.add(5, tags=["red"], priority=3)
    now = (await store_calls.list_jobs(queue.db, tenant, limit=1)).rows[0].created_at
    filters = [
        Filter(),
        Filter(states=frozenset({State.PENDING})),
        Filter(states=frozenset({State.PENDING, State.DEAD})),
        Filter(topic_nos=frozenset({(await queue.topic()).no})),
        Filter(tags=["red"]),
        Filter(priority_from=3),
        Filter(priority_to=3),
        Filter(created_from=now),
        Filter(created_before=now + HOUR),
    ]
    for matching in filters:
        cursor = (await store_calls.list_jobs(queue.db, tenant, matching=matching, limit=2)).cursor
        for other in filters:
            if other == matching:
                # The size of a page is no part of the list.
                page = await store_calls.list_jobs(queue.db, tenant, matching=other, limit=100, cursor=cursor)
                assert len(page.rows) == 3
                continue
            with pytest.raises(InvalidInput, match="does not belong to this list"):
                await store_calls.list_jobs(queue.db, tenant, matching=other, limit=2, cursor=cursor)


# --- what a page costs ------------------------------------------------------------------------------------------------

LIVE_ROWS = """
INSERT INTO headgate.jobs (id, rank_at, created_at, run_at, tenant_no, topic_no, rank_class, priority, max_attempts,
                           policy_no, state, payload)
SELECT encode(substring(int8send(1700000000000 + n) FROM 3) || '\\x70008000000000000000'::bytea, 'hex')::uuid, n, now(),
       now(), $1, $2, -1, 0, 20, 1, CASE WHEN n > 60000 THEN 2 ELSE 0 END, ''
  FROM generate_series(1, 100000) AS n"""
FINISHED_ROWS = """
INSERT INTO headgate.archive (id, created_at, run_at, finished_at, tenant_no, topic_no, priority, attempt, max_attempts,
                              epoch, policy_no, state, flags, payload)
SELECT encode(substring(int8send(1700000050000 + n) FROM 3) || '\\x70008000000000000001'::bytea, 'hex')::uuid, now(),
       now(), now(), $1, $2, 0, 1, 20, 1, 1, 5, 0, ''
  FROM generate_series(1, 100000) AS n"""


async def test_a_page_over_200_000_jobs_reads_a_bounded_number_of_rows(queue: Queue, database: str) -> None:
    """Without statistics and with them, with a plan for this call and one for all calls: a page is a page."""
    tenant, topic = await queue.tenant_no(), (await queue.topic()).no
    await queue.db.execute("SET statement_timeout = 0")
    await queue.db.execute("ALTER TABLE headgate.jobs SET (autovacuum_enabled = off)")
    await queue.db.execute(LIVE_ROWS, tenant, topic)
    await queue.db.execute(FINISHED_ROWS, tenant, topic)

    async def rows_read(matching: Filter, mode: str, cursor: str | None = None) -> tuple[int, store_calls.Page]:
        """One page on a fresh session, and how many rows it touched; a transaction's own figures are never late."""
        link = await connect(database, application_name="reader")
        async with link.transaction():
            await link.execute(
                "SET LOCAL max_parallel_workers_per_gather = 0"
            )  # what a parallel worker reads is not counted
            await link.execute(f"SET LOCAL plan_cache_mode = {mode}")
            page = await store_calls.list_jobs(link, tenant, matching=matching, limit=50, cursor=cursor)
            touched: int = await link.fetchval(
                "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_catalog.pg_stat_xact_all_tables"
                " WHERE schemaname = 'headgate'"
            )
        await link.close()
        return touched, page

    def one(*states: State) -> frozenset[State]:
        return frozenset(states)

    for analysed, mode in product((False, True), ("force_custom_plan", "force_generic_plan")):
        if analysed:
            await queue.db.execute("ANALYZE headgate.jobs; ANALYZE headgate.archive")
        # A page with no filter, at the head and in the middle of the list: its own rows, twice.
        touched, page = await rows_read(Filter(), mode)
        assert (touched <= 400, len(page.rows)) == (True, 50), touched
        touched, page = await rows_read(Filter(), mode, page.cursor)
        assert (touched <= 400, len(page.rows)) == (True, 50), touched
        # What nothing matches: each id is chosen once and looked up once, and no more than LOOK_AT of them.
        for matching, ends in (
            (Filter(topic_nos=frozenset({999})), False),
            (Filter(priority_from=1), False),
            (Filter(states=one(State.BLOCKED)), False),
            (Filter(states=one(State.RETRYING)), False),  # 40,000 others wait: too many to look at by their due time
            (Filter(states=one(State.COMPLETED), priority_to=-1), False),
            (Filter(states=one(State.PENDING, State.DEAD), priority_from=1), False),
            (Filter(states=one(State.RUNNING)), True),
            (Filter(states=one(State.DEAD, State.CANCELLED)), True),
            (Filter(tags=["none"]), True),
            (Filter(schedule_no=1), True),
        ):
            touched, page = await rows_read(matching, mode)
            assert page.rows == []
            assert (page.cursor is None) is ends, matching
            bound = 10 if ends else 3 * LOOK_AT if matching.states == one(State.RETRYING) else 2 * LOOK_AT
            bound += 2_000 if not ends else 0
            assert touched <= bound, (analysed, mode, matching, touched)
    assert len(await ids_of(queue.db, tenant, states=one(State.BLOCKED))) == 0  # the short pages do come to an end


async def test_a_list_that_takes_too_long_says_how_to_narrow_it(queue: Queue, database: str) -> None:
    await queue.add(3)
    tenant = await queue.tenant_no()
    async with links(database, 2) as (reader, blocker), blocker.transaction():
        await blocker.execute("LOCK TABLE headgate.archive IN ACCESS EXCLUSIVE MODE")
        await reader.execute("SET statement_timeout = '100ms'")
        with pytest.raises(StoreBusy, match=r"too broad .* narrow it \(a topic, a state, a span of time\)"):
            await store_calls.list_jobs(reader, tenant, matching=Filter(priority_from=1))
