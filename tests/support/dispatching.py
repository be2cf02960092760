"""An instance without its port, workers without a wire: dispatch against the real store, driven by hand or running.

    async with Instance(database) as one:                 # registered; its services run
        worker = await one.worker(slots=5, handler=completing())
        ids = await one.submit(20)
        await one.reach(20, State.COMPLETED)

A `Worker` reads its session as a stream's writer would (D22), runs each job in a slot of its own and says Ready again
as a slot falls free. `WatchedStore` is the store itself; it counts calls by verb, remembers what claims asked for, and
fails or waits where a test says so. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from headgate.dispatch.claimer import CLAIM_LIMIT, Claimer
from headgate.dispatch.delivery import ControlFrame, Delivery
from headgate.dispatch.demands import Demands
from headgate.dispatch.gate import Gate
from headgate.dispatch.limit_timers import LimitAdmitter
from headgate.dispatch.lost_workers import LostWorkers
from headgate.dispatch.outcome_writes import OutcomeWrite
from headgate.dispatch.outcomes import OutcomeWriter
from headgate.dispatch.progress import ProgressWriter
from headgate.dispatch.renewals import LeaseRenewer
from headgate.dispatch.session import SessionEnded, WorkerSession
from headgate.dispatch.session_rules import SessionRules
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.submits import Submitter
from headgate.dispatch.tick_times import TickTimes
from headgate.dispatch.ticker import Ticker
from headgate.dispatch.wakes import Wakes
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.dispatching import ClaimRequest, Settled
from headgate.domain.errors import StoreBusy
from headgate.domain.identity import Identity, Scope
from headgate.domain.ids import JobId, JobIdMaker, TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.keyrange import KeyRanges
from headgate.domain.limits import SUBMIT_FLUSH_MAX_ROWS
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Outcome
from headgate.domain.states import Receipt, State
from headgate.domain.wakes import Wake
from headgate.store.dispatch_store import DispatchStore
from headgate.store.reads import JobStore
from tests.support.epochs import RANGE, epochs_of
from tests.support.waiting import PATIENCE, until_async

T = TypeVar("T")
Hook = Callable[[], Awaitable[None]]
SOON = PATIENCE
STATES = """
SELECT state, count(*) FROM (SELECT state FROM headgate.jobs UNION ALL SELECT state FROM headgate.archive) AS j
 GROUP BY state"""


async def soon(check: Callable[[], T], what: str, *, within: timedelta = SOON) -> T:
    """The first truthy answer of `check`; others run meanwhile."""

    async def asked() -> T:
        return check()

    return await until_async(asked, what, within=within)


async def settle_down(turns: int = 20) -> None:
    """Let everything that is ready run: for showing that nothing more happens."""
    for _ in range(turns):
        await asyncio.sleep(0)


class ManualClock:
    """A monotonic clock in a test's hands."""

    def __init__(self, at: float = 1_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds


# ---------------------------------------------------------------------- the store, watched


def failing_with(*errors: BaseException) -> Hook:
    """Raise these, one per call; then let calls pass."""
    left = deque(errors)

    async def hook() -> None:
        if left:
            raise left.popleft()

    return hook


class Hold:
    """A hook that keeps calls waiting until `release`."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self._free = asyncio.Event()

    async def __call__(self) -> None:
        self.entered.set()
        await self._free.wait()

    def release(self) -> None:
        self._free.set()

    async def reached(self) -> None:
        await asyncio.wait_for(self.entered.wait(), SOON.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one claim asked for."""

    tenant_no: int
    topic_nos: tuple[int, ...]
    limit: int
    workers: tuple[str, ...]
    runs: tuple[int, ...]
    ranges: KeyRanges
    hints: tuple[UUID, ...]

    @property
    def from_head(self) -> bool:
        return self.ranges == KeyRanges.whole(self.topic_nos)


class WatchedStore(DispatchStore):
    """A real store. `before[verb]` and `after[verb]` run around a verb's call to PostgreSQL."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.calls: Counter[str] = Counter()
        self.asked: list[Asked] = []
        self.got: list[int] = []
        self.tick_ranges: list[KeyRanges | None] = []
        self.renewed_rows = 0
        self.renewals: list[dict[int, int]] = []  # of each call, the number of rows by tenant
        self.timeouts = 0  # calls that gave up waiting for a lock
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self._statements = 0

    async def count_statements(self) -> None:
        """Open all lanes, and count what the driver sends from now on."""

        def sent(record: Any) -> None:
            self._statements += "headgate." in record.query  # not the driver's own look at types, once a session

        for lane in self._lanes.values():
            async with lane.use() as db:
                db.add_query_logger(sent)

    async def sent(self) -> int:
        """How many statements were sent since then; the driver tells of each a little later."""
        await settle_down()
        return self._statements

    async def _watched(self, verb: str, call: Coroutine[Any, Any, T]) -> T:
        self.calls[verb] += 1
        try:
            if (hook := self.before.get(verb)) is not None:
                await hook()
        except BaseException:
            call.close()
            raise
        try:
            answer = await call
        except StoreBusy as error:
            self.timeouts += error.locked
            raise
        if (hook := self.after.get(verb)) is not None:
            await hook()
        return answer

    async def claim(self, request: ClaimRequest) -> Any:
        assert request.ranges is not None
        self.asked.append(
            Asked(
                tenant_no=request.tenant_no,
                topic_nos=tuple(request.topic_nos),
                limit=request.limit,
                workers=tuple(request.workers),
                runs=tuple(request.runs),
                ranges=request.ranges,
                hints=tuple(request.hints),
            )
        )
        got = await self._watched("claim", super().claim(request))
        assert len(got) <= request.limit, "more was claimed than there is credit for"
        self.got.append(len(got))
        return got

    async def tick(self, topic_nos: Sequence[int], ranges: KeyRanges | None = None) -> Any:
        self.tick_ranges.append(ranges)
        return await self._watched("tick", super().tick(topic_nos, ranges))

    async def reap(self) -> int:
        return await self._watched("reap", super().reap())

    async def settle(self, rows: Any) -> Any:
        return await self._watched("settle", super().settle(rows))

    async def submit(self, rows: Any) -> Any:
        return await self._watched("submit", super().submit(rows))

    async def submit_locked(self, rows: Any) -> Any:
        return await self._watched("submit_locked", super().submit_locked(rows))

    async def submit_and_claim(self, rows: Any, request: ClaimRequest) -> Any:
        answers, got = await self._watched("submit_and_claim", super().submit_and_claim(rows, request))
        assert len(got) <= request.limit, "more was claimed than there is credit for"
        return answers, got

    async def renew(
        self,
        held: Mapping[tuple[int, int], tuple[Sequence[UUID], Sequence[int]]],
        *,
        for_call: bool = False,
        declared: bool = False,
    ) -> Any:
        self.renewed_rows += sum(len(ids) for ids, _ in held.values())
        self.renewals.append({tenant_no: len(ids) for (tenant_no, _), (ids, _) in held.items()})
        return await self._watched("renew", super().renew(held, for_call=for_call, declared=declared))

    async def expire_lost(self, tenant_no: int, ids: Sequence[UUID], epochs: Sequence[int], *, lost_ms: int) -> Any:
        return await self._watched("expire_lost", super().expire_lost(tenant_no, ids, epochs, lost_ms=lost_ms))

    async def notify(self, wakes: Collection[Wake]) -> None:
        await self._watched("notify", super().notify(wakes))


# ---------------------------------------------------------------------- workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt as its worker sees it."""

    id: UUID
    epoch: int
    attempt: int
    topic_no: int
    worker: str


Handler = Callable[[Run], Awaitable[Outcome]]


def completing(result: bytes = b"") -> Handler:
    async def handler(_run: Run) -> Outcome:
        return Completed(result=result)

    return handler


def failing(*, permanent: bool = False) -> Handler:
    async def handler(_run: Run) -> Outcome:
        return Failed(error=ErrorInfo(type="ValueError", message="boom"), permanent=permanent)

    return handler


def slow(seconds: float) -> Handler:
    async def handler(_run: Run) -> Outcome:
        await asyncio.sleep(seconds)
        return Completed()

    return handler


def waiting_for(event: asyncio.Event, outcome: Outcome | None = None) -> Handler:
    async def handler(_run: Run) -> Outcome:
        await event.wait()
        return outcome or Completed()

    return handler


@dataclass(slots=True)
class Tracker:
    """What runs at this moment, over any number of workers, and what ever ran."""

    running: Counter[UUID] = field(default_factory=Counter)
    runs: list[Run] = field(default_factory=list)
    most: int = 0
    overlaps: int = 0  # how often a job ran twice at the same time

    def began(self, run: Run) -> None:
        self.runs.append(run)
        self.running[run.id] += 1
        self.overlaps += self.running[run.id] > 1
        self.most = max(self.most, self.running.total())

    def ended(self, run: Run) -> None:
        self.running[run.id] -= 1

    @property
    def now(self) -> int:
        return self.running.total()

    @property
    def times(self) -> Counter[UUID]:
        return Counter(run.id for run in self.runs)


class Worker:
    """A session, and slots behind it. Without a handler nothing is read: the test reads the session itself."""

    def __init__(
        self,
        instance: Instance,
        session: WorkerSession,
        *,
        topic_nos: Sequence[int],
        lease_ms: int,
        handler: Handler | None,
        tracker: Tracker,
    ) -> None:
        self.instance, self.session, self.tracker = instance, session, tracker
        self.topic_nos, self.lease_ms, self._handler = topic_nos, lease_ms, handler
        self.told: list[ControlFrame] = []
        self.delivered: list[Delivery] = []
        self.receipts: dict[tuple[UUID, int], Settled | None] = {}  # None: applied, as asked
        self._slots: set[asyncio.Task[None]] = set()
        self._reader = asyncio.create_task(self._read(), name=f"reader {session.worker_id}") if handler else None

    def ready(self, count: int) -> None:
        self.instance.demands.grant(self.session, self.topic_nos, self.lease_ms, count)

    async def take(self, *, within: float = SOON.total_seconds()) -> Delivery:
        """The next jobs; other messages are put aside."""
        async with asyncio.timeout(within):
            while isinstance(part := await self.session.next_part(), ControlFrame):
                self.told.append(part)
        assert part is not None, f"the session has ended: {self.session.ended}"
        self.session.written()
        self.delivered.append(part)
        return part

    async def hear(self, *, within: float = SOON.total_seconds()) -> ControlFrame:
        """The next message that is not jobs."""
        async with asyncio.timeout(within):
            while isinstance(part := await self.session.next_part(), Delivery):
                self.delivered.append(part)
        assert part is not None, f"the session has ended: {self.session.ended}"
        self.told.append(part)
        return part

    def settle(self, *outcomes: tuple[UUID, int, Outcome]) -> asyncio.Future[Mapping[int, Settled]]:
        """Report; the answer comes after the commit."""
        answer: asyncio.Future[Mapping[int, Settled]] = asyncio.get_running_loop().create_future()
        self.instance.outcomes.put(
            OutcomeWrite(
                self.session.tenant_no,
                (),
                (),
                (),
                list(outcomes),
                done=lambda told: None if answer.done() else answer.set_result(told),  # type: ignore[arg-type]
                failed=lambda error: None if answer.done() else answer.set_exception(error),
                session=self.session,
            )
        )
        return answer

    async def report(self, job_id: UUID, epoch: int, outcome: Outcome) -> Settled:
        """Report one, and wait for the answer. A small epoch counts the job's claims."""
        if epoch < RANGE:
            (epoch,) = await self.instance.epochs([job_id], epoch)
        answer = await asyncio.wait_for(self.settle((job_id, epoch, outcome)), SOON.total_seconds())
        return answer.get(0) or APPLIED

    def complete(self, delivery: Delivery) -> None:
        """Complete a whole delivery in one frame, without waiting."""
        self.instance.outcomes.put(
            OutcomeWrite(
                self.session.tenant_no,
                delivery.ids,
                delivery.epochs,
                [b""] * len(delivery),
                (),
                done=lambda _: None,
                failed=lambda _: None,
                session=self.session,
            )
        )

    def lose(self, reason: str = "the wire broke") -> None:
        """The connection is gone: what a stream's handler does in its `finally`."""
        self.session.end(SessionEnded(reason))
        self.instance.sessions.close(self.session)
        self.instance.demands.revoke(self.session)

    def disconnect(self) -> None:
        """The same, by the rules: its leases are to end when it does not come back."""
        self.instance.rules.close(self.session, "the wire broke")

    async def close(self) -> None:
        self.lose("the test is over")
        tasks = {*self._slots, *([self._reader] if self._reader else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        while (part := await self.session.next_part()) is not None:
            if isinstance(part, ControlFrame):
                self.told.append(part)
                continue
            self.delivered.append(part)
            for job_id, epoch, attempt, topic_no in zip(
                part.ids, part.epochs, part.attempts, part.topic_nos, strict=True
            ):
                run = Run(id=job_id, epoch=epoch, attempt=attempt, topic_no=topic_no, worker=self.session.worker_id)
                self.tracker.began(run)
                task = asyncio.create_task(self._run(run), name=f"slot {job_id}")
                self._slots.add(task)
                task.add_done_callback(self._slots.discard)

    async def _run(self, run: Run) -> None:
        assert self._handler is not None
        try:
            outcome = await self._handler(run)
        except Exception as error:  # noqa: BLE001 - as the SDK does
            outcome = Failed(error=ErrorInfo(type=type(error).__name__, message=str(error)))
        finally:
            self.tracker.ended(run)
        # Ready goes out in the frame of the outcome: nobody waits for the receipt.
        answer = self.settle((run.id, run.epoch, outcome))
        self.ready(1)
        self.receipts[run.id, run.epoch] = (await answer).get(0)


APPLIED = Settled(receipt=Receipt.APPLIED, state=State.COMPLETED)


# ---------------------------------------------------------------------- the instance


class Instance:
    """Store, sessions, claimer, ticker, writers and renewer, joined as server.py joins them."""

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
        claims_along: bool = False,  # as the server does; without, a submit and its claim can be told apart
    ) -> None:
        self.store = WatchedStore(dsn)
        self.name, self.tenant, self.now = name, tenant, now
        self.lease_ms = lease // timedelta(milliseconds=1)
        self.sessions = WorkerSessions()
        self.ended: list[UUID] = []  # final, as those who wait for results are told
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
        )
        self.ticker = Ticker(
            self.store, self.times, self.demands, self.gate, self.wakes, self.limits.timers, watchdog=self.watchdog
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
        self.rules = SessionRules(
            sessions=self.sessions,
            demands=self.demands,
            outcomes=self.outcomes,
            unmatched=self.unmatched,
            renewer=self.renewer,
            lost_workers=self.lost_workers,
            progress=ProgressWriter(self.renewer.calls),
            tenants=self.store,
            now=now,
            lease_ms=self.lease_ms,
            accepting=lambda: True,
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
            self.start("renewals", self.renewer.run())
            self.start("limits", self.limits.run())
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for service in (self.claimer, self.ticker, self.wakes, self.limits):
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
        async with self.store.lane("read").use() as db:
            return await epochs_of(db, ids, nth)

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
    ) -> Worker:
        """Connect a worker that takes `slots` jobs at a time; with no handler the test reads its session."""
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
        self.sessions.open(session)
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
        async with self.store.lane("read").use() as db:
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
        worker = await self.worker(f"flush-{len(self._workers)}")
        await worker.report(self.ids.make(1)[0], RANGE + 1, Abandon())
        worker.lose()

    def free(self) -> int:
        """Credit in the book."""
        return sum(demand.credit for demand in self.demands.by_wanted.values())


async def listening(instance: Instance) -> bool:
    """Whether some instance of its database has begun to listen: what is said before is not heard."""
    async with instance.store.lane("read").use() as db:
        found = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headgate listen' AND query ~ 'LISTEN'"
        return bool(await db.fetchval(found))
