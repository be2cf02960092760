"""A claim costs O(flush): pages counted on the very statements the server runs, in every case known to break queues.

Pages are counted, not milliseconds: they are the same on a busy machine. Every figure is the worst of several calls
on one connection, after a first one that fills its caches: so PL/pgSQL's plans for given values and its plan for
any value are both among them. Calls are committed, since a rolled-back claim would leave dead rows for the next one.

`make explain` prints the figures. Autovacuum is off in these databases: it would tidy up what the cases are about.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final
from uuid import UUID

from headgate.dispatch.watermark import Watermark
from headgate.domain.arrivals import ClaimNews, Seen
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Completed
from headgate.domain.states import State
from headgate.store.claim import CLAIM
from headgate.store.connect import Connection, connect
from headgate.store.leases import RENEW
from headgate.store.settle import SETTLE, OutcomeFlush
from tests.support import explain
from tests.support.explain import Cost
from tests.support.queue import Queue

N: Final = 100
"""Jobs to claim, promote, reap, settle or renew in one call."""
GROWTH: Final = 1.5
"""What any case may cost, against the same call on a table of 1,000 rows."""
GROWTH_BEFORE_17: Final = 2.0
"""The same for settle, renew, promote and reap on older servers: there every key of an array is a descent of its own,
one level deeper in a large index, and on a small table the planner reads all rows of the tenant instead."""
CALLS: Final = 7
PAGES_PER_LOCKED: Final = 2
"""Pages per candidate that is not claimed: its row in claim order (mostly on a page read before) and the lock."""
PAGES_PER_LOCKED_BEFORE_17: Final = 6
"""And down the key's index for each."""
LEASE_MS: Final = 60_000
TEN: Final = tuple(f"topic-{number}" for number in range(10))

# Rows as submit_v1 (and claim_v1, for running ones) would leave them, a few µs a row. Ids begin with the time, as real
# ones do. Topics and priorities take turns; rank and, for running rows, the start of the attempt follow the number.
FILL: Final = r"""
INSERT INTO headgate.jobs (id, rank_at, created_at, run_at, claimed_at, lease_until, tenant_no, topic_no, rank_class,
                           priority, attempt, max_attempts, epoch, policy_no, owner, state, worker, payload)
SELECT (lpad(to_hex(g.us / 1000 + i / 10), 12, '0') || '7' || left(m.hash, 3) || '8' || right(m.hash, 15))::uuid,
       g.us + i, clock_timestamp(), coalesce(g.run_at, clock_timestamp()), g.claimed_at + i * interval '1 us',
       g.lease_until, g.tenant_no, g.topic_nos[1 + i % cardinality(g.topic_nos)], -1 - p.priority, p.priority,
       (g.state = 1)::int, 20, (g.state = 1)::int, 1, CASE WHEN g.state = 1 THEN 1 END, g.state, NULL, '\x78'
  FROM (SELECT $1::bigint AS us, $2::int AS tenant_no, $3::int AS count, $4::int[] AS topic_nos,
               $5::int[] AS priorities, $6::int AS state, $7::timestamptz AS run_at, $8::timestamptz AS claimed_at,
               $9::timestamptz AS lease_until) AS g
 CROSS JOIN LATERAL generate_series(1, g.count) AS i
 CROSS JOIN LATERAL (SELECT md5(i::text || g.us::text) AS hash) AS m
 CROSS JOIN LATERAL (SELECT g.priorities[1 + i / cardinality(g.topic_nos) % cardinality(g.priorities)] AS priority) AS p
"""
SEEN: Final = "SELECT pg_current_snapshot()::text, generation FROM headgate.arrivals_floor"
CLAIMED_BY: Final = """
SELECT id, epoch, topic_no, rank_class, rank_at FROM headgate.jobs
 WHERE state = 1 AND worker = $1 AND claimed_at >= $2 ORDER BY rank_class, rank_at, id"""


