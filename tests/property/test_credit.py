"""Credit is conserved, and nothing claimed is stranded, whatever fails and whichever workers come and go meanwhile.

What a session granted is free in the book, reserved by the claim in flight, or dealt to it; at every moment, for every
session that lives. A script of steps runs against the real store. Any step can be made to fail: before the database did
anything, after it has committed (the answer is lost), or while the jobs are dealt. While a claim is in flight, other
steps may happen. In the end each job was received, went back at no cost, or comes back with its lease.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings
from hypothesis import strategies as st

from headgate.dispatch.delivery import Delivery
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_ends import SessionSilent
from headgate.domain.errors import HeadgateError, InvalidInput, OutcomeUnknown, StoreBusy, StoreUnavailable
from headgate.domain.states import State
from headgate.store.connect import connect
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Clock

TOPICS: Final = (("mail",), ("sms",), ("mail", "sms"))
FAULTS: Final = {
    "away": StoreUnavailable("away"),
    "unknown": OutcomeUnknown("lost"),
    "busy": StoreBusy("busy"),
    "refused": InvalidInput("topics", "refused"),
    "cancelled": asyncio.CancelledError(),
    "memory": MemoryError(),
}


@dataclass(frozen=True, slots=True)
class Connect:
    topics: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Ready:
    who: int
    count: int


@dataclass(frozen=True, slots=True)
class Submit:
    topic: str
    count: int


@dataclass(frozen=True, slots=True)
class Read:
    """A worker is written what is queued for it."""

    who: int


@dataclass(frozen=True, slots=True)
class Lose:
    """A connection breaks; `noticed`: its stream has ended as well."""

    who: int
    noticed: bool


@dataclass(frozen=True, slots=True)
class StirAll:
    pass


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A worker wants no more jobs; what it asks for later counts again."""

    who: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """An operator wants a worker to get no more jobs, or some again."""

    who: int
    on: bool


Aside: TypeAlias = Connect | Ready | Submit | Read | Lose | StirAll | Withdraw | Quiet


