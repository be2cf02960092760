"""The coordinator: exactly one per instance. It claims for all sessions and deals what it gets.

It acts on wakes (a submit committed here, credit, a promotion, a resume, a word from another instance) and on one
tick a second, the net under all of them. Without credit, or when nothing is due, it asks nothing. A claim error never
ends a session: it backs off and tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from random import uniform
from uuid import UUID

from headgate.dispatch.deadlines import without_late
from headgate.dispatch.demand import UNKNOWN_BYTES, Demand
from headgate.dispatch.limit_timers import LimitTimers
from headgate.dispatch.ports import Claim, ClaimedJobs, ClaimStore, Tick
from headgate.dispatch.sessions import ControlFrame, Delivery, Wanted, WorkerSession, WorkerSessions
from headgate.dispatch.watchdog import WatchdogGate
from headgate.dispatch.watermark import Watermark
from headgate.domain import failpoints, limits
from headgate.domain.errors import HeadgateError, InstanceForgotten, StoreError, TooLarge
from headgate.domain.keyrange import HIGHEST, LOWEST, KeyRanges
from headgate.domain.limits import LEASE_MIN
from headgate.domain.outcomes import Outcome
from headgate.domain.rank import unix_us

log = logging.getLogger("headgate.dispatch")

CLAIM_LIMIT = 500
TICK_SECONDS = 1.0
_BACKOFF_FIRST, _BACKOFF_MOST = 0.05, 2.0
_TICKS_APART, _STUCK_TICKS_APART = 0.002, 0.05
_NAMES_APART = 0.05
_SWEEP_AT_LEAST_US = 1_000_000
_SWEEP_MOST_US, _SWEEP_SLOW_SECONDS = 3_600_000_000, 0.005
_WHOLE_SLOW_SECONDS, _WHOLE_SHARE, _WHOLE_MOST_SECONDS = 0.02, 0.02, 30.0
_WHOLE_ALWAYS_US = 30_000_000
"""Looking below the watermarks costs next to nothing while dead rows are vacuumed. While an old snapshot is held
it is a walk over everything that has ended since. So a claim that takes so much longer by its sweep sweeps half as far
the next time. Ticks that are slow look at whole topics for so small a share of the time only, once the marks have moved
far enough for that to be the reason; from the marks on, they always look. See ADR 24."""


class Coordinator:
    """Owns demands, credit, watermarks and the pause gate of one instance."""

    def __init__(
        self,
        store: ClaimStore,
        sessions: WorkerSessions,
        *,
        abandon_unsent: Callable[[Delivery], None],
        end_late: Callable[[int, Sequence[tuple[UUID, int, Outcome]]], None],
        claim_limit: int = CLAIM_LIMIT,
        tick_seconds: float = TICK_SECONDS,
        wakes: bool = True,
        watchdog: WatchdogGate | None = None,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._abandon_unsent = abandon_unsent
        self._end_late = end_late  # (tenant, outcomes) of jobs that were claimed after their deadline
        self._claim_limit = claim_limit
        self._tick_seconds = tick_seconds
        self._wakes = wakes  # off: only the tick finds work (for tests, and as proof that it suffices)
        self._watchdog = watchdog  # without one, lapsed leases are reaped at every tick
        self._demands: dict[tuple[int, Wanted], Demand] = {}
        self._by_topic: dict[int, set[Demand]] = {}
        self._by_name: dict[tuple[int, str], set[Demand]] = {}  # of topics that do not exist yet: tenant, name
        self._weights: dict[int, float] = {}  # by topic: what a job weighed that was submitted here, on average
        self._event = asyncio.Event()
        self._stopped = asyncio.Event()
        self._sooner = asyncio.Event()  # the next tick was pulled forward
        # By the loop's clock: the next tick, how soon it may be, and the next that is due by the second.
        self._next_tick = self._no_tick_before = self._full_tick = 0.0
        self._ticked = 0.0  # when the last one began
        self._ahead: float | None = None  # what to add to the loop's clock to get the database's
        self._unannounced: set[int] = set()
        self._news = asyncio.Event()
        self._turns = 0  # of the gate, by verbs here: a tick that was under way meanwhile knows less
        self._sweep_us = _SWEEP_MOST_US  # how far the next sweep may go: twice as far as the last that was not slow
        self._swept_us = _SWEEP_AT_LEAST_US  # how far the last one went
        self._claim_seconds = 0.0  # what a claim takes that does not sweep, lately
        self._whole_at = 0.0  # by the loop's clock: when ticks look at whole topics again
        self._limit_timers = LimitTimers(self._limit_opened)
        self._keys_due = asyncio.Event()
        self.paused: frozenset[tuple[int, int]] = frozenset()
        self.quieted: frozenset[tuple[int, str]] = frozenset()  # workers that operators want to get no more jobs
        self.others = 0
        self.claims = self.claimed = self.claim_errors = self.ticks = 0
        self.tick_error = ""  # why the last tick failed, if it did

    # ------------------------------------------------------------------ what sessions and writers say

    def ask(self, session: WorkerSession, topics: Sequence[str], lease_ms: int, count: int) -> None:
        """A worker asks for `count` more jobs of these topics. Raises TooLarge past what one session may ask for.

        Nothing is read or written for it: a topic that does not exist is remembered by name until it appears.
        """
        wanted = self._resolved(session.tenant_no, (), lease_ms, topics)
        demand = self._demands.get((session.tenant_no, wanted))
        if demand not in session.credit and wanted not in session.kept:  # rarely: it has not asked for this before
            self._check_session(session, wanted)
        self.grant(session, wanted[0], lease_ms, count, wanted[2])

    def _check_session(self, session: WorkerSession, wanted: Wanted) -> None:
        most, names = limits.SESSION_DEMANDS_MAX, limits.SESSION_UNKNOWN_TOPICS_MAX
        if len(session.credit) + len(session.kept) >= most:
            for demand in [one for one, count in session.credit.items() if not count and not one.claiming]:
                demand.forget(session)  # it has had all it asked for there
                if demand.unused:
                    self._drop(demand)
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

        One that has ended gets none.
        """
        if session.ended is not None:
            return
        wanted = self._resolved(session.tenant_no, topic_nos, lease_ms, unknown)
        if self.quieted and (session.tenant_no, session.worker_id) in self.quieted:
            self.quiet(session)
        if session.quiet:
            session.kept[wanted] = session.kept.get(wanted, 0) + count
            return
        session.on_capacity = self._has_capacity
        demand = self._demands.get((session.tenant_no, wanted))
        if demand is None:
            demand = self._new_demand(session.tenant_no, wanted)
        demand.grant(session, count)
        if demand.wake_pending:
            self._event.set()

    def _resolved(self, tenant_no: int, topic_nos: Sequence[int], lease_ms: int, names: Sequence[str]) -> Wanted:
        """What is wanted, in its one form: names of topics that exist are numbers in it."""
        if not names:
            return tuple(sorted(topic_nos)), lease_ms, ()
        found = [self._store.topic_no(tenant_no, name) for name in names]
        numbers = {*topic_nos, *(no for no in found if no is not None)}
        unknown = () if None not in found else (name for name, no in zip(names, found, strict=True) if no is None)
        return tuple(sorted(numbers)), lease_ms, tuple(sorted(unknown))

    def _new_demand(self, tenant_no: int, wanted: Wanted) -> Demand:
        topic_nos, _, unknown = wanted
        known = [self._weights[no] for no in topic_nos if no in self._weights]
        demand = Demand(tenant_no, *wanted, job_bytes=max(known, default=UNKNOWN_BYTES))
        self._demands[tenant_no, wanted] = demand
        for topic_no in topic_nos:
            self._by_topic.setdefault(topic_no, set()).add(demand)
        for name in unknown:
            self._by_name.setdefault((tenant_no, name), set()).add(demand)
        if unknown:  # another instance may have made them since the last tick
            self._look_for_names()
        return demand

    def _look_for_names(self) -> None:
        """Tick soon, which reads what topics are new; but no oftener for it, whatever workers ask and others say."""
        self.due_in(max(0.0, self._ticked + _NAMES_APART - asyncio.get_running_loop().time()))

    def topic_appeared(self, tenant_no: int, name: str, topic_no: int) -> None:
        """A topic exists, and is known here from now on: credit for its name goes to demands with its number."""
        del topic_no
        for demand in self._by_name.pop((tenant_no, name), ()):
            if demand.claiming:  # what it brings is for sessions that still want it: moved now, they would not get it
                demand.moves = True
            else:
                self._move(demand)

    def _move(self, demand: Demand) -> None:
        """Give the credit of a demand to the one with the numbers of topics that have appeared."""
        credit = [(session, demand.forget(session, keep=True)) for session in tuple(demand.members)]
        if demand.unused:
            self._drop(demand)
        for session, count in credit:
            if count:
                self.grant(session, demand.topic_nos, demand.lease_ms, count, demand.unknown)

    def withdraw(self, session: WorkerSession) -> None:
        """A worker takes no more jobs until it asks again: its credit is revoked, also what a claim in flight reserved.

        What was dealt to it and is not being written goes back. After what is being written now, nothing comes.
        """
        session.kept.clear()
        for demand in self._demands.values():
            if session in demand.revoked:
                demand.revoked[session] = False
        self._revoke_credit(session)

    def quiet(self, session: WorkerSession) -> None:
        """An operator wants a worker to get no more jobs: as `withdraw`, but its credit is kept aside."""
        if not session.quiet:
            session.quiet = True
            for key, count in self._revoke_credit(session, keep=True):
                session.kept[key] = session.kept.get(key, 0) + count

    def resume_worker(self, session: WorkerSession) -> None:
        """It may have jobs again, as many as it asked for before and meanwhile."""
        if session.quiet:
            session.quiet = False
            kept, session.kept = session.kept, {}
            for (topic_nos, lease_ms, unknown), count in kept.items():
                self.grant(session, topic_nos, lease_ms, count, unknown)

    def _revoke_credit(self, session: WorkerSession, *, keep: bool = False) -> list[tuple[Wanted, int]]:
        """Take all credit from a session, and what is not being written to it; returns how much, by what it was for."""
        revoked: list[tuple[Wanted, int]] = []
        for demand in tuple(session.credit):
            revoked.append((demand.wanted, demand.forget(session, keep=keep)))
            if demand.unused:
                self._drop(demand)
        for delivery in session.take_unsent():
            revoked.append((delivery.wanted, len(delivery)))
            self._abandon_unsent(delivery)
        return revoked

    def _has_capacity(self, session: WorkerSession) -> None:
        """A session that was full has room: what it waits for may be claimed."""
        for demand in session.credit:
            demand.wake_pending = True
        self._event.set()

    def due_at(self, moment: datetime) -> None:
        """A job falls due then, by the database's clock: the next tick comes no later."""
        if self._ahead is not None:
            self.due_in(moment.timestamp() - self._ahead - asyncio.get_running_loop().time())

    def due_in(self, seconds: float) -> None:
        """A job falls due so soon: the next tick comes no later."""
        at = asyncio.get_running_loop().time() + seconds
        if at < self._next_tick:
            self._next_tick = at
            self._sooner.set()

    def submitted(self, topic_nos: Iterable[int], mean_bytes: float = 0.0, *, claimed: bool = False) -> None:
        """Jobs were committed by this instance: claim here, unless that was done, and let the others know."""
        for topic_no in topic_nos:
            if not claimed:
                self.wake(topic_no)
            if mean_bytes:
                self._weights[topic_no] = mean_bytes
                for demand in self._by_topic.get(topic_no, ()):
                    demand.expect(mean_bytes)
            self._unannounced.add(topic_no)
        self._news.set()

    def wake(self, topic_no: int, hint: UUID | None = None) -> None:
        """There may be work on this topic; `hint` is a job that may lie below the watermark."""
        for demand in self._by_topic.get(topic_no, ()):
            demand.wake_pending = self._wakes or demand.wake_pending
            if hint is not None:
                demand.look_for((hint,))
        if self._wakes:
            self._event.set()

    def wake_for_job(self, tenant_no: int, job_id: UUID) -> None:
        """A job came back, and its topic is not known here: all of its tenant's demands look for it by its id."""
        for demand in self._demands.values():
            if demand.tenant_no == tenant_no:
                demand.look_for((job_id,))
                demand.wake_pending = self._wakes or demand.wake_pending
        if self._wakes:
            self._event.set()

    def wake_all(self) -> None:
        """There may be work anywhere: after a resume, a reconnect, a lost notification."""
        for demand in self._demands.values():
            demand.wake_pending = demand.from_head = True
        self._event.set()

    def forget(self, session: WorkerSession) -> None:
        """A session has ended: revoke its credit, and hand back what was never written to it."""
        self._revoke_credit(session)

    def is_paused(self, tenant_no: int, topic_no: int) -> bool:
        """The gate: a set look-up. The claim's own check is the truth."""
        paused = self.paused
        return bool(paused) and not paused.isdisjoint({(0, 0), (tenant_no, 0), (tenant_no, topic_no)})

    def flip(self, paused: Iterable[tuple[int, int]]) -> None:
        """Set the gate to what the control rows say; what was resumed is looked at again."""
        before, self.paused = self.paused, frozenset(paused)
        if before - self.paused:
            self.wake_all()

    # ------------------------------------------------------------------ what operators say

    def gate(self, target: tuple[int, int], *, paused: bool) -> None:
        """A verb served here has committed: follow it at once, and not only at the next refresh."""
        self._turns += 1
        self.flip(self.paused | {target} if paused else self.paused - {target})
        if not paused:
            self.wake_all()
        self.tick_soon()  # for what else the rows say, and when a pause ends by itself

    def set_quiet(self, quiet: Iterable[tuple[int, str]]) -> None:
        """These workers get no more jobs; whoever is not among them any more gets some again."""
        before, self.quieted = self.quieted, frozenset(quiet)
        changed = before ^ self.quieted
        if not changed:
            return
        self._turns += 1
        for session in self._sessions:
            if (name := (session.tenant_no, session.worker_id)) in changed:
                (self.quiet if name in self.quieted else self.resume_worker)(session)

    def tell_cancel(self, tenant_no: int, job_id: UUID, epoch: int) -> None:
        """If this attempt runs here, its worker is told to stop."""
        holder = self._sessions.holder(tenant_no, job_id, epoch)
        if holder is not None:
            holder.send_control(ControlFrame(cancel=[(job_id, epoch)]))

    def on_notify(self, topic_nos: Iterable[int]) -> None:
        """A word from another instance: a topic has work (below 0: perhaps at its head); 0: something else changed."""
        for topic_no in topic_nos:
            if not topic_no:
                self.tick_soon()
                continue
            if topic_no < 0:
                for demand in self._by_topic.get(-topic_no, ()):
                    demand.from_head = True
            self.wake(abs(topic_no))
            if self._by_name and not self._store.knows_topic(abs(topic_no)):
                self._look_for_names()  # one that is new here may be waited for by its name

    def tick_soon(self) -> None:
        """Do not wait for the second to be over."""
        self.due_in(0.0)

    # ------------------------------------------------------------------ claiming

    async def run(self) -> None:
        """Claim until `stop`; returns when no claim is in flight."""
        backoff = 0.0
        faults: list[Exception] = []
        while not self._stopped.is_set():
            try:
                worked = await self.claim_once()
                backoff = 0.0
            except HeadgateError as error:
                # The next connection may lead to a database whose clock is behind: new jobs would rank below the marks.
                self._forget_marks()
                backoff = min(_BACKOFF_MOST, max(_BACKOFF_FIRST, backoff * 2))
                log.warning("claim_failed error=%s retry_in=%.2fs", error, backoff)
                # Jittered: after a database restart all instances would come back in step.
                await self._pause(backoff * uniform(0.5, 1.0))  # noqa: S311 - not a secret
                continue
            except Exception as error:
                # A bug, which may concern one demand only: that one waits for its next wake, and the others go first.
                # If they get nothing either, the service fails with it.
                self.claim_errors += 1
                faults.append(error)
                if len(faults) > len(self._demands):
                    raise
                log.exception("claim_failed")
                continue
            if faults and not worked:
                raise faults[0]
            faults.clear()
            if not worked and not self._stopped.is_set():
                self._event.clear()
                if not self._has_work():
                    await self._event.wait()

    async def claim_once(self) -> int:
        """One claim for each demand that has credit and may have work; returns how many jobs were dealt."""
        dealt = 0
        fault: StoreError | None = None
        for demand in tuple(self._demands.values()):
            if not demand.wants_claim or self._stopped.is_set():
                continue
            try:
                dealt += await self._claim_and_look_again(demand)
            except StoreError as error:
                self.claim_errors += 1
                if type(error) is not StoreError:  # away, busy, full, read-only: nobody gets anything
                    raise
                fault = error  # a page of this topic, perhaps: the others first
            except HeadgateError as error:
                # Something about this demand: it must not keep the others from their work. The tick tries it again.
                self.claim_errors += 1
                demand.wake_pending = False
                log.warning("claim_refused tenant=%d topics=%s error=%s", demand.tenant_no, demand.topic_nos, error)
        if fault is not None and not dealt:
            raise fault
        return dealt

    async def _claim_and_look_again(self, demand: Demand) -> int:
        """Claim from the marks on; from the head only if a tick has seen jobs where that finds none."""
        dealt = await self._claim_for(demand)
        missed, demand.missed = demand.missed, False
        if dealt or not missed or not demand.credit or demand.claiming:
            return dealt
        demand.wake_pending = demand.from_head = True
        return await self._claim_for(demand)

    def stop(self) -> None:
        """Claim no more. A claim in flight is dealt or handed back before `run` returns."""
        self._stopped.set()
        self._event.set()
        self._news.set()
        self._sooner.set()
        self._keys_due.set()
        self._limit_timers.stop()

    async def claim_with(self, topic_no: int, claim: Claim) -> None:
        """Claim for a demand of this topic that waits for work, by the call that is about to bring some.

        `claim` submits as well: a job whose worker waits costs one call and one commit instead of two. Without such a
        demand it is not called. An error is the caller's affair; the demand is looked at again.
        """
        if not self._wakes or self._stopped.is_set():
            return
        for demand in self._by_topic.get(topic_no, ()):
            # Without a snapshot seen it would look from the head, and go on so: it tells none (submit_running_v1).
            if demand.waits and demand.marks.seen is not None and not self.is_paused(demand.tenant_no, topic_no):
                try:
                    await self._claim_for(demand, claim)
                finally:
                    if demand.wake_pending:  # it took all it could and there may be more, or something came meanwhile
                        self.wake(topic_no)
                return

    async def _claim_for(self, demand: Demand, claim: Claim | None = None) -> int:
        topics = demand.topic_nos
        if self.paused:
            topics = tuple(no for no in topics if not self.is_paused(demand.tenant_no, no))
            if not topics:
                demand.wake_pending = False  # a resume wakes it again
                return 0
        runs = demand.reserve(demand.most(self._claim_limit))
        asked = sum(count for _, count in runs)
        if not asked:  # all its sessions have ended, or are full and will say when they have room
            demand.wake_pending, demand.delayed = False, bool(demand.credit)
            return 0
        # Cleared before asking: whatever is committed or said from here on wakes it again.
        hints, sweep = demand.hints, demand.sweep
        from_head = demand.from_head or demand.marks.seen is None
        if len(topics) < len(demand.topic_nos):  # the arrivals of those that are paused will not be reported
            demand.marks.forget(set(demand.topic_nos) - set(topics))
        demand.hints, demand.from_head, demand.sweep = {}, False, False
        demand.wake_pending, demand.claiming = False, True
        got: ClaimedJobs | None = None
        dealt = 0
        now = asyncio.get_running_loop().time
        began = now()
        unused: list[tuple[WorkerSession, int]] = []  # credit of jobs that came too late to be delivered
        try:
            self.claims += 1
            got = await (claim or self._store.claim)(
                tenant_no=demand.tenant_no,
                topic_nos=topics,
                limit=asked,
                lease_ms=demand.lease_ms,
                workers=[session.claims_as for session, _ in runs],
                runs=[count for _, count in runs],
                ranges=self._ranges(demand, topics, from_head=from_head, sweep=sweep),
                hints=list(hints),
                seen=None if from_head else demand.marks.seen,
            )
            if sweep:
                self._pace_sweeps(now() - began)
            else:
                self._claim_seconds += 0.1 * (now() - began - self._claim_seconds)
            if failpoints.armed:
                await failpoints.armed.reach("claim.before_send")
            self.claimed += len(got)
            was_saturated, demand.saturated = demand.saturated, len(got) == asked
            if was_saturated and not demand.saturated:
                for session in demand.members:
                    session.send_receipts()
            if demand.saturated:
                demand.wake_pending = True  # there may be more
                demand.look_for(hints.keys() - set(got.ids) if hints else ())
            demand.marks.learn(
                topics,
                got.topic_nos,
                got.rank_classes,
                got.ranks_at,
                full=demand.saturated,
                from_head=from_head,
                news=got.news,
            )
            demand.weighed(got.payloads)
            if got.waits:
                self._limit_timers.set(got.waits)
            # Only a job with headers can have a deadline.
            late = any(got.headers) or None in got.payloads
            for session, count in runs:
                stop = min(dealt + count, len(got))
                if stop == dealt:
                    break
                delivery = _delivery(demand, got, slice(dealt, stop))
                ends: Sequence[tuple[UUID, int, Outcome]] = ()
                if late:
                    delivery, ends = without_late(delivery)
                if delivery and (session in demand.revoked or not session.deliver(delivery)):
                    self._abandon_unsent(delivery)
                dealt = stop
                if ends:
                    unused.append((session, len(ends)))
                    self._end_late(demand.tenant_no, ends)
            return dealt
        except BaseException as error:
            demand.wake_pending = isinstance(error, HeadgateError | asyncio.CancelledError)
            if not demand.wake_pending:  # a bug: the next wake or tick tries it again, after the others
                error.add_note(f"in a claim for tenant {demand.tenant_no}, topics {demand.topic_nos}")
            demand.from_head, demand.sweep = demand.from_head or from_head, demand.sweep or sweep
            demand.look_for(hints)
            if got is not None and dealt < len(got):
                self._abandon_unsent(_delivery(demand, got, slice(dealt, len(got))))
            raise
        finally:
            demand.claiming = False
            demand.give_back(runs, dealt)
            again = [(session, count) for session, count in runs if demand.revoked.get(session)]
            again += [(session, count) for session, count in unused if session not in demand.revoked]
            demand.revoked.clear()
            for session, count in again:
                self.grant(session, demand.topic_nos, demand.lease_ms, count, demand.unknown)
            if demand.moves:
                demand.moves = False
                self._move(demand)
            elif demand.unused:
                self._drop(demand)

    def _ranges(self, demand: Demand, topics: Sequence[int], *, from_head: bool, sweep: bool) -> KeyRanges:
        if from_head:
            return KeyRanges.whole(topics)
        mark = demand.marks
        # On an ageing topic the bonus of a high priority is part of the rank: new jobs land below any mark.
        # On a topic with lines by key, jobs are let in at the place they had before they waited.
        ageing = [no for no in topics if self._store.is_ageing(no) or self._store.is_keyed(no)]
        strict = [no for no in topics if no not in ageing] if ageing else topics
        ranges = mark.ranges(strict, sweep_us=self._stretch_us(mark) if sweep else 0)
        for topic_no in ageing:
            ranges.add(topic_no, LOWEST, HIGHEST)
        return ranges

    def _stretch_us(self, mark: Watermark) -> int:
        """How far to sweep: a round takes a second or two, unless that has made claims slow."""
        self._swept_us = max(_SWEEP_AT_LEAST_US, min(mark.span_us // 2, self._sweep_us))
        return self._swept_us

    def _pace_sweeps(self, took: float) -> None:
        slow = took - self._claim_seconds > _SWEEP_SLOW_SECONDS
        # Half of what it went, not of what it might have gone: that may be far more than there was to look at.
        wanted = self._swept_us // 2 if slow else self._sweep_us * 2
        self._sweep_us = max(_SWEEP_AT_LEAST_US, min(_SWEEP_MOST_US, wanted))

    def _forget_marks(self) -> None:
        for demand in self._demands.values():
            demand.marks.clear()

    def _has_work(self) -> bool:
        return any(demand.wants_claim for demand in self._demands.values())

    def _drop(self, demand: Demand) -> None:
        self._demands.pop((demand.tenant_no, demand.wanted), None)
        for topic_no in demand.topic_nos:
            demands = self._by_topic.get(topic_no, set())
            demands.discard(demand)
            if not demands:
                self._by_topic.pop(topic_no, None)
        for name in demand.unknown:
            demands = self._by_name.get((demand.tenant_no, name), set())
            demands.discard(demand)
            if not demands:
                self._by_name.pop((demand.tenant_no, name), None)

    # ------------------------------------------------------------------ the tick

    async def run_ticks(self) -> None:
        """One tick a second, sooner when a waiting job falls due sooner; until `stop`."""
        now = asyncio.get_running_loop().time
        while not self._stopped.is_set():
            self._sooner.clear()
            if (wait := max(self._next_tick, self._no_tick_before) - now()) > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._sooner.wait(), wait)
                continue
            # Set before asking: whoever speaks of a due job meanwhile pulls it forward.
            began = now()
            aimed = began < self._full_tick
            if not aimed:
                self._full_tick = began + self._tick_seconds
            self._next_tick = self._full_tick
            try:
                tick = await self.tick_once(sweep=not aimed)
            except InstanceForgotten:  # ends the instance
                raise
            except HeadgateError as error:
                self.tick_error = str(error)
                log.warning("tick_failed error=%s", error)
                continue
            finally:
                # However many fall due one by one, at most half of the time is spent asking.
                self._no_tick_before = now() + max(_TICKS_APART, now() - began)
            if tick.next_due is not None and tick.now is not None:
                # Due and not promoted: somebody holds its row. Asking without a pause would not free it.
                least = _TICKS_APART if tick.promoted or tick.next_due > tick.now else _STUCK_TICKS_APART
                self.due_in(max(least, (tick.next_due - tick.now).total_seconds()))
            if tick.next_resume is not None and tick.now is not None:
                self.due_in(max(_TICKS_APART, (tick.next_resume - tick.now).total_seconds()))

    async def tick_once(self, *, sweep: bool = True) -> Tick:
        """Promote, look for pending topics, read the pause rows: one call; and reap.

        `sweep`: reap, and have busy demands look below their watermark. Once a second, however many ticks due jobs
        bring about.
        """
        wanted: list[int] = []
        if sweep:  # one that is aimed at a due job is about that job
            wanted = [no for no, demands in self._by_topic.items() if any(demand.credit for demand in demands)]
        turns = self._turns
        now = asyncio.get_running_loop().time
        self._ticked = began = now()
        ranges = self._from_the_marks(wanted) if began < self._whole_at else None
        try:
            tick = await self._store.tick(wanted, ranges)
            if wanted and ranges is None:
                self._pace_whole_looks(now() - began)
            if self._watchdog is not None:
                self._watchdog.answered()
            self._take_tick(tick, turns, sweep=sweep, whole=ranges is None)
            # Only now: a tick that waited for a database that was away has closed the gate. And after the rest,
            # which must not wait for it.
            if sweep and _may_have_lapsed(tick) and (self._watchdog is None or self._watchdog.is_open):
                tick.reaped = await self._store.reap()
        except HeadgateError:
            if self._watchdog is not None:
                self._watchdog.lost()
            raise
        self.ticks += 1
        self.tick_error = ""
        if tick.reaped:  # what they are now, pending or waiting, is for the next one
            self.tick_soon()
        return tick

    def _take_tick(self, tick: Tick, turns: int, *, sweep: bool, whole: bool) -> None:
        """Act on what a tick has found, except for what has lapsed; `whole`: it looked below the marks, too."""
        if tick.now is not None:
            self._ahead = tick.now.timestamp() - asyncio.get_running_loop().time()
        if tick.stepped_back is not None:
            log.warning("clock_stepped_back seconds=%.3f whose=database", tick.stepped_back.total_seconds())
            self._forget_marks()  # new jobs rank below them
            self.wake_all()
        self.others = tick.others
        if turns == self._turns:
            self.flip(tick.paused)
            self.set_quiet(tick.quiet)
        else:  # it may have read what was before: the next one, which comes at once, knows
            self.tick_soon()
        for tenant_no, topic_no, job_id in tick.promoted:
            del tenant_no
            self.wake(topic_no, job_id)
        # Something may lie below the watermark of which nobody told. A busy demand sweeps for it, whether or not it has
        # credit at this moment; an idle one may miss something, and looks from the head if it finds nothing else.
        for demand in self._demands.values():
            demand.sweep = demand.sweep or (sweep and demand.busy)
        for topic_no in tick.pending:
            for demand in self._by_topic.get(topic_no, ()):
                demand.missed = demand.missed or (whole and not demand.busy)
                demand.wake_pending = True
        if tick.room and tick.now is not None:
            at_tick = tick.now
            self._limit_timers.set((topic_no, (at - at_tick).total_seconds()) for topic_no, at in tick.room)
        for tenant_no, job_id, epoch in tick.cancels:
            self.tell_cancel(tenant_no, job_id, epoch)
        if tick.pending or tick.promoted:
            self._event.set()

    def _pace_whole_looks(self, took: float) -> None:
        far = any(demand.marks.span_us > _WHOLE_ALWAYS_US for demand in self._demands.values())
        if far and took > _WHOLE_SLOW_SECONDS:
            self._whole_at = asyncio.get_running_loop().time() + min(_WHOLE_MOST_SECONDS, took / _WHOLE_SHARE)

    def _from_the_marks(self, topic_nos: Iterable[int]) -> KeyRanges:
        """Where a tick looks when whole topics are too much: from the marks on of every demand that wants a topic."""
        ranges = KeyRanges()
        for topic_no in topic_nos:
            if self._store.is_ageing(topic_no) or self._store.is_keyed(topic_no):
                ranges.add(topic_no, LOWEST, HIGHEST)
            else:
                for demand in self._by_topic.get(topic_no, ()):
                    ranges.extend(demand.marks.ranges([topic_no]))
        return ranges

    # ------------------------------------------------------------------ limits

    def _limit_opened(self, topic_no: int, timed: bool) -> None:  # noqa: FBT001 - a callback's place
        self.wake(topic_no)
        if timed and self._store.is_keyed(topic_no):
            self._keys_due.set()

    def limits_changed(self, topic_no: int) -> None:
        """A topic's limits are others now: what waited may start."""
        self.submitted([topic_no])
        self._keys_due.set()

    async def run_limits(self) -> None:
        """Let in jobs whose key has its next token, when it has it; until `stop`. The tick is the net under it."""
        while not self._stopped.is_set():
            await self._keys_due.wait()
            self._keys_due.clear()
            if self._stopped.is_set():
                return
            try:
                waits = await self._store.admit_due()
            except HeadgateError as error:
                log.debug("admit_due_failed error=%s", error)
            else:
                now = {topic_no for topic_no, seconds in waits if seconds <= 0}
                if now:
                    self.submitted(now)
                    self._keys_due.set()  # there may be more than one call lets in
                self._limit_timers.set(wait for wait in waits if wait[1] > 0)
            await self._pause(_TICKS_APART)

    async def run_announcements(self, *, apart: float = 0.02) -> None:
        """Tell other instances of topics with new jobs: coalesced, and only while there are others."""
        while not self._stopped.is_set():
            await self._news.wait()
            self._news.clear()
            topics, self._unannounced = self._unannounced, set()
            if topics and self.others:
                try:
                    await self._store.notify(sorted(topics))
                except HeadgateError as error:  # a hint only: their tick finds the jobs
                    log.debug("notify_failed error=%s", error)
                await self._pause(apart)

    async def _pause(self, seconds: float) -> None:
        if seconds <= 0:
            return
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return


def _may_have_lapsed(tick: Tick) -> bool:
    """Whether some attempt began so long ago that its lease can be over: without one, a tick is a single call."""
    if tick.oldest_running is None or tick.now is None:
        return False
    # One that began in the future: the clock was set back.
    return abs(tick.now - tick.oldest_running) >= LEASE_MIN


def _delivery(demand: Demand, got: ClaimedJobs, part: slice) -> Delivery:
    return Delivery(
        tenant_no=demand.tenant_no,
        lease_ms=demand.lease_ms,
        ids=got.ids[part],
        topic_nos=got.topic_nos[part],
        epochs=got.epochs[part],
        attempts=got.attempts[part],
        max_attempts=got.max_attempts[part],
        priorities=got.priorities[part],
        created_us=[unix_us(at) for at in got.created_ats[part]],
        lease_until_us=unix_us(got.lease_untils[part][0]),
        headers=got.headers[part],
        payloads=got.payloads[part],
        wanted=demand.wanted,
    )