@dataclass(slots=True)
class PageTable:
    """What was counted, for people, and the judge of it."""

    lines: list[tuple[str, ...]] = field(default_factory=list)

    def judge(
        self,
        case: str,
        costs: Sequence[Cost],
        *,
        usual: float,
        growth: float | None = GROWTH,
    ) -> None:
        """Record a case and fail when its worst call exceeds `growth` × `usual`; without `growth`, only record it.

        Of very many calls one in thirty does not count: it met the autovacuum, or a page that was just split.
        """
        limit = None if growth is None else growth * usual
        worst = max(costs, key=lambda cost: cost.pages)
        most = sorted(cost.pages for cost in costs)[-1 - len(costs) // 30]
        good = limit is None or most <= limit
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


class ScratchDatabase:
    """One database to fill and to count in."""

    def __init__(self, db: Connection, *, tenant: str = "acme") -> None:
        self.db = db
        self.queue = Queue(db, tenant=tenant)

    @classmethod
    async def quiet(cls, db: Connection) -> ScratchDatabase:
        # All tables: new statistics of the archive or of arrivals in the middle of a test would change its plans. What
        # statistics do is tested below, on purpose.
        await db.execute(
            """DO $$ DECLARE t regclass; BEGIN
                   FOR t IN SELECT c.oid FROM pg_class c
                             WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind = 'r'
                   LOOP EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', t); END LOOP;
               END $$"""
        )
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
            list(priorities),
            int(state),
            run_at,
            claimed_at,
            lease_until,
            timeout=200,
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
            renewals.append(await explain.cost(self.db, RENEW, [tenant_no], [N], ids, epochs, [LEASE_MS], None))
            flush = OutcomeFlush()
            for job_id, epoch in zip(ids, epochs, strict=True):
                flush.add(tenant_no, job_id, epoch, Completed())
            settles.append(await explain.cost(self.db, SETTLE, *flush._arguments()[0]))
            assert await self.db.fetchval("SELECT count(*) FROM headgate.archive WHERE id = ANY ($1)", ids) == N
            assert renewals[-1].rows == settles[-1].rows == 0  # nothing to tell: all were renewed, all were applied
        return settles[1:], renewals[1:]


class Claimer:
    """Claims of 100 as the claimer makes them: from its watermark on, each committed."""

    def __init__(
        self, scratch: ScratchDatabase, tenant_no: int, topic_nos: list[int], watermark: Watermark | None
    ) -> None:
        self.scratch = scratch
        self.watermark = watermark
        self.topic_nos = topic_nos
        self.seen: tuple[str | None, int | None] = (None, None)
        self._tenant_no = tenant_no
        self._made = 0

    def arguments(self, ranges: KeyRanges, *, worker: str, hints: Sequence[UUID] = ()) -> tuple[object, ...]:
        where = (ranges.topic_nos, ranges.class_from, ranges.rank_from, ranges.class_to, ranges.rank_to)
        return (self._tenant_no, self.topic_nos, *where, list(hints), N, 1, [worker], [], LEASE_MS, *self.seen)

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
        db = self.scratch.db
        began = await db.fetchval("SELECT clock_timestamp()")
        cost = await explain.cost(db, CLAIM, *self.arguments(ranges, worker=worker))
        # EXPLAIN keeps the rows to itself.
        rows = await db.fetch(CLAIMED_BY, worker, began)
        assert len(rows) <= min(cost.rows, N)  # a limited claim may add when to ask again
        self._ids, self._epochs = [row[0] for row in rows], [row[1] for row in rows]
        if self.watermark is not None:
            ((snapshot, generation),) = await db.fetch(SEEN)
            self.seen = (snapshot, generation)
            self.watermark.learn(
                self.topic_nos,
                [row[2] for row in rows],
                [row[3] for row in rows],
                [row[4] for row in rows],
                full=len(rows) == N,
                from_head=False,
                news=ClaimNews(seen=Seen(snapshot, generation)),
            )
        return cost, len(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Pages of each call, median, on a table of 1,000 rows: the yardstick."""

    claim: float
    promote: float
    reap: float
    settle: float
    renew: float
    modern: bool  # PostgreSQL 17 or newer: neighbouring keys of an array are read from the index in one go

    @property
    def growth(self) -> float:
        """The bound for all calls but the claim."""
        return GROWTH if self.modern else GROWTH_BEFORE_17

    @property
    def pages_per_locked(self) -> int:
        return PAGES_PER_LOCKED if self.modern else PAGES_PER_LOCKED_BEFORE_17


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[Connection]:
    db = await connect(dsn, application_name="headgate test", statement_timeout=timedelta(seconds=200))
    try:
        yield db
    finally:
        await db.close()


async def with_due_rows(scratch: ScratchDatabase, *, waiting: int) -> None:
    """Enough due rows for all calls, and `waiting` that are due in an hour."""
    now = datetime.now(UTC)
    await scratch.fill(N * (1 + CALLS), state=State.SCHEDULED, run_at=now - timedelta(seconds=1))
    await scratch.fill(waiting, state=State.SCHEDULED, run_at=now + timedelta(hours=1))


async def with_expired_rows(scratch: ScratchDatabase, *, running: int) -> datetime:
    """Enough expired leases for all calls, and `running` that began later and have an hour left.

    Returns when the first of them began.
    """
    now: datetime = await scratch.db.fetchval("SELECT clock_timestamp()")
    second, hour = timedelta(seconds=1), timedelta(hours=1)
    await scratch.fill(N * (1 + CALLS), state=State.RUNNING, claimed_at=now, lease_until=now)
    await scratch.fill(running, state=State.RUNNING, claimed_at=now + second, lease_until=now + hour)
    return now


# ------------------------------------------------------------------------------------------------ rows locked by others


@asynccontextmanager
async def holding_the_first(dsn: str, count: int) -> AsyncIterator[None]:
    """Another connection holds the row locks of the first `count` pending jobs."""
    async with session(dsn) as db, db.transaction():
        await db.execute(
            "SELECT id FROM headgate.jobs WHERE state = 0 ORDER BY rank_class, rank_at LIMIT $1 FOR UPDATE", count
        )
        yield
