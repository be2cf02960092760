"""The worker sessions of this instance, by worker and tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from headgate.dispatch.delivery import ControlFrame
from headgate.dispatch.departures import Departures
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_ends import Superseded
from headgate.dispatch.writer import LONGEST_HINT_MS
from headgate.domain.errors import HeadgateError, Overloaded, ShuttingDown
from headgate.domain.workers import WorkerStop

HELD_PER_TENANT: Final = 500_000
"""Jobs that the sessions of a tenant may hold on one instance. Beyond it none may declare more (some 140 MB)."""


class WorkerIdTaken(HeadgateError):
    """A worker with this id is connected under another credential. It is left alone."""

    code = "worker_id_taken"


class WorkerSessions:
    """All sessions of this instance."""

    def __init__(self) -> None:
        self._by_worker: dict[tuple[int, str], WorkerSession] = {}
        self._all: set[WorkerSession] = set()
        self._calls: set[WorkerSession] = set()
        self.quiet_workers: frozenset[tuple[int, str]] = frozenset()  # tenant, worker: they get no jobs for now
        self.stops: Mapping[tuple[int, str], WorkerStop] = {}  # by tenant, worker: they were asked to stop
        self.departures = Departures()

    def __iter__(self) -> Iterator[WorkerSession]:
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def open(self, session: WorkerSession) -> None:
        """Register; of two sessions with one worker id the newer wins, and the older ends.

        Raises WorkerIdTaken if the older one is alive and was opened under another credential: its owner must not lose
        its connection, and with it its jobs, to another client that knows its name. Credentials are distinguished by
        their names, so a token can be replaced by another of the same name while its worker is connected.
        """
        key = (session.tenant_no, session.worker_id)
        older = self._by_worker.get(key)
        if older is not None and older.ended is None and older.identity.subject != session.identity.subject:
            raise WorkerIdTaken(
                f"a worker {session.worker_id} is connected with another token; give this one an id of its own, or end "
                "the other first"
            )
        if older is not None:
            older.end(Superseded(f"worker {session.worker_id} has connected again; this older connection ends"))
        session.quiet = key in self.quiet_workers
        self._by_worker[key] = session
        self._all.add(session)
        self.departures.came_back(session)

    def others_of(self, session: WorkerSession) -> int:
        """How many other workers of its tenant have a session here."""
        return sum(
            one.ended is None and one.tenant_no == session.tenant_no and one.worker_id != session.worker_id
            for one in self._all
        )

    def check_capacity(self, tenant_no: int, declared: int) -> None:
        """Raises Overloaded if a tenant's sessions would hold too many jobs here with the declared ones.

        One job can be declared by any number of sessions, and each keeps it in memory.
        """
        if not declared:
            return
        held = sum(len(session.held) + session.declaring for session in self._all if session.tenant_no == tenant_no)
        if held + declared > HELD_PER_TENANT:
            raise Overloaded(
                f"{held} jobs are held by workers of this tenant on this instance, the limit is {HELD_PER_TENANT}",
                retry_after_ms=LONGEST_HINT_MS,
            )

    def close(self, session: WorkerSession) -> None:
        """Forget a session that has ended."""
        self._all.discard(session)
        if self._by_worker.get((session.tenant_no, session.worker_id)) is session:
            del self._by_worker[session.tenant_no, session.worker_id]
            self.departures.ended(session)

    def knows(self, session: WorkerSession) -> bool:
        """Whether it counts: leases are renewed, and jobs claimed, for these only."""
        return session in self._all

    def find(self, tenant_no: int, worker_id: str) -> WorkerSession | None:
        """The session of a worker, if it is connected here."""
        return self._by_worker.get((tenant_no, worker_id))

    def holder(self, tenant_no: int, job_id: UUID, epoch: int) -> WorkerSession | None:
        """The session that holds this very attempt, if it is here."""
        for session in self._all:
            if session.ended is None and session.tenant_no == tenant_no and session.holds(job_id, epoch):
                return session
        return None

    def begin_call(self, session: WorkerSession) -> None:
        """Register a session for the length of a unary call: no presence, but it ends with a drain or its token."""
        session.quiet = (session.tenant_no, session.worker_id) in self.quiet_workers
        self._calls.add(session)

    def end_call(self, session: WorkerSession) -> None:
        """That call is over."""
        self._calls.discard(session)

    def with_calls(self) -> tuple[WorkerSession, ...]:
        """All sessions, also those of unary calls."""
        return (*self._all, *self._calls)

    def drain(self, seconds: int) -> None:
        """Ask all workers to leave; calls that wait for jobs end, there will be none."""
        for session in self:
            session.send_control(ControlFrame(drain_seconds=seconds))
        for session in self._calls:
            session.end(ShuttingDown("this instance is shutting down; ask another one"))

    def send_on(self, number: int, seconds: int) -> int:
        """Ask `number` workers to connect again, those that hold the fewest jobs; returns how many were asked.

        They get no more jobs here, and take along what still runs after `seconds`.
        """
        staying = [session for session in self if not session.sent_on]
        asked = sorted(staying, key=lambda session: len(session.held))[:number]
        for session in asked:
            session.sent_on = True
            session.send_control(ControlFrame(drain_seconds=seconds))
        return len(asked)
