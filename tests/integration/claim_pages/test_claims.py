"""What a claim, a promotion, a settle and a renewal cost at a large backlog, with limits and priorities."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from headgate.domain.limits import PRIORITY_MAX
from headgate.domain.states import State
from headgate.domain.topic_limits import Rate
from headgate.store import topics
from headgate.store.leases import REAP
from headgate.store.new_ids import BEGINNING
from tests.integration.claim_pages.scratch import (
    TEN,
    N,
    PageTable,
    ScratchDatabase,
    Usual,
    session,
    with_due_rows,
    with_expired_rows,
)
from tests.support import explain
from tests.support.database import Server
from tests.support.explain import PLAN_MODES
from tests.support.store_calls import PROMOTE

pytestmark = pytest.mark.timeout(240)


TEN_TOPICS_GROWTH: Final = 4.0
"""Ten topics have ten heads to look at: n candidates of each are read, and n in all are claimed."""


@pytest.fixture(scope="module")
def million(postgres: Server, fresh: Callable[[], str]) -> str:
    """A database with 1,000,000 pending jobs of one topic, and 200,000 of ten others."""

    async def fill() -> None:
        async with session(dsn) as db:
            scratch = await ScratchDatabase.quiet(db)
            await scratch.fill(1_000_000)
            await scratch.fill(200_000, topics=TEN)

    dsn = fresh()
    postgres.run(fill())
    return dsn


# ------------------------------------------------------------------------------------------------ pages of a claim


@pytest.mark.req("D6", "T39")
async def test_a_claim_costs_the_same_at_100_000_pending_jobs(
    scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    await scratch.fill(100_000)
    table.judge("claim: 100 k backlog", await (await scratch.claimer()).costs(), usual=usual.claim)


@pytest.mark.req("D6", "T39")
async def test_a_claim_costs_the_same_at_1_000_000_pending_jobs(million: str, usual: Usual, table: PageTable) -> None:
    async with session(million) as db:
        scratch = ScratchDatabase(db)
        table.judge("claim: 1 M backlog", await (await scratch.claimer()).costs(), usual=usual.claim)
        head = await scratch.claimer(marked=False)
        table.judge("claim: 1 M backlog, from the head", await head.costs(), usual=usual.claim)


@pytest.mark.req("D6", "T39")
async def test_a_claim_over_ten_topics_reads_ten_heads_and_no_more(
    scratch: ScratchDatabase, million: str, usual: Usual, table: PageTable
) -> None:
    await scratch.fill(1_000, topics=TEN)
    small = await (await scratch.claimer(*TEN)).costs()
    table.judge("claim: ten topics, 1 k backlog", small, usual=usual.claim, growth=TEN_TOPICS_GROWTH)
    async with session(million) as db:
        large = await (await ScratchDatabase(db).claimer(*TEN)).costs()
    table.judge("claim: ten topics, 200 k of 1.2 M backlog", large, usual=usual.claim, growth=TEN_TOPICS_GROWTH)


@pytest.mark.req("P3", "T39")
async def test_priorities_cost_a_claim_nothing(scratch: ScratchDatabase, usual: Usual, table: PageTable) -> None:
    await scratch.fill(100_000, priorities=range(10))
    table.judge("claim: 100 k in ten priorities", await (await scratch.claimer()).costs(), usual=usual.claim)


@pytest.mark.req("D14", "T39")
async def test_jobs_that_are_not_due_cost_a_claim_nothing(
    scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await scratch.fill(300_000, priorities=[PRIORITY_MAX], state=State.SCHEDULED, run_at=later)
    await scratch.fill(1_000)
    table.judge("claim: 300 k not due ahead", await (await scratch.claimer()).costs(), usual=usual.claim)


# ------------------------------------------------------------------------------------------------ limits

KEYED_GROWTH: Final = 3.5
"""A claim of jobs with limit keys reads the key of each job, and locks and writes the row in which that key is counted
(a descent of an index): 7 pages a job more, here with a key of its own for each job, and 4 that are due to the dead
rows of these tables."""
KEYED_BEFORE_17: Final = 4.5
FAIR_GROWTH: Final = 7.0
"""And with fair shares or rates by key, a claim may let in as many from the lines as it took: each is found in its
line, locked, made pending and taken out of the line, and its key's row is written once more: 22 pages a job with fair
shares, and 27 with rates, where it is also noted when the next job of the key may be let in."""
GIVE_KEYS: Final = """
WITH keyed AS (
    UPDATE headgate.jobs SET flags = flags | 4 WHERE topic_no = $2
    RETURNING tenant_no, id, topic_no, state, rank_class, rank_at, 'k' || (rank_at % $3) AS key),
