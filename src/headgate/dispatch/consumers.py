"""Consumers: which workers receive jobs of a topic with a maximum of consumers. The others wait as stand-by.

The rows of headgate.topic_consumers decide (hold_consumers_v1), so the maximum holds over all instances: a consumer
gets a place only while fewer than the maximum have one. This service notes the consumers that want such a topic, and
renews their places every second. Without such topics it asks nothing.

A consumer is a worker session, or a pull worker: one of a tenant, name and credential is one consumer, however many
claims it makes and to whichever instances. Between its calls it keeps its place, or its turn, while it holds jobs and
for BETWEEN_CALLS_SECONDS after its last call.

A place that is not renewed is free for others after TTL_SECONDS, by the database's clock. An instance that gets no
answer stops claiming for these topics before that: VALID_SECONDS after it last asked with success, by its own clock.
What a process that was frozen in between had already sent to the database is not held back by that.

A stand-by keeps its credit. The topic is in its demands by name only, like a topic that does not exist yet; with a
place, the credit moves to a demand with its number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID, uuid4, uuid5

from headgate.dispatch.delivery import ControlFrame
from headgate.dispatch.demands import Demands
from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.pull_workers import PullWorker, PullWorkers
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.sessions import WorkerSessions
from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.dispatch")
LOOK_SECONDS, APART_SECONDS = 1.0, 0.05
TTL_SECONDS, VALID_SECONDS = 10.0, 7.0
BETWEEN_CALLS_SECONDS: Final = 10.0
"""How long a pull worker without jobs keeps its place after a call: the next one may be on its way. As long as a worker
that lost its connection keeps its leases."""
PULL_WORKERS: Final = UUID("8f6f3d0e-52b5-4c53-9a6e-3d1f6c0b7a11")
"""The namespace of the ids of pull workers: every instance gives a pull worker the same id."""
Wanted = tuple[int, UUID, str]
"""A topic, a consumer that wants its jobs, and the id of its worker."""


class ConsumerStore(Protocol):
    """Where the places are."""

    async def hold_consumers(self, wanted: Sequence[Wanted], *, ttl: float) -> Mapping[tuple[int, UUID], int]: ...


@dataclass(slots=True, eq=False)
class _Consumer:
    """Who counts once, and the sessions that receive with its places: itself, or the calls of a pull worker."""

    worker_id: str
    nos: dict[WorkerSession, list[int]] = field(default_factory=dict)  # the topics with a maximum that each asks for


class Consumers:
    """Gives places to the workers of this instance."""

    def __init__(
        self,
        store: ConsumerStore,
        sessions: WorkerSessions,
        pulls: PullWorkers,
        demands: Demands,
        *,
        now: Callable[[], float],
    ) -> None:
        self._store, self._sessions, self._pulls, self._demands, self._now = store, sessions, pulls, demands, now
        self._noted: dict[UUID, _Consumer] = {}  # as the database knows them
        self._ids: dict[WorkerSession, UUID] = {}  # of sessions that are streams
        self._valid_until = 0.0
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self.rounds = 0
        demands.on_standby = self._wake.set
        demands.places_valid = self.are_valid

    def are_valid(self) -> bool:
        """Whether the places that sessions have here are still theirs."""
        return self._now() < self._valid_until

    async def run(self) -> None:
        """Renew until `stop`; then give all places back, for other instances to use."""
        while not self._stopped.is_set():
            await wait_at_most(self._wake, LOOK_SECONDS)
            self._wake.clear()
            if self._stopped.is_set():
                break
            try:
                if await self.run_once():
                    await wait_at_most(self._stopped, APART_SECONDS)  # however often sessions come and go
            except HeadgateError as error:
                log.warning('consumers_not_renewed error=%s effect="topics with max_consumers may rest"', error)
                await wait_at_most(self._stopped, APART_SECONDS)
        if self._noted:
            try:
                await self._store.hold_consumers((), ttl=TTL_SECONDS)
            except HeadgateError as error:
                log.debug("consumers_not_released error=%s", error)

    def stop(self) -> None:
        """End after the round that is under way. This instance must claim no more."""
        self._stopped.set()
        self._wake.set()

    async def run_once(self) -> bool:
        """Ask for the places of all consumers; says whether there was anything to ask."""
        wanted = self._wanted()
        if not wanted and not self._noted:
            return False
        began, were_valid = self._now(), self.are_valid()
        rows = [
            (no, consumer, one.worker_id)
            for consumer, one in wanted.items()
            for no in sorted({no for nos in one.nos.values() for no in nos})
        ]
        waiting = await self._store.hold_consumers(rows, ttl=TTL_SECONDS)
        self._valid_until = began + VALID_SECONDS
        self.rounds += 1
        names = self._demands.names.consumers
        for consumer, one in wanted.items():
            for session, nos in one.nos.items():
                places = frozenset(no for no in nos if waiting.get((no, consumer)) == 0)
                self._assign(session, places, sorted(names[no] for no in nos if no not in places and no in names))
        receive = {session for one in wanted.values() for session in one.nos}
        for session in {session for one in self._noted.values() for session in one.nos} - receive:
            self._assign(session, frozenset(), ())
            self._ids.pop(session, None)
        self._noted = wanted
        if not were_valid:
            self._demands.wake_all()
        return True

    def _wanted(self) -> dict[UUID, _Consumer]:
        """Those that ask for jobs of topics with a maximum, by their ids; those that came first, first."""
        if not self._demands.names.consumers:
            return {}
        between = [worker.session for worker in self._pulls if self._is_between_calls(worker)]
        found: dict[UUID, _Consumer] = {}
        for session in sorted((*self._sessions.with_calls(), *between), key=lambda one: one.number):
            if nos := self._limited(session):
                consumer = found.setdefault(self._id_of(session), _Consumer(session.worker_id))
                consumer.nos[session] = nos
        return found

    def _limited(self, session: WorkerSession) -> list[int]:
        """The topics with a maximum that a session asks for."""
        if session.ended is not None or session.quiet or not session.credit:
            return []
        names = self._demands.names
        asked = {names.topic_no(session.tenant_no, name) for name in session.topics}
        return sorted(no for no in asked if no in names.consumers and no is not None)

    def _is_between_calls(self, worker: PullWorker) -> bool:
        """Whether a pull worker keeps its place, or its turn, also while none of its claims waits."""
        session = worker.session
        if (session.tenant_no, session.worker_id) in self._sessions.quiet_workers:
            return False
        return bool(session.held) or self._now() - session.last_seen < BETWEEN_CALLS_SECONDS

    def _id_of(self, session: WorkerSession) -> UUID:
        if self._sessions.knows(session):
            return self._ids.setdefault(session, uuid4())
        return uuid5(PULL_WORKERS, f"{session.tenant_no}/{session.identity.subject}/{session.worker_id}")

    def _assign(self, session: WorkerSession, places: frozenset[int], standby: Sequence[str]) -> None:
        """Follow what the database said about a session, and tell its worker what it waits for."""
        waits_for = tuple(standby)
        if (session.places, session.standby) == (places, waits_for):
            return
        is_news = waits_for != session.standby
        session.places, session.standby = places, waits_for
        self._demands.reassign(session)
        # A single call, and a plain stream, have no frame for it.
        if is_news and session.return_credit is None and self._sessions.knows(session):
            session.send_control(ControlFrame(standby=waits_for))
