"""What a claim costs among dead rows, locked rows and late arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import mean
from typing import Final

import pytest

from headgate.dispatch.watermark import Watermark
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.store import settle, submit
from headgate.store.connect import Connection, connect
from headgate.store.flush import SubmitFlush
from headgate.store.leases import REAP
from headgate.store.names import Names
from headgate.store.new_ids import BEGINNING
from headgate.store.settle import OutcomeFlush
from headgate.store.tick import TICK
from tests.integration.claim_pages.scratch import (
    CALLS,
    GROWTH,
    N,
    PageTable,
    ScratchDatabase,
    Usual,
    holding_the_first,
    session,
    with_expired_rows,
)
from tests.support import explain, store_calls
from tests.support.database import Server
from tests.support.explain import Cost
from tests.support.queue import make_ids

pytestmark = pytest.mark.timeout(240)


OLD_VERSIONS_GROWTH: Final = 2.0
"""A renewal under a held snapshot meets its own row's old versions: three, which cannot be pruned, instead of one."""
MOST_CANDIDATES: Final = 15 * N
"""What claim_v1 looks at when others hold locks on the head: n, 2n, 4n and 8n, then it gives up for this time."""
PAGES_PER_FAILURE: Final = 200
"""What it takes to settle one of ten failures in a fresh session, catalogs and all."""
NONE_LIVE: Final = """
UPDATE pg_catalog.pg_class SET reltuples = 0, relpages = pg_catalog.pg_relation_size(oid) / 8192
 WHERE relnamespace = 'headgate'::regnamespace AND relname ~ '^jobs'"""
"""What a vacuum notes that finds only dead rows."""
PAGES_PER_DUE_TICK: Final = 300
"""What a tick reads that looks for due jobs only, in a fresh session."""
PAGES_PER_RANGE: Final = 25
"""What a tick reads for each range in which it looks for pending jobs."""


# ------------------------------------------------------------------------------------------------ dead rows


@dataclass(slots=True, kw_only=True)
class Graveyard:
    """100,000 jobs of three priorities that passed while another session held a snapshot, and what a claimer knows."""

    dsn: str
    watermark: Watermark


@pytest.fixture(scope="module")
def graveyard(postgres: Server, fresh: Callable[[], str]) -> Iterator[Graveyard]:
    async def open_and_fill() -> Connection:
        holder = await connect(found.dsn, application_name="headgate test, holds a snapshot")
        await holder.execute("SET idle_in_transaction_session_timeout = 0")
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await holder.execute("SELECT 1")  # the snapshot is taken by the first statement
        async with session(found.dsn) as db:
            await pass_jobs(await ScratchDatabase.quiet(db), found, 100_000)
        return holder

    found = Graveyard(dsn=fresh(), watermark=Watermark())
    holder = postgres.run(open_and_fill())
    yield found
    postgres.run(holder.close())


async def pass_jobs(scratch: ScratchDatabase, found: Graveyard, count: int, *, flush: int = 1_000) -> None:
    """Submit, claim and complete, a flush at a time."""
    db, tenant_no = scratch.db, await scratch.queue.tenant_no()
    (topic_no,) = await scratch.topic_nos()
    priorities = [(0, 5, 10)[place % 3] for place in range(flush)]
    for _ in range(count // flush):
        jobs = SubmitFlush(
            tenant_nos=[tenant_no] * flush,
            ids=list(make_ids.make(flush)),
            topic_nos=[topic_no] * flush,
            payloads=[b"x"] * flush,
            priorities=list(priorities),
            rank_classes=[~priority for priority in priorities],
        )
        assert await submit.submit(db, jobs) == {}
        claimed = await scratch.queue.claim(flush, ranges=found.watermark.ranges([topic_no]))
        assert len(claimed) == flush
        found.watermark.claimed(claimed.topic_nos, claimed.rank_classes, claimed.ranks_at)
        outcomes = OutcomeFlush()
        for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True):
            outcomes.add(tenant_no, job_id, epoch, Completed())
        assert await settle.settle(db, outcomes) == {}


