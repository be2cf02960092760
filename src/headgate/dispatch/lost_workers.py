"""Lost workers: when a connection was lost and the worker has not come back within the grace, its leases end (ADR 34).

A worker that only lost its connection reconnects, to any instance, and declares what it runs: it keeps all of it. A
worker that was killed does not, and its jobs would wait for the rest of their leases. So what a lost session held is
remembered here. When its worker has not opened a session here within the grace, the leases end, except for jobs that
were declared to another instance or renewed by anyone since (expire_lost_v1). The watchdog then ends the attempts.

A worker declares many jobs in several statements, and a job that is locked at that moment later. So as soon as one of
its jobs is found on another instance, the others get another grace. A job that was locked is ended only when it was
free for some seconds, in which a worker that is back would have taken it.

- Only a lost connection counts: the peer closed it, or did not answer the pings of gRPC; or another process connected
  under the same worker id. A session that was ended for its silence has an open connection, and its worker may have
  asked for a long lease because it cannot send anything meanwhile.
- Only sessions of `Work` count. Plain streams and unary calls keep their leases by unary heartbeats.
- Only time counts in which this process ran and the database answered: otherwise no worker could have come back.
- Nothing of this is stored. If the instance ends within the grace, the leases end as if they had not been renewed.
- Without lost workers this costs nothing: the service waits for an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from headgate.dispatch.lease_calls import ROWS_AT_ONCE, LeaseCalls
from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_ends import ConnectionLost, Superseded
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.dispatching import LostLeases
from headgate.domain.errors import HeadgateError, InvalidSetting, Overloaded
from headgate.domain.limits import RECONNECT_GRACE_DEFAULT

log = logging.getLogger("headgate.dispatch")
LOOK_SECONDS: Final = 0.5
LOCKED_SECONDS: Final = 60.0
"""How long after the grace locked rows are tried again. Then their leases end by themselves."""
FREE_SECONDS: Final = 2.0
"""A row that was locked must have been free for this long: time for some renewals, which come twice a second."""
SLACK_MS: Final = 100
"""By so much the time since a loss is taken for shorter, for clocks that run at different speeds."""


def reconnect_grace_of(asked: timedelta | None, *, lease: timedelta) -> timedelta | None:
    """The grace to use: as asked for, else the default; None if leases of this length end sooner.

    Raises InvalidSetting if it is asked for and not shorter than the lease: it would never come to anything.
    """
    if asked is None:
        return RECONNECT_GRACE_DEFAULT if lease > RECONNECT_GRACE_DEFAULT else None
    if asked >= lease:
        raise InvalidSetting(
            "--reconnect-grace",
            f"{asked.total_seconds():g} s is not shorter than the lease of {lease.total_seconds():g} s",
            hint="use less, or a longer --lease",
        )
    return asked


@dataclass(slots=True, eq=False)
class _Lost:
    """What the session of a lost worker held, and how long the worker has been waited for."""

    session: WorkerSession
    held: list[tuple[UUID, int]]
    at: float
    looked_at: float
    due: float  # end its leases when so long was waited
    waited: float = 0.0
    was_locked: bool = False
    expired: int = 0


class LostWorkers:
    """Ends the leases of workers that lost their connection and do not come back."""

    def __init__(
        self,
        calls: LeaseCalls,
        sessions: WorkerSessions,
        *,
        grace: float | None,
        now: Callable[[], float],
        watchdog: WatchdogGate | None = None,
        on_expired: Callable[[], None] = lambda: None,
    ) -> None:
        """`grace`: in seconds; None: leases end by themselves only. `on_expired`: there is something to reap."""
        self._calls, self._sessions, self._grace, self._now = calls, sessions, grace, now
        self._watchdog, self._on_expired = watchdog, on_expired
        self._lost: dict[tuple[int, str], _Lost] = {}  # by tenant and worker, as on the rows of its jobs
        self._added, self._stopped = asyncio.Event(), asyncio.Event()
        self.expired = 0

    def __len__(self) -> int:
        return len(self._lost)

    def add(self, session: WorkerSession) -> None:
        """A session has ended and is not registered any more: wait for its worker, if it held jobs."""
        is_lost = isinstance(session.ended, ConnectionLost | Superseded)
        if self._grace is None or not is_lost or session.return_credit is not None:
            return
        held = dict(session.undecided())
        newest = self._newest(session)
        if newest is not None and newest.greeted:  # it was back before its old connection was known to be lost
            held = _undeclared(held, newest)
        elif (before := self._lost.get(_key(session))) is not None:  # it was lost again in its hello
            held = dict(before.held) | held
        if not held:
            return
        now = self._now()
        self._lost[_key(session)] = _Lost(session, list(held.items()), at=now, looked_at=now, due=self._grace)
        self._added.set()

    def came_back(self, session: WorkerSession) -> None:
        """A worker has connected, and what it declared is renewed: it is not lost."""
        session.greeted = True
        if self._lost and (lost := self._lost.get(_key(session))) is not None:
            lost.held = list(_undeclared(dict(lost.held), session).items())
            if not lost.held:
                del self._lost[_key(session)]

    async def run(self) -> None:
        """Look every half second while some are lost, until `stop`."""
        while not self._stopped.is_set():
            if not self._lost:
                self._added.clear()
                await self._added.wait()
                continue
            await wait_at_most(self._stopped, LOOK_SECONDS)
            try:
                await self.run_once()
            except HeadgateError as error:  # asked again at the next look
                log.warning("expire_lost_failed error=%s", error)

    def stop(self) -> None:
        """Stop waiting for lost workers: this instance ends, and workers connect to others."""
        self._lost.clear()
        self._stopped.set()
        self._added.set()

    async def run_once(self) -> int:
        """End the leases of those whose grace is over; returns how many."""
        before = self.expired
        try:
            for key, lost in list(self._lost.items()):
                if self._waited(lost) >= lost.due and self._is_lost(key, lost):
                    try:
                        await self._expire(key, lost)
                    except HeadgateError as error:
                        if self._lost.get(key) is lost:  # the last one at the next look
                            self._lost[key] = self._lost.pop(key)
                        if not isinstance(error, Overloaded):
                            raise
                        log.warning("expire_lost_failed worker=%s error=%s", lost.session.worker_id, error)
        finally:
            if self.expired > before:
                self._on_expired()
        return self.expired - before

    def _waited(self, lost: _Lost) -> float:
        """How long its worker could have come back, and has not."""
        now, before = self._now(), lost.looked_at
        lost.looked_at = now
        if self._is_connected(lost.session) or (self._watchdog is not None and self._watchdog.closed_at >= before):
            lost.waited = 0.0
        else:
            # Not a longer gap: this process, or its machine, stalled, and workers could not connect.
            lost.waited += min(now - before, 2 * LOOK_SECONDS)
        return lost.waited

    async def _expire(self, key: tuple[int, str], lost: _Lost) -> None:
        if lost.was_locked or len(lost.held) > ROWS_AT_ONCE:
            seen = await self._ask(key, lost, end=False)
            if self._moved(lost, seen):
                return
            if lost.was_locked:
                lost.was_locked = bool(seen.locked)
                self._try_later(key, lost)
                return
        ended = await self._ask(key, lost, end=True)
        self.expired += ended.lost
        lost.expired += ended.lost
        if self._moved(lost, ended) or not self._is_lost(key, lost):
            return
        lost.held = [(job_id, epoch) for job_id, epoch in lost.held if job_id in ended.locked]
        lost.was_locked = True
        self._try_later(key, lost)

    async def _ask(self, key: tuple[int, str], lost: _Lost, *, end: bool) -> LostLeases:
        session = lost.session

        def lost_ms() -> int:
            since = max(lost.at, session.renewed_at)  # a renewal under way when the session ended is no return
            return max(0, int(1000 * (self._now() - since)) - SLACK_MS)

        return await self._calls.expire_lost(
            session.tenant_no, lost.held, lost_ms=lost_ms, is_lost=lambda: self._is_lost(key, lost), end=end
        )

    def _moved(self, lost: _Lost, found: LostLeases) -> bool:
        """Whether its worker is on another instance: then wait once more for what it has not declared there so far."""
        if found.moved:
            lost.held = [(job_id, epoch) for job_id, epoch in lost.held if job_id not in found.moved]
            lost.due = lost.waited + (self._grace or 0.0)
        return bool(found.moved)

    def _try_later(self, key: tuple[int, str], lost: _Lost) -> None:
        """Wait for the rows that are locked, if any are left, for a limited time."""
        lost.due = lost.waited + FREE_SECONDS
        if self._is_lost(key, lost) and (not lost.held or lost.waited > (self._grace or 0.0) + LOCKED_SECONDS):
            del self._lost[key]
            if lost.expired:
                log.warning(
                    'worker_lost worker=%s tenant=%s jobs=%d effect="their attempts end as failed"',
                    lost.session.worker_id,
                    lost.session.identity.tenant,
                    lost.expired,
                )

    def _is_lost(self, key: tuple[int, str], lost: _Lost) -> bool:
        return self._lost.get(key) is lost and not self._is_connected(lost.session)

    def _is_connected(self, session: WorkerSession) -> bool:
        """Whether the same process has a session here, or is about to get one.

        Without an incarnation it may be another process: one that is greeted has declared what it runs.
        """
        newest = self._newest(session)
        return newest is not None and (not newest.greeted or newest.incarnation != 0)

    def _newest(self, session: WorkerSession) -> WorkerSession | None:
        newest = self._sessions.find(session.tenant_no, session.worker_id)
        is_same = newest is not None and newest.ended is None and newest.claims_as == session.claims_as
        return newest if is_same else None


def _key(session: WorkerSession) -> tuple[int, str]:
    return session.tenant_no, session.claims_as


def _undeclared(held: dict[UUID, int], session: WorkerSession) -> dict[UUID, int]:
    """What its worker may have lost. With an incarnation nothing: what it did not declare has gone back already."""
    if session.incarnation:
        return {}
    return {job_id: epoch for job_id, epoch in held.items() if not session.holds(job_id, epoch)}
