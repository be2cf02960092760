"""Workers that disconnected without stopping: for people who look at the list of workers and miss one.

A worker that stops asks for no more jobs and closes its stream: it is not kept here. One whose connection is lost, that
was silent for too long, or whose session was ended for another reason is kept until it connects again, for an hour at
most. Nothing depends on this list, and it ends with the instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_ends import ClosedByWorker, Superseded
from headgate.domain.errors import ShuttingDown

KEPT: Final = 100
"""Workers in the list. With more, those that left first are forgotten."""
KEPT_SECONDS: Final = 3600.0
LEASES_OVER: Final = "lease_expired"
"""The reason of a pull worker: it has no connection that could end, only leases that were not renewed."""
_EXPECTED: Final = (ClosedByWorker, Superseded, ShuttingDown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A worker that disconnected."""

    tenant_no: int
    worker_id: str
    incarnation: int
    pull: bool
    at: float
    reason: str  # the code of the error that ended its session
    holding: int
    topics: tuple[str, ...]


class Departures:
    """The last workers that were lost, by tenant and worker id."""

    def __init__(self) -> None:
        self._gone: dict[tuple[int, str], Departure] = {}

    def __iter__(self) -> Iterator[Departure]:
        return iter(tuple(self._gone.values()))

    def add(self, session: WorkerSession, *, reason: str, holding: int, pull: bool = False) -> None:
        """A worker is lost."""
        now = session.now()
        key = (session.tenant_no, session.worker_id)
        self._gone.pop(key, None)
        self._gone[key] = Departure(
            tenant_no=session.tenant_no,
            worker_id=session.worker_id,
            incarnation=session.incarnation,
            pull=pull,
            at=now,
            reason=reason,
            holding=holding,
            topics=tuple(session.topics),
        )
        for oldest in list(self._gone)[: max(0, len(self._gone) - KEPT)]:
            del self._gone[oldest]

    def ended(self, session: WorkerSession) -> None:
        """A session is over: its worker is lost, unless it stopped, or is back already."""
        if session.ended is None or isinstance(session.ended, _EXPECTED):
            return
        self.add(session, reason=session.ended.code, holding=len(session.held))

    def came_back(self, session: WorkerSession) -> None:
        """A worker of this id is here."""
        self._gone.pop((session.tenant_no, session.worker_id), None)

    def lately(self, now: float) -> list[Departure]:
        """Those of the last hour, newest first."""
        self._gone = {key: one for key, one in self._gone.items() if now - one.at < KEPT_SECONDS}
        return list(reversed(self._gone.values()))