@pytest.mark.req("D6", "T39")
async def test_dead_rows_under_a_held_snapshot_cost_a_claim_nothing(
    graveyard: Graveyard, usual: Usual, table: PageTable
) -> None:
    async with session(graveyard.dsn) as db:
        scratch = ScratchDatabase(db)
        claimer = await scratch.claimer()
        claimer.watermark = graveyard.watermark
        await scratch.fill(1_000, priorities=(0, 5, 10))
        table.judge("claim: 100 k dead rows, watermark", await claimer.costs(), usual=usual.claim)
        # From here on work of the lowest priority only: a claim has to pass the dead of all three.
        while (await claimer.take())[0]:
            pass
        await scratch.fill(1_000)
        low = await claimer.costs()
        table.judge("claim: 100 k dead rows, watermark, lowest priority", low, usual=usual.claim)
        # A whole round of sweeps in a hundred claims: with one every 10 ms, all is looked at again within a second.
        await scratch.fill(100 * N)
        swept = await claimer.costs(95, sweep_us=graveyard.watermark.span_us // 100)
        case = "claim: 100 k dead rows, watermark, sweeping a hundredth"
        table.judge(case, swept, usual=usual.claim, growth=None)
        # A stretch of time holds as many dead as this machine made in it, now more, now less: the round counts.
        assert mean(cost.pages for cost in swept) <= GROWTH * usual.claim, [cost.pages for cost in swept]
        await scratch.fill(1_000)
        head = await scratch.claimer(marked=False)
        costs = await head.costs(3)
        table.judge("claim: 100 k dead rows, from the head", costs, usual=usual.claim, growth=None)
        # Else the case has no dead rows, and proves nothing.
        assert min(cost.pages for cost in costs) > 2 * GROWTH * usual.claim


async def test_dead_rows_under_a_held_snapshot_cost_no_other_call_anything(
    graveyard: Graveyard, usual: Usual, table: PageTable
) -> None:
    async with session(graveyard.dsn) as db:
        scratch = ScratchDatabase(db)
        await scratch.fill(1_000, priorities=[20])
        settles, renewals = await scratch.settled_and_renewed()
        table.judge("settle: 100 k dead rows", settles, usual=usual.settle, growth=usual.growth)
        table.judge("renew: 100 k dead rows", renewals, usual=usual.renew, growth=OLD_VERSIONS_GROWTH)
        began = await with_expired_rows(scratch, running=1_000)
        floor = await store_calls.oldest_running(db, floor=began)
        assert floor is not None
        table.judge(
            "reap: 100 k dead rows, floor", await scratch.counted(REAP, N, floor), usual=usual.reap, growth=usual.growth
        )


@pytest.mark.req("D6")
async def test_dead_rows_under_a_held_snapshot_cost_a_tick_nothing_from_the_marks_on(
    graveyard: Graveyard, table: PageTable
) -> None:
    async with session(graveyard.dsn) as db:
        scratch = ScratchDatabase(db)
        (topic_no,) = await scratch.topic_nos()
        while len(await scratch.queue.claim(1_000)):  # what others left: the first job that is there would end the walk
            pass
        # Above all that runs: the case before leaves a thousand jobs that begin a second after it. A tick whose floor
        # is below them reads their rows too, whatever the ranges, and on a quick machine it was.
        floor = await db.fetchval(
            "SELECT greatest(headgate.clock_v1(), max(claimed_at) + interval '1 s') FROM headgate.jobs WHERE state = 1"
        )

        async def looking(ranges: KeyRanges) -> list[Cost]:
            parts = (ranges.topic_nos, ranges.class_from, ranges.rank_from, ranges.class_to, ranges.rank_to)
            arguments = (0, *parts, N, floor, floor, False, Names().seen)
            return [await explain.cost(db, TICK, *arguments) for _ in range(CALLS)][1:]

        ranges = graveyard.watermark.ranges([topic_no])
        none, marked = await looking(KeyRanges()), await looking(ranges)
        whole = await looking(KeyRanges.whole([topic_no]))
        # Two descents of the index for each range, and nothing for the dead.
        usual = mean(cost.pages for cost in none) + PAGES_PER_RANGE * len(ranges.topic_nos)
        table.judge("tick: 100 k dead rows, from the marks on", marked, usual=usual, growth=1.0)
        table.judge("tick: 100 k dead rows, whole topics", whole, usual=usual, growth=None)
        assert min(cost.pages for cost in whole) > 5 * usual  # else there are no dead rows


async def test_dead_rows_under_a_held_snapshot_cost_a_tick_for_a_due_job_nothing(graveyard: Graveyard) -> None:
    """However old the oldest running job is: such a tick has no floor, and looks at none."""
    async with session(graveyard.dsn) as db:
        await (await ScratchDatabase.quiet(db)).fill(1)

        async def pages(running_floor: datetime | None) -> int:
            arguments = (0, [], [], [], [], [], N, datetime(9999, 1, 1, tzinfo=UTC), running_floor, False, Names().seen)
            return [await explain.cost(db, TICK, *arguments) for _ in range(CALLS)][-1].pages

        without, whole = await pages(None), await pages(BEGINNING)
        assert without < PAGES_PER_DUE_TICK
        assert whole > 10 * PAGES_PER_DUE_TICK  # else there are no dead rows


@pytest.mark.req("C13", "T39")
async def test_rows_that_others_hold_cost_a_claim_a_bounded_number_of_pages(
    database: str, scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    await scratch.fill(10_000)
    await scratch.db.execute("SET lock_timeout = '200ms'")  # a claim that waits for a lock fails
    claimer = await scratch.claimer(marked=False)
    await claimer.cost()
    async with holding_the_first(database, 500):
        costs = [await claimer.cost() for _ in range(CALLS)]  # each must bring its full number
    bound = 1 + usual.pages_per_locked * 7 * N / usual.claim  # three rounds: n, 2n and 4n candidates
    table.judge("claim: 500 rows locked by another", costs, usual=usual.claim, growth=bound)
    async with holding_the_first(database, 2_000):
        costs = [await claimer.cost(short=True) for _ in range(CALLS)]
        assert [cost.rows for cost in costs] == [1] * CALLS  # what has been seen, and no job
    bound = 1 + usual.pages_per_locked * MOST_CANDIDATES / usual.claim
    table.judge("claim: 2,000 rows locked by another", costs, usual=usual.claim, growth=bound)
    assert (await claimer.cost()).rows == N + 1  # and once they are free again, they are claimed


@pytest.mark.req("C13")
async def test_skipping_locked_rows_visits_every_one_of_them(
    database: str, scratch: ScratchDatabase, table: PageTable
) -> None:
    """Why not every worker claims for itself: the K-th claimer of a crowd steps over the rows of K − 1 others."""
    await scratch.fill(10_000)
    plain = "SELECT id FROM headgate.jobs WHERE topic_no = $1 AND state = 0 ORDER BY rank_class, rank_at LIMIT 100"
    (topic_no,) = await scratch.topic_nos()
    found: dict[int, Cost] = {}
    for held in (0, 1_000, 2_000, 4_000):
        async with holding_the_first(database, held), scratch.db.transaction():
            await scratch.db.execute("SET LOCAL enable_sort = off")
            found[held] = await explain.cost(scratch.db, plain + " FOR UPDATE SKIP LOCKED", topic_no)
    alone = found[0].pages
    for held, cost in found.items():
        table.judge(f"plain SKIP LOCKED: {held:,} rows locked", [cost], usual=alone, growth=None)
        assert cost.rows == N
        assert cost.pages - alone >= held  # at least a page visit for each row of another


# ------------------------------------------------------------------------------------------------ arrivals


@pytest.mark.req("T39")
async def test_arrivals_that_were_seen_cost_a_claim_nothing(
    database: str, scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    await scratch.fill(10_000)
    claimer = await scratch.claimer()
    async with session(database) as foreign:
        # A transaction that has written something elsewhere, and stays open: none that began since is over for sure.
        await foreign.execute("CREATE TABLE public.elsewhere (n int)")
        async with foreign.transaction():
            await foreign.execute("INSERT INTO public.elsewhere VALUES (1)")
            for _ in range(20):
                await scratch.db.execute(
                    "INSERT INTO headgate.arrivals (topic_no, rank_class, rank_from, rank_to)"
                    " SELECT $1, -1, n, n FROM generate_series(1, 5000) AS n",
                    claimer.topic_nos[0],
                )
            await claimer.cost()
            table.judge("claim: 100 k arrivals seen", await claimer.costs(), usual=usual.claim)


@pytest.mark.req("T39")
async def test_a_late_arrival_under_a_held_snapshot_costs_a_claim_what_it_brings(
    graveyard: Graveyard, usual: Usual, table: PageTable
) -> None:
    async with session(graveyard.dsn) as db:
        scratch = ScratchDatabase(db)
        claimer = await scratch.claimer()
        claimer.watermark = graveyard.watermark
        await scratch.fill(2_000)
        await claimer.costs(2)
        # In the middle of the dead: as if a transaction of then had committed now.
        low, high = await db.fetchrow("SELECT min(created_at), max(created_at) FROM headgate.archive")
        costs = []
        # PostgreSQL plans a statement again for each of its first five calls, and then no more: those are not counted.
        for part in range(1, 12):
            rank = int((low + (high - low) * part / 12).timestamp() * 1_000_000)
            (late,) = await scratch.queue.add()
            await db.execute("UPDATE headgate.jobs SET rank_at = $2 WHERE id = $1", late, rank)
            await db.execute("SELECT headgate.arrived_v1($1, ARRAY[$2::uuid])", await scratch.queue.tenant_no(), late)
            costs.append(await claimer.cost())  # the first ones with an arrival read the catalogue, to plan
            assert await db.fetchval("SELECT state FROM headgate.jobs WHERE id = $1", late) == 1
        table.judge("claim: a late arrival among 100 k dead rows", costs[5:], usual=usual.claim)


# Last: its failures are claimed again later.
async def test_dead_rows_under_a_held_snapshot_cost_a_flush_without_completions_nothing(graveyard: Graveyard) -> None:
    """The first calls of a session are planned with their arguments, here with an empty list of completed jobs."""
    async with session(graveyard.dsn) as db:
        scratch = ScratchDatabase(db)
        tenant_no = await scratch.queue.tenant_no()
        await scratch.fill(10)
        claimed = await scratch.queue.claim(10, ranges=graveyard.watermark.ranges(await scratch.topic_nos()))
        outcomes = OutcomeFlush()
        outcomes.add_completed(tenant_no, [], [], [])
        for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True):
            outcomes.add(tenant_no, job_id, epoch, Failed(error=ErrorInfo(type="Oops", message="no")))
        arguments, _ = outcomes._arguments()
        assert arguments[:5] == ([], [], [], [], [])
        with_an_empty_run = ([tenant_no], [0], [], [], [], *arguments[5:])
        async with db.transaction():
            await db.execute(NONE_LIVE)
            await db.execute("DROP INDEX headgate.jobs_due, headgate.jobs_claim_order")  # with no dead rows: as cheap
            found = await explain.cost(db, settle.SETTLE, *with_an_empty_run)
        assert found.rows == 10
        assert found.pages < PAGES_PER_FAILURE * 10
