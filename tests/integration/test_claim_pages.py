"""A claim costs O(flush): pages counted on the very statements the server runs, in every case known to break queues.

Pages are counted, not milliseconds: they are the same on a busy machine. Every figure is the worst of several calls
on one connection, after a first one that fills its caches: so PL/pgSQL's plans for given values and its plan for
any value are both among them. Calls are committed, since a rolled-back claim would leave dead rows for the next one.

`make explain` prints the figures. Autovacuum is off in these databases: it would tidy up what the cases are about.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final, TypeAlias
from uuid import UUID

import pytest

from headgate.dispatch.watermark import Watermark
from headgate.domain.keyrange import HIGHEST, LOWEST, KeyRanges
from headgate.domain.limits import PRIORITY_MAX
from headgate.domain.outcomes import Completed
from headgate.domain.rank import unix_us
from headgate.domain.states import State
from headgate.store import leases, settle, submit
from headgate.store.claim import CLAIM
from headgate.store.connect import Connection, connect
from headgate.store.leases import BEGINNING, PROMOTE, REAP, RENEW
from headgate.store.settle import SETTLE, OutcomeFlush
from headgate.store.submit import SubmitFlush
from tests.support import explain
from tests.support.database import Server
from tests.support.explain import PLAN_MODES, Cost, Inner, PlanMode
from tests.support.queue import Queue, make_ids

pytestmark = pytest.mark.timeout(240)

N: Final = 100
"""Jobs to claim, promote, reap, settle or renew in one call."""
GROWTH: Final = 1.5
"""What any case may cost, against the same call on a table of 1,000 rows."""
TEN_TOPICS_GROWTH: Final = 4.0
"""Ten topics have ten heads to look at: n candidates of each are read, and n in all are claimed."""
CALLS: Final = 7
MOST_CANDIDATES: Final = 15 * N
"""What claim_v1 looks at when others hold locks on the head: n, 2n, 4n and 8n, then it gives up for this time."""
PAGES_PER_LOCKED: Final = 6
"""Pages per candidate in vain: down the key's index (up to three levels), the row, and the row again to try its lock."""
LEASE_MS: Final = 60_000
TEN: Final = tuple(f"topic-{number}" for number in range(10))

Range: TypeAlias = tuple[int, tuple[int, int], tuple[int, int]]

# Rows as submit_v1 (and claim_v1, for running ones) would leave them, a few µs a row. Ids begin with the time, as real
# ones do. Topics and priorities take turns; rank and, for running rows, the start of the attempt follow the number.
FILL: Final = r"""
INSERT INTO headgate.jobs (id, rank_at, created_at, run_at, claimed_at, lease_until, tenant_no, topic_no, rank_class,
                           priority, attempt, max_attempts, epoch, policy_no, owner, state, worker, payload)
SELECT (lpad(to_hex($1::bigint / 1000 + i / 10), 12, '0') || '7' || substr(m.hash, 1, 3) || '8' || substr(m.hash, 4, 15))::uuid,
       $1 + i, clock_timestamp(), coalesce($6, clock_timestamp()), $7::timestamptz + i * interval '1 µs', $8,
       $2, ($4::int[])[1 + i % cardinality($4)], -1 - p.priority, p.priority, ($5 = 1)::int, 20, ($5 = 1)::int, 1,
       CASE WHEN $5 = 1 THEN 1 END, $5::int, CASE WHEN $5 = 1 THEN 'w' END, '\x78'
  FROM generate_series(1, $3::int) AS i,
       LATERAL (SELECT md5(i::text || $1::text) AS hash) AS m,
       LATERAL (SELECT ($9::int[])[1 + (i / cardinality($4)) % cardinality($9)] AS priority) AS p"""
CLAIMED_BY: Final = """
SELECT id, epoch, topic_no, rank_class, rank_at FROM headgate.jobs
 WHERE state = 1 AND worker = $1 AND claimed_at >= $2 ORDER BY rank_class, rank_at, id"""


