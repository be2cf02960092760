"""The claimer: exactly one per instance. It claims for all sessions and deals what it gets.

It acts when a demand is woken. Without credit, or when nothing is due, it asks nothing. A claim error never ends a
session: it backs off and tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import uniform
from typing import Final
from uuid import UUID

from headgate.dispatch.deadlines import Mismatch, startable
from headgate.dispatch.delivery import Delivery
from headgate.dispatch.demand import Demand
from headgate.dispatch.demands import Demands
from headgate.dispatch.gate import Gate
from headgate.dispatch.limit_timers import LimitTimers
from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.ports import ClaimStore, SubmitRows
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.sweeps import SweepPace
from headgate.domain import failpoints
from headgate.domain.dispatching import Claimed, ClaimRequest
from headgate.domain.errors import HeadgateError, StoreError
from headgate.domain.histogram import ROWS, Histogram
from headgate.domain.jobs import SubmitAnswer
from headgate.domain.keyrange import HIGHEST, LOWEST, KeyRanges
from headgate.domain.outcomes import Outcome
from headgate.domain.tallies import Tallies
from headgate.domain.timestamps import unix_us

log = logging.getLogger("headgate.dispatch")

CLAIM_LIMIT: Final = 500
_BACKOFF_FIRST, _BACKOFF_MOST = 0.05, 2.0


@dataclass(slots=True)
class _SubmitAlong:
    """Rows that a claim submits in its own call, and their answers once they are committed."""

    rows: SubmitRows
    answers: Mapping[int, SubmitAnswer] | None = None


class Claimer:
    """Claims for the demands of one instance."""

    def __init__(
        self,
        store: ClaimStore,
        demands: Demands,
        gate: Gate,
        limit_timers: LimitTimers,
        *,
        abandon_unsent: Callable[[Delivery], None],
        end_late: Callable[[int, Sequence[tuple[UUID, int, Outcome]]], None],
        claim_limit: int = CLAIM_LIMIT,
        tallies: Tallies | None = None,
        trace: Callable[[Claimed, Sequence[int]], None] | None = None,
        mismatch: Mismatch = lambda topic_no, payload: None,
    ) -> None:
        """`trace` makes spans of claimed jobs with headers, given when each was submitted; None: it is off."""
        self._store, self._demands, self._gate, self._limit_timers = store, demands, gate, limit_timers
        self._abandon_unsent = abandon_unsent
        self._end_late = end_late  # (tenant, outcomes) of jobs that were claimed and cannot start
        self._claim_limit = claim_limit
        self._tallies, self._trace, self._mismatch = tallies or Tallies(), trace, mismatch
        self.sizes = Histogram(ROWS)  # of the claims that found jobs
        self._sweeps = SweepPace()
        self._stopped = asyncio.Event()
        self.claims = self.claimed = self.errors = 0

    async def run(self) -> None:
        """Claim until `stop`; returns when no claim is in flight."""
        backoff = 0.0
        faults: list[Exception] = []
        while not self._stopped.is_set():
            try:
                worked = await self.run_once()
                backoff = 0.0
            except HeadgateError as error:
                # The next connection may lead to a database whose clock is behind: new jobs would rank below the marks.
                self._demands.forget_marks()
                backoff = min(_BACKOFF_MOST, max(_BACKOFF_FIRST, backoff * 2))
                log.warning("claim_failed error=%s retry_in=%.2fs", error, backoff)
                # Jittered: after a database restart all instances would come back in step.
                await wait_at_most(self._stopped, backoff * uniform(0.5, 1.0))  # noqa: S311 - not a secret
                continue
            except Exception as error:
                # A bug, which may concern one demand only: that one waits for its next wake, and the others go first.
                # If they get nothing either, the service fails with it.
                self.errors += 1
                faults.append(error)
                if len(faults) > len(self._demands):
                    raise
                log.exception("claim_failed")
                continue
            if faults and not worked:
                raise faults[0]
            faults.clear()
            if not worked and not self._stopped.is_set():
                self._demands.woken.clear()
                if not self._demands.have_work:
                    await self._demands.woken.wait()

    async def run_once(self) -> int:
        """One claim for each demand that has credit and may have work; returns how many jobs were dealt."""
        dealt = 0
        fault: StoreError | None = None
        for demand in self._demands:
            if not demand.wants_claim or self._stopped.is_set():
                continue
            try:
                dealt += await self._claim_and_look_again(demand)
            except StoreError as error:
                self.errors += 1
                if type(error) is not StoreError:  # away, busy, full, read-only: no demand gets anything
                    raise
                fault = error  # a page of this topic, perhaps: the others first
            except HeadgateError as error:
                # Something about this demand: it must not keep the others from their work. The tick tries it again.
                self.errors += 1
                demand.wake_pending = False
                log.warning("claim_refused tenant=%d topics=%s error=%s", demand.tenant_no, demand.topic_nos, error)
        if fault is not None and not dealt:
            raise fault
        return dealt

    def stop(self) -> None:
        """Claim no more. A claim in flight is dealt or abandoned before `run` returns."""
        self._stopped.set()
        self._demands.woken.set()

    async def submit_and_claim(self, rows: SubmitRows) -> Mapping[int, SubmitAnswer] | None:
        """Submit rows of one topic in the call that claims for a demand which waits for them; None: no demand does.

        A job whose worker waits costs one call and one commit instead of two. Raises what the call met; the demand is
        claimed for again.
        """
        if not self._demands.wakes or self._stopped.is_set():
            return None
        topic_no = rows.topic_nos[0]
        for demand in self._demands.by_topic.get(topic_no, ()):
            # Without a snapshot seen it would look from the head, and go on so: submit_running_v1 returns none.
            waits = demand.credit and not demand.wake_pending and not demand.claiming and demand.marks.seen is not None
            if waits and not (self._gate.paused and self._gate.is_paused(demand.tenant_no, topic_no)):
                along = _SubmitAlong(rows)
                try:
                    await self._claim_for(demand, along)
                except HeadgateError as error:
                    if along.answers is None:
                        raise
                    log.warning("claim_failed error=%s", error)  # the rows are committed
                finally:
                    if demand.wake_pending:  # it took all it could and there may be more, or something came meanwhile
                        self._demands.wake(topic_no)
                return along.answers
        return None

    # ------------------------------------------------------------------ one claim

    async def _claim_and_look_again(self, demand: Demand) -> int:
        """Claim from the marks on; from the head only if a tick has seen jobs where that finds none."""
        dealt = await self._claim_for(demand)
        missed, demand.missed = demand.missed, False
        if dealt or not missed or not demand.credit or demand.claiming:
            return dealt
        demand.wake_pending = demand.from_head = True
        return await self._claim_for(demand)

    async def _claim_for(self, demand: Demand, along: _SubmitAlong | None = None) -> int:
        topics = demand.topic_nos
        if self._gate.paused:
            topics = tuple(no for no in topics if not self._gate.is_paused(demand.tenant_no, no))
            if not topics:
                demand.wake_pending = False  # a resume wakes it again
                demand.passed_over()
                return 0
        limited = self._demands.names.consumers
        if limited and not self._demands.places_valid():  # others may have the places of these sessions by now
            topics = tuple(no for no in topics if no not in limited)
            if not topics:
                demand.wake_pending = False  # valid places wake it again
                demand.passed_over()
                return 0
        runs = demand.reserve(demand.most(self._claim_limit))
        asked = sum(count for _, count in runs)
        if not asked:  # all its sessions have ended, or are full and will say when they take jobs again
            demand.wake_pending, demand.delayed = False, bool(demand.credit)
            return 0
        # Cleared before asking: whatever is committed or said from here on wakes it again.
        hints, sweep = demand.hints, demand.sweep
        from_head = demand.from_head or demand.marks.seen is None
        if len(topics) < len(demand.topic_nos):  # the arrivals of those that are paused will not be reported
            demand.marks.forget(set(demand.topic_nos) - set(topics))
        demand.hints, demand.from_head, demand.sweep = {}, False, False
        demand.wake_pending, demand.claiming = False, True
        got: Claimed | None = None
        dealt = 0
        began = asyncio.get_running_loop().time()
        unused: list[tuple[WorkerSession, int]] = []  # credit of jobs that came too late to be delivered
        try:
            self.claims += 1
            request = ClaimRequest(
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
            if along is None:
                got = await self._store.claim(request)
            else:
                along.answers, got = await self._store.submit_and_claim(along.rows, request)
            spent = asyncio.get_running_loop().time() - began
            self._sweeps.claimed(spent, swept=sweep)
            if failpoints.armed:
                await failpoints.armed.reach("claim.before_send")
            self._learn(demand, got, asked=asked, topics=topics, hints=hints, from_head=from_head)
            # Only a job with headers can have a deadline.
            late = any(got.headers) or None in got.payloads
            created_us = [unix_us(at) for at in got.created_ats]
            if created_us:
                self._count(got, created_us, demand.lease_ms, spent)
            if self._trace is not None and late:  # so some job has headers
                self._trace(got, created_us)
            for session, count in runs:
                stop = min(dealt + count, len(got.ids))
                if stop == dealt:
                    break
                delivery = _delivery(demand, got, slice(dealt, stop), created_us)
                ends: Sequence[tuple[UUID, int, Outcome]] = ()
                if late:
                    delivery, ends = startable(delivery, self._mismatch)
                if delivery.ids and (session in demand.revoked or not session.deliver(delivery)):
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
            if got is not None and dealt < len(got.ids):
                created_us = [unix_us(at) for at in got.created_ats]
                self._abandon_unsent(_delivery(demand, got, slice(dealt, len(got.ids)), created_us))
            raise
        finally:
            demand.claiming = False
            demand.give_back(runs, dealt)
            again = [(session, count) for session, count in runs if demand.revoked.get(session)]
            again += [(session, count) for session, count in unused if session not in demand.revoked]
            demand.revoked.clear()
            for session, count in again:
                self._demands.grant(session, demand.topic_nos, demand.lease_ms, count, demand.unknown)
            if demand.moves:
                demand.moves = False
                self._demands.move(demand)
            else:
                self._demands.drop_unused(demand)

    def _learn(
        self,
        demand: Demand,
        got: Claimed,
        *,
        asked: int,
        topics: Sequence[int],
        hints: Mapping[UUID, None],
        from_head: bool,
    ) -> None:
        """Note what a claim says about where the next one need not look, and whether there is more."""
        self.claimed += len(got.ids)
        was_saturated, demand.saturated = demand.saturated, len(got.ids) == asked
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
        if got.payloads:
            demand.expect(sum(map(len, filter(None, got.payloads))) / len(got.payloads))  # None: see deadlines.py
        if got.waits:
            self._limit_timers.set(got.waits)

    def _count(self, got: Claimed, created_us: Sequence[int], lease_ms: int, spent: float) -> None:
        """Count a claim, and what its jobs have waited.

        The lease begins within the call, by the clock of the database, and the jobs are handed over after it. So all of
        the call counts: the wait is at most that much too long, and never too short.
        """
        due_us = created_us
        if any(got.run_ats):
            due_us = [
                created if run_at is None else unix_us(run_at)
                for created, run_at in zip(created_us, got.run_ats, strict=True)
            ]
        claimed_us = unix_us(got.lease_untils[0]) - lease_ms * 1000
        self.sizes.observe(len(due_us))
        self._tallies.claimed(got.topic_nos, due_us, claimed_us + int(spent * 1_000_000))

    def _ranges(self, demand: Demand, topics: Sequence[int], *, from_head: bool, sweep: bool) -> KeyRanges:
        if from_head:
            return KeyRanges.whole(topics)
        mark = demand.marks
        below = [no for no in topics if self._demands.names.may_rank_below(no)]
        strict = [no for no in topics if no not in below] if below else topics
        ranges = mark.ranges(strict, sweep_us=self._sweeps.stretch_us(mark.span_us) if sweep else 0)
        for topic_no in below:
            ranges.add(topic_no, LOWEST, HIGHEST)
        return ranges


def _delivery(demand: Demand, got: Claimed, part: slice, created_us: Sequence[int]) -> Delivery:
    return Delivery(
        tenant_no=demand.tenant_no,
        lease_ms=demand.lease_ms,
        ids=got.ids[part],
        topic_nos=got.topic_nos[part],
        epochs=got.epochs[part],
        attempts=got.attempts[part],
        max_attempts=got.max_attempts[part],
        priorities=got.priorities[part],
        created_us=created_us[part],
        lease_until_us=unix_us(got.lease_untils[part][0]),
        headers=got.headers[part],
        payloads=got.payloads[part],
        wanted=demand.wanted,
    )
