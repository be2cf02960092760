"""A queue for tests of the store: one tenant, its topics, and the store's verbs with the dull arguments filled in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from os import urandom
from typing import Any
from uuid import UUID

from headgate.domain.arrivals import Seen
from headgate.domain.dispatching import Claimed, Settled
from headgate.domain.errors import StoreBusy
from headgate.domain.ids import JobId, JobIdMaker, TenantName, TenantNo, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Outcome
from headgate.store import settle as settling
from headgate.store.connect import Connection, connect
from headgate.store.names import Names, Topic
from headgate.store.settle import OutcomeFlush
from tests.support import store_calls
from tests.support.epochs import RANGE, epochs_of
from tests.support.store_calls import Submitted

make_ids = JobIdMaker(clock_ms=lambda: time.time_ns() // 1_000_000, entropy=urandom)


def new_id() -> JobId:
    """A job id never used before."""
    return make_ids.make(1)[0]


@asynccontextmanager
async def links(database: str, count: int) -> AsyncIterator[list[Connection]]:
    """Several connections to one database, for those who race."""
    async with AsyncExitStack() as stack:
        opened: list[Connection] = []
        for _ in range(count):
            link = await connect(database, application_name="headgate test")
            stack.callback(link.terminate)
            opened.append(link)
        yield opened


@asynccontextmanager
async def stranger(database: str, lock: str = "", *values: object) -> AsyncIterator[Connection]:
    """An open transaction of another client, holding the rows that `lock` selects, if any; it commits at the end."""
    session = await connect(database, application_name="a stranger")
    try:
        async with session.transaction():
            if lock:
                assert await session.fetch(lock, *values)
            yield session
    finally:
        await session.close()


class Queue:
    """One tenant's view of a store; topics are made as they are named."""

    def __init__(self, db: Connection, *, tenant: str = "acme", owner: int = 1) -> None:
        self.lock_timeouts = 0  # settles that gave up a lock: each is a rollback, and was tried again
        self.db = db
        self.names = Names()
        self.tenant = TenantName(tenant)
        self.owner = owner

    async def tenant_no(self) -> TenantNo:
        return await self.names.tenant(self.db, self.tenant)

    async def topic(self, name: str = "mail") -> Topic:
        return await self.names.topic(self.db, await self.tenant_no(), name)

    def job(self, topic: str = "mail", **options: Any) -> Submission:
        """A checked submission of a new job; options as in Submission."""
        values: dict[str, Any] = {"id": new_id(), "payload": b"x", "new_id": "id" not in options} | options
        return Submission(tenant=self.tenant, topic=TopicName(topic), **values)

    async def submit(self, *jobs: Submission) -> list[Submitted]:
        return await store_calls.submit_all(self.db, self.names, jobs)

    async def add(self, count: int = 1, topic: str = "mail", **options: Any) -> list[JobId]:
        """Submit new jobs, all alike; their ids in order of submission."""
        return [done.id for done in await self.submit(*(self.job(topic, **options) for _ in range(count)))]

    async def claim(
        self,
        limit: int = 10,
        *topics: str,
        lease: timedelta = timedelta(seconds=60),
        workers: Sequence[str] = ("worker",),
        runs: Sequence[int] = (),
        ranges: KeyRanges | None = None,
        hints: Iterable[UUID] = (),
        seen: Seen | None = None,
    ) -> Claimed:
        numbers = [(await self.topic(name)).no for name in topics or ("mail",)]
        return await store_calls.claim(
            self.db,
            tenant_no=await self.tenant_no(),
            topic_nos=numbers,
            limit=limit,
            owner=self.owner,
            lease_ms=lease // timedelta(milliseconds=1),
            workers=workers,
            runs=runs,
            ranges=ranges,
            hints=list(hints),
            seen=seen,
        )

    async def settle(self, *outcomes: tuple[UUID, int, Outcome]) -> list[Settled]:
        """Settle (id, epoch, outcome) triples in one flush; an answer for each. A small epoch counts a job's claims."""
        flush = OutcomeFlush()
        # One look-up for all of them: one each would take longer than the leases of some tests last.
        counted = [job_id for job_id, given, _ in outcomes if given < RANGE]
        bases = dict(zip(counted, await epochs_of(self.db, counted, 0), strict=True)) if counted else {}
        for job_id, given, outcome in outcomes:
            flush.add(await self.tenant_no(), job_id, bases.get(job_id, 0) + given if given < RANGE else given, outcome)
        for _ in range(50):  # as an instance does: asks again while a row is locked
            try:
                answers = await settling.settle(self.db, flush)
                break
            except StoreBusy as error:
                if not error.locked:
                    raise
                self.lock_timeouts += 1
        else:
            raise AssertionError("the rows stay locked")
        return [answers.get(place, settling.APPLIED) for place in range(len(flush))]


class Clock:
    """The store's clock in a test's hands: it stalls until it is moved, forwards or back. For one database."""

    def __init__(self, db: Connection, now: datetime) -> None:
        self._db = db
        self.now = now

    @classmethod
    async def install(cls, db: Connection, at: datetime | None = None) -> Clock:
        """Put it in the place of `headgate.clock_v1`, showing `at`, or else the true time."""
        await db.execute(
            """CREATE TABLE public.test_clock (at timestamptz NOT NULL);
               INSERT INTO public.test_clock SELECT pg_catalog.clock_timestamp();
               CREATE OR REPLACE FUNCTION headgate.clock_v1() RETURNS timestamptz LANGUAGE sql VOLATILE
                   AS 'SELECT at FROM public.test_clock';
               GRANT SELECT ON public.test_clock TO PUBLIC"""
        )
        clock = cls(db, await db.fetchval("SELECT at FROM public.test_clock"))
        if at is not None:
            await clock.set(at)
        return clock

    async def set(self, at: datetime) -> None:
        self.now = at
        await self._db.execute("UPDATE public.test_clock SET at = $1", at)

    async def advance(self, **span: float) -> None:
        """Move by a timedelta given in its own words; negative steps back."""
        await self.set(self.now + timedelta(**span))
