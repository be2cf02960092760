"""Keeping leases: beats land in memory, and rows with less than half their time left are renewed in bulk.

A job shorter than half its lease costs no renewal at all. A row that another transaction has locked is skipped: no one
waits for it, it counts as neither renewed nor lost, and the next pass asks again. If it stays locked until its lease is
over, the watchdog may take it as soon as it is free; its epoch then decides whose outcome counts.

Statements are shared among tenants and sessions, the leases that expire soonest first (`shares`): one tenant's number
of leases does not delay another's. Nor those that fall due meanwhile: after ten statements it looks again who is due.

The leases of a worker that has missed its beat are not renewed until it sends something again: what a dead one held
expires at most a lease and a half after its last frame. A session that was silent for a whole lease is ended; its
leases then expire, unless its worker comes back and declares them. `lost_workers` ends those of a worker whose
connection was lost sooner.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import islice
from typing import TypeAlias
from uuid import UUID

from headgate.dispatch.delivery import ControlFrame
from headgate.dispatch.lease_calls import LeaseCalls
from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.ports import LeaseStore
from headgate.dispatch.session import LONG_LIST, WorkerSession
from headgate.dispatch.session_ends import SessionSilent
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.shares import Due, in_shares
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.errors import HeadgateError, InvalidSetting, StoreError

log = logging.getLogger("headgate.dispatch")
ROWS_AT_ONCE, STATEMENTS_A_PASS = 2_000, 10
_Parts: TypeAlias = dict[tuple[int, int], tuple[list[UUID], list[int]]]
SHORT_LEASE_MS = 4_000
"""Of a shorter one, half is soon over: it is renewed also when it is due before the next pass, not at or after it."""


def beat_seconds(lease_ms: int) -> int:
    """How often workers are asked to beat: three times a lease, but not more often than every second."""
    return max(1, lease_ms // 3000)


def check_lease(lease: timedelta) -> None:
    """Raises InvalidSetting if a lease is too short for its beats."""
    seconds, apart = lease.total_seconds(), beat_seconds(lease // timedelta(milliseconds=1))
    if seconds < 2 * apart:
        raise InvalidSetting(
            "--lease",
            f"{seconds:g} s is too short: workers beat every {apart} s, and a lease must outlast two beats",
            hint=f"use {2 * apart} or more; with {3 * apart} it outlasts a lost beat",
        )


class LeaseRenewer:
    """Renews for all sessions of an instance."""

    def __init__(
        self,
        store: LeaseStore,
        sessions: WorkerSessions,
        *,
        now: Callable[[], float],
        every: float = 0.5,
        watchdog: WatchdogGate | None = None,
    ) -> None:
        self._store, self._sessions, self._now, self._every, self._watchdog = store, sessions, now, every, watchdog
        self._stopped = asyncio.Event()
        self.calls = LeaseCalls(store)
        self.behind = False  # the last pass left some for the next one, which comes at once
        self._left_over = 0  # how many that were due when the database was last away have not been tried since
        self.renewed = self.lost = self.skipped = self.errors = 0

    async def run(self) -> None:
        """Renew until `stop`."""
        while not self._stopped.is_set():
            try:
                await self.run_once()
            except HeadgateError as error:
                self.errors += 1
                log.warning("renewal_failed error=%s", error)
                self.behind = False
            if not self.behind:
                await wait_at_most(self._stopped, self._every)

    def stop(self) -> None:
        """End the loop; last of all services, so that no lease expires while its outcome is on the way."""
        self._stopped.set()

    async def run_once(self) -> int:
        """End silent sessions, renew what is due; returns how many leases were pushed forward."""
        try:
            count = await self._renew_due()
        except StoreError:
            if self._watchdog is not None:
                self._watchdog.lost()
            raise
        if self._watchdog is not None and not self._left_over:
            self._watchdog.renewed()
        return count

    async def _renew_due(self) -> int:
        now = self._now()
        next_pass = now + self._every
        most = STATEMENTS_A_PASS * ROWS_AT_ONCE
        # What was due when the database was last away must be tried before the watchdog may reap anything.
        closed_at = -math.inf if self._watchdog is None else self._watchdog.closed_at
        due: list[Due] = []
        self.behind = False
        overdue = 0
        for session in self._sessions:
            if session.ended is not None:
                continue  # what it holds is its worker's to declare again, or expires
            # A plain stream beats only for what it holds.
            may_be_silent = session.return_credit is not None and not session.held
            if now - session.last_seen > session.longest_lease and not may_be_silent:
                silence = f"worker {session.worker_id} sent nothing for {now - session.last_seen:.0f} s"
                session.end(SessionSilent(silence))
                continue
            silent = now - session.last_seen
            tolerated = 1.5 * beat_seconds(session.default_lease_ms)
            # What was never written to a silent worker is not its to lose: it goes back at no cost with its session.
            ours = session.unwritten() if silent > tolerated else frozenset()
            found = [
                Due(renew_at + lease_ms / 2000, session, job_id, epoch, lease_ms)
                for job_id, (epoch, lease_ms, renew_at, _) in session.held.items()
                if renew_at <= (now if lease_ms >= SHORT_LEASE_MS else next_pass)
                and (silent <= max(tolerated, lease_ms / 2000) or job_id in ours)
            ]
            overdue += sum(_due_at(one) <= closed_at for one in found)
            if len(found) > most:
                self.behind = True
                found = heapq.nsmallest(most, found, key=lambda one: one.expires)
            due += found
            if len(session.held) > LONG_LIST:
                await asyncio.sleep(0)  # others have work on this loop
        count = 0
        self.behind = self.behind or len(due) > most
        self._left_over = overdue
        for batch in islice(in_shares(due, ROWS_AT_ONCE), STATEMENTS_A_PASS):
            count += await self._renew(batch, now)
            self._left_over -= sum(_due_at(one) <= closed_at for one in batch)
        self.behind = self.behind and count > 0  # what is locked will not be free any sooner for asking without a pause
        return count

    async def _renew(self, due: Sequence[Due], now: float) -> int:
        parts: _Parts = {}
        declared: _Parts = {}  # locked when their worker declared them: their owner is yet to be written
        for _, session, job_id, epoch, lease_ms in due:
            into = declared if session.locked and job_id in session.locked else parts
            ids, epochs = into.setdefault((session.tenant_no, lease_ms), ([], []))
            ids.append(job_id)
            epochs.append(epoch)
        answers = dict(await self._store.renew(parts)) if parts else {}
        if declared:
            answers |= await self._store.renew(declared, declared=True)
        renewed_at = self._now()
        for session in {one.session for one in due}:
            session.renewed_at = renewed_at  # also of one that has ended meanwhile: see lost_workers
        control: dict[WorkerSession, ControlFrame] = {}
        for _, session, job_id, epoch, lease_ms in due:
            answer = answers.get((session.tenant_no, job_id, epoch))
            if answer is not None and answer.lost:
                self.lost += 1
                # Its outcome may have been settled while we asked; then the session does not hold it any more.
                if session.held.get(job_id, (None,))[0] == epoch:
                    session.settled((job_id,))
                    _frame_for(control, session).lost = [*_frame_for(control, session).lost, (job_id, epoch)]
                    if session.return_credit is not None:  # its outcome was reported to another instance, most likely
                        session.return_credit(1)
                continue
            if answer is not None and answer.skipped:
                # Still due, but behind those that were not tried yet.
                session.renew_later(job_id, epoch, lease_ms, now)
                continue
            if session.locked:
                session.locked.discard(job_id)
            # Unless it was delivered again, or given a longer lease, while we asked.
            session.renew_later(job_id, epoch, lease_ms, now + lease_ms / 2000)
            if answer is not None and answer.cancel:
                _frame_for(control, session).cancel = [*_frame_for(control, session).cancel, (job_id, epoch)]
        for session, message in control.items():
            session.send_control(message)
        skipped = sum(answer.skipped for answer in answers.values())
        renewed = len(due) - skipped - sum(answer.lost for answer in answers.values())
        self.renewed += renewed
        self.skipped += skipped
        return renewed

    async def declare(
        self, session: WorkerSession, ids: Sequence[UUID], epochs: Sequence[int], lease_ms: int
    ) -> list[tuple[UUID, int]]:
        """A worker is back and says what it still holds: take it over here; returns what is no longer its own.

        What is locked at this moment is taken over as well: it is due for renewal at once, as declared. A job of a
        topic that its token does not permit is not its own. Raises Overloaded.
        """
        now = self._now()
        topics = session.identity.topics
        answers = await self.calls.renew(session.tenant_no, lease_ms, ids, epochs, topics=topics, declared=True)
        lost: dict[tuple[UUID, int], None] = {}
        for job_id, epoch in zip(ids, epochs, strict=True):
            answer = answers.get((session.tenant_no, job_id, epoch))
            if answer is not None and answer.lost:
                lost[job_id, epoch] = None
            else:
                if skipped := answer is not None and answer.skipped:
                    session.locked.add(job_id)
                session.hold(job_id, epoch, lease_ms, now if skipped else now + lease_ms / 2000)
        session.excuse_once(len(lost))
        return list(lost)


def _due_at(one: Due) -> float:
    """From when on it was to be renewed; a little earlier, for the rounding."""
    return one.expires - one.lease_ms / 2000 - 0.001


def _frame_for(control: dict[WorkerSession, ControlFrame], session: WorkerSession) -> ControlFrame:
    return control.setdefault(session, ControlFrame())
