"""Which workers are connected here: for callers of this instance, and in a bounded summary for those of others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from headgate.dispatch.periodic import Periodic
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.sessions import WorkerSessions
from headgate.domain.limits import HANDLED_TOPICS_MAX
from headgate.domain.workers import WorkerView

MOST_SHOWN: Final = 200
"""Workers in one summary: it is rewritten every few seconds, and a thousand sessions must not cost more than these."""
MOST_TOPICS: Final = 20
LOOK_SECONDS, WRITE_SECONDS = 1.0, 3.0


class SummaryStore(Protocol):
    """Where the summary goes."""

    async def summarise(self, summary: Mapping[str, object]) -> None: ...


class Presence(Periodic):
    """Reads the sessions; writes one row for all of them, and only when something has changed."""

    def __init__(
        self,
        store: SummaryStore,
        sessions: WorkerSessions,
        *,
        topic_name: Callable[[int], str],
        now: Callable[[], float],
        stuck: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        super().__init__("summary_failed error=%s", LOOK_SECONDS, jitter=(1.0, 1.0), level=logging.DEBUG)
        self._store, self._sessions = store, sessions
        self._topic_name, self._now = topic_name, now
        self._stuck = stuck  # by tenant number: jobs that this instance cannot promote or reap
        self._written: Mapping[str, object] = {"topics": {}, "counts": {}, "stuck": {}, "workers": []}
        self._written_at = -WRITE_SECONDS
        self.instance = ""
        self.writes = 0

    def workers(self, tenant_no: int) -> list[WorkerView]:
        """A tenant's workers on this instance, as they are at this moment."""
        return [
            self._view(session)
            for session in self._sessions
            if session.ended is None and session.tenant_no == tenant_no
        ]

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
        alive = [session for session in self._sessions if session.ended is None]
        shown = sorted(alive, key=lambda session: (session.tenant_no, session.worker_id))[:MOST_SHOWN]
        names = {str(no): sorted(found) for no, found in sorted(self._topics_by_tenant().items())}
        return {
            # With more, other instances cannot tell which topics have no worker.
            "topics": names if sum(map(len, names.values())) <= HANDLED_TOPICS_MAX else None,
            "counts": {str(no): count for no, count in sorted(Counter(session.tenant_no for session in alive).items())},
            "stuck": dict(self._stuck()),
            "workers": [
                {
                    "tenant_no": session.tenant_no,
                    "worker": view.worker,
                    "incarnation": view.incarnation,
                    "topics": list(view.topics)[:MOST_TOPICS],
                    "holding": view.holding,
                    "credit": view.credit,
                    "quiet": view.quiet,
                }
                for session in shown
                for view in (self._view(session),)
            ],
        }

    def _topics_by_tenant(self) -> dict[int, set[str]]:
        """By demand, not by session: a thousand workers of one application want the same."""
        alive = [session for session in self._sessions.with_calls() if session.ended is None]
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
        return WorkerView(
            worker=session.worker_id,
            incarnation=session.incarnation,
            instance=self.instance,
            topics=sorted({self._topic_name(no) for no in topic_nos} | unknown),
            holding=len(session.held),
            credit=sum(session.credit.values()) + sum(session.kept.values()),
            quiet=session.quiet,
        )
