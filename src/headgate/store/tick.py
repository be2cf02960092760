"""The tick: promote, look for claimable jobs, read what is paused; and the watchdog, which is a call of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg

from headgate.domain.dispatching import Tick
from headgate.domain.errors import InstanceForgotten, StoreBusy, StoreError
from headgate.domain.keyrange import KeyRanges
from headgate.domain.limits import REAP_AT_ONCE
from headgate.domain.workers import WorkerStop
from headgate.store.errors import translating
from headgate.store.floor import Floor
from headgate.store.leases import reap, reap_each
from headgate.store.new_ids import BEGINNING
from headgate.store.partitions import fetch_into_days
from headgate.store.quiet import quiet_set
from headgate.store.stuck import Problem, Stuck
from headgate.store.submit_calls import SubmitCalls
from headgate.store.worker_stops import all_stops

log = logging.getLogger("headgate.store")
TICK: Final = """
SELECT kind, tenant_no, topic_no, id, number, at, detail, headgate.clock_v1()
  FROM headgate.tick_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::text::pg_snapshot)"""
SCAN: Final = "SELECT kind, topic_no, at FROM headgate.scan_v1($1, $2)"
RESCUE: Final = """
SELECT kind, tenant_no, topic_no, id, number, at, detail, headgate.clock_v1() FROM headgate.rescue_v1($1, $2, $3)"""
ADMIT_DUE: Final = "SELECT topic_no, at, headgate.clock_v1() FROM headgate.admit_due_v1($1)"
REWIND_LIMITS: Final = "SELECT headgate.rewind_limits_v1()"
ADMIT_AT_ONCE: Final = 500
PROMOTE_AT_ONCE: Final = 1_000
_RESCUE_BLOCKS: Final = 2_000
_PROMOTE_AGAIN: Final = timedelta(seconds=5)
_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)  # no job began or falls due after it


class TickRow(NamedTuple):
    """A row of tick_v1 or rescue_v1."""

    kind: str
    tenant_no: int
    topic_no: int
    id: UUID
    number: int
    at: datetime
    detail: str
    now: datetime


class TickCalls(SubmitCalls):
    """Fits dispatch's ports for the ticker. A tick's reading of the clock moves on which submits count as new."""

    def __init__(self, dsn: str, *, direct_dsn: str | None = None, pooler: bool = False, unsafe: bool = False) -> None:
        super().__init__(dsn, direct_dsn=direct_dsn, pooler=pooler, unsafe=unsafe)
        self._promoted, self._running = Floor(), Floor()
        self.stuck = Stuck()
        self._no_rescue_before = [0.0, 0.0]  # one that promotes only, one that reaps
        self._clock = BEGINNING  # the database's, at the last tick
        self._limits_may_be_ahead = True  # the clock may have stepped back before this instance first read it
        self._quiet_hash: int | None = None
        self._quiet: frozenset[tuple[int, str]] = frozenset()
        self._stops_hash: int | None = None
        self._stops: Mapping[tuple[int, str], WorkerStop] = {}

    @property
    def running_floor(self) -> datetime:
        """Every attempt that began before has ended."""
        return self._running.at

    async def tick(
        self, topic_nos: Sequence[int], ranges: KeyRanges | None = None, *, running: bool = True, below: bool = False
    ) -> Tick:
        """See tick_v1. `ranges`: where to look for claimable jobs of the topics; left out: everywhere.

        `running`: look at running jobs, too, and note that this instance lives. `below`: look below the floors, which
        leave out dead index entries, for what landed there.
        """
        due_from = BEGINNING if below else self._promoted.at
        running_from = None if not running else BEGINNING if below else self._running.at
        where = KeyRanges.whole(topic_nos) if ranges is None else ranges
        rows = await self._rows_of_tick(topic_nos, where, due_from, running_from)
        kinds = {row.kind for row in rows}
        if self.instance_no and "forgotten" in kinds:
            raise InstanceForgotten(
                f"the database does not know instance {self.instance_no} any more: it was restored, or has lost "
                "its end. Numbers of topics that this process remembers may mean others there: start it again"
            )
        self.records_completions = "record" in kinds
        tick = self._tick(rows, running=running)
        if below:
            self._promoted.looked_below(tick.next_due)
            self._running.looked_below(tick.oldest_running)
        if self._limits_may_be_ahead:
            await self._rewind_limits()
        await self._read_workers(tick)
        if "names" in kinds:
            await self.refresh_names()
        return tick

    async def scan_topics(self, topic_nos: Sequence[int]) -> list[int]:
        """Those of these topics that have claimable jobs anywhere; as a tick does, but on another connection."""
        return [topic_no for _, topic_no, _ in await self._scan(topic_nos, floors=False)]

    async def scan_below_floors(self) -> bool:
        """Look below the floors as a tick with `below` does, on another connection; says whether one is lower now."""
        found = {kind: at for kind, _, at in await self._scan((), floors=True)}
        before = self._promoted.at, self._running.at
        self._promoted.looked_below(found.get("due"))
        self._running.looked_below(found.get("running"))
        return before != (self._promoted.at, self._running.at)

    async def _scan(self, topic_nos: Sequence[int], *, floors: bool) -> list[asyncpg.Record]:
        async with self.lane("upkeep").use() as db:
            with translating(writing=False):
                return await db.fetch(SCAN, topic_nos, floors)

    async def _rows_of_tick(
        self, topic_nos: Sequence[int], where: KeyRanges, due_from: datetime, running_from: datetime | None
    ) -> list[TickRow]:
        """One call; if a row is in its way, job by job, and if that fails too, part by part."""
        try:
            rows = await self._tick_rows(where, due_from, running_from)
        except StoreError as error:
            if not _is_about_some_row(error):
                raise
        else:
            self.stuck.over("promote")
            return rows
        try:
            rows = await self._tick_rows(where, due_from, running_from, one_by_one=True)
        except StoreError as again:
            if not _is_about_some_row(again):
                raise
            rows = await self._tick_in_parts(topic_nos, again, due_from, running_from)
        self.stuck.found("promote", _problems(rows))
        return rows

    async def _read_workers(self, tick: Tick) -> None:
        """Add the workers that are quiet or to stop. Rarely a statement: they are read only when they have changed."""
        if tick.quiet_hash != self._quiet_hash:
            async with self.lane("tick").use() as db:
                self._quiet = await quiet_set(db) if tick.quiet_hash is not None else frozenset()
            self._quiet_hash = tick.quiet_hash
        if tick.stops_hash != self._stops_hash:
            async with self.lane("tick").use() as db:
                self._stops = await all_stops(db) if tick.stops_hash is not None else {}
            self._stops_hash = tick.stops_hash
        tick.quiet, tick.stops = self._quiet, self._stops

    async def refresh_names(self) -> None:
        """Read topics that were made or changed since the last time; those that are new are passed to `on_topic`."""
        async with self.lane("tick").use() as db:
            await self.names.refresh(db)

    async def _tick_rows(
        self, ranges: KeyRanges, promote_floor: datetime, running_floor: datetime | None, *, one_by_one: bool = False
    ) -> list[TickRow]:
        async with self.lane("tick").use("tick") as db:
            with translating(writing=True):
                rows = await fetch_into_days(
                    db,
                    TICK,
                    self.instance_no,
                    ranges.topic_nos,
                    ranges.class_from,
                    ranges.rank_from,
                    ranges.class_to,
                    ranges.rank_to,
                    PROMOTE_AT_ONCE,
                    promote_floor,
                    running_floor,
                    one_by_one,
                    self.names.seen,
                )
        return [TickRow(*row) for row in rows]

    async def _tick_in_parts(
        self, topic_nos: Sequence[int], cause: StoreError, due_from: datetime, running_from: datetime | None
    ) -> list[TickRow]:
        """A tick of which each part may fail by itself: a page that cannot be read must not stop what lies elsewhere.

        A floor that nothing reaches leaves a part out. Without the rest of it, which is about this instance and what is
        paused, there is no tick.
        """
        log.debug("tick_in_parts error=%s", cause)
        rows = await self._tick_rows(KeyRanges(), _NEVER, None if running_from is None else _NEVER)
        for part, topics_of_part, promote_floor, running_floor in (
            ("promote", [], due_from, None),
            *([] if running_from is None else [("running", [], _NEVER, running_from)]),
            *((f"topic {no}", [no], _NEVER, None) for no in topic_nos),
        ):
            try:
                rows += await self._tick_rows(
                    KeyRanges.whole(topics_of_part), promote_floor, running_floor, one_by_one=True
                )
            except StoreError as error:
                if not _is_about_some_row(error):
                    raise
                self.stuck.failed(part, error)
                if part == "promote":
                    rows += await self._rescue(reap=False)
                elif part == "running":  # then some may have expired, for all that is known
                    rows.append(rows[0]._replace(kind="running", at=BEGINNING))
        return rows

    async def _rescue(self, *, reap: bool) -> list[TickRow]:
        """Promote, and reap, block by block: rows as of a tick. Seldom, for it reads the whole table."""
        found: list[TickRow] = []
        if time.monotonic() < self._no_rescue_before[reap]:
            return found
        began = time.monotonic()
        first, more = 0, True
        while more:
            async with self.lane("tick").use() as db:
                with translating(writing=True):
                    rows = await fetch_into_days(db, RESCUE, first, _RESCUE_BLOCKS, reap)
            more = any(row[0] == "more" for row in rows)
            found += [TickRow(*row) for row in rows]
            first += _RESCUE_BLOCKS
        # Ten times as long without it as with it, and at least a second.
        self._no_rescue_before[reap] = time.monotonic() + max(1.0, 10 * (time.monotonic() - began))
        self.stuck.found("reap pages" if reap else "promote pages", _problems(found))
        return found

    async def reap(self) -> list[int]:
        """End attempts whose lease has run out; the topic of each of them.

        Never in the tick's own call, which may have waited for a database that was away: no lease was renewed.
        """
        try:
            async with self.lane("tick").use() as db:
                reaped = await reap(db, limit=REAP_AT_ONCE, floor=self._running.at)
            self.stuck.over("reap")
            return [one.topic_no for one in reaped]
        except StoreError as error:
            if not _is_about_some_row(error):
                raise
        try:
            async with self.lane("tick").use() as db:
                reaped, problems = await reap_each(db, limit=REAP_AT_ONCE, floor=self._running.at)
        except StoreError as error:
            if not _is_about_some_row(error):
                raise
            self.stuck.failed("reap", error)
            return [row.topic_no for row in await self._rescue(reap=True) if row.kind == "reaped"]
        self.stuck.found("reap", problems)
        return [one.topic_no for one in reaped]

    async def _rewind_limits(self) -> None:
        """Let buckets that were charged before a step back of the clock refill; if one is locked, at the next tick."""
        try:
            async with self.lane("tick").use() as db:
                with translating(writing=True):
                    await db.fetchval(REWIND_LIMITS)
        except StoreError as error:
            if not _is_about_some_row(error):
                raise
            log.debug("rewind_limits_failed error=%s", error)
        else:
            self._limits_may_be_ahead = False

    async def admit_due(self) -> list[tuple[int, float]]:
        """Let in jobs whose key has its next token; says which topics have more now (0 or less) or in some seconds."""
        async with self.lane("tick").use() as db:
            with translating(writing=True):
                rows = await db.fetch(ADMIT_DUE, ADMIT_AT_ONCE)
        return [(topic_no, (at - now).total_seconds()) for topic_no, at, now in rows]

    def _tick(self, rows: Sequence[TickRow], *, running: bool) -> Tick:
        tick = Tick()
        promoted_to: datetime | None = None
        oldest, newest = 0, 0  # transactions in flight: of a tick in parts those of the first, for what ended meanwhile
        for row in rows:
            tick.now = row.now
            match row.kind:
                case "pending":
                    tick.pending.append(row.topic_no)
                case "paused":
                    tick.paused.add((row.tenant_no, row.topic_no))
                    if row.at is not None:
                        tick.next_resume = row.at if tick.next_resume is None else min(tick.next_resume, row.at)
                case "quiet":
                    tick.quiet_hash = row.number
                case "stops":
                    tick.stops_hash = row.number
                case "promoted":
                    tick.promoted.append((row.tenant_no, row.topic_no, row.id))
                    promoted_to = row.at if promoted_to is None else max(promoted_to, row.at)
                case "cancel":
                    tick.cancels.append((row.tenant_no, row.id, row.number))
                case "running":
                    tick.oldest_running = row.at
                case "oldest_transaction":
                    oldest = oldest or row.number
                case "next_transaction":
                    newest = newest or row.number
                case "due":
                    tick.next_due, tick.due_is_locked = row.at, bool(row.number)
                case "unblock":
                    tick.unblocks = True
                case "bulk":
                    tick.bulk = True
                case "webhook":
                    tick.webhooks = True
                case "capacity":
                    tick.limits_open.append((row.topic_no, row.at))
                case "others":
                    tick.others = row.number
        self._promoted.passed(oldest, tick.next_due)
        if running:
            self._running.passed(oldest, tick.oldest_running)
        if promoted_to is not None and len(tick.promoted) < PROMOTE_AT_ONCE:
            # Not quite up to it: a due job whose row was locked at that moment was passed over.
            self._promoted.offer(promoted_to - _PROMOTE_AGAIN, newest)
        if tick.oldest_running is not None and tick.now is not None:
            # Every attempt that began before it has ended. After a step back of the clock, others begin before it.
            self._running.offer(min(tick.oldest_running, tick.now), newest)
        if tick.now is not None:
            if tick.now < self._clock:  # what falls due or begins from now on lies below the floors
                tick.stepped_back = self._clock - tick.now
                self._limits_may_be_ahead = True
                self._promoted.reset()
                self._running.reset()
            self.new_ids.clock_read(tick.now)
            self._clock = tick.now
        return tick


def _is_about_some_row(error: StoreError) -> bool:
    """Whether others may be served although this failed: a page that cannot be read, a row that is locked."""
    return type(error) is StoreError or (isinstance(error, StoreBusy) and error.locked)


def _problems(rows: Sequence[TickRow]) -> list[Problem]:
    found: list[Problem] = [(row.tenant_no, row.id, row.detail) for row in rows if row.kind == "problem"]
    return found + [
        (None, f"block {row.number} of headgate.jobs", row.detail) for row in rows if row.kind == "unreadable"
    ]
