"""Whatever the statistics and the plan: a claim is right, and reads the index in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg
import pytest

from headgate.domain.keyrange import HIGHEST, LOWEST, KeyRanges
from headgate.domain.states import State
from headgate.store.claim import CLAIM
from headgate.store.connect import Connection
from tests.integration.claim_pages.scratch import (
    LEASE_MS,
    TEN,
    N,
    PageTable,
    ScratchDatabase,
    Usual,
    holding_the_first,
    session,
)
from tests.support import explain
from tests.support.explain import PLAN_MODES, Node, PlanMode

pytestmark = pytest.mark.timeout(240)


CLAIM_JOBS: Final = CLAIM.replace(" ORDER BY", " WHERE id IS NOT NULL ORDER BY")


# ------------------------------------------------------------------------------------------------ stale statistics


async def never_analysed(scratch: ScratchDatabase) -> None:
    await scratch.fill(100_000)


async def analysed_when_empty(scratch: ScratchDatabase) -> None:
    await scratch.db.execute("ANALYZE headgate.jobs")
    await scratch.fill(100_000)


async def analysed_when_all_ran(scratch: ScratchDatabase) -> None:
    now = datetime.now(UTC)
    await scratch.fill(20_000, state=State.RUNNING, claimed_at=now, lease_until=now + timedelta(hours=1))
    await scratch.db.execute("ANALYZE headgate.jobs")
    await scratch.fill(100_000)


async def analysed_before_the_tenant_came(scratch: ScratchDatabase) -> None:
    await ScratchDatabase(scratch.db, tenant="other").fill(20_000)
    await scratch.db.execute("ANALYZE headgate.jobs")
    await scratch.fill(100_000)


async def analysed_when_full(scratch: ScratchDatabase) -> None:
    await scratch.fill(100_000)
    await scratch.db.execute("ANALYZE headgate.jobs")


STATISTICS: Final = (
    never_analysed,
    analysed_when_empty,
    analysed_when_all_ran,
    analysed_before_the_tenant_came,
    analysed_when_full,
)


@pytest.mark.req("D6", "D14", "P3", "P7", "T39")
@pytest.mark.parametrize("prepare", STATISTICS, ids=lambda prepare: prepare.__name__)
async def test_whatever_the_statistics_say_a_claim_reads_the_index_in_order_and_the_rows_by_key(
    scratch: ScratchDatabase, usual: Usual, table: PageTable, prepare: Callable[[ScratchDatabase], Awaitable[None]]
) -> None:
    await prepare(scratch)
    costs = await (await scratch.claimer()).costs()
    table.judge(f"claim: 100 k, {prepare.__name__.replace('_', ' ')}", costs, usual=usual.claim)
    await scratch.fill(1_000, topics=TEN)
    tenant_no, topic_nos = await scratch.queue.tenant_no(), await scratch.topic_nos(("mail", *TEN))
    (hint,) = await scratch.queue.add(topic="topic-3")
    for mode in PLAN_MODES:
        chosen = await check_choosing(scratch.db, tenant_no, topic_nos, hint, mode)
        await check_locking(scratch.db, tenant_no, chosen, mode)
        await check_taking(scratch.db, tenant_no, chosen, mode)


async def check_choosing(
    db: Connection, tenant_no: int, topic_nos: Sequence[int], hint: UUID, mode: PlanMode
) -> list[UUID]:
    """No more is read than n rows of each topic, in the order of the claim index; only those are merged."""
    statement = explain.inner("claim_v1", "choose")
    values = choosing(tenant_no, topic_nos, KeyRanges.whole(topic_nos), hints=[hint])
    plan = (await explain.explain(db, statement, values, mode=mode)).plan
    most = len(topic_nos) * N
    by_hint, by_order = split(plan.scans_of("jobs"), lambda node: node.index == "jobs_claim_order")
    assert {node.type for node in (*by_hint, *by_order)} == {"Index Scan"}, plan.outline()
    assert {node.index for node in by_hint} == {"jobs_pkey"}, plan.outline()
    assert by_order, plan.outline()
    assert sum(node.rows_read for node in by_order) <= most, plan.outline()
    assert sum(node.rows_read for node in by_hint) <= 1, plan.outline()
    # What is sorted has been cut to n per topic before: no sort ever sees the backlog.
    assert all(node.rows_in <= most + 1 for node in plan if "Sort" in node.type), plan.outline()
    (row,) = await explain.run(
        db, statement, values, mode=mode, settings=await explain.own_settings(db, statement.function)
    )
    return list(row[0])


async def check_locking(db: Connection, tenant_no: int, chosen: Sequence[UUID], mode: PlanMode) -> None:
    """Ordered first, then locked, one by one, until there are enough; found by key."""
    values = {"tenant_": tenant_no, "v_chosen": chosen, "n_": N, "v_ids": []}
    plan = (await explain.explain(db, explain.inner("claim_v1", "lock"), values, mode=mode)).plan
    assert {(node.type, node.index) for node in plan.scans_of("jobs")} == {("Index Scan", "jobs_pkey")}, plan.outline()
    assert sum(node.rows_read for node in plan.scans_of("jobs")) == len(chosen) == N, plan.outline()
    above = [node.type for node in plan]
    assert above.index("Limit") < above.index("LockRows") < above.index("Sort"), plan.outline()


async def check_taking(db: Connection, tenant_no: int, ids: Sequence[UUID], mode: PlanMode) -> None:
    """Written by key, and nothing else of the table is read."""
    plan = (await explain.explain(db, explain.inner("claim_v1", "take"), taking(tenant_no, ids), mode=mode)).plan
    assert {(node.type, node.index) for node in plan.scans_of("jobs")} == {("Index Scan", "jobs_pkey")}, plan.outline()
    assert sum(node.rows_read for node in plan.scans_of("jobs")) == len(ids) == N, plan.outline()


def choosing(
    tenant_no: int, topic_nos: Sequence[int], ranges: KeyRanges, *, hints: Sequence[UUID] = ()
) -> dict[str, object]:
    """Values for claim_v1's first look at its candidates."""
    return {
        "tenant_": tenant_no,
        "v_topics": topic_nos,
        "v_left": [],
        "range_topics_": ranges.topic_nos,
        "class_from_": ranges.class_from,
        "rank_from_": ranges.rank_from,
        "class_to_": ranges.class_to,
        "rank_to_": ranges.rank_to,
        "hints_": hints,
        "v_round": 0,
        "v_class": None,
        "v_rank": None,
        "v_look": N,
    }


