"""Pull workers: workers without a connection, known to this instance by the calls that they make.

A pull worker claims by single calls, keeps its leases by heartbeats and reports outcomes, each on a connection of its
own. Between two calls nothing shows that it is alive, so nothing ends with a connection: its leases decide (ADR 38).

What is kept of it here is a convenience, and may be lost at any moment:
- what it holds, so that its outcomes are written with those of sessions and not with those of strangers;
- the demands that it claims for, with their watermarks, so that its next claim need not begin at the head;
- its places of topics with a maximum of consumers, which consumers.py renews between its calls;
- that it was here, for people who list workers.

A worker is forgotten when it has made no call for a minute and its leases are over. Without pull workers this costs
nothing: the service waits for an event.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headgate.dispatch.delivery import Delivery
from headgate.dispatch.demands import Demands
from headgate.dispatch.departures import LEASES_OVER, Departures
from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.sessions import HELD_PER_TENANT
from headgate.dispatch.writer import LONGEST_HINT_MS
from headgate.domain.errors import Overloaded

POLLS_PER_TENANT: Final = 10_000
"""Claims of a tenant that may wait on one instance: each is a connection and some kilobytes."""
WORKERS_PER_TENANT: Final = 1_000
"""Pull workers of a tenant that are remembered. With more, those that were not seen for longest are forgotten."""
DEMANDS_KEPT: Final = 8
"""Combinations of topics and lease of one worker whose watermarks are kept between its claims."""
SEEN_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
EXPIRY_SECONDS: Final = 5.0
"""How often the leases of one worker are looked at, at most: it may hold many jobs."""


@dataclass(slots=True, eq=False)
class PullWorker:
    """A worker between its calls. Its session is never registered: nothing is delivered to it, or renewed for it."""

    session: WorkerSession
    polls: set[WorkerSession] = field(default_factory=set)  # its claims that wait
    look_at: float = 0.0  # when the first of its leases may be over

    @property
    def credit(self) -> int:
        """How many more jobs it would take now."""
        return sum(sum(call.credit.values()) + sum(call.kept.values()) for call in self.polls)

    def holds_all(self, ids: Iterable[UUID]) -> bool:
        """Whether it was given all of these here."""
        return all(job_id in self.session.held for job_id in ids)

    def took(self, deliveries: Iterable[Delivery], now: float) -> None:
        """Jobs are on their way to it."""
        for delivery in deliveries:
            self.session.assigned_at = now
            renew_at = now + delivery.lease_ms / 2000
            for job_id, epoch in zip(delivery.ids, delivery.epochs, strict=True):
                self.session.hold(job_id, epoch, delivery.lease_ms, renew_at)
            self.look_at = min(self.look_at, now + delivery.lease_ms / 1000)

    def renewed(self, pairs: Iterable[tuple[UUID, int]], lease_ms: int, now: float) -> None:
        """Leases were extended. Those of jobs that it was not given here are not remembered."""
        for job_id, epoch in pairs:
            if self.session.holds(job_id, epoch):
                self.session.hold(job_id, epoch, lease_ms, now + lease_ms / 2000)

    def let_go(self, pairs: Iterable[tuple[UUID, int]]) -> None:
        """These are not its own any more."""
        pairs = list(pairs)
        self.session.settled([job_id for job_id, _ in pairs], [epoch for _, epoch in pairs])

    def expire(self, now: float) -> int:
        """Let go of jobs whose leases are over, as far as is known here; returns how many."""
        if now < self.look_at:
            return 0
        before = len(self.session.held)
        ends = {job_id: renew_at + ms / 2000 for job_id, (_, ms, renew_at, _) in self.session.held.items()}
        self.session.settled([job_id for job_id, end in ends.items() if end <= now])
        self.look_at = max(now + EXPIRY_SECONDS, min((end for end in ends.values() if end > now), default=0.0))
        return before - len(self.session.held)


class PullWorkers:
    """The pull workers that this instance knows."""

    def __init__(self, demands: Demands, *, now: Callable[[], float]) -> None:
        self._demands, self._now = demands, now
        # By tenant, and in it by worker and credential, those that were seen last at the end.
        self._by_tenant: dict[int, dict[tuple[str, str], PullWorker]] = {}
        self._polls: Counter[int] = Counter()  # by tenant
        self._added, self._stopped = asyncio.Event(), asyncio.Event()
        self.departures = Departures()

    def __iter__(self) -> Iterator[PullWorker]:
        return iter([worker for workers in self._by_tenant.values() for worker in workers.values()])

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    def of_tenant(self, tenant_no: int) -> Collection[PullWorker]:
        """The pull workers of a tenant."""
        return list(self._by_tenant.get(tenant_no, {}).values())

    def others_of(self, session: WorkerSession) -> int:
        """How many other workers of its tenant are known here by their calls."""
        workers = self._by_tenant.get(session.tenant_no, {})
        return sum(worker_id != session.worker_id for worker_id, _ in workers)

    def find(self, tenant_no: int, worker_id: str, subject: str) -> PullWorker | None:
        """The worker of this name and credential, if it was here lately. Counts as seen."""
        workers = self._by_tenant.get(tenant_no)
        worker = None if workers is None else workers.pop((worker_id, subject), None)
        if workers is None or worker is None:
            return None
        workers[worker_id, subject] = worker
        worker.session.mark_seen()
        self.departures.came_back(worker.session)
        return worker

    @contextmanager
    def polling(self, call: WorkerSession) -> Iterator[PullWorker]:
        """Register a claim while it waits. Raises Overloaded."""
        tenant_no = call.tenant_no
        if self._polls[tenant_no] >= POLLS_PER_TENANT:
            raise Overloaded(
                f"{self._polls[tenant_no]} claims of this tenant wait on this instance, the limit is "
                f"{POLLS_PER_TENANT}",
                retry_after_ms=LONGEST_HINT_MS,
            )
        worker = self._known(call)
        call.places, call.standby = worker.session.places, worker.session.standby
        self._polls[tenant_no] += 1
        worker.polls.add(call)
        try:
            yield worker
        finally:
            worker.polls.discard(call)
            worker.session.mark_seen()
            self._polls[tenant_no] -= 1
            if not self._polls[tenant_no]:
                del self._polls[tenant_no]

    def keep_demands(self, worker: PullWorker, call: WorkerSession) -> None:
        """What a call asks for is asked for again: its watermarks are kept until then.

        Not for a worker past the bound: nothing would take its session out of the demands again.
        """
        if not self._remembers(worker):
            return
        known = worker.session
        for demand in call.credit:
            if demand not in known.credit and len(known.credit) >= DEMANDS_KEPT:
                oldest = next(iter(known.credit))
                oldest.forget(known)
                self._demands.drop_unused(oldest)
            demand.join(known)

    def took(self, worker: PullWorker, deliveries: Sequence[Delivery]) -> None:
        """Jobs are on their way to a worker. Past what a tenant may hold here they are not remembered."""
        if not self._remembers(worker):
            return
        held = sum(len(one.session.held) for one in self.of_tenant(worker.session.tenant_no))
        if held < HELD_PER_TENANT:
            worker.took(deliveries, self._now())

    async def run(self) -> None:
        """Look every second while there are some, until `stop`."""
        while not self._stopped.is_set():
            if not self._by_tenant:
                self._added.clear()
                await self._added.wait()
                continue
            await wait_at_most(self._stopped, LOOK_SECONDS)
            self.run_once()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._added.set()

    def run_once(self) -> int:
        """Forget leases that are over and workers that no longer call; returns how many workers are left."""
        now = self._now()
        for worker in self:
            session = worker.session
            # Leases of its jobs were not renewed, and it has made no call since: it has left, and its jobs run again.
            expired = worker.expire(now)
            if expired and not worker.polls and session.is_silent:
                self.departures.add(session, reason=LEASES_OVER, holding=expired, pull=True)
            if not worker.polls and not session.held and now - session.last_seen > SEEN_SECONDS:
                self._forget(worker)
        return len(self)

    def _remembers(self, worker: PullWorker) -> bool:
        session = worker.session
        workers = self._by_tenant.get(session.tenant_no, {})
        return workers.get((session.worker_id, session.identity.subject)) is worker

    def _known(self, call: WorkerSession) -> PullWorker:
        identity = call.identity
        worker = self.find(call.tenant_no, call.worker_id, identity.subject)
        if worker is None:
            session = WorkerSession(identity, call.tenant_no, call.worker_id, self._now, call.default_lease_ms)
            session.mark_seen()
            worker = PullWorker(session)
            workers = self._by_tenant.setdefault(call.tenant_no, {})
            workers[call.worker_id, identity.subject] = worker
            self.departures.came_back(session)
            if len(workers) > WORKERS_PER_TENANT:
                self._forget(next(one for one in workers.values() if not one.polls or one is worker))
            self._added.set()
        worker.session.identity, worker.session.topics = identity, call.topics
        return worker

    def _forget(self, worker: PullWorker) -> None:
        session = worker.session
        self._demands.revoke(session)
        workers = self._by_tenant[session.tenant_no]
        workers.pop((session.worker_id, session.identity.subject), None)
        if not workers:
            del self._by_tenant[session.tenant_no]