@dataclass(slots=True)
class PageTable:
    """What was counted, for people, and the judge of it."""

    lines: list[tuple[str, ...]] = field(default_factory=list)

    def judge(self, case: str, costs: Sequence[Cost], *, usual: float, growth: float | None = GROWTH) -> None:
        """Record a case and fail when its worst call exceeds `growth` × `usual`; without `growth`, only record it."""
        limit = None if growth is None else growth * usual
        worst = max(costs, key=lambda cost: cost.pages)
        good = limit is None or worst.pages <= limit
        self.lines.append(
            (
                case,
                f"{median(cost.pages for cost in costs):.0f}",
                f"{worst.pages}",
                f"{max(cost.dirtied for cost in costs)}",
                f"{max(cost.written for cost in costs)}",
                f"{worst.pages / usual:.2f}",
                "-" if growth is None else f"{growth:.2f}",
                "for the record" if growth is None else "ok" if good else "TOO MUCH",
            )
        )
        assert good, f"{case}: {worst.pages} pages, more than {growth} × {usual:.0f}: {[cost.pages for cost in costs]}"

    def text(self) -> str:
        head = ("case", "pages", "worst", "dirtied", "written", "ratio", "bound", "verdict")
        rows = [head, *self.lines]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        shown = [
            "  ".join(
                cell.ljust(width) if column in (0, len(head) - 1) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        rule = "-" * max(map(len, shown))
        return "\n".join((shown[0], rule, *shown[1:]))


class Yard:
    """One database to fill and to count in."""

    def __init__(self, db: Connection) -> None:
        self.db = db
        self.queue = Queue(db)
        self._calls = 0

    @classmethod
    async def quiet(cls, db: Connection) -> Yard:
        await db.execute("ALTER TABLE headgate.jobs SET (autovacuum_enabled = off)")
        return cls(db)

    async def topic_nos(self, names: Sequence[str] = ("mail",)) -> list[int]:
        return [topic.no for topic in await self.queue.names.topics(self.db, await self.queue.tenant_no(), names)]

    async def fill(
        self,
        count: int,
        *,
        topics: Sequence[str] = ("mail",),
        priorities: Sequence[int] = (0,),
        state: State = State.PENDING,
        run_at: datetime | None = None,
        claimed_at: datetime | None = None,
        lease_until: datetime | None = None,
    ) -> None:
        """Put `count` jobs in, all of them older than any that is put in later."""
        await self.db.execute(
            FILL,
            time.time_ns() // 1_000,
            await self.queue.tenant_no(),
            count,
            await self.topic_nos(topics),
            int(state),
            run_at,
            claimed_at,
            lease_until,
            list(priorities),
            timeout=60,
        )

    async def claimer(self, *topics: str, marked: bool = True) -> Claimer:
        numbers = await self.topic_nos(topics or ("mail",))
        return Claimer(self, await self.queue.tenant_no(), numbers, Watermark() if marked else None)

    async def counted(self, statement: str, *arguments: object, rows: int = N) -> list[Cost]:
        """The same call several times; it is a mistake of the case if one does not do `rows` rows' work."""
        await explain.cost(self.db, statement, *arguments)
        costs = [await explain.cost(self.db, statement, *arguments) for _ in range(CALLS)]
        assert [cost.rows for cost in costs] == [rows] * CALLS
        return costs

    async def settled_and_renewed(self) -> tuple[list[Cost], list[Cost]]:
        """Claim a few hundreds; the costs of renewing and of completing them."""
        claimer, tenant_no = await self.claimer(), await self.queue.tenant_no()
        settles: list[Cost] = []
        renewals: list[Cost] = []
        for _ in range(1 + CALLS):
            ids, epochs = await claimer.take()
            renewals.append(await explain.cost(self.db, RENEW, [tenant_no], [N], ids, epochs, [LEASE_MS]))
            flush = OutcomeFlush()
            for job_id, epoch in zip(ids, epochs, strict=True):
                flush.add(tenant_no, job_id, epoch, Completed())
            settles.append(await explain.cost(self.db, SETTLE, *flush._arguments()[0]))
            assert await self.db.fetchval("SELECT count(*) FROM headgate.archive WHERE id = ANY ($1)", ids) == N
            assert renewals[-1].rows == settles[-1].rows == 0  # nothing to tell: all were renewed, all were applied
        return settles[1:], renewals[1:]


class Claimer:
    """Claims of 100 as the coordinator makes them: from its watermark on, each committed."""

    def __init__(self, yard: Yard, tenant_no: int, topic_nos: list[int], watermark: Watermark | None) -> None:
        self.yard = yard
        self.watermark = watermark
        self.topic_nos = topic_nos
        self._tenant_no = tenant_no
        self._made = 0

    def arguments(self, ranges: KeyRanges, *, worker: str, hints: Sequence[UUID] = ()) -> tuple[object, ...]:
        where = (ranges.topic_nos, ranges.class_from, ranges.rank_from, ranges.class_to, ranges.rank_to)
        return (self._tenant_no, self.topic_nos, *where, list(hints), N, 1, [worker], [], LEASE_MS)

    async def cost(self, *, sweep_us: int = 0, short: bool = False) -> Cost:
        """One claim and what it cost; unless it may be `short`, it must bring its full number."""
        cost, rows = await self._claim(sweep_us)
        assert rows == N or short
        return cost

    async def costs(self, times: int = CALLS, *, sweep_us: int = 0) -> list[Cost]:
        await self.cost(sweep_us=sweep_us)  # the first call on a connection reads the catalogue
        return [await self.cost(sweep_us=sweep_us) for _ in range(times)]

    async def take(self) -> tuple[list[UUID], list[int]]:
        """One claim; the ids and epochs it brought."""
        await self._claim(0)
        return self._ids, self._epochs

    async def _claim(self, sweep_us: int) -> tuple[Cost, int]:
        ranges = KeyRanges.whole(self.topic_nos)
        if self.watermark is not None:
            ranges = self.watermark.ranges(self.topic_nos, sweep_us=sweep_us)
        self._made += 1
        worker = f"{id(self)}-{self._made}"
        db = self.yard.db
        began = await db.fetchval("SELECT clock_timestamp()")
        cost = await explain.cost(db, CLAIM, *self.arguments(ranges, worker=worker))
        # EXPLAIN keeps the rows to itself.
        rows = await db.fetch(CLAIMED_BY, worker, began)
        assert len(rows) == cost.rows <= N
        self._ids, self._epochs = [row[0] for row in rows], [row[1] for row in rows]
        if self.watermark is not None:
            self.watermark.claimed([row[2] for row in rows], [row[3] for row in rows], [row[4] for row in rows])
        return cost, len(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Pages of each call, median, on a table of 1,000 rows: the yardstick."""

    claim: float
    promote: float
    reap: float
    settle: float
    renew: float


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[Connection]:
    db = await connect(dsn, application_name="headgate test", statement_timeout=timedelta(seconds=60))
    try:
        yield db
    finally:
        await db.close()


@pytest.fixture(scope="module")
def table() -> Iterator[PageTable]:
    table = PageTable()
    yield table
    sys.stdout.write(f"\n\n{table.text()}\n")  # seen with -s only


@pytest.fixture(scope="module")
def fresh(postgres: Server, template: str) -> Iterator[Callable[[], str]]:
    """Makes databases that are dropped at the end of the module."""
    names: list[str] = []

    def make() -> str:
        names.append(postgres.create(template=template))
        return postgres.dsn_of(names[-1])

    yield make
    for name in names:
        postgres.drop(name)


@pytest.fixture(scope="module")
def usual(postgres: Server, fresh: Callable[[], str], table: PageTable) -> Usual:
    async def claims(yard: Yard) -> list[Cost]:
        await yard.fill(1_000)
        return await (await yard.claimer()).costs()

    async def promotions(yard: Yard) -> list[Cost]:
        await with_due_rows(yard, waiting=1_000)
        return await yard.counted(PROMOTE, N, BEGINNING)

    async def reaps(yard: Yard) -> list[Cost]:
        await with_lapsed_rows(yard, running=1_000)
        return await yard.counted(REAP, N, BEGINNING)

    async def settles(yard: Yard) -> list[Cost]:
        await yard.fill(1_000)
        settles, renewals = await yard.settled_and_renewed()
        found["renew"] = renewals
        return settles

    async def measure() -> None:
        for name, work in (("claim", claims), ("promote", promotions), ("reap", reaps), ("settle", settles)):
            async with session(fresh()) as db:
                found[name] = await work(await Yard.quiet(db))

    found: dict[str, list[Cost]] = {}
    postgres.run(measure())
    usual = {name: median(cost.pages for cost in costs) for name, costs in found.items()}
    for name, costs in found.items():
        table.judge(f"{name}: 1 k rows", costs, usual=usual[name], growth=None)
    return Usual(**usual)


@pytest.fixture(scope="module")
def million(postgres: Server, fresh: Callable[[], str]) -> str:
    """A database with 1,000,000 pending jobs of one topic, and 200,000 of ten others."""

    async def fill() -> None:
        async with session(dsn) as db:
            yard = await Yard.quiet(db)
            await yard.fill(1_000_000)
            await yard.fill(200_000, topics=TEN)

    dsn = fresh()
    postgres.run(fill())
    return dsn


@pytest.fixture
async def yard(db: Connection) -> Yard:
    return await Yard.quiet(db)


async def with_due_rows(yard: Yard, *, waiting: int) -> None:
    """Enough due rows for all calls, and `waiting` that are due in an hour."""
    now = datetime.now(UTC)
    await yard.fill(N * (1 + CALLS), state=State.SCHEDULED, run_at=now - timedelta(seconds=1))
    await yard.fill(waiting, state=State.SCHEDULED, run_at=now + timedelta(hours=1))


async def with_lapsed_rows(yard: Yard, *, running: int) -> None:
    """Enough lapsed leases for all calls, and `running` that began later and have an hour left."""
    now = datetime.now(UTC)
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    await yard.fill(N * (1 + CALLS), state=State.RUNNING, claimed_at=now - hour, lease_until=now - minute)
    await yard.fill(running, state=State.RUNNING, claimed_at=now - minute, lease_until=now + hour)


# ------------------------------------------------------------------------------------------------ pages of a claim


@pytest.mark.req("D6", "T39")
async def test_a_claim_costs_the_same_at_100_000_pending_jobs(yard: Yard, usual: Usual, table: PageTable) -> None:
    await yard.fill(100_000)
    table.judge("claim: 100 k backlog", await (await yard.claimer()).costs(), usual=usual.claim)


@pytest.mark.req("D6", "T39")
async def test_a_claim_costs_the_same_at_1_000_000_pending_jobs(million: str, usual: Usual, table: PageTable) -> None:
    async with session(million) as db:
        yard = Yard(db)
        table.judge("claim: 1 M backlog", await (await yard.claimer()).costs(), usual=usual.claim)
        head = await yard.claimer(marked=False)
        table.judge("claim: 1 M backlog, from the head", await head.costs(), usual=usual.claim)


@pytest.mark.req("D6", "T39")
async def test_a_claim_over_ten_topics_reads_ten_heads_and_no_more(
    yard: Yard, million: str, usual: Usual, table: PageTable
) -> None:
    await yard.fill(1_000, topics=TEN)
    small = await (await yard.claimer(*TEN)).costs()
    table.judge("claim: ten topics, 1 k backlog", small, usual=usual.claim, growth=TEN_TOPICS_GROWTH)
    async with session(million) as db:
        large = await (await Yard(db).claimer(*TEN)).costs()
    table.judge("claim: ten topics, 200 k of 1.2 M backlog", large, usual=usual.claim, growth=TEN_TOPICS_GROWTH)


@pytest.mark.req("P3", "T39")
async def test_priorities_cost_a_claim_nothing(yard: Yard, usual: Usual, table: PageTable) -> None:
    await yard.fill(100_000, priorities=range(10))
    table.judge("claim: 100 k in ten priorities", await (await yard.claimer()).costs(), usual=usual.claim)


@pytest.mark.req("D14", "T39")
async def test_jobs_that_are_not_due_cost_a_claim_nothing(yard: Yard, usual: Usual, table: PageTable) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await yard.fill(300_000, priorities=[PRIORITY_MAX], state=State.SCHEDULED, run_at=later)
    await yard.fill(1_000)
    table.judge("claim: 300 k not due ahead", await (await yard.claimer()).costs(), usual=usual.claim)


# ------------------------------------------------------------------------------------------------ dead rows


@dataclass(slots=True, kw_only=True)
class Graveyard:
    """100,000 jobs of three priorities that have passed while somebody held a snapshot, and what a coordinator knows."""

    dsn: str
    watermark: Watermark
    began: datetime
    passed: int = 0


@pytest.fixture(scope="module")
def graveyard(postgres: Server, fresh: Callable[[], str]) -> Iterator[Graveyard]:
    async def open_and_fill() -> Connection:
        holder = await connect(found.dsn, application_name="headgate test, holds a snapshot")
        await holder.execute("SET idle_in_transaction_session_timeout = 0")
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        found.began = await holder.fetchval("SELECT now()")
        async with session(found.dsn) as db:
            await pass_jobs(await Yard.quiet(db), found, 100_000)
        return holder

    found = Graveyard(dsn=fresh(), watermark=Watermark(), began=BEGINNING)
    holder = postgres.run(open_and_fill())
    yield found
    postgres.run(holder.close())


async def pass_jobs(yard: Yard, found: Graveyard, count: int, *, flush: int = 1_000) -> None:
    """Submit, claim and complete, a flush at a time."""
    db, tenant_no = yard.db, await yard.queue.tenant_no()
    (topic_no,) = await yard.topic_nos()
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
        claimed = await yard.queue.claim(flush, ranges=found.watermark.ranges([topic_no]))
        assert len(claimed) == flush
        found.watermark.claimed(claimed.topic_nos, claimed.rank_classes, claimed.ranks_at)
        outcomes = OutcomeFlush()
        for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True):
            outcomes.add(tenant_no, job_id, epoch, Completed())
        assert await settle.settle(db, outcomes) == {}
        found.passed += flush


@pytest.mark.req("D6", "T39")
async def test_dead_rows_under_a_held_snapshot_cost_a_claim_nothing(
    graveyard: Graveyard, usual: Usual, table: PageTable
) -> None:
    async with session(graveyard.dsn) as db:
        yard = Yard(db)
        claimer = await yard.claimer()
        claimer.watermark = graveyard.watermark
        await yard.fill(1_000, priorities=(0, 5, 10))
        table.judge("claim: 100 k dead rows, watermark", await claimer.costs(), usual=usual.claim)
        await yard.fill(1_000, priorities=(0, 5, 10))
        # A round of sweeps in a hundred claims: with a claim every 10 ms, all is seen again within a second.
        swept = await claimer.costs(sweep_us=graveyard.watermark.span_us // 100)
        table.judge("claim: 100 k dead rows, sweeping a hundredth", swept, usual=usual.claim)
        await yard.fill(1_000, priorities=(0, 5, 10))
        head = await yard.claimer(marked=False)
        costs = await head.costs(3)
        table.judge("claim: 100 k dead rows, from the head", costs, usual=usual.claim, growth=None)
        # Else the case has no dead rows, and proves nothing.
        assert min(cost.pages for cost in costs) > 2 * GROWTH * usual.claim


async def test_dead_rows_under_a_held_snapshot_cost_no_other_call_anything(
    graveyard: Graveyard, usual: Usual, table: PageTable
) -> None:
    async with session(graveyard.dsn) as db:
        yard = Yard(db)
        await yard.fill(1_000, priorities=[20])
        settles, renewals = await yard.settled_and_renewed()
        table.judge("settle: 100 k dead rows", settles, usual=usual.settle)
        table.judge("renew: 100 k dead rows", renewals, usual=usual.renew)
        await with_lapsed_rows(yard, running=1_000)
        # The rows above began an hour ago, before any that died: give them the place they would have.
        await db.execute("UPDATE headgate.jobs SET claimed_at = clock_timestamp() WHERE state = 1 AND lease_until < now()")
        floor = await leases.oldest_running(db, floor=graveyard.began + timedelta(milliseconds=1))
        assert floor is not None
        table.judge("reap: 100 k dead rows, floor", await yard.counted(REAP, N, floor), usual=usual.reap)
