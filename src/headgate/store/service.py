"""The store as an instance uses it: its verbs on connections of their own, so that none waits for another.

Each lane is one connection that is opened again when it breaks. Leases have their own: however busy submits and claims
are, renewals get through. So have heartbeats, and outcomes of jobs that were not given to their reporter: callers
decide how many of these there are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack
from uuid import UUID

import asyncpg
from asyncpg.pgproto import pgproto

from headgate.control.ports import JobDetails, JobEventView
from headgate.control.topics import TopicView
from headgate.dispatch.ports import ClaimCall, OutcomeRows, SubmitRows, Tick
from headgate.domain.backoff import RetryPolicy
from headgate.domain.dependencies import BatchStatus, DependencyView, NewBatch
from headgate.domain.errors import (
    InstanceForgotten,
    QuotaExceeded,
    ReadOnly,
    RowLocked,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from headgate.domain.flags import HAS_RELATIONS
from headgate.domain.ids import TenantNo
from headgate.domain.jobs import Submission, SubmitAnswer
from headgate.domain.keyrange import KeyRanges
from headgate.domain.rank import rank_of
from headgate.domain.states import SubmitReceipt
from headgate.domain.wakes import Wake, decode, encode
from headgate.store import batches, dependencies, leases, reads, schedules, settle, submit, topics, verbs
from headgate.store import claim as claiming
from headgate.store.connect import BACKGROUND_STATEMENT_TIMEOUT, Connection, connect
from headgate.store.errors import translating
from headgate.store.floor import Floor
from headgate.store.flush import SubmitFlush
from headgate.store.lane import Lane, transaction
from headgate.store.migration_files import load
from headgate.store.names import Names, Topic
from headgate.store.partitions import fetch_into_days
from headgate.store.preflight import inspect, pin, require_still_durable
from headgate.store.quiet import quiet_set
from headgate.store.stuck import Problem, Stuck
from headgate.store.submit_claim import submit_and_claim

if TYPE_CHECKING:
    from headgate.store.settle import OutcomeFlush, Settled

log = logging.getLogger("headgate.store")
_Interned = TypeVar("_Interned")
CHANNEL: Final = "headgate_topics"
TICK: Final = """
SELECT kind, tenant_no, topic_no, id, number, at, detail, headgate.clock_v1()
  FROM headgate.tick_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::text::pg_snapshot)"""
PROGRESS: Final = """
SELECT progress FROM headgate.jobs WHERE tenant_no = $1 AND id = $2
 UNION ALL
SELECT progress FROM headgate.archive WHERE tenant_no = $1 AND id = $2"""
FINISHED: Final = "SELECT id FROM headgate.archive WHERE tenant_no = $1 AND id = ANY ($2)"
ADMIT_DUE: Final = "SELECT topic_no, at, headgate.clock_v1() FROM headgate.admit_due_v1($1)"
RESCUE: Final = "SELECT kind, tenant_no, topic_no, id, number, at, detail FROM headgate.rescue_v1($1, $2, $3)"
ADMIT_AT_ONCE: Final = 500
PROMOTE_AT_ONCE: Final = 1_000
REAP_AT_ONCE: Final = 1_000
FRESH_SPAN: Final = timedelta(minutes=15)
DOUBT_SPAN: Final = timedelta(minutes=1)
BELIEF_SECONDS: Final = 60.0
"""Without a tick for so long, a submit asks for the database's clock itself."""
CLOCK: Final = "SELECT headgate.clock_v1()"
SUBMIT_LOCK_TIMEOUT: Final = timedelta(milliseconds=50)
LOCKED_LOCK_TIMEOUT: Final = timedelta(milliseconds=10)
LOCKED_PATIENCE: Final = timedelta(seconds=5)
_LOCKED_PAUSE_SECONDS: Final = 0.05
_HINTS_MOST: Final = 10
_RESCUE_BLOCKS: Final = 2_000
_PROMOTE_AGAIN: Final = timedelta(seconds=5)
_BELOW_SECONDS: Final = 30.0
"""How often everything is looked at, also below the floors. By the clock, not by ticks: retries cause many in a
second. And never for more than a hundredth of the time: with a snapshot held elsewhere a look below is a walk over all
that has ended since."""
_BELOW_SHARE: Final = 0.01
_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)  # no job began or falls due after it


def _is_about_some_row(error: StoreError) -> bool:
    """Whether others may be served although this failed: a page that cannot be read, a row that is locked."""
    return type(error) is StoreError or (isinstance(error, StoreBusy) and error.locked)


