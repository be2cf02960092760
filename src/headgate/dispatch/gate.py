"""The gate: what is paused and which workers are quiet, as this instance knows it.

The control rows decide: each claim checks them in the database, and each tick reads them. The gate saves the
claims that would find nothing, and lets a verb that was served here take effect at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from headgate.dispatch.delivery import ControlFrame
from headgate.dispatch.demands import Demands
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.tick_times import TickTimes


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
            if (worker := (session.tenant_no, session.worker_id)) in changed:
                quiets = worker in self._sessions.quiet_workers
                (self._demands.quiet if quiets else self._demands.resume_worker)(session)

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
