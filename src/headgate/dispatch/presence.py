"""Which workers are connected here: for callers of this instance, and in a bounded summary for those of others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

from headgate.dispatch.departures import Departure
from headgate.dispatch.periodic import Periodic
from headgate.dispatch.pull_workers import PullWorker, PullWorkers
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.sessions import WorkerSessions
from headgate.domain.limits import HANDLED_TOPICS_MAX, REPORTED_WORKERS_MAX
from headgate.domain.timestamps import from_unix_us, unix_us
from headgate.domain.workers import LostWorker, WorkerView

MOST_TOPICS: Final = 20
MOST_LOST: Final = 20
LOOK_SECONDS, WRITE_SECONDS = 1.0, 3.0
_MILLISECOND: Final = timedelta(milliseconds=1)


class SummaryStore(Protocol):
    """Where the summary goes."""

    async def summarise(self, summary: Mapping[str, object]) -> None: ...


class Presence(Periodic):
    """Reads the sessions; writes one row for all of them, and only when something has changed."""

    def __init__(
        self,
        store: SummaryStore,
        sessions: WorkerSessions,
        pulls: PullWorkers,
        *,
        topic_name: Callable[[int], str],
        now: Callable[[], float],
        moment: Callable[[float], datetime | None] = lambda _: None,
        stuck: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        super().__init__("summary_failed error=%s", LOOK_SECONDS, jitter=(1.0, 1.0), level=logging.DEBUG)
        self._store, self._sessions, self._pulls = store, sessions, pulls
        self._topic_name, self._now = topic_name, now
        self._moment = moment  # a time of `now` by the clock of the database
        self._stuck = stuck  # by tenant number: jobs that this instance cannot promote or reap
        self._written: Mapping[str, object] = {"topics": {}, "counts": {}, "stuck": {}, "workers": [], "lost": []}
        self._written_at = -WRITE_SECONDS
        self.instance = ""
        self.writes = 0

    def workers(self, tenant_no: int) -> list[WorkerView]:
        """A tenant's workers on this instance, as they are at this moment: with a session, or by their calls."""
        connected = [
            self._view(session)
            for session in self._sessions
            if session.ended is None and session.tenant_no == tenant_no
        ]
        return connected + [self._pulling(worker) for worker in self._pulls.of_tenant(tenant_no)]

    def lost(self, tenant_no: int) -> list[LostWorker]:
        """A tenant's workers that this instance has lost, newest first."""
        return [self._lost_view(one) for one in self._departed() if one.tenant_no == tenant_no]

    def topics(self, tenant_no: int) -> frozenset[str]:
        """The topics that a tenant's workers on this instance ask for."""
        return frozenset(self._topics_by_tenant().get(tenant_no, ()))

    async def run_once(self) -> bool:
        """Write the summary if it has changed, at most every few seconds; says whether it was written."""
        if self._now() - self._written_at < WRITE_SECONDS:
            return False
        summary = self.summary()
        if summary == self._written:  # an idle instance is silent
            return False
        self._written_at = self._now()
        await self._store.summarise(summary)
        self._written = summary
        self.writes += 1
        return True

    def summary(self) -> dict[str, object]:
        """Numbers of workers by tenant, and the first so many of them by name."""
        alive: list[WorkerSession | PullWorker] = [session for session in self._sessions if session.ended is None]
        alive += self._pulls
        shown = sorted(alive, key=_tenant_and_name)[:REPORTED_WORKERS_MAX]
        counts = Counter(_tenant_and_name(worker)[0] for worker in alive)
        names = {str(no): sorted(found) for no, found in sorted(self._topics_by_tenant().items())}
        return {
            # With more, other instances cannot tell which topics have no worker.
            "topics": names if sum(map(len, names.values())) <= HANDLED_TOPICS_MAX else None,
            "counts": {str(no): count for no, count in sorted(counts.items())},
            "stuck": dict(self._stuck()),
            "workers": [
                {
                    "tenant_no": _tenant_and_name(worker)[0],
                    "worker": view.worker,
                    "incarnation": view.incarnation,
                    "topics": list(view.topics)[:MOST_TOPICS],
                    "holding": view.holding,
                    "credit": view.credit,
                    "quiet": view.quiet,
                    "takes_stop": view.takes_stop,
                    "stop": view.stop
                    and {"by": view.stop.who, "since_us": unix_us(view.stop.since), "reason": view.stop.reason},
                    "standby": list(view.standby)[:MOST_TOPICS],
                    "client": view.client,
                    "pull": view.pull,
                    "connected_us": _us(view.connected_at),
                    "assigned_us": _us(view.assigned_at),
                    # Only while it is silent: written with every beat, no instance with workers would ever be idle.
                    "silent_us": _us(view.seen_at) if view.silent else None,
                    "skew_ms": None if view.skew is None else view.skew // _MILLISECOND,
                }
                for worker in shown
                for view in (self._pulling(worker) if isinstance(worker, PullWorker) else self._view(worker),)
            ],
            "lost": [
                {
                    "tenant_no": one.tenant_no,
                    "worker": one.worker_id,
                    "at_us": _us(self._moment(one.at)),
                    "reason": one.reason,
                    "holding": one.holding,
                    "topics": list(one.topics)[:MOST_TOPICS],
                    "pull": one.pull,
                }
                for one in self._departed()[:MOST_LOST]
            ],
        }

    def _departed(self) -> list[Departure]:
        now = self._now()
        found = self._sessions.departures.lately(now) + self._pulls.departures.lately(now)
        return sorted(found, key=lambda one: one.at, reverse=True)

    def _lost_view(self, gone: Departure) -> LostWorker:
        return LostWorker(
            worker=gone.worker_id,
            instance=self.instance,
            at=self._moment(gone.at),
            reason=gone.reason,
            holding=gone.holding,
            topics=gone.topics,
            pull=gone.pull,
        )

    def _topics_by_tenant(self) -> dict[int, set[str]]:
        """By demand, not by session: a thousand workers of one application want the same."""
        alive = [session for session in self._sessions.with_calls() if session.ended is None]
        alive += [worker.session for worker in self._pulls]
        demands = {demand for session in alive for demand in session.credit}
        wanted = [(demand.tenant_no, demand.topic_nos, demand.unknown) for demand in demands]
        # A quiet session's credit is put aside; it handles its topics again when the quiet time is over.
        wanted += [(session.tenant_no, nos, unknown) for session in alive for nos, _, unknown in session.kept]
        found: dict[int, set[str]] = {}
        for tenant_no, topic_nos, unknown in wanted:
            found.setdefault(tenant_no, set()).update(map(self._topic_name, topic_nos), unknown)
        return found

    def _view(self, session: WorkerSession) -> WorkerView:
        topic_nos = {no for demand in session.credit for no in demand.topic_nos}
        topic_nos |= {no for kept, _, _ in session.kept for no in kept}  # a quiet session's credit is put aside
        unknown = {name for demand in session.credit for name in demand.unknown}
        unknown |= {name for _, _, kept in session.kept for name in kept}
        if session.stop is not None:  # it asks for nothing any more; people still know it by its topics
            unknown |= set(session.topics)
        return WorkerView(
            worker=session.worker_id,
            incarnation=session.incarnation,
            instance=self.instance,
            topics=sorted({self._topic_name(no) for no in topic_nos} | unknown),
            holding=len(session.held),
            credit=sum(session.credit.values()) + sum(session.kept.values()),
            quiet=(session.tenant_no, session.worker_id) in self._sessions.quiet_workers,
            takes_stop=session.takes_stop,
            stop=session.stop,
            standby=session.standby,
            client=session.client,
            connected_at=(opened := self._moment(session.opened_at)),
            seen_at=self._moment(session.last_seen),
            assigned_at=None if session.assigned_at is None else self._moment(session.assigned_at),
            silent=session.is_silent,
            skew=None if opened is None or not session.clock_us else _skew(session.clock_us, opened),
        )

    def _pulling(self, worker: PullWorker) -> WorkerView:
        session = worker.session
        return WorkerView(
            worker=session.worker_id,
            instance=self.instance,
            topics=sorted(session.topics),
            holding=len(session.held),
            credit=worker.credit,
            quiet=(session.tenant_no, session.worker_id) in self._sessions.quiet_workers,
            standby=session.standby,
            pull=True,
            connected_at=self._moment(session.opened_at),
            seen_at=self._moment(self._now() if worker.polls else session.last_seen),
            assigned_at=None if session.assigned_at is None else self._moment(session.assigned_at),
            silent=not worker.polls and session.is_silent,
        )


def _us(at: datetime | None) -> int | None:
    return None if at is None else unix_us(at)


def _skew(clock_us: int, opened: datetime) -> timedelta | None:
    """By how much a worker's clock was ahead; None if what it said is no time."""
    try:
        return from_unix_us(clock_us) - opened
    except OverflowError:
        return None


def _tenant_and_name(worker: WorkerSession | PullWorker) -> tuple[int, str]:
    session = worker.session if isinstance(worker, PullWorker) else worker
    return session.tenant_no, session.worker_id