noted AS (INSERT INTO headgate.job_limit_keys SELECT tenant_no, id, topic_no, key FROM keyed),
lined AS (INSERT INTO headgate.limit_line
          SELECT tenant_no, id, topic_no, key, rank_class, rank_at FROM keyed WHERE state = 4)
INSERT INTO headgate.limit_usage (tenant_no, topic_no, limit_key, admitted)
SELECT $1, $2, key, count(*) FILTER (WHERE state = 0) FROM keyed GROUP BY key"""


async def limited(scratch: ScratchDatabase, name: str = "mail", **changes: object) -> None:
    await scratch.topic_nos([name])
    await topics.set_topic(scratch.db, scratch.queue.names, await scratch.queue.tenant_no(), name, changes=changes)


async def with_keys(scratch: ScratchDatabase, *, keys: int, pending: int, blocked: int) -> None:
    """So many pending and blocked jobs, distributed to so many keys."""
    await scratch.fill(pending)
    await scratch.fill(blocked, state=State.BLOCKED)
    (topic_no,) = await scratch.topic_nos()
    await scratch.db.execute(GIVE_KEYS, await scratch.queue.tenant_no(), topic_no, keys, timeout=60)


@pytest.mark.parametrize("name", ["max_running", "rate"])
async def test_a_limited_topic_is_claimed_at_the_same_cost(
    scratch: ScratchDatabase, usual: Usual, table: PageTable, name: str
) -> None:
    await limited(scratch, **{name: Rate(count=10**6, period=timedelta(seconds=1)) if name == "rate" else 10**6})
    await scratch.fill(100_000)
    table.judge(f"claim: 100 k, {name} of the topic", await (await scratch.claimer()).costs(), usual=usual.claim)


async def test_limits_of_other_topics_cost_a_claim_nothing(
    scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    for number in range(50):
        await limited(scratch, f"other-{number}", max_running=5, max_backlog=10)
    await scratch.fill(100_000)
    table.judge("claim: 100 k, fifty other topics limited", await (await scratch.claimer()).costs(), usual=usual.claim)


async def test_blocked_jobs_cost_a_claim_nothing(scratch: ScratchDatabase, usual: Usual, table: PageTable) -> None:
    """The lines may be as long as they like: a claim of keyed jobs costs a bounded number of look-ups for each."""
    await limited(scratch, max_running_per_key=2)
    growth = KEYED_GROWTH if usual.modern else KEYED_BEFORE_17
    await with_keys(scratch, keys=2_000, pending=2_000, blocked=1_000)
    few = await (await scratch.claimer()).costs()
    table.judge("claim: 1 k blocked, max_running_per_key", few, usual=usual.claim, growth=growth)


async def test_a_hundred_thousand_blocked_jobs_cost_a_claim_nothing(
    scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    await limited(scratch, max_running_per_key=2)
    growth = KEYED_GROWTH if usual.modern else KEYED_BEFORE_17
    await with_keys(scratch, keys=2_000, pending=2_000, blocked=100_000)
    many = await (await scratch.claimer()).costs()
    table.judge("claim: 100 k blocked, max_running_per_key", many, usual=usual.claim, growth=growth)


async def test_fair_shares_of_ten_thousand_keys_cost_a_claim_a_bound(
    scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    await limited(scratch, fair_by_key=True)
    await with_keys(scratch, keys=10_000, pending=50_000, blocked=50_000)
    costs = await (await scratch.claimer()).costs()
    table.judge("claim: 10 k keys, fair_by_key", costs, usual=usual.claim, growth=FAIR_GROWTH)


async def test_rates_of_ten_thousand_keys_cost_a_claim_a_bound(
    scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    await limited(scratch, key_rate=Rate(count=10, period=timedelta(hours=1)))
    await with_keys(scratch, keys=10_000, pending=50_000, blocked=50_000)
    costs = await (await scratch.claimer()).costs()
    table.judge("claim: 10 k keys, key_rate", costs, usual=usual.claim, growth=FAIR_GROWTH)


# ------------------------------------------------------------------------------------------------ the other calls


@pytest.mark.req("T39")
async def test_jobs_that_are_not_due_cost_a_promotion_nothing(
    scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    await with_due_rows(scratch, waiting=300_000)
    table.judge(
        "promote: 300 k not due", await scratch.counted(PROMOTE, N, BEGINNING), usual=usual.promote, growth=usual.growth
    )
    values = {"n_": N, "floor_": BEGINNING, "v_now": datetime.now(UTC)}
    for mode in PLAN_MODES:
        plan = (await explain.explain(scratch.db, explain.inner("promote_v1", "due"), values, mode=mode)).plan
        assert [node.index for node in plan.scans_of("jobs")] == ["jobs_due"], plan.outline()
        assert not [node for node in plan if "Sort" in node.type], plan.outline()


@pytest.mark.req("T39")
async def test_leases_that_hold_cost_the_watchdog_little(
    scratch: ScratchDatabase, usual: Usual, table: PageTable
) -> None:
    began = await with_expired_rows(scratch, running=10_000)
    table.judge("reap: 10 k running", await scratch.counted(REAP, N, began), usual=usual.reap, growth=usual.growth)
    # Nothing expired: it has to look at every lease that holds, at a row's share of a page for each.
    idle = await scratch.counted(REAP, N, began, rows=0)
    table.judge("reap: 10 k running, none expired", idle, usual=usual.reap, growth=usual.growth)
    values = {"n_": N, "floor_": began, "v_now": datetime.now(UTC)}
    for mode in PLAN_MODES:
        plan = (await explain.explain(scratch.db, explain.inner("reap_v1", "expired"), values, mode=mode)).plan
        assert [node.index for node in plan.scans_of("jobs")] == ["jobs_running"], plan.outline()
        assert not [node for node in plan if "Sort" in node.type], plan.outline()


@pytest.mark.req("T39")
async def test_settling_and_renewing_cost_the_same_at_1_000_000_jobs(
    million: str, usual: Usual, table: PageTable
) -> None:
    async with session(million) as db:
        scratch = ScratchDatabase(db)
        settles, renewals = await scratch.settled_and_renewed()
        table.judge("settle: 1 M rows", settles, usual=usual.settle, growth=usual.growth)
        table.judge("renew: 1 M rows", renewals, usual=usual.renew, growth=usual.growth)
        ids, epochs = await (await scratch.claimer()).take()
        values: dict[str, object] = {
            "tenants_": [await scratch.queue.tenant_no()],
            "v_run": 1,
            "v_ids": ids,
            "v_epochs": epochs,
            "v_results": [],
            "v_now": datetime.now(UTC),
        }
        for mode in PLAN_MODES:
            plan = (await explain.explain(db, explain.inner("settle_v1", "complete"), values, mode=mode)).plan
            scans = plan.scans_of("jobs")
            assert {(node.type, node.index) for node in scans} == {("Index Scan", "jobs_pkey")}, plan.outline()
            assert sum(node.rows_read for node in scans) == N, plan.outline()


def test_a_statement_without_its_marks_is_an_error() -> None:
    with pytest.raises(AssertionError, match="explain: chose"):
        explain.inner("claim_v1", "chose")
