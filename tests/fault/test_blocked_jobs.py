"""Nothing stays blocked: parents that end by every path, children and batches linked meanwhile, and everything broken.

Three stores as servers have them, each over a proxy of its own. Sessions are ended, rows locked for a while,
connections cut, held and swallowed. Afterwards, when all is good again, every job must come to its end, and the sweep,
which is the last net, must have had nothing to mend.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from random import Random
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import pytest

from headgate.dispatch.unblocker import Unblocker
from headgate.domain.dependencies import Needs, NewBatch, OnParentFailure
from headgate.domain.dispatching import ClaimRequest
from headgate.domain.errors import HeadgateError, NotFound
from headgate.domain.ids import JobId, TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome
from headgate.store import verbs
from headgate.store.batches import BatchStore
from headgate.store.dispatch_store import DispatchStore
from tests.fault.lab.proxy import FaultProxy
from tests.support.queue import new_id
from tests.support.waiting import until_async

T = TypeVar("T")
SECONDS = float(os.environ.get("HEADGATE_HAMMER_SECONDS", "6"))
SEED = int(os.environ.get("HEADGATE_HAMMER_SEED", "1"))
LEASE_MS = 1_000
HEALED_SECONDS = 60.0
ERROR = ErrorInfo(type="ValueError", message="boom")
LEFT = """
SELECT j.id, j.state, j.flags, (SELECT array_agg((d.parent_id, d.met)::text) FROM headgate.job_dependencies d
                                 WHERE d.child_id = j.id AND d.met <> 1) AS waits FROM headgate.jobs j"""
LOCK = "SELECT FROM headgate.jobs ORDER BY random() LIMIT 3 FOR UPDATE"
SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'headgate %' ORDER BY random() LIMIT 1"""


@pytest.fixture
def proxies(database: str) -> Iterator[list[tuple[FaultProxy, str]]]:
    parts = urlsplit(database)
    query = parse_qs(parts.query)
    folder, port = query["host"][0], query.get("port", ["5432"])[0]
    user = parts.username or query.get("user", ["postgres"])[0]
    with ExitStack() as stack:
        made = [stack.enter_context(FaultProxy(unix=f"{folder}/.s.PGSQL.{port}", seed=n)) for n in range(3)]
        yield [(one, f"postgresql://{user}@{one.address}{parts.path}?sslmode=disable") for one in made]


