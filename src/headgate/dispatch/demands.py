"""The demands of this instance: what its sessions want, which credit each has, and which demand may have work.

Only the claimer spends credit. Everything here is in memory and synchronous: no statement is sent for a wake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from uuid import UUID

from headgate.dispatch.delivery import Delivery, Wanted
from headgate.dispatch.demand import UNKNOWN_BYTES, Demand
from headgate.dispatch.ports import TopicNames
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.tick_times import TickTimes
from headgate.domain import limits
from headgate.domain.errors import TooLarge


class Demands:
    """All demands, by what is wanted; owns the credit of all sessions."""

    abandon_unsent: Callable[[Delivery], None]
    """Settles what was dealt to a session and never written to it. Set once there is a writer, which needs the demands:
    what it settles may wake them."""

    def __init__(self, names: TopicNames, times: TickTimes, *, wakes: bool = True) -> None:
        self.names, self._times = names, times
        self.wakes = wakes  # off: only the tick finds work (for tests, and as proof that it suffices)
        self.by_wanted: dict[tuple[int, Wanted], Demand] = {}
        self.by_topic: dict[int, set[Demand]] = {}  # those that want jobs of a topic
        self._by_name: dict[tuple[int, str], set[Demand]] = {}  # of topics that do not exist yet: tenant, name
        self._mean_bytes: dict[int, float] = {}  # by topic: the mean size of jobs that were submitted here
        self.woken = asyncio.Event()  # some demand may have work
        # Set by consumers.py: a session wants a place that it does not have, or leaves one; whether places are valid.
        self.on_standby: Callable[[], None] = lambda: None
        self.places_valid: Callable[[], bool] = lambda: True

    def __iter__(self) -> Iterator[Demand]:
        return iter(tuple(self.by_wanted.values()))

    def __len__(self) -> int:
        return len(self.by_wanted)

    def topics_with_credit(self) -> list[int]:
        """The topics for which some session would take a job now."""
        return [no for no, demands in self.by_topic.items() if any(demand.credit for demand in demands)]

    @property
    def have_work(self) -> bool:
        """Whether one of them is to be claimed for."""
        return any(demand.wants_claim for demand in self.by_wanted.values())

    @property
    def await_names(self) -> bool:
        """Whether some wait for topics that do not exist yet."""
        return bool(self._by_name)

    # ------------------------------------------------------------------ credit

    def ask(self, session: WorkerSession, topics: Sequence[str], lease_ms: int, count: int) -> None:
        """A worker asks for `count` more jobs of these topics. Raises TooLarge past what one session may ask for.

        Nothing is read or written for it: a topic that does not exist is remembered by name until it appears.
        """
        resolved = self._resolved(session.tenant_no, (), lease_ms, topics)
        wanted = self._permitted(session, resolved) if self.names.consumers else resolved
        demand = self.by_wanted.get((session.tenant_no, wanted))
        if demand not in session.credit and wanted not in session.kept:  # rarely: it has not asked for this before
            self._check_session(session, wanted)
        self._grant(session, resolved if session.quiet else wanted, count)

    def _check_session(self, session: WorkerSession, wanted: Wanted) -> None:
        most, names = limits.SESSION_DEMANDS_MAX, limits.SESSION_UNKNOWN_TOPICS_MAX
        if len(session.credit) + len(session.kept) >= most:
            for demand in [one for one, count in session.credit.items() if not count and not one.claiming]:
                demand.forget(session)  # it has had all it asked for there
                self.drop_unused(demand)
        if len(session.credit) + len(session.kept) >= most:
            raise TooLarge(
                "ready",
                size=most + 1,
                limit=most,
                unit="combinations of topics and lease_seconds",
                hint="ask for all topics of a worker at once, with few different leases",
            )
        unknown = {name for demand in session.credit for name in demand.unknown}
        unknown |= {name for _, _, kept in session.kept for name in kept}
        unknown.update(wanted[2])
        if wanted[2] and len(unknown) > names:
            raise TooLarge("ready.topics", size=len(unknown), limit=names, unit="topics without any job so far")

    def grant(
        self, session: WorkerSession, topic_nos: Sequence[int], lease_ms: int, count: int, unknown: Sequence[str] = ()
    ) -> None:
        """A session gets credit for `count` more jobs of these topics, and of those `unknown` ones once they exist.

        One that has ended gets none; that of a quiet one is kept aside.
        """
        wanted = self._resolved(session.tenant_no, topic_nos, lease_ms, unknown)
        if self.names.consumers and not session.quiet:
            wanted = self._permitted(session, wanted)
        self._grant(session, wanted, count)

    def _grant(self, session: WorkerSession, wanted: Wanted, count: int) -> None:
        if session.ended is not None:
            return
        if session.quiet:
            session.kept[wanted] = session.kept.get(wanted, 0) + count
            return
        session.on_capacity = self.look
        demand = self.by_wanted.get((session.tenant_no, wanted))
        if demand is None:
            demand = self._new_demand(session.tenant_no, wanted)
        demand.grant(session, count)
        if demand.wake_pending:
            self.woken.set()

    def _resolved(self, tenant_no: int, topic_nos: Sequence[int], lease_ms: int, names: Sequence[str]) -> Wanted:
        """What is wanted, in its one form: names of topics that exist are numbers in it."""
        if not names:
            return tuple(sorted(topic_nos)), lease_ms, ()
        found = [self.names.topic_no(tenant_no, name) for name in names]
        numbers = {*topic_nos, *(no for no in found if no is not None)}
        unknown = () if None not in found else (name for name, no in zip(names, found, strict=True) if no is None)
        return tuple(sorted(numbers)), lease_ms, tuple(sorted(unknown))

    def _permitted(self, session: WorkerSession, wanted: Wanted) -> Wanted:
        """Topics with a maximum of consumers of which the session has no place are in it by name only."""
        limited = self.names.consumers
        if not limited:
            return wanted
        topic_nos, lease_ms, unknown = wanted
        waits = {limited[no] for no in topic_nos if no in limited and no not in session.places}
        if not waits:
            return wanted
        if not waits.issubset(session.standby):
            self.on_standby()
        others = tuple(no for no in topic_nos if limited.get(no) not in waits)
        return others, lease_ms, tuple(sorted(waits.union(unknown)))

    def reassign(self, session: WorkerSession) -> None:
        """The places of a session have changed: its credit goes to demands with what it may receive now."""
        for demand in tuple(session.credit):
            resolved = self._resolved(session.tenant_no, demand.topic_nos, demand.lease_ms, demand.unknown)
            if self._permitted(session, resolved) != demand.wanted:
                count = demand.forget(session, keep=True)
                self.drop_unused(demand)
                self.grant(session, demand.topic_nos, demand.lease_ms, count, demand.unknown)

    def lease_ms_of(self, tenant_no: int, topics: Sequence[str]) -> int:
        """The longest lease of these topics, in milliseconds; 0: none of them has one."""
        leases = self.names.leases.get(tenant_no)
        return max((leases.get(name, 0) for name in topics), default=0) if leases else 0

    def _new_demand(self, tenant_no: int, wanted: Wanted) -> Demand:
        topic_nos, _, unknown = wanted
        known = [self._mean_bytes[no] for no in topic_nos if no in self._mean_bytes]
        demand = Demand(tenant_no, *wanted, job_bytes=max(known, default=UNKNOWN_BYTES))
        self.by_wanted[tenant_no, wanted] = demand
        for topic_no in topic_nos:
            self.by_topic.setdefault(topic_no, set()).add(demand)
        for name in unknown:
            self._by_name.setdefault((tenant_no, name), set()).add(demand)
        if unknown:  # another instance may have made them since the last tick
            self._times.on_hint()
        return demand

    def topic_appeared(self, tenant_no: int, name: str, topic_no: int) -> None:
        """A topic exists, and is known here from now on: credit for its name goes to demands with its number."""
        del topic_no
        for demand in self._by_name.pop((tenant_no, name), ()):
            if demand.claiming:  # what it brings is for sessions that still want it: moved now, they would not get it
                demand.moves = True
            else:
                self.move(demand)

    def move(self, demand: Demand) -> None:
        """Give the credit of a demand to the one with the numbers of topics that have appeared."""
        credit = [(session, demand.forget(session, keep=True)) for session in tuple(demand.members)]
        self.drop_unused(demand)
        for session, count in credit:
            if count or session.places:  # a consumer that is busy keeps its place
                self.grant(session, demand.topic_nos, demand.lease_ms, count, demand.unknown)

    def withdraw(self, session: WorkerSession) -> None:
        """A worker takes no more jobs until it asks again: its credit is revoked, also what a claim in flight reserved.

        What was dealt to it and is not being written goes back. After what is being written now, nothing comes.
        """
        session.kept.clear()
        for demand in self.by_wanted.values():
            if session in demand.revoked:
                demand.revoked[session] = False
        self.revoke(session)

    def quiet(self, session: WorkerSession) -> None:
        """An administrator wants a worker to get no more jobs: as `withdraw`, but its credit is kept aside."""
        if not session.quiet:
            session.quiet = True
            for wanted, count in self.revoke(session, keep=True):
                session.kept[wanted] = session.kept.get(wanted, 0) + count

    def resume_worker(self, session: WorkerSession) -> None:
        """It may have jobs again, as many as it asked for before and while it was quiet."""
        if session.quiet:
            session.quiet = False
            kept, session.kept = session.kept, {}
            for (topic_nos, lease_ms, unknown), count in kept.items():
                self.grant(session, topic_nos, lease_ms, count, unknown)

    def revoke(self, session: WorkerSession, *, keep: bool = False) -> list[tuple[Wanted, int]]:
        """Take all credit from a session, and what is not being written to it; returns how much, by what it was for.

        `keep`: what a claim in flight has reserved for it is granted again when that is over.
        """
        if session.places and not session.single_call:  # the place of a call is that of its worker, which keeps it
            self.on_standby()
        revoked: list[tuple[Wanted, int]] = []
        for demand in tuple(session.credit):
            revoked.append((demand.wanted, demand.forget(session, keep=keep)))
            self.drop_unused(demand)
        for delivery in session.take_unsent():
            revoked.append((delivery.wanted, len(delivery)))
            self.abandon_unsent(delivery)
        return revoked

    def drop_unused(self, demand: Demand) -> None:
        """Forget a demand without sessions, if no claim for it is in flight."""
        if demand.members or demand.claiming:
            return
        self.by_wanted.pop((demand.tenant_no, demand.wanted), None)
        for topic_no in demand.topic_nos:
            demands = self.by_topic.get(topic_no, set())
            demands.discard(demand)
            if not demands:
                self.by_topic.pop(topic_no, None)
        for name in demand.unknown:
            demands = self._by_name.get((demand.tenant_no, name), set())
            demands.discard(demand)
            if not demands:
                self._by_name.pop((demand.tenant_no, name), None)

    # ------------------------------------------------------------------ wakes

    def wake(self, topic_no: int, hint: UUID | None = None) -> None:
        """There may be work on this topic; `hint` is a job that may lie below the watermark."""
        for demand in self.by_topic.get(topic_no, ()):
            demand.wake_pending = self.wakes or demand.wake_pending
            if hint is not None:
                demand.look_for((hint,))
        if self.wakes:
            self.woken.set()

    def wake_for_job(self, tenant_no: int, job_id: UUID) -> None:
        """A job came back, and its topic is not known here: all of its tenant's demands look for it by its id."""
        for demand in self.by_wanted.values():
            if demand.tenant_no == tenant_no:
                demand.look_for((job_id,))
                demand.wake_pending = self.wakes or demand.wake_pending
        if self.wakes:
            self.woken.set()

    def pending_seen(self, topic_nos: Iterable[int], *, whole: bool) -> None:
        """These topics have claimable jobs; `whole`: also below the marks was looked."""
        for topic_no in topic_nos:
            for demand in self.by_topic.get(topic_no, ()):
                demand.missed = demand.missed or (whole and not demand.busy)
                demand.wake_pending = True
                self.woken.set()

    def wake_all(self) -> None:
        """There may be work anywhere: after a resume, a reconnect, a lost notification."""
        for demand in self.by_wanted.values():
            demand.wake_pending = demand.from_head = True
        self.woken.set()

    def look(self, session: WorkerSession) -> None:
        """What a session waits for may be claimed: it was full, or it asks seldom and may have missed wakes."""
        for demand in session.credit:
            demand.wake_pending = True
        self.woken.set()

    def expect(self, topic_no: int, mean_bytes: float) -> None:
        """Jobs of this mean size were submitted to a topic."""
        self._mean_bytes[topic_no] = mean_bytes
        for demand in self.by_topic.get(topic_no, ()):
            demand.expect(mean_bytes)

    def forget_marks(self) -> None:
        """New jobs may rank below the watermarks: all claims look from the head again."""
        for demand in self.by_wanted.values():
            demand.marks.clear()
