"""The gate: what is paused, and which workers are quiet or asked to stop, as this instance knows it.

The control rows decide: each claim checks them in the database, and each tick reads them. The gate saves the
claims that would find nothing, and lets a verb that was served here take effect at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from uuid import UUID

from headgate.dispatch.delivery import ControlFrame
from headgate.dispatch.demands import Demands
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.tick_times import TickTimes
from headgate.domain.workers import WorkerStop

log = logging.getLogger("headgate.sessions")


class Gate:
    """Open for everything that is not paused."""

    def __init__(self, sessions: WorkerSessions, demands: Demands, times: TickTimes) -> None:
        self._sessions, self._demands, self._times = sessions, demands, times
        self.paused: frozenset[tuple[int, int]] = frozenset()
        self.changes = 0  # by verbs that were served here: a tick that was under way meanwhile knows less

    def is_paused(self, tenant_no: int, topic_no: int) -> bool:
        """A set look-up. The claim's own check decides."""
        paused = self.paused
        return bool(paused) and not paused.isdisjoint({(0, 0), (tenant_no, 0), (tenant_no, topic_no)})

    def set_paused(self, paused: Iterable[tuple[int, int]]) -> None:
        """Follow the control rows; what was resumed is looked at again."""
        before, self.paused = self.paused, frozenset(paused)
        if before - self.paused:
            self._demands.wake_all()

    def set_quiet(self, quiet: Iterable[tuple[int, str]]) -> None:
        """These workers get no more jobs; a worker that is not among them any more gets some again."""
        before, self._sessions.quiet_workers = self._sessions.quiet_workers, frozenset(quiet)
        changed = before ^ self._sessions.quiet_workers
        if not changed:
            return
        self.changes += 1
        for session in self._sessions.with_calls():
            # One that was asked to stop gets no more jobs, whether or not its name is quiet.
            if session.stop is None and (worker := (session.tenant_no, session.worker_id)) in changed:
                quiets = worker in self._sessions.quiet_workers
                (self._demands.quiet if quiets else self._demands.resume_worker)(session)

    def set_stops(self, stops: Mapping[tuple[int, str], WorkerStop]) -> None:
        """These workers were asked to stop. At every tick: some may not have been decided on."""
        if stops != self._sessions.stops:
            self.changes += 1
            self._sessions.stops = stops
        for tenant_no, worker_id in stops:
            session = self._sessions.find(tenant_no, worker_id)
            if session is not None:
                self.stop_if_asked(session)

    def stop_if_asked(self, session: WorkerSession) -> None:
        """Ask a worker to stop, once per session, if its process was connected when the stop was asked.

        By the latest time at which it can have connected: a process that took the id of one that was stopped must run.
        """
        stop = self._sessions.stops.get((session.tenant_no, session.worker_id))
        if stop is None or session.stop is not None or not session.takes_stop or session.ended is not None:
            return
        latest = self._times.latest(session.opened_at - session.connected_before)
        if latest is None:
            self._times.soon()  # the clock of the database is not known yet: the next tick decides
        elif latest < stop.since:
            session.stop = stop
            self._demands.quiet(session)  # also for a worker that does not know the frame
            session.send_control(ControlFrame(stop=stop))
            log.info(
                "worker_stop_sent worker=%s tenant=%s by=%s reason=%s",
                *(session.worker_id, session.identity.tenant, stop.who, stop.reason),
            )

    def pause_changed(self, target: tuple[int, int], *, paused: bool) -> None:
        """A verb that was served here has committed: follow it at once, and not only at the next tick."""
        self.changes += 1
        self.set_paused(self.paused | {target} if paused else self.paused - {target})
        if not paused:
            self._demands.wake_all()
        self._times.soon()  # for what else the rows say, and when a pause ends by itself

    def cancel_requested(self, tenant_no: int, job_id: UUID, epoch: int) -> None:
        """If this attempt runs here, its worker is asked to stop it."""
        holder = self._sessions.holder(tenant_no, job_id, epoch)
        if holder is not None:
            holder.send_control(ControlFrame(cancel=[(job_id, epoch)]))