class Hammer:
    """One store, and what is done to it and by it."""

    def __init__(self, dsn: str, luck: Random, known: list[UUID]) -> None:
        self.store = DispatchStore(dsn)
        self.luck, self.known = luck, known  # jobs there are or were: parents, and what operators pick from
        self.mended: list[str] = []
        self.unblocker = Unblocker(self.store, on_unblocked=lambda _: None)
        self.over = False  # no new work; what is there is finished

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until it is answered, as a client would."""
        while True:
            try:
                return await call()
            except NotFound:
                raise
            except HeadgateError:
                await asyncio.sleep(0.05)

    async def submit(self, **options: Any) -> None:
        values: dict[str, Any] = {"max_attempts": 2, "new_id": True} | options
        job = Submission(tenant=TenantName("acme"), topic=TopicName("mail"), id=new_id(), **values)
        flush = await self.insist(lambda: self.store.fill([job]))

        async def send() -> object:
            try:
                answers = await self.store.submit(flush)
            except HeadgateError:
                flush.mark_resent()
                raise
            if flush.may_unblock:
                self.unblocker.wake()
            return answers

        await self.insist(send)
        self.known.append(job.id)

    async def make_jobs(self) -> None:
        while not self.over:
            kind = self.luck.random()
            if kind < 0.4 or len(self.known) < 5:
                await self.submit()
            elif kind < 0.8:
                parents = self.luck.sample(self.known[-40:], min(len(self.known), self.luck.randint(1, 3)))
                await self.submit(
                    depends_on=parents,
                    needs=self.luck.choice(["succeeded", "ended"]),
                    on_parent_failure=self.luck.choice(["cancel", "ignore"]),
                )
            else:
                await self.make_batch()

    async def make_batch(self) -> None:
        batch = NewBatch(
            id=JobId(new_id()),
            name="b",
            needs=self.luck.choice(list(Needs)),
            on_failure=self.luck.choice([OnParentFailure.CANCEL, OnParentFailure.IGNORE]),
        )
        callback = Submission(tenant=TenantName("acme"), topic=TopicName("mail"), id=new_id(), max_attempts=2)
        await self.insist(lambda: BatchStore(self.store).open_batch("acme", batch, callback=callback))
        for _ in range(self.luck.randint(0, 4)):
            await self.submit(batch=batch.id)
        await self.insist(lambda: BatchStore(self.store).seal_batch("acme", batch.id))
        self.unblocker.wake()
        self.known.append(callback.id)

    async def work(self) -> None:
        (topic,) = await self.insist(lambda: self.store.topics("acme", ["mail"]))
        tenant_no = await self.insist(lambda: self.store.tenant_no("acme"))
        while True:
            try:
                request = ClaimRequest(
                    tenant_no=tenant_no,
                    topic_nos=(topic.no,),
                    limit=20,
                    lease_ms=LEASE_MS,
                    workers=["w"],
                    ranges=KeyRanges.whole((topic.no,)),
                )
                got = await self.store.claim(request)
                flush = self.store.new_outcomes()
                for job_id, epoch in zip(got.ids, got.epochs, strict=True):
                    if (outcome := self.outcome()) is not None:
                        flush.add(tenant_no, job_id, epoch, outcome)
                if len(flush):
                    await self.store.settle(flush)
                    if flush.unblocks:
                        self.unblocker.wake()
            except HeadgateError:
                pass  # the leases bring them back
            await asyncio.sleep(0.02)

    def outcome(self) -> Outcome | None:
        if self.over:
            return Completed()
        boom = Failed(error=ERROR, permanent=self.luck.random() < 0.5)
        return self.luck.choice(
            [Completed(), Completed(), Completed(), boom, Nack(delay=timedelta(0), reason=""), Abandon(), None]
        )

    async def operate(self) -> None:
        tenant_no = await self.insist(lambda: self.store.tenant_no("acme"))
        while not self.over:
            await asyncio.sleep(0.05)
            if not self.known:
                continue
            job_id = JobId(self.luck.choice(self.known[-100:]))
            verb = self.luck.choice([verbs.cancel, verbs.redrive, verbs.discard])
            try:
                async with self.store.lane("upkeep").use() as db:
                    await verb(db, tenant_no, [job_id], who="test", reason="")  # type: ignore[operator]
            except HeadgateError:
                continue

    async def tick(self) -> None:
        while True:
            try:
                await self.store.tick([])
                await self.store.reap()
            except HeadgateError:
                pass
            await asyncio.sleep(0.2)

    async def mend(self) -> None:
        while True:
            await asyncio.sleep(1)
            try:
                self.mended += await self.unblocker.mend()
            except HeadgateError:
                continue


async def break_things(db: asyncpg.Connection[asyncpg.Record], proxies: list[FaultProxy], luck: Random) -> None:
    while True:
        await asyncio.sleep(luck.uniform(0.05, 0.4))
        proxy = luck.choice(proxies)
        match luck.randrange(6):
            case 0 | 1:
                await db.fetch(SESSIONS)
            case 2:
                async with db.transaction():
                    await db.fetch(LOCK)
                    await asyncio.sleep(luck.uniform(0.1, 0.7))
            case 3:
                await asyncio.to_thread(proxy.reset)
            case _ as how:
                await asyncio.to_thread(proxy.swallow if how == 4 else proxy.hold)
                await asyncio.sleep(luck.uniform(0.2, 1.0))
                await asyncio.to_thread(proxy.heal)


async def test_nothing_stays_blocked_whatever_ends_its_parents_and_whatever_breaks(
    proxies: list[tuple[FaultProxy, str]], database: str
) -> None:
    luck = Random(SEED)
    known: list[UUID] = []
    hammers = [Hammer(dsn, Random(luck.random()), known) for _, dsn in proxies]
    db = await asyncpg.connect(database)
    makers, others = [], []
    try:
        for hammer in hammers:
            await hammer.store.register("one", "test")
            makers += [asyncio.create_task(hammer.make_jobs()), asyncio.create_task(hammer.make_jobs())]
            makers += [asyncio.create_task(hammer.operate())]
            work = (hammer.work(), hammer.work(), hammer.tick(), hammer.unblocker.run(), hammer.mend())
            others += [asyncio.create_task(one) for one in work]
        others.append(breaking := asyncio.create_task(break_things(db, [proxy for proxy, _ in proxies], luck)))
        await asyncio.wait(others, timeout=SECONDS)
        assert not any(task.done() for task in others), "a service ended by itself"
        breaking.cancel()
        await asyncio.gather(breaking, return_exceptions=True)
        for proxy, _ in proxies:
            await asyncio.to_thread(proxy.heal)
        for hammer in hammers:
            hammer.over = True
        await asyncio.wait_for(asyncio.gather(*makers), HEALED_SECONDS)

        async def none_left() -> bool:
            return not await db.fetch(LEFT)

        await until_async(none_left, "every job has ended", within=timedelta(seconds=HEALED_SECONDS))
        assert len(known) > 20
        assert not await db.fetch("SELECT FROM headgate.dependency_checks k WHERE k.parent_id IS NOT NULL")
        assert [hammer.mended for hammer in hammers] == [[], [], []]
    finally:
        for task in (*makers, *others):
            task.cancel()
        await asyncio.gather(*makers, *others, return_exceptions=True)
        db.terminate()
        for hammer in hammers:
            await hammer.store.close()
