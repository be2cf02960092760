"""The connections of one instance, one lane for each kind of work, so that none waits for another; and its names.

Leases have a lane of their own: however busy submits and claims are, renewals get through. So have heartbeats, and
outcomes of jobs that were not given to their reporter: callers decide how many of these there are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from headgate.domain.backoff import RetryPolicy
from headgate.domain.durability import Durability
from headgate.domain.errors import ReadOnly, RowLocked, StoreUnavailable
from headgate.domain.ids import TenantNo
from headgate.store.connect import BACKGROUND_STATEMENT_TIMEOUT, Connection
from headgate.store.errors import translating
from headgate.store.lane import Lane, as_it_is, transaction
from headgate.store.migration_files import newest
from headgate.store.names import Names, Topic
from headgate.store.preflight import inspect, pin, require_still_durable, require_writable
from headgate.store.tenant_lane import TenantLane

_Answer = TypeVar("_Answer")
log = logging.getLogger("headgate.server")
SUBMIT_LOCK_TIMEOUT: Final = timedelta(milliseconds=50)
LOCKED_LOCK_TIMEOUT: Final = timedelta(milliseconds=10)
GIVE_UP_SECONDS: Final = 5.0
"""How long a caller waits for what another open transaction holds."""
LOCKED_PAUSE_SECONDS: Final = 0.05
_DECIDING: Final = "tick"
"""Writes every second, so it is the first one to know that the database takes no writes, or takes them again."""
_READING: Final = ("events", "keys", "list", "read", "upkeep")
"""Used by pages and calls that only read. What else they are used for fails with ReadOnly by itself."""
REGISTER: Final = "INSERT INTO headgate.instances (name, version, knows) VALUES ($1, $2, $3) RETURNING instance_no"


class Database:
    """All lanes of one instance, and the names it knows."""

    def __init__(self, dsn: str, *, direct_dsn: str | None = None, pooler: bool = False, unsafe: bool = False) -> None:
        """`unsafe`: sessions keep the database's own settings, and nothing is checked."""
        self._dsn, self._direct_dsn = dsn, direct_dsn or (None if pooler else dsn)
        self._lanes = {
            name: Lane(dsn, name, pooler=pooler) for name in ("settle", "unmatched", "upkeep", "schedule", "webhooks")
        } | {
            name: Lane(dsn, name, pooler=pooler, statement_timeout=BACKGROUND_STATEMENT_TIMEOUT)
            for name in ("claim", "leases", "heartbeats", "tick", "unblock", "events", "keys")
        }
        # Of one tenant at a time, by row-level security: what clients list, read and change by operators' verbs. All
        # others mix tenants in a statement, or look for what is due of any.
        self._tenant_lanes = {
            "read": TenantLane(dsn, "read", pooler=pooler),
            "admin": TenantLane(dsn, "admin", pooler=pooler),
            "list": TenantLane(dsn, "list", pooler=pooler, statement_timeout=BACKGROUND_STATEMENT_TIMEOUT),
        }
        self._lanes |= self._tenant_lanes
        # Past a pooler where there is a way: dropping a day needs a setting of the session.
        self._lanes["retention"] = Lane(self._direct_dsn or dsn, "retention", pooler=self._direct_dsn is None)
        # Many callers share a flush: none of them may wait for long for what another one's row has met.
        self._lanes["submit"] = Lane(dsn, "submit", pooler=pooler, lock_timeout=SUBMIT_LOCK_TIMEOUT)
        self._lanes["locked"] = Lane(dsn, "locked", pooler=pooler, lock_timeout=LOCKED_LOCK_TIMEOUT)
        self._unsafe = unsafe
        self.checks_durability = False  # of every new connection: from the moment on when the server has started
        self.read_only = ""
        """Why the database takes no writes, as the last tick found; empty: it takes them. Reading works meanwhile."""
        for name, lane in self._lanes.items():
            reads = name in _READING
            lane.on_open = partial(self._opened, pooler=lane.pooler, reads=reads, decides=name == _DECIDING)
            if reads:
                lane.only_reads = lambda: bool(self.read_only)
            if not unsafe:
                lane.on_begin = partial(pin, transaction_only=True)
        self._lanes[_DECIDING].on_read_only = self._no_writes
        if not unsafe:
            for confined in self._tenant_lanes.values():
                confined.on_begin, confined.pins = as_it_is, True  # by the statement that also sets the tenant
        self.names = Names()
        self.instance_no = 0
        self.records_completions = False  # by the last tick: some stream of events wants them

    @property
    def connections(self) -> int:
        """How many connections it opens at the most, with the one that listens."""
        return len(self._lanes) + (self._direct_dsn is not None)

    def lane(self, name: str) -> Lane:
        """A lane by name."""
        return self._lanes[name]

    def as_tenant(self, name: str, tenant_no: int | None, call: str = "") -> AbstractAsyncContextManager[Connection]:
        """The connection of a lane for one tenant, which sees no rows of others; 0: what concerns all tenants.

        None: one that sees all rows, for callers with the scope system.
        """
        return (
            self._lanes["upkeep"].use(call) if tenant_no is None else self._tenant_lanes[name].use_as(tenant_no, call)
        )

    @property
    def confined(self) -> bool:
        """Whether row-level security is in force for calls of one tenant, as far as connections have been opened."""
        return all(lane.confined for lane in self._tenant_lanes.values() if lane.connects)

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """All of them, for those who measure."""
        return self._lanes

    async def register(self, name: str, version: str) -> int:
        """Make this instance known; its number is the owner of what it claims."""
        async with self._lanes["tick"].use() as db:
            with translating(writing=True):
                self.instance_no = await db.fetchval(REGISTER, name, version, newest())
        return self.instance_no

    async def close(self) -> None:
        """Close all lanes."""
        for lane in self._lanes.values():
            await lane.close()

    # ------------------------------------------------------------------ durability

    async def _opened(self, connection: Connection, *, pooler: bool, reads: bool, decides: bool) -> None:
        """A new connection: set what a session can set, check the rest. Raises ReadOnly or StoreUnavailable.

        `reads`: while the database is read-only, one that cannot write is used. `decides`: whether it is, depends on
        this one.
        """
        if self._unsafe:
            if decides and self.instance_no:
                require_writable(await inspect(connection))
        elif not pooler:
            await pin(connection, transaction_only=False)
            if self.checks_durability:
                self._require_still_durable(await inspect(connection), reads=reads)
        elif self.checks_durability:
            async with transaction(connection):
                await pin(connection, transaction_only=True)
                self._require_still_durable(await inspect(connection), reads=reads)
        if decides and self.read_only:
            log.warning("writable_again")
            self.read_only = ""
            for name in _READING:  # of a standby, or of a session that was read-only from its beginning
                self._lanes[name].drop()

    def _require_still_durable(self, found: Durability, *, reads: bool) -> None:
        if not (reads and self.read_only and (found.in_recovery or found.read_only)):
            require_still_durable(found)

    def _no_writes(self, reason: str) -> None:
        if not self.read_only:
            log.error('read_only effect="changes are refused; reading works" reason=%s', reason)
        self.read_only = reason

    async def durability(self) -> Durability:
        """The settings as they are now."""
        async with self._lanes["upkeep"].use() as db:
            return await inspect(db)

    async def check_durability(self) -> str:
        """Look again. If it is not durable any more, all connections are dropped, and no new one is used until it is.

        Returns what is wrong with the defaults, which concerns only who submits from SQL.
        """
        if self._unsafe:
            return ""
        try:
            async with self._lanes["upkeep"].use() as db:
                found = await inspect(db)
                self._require_still_durable(found, reads=True)
        except (StoreUnavailable, ReadOnly):
            for lane in self._lanes.values():
                lane.drop()
            raise
        return "; ".join(found.problems)

    # ------------------------------------------------------------------ names

    async def tenant_no(self, tenant: str) -> int:
        """The tenant's number, made on first use."""
        known = self.names.known_tenant(tenant)
        if known is not None:
            return known
        return await self.interned(lambda db, cache: cache.tenant(db, tenant))

    async def topics(self, tenant: str, names: Sequence[str]) -> list[Topic]:
        """Topics in the order asked for, made on first use. Raises QuotaExceeded."""
        tenant_no = TenantNo(await self.tenant_no(tenant))
        known = self.names.known_topics(tenant_no, names)
        if known is not None:
            return known
        return await self.interned(lambda db, cache: cache.topics(db, tenant_no, names))

    async def policy_no(self, tenant_no: int, policy: RetryPolicy) -> int:
        """The number of a retry policy, made on first use. Raises QuotaExceeded."""
        if self.names.unknown_policies(tenant_no, [policy]):
            made = await self.interned(lambda db, cache: cache.make_policies(db, tenant_no, [policy]))
            for refused in made.values():
                raise refused
        return self.names.known_policy_no(tenant_no, policy)

    async def interned(self, intern: Callable[[Connection, Names], Awaitable[_Answer]]) -> _Answer:
        """Make names known. One that another open transaction has just made up is waited for, between tries:
        others' names and reads do not wait with it."""
        if self.lane("locked").pooler:
            # There each use of a lane is a transaction, whose commit can fail. So names are made with a cache that is
            # thrown away, and read into ours when they are committed.
            await self.tried("locked", lambda db: intern(db, Names()), pause=LOCKED_PAUSE_SECONDS)
        return await self.tried("locked", lambda db: intern(db, self.names), pause=LOCKED_PAUSE_SECONDS)

    async def tried(
        self, lane: str, call: Callable[[Connection], Awaitable[_Answer]], *, pause: float, tenant_no: int | None = None
    ) -> _Answer:
        """Call it again, until nothing that it needs is locked by another open transaction. Between tries, others use
        the lane. Raises RowLocked after GIVE_UP_SECONDS."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                use = self._lanes[lane].use() if tenant_no is None else self.as_tenant(lane, tenant_no)
                async with use as db:
                    return await call(db)
            except RowLocked:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(pause)
