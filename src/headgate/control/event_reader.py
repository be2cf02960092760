"""The reader of events: one for all streams of an instance, reading only while there are some (ADR 42)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias, cast
from uuid import UUID

from headgate.control.ports import EventStore
from headgate.control.revocation import OpenCall
from headgate.control.streams import SharedReader
from headgate.domain.errors import HeadgateError, Overloaded
from headgate.domain.events import EventFilter, Position, StreamEvent
from headgate.domain.identity import Identity
from headgate.domain.topic_sets import TopicSet

log = logging.getLogger("headgate.events")
LOOK_SECONDS: Final = 0.5
QUEUE_EVENTS: Final = 10_000
"""Events that may wait for one client when more come. One that has more reads too slowly, and its stream ends."""
STREAMS_PER_TENANT: Final = 200
RECORD_SECONDS: Final = 60.0
"""How often the recording of completions is moved on, by ten minutes."""
_RETRY_MS: Final = 5_000
Choice: TypeAlias = tuple[int, EventFilter, TopicSet | None]
"""The tenant, the filter of the client, and the topics of its token."""


@dataclass(slots=True, eq=False)
class Subscription:
    """One stream, as the reader knows it: what it wants, and what waits for its client."""

    tenant_no: int
    wanted: EventFilter
    call: OpenCall
    seen: Position | None = None  # what it has read by itself, once it has
    position: Position | None = None  # how far the reader is
    too_slow: bool = False
    queue: deque[tuple[Sequence[StreamEvent], Position]] = field(default_factory=deque)
    waiting: int = 0  # events in the queue
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def choice(self) -> Choice:
        """What decides which events its client gets: streams in which it is equal get the same."""
        return self.tenant_no, self.wanted, self.call.identity.topics

    def offer(self, found: Sequence[StreamEvent], position: Position) -> None:
        """Chosen events were committed. A client for which too many wait already has lost its place.

        How many come at once says nothing about the client.
        """
        self.position = position
        if not found or self.too_slow:
            return
        if self.waiting > QUEUE_EVENTS:
            self.too_slow = True
            self.queue.clear()
        else:
            self.waiting += len(found)
            self.queue.append((found, position))
        self.news.set()

    def take(self) -> tuple[Sequence[StreamEvent], Position] | None:
        """What the reader has put here first, without what was read already, or may not be seen any more."""
        if not self.queue:
            return None
        events, position = self.queue.popleft()
        self.waiting -= len(events)
        seen, self.seen = self.seen, position
        caller = self.call.identity
        return [
            event for event in events if (seen is None or not seen.shows(event.xid)) and may_see(caller, event)
        ], position

    def reached(self) -> Position | None:
        """How far its client is when nothing waits for it."""
        known = [one for one in (self.seen, self.position) if one is not None]
        return max(known, key=lambda one: one.xmax, default=None)


def may_see(caller: Identity, event: StreamEvent) -> bool:
    """Whether a token permits the topic of an event; what concerns all topics is for tokens that permit all."""
    return caller.topics is None or event.topic in caller.topics


def chosen(events: Sequence[StreamEvent], choice: Choice, members: Collection[UUID]) -> list[StreamEvent]:
    """Those that a stream sends, of events of its tenant. `members`: jobs of the batch that it wants."""
    _, wanted, topics = choice
    return [event for event in events if wanted.matches(event, members) and (topics is None or event.topic in topics)]


def by_tenant(events: Sequence[StreamEvent], tenant_nos: Collection[int]) -> dict[int, list[StreamEvent]]:
    """The events of each tenant, in order; those that concern all tenants are among each."""
    found: dict[int, list[StreamEvent]] = {tenant_no: [] for tenant_no in tenant_nos}
    for event in events:
        if event.tenant_no == 0:
            for some in found.values():
                some.append(event)
        elif event.tenant_no in found:
            found[event.tenant_no].append(event)
    return found


class EventReader(SharedReader):
    """Reads new events for all streams of this instance, while there are some."""

    def __init__(self, store: EventStore, *, every: float = LOOK_SECONDS) -> None:
        super().__init__(every=every)
        self._store = store
        self._subscriptions: set[Subscription] = set()
        self._by_tenant: Counter[int] = Counter()
        self._position: Position | None = None
        self._recorded: datetime | None = None  # since when completions are noted
        self._record_at = 0.0

    def __len__(self) -> int:
        return len(self._subscriptions)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(tuple(self._subscriptions))

    @contextmanager
    def subscribed(self, one: Subscription) -> Iterator[None]:
        """Register a stream while it is open. Raises Overloaded if its tenant has as many as it may have."""
        if self._by_tenant.get(one.tenant_no, 0) >= STREAMS_PER_TENANT:
            raise Overloaded(
                f"{STREAMS_PER_TENANT} streams of events of this tenant are open on this instance, which is the limit",
                retry_after_ms=_RETRY_MS,
            )
        self._by_tenant[one.tenant_no] += 1
        self._subscriptions.add(one)
        self.wake()
        try:
            yield
        finally:
            self._subscriptions.discard(one)
            self._by_tenant[one.tenant_no] -= 1
            if not self._by_tenant[one.tenant_no]:
                del self._by_tenant[one.tenant_no]

    def begin_at(self, position: Position) -> None:
        """A stream reads up to this position by itself: go on from there, or from before."""
        if self._position is None:
            self._position = position

    def idle(self) -> None:
        """Forget the position: no stream needs what is committed meanwhile."""
        self._position = None

    def delayed(self, error: HeadgateError) -> None:
        """Log it; the next read is the retry."""
        log.warning('events_delayed effect="streams of events get nothing for now" error=%s', error)

    async def run_once(self) -> int:
        """Read what was committed since the last time; returns how many events there were."""
        self.reads += 1
        if any(one.wanted.wants_completed for one in self._subscriptions):
            await self.record()
        until = await self._store.position()
        seen, count = self._position, 0
        if seen is None or seen.restores != until.restores or seen.xmax > until.xmax:
            self._position = until
            return 0
        while seen != until:
            streams = list(self._subscriptions)
            completed = any(one.wanted.wants_completed for one in streams)
            tenants = {one.tenant_no for one in streams}
            events, seen = await self._store.since(tenants, seen, until, completed=completed)
            await self._offer(streams, by_tenant(events, tenants), seen)
            self._position = seen
            count += len(events)
        return count

    async def _offer(
        self, streams: Sequence[Subscription], events: Mapping[int, Sequence[StreamEvent]], position: Position
    ) -> None:
        """Offer a page: chosen once for equal streams, and other tasks run between two choices."""
        groups: defaultdict[Choice, list[Subscription]] = defaultdict(list)
        for one in streams:
            groups[one.choice].append(one)
        members: dict[tuple[int, UUID], Collection[UUID]] = {}
        for choice, group in groups.items():
            tenant_no, wanted, _ = choice
            some, among = events[tenant_no], cast("Collection[UUID]", ())
            if some:
                if wanted.batch is not None:
                    key = (tenant_no, wanted.batch)
                    if key not in members:
                        members[key] = await self.members(tenant_no, wanted, some)
                    among = members[key]
                await asyncio.sleep(0)
            found = chosen(some, choice, among)
            for one in group:
                one.offer(found, position)

    async def members(self, tenant_no: int, wanted: EventFilter, events: Sequence[StreamEvent]) -> Collection[UUID]:
        """The jobs of the batch that a stream wants, among those that events are about."""
        ids = {event.job_id for event in events if event.job_id is not None and event.tenant_no == tenant_no}
        if wanted.batch is None or not ids:
            return ()
        return await self._store.members(tenant_no, wanted.batch, ids)

    async def record(self) -> datetime:
        """Have completions noted for the next minutes; says since when they are. Written once a minute at most."""
        now = asyncio.get_running_loop().time()
        if self._recorded is None or now >= self._record_at:
            self._recorded = await self._store.record()
            self._record_at = now + RECORD_SECONDS
        return self._recorded