def taking(tenant_no: int, ids: Sequence[UUID]) -> dict[str, object]:
    """Values for claim_v1's update."""
    return {
        "tenant_": tenant_no,
        "v_ids": ids,
        "v_now": datetime.now(UTC),
        "owner_": 1,
        "lease_ms_": LEASE_MS,
        "workers_": ["w"],
        "v_slots": None,
        "v_limited": [],
        "v_sorted": None,
    }


def split(nodes: Sequence[Node], test: Callable[[Node], bool]) -> tuple[list[Node], list[Node]]:
    """Those that fail a test and those that pass it."""
    return [node for node in nodes if not test(node)], [node for node in nodes if test(node)]


# ------------------------------------------------------------------------------------------------ forced plans

_SCANS: Final = ("enable_seqscan", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")
_JOINS: Final = ("enable_nestloop", "enable_hashjoin", "enable_mergejoin")


def only(wanted: str, family: Sequence[str], **others: str) -> dict[str, str]:
    return {name: "on" if name == wanted else "off" for name in family} | others


FORCED: Final[Mapping[str, Mapping[str, str]]] = {
    "the planner's choice": {},
    "sequential scans": only("enable_seqscan", _SCANS),
    "bitmap scans": only("enable_bitmapscan", _SCANS),
    "index scans": only("enable_indexscan", _SCANS),
    "nested loops over whole tables": only("enable_seqscan", _SCANS, **only("enable_nestloop", _JOINS)),
    "nested loops, nothing kept": only("enable_nestloop", _JOINS, enable_material="off", enable_memoize="off"),
    "hash joins": only("enable_hashjoin", _JOINS),
    "merge joins": only("enable_mergejoin", _JOINS),
    "no sorts": {"enable_sort": "off", "enable_incremental_sort": "off"},
    "hashed groups": {"enable_sort": "off", "enable_hashagg": "on", "work_mem": "64kB"},
    "parallel": {
        "parallel_setup_cost": "0",
        "parallel_tuple_cost": "0",
        "min_parallel_table_scan_size": "0",
        "min_parallel_index_scan_size": "0",
        "max_parallel_workers_per_gather": "4",
        "parallel_leader_participation": "off",
    },
    "parallel whole tables": only(
        "enable_seqscan", _SCANS, parallel_setup_cost="0", parallel_tuple_cost="0", min_parallel_table_scan_size="0"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    id: UUID
    topic_no: int
    key: tuple[int, int]

    @property
    def place(self) -> tuple[tuple[int, int], UUID]:
        return self.key, self.id


async def mixed_jobs(scratch: ScratchDatabase) -> list[Job]:
    """900 jobs over three topics and four priorities, laid down in an order that is not theirs."""
    await scratch.fill(900, topics=TEN[:3], priorities=(0, 10, -5, 3))
    await scratch.db.execute(
        """CREATE TEMP TABLE mixed AS SELECT * FROM headgate.jobs ORDER BY md5(id::text);
           TRUNCATE headgate.jobs;
           INSERT INTO headgate.jobs SELECT * FROM mixed;
           DROP TABLE mixed;
           ANALYZE headgate.jobs"""
    )
    rows = await scratch.db.fetch("SELECT id, topic_no, rank_class, rank_at FROM headgate.jobs WHERE state = 0")
    return sorted((Job(id=row[0], topic_no=row[1], key=(row[2], row[3])) for row in rows), key=lambda job: job.place)


def some_ranges(dice: random.Random, topic_nos: Sequence[int], jobs: Sequence[Job]) -> tuple[KeyRanges, list[Job]]:
    """Stretches with gaps between them, as a watermark gives; and the jobs that lie in them."""
    ranges, inside = KeyRanges(), []
    for topic_no in topic_nos:
        own = [job for job in jobs if job.topic_no == topic_no]
        edges = sorted(job.key for job in dice.sample(own, 6))
        edges = [LOWEST, *edges, HIGHEST]
        for low, high in zip(edges[::2], edges[1::2], strict=True):
            ranges.add(topic_no, low, high)
            inside += [job for job in own if low <= job.key < high]
    return ranges, sorted(inside, key=lambda job: job.place)


@pytest.mark.req("T14", "P7")
@pytest.mark.parametrize("mode", PLAN_MODES)
@pytest.mark.parametrize("forced", FORCED)
async def test_no_plan_makes_a_claim_take_too_much_twice_or_out_of_order(
    database: str, scratch: ScratchDatabase, forced: str, mode: PlanMode
) -> None:
    db, dice = scratch.db, random.Random(forced)
    jobs = await mixed_jobs(scratch)
    claimer = await scratch.claimer(*TEN[:3], marked=False)
    await force(db, "claim_v1", {**FORCED[forced], "plan_cache_mode": f"force_{mode}_plan"})
    # Stretch by stretch, with a few ids from outside of them.
    ranges, inside = some_ranges(dice, claimer.topic_nos, jobs)
    hints = dice.sample([job for job in jobs if job not in inside], 5)
    expected = sorted([*inside, *hints], key=lambda job: job.place)[:N]
    got = await db.fetch(CLAIM_JOBS, *claimer.arguments(ranges, worker="a", hints=[job.id for job in hints]))
    assert [row["id"] for row in got] == [job.id for job in expected]
    left = [job for job in jobs if job not in expected]
    # Round after round, because another holds the best.
    async with holding_the_first(database, 250):
        whole = KeyRanges.whole(claimer.topic_nos)
        got = await db.fetch(CLAIM_JOBS, *claimer.arguments(whole, worker="b"))
    assert [row["id"] for row in got] == [job.id for job in left[250 : 250 + N]]
    # To the end: nothing twice, nothing left.
    while rows := await db.fetch(CLAIM_JOBS, *claimer.arguments(whole, worker="c")):
        assert len(rows) <= N
    epochs = await db.fetch("SELECT epoch & 1023, state, count(*) FROM headgate.jobs GROUP BY 1, 2")
    assert [tuple(row) for row in epochs] == [(1, 1, len(jobs))]


@pytest.mark.req("T14")
@pytest.mark.parametrize("mode", PLAN_MODES)
@pytest.mark.parametrize("forced", FORCED)
async def test_no_plan_makes_an_inner_statement_give_more_than_asked(
    scratch: ScratchDatabase, forced: str, mode: PlanMode
) -> None:
    db, dice, settings = scratch.db, random.Random(forced), FORCED[forced]
    tenant_no, topic_nos = await scratch.queue.tenant_no(), await scratch.topic_nos(TEN[:3])
    ranges, inside = some_ranges(dice, topic_nos, await mixed_jobs(scratch))

    async def rows(name: str, values: Mapping[str, object]) -> list[asyncpg.Record]:
        return await explain.run(db, explain.inner("claim_v1", name), values, mode=mode, settings=settings)

    ((chosen, _, classes, ranks),) = await rows("choose", choosing(tenant_no, topic_nos, ranges))
    assert chosen == [job.id for job in inside[:N]]
    assert (classes[-1], ranks[-1]) == inside[N - 1].key
    wanted = [*chosen, *chosen]  # an id given twice is still one job
    ((locked, *_),) = await rows("lock", {"tenant_": tenant_no, "v_chosen": wanted, "n_": N, "v_ids": chosen[:70]})
    assert locked == chosen[:30]
    taken = await rows("take", taking(tenant_no, [*locked, *locked]))
    assert sorted(row["id"] for row in taken) == sorted(locked)


@pytest.mark.req("T14")
@pytest.mark.parametrize("forced", FORCED)
async def test_no_plan_gives_one_job_to_two_claimers(database: str, scratch: ScratchDatabase, forced: str) -> None:
    jobs = await mixed_jobs(scratch)
    claimer = await scratch.claimer(*TEN[:3], marked=False)
    await force(scratch.db, "claim_v1", FORCED[forced])
    whole = KeyRanges.whole(claimer.topic_nos)
    async with session(database) as one, session(database) as two, session(database) as three:
        for _ in range(2):
            got = await asyncio.gather(
                *(db.fetch(CLAIM_JOBS, *claimer.arguments(whole, worker="w")) for db in (one, two, three))
            )
            assert all(len(rows) <= N for rows in got)
            ids = [row["id"] for rows in got for row in rows]
            assert len(ids) == len(set(ids))
    most = await scratch.db.fetchval("SELECT max(epoch) FROM headgate.jobs")
    assert most == 1
    assert len(jobs) == await scratch.db.fetchval("SELECT count(*) FROM headgate.jobs")


async def force(db: Connection, function: str, settings: Mapping[str, str]) -> None:
    """Take a function's own planner settings away and give it others."""
    await db.execute(f"ALTER FUNCTION headgate.{function} RESET ALL")
    for name, value in settings.items():
        await db.execute(f"ALTER FUNCTION headgate.{function} SET {name} = '{value}'")