def _problems(rows: Sequence[tuple[Any, ...]]) -> list[Problem]:
    return [(row[1], row[3] or f"block {row[4]} of headgate.jobs", row[6]) for row in rows if row[0] == "problem"]


def _nobody(*_: object) -> None:
    """The tick of some instance finds it."""


class Store:
    """All lanes of one instance."""

    def __init__(self, dsn: str, *, direct_dsn: str | None = None, pooler: bool = False, unsafe: bool = False) -> None:
        """`unsafe`: sessions keep the database's own settings, and nothing is checked."""
        self._dsn, self._direct_dsn = dsn, direct_dsn or (None if pooler else dsn)
        self._lanes = {
            name: Lane(dsn, name, pooler=pooler) for name in ("settle", "unmatched", "read", "operate", "schedule")
        } | {
            name: Lane(dsn, name, pooler=pooler, statement_timeout=BACKGROUND_STATEMENT_TIMEOUT)
            for name in ("claim", "leases", "heartbeats", "tick", "free", "list")
        }
        # Past a pooler where there is a way: dropping a day needs a setting of the session.
        self._lanes["retention"] = Lane(self._direct_dsn or dsn, "retention", pooler=self._direct_dsn is None)
        # Many callers share a flush: none of them may wait for long for what another one's row has met.
        self._lanes["submit"] = Lane(dsn, "submit", pooler=pooler, lock_timeout=SUBMIT_LOCK_TIMEOUT)
        self._lanes["locked"] = Lane(dsn, "locked", pooler=pooler, lock_timeout=LOCKED_LOCK_TIMEOUT)
        self._unsafe = unsafe
        self.checks_durability = False  # of every new connection: from the moment on when the server has started
        if not unsafe:
            for lane in self._lanes.values():
                lane.on_open = partial(self._opened, pooler=lane.pooler)
                lane.on_begin = partial(pin, transaction_only=True)
        self.names = Names()
        self.instance_no = 0
        self._promoted, self._running = Floor(), Floor()
        self.stuck = Stuck()
        self._no_rescue_before = [0.0, 0.0]  # one that promotes only, one that reaps
        self._below_at = 0.0  # when the next tick looks below the floors, too
        self._clock = leases.BEGINNING  # the database's, at the last tick
        self._fresh_until: datetime | None = None  # see _believe
        self._doubt_until: datetime | None = None
        self._believed = leases.BEGINNING  # the database's clock when `_fresh_until` was set
        self._believed_at = 0.0  # the same by the monotonic clock, or when it was last asked for
        self._listener: asyncpg.Connection[asyncpg.Record] | None = None
        self._waits_place = dependencies.BEGINNING
        self._quiet_hash: int | None = None
        self._quiet: frozenset[tuple[int, str]] = frozenset()
        self.on_locked: Callable[[int, UUID], None] = _nobody  # a claim may have passed over this job of that tenant
        self.on_operations: Callable[[], None] = _nobody  # a tick saw some that are not over
        self.on_checks: Callable[[], None] = _nobody  # jobs that waited for others may be free: see unblock_ready

    def lane(self, name: str) -> Lane:
        """A lane by name."""
        return self._lanes[name]

    # ------------------------------------------------------------------ durability

    async def _opened(self, connection: Connection, *, pooler: bool) -> None:
        """A new connection: set what a session can set, check the rest. Raises ReadOnly or StoreUnavailable."""
        if not pooler:
            await pin(connection, transaction_only=False)
            if self.checks_durability:
                require_still_durable(await inspect(connection))
        elif self.checks_durability:
            async with transaction(connection):
                await pin(connection, transaction_only=True)
                require_still_durable(await inspect(connection))

    async def check_durability(self) -> str:
        """Look again. If it is not durable any more, all connections are dropped, and no new one is used until it is.

        Returns what is wrong with the defaults, which concerns only who submits from SQL.
        """
        if self._unsafe:
            return ""
        try:
            async with self._lanes["read"].use() as db:
                found = await inspect(db)
                require_still_durable(found)
        except (StoreUnavailable, ReadOnly):
            for lane in self._lanes.values():
                lane.drop()
            raise
        return "; ".join(found.problems)

    @property
    def can_listen(self) -> bool:
        """Whether there is a way past a transaction pooler, over which notifications do not come."""
        return self._direct_dsn is not None

    async def close(self) -> None:
        """Close all lanes."""
        for lane in self._lanes.values():
            await lane.close()
        if self._listener is not None and not self._listener.is_closed():
            await self._listener.close()

    async def register(self, name: str, version: str) -> int:
        """Make this instance known; its number is the owner of what it claims."""
        async with self._lanes["tick"].use() as db:
            with translating(writing=True):
                self.instance_no = await db.fetchval(
                    "INSERT INTO headgate.instances (name, version, knows) VALUES ($1, $2, $3) RETURNING instance_no",
                    name,
                    version,
                    load()[-1].number,
                )
        return self.instance_no

    # ------------------------------------------------------------------ names

    async def tenant_no(self, tenant: str) -> int:
        known = self.names.known_tenant(tenant)
        if known is not None:
            return known
        return await self._interned(lambda db: self.names.tenant(db, tenant))

    async def topics(self, tenant: str, names: Sequence[str]) -> list[Topic]:
        tenant_no = TenantNo(await self.tenant_no(tenant))
        known = self.names.known_topics(tenant_no, names)
        if known is not None:
            return known
        return await self._interned(lambda db: self.names.topics(db, tenant_no, names))

    async def _interned(self, intern: Callable[[Connection], Awaitable[_Interned]]) -> _Interned:
        """Make names known. One that another open transaction has just made up is waited for, between tries:
        others' names and reads do not wait with it."""
        deadline = time.monotonic() + LOCKED_PATIENCE.total_seconds()
        while True:
            try:
                async with self._lanes["locked"].use() as db:
                    return await intern(db)
            except RowLocked:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_LOCKED_PAUSE_SECONDS)

    def topic_name(self, topic_no: int) -> str:
        return self.names.known_topic(topic_no).name

    def topic_no(self, tenant_no: int, name: str) -> int | None:
        return self.names.topic_no(tenant_no, name)

    def knows_topic(self, topic_no: int) -> bool:
        return self.names.knows(topic_no)

    async def refresh_names(self) -> None:
        """Read topics that were made or changed since the last time; those that are new are passed to `on_topic`."""
        async with self._lanes["tick"].use() as db:
            await self.names.refresh(db)

    def is_ageing(self, topic_no: int) -> bool:
        return self.names.known_topic(topic_no).rules.ageing_step is not None

    def is_keyed(self, topic_no: int) -> bool:
        return self.names.known_topic(topic_no).keyed

    def uuids(self, raw: Sequence[bytes]) -> list[UUID]:
        make = pgproto.UUID  # a uuid.UUID made from 16 bytes in C, ten times faster
        return [make(one) for one in raw]

    # ------------------------------------------------------------------ submits

    async def refusals(self, tenant: str, jobs: Sequence[Submission]) -> dict[int, QuotaExceeded]:
        """Make topics and policies of a tenant's jobs known, a round trip each for all that are new.

        Returns, by place, why some jobs cannot be taken: a name of theirs is over the tenant's quota.
        """
        tenant_no, names = TenantNo(await self.tenant_no(tenant)), self.names
        policies = names.unknown_policies(tenant_no, (job.policy for job in jobs if job.policy is not None))
        topics_refused: Mapping[str, QuotaExceeded] = {}
        policies_refused: Mapping[RetryPolicy, QuotaExceeded] = {}
        if names.known_topics(tenant_no, [job.topic for job in jobs]) is None:
            wanted = {job.topic for job in jobs}
            topics_refused = await self._interned(lambda db: names.make_topics(db, tenant_no, wanted))
        if policies:
            policies_refused = await self._interned(lambda db: names.make_policies(db, tenant_no, policies))
        if not topics_refused and not policies_refused:
            return {}
        return {
            place: refused
            for place, job in enumerate(jobs)
            if (refused := topics_refused.get(job.topic) or (job.policy and policies_refused.get(job.policy)))
        }

    async def fill(self, jobs: Sequence[Submission]) -> SubmitFlush:
        """Raises QuotaExceeded for the first job that needs a name which may not be made."""
        await self._keep_belief()
        flush = SubmitFlush(fresh_until=self._fresh_until)
        for tenant in {job.tenant for job in jobs}:
            for refused in (await self.refusals(tenant, [job for job in jobs if job.tenant == tenant])).values():
                raise refused
        for job in jobs:
            topic = self.names.known_topic_of(await self.tenant_no(job.tenant), job.topic)
            policy_no = None if job.policy is None else self.names.known_policy_no(topic.tenant_no, job.policy)
            flush.add(job, topic, policy_no=policy_no)
        return flush

    async def fill_plain(
        self,
        tenant: str,
        topic: str,
        ids: Sequence[bytes],
        payloads: Sequence[bytes],
        priorities: Sequence[int],
        *,
        new_id: bool,
    ) -> SubmitFlush:
        await self._keep_belief()
        fresh_until = self._fresh_until  # before anything else is waited for
        (known,) = await self.topics(tenant, [topic])
        flush = SubmitFlush(fresh_until=fresh_until)
        flush.add_plain(known, self.uuids(ids), payloads, new_id=new_id)
        if any(priorities):
            step = known.rules.ageing_step
            ranks = [rank_of(priority, step) for priority in priorities]
            flush.priorities = list(priorities)
            flush.rank_classes = [rank_class for rank_class, _ in ranks]
            flush.rank_offsets = [offset for _, offset in ranks]
        return flush

    async def submit(self, rows: SubmitRows) -> dict[int, SubmitAnswer]:
        async with self._lanes["submit"].use("submit") as db:
            answers = await submit.submit(db, rows)  # type: ignore[arg-type]  # made by fill()
        self._look_again(rows, answers)
        return answers

    async def submit_locked(self, rows: SubmitRows) -> dict[int, SubmitAnswer]:
        """Once more, on a connection of their own: rows that another transaction's locks were in the way of."""
        async with self._lanes["locked"].use("submit") as db:
            answers = await submit.submit(db, rows)  # type: ignore[arg-type]  # made by fill()
        self._look_again(rows, answers)
        return answers

    async def submit_and_claim(
        self, rows: SubmitRows, **asked: Unpack[ClaimCall]
    ) -> tuple[dict[int, SubmitAnswer], claiming.Claimed]:
        """A plain flush, and a claim behind it in the same commit."""
        request = claiming.ClaimRequest(owner=self.instance_no, **asked)
        async with self._lanes["submit"].use("submit_claim") as db:
            return await submit_and_claim(db, rows, request)  # type: ignore[arg-type]  # made by fill()

    def _look_again(self, rows: SubmitRows, answers: Mapping[int, SubmitAnswer]) -> None:
        """Some submits had dependencies: parents may have ended, and a claim may have passed over what was locked."""
        if not isinstance(rows, SubmitFlush) or not rows.dependencies:
            return
        self.on_checks()
        for ord_, asked in zip(rows.dependency_ords, rows.dependencies, strict=True):
            tenant_no = rows.tenant_nos[ord_ - 1]
            for parent in asked.depends_on[:_HINTS_MOST]:
                self.on_locked(tenant_no, parent)
            if asked.unique is not None and ord_ - 1 in answers:
                self.on_locked(tenant_no, answers[ord_ - 1].job_id)

    async def submit_atomic(self, rows: SubmitRows) -> dict[int, SubmitAnswer]:
        """All or nothing: any conflict or refused row undoes the rest. What is locked is waited for, between tries."""
        deadline = time.monotonic() + LOCKED_PATIENCE.total_seconds()
        while True:
            answers = await self._submit_atomic(rows)
            locked = any(isinstance(answer.error, RowLocked) for answer in answers.values())
            if not locked or time.monotonic() > deadline:
                self._look_again(rows, answers)
                return answers
            await asyncio.sleep(_LOCKED_PAUSE_SECONDS)

    async def _submit_atomic(self, rows: SubmitRows) -> dict[int, SubmitAnswer]:
        # Not on the lane of the flushes: an atomic batch is one caller's, and may be as large as a flush.
        async with self._lanes["locked"].use("submit_atomic") as db:
            with translating(writing=True):
                transaction = db.transaction()
                await transaction.start()
                try:
                    answers = await submit.submit(db, rows)  # type: ignore[arg-type]  # made by fill()
                except BaseException:
                    await transaction.rollback()
                    raise
                if any(
                    answer.receipt in (SubmitReceipt.CONFLICT, SubmitReceipt.REFUSED) for answer in answers.values()
                ):
                    await transaction.rollback()
                else:
                    await transaction.commit()
        return answers

    # ------------------------------------------------------------------ batches

    async def open_batch(self, tenant: str, batch: NewBatch, *, callback: Submission | None) -> BatchStatus:
        tenant_no = await self.tenant_no(tenant)
        async with self._lanes["operate"].use("batch") as db:
            await batches.open_batch(db, self.names, tenant_no, batch, callback=callback)
            return await batches.batch_status(db, tenant_no, batch.id)

    async def seal_batch(self, tenant: str, batch_id: UUID) -> BatchStatus:
        tenant_no = await self.tenant_no(tenant)
        async with self._lanes["operate"].use("batch") as db:
            await batches.seal_batch(db, tenant_no, batch_id)
            status = await batches.batch_status(db, tenant_no, batch_id)
        self.on_checks()
        return status

    async def batch(self, tenant: str, batch_id: UUID) -> BatchStatus:
        tenant_no = await self.tenant_no(tenant)
        async with self._lanes["read"].use() as db:
            return await batches.batch_status(db, tenant_no, batch_id)

    # ------------------------------------------------------------------ dispatch

    async def claim(self, **asked: Unpack[ClaimCall]) -> claiming.Claimed:
        async with self._lanes["claim"].use("claim") as db:
            return await claiming.claim(db, owner=self.instance_no, **asked)

    def new_outcomes(self) -> OutcomeFlush:
        return settle.OutcomeFlush()

    async def settle(self, rows: OutcomeRows) -> dict[int, Settled]:
        async with self._lanes["unmatched" if rows.unmatched else "settle"].use("settle") as db:
            settled = await settle.settle(db, rows)  # type: ignore[arg-type]  # made by new_outcomes()
        if rows.unblocks:
            self.on_checks()
        return settled

    async def unblock_ready(self) -> tuple[list[tuple[int, int, UUID]], bool]:
        async with self._lanes["free"].use("free") as db:
            return await dependencies.unblock_ready(db)

    async def mend_waits(self, *, limit: int) -> list[str]:
        """Look at the next `limit` unmet dependencies, and from the beginning after the last; what was mended."""
        async with self._lanes["free"].use() as db:
            self._waits_place, mended = await dependencies.mend_waits(db, self._waits_place, limit=limit)
        return mended

    async def renew(
        self, held: Mapping[tuple[int, int], tuple[Sequence[UUID], Sequence[int]]], *, for_call: bool = False
    ) -> dict[tuple[int, UUID, int], leases.Renewal]:
        """Push leases forward; `for_call`: a caller waits for it, and renewals must not wait behind it."""
        async with self._lanes["heartbeats" if for_call else "leases"].use("renew") as db:
            return await leases.renew(
                db,
                [
                    leases.Held(tenant_no=tenant_no, ids=ids, epochs=epochs, lease_ms=lease_ms)
                    for (tenant_no, lease_ms), (ids, epochs) in held.items()
                ],
            )

    async def progress(self, tenant_no: int, words: Mapping[UUID, tuple[int, Mapping[str, object]]]) -> None:
        """Note how far jobs of a tenant are, in one statement."""
        ids = sorted(words, key=lambda job_id: job_id.bytes)
        async with self._lanes["heartbeats"].use() as db:
            with translating(writing=True):
                await db.execute(
                    "SELECT headgate.progress_v1($1, $2, $3, $4)",
                    tenant_no,
                    ids,
                    [words[job_id][0] for job_id in ids],
                    [json.dumps(words[job_id][1]) for job_id in ids],
                )

    async def abandon_undeclared(self, tenant_no: int, worker: str, held: Sequence[UUID]) -> list[UUID]:
        try:
            async with self._lanes["heartbeats"].use("undeclared") as db:
                with translating(writing=True):
                    rows = await db.fetch(
                        "SELECT headgate.abandon_undeclared_v1($1, $2, $3)", tenant_no, worker, list(held)
                    )
        except RowLocked as error:  # the worker is greeted all the same: those jobs come back when their leases end
            log.warning("undeclared_locked worker=%s error=%s", worker, error)
            return []
        return [row[0] for row in rows]

    async def topics_of(self, tenant_no: int, ids: Sequence[UUID]) -> dict[UUID, str]:
        """The topics of jobs, alive or ended; without those that do not exist."""
        async with self._lanes["heartbeats"].use() as db:
            found = await verbs.states(db, tenant_no, list(dict.fromkeys(ids)))
            return {
                job_id: (await self.names.topic_by_no(db, topic_no)).name for job_id, (_, topic_no, _) in found.items()
            }

    async def tick(self, topic_nos: Sequence[int], ranges: KeyRanges | None = None) -> Tick:
        """See tick_v1. `ranges`: where to look for claimable jobs of the topics; left out: everywhere."""
        # The floors leave out dead index entries; now and then everything is looked at, for what landed below.
        began = time.monotonic()
        below = began >= self._below_at
        if below:
            self._promoted.reset()
            self._running.reset()
        where = KeyRanges.whole(topic_nos) if ranges is None else ranges
        try:
            rows = await self._tick_rows(where, self._promoted.at, self._running.at)
        except StoreError as error:
            if not _is_about_some_row(error):
                raise
            try:
                rows = await self._tick_rows(where, self._promoted.at, self._running.at, one_by_one=True)
            except StoreError as again:
                if not _is_about_some_row(again):
                    raise
                rows = await self._tick_in_parts(topic_nos, again)
            self.stuck.found("promote", _problems(rows))
        else:
            self.stuck.over("promote")
        if below:
            self._below_at = began + max(_BELOW_SECONDS, (time.monotonic() - began) / _BELOW_SHARE)
        if self.instance_no and any(row[0] == "forgotten" for row in rows):
            raise InstanceForgotten(
                f"the database does not know instance {self.instance_no} any more: it was restored, or has lost "
                "its end. Numbers of topics that this process remembers may mean others there: start it again"
            )
        tick = self._tick(rows)
        if tick.quiet_hash != self._quiet_hash:  # rarely: the names are read only when they have changed
            async with self._lanes["tick"].use() as db:
                self._quiet = await quiet_set(db) if tick.quiet_hash is not None else frozenset()
            self._quiet_hash = tick.quiet_hash
        tick.quiet = self._quiet
        if any(row[0] == "names" for row in rows):
            await self.refresh_names()
        return tick

    async def _tick_rows(
        self, ranges: KeyRanges, promote_floor: datetime, running_floor: datetime, *, one_by_one: bool = False
    ) -> list[tuple[Any, ...]]:
        async with self._lanes["tick"].use("tick") as db:
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
        return [tuple(row) for row in rows]

    async def _tick_in_parts(self, topic_nos: Sequence[int], cause: StoreError) -> list[tuple[Any, ...]]:
        """A tick of which each part may fail by itself: a page that cannot be read must not stop what lies elsewhere.

        A floor that nothing reaches leaves a part out. Without the rest of it, which is about this instance and what is
        paused, there is no tick.
        """
        log.debug("tick_in_parts error=%s", cause)
        rows: list[tuple[Any, ...]] = await self._tick_rows(KeyRanges(), _NEVER, _NEVER)
        for part, topics_of_part, promote_floor, running_floor in (
            ("promote", [], self._promoted.at, _NEVER),
            ("running", [], _NEVER, self._running.at),
            *((f"topic {no}", [no], _NEVER, _NEVER) for no in topic_nos),
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
                    rows += await self._rescue(reap=False, now=rows[0][7])
                elif part == "running":  # then some may have lapsed, for all that is known
                    rows.append(("running", None, None, None, None, leases.BEGINNING, None, rows[0][7]))
        return rows

    async def _rescue(self, *, reap: bool, now: datetime) -> list[tuple[Any, ...]]:
        """Promote, and reap, block by block: rows as of a tick. Seldom, for it reads the whole table."""
        found: list[tuple[Any, ...]] = []
        if time.monotonic() < self._no_rescue_before[reap]:
            return found
        began = time.monotonic()
        first, more = 0, True
        while more:
            async with self._lanes["tick"].use() as db:
                with translating(writing=True):
                    rows = await fetch_into_days(db, RESCUE, first, _RESCUE_BLOCKS, reap)
            more = any(row[0] == "more" for row in rows)
            found += [(*row, now) for row in rows]
            first += _RESCUE_BLOCKS
        # Ten times as long without it as with it, and at least a second.
        self._no_rescue_before[reap] = time.monotonic() + max(1.0, 10 * (time.monotonic() - began))
        self.stuck.found("reap pages" if reap else "promote pages", _problems(found))
        return found

    async def reap(self) -> int:
        """End attempts whose lease has run out; says how many.

        Never in the tick's own call, which may have waited for a database that was away, and nobody could renew.
        """
        try:
            async with self._lanes["tick"].use() as db:
                reaped = await leases.reap(db, limit=REAP_AT_ONCE, floor=self._running.at)
            self.stuck.over("reap")
            return len(reaped)
        except StoreError as error:
            if not _is_about_some_row(error):
                raise
        try:
            async with self._lanes["tick"].use() as db:
                reaped, problems = await leases.reap_each(db, limit=REAP_AT_ONCE, floor=self._running.at)
        except StoreError as error:
            if not _is_about_some_row(error):
                raise
            self.stuck.failed("reap", error)
            return sum(row[0] == "reaped" for row in await self._rescue(reap=True, now=self._clock))
        self.stuck.found("reap", problems)
        return len(reaped)

    async def admit_due(self) -> list[tuple[int, float]]:
        """Let in jobs whose key has its next token; says which topics have more now (0 or less) or in some seconds."""
        async with self._lanes["tick"].use() as db:
            with translating(writing=True):
                rows = await db.fetch(ADMIT_DUE, ADMIT_AT_ONCE)
        return [(topic_no, (at - now).total_seconds()) for topic_no, at, now in rows]

    def _tick(self, rows: Sequence[tuple[Any, ...]]) -> Tick:
        tick = Tick()
        promoted_to: datetime | None = None
        oldest, newest = 0, 0  # transactions in flight
        for kind, tenant_no, topic_no, job_id, number, at, _, now in rows:
            tick.now = now
            if kind == "pending":
                tick.pending.append(topic_no)
            elif kind == "paused":
                tick.paused.add((tenant_no, topic_no))
                if at is not None:
                    tick.next_resume = at if tick.next_resume is None else min(tick.next_resume, at)
            elif kind == "quiet":
                tick.quiet_hash = number
            elif kind == "promoted":
                tick.promoted.append((tenant_no, topic_no, job_id))
                promoted_to = at if promoted_to is None else max(promoted_to, at)
            elif kind == "cancel":
                tick.cancels.append((tenant_no, job_id, number))
            elif kind == "running":
                tick.oldest_running = at
            elif kind == "oldest_transaction":
                oldest = oldest or number  # of a tick in parts, the first: what ended meanwhile may have been missed
            elif kind == "next_transaction":
                newest = newest or number
            elif kind == "due":
                tick.next_due = at
            elif kind == "unblock":
                self.on_checks()
            elif kind == "bulk":
                self.on_operations()
            elif kind == "capacity":
                tick.limits_open.append((topic_no, at))
            elif kind == "others":
                tick.others = number
        self._promoted.passed(oldest, tick.next_due)
        self._running.passed(oldest, tick.oldest_running)
        if promoted_to is not None and len(tick.promoted) < PROMOTE_AT_ONCE:
            # Not quite up to it: a due job whose row somebody held at that moment was passed over.
            self._promoted.offer(promoted_to - _PROMOTE_AGAIN, newest)
        if tick.oldest_running is not None and tick.now is not None:
            # Every attempt that began before it has ended. After a step back of the clock, others begin before it.
            self._running.offer(min(tick.oldest_running, tick.now), newest)
        if tick.now is not None:
            if tick.now < self._clock:  # what falls due or begins from now on lies below the floors
                tick.stepped_back = self._clock - tick.now
                self._promoted.reset()
                self._running.reset()
            self._believe(tick.now)
            self._clock = tick.now
        return tick

    def _believe(self, now: datetime) -> None:
        """Until when submits that come in now count as never sent before: long enough for any queue, far below the hour
        for which submits that were sent again are remembered. After a tick that came so late that this was over, frames
        from before may still be read, so for a while nothing counts as new."""
        # After a step back of the clock the end of the doubt may lie hours ahead: it begins again.
        stepped_back = self._doubt_until is not None and now < self._believed
        if stepped_back or (self._fresh_until is not None and now - self._believed > FRESH_SPAN):
            self._doubt_until = now + DOUBT_SPAN
        doubted = self._doubt_until is not None and now < self._doubt_until
        self._fresh_until = now if doubted else now + FRESH_SPAN
        self._believed, self._believed_at = now, time.monotonic()

    async def _keep_belief(self) -> None:
        """Ask for the clock if no tick has brought it lately. Else submits would be refused as too late after an hour
        and a quarter of failed ticks, although they could be written."""
        if self._fresh_until is None or time.monotonic() - self._believed_at < BELIEF_SECONDS:
            return
        self._believed_at = time.monotonic()  # one caller asks, the others go on
        with suppress(StoreError):  # the submit itself meets what is wrong, and says so
            async with self._lanes["submit"].use() as db:
                with translating(writing=False):
                    now = await db.fetchval(CLOCK)
            self._believe(now)

    async def notify(self, wakes: Collection[Wake]) -> None:
        """Tell other instances where there is work. On the tick's lane: never in the submit's transaction."""
        async with self._lanes["tick"].use() as db:
            with translating(writing=True):
                await db.execute("SELECT pg_notify($1, $2)", CHANNEL, encode(wakes))

    async def listen(self, on_notify: Callable[[Iterable[Wake]], None]) -> None:
        """Receive the wakes of other instances until the connection breaks. Poll-only without a direct DSN."""
        if self._direct_dsn is None:
            return
        connection = await connect(self._direct_dsn, application_name="headgate listen")
        self._listener = connection
        closed = asyncio.Event()
        connection.add_termination_listener(lambda *_: closed.set())

        def notified(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            on_notify(decode(str(payload)))

        try:
            with translating(writing=False):
                await connection.add_listener(CHANNEL, notified)
            await closed.wait()
        finally:
            connection.terminate()  # a standby, say, refuses to listen: each attempt would leave a session behind

    # ------------------------------------------------------------------ topics

    async def list_topics(self, tenant: str, *, names: Sequence[str] | None, after: str, limit: int) -> list[TopicView]:
        tenant_no = await self.tenant_no(tenant)
        async with self._lanes["read"].use() as db:
            return await topics.topics(db, tenant_no, names=names, after=after, limit=limit)

    async def get_topic(self, tenant: str, name: str) -> TopicView:
        tenant_no = await self.tenant_no(tenant)
        async with self._lanes["read"].use() as db:
            return await topics.topic(db, tenant_no, name)

    async def set_topic(
        self,
        tenant: str,
        name: str,
        *,
        rules: Mapping[str, object],
        limits: Mapping[str, object],
        actor: str,
        reason: str,
    ) -> TopicView:
        await self.topics(tenant, [name])  # made if need be
        tenant_no = await self.tenant_no(tenant)
        async with self._lanes["operate"].use() as db:
            return await topics.set_topic(
                db, self.names, tenant_no, name, rules=rules, changes=limits, actor=actor, reason=reason
            )

    # ------------------------------------------------------------------ reads

    async def job(self, tenant: str, job_id: UUID, *, payload: bool, result: bool, events: bool) -> JobDetails:
        tenant_no = await self.tenant_no(tenant)
        async with self._lanes["read"].use() as db:
            view = await reads.get(db, tenant_no, job_id)
            topic = await self.names.topic_by_no(db, view.topic_no)
            body = await reads.payload(db, tenant_no, job_id) if payload else None
            outcome = (await reads.result(db, tenant_no, job_id)).result if result else None
            history = await reads.events(db, tenant_no, job_id) if events else []
            found = (
                await dependencies.relations(db, tenant_no, job_id) if view.flags & HAS_RELATIONS else DependencyView()
            )
            with translating(writing=False):
                progress = await db.fetchval(PROGRESS, tenant_no, job_id)
            made_by = await schedules.lineage(db, tenant_no, job_id)
        return JobDetails(
            id=view.id,
            tenant=tenant,
            topic=topic.name,
            state=view.state,
            priority=view.priority,
            attempt=view.attempt,
            max_attempts=view.max_attempts,
            epoch=view.epoch,
            cancel_requested=view.cancel_requested,
            worker=view.worker or "",
            created_at=view.created_at,
            run_at=view.run_at,
            claimed_at=view.claimed_at,
            lease_until=view.lease_until,
            finished_at=view.finished_at,
            last_error=view.last_error or "",
            headers=view.headers,
            deadline=view.deadline,
            payload=body,
            result=outcome,
            dependencies=found,
            progress=json.loads(progress) if progress else None,
            lineage=made_by,
            events=[
                JobEventView(
                    at=event.at,
                    kind=event.kind.label,
                    epoch=event.epoch,
                    attempt=event.attempt,
                    state=event.state,
                    run_at=event.run_at,
                    claimed_at=event.claimed_at,
                    worker=event.worker or "",
                    actor=event.actor or "",
                    reason=event.reason or "",
                    error_type=event.error_type or "",
                    error_message=event.error_message or "",
                    error_trace=event.error_trace or "",
                )
                for event in history
            ],
        )

    async def finished(self, tenant_no: int, ids: Sequence[UUID]) -> list[UUID]:
        async with self._lanes["read"].use() as db:
            with translating(writing=False):
                rows = await db.fetch(FINISHED, tenant_no, list(ids))
        return [row[0] for row in rows]
