"""Lost workers: when a connection was lost and the worker has not come back within the grace, its leases end (ADR 34).

A worker that only lost its connection reconnects, to any instance, and declares what it runs: it keeps all of it. A
worker that was killed does not, and its jobs would wait for the rest of their leases. So what a lost session held is
remembered here. When its worker has not opened a session here within the grace, the leases end, except for jobs that
were declared to another instance or renewed by anyone since (expire_lost_v1). The watchdog then ends the attempts.

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

from headgate.dispatch.lease_calls import LeaseCalls
from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.session import ConnectionLost, Superseded, WorkerSession
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.errors import HeadgateError, InvalidSetting
from headgate.domain.limits import RECONNECT_GRACE_DEFAULT

log = logging.getLogger("headgate.dispatch")
LOOK_SECONDS: Final = 0.5
LOCKED_SECONDS: Final = 60.0
"""How long after the grace locked rows are tried again. Then their leases end by themselves."""
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
    waited: float = 0.0
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
        if self._is_connected(session):  # it has connected again before its old connection was known to be lost
            return
        if not (held := session.undecided()):
            return
        now = self._now()
        self._lost[_key(session)] = _Lost(session, held, at=now, looked_at=now)
        self._added.set()

    def came_back(self, session: WorkerSession) -> None:
        """A worker has connected, and what it declared is renewed: it is not lost."""
        if self._lost:
            self._lost.pop(_key(session), None)

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
        """Wait for nobody any more: this instance ends, and workers connect to others."""
        self._lost.clear()
        self._stopped.set()
        self._added.set()

    async def run_once(self) -> int:
        """End the leases of those whose grace is over; returns how many."""
        expired = 0
        for key, lost in list(self._lost.items()):
            if self._grace is not None and self._waited(lost) >= self._grace and self._is_lost(key, lost):
                expired += await self._expire(key, lost)
        if expired:
            self._on_expired()
        return expired

    def _waited(self, lost: _Lost) -> float:
        """How long its worker could have come back, and has not."""
        now, before = self._now(), lost.looked_at
        lost.looked_at = now
        if self._is_connected(lost.session) or (self._watchdog is not None and self._watchdog.closed_at >= before):
            lost.waited = 0.0
        else:
            # Not a longer gap: this process, or its machine, stood still, and so did everyone who wanted to connect.
            lost.waited += min(now - before, 2 * LOOK_SECONDS)
        return lost.waited

    async def _expire(self, key: tuple[int, str], lost: _Lost) -> int:
        session = lost.session
        since = max(lost.at, session.renewed_at)  # a renewal that was under way when the session ended is no return
        expired, locked = await self._calls.expire_lost(
            session.tenant_no,
            lost.held,
            lost_ms=max(0, int(1000 * (self._now() - since)) - SLACK_MS),
            is_lost=lambda: self._is_lost(key, lost),
        )
        self.expired += expired
        lost.expired += expired
        if self._is_lost(key, lost):
            busy = set(locked)
            lost.held = [(job_id, epoch) for job_id, epoch in lost.held if job_id in busy]
            if not lost.held or lost.waited > (self._grace or 0.0) + LOCKED_SECONDS:
                del self._lost[key]
                if lost.expired:
                    log.warning(
                        'worker_lost worker=%s tenant=%s jobs=%d effect="their attempts end as failed"',
                        session.worker_id,
                        session.identity.tenant,
                        lost.expired,
                    )
        return expired

    def _is_lost(self, key: tuple[int, str], lost: _Lost) -> bool:
        return self._lost.get(key) is lost and not self._is_connected(lost.session)

    def _is_connected(self, session: WorkerSession) -> bool:
        """Whether the same process has a session here, or is about to get one."""
        newest = self._sessions.find(session.tenant_no, session.worker_id)
        return newest is not None and newest.ended is None and newest.claims_as == session.claims_as


def _key(session: WorkerSession) -> tuple[int, str]:
    return session.tenant_no, session.claims_as
