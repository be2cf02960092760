"""An instance without its port, workers without a wire: dispatch against the real store, driven manually or running.

    async with Instance(database) as one:                 # registered; its services run
        worker = await one.worker(slots=5, handler=completing())
        ids = await one.submit(20)
        await one.reach(20, State.COMPLETED)

A `Worker` reads its session as a stream's writer would (D22), runs each job in a slot of its own and says Ready again
as a slot falls free. `WatchedStore` is the store itself; it counts calls by verb, remembers what claims asked for, and
fails or waits where a test requires it. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from headgate.control.payload_check import PayloadCheck
from headgate.dispatch.claimer import CLAIM_LIMIT, Claimer
from headgate.dispatch.demands import Demands
from headgate.dispatch.gate import Gate
from headgate.dispatch.job_logs import LogWriter
from headgate.dispatch.limit_timers import LimitAdmitter
from headgate.dispatch.lost_workers import LostWorkers
from headgate.dispatch.outcomes import OutcomeWriter
from headgate.dispatch.progress import ProgressWriter
from headgate.dispatch.pull_workers import PullWorkers
from headgate.dispatch.renewals import LeaseRenewer
from headgate.dispatch.scans import Scanner
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_rules import SessionRules
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.submits import Submitter
from headgate.dispatch.tick_times import TickTimes
from headgate.dispatch.ticker import Ticker
from headgate.dispatch.wakes import Wakes
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Identity, Scope
from headgate.domain.ids import JobId, JobIdMaker, TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.limits import SUBMIT_FLUSH_MAX_ROWS
from headgate.domain.states import State
from headgate.store.reads import JobStore
from tests.support.dispatch_waits import SOON, soon
from tests.support.dispatch_workers import Handler, Tracker, Worker
from tests.support.epochs import epochs_of
from tests.support.waiting import until_async
from tests.support.watched_store import WatchedStore

STATES = """
SELECT state, count(*) FROM (SELECT state FROM headgate.jobs UNION ALL SELECT state FROM headgate.archive) AS j
 GROUP BY state"""


class Instance:
    """Store, sessions, claimer, ticker, writers and renewer, joined as server/ joins them."""

    def __init__(
        self,
        dsn: str,
        *,
        name: str = "one",
        tenant: str = "acme",
        lease: timedelta = timedelta(seconds=60),
        claim_limit: int = CLAIM_LIMIT,
        tick_seconds: float = 3600.0,  # no net under the wakes, unless a test asks for it
        wakes: bool = True,
        now: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        gated: bool = False,
        reconnect_grace: float | None = None,
        running: bool = True,
        claims_along: bool = False,  # as the server does; without, a submit and its claim can be notified apart
    ) -> None:
        self.store = WatchedStore(dsn)
        self.name, self.tenant, self.now = name, tenant, now
        self.lease_ms = lease // timedelta(milliseconds=1)
        self.sessions = WorkerSessions()
        self.ended: list[UUID] = []  # final, as those who wait for results are notified
        self.times = TickTimes(tick_seconds)
        self.demands = Demands(self.store.names, self.times, wakes=wakes)
        self.wakes = Wakes(self.store, self.demands, self.times)
        self.outcomes, self.unmatched = (
            OutcomeWriter(
                self.store,
                on_returned=self.demands.wake_for_job,
                on_limit_opened=self.wakes.topics_ready,
                on_final=lambda _, job_id: self.ended.append(job_id),
                awaited=lambda: True,
                on_due=self.times.due_at,
                unmatched=unmatched,
            )
            for unmatched in (False, True)
        )
        self.demands.abandon_unsent = self.outcomes.abandon_unsent
        beat = self.lease_ms / 3000
        self.watchdog = WatchdogGate(beat=beat, now=now, silence=max(beat, 5 * tick_seconds)) if gated else None
        self.limits = LimitAdmitter(self.store, self.demands, self.wakes)
        self.gate = Gate(self.sessions, self.demands, self.times)
        self.claimer = Claimer(
            self.store,
            self.demands,
            self.gate,
            self.limits.timers,
            abandon_unsent=self.outcomes.abandon_unsent,
            end_late=self.outcomes.end_late,
            claim_limit=claim_limit,
            mismatch=self._mismatch,
        )
        self.scanner = Scanner(self.store, self.demands, self.times)
        self.ticker = Ticker(
            self.store,
            self.times,
            self.demands,
            self.gate,
            self.wakes,
            self.limits.timers,
            self.scanner,
            watchdog=self.watchdog,
        )
        self.submitter = Submitter(
            self.store,
            self.wakes,
            self.times,
            claimer=self.claimer if claims_along else None,
            on_passed_over=self.demands.wake_for_job,
        )
        self.store.names.on_topic = self.demands.topic_appeared
        self.renewer = LeaseRenewer(self.store, self.sessions, now=now, watchdog=self.watchdog)
        self.lost_workers = LostWorkers(
            self.renewer.calls,
            self.sessions,
            grace=reconnect_grace,
            now=now,
            watchdog=self.watchdog,
            on_expired=self.times.full_soon,
        )
        self.pulls = PullWorkers(self.demands, now=now)
        self.rules = SessionRules(
            sessions=self.sessions,
            pulls=self.pulls,
            demands=self.demands,
            outcomes=self.outcomes,
            unmatched=self.unmatched,
            renewer=self.renewer,
            lost_workers=self.lost_workers,
            progress=ProgressWriter(self.renewer.calls),
            logs=LogWriter(self.store),
            tenants=self.store,
            now=now,
            lease_ms=self.lease_ms,
            accepting=lambda: True,
            stop_if_asked=self.gate.stop_if_asked,
        )
        self.ids = JobIdMaker(clock_ms=clock_ms, entropy=os.urandom)
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._running = running
        self._workers: list[Worker] = []

    async def __aenter__(self) -> Self:
        await self.store.register(self.name, "test")
        await self.store.refresh_names()
        # The writers always run: nothing can be submitted or settled without them.
        for title, work in (
            ("outcomes", self.outcomes.writer.run()),
            ("submits", self.submitter.writer.run()),
            ("locked submits", self.submitter.locked.run()),
        ):
            self.start(title, work)
        if self._running:
            self.start("claims", self.claimer.run())
            self.start("ticks", self.ticker.run())
            self.start("scans", self.scanner.run())
            self.start("renewals", self.renewer.run())
            self.start("limits", self.limits.run())
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for service in (self.claimer, self.ticker, self.scanner, self.wakes, self.limits):
            service.stop()
        for worker in self._workers:
            await worker.close()
        self.renewer.stop()
        if ticks := self.tasks.get("ticks"):  # not cut off in the middle of one: that is a rollback
            await asyncio.wait({ticks}, timeout=5)
        for task in self.tasks.values():
            task.cancel()
        answers = await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self.store.close()
        faults = [answer for answer in answers if isinstance(answer, Exception)]
        if faults and error is None:
            raise faults[0]

    def start(self, title: str, work: Coroutine[Any, Any, None]) -> None:
        self.tasks[title] = asyncio.create_task(work, name=f"{self.name} {title}")

    async def died(self, title: str) -> BaseException | None:
        """What a service ended with; it is not waited for again."""
        task = self.tasks.pop(title)
        await asyncio.wait({task}, timeout=SOON.total_seconds())
        assert task.done(), f"{title} still runs"
        return None if task.cancelled() else task.exception()

    async def epochs(self, ids: Iterable[UUID], nth: int = 1) -> list[int]:
        """The epochs of the n-th claim of each."""
        async with self.store.lane("upkeep").use() as db:
            return await epochs_of(db, ids, nth)

    def _mismatch(self, topic_no: int, payload: bytes) -> HeadgateError | None:
        check = PayloadCheck(self.store.schemas_of)
        return check.of_topic(self.store.topic_name(topic_no), self.store.payload_schema(topic_no), payload)

    async def topic_nos(self, *names: str) -> list[int]:
        return [topic.no for topic in await self.store.topics(self.tenant, names)]

    async def worker(
        self,
        worker_id: str = "",
        *topics: str,
        slots: int = 0,
        handler: Handler | None = None,
        lease: timedelta | None = None,
        tracker: Tracker | None = None,
        tenant: str = "",
        incarnation: int = 0,
        subject: str = "test",
        connected_before: float = 0.0,
    ) -> Worker:
        """Connect a worker that takes `slots` jobs at a time; with no handler the test reads its session.

        `connected_before`: so many seconds ago its process was first connected.
        """
        tenant = tenant or self.tenant
        session = WorkerSession(
            Identity(tenant=tenant, subject=subject, scopes=frozenset(Scope)),
            await self.store.tenant_no(tenant),
            worker_id or f"{self.name}-w{len(self._workers) + 1}",
            self.now,
            self.lease_ms,
            incarnation,
        )
        session.mark_seen()
        session.takes_stop, session.connected_before = True, connected_before
        self.sessions.open(session)
        self.gate.stop_if_asked(session)
        worker = Worker(
            self,
            session,
            topic_nos=[topic.no for topic in await self.store.topics(tenant, topics or ("mail",))],
            lease_ms=self.lease_ms if lease is None else lease // timedelta(milliseconds=1),
            handler=handler,
            tracker=Tracker() if tracker is None else tracker,
        )
        self._workers.append(worker)
        if slots:
            worker.ready(slots)
        return worker

    async def submit(self, count: int = 1, topic: str = "mail", *, tenant: str = "", **options: Any) -> list[JobId]:
        """Make new jobs, all alike, as a producer's call would: their ids in order."""
        values: dict[str, Any] = {"payload": b"x", "new_id": True} | options
        ids = self.ids.make(count)
        for start in range(0, count, SUBMIT_FLUSH_MAX_ROWS):
            flush = await self.store.fill(
                [
                    Submission(tenant=TenantName(tenant or self.tenant), topic=TopicName(topic), id=job_id, **values)
                    for job_id in ids[start : start + SUBMIT_FLUSH_MAX_ROWS]
                ]
            )
            odd = await asyncio.wait_for(self.submitter.submit(flush, size=200 * count), SOON.total_seconds())
            assert not odd, f"not simply created: {odd}"
        return ids

    async def states(self) -> Counter[State]:
        async with self.store.lane("upkeep").use() as db:
            return Counter({State(row[0]): row[1] for row in await db.fetch(STATES)})

    async def reach(self, count: int, state: State, *, within: timedelta = SOON) -> None:
        """Wait until so many jobs are in a state."""

        async def there() -> bool:
            return (await self.states())[state] >= count

        await until_async(there, f"{count} jobs are {state.label}", within=within)

    async def job(self, job_id: UUID) -> Any:
        return await JobStore(self.store).job(self.tenant, job_id, payload=False, result=False, events=True)

    async def flushed(self) -> None:
        """Wait until everything handed to the outcome writer is committed."""
        for writer in (self.outcomes.writer, self.unmatched.writer):
            await soon(lambda writer=writer: not (writer.waiting_rows or writer._in_flight), "all is written")  # type: ignore[misc]

    def free(self) -> int:
        """Credit in the book."""
        return sum(demand.credit for demand in self.demands.by_wanted.values())


async def listening(instance: Instance) -> bool:
    """Whether some instance of its database has begun to listen: earlier notifications are not received."""
    async with instance.store.lane("upkeep").use() as db:
        found = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headgate listen' AND query ~ 'LISTEN'"
        return bool(await db.fetchval(found))