@dataclass(frozen=True, slots=True)
class Claim:
    """One round of claims; in its first call things may happen, and it may fail."""

    fault: str | None = None
    when: str = "before"  # the database did anything, "after" its commit, or while "dealing" to the nth session
    nth: int = 0
    meanwhile: tuple[Aside, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    fault: str | None = None
    when: str = "before"


few = st.integers(1, 6)
sessions = st.integers(0, 4)
asides: st.SearchStrategy[Aside] = st.one_of(
    st.builds(Connect, st.sampled_from(TOPICS), few),
    st.builds(Ready, sessions, few),
    st.builds(Submit, st.sampled_from(("mail", "sms")), few),
    st.builds(Read, sessions),
    st.builds(Lose, sessions, st.booleans()),
    st.just(StirAll()),
    st.builds(Withdraw, sessions),
    st.builds(Quiet, sessions, st.booleans()),
)
faults = st.none() | st.sampled_from(tuple(FAULTS))
claims = st.builds(
    Claim,
    faults,
    st.sampled_from(("before", "after", "dealing")),
    st.integers(0, 2),
    st.lists(asides, max_size=3).map(tuple),
)
ticks = st.builds(Tick, faults, st.sampled_from(("before", "after")))
steps = st.lists(st.one_of(asides, claims, claims, ticks), min_size=3, max_size=20)


@dataclass
class Script:
    """Runs steps, and keeps its own account of what was granted and received."""

    one: Instance
    workers: list[Worker] = field(default_factory=list)
    granted: Counter[str] = field(default_factory=Counter)
    received: dict[str, list[UUID]] = field(default_factory=dict)
    revoked: set[str] = field(
        default_factory=set
    )  # withdrew during the claim in flight, which may have reserved for them
    dealing: ClassVar[tuple[int, BaseException] | None] = None

    async def aside(self, step: Aside) -> None:
        match step:
            case Connect(topics, count):
                worker = await self.one.worker("", *topics)
                self.workers.append(worker)
                self.received[worker.session.worker_id] = []
                self.ready(worker, count)
            case Ready(who, count):
                if self.workers:
                    self.ready(self.workers[who % len(self.workers)], count)
            case Submit(topic, count):
                await self.one.submit(count, topic)
            case Read(who):
                if self.workers:
                    self.read(self.workers[who % len(self.workers)])
            case Lose(who, noticed):
                if self.workers:
                    worker = self.workers[who % len(self.workers)]
                    worker.session.end(SessionSilent("gone"))
                    if noticed:
                        worker.lose()
            case StirAll():
                self.one.demands.wake_all()
            case Withdraw(who):
                if self.workers:
                    session = self.workers[who % len(self.workers)].session
                    self.one.demands.withdraw(session)
                    self.granted[session.worker_id] = len(self.received[session.worker_id])
                    self.revoked.add(session.worker_id)
            case Quiet(who, on):
                if self.workers:
                    session = self.workers[who % len(self.workers)].session
                    (self.one.demands.quiet if on else self.one.demands.resume_worker)(session)
                    assert not on or session.credit == {}

    def ready(self, worker: Worker, count: int) -> None:
        worker.ready(count)
        self.granted[worker.session.worker_id] += count

    def read(self, worker: Worker) -> None:
        session = worker.session
        while session.ended is None and session._parts:
            part = session._parts.popleft()
            if isinstance(part, Delivery):
                self.received[session.worker_id] += part.ids

    async def claim(self, step: Claim) -> None:
        fault = None if step.fault is None else FAULTS[step.fault]
        store = self.one.store

        async def before() -> None:
            store.before.clear()
            self.revoked.clear()
            self.check(in_flight=True)
            for one in step.meanwhile:
                await self.aside(one)
                self.check(in_flight=True)
            if fault is not None and step.when == "before":
                raise fault

        async def after() -> None:
            store.after.clear()
            if fault is not None and step.when == "after":
                raise fault

        store.before["claim"], store.after["claim"] = before, after
        with self.dealing_fails(step.nth, fault if step.when == "dealing" else None), suppressed():
            await self.one.claimer.run_once()
        store.before.clear()
        store.after.clear()

    async def tick(self, step: Tick) -> None:
        async def hook() -> None:
            if step.fault is not None:
                raise FAULTS[step.fault]

        hooks = self.one.store.before if step.when == "before" else self.one.store.after
        hooks["tick"] = hook
        with suppressed():
            await self.one.ticker.run_once()
        hooks.clear()

    @contextmanager
    def dealing_fails(self, nth: int, fault: BaseException | None) -> Iterator[None]:
        real, dealt = WorkerSession.deliver, 0

        def deliver(session: WorkerSession, delivery: Delivery) -> bool:
            nonlocal dealt
            dealt += 1
            if fault is not None and dealt == nth + 1:
                raise fault
            return real(session, delivery)

        WorkerSession.deliver = deliver  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            WorkerSession.deliver = real  # type: ignore[method-assign]

    def check(self, *, in_flight: bool = False) -> None:
        demands = list(self.one.demands.by_wanted.values())
        reserved: Counter[str] = Counter()
        if in_flight:
            asked = self.one.store.asked[-1]
            assert sum(asked.runs) == asked.limit
            runs = zip(asked.workers, asked.runs, strict=True)
            reserved.update({worker: count for worker, count in runs if worker not in self.revoked})
        for worker in self.workers:
            session = worker.session
            if session.ended is not None:
                continue
            queued = sum(len(part) for part in session._parts if isinstance(part, Delivery))
            dealt = len(self.received[session.worker_id]) + queued
            free = sum(session.credit.values()) + sum(session.kept.values())
            assert bool(session.kept) <= session.quiet
            assert self.granted[session.worker_id] == free + reserved[session.worker_id] + dealt
            assert len(session.held) == dealt
            assert set(session.credit) <= set(demands)
        for demand in demands:
            assert demand.claiming == (in_flight and demand.claiming)
            assert demand.credit == sum(session.credit.get(demand, 0) for session in demand.members)
            assert len(set(demand.sessions)) == len(demand.sessions)
            assert {session for session in demand.members if session.credit[demand]} == set(demand.sessions)
            assert demand.members or demand.claiming
            assert demand.claiming or not demand.revoked
        known = [demand for topic in self.one.demands.by_topic.values() for demand in topic]
        assert set(known) == set(demands)

    async def run(self, script: list[Aside | Claim | Tick]) -> None:
        for step in script:
            match step:
                case Claim():
                    await self.claim(step)
                case Tick():
                    await self.tick(step)
                case _:
                    await self.aside(step)
            self.check()


@contextmanager
def suppressed() -> Iterator[None]:
    with suppress(HeadgateError, MemoryError, asyncio.CancelledError):
        yield


async def scenario(dsn: str, script: list[Aside | Claim | Tick]) -> None:
    db = await connect(dsn, application_name="script")
    try:
        await db.execute("TRUNCATE headgate.jobs")
        clock = Clock(db, await db.fetchval("SELECT at FROM public.test_clock"))
        async with Instance(dsn, running=False, claims_along=True) as one:
            play = Script(one)
            await play.run(script)
            # Everyone leaves. What was never written goes back at once, at no cost.
            for worker in play.workers:
                worker.lose()
            await one.flushed()
            assert not one.demands.by_wanted
            assert not one.demands.by_topic
            received = {job for ids in play.received.values() for job in ids}
            rows = await db.fetch("SELECT id, state, attempt FROM headgate.jobs")
            running = {row["id"] for row in rows if row["state"] == State.RUNNING}
            lost = sum(
                isinstance(step, Claim) and step.when == "after" and step.fault is not None for step in script
            )  # answers that never arrived: leased to no one
            assert received <= running
            assert lost or received == running
            assert {row["attempt"] for row in rows if row["state"] == State.PENDING} <= {0}
            # And what still runs comes back with its lease: everything reaches the next worker.
            await clock.advance(seconds=61)
            await one.ticker.run_once()
            await clock.advance(seconds=60)
            last = await one.worker("last", "mail", "sms", slots=len(rows) or 1)
            await one.ticker.run_once()
            while await one.claimer.run_once():
                pass
            assert set(last.session.held) == {row["id"] for row in rows}
            assert set(await db.fetch("SELECT DISTINCT attempt FROM headgate.jobs WHERE id = ANY ($1)", running)) <= {
                (2,)
            }
    finally:
        await db.close()


@pytest.mark.req("T2", "T5")
@settings(
    max_examples=40,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),  # to explain a failure takes minutes
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=steps)
# One that is busy and one that goes share a demand, which must not go with it.
@example(script=[Connect(("mail",), 1), Submit("mail", 1), Claim(), Connect(("mail",), 1), Lose(1, noticed=True)])
def test_credit_is_conserved_and_no_job_is_stranded(credit_database: str, script: list[Aside | Claim | Tick]) -> None:
    note(f"{script}")
    asyncio.run(asyncio.wait_for(scenario(credit_database, script), 60))


@pytest.fixture
def credit_database(database: str) -> str:
    """One for all examples: each empties it, and its clock only goes forwards."""

    async def install() -> None:
        db = await connect(database, application_name="script")
        await Clock.install(db)
        await db.close()

    asyncio.run(install())
    return database
