"""Streams of events: what each of them sends, from which position on, and how it ends (ADR 42).

The reader looks twice a second for what was committed since, and only while there are streams. A stream that begins at
an earlier position reads the pages up to now by itself, and continues with what the reader has put into its queue
meanwhile; events that it has read already are left out.

Completions are no rows of their own in the history of jobs: instances note them only while some stream wants them, and
for ten minutes after. So a stream that wants them is open when all instances do, and one that comes back later than
that gets an event for the gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from weakref import WeakValueDictionary

from headgate.control import event_reader
from headgate.control.auth import TokenValidator
from headgate.control.event_reader import EventReader, Subscription, chosen, may_see
from headgate.control.ports import EventStore
from headgate.control.revocation import OpenCalls
from headgate.control.streams import OpenStream, any_set
from headgate.domain import limits
from headgate.domain.errors import HeadgateError, ShuttingDown
from headgate.domain.events import (
    Alive,
    Ended,
    EventFilter,
    Gap,
    Happened,
    Opened,
    Position,
    SlowReader,
    StreamEvent,
    StreamItem,
)
from headgate.domain.identity import Identity, PermissionDenied, Scope, TokenRevoked
from headgate.domain.validation import check_integer

ALIVE_SECONDS: Final = 15.0
"""How long a stream is silent at most: proxies close what is silent for longer."""
OPEN_WITHIN: Final = 20.0
"""How long a stream waits until all instances note completions. Then one of them does not answer, and is not waited
for."""
RECORD_LOOK_SECONDS: Final = 0.1
HISTORY_KEPT: Final = timedelta(days=1)
"""The shortest retention: what is older may be gone with its job."""


@dataclass(slots=True)
class EventPage:
    """Events by a call: what a stream would have sent until its first events."""

    events: list[StreamEvent] = field(default_factory=list)
    position: Position | None = None
    gap: Gap | None = None
    _parts: list[StreamEvent] = field(default_factory=list)  # of those that became visible together

    def add(self, item: StreamItem) -> None:
        """Take an item of a stream. Raises why it ends."""
        match item:
            case Opened(position=position):
                self.position = position
            case Alive(position=position):  # behind all that was sent
                self.events, self.position = self._parts, position
            case Gap():
                self.gap = item
            case Happened(event=event, position=reached):
                self._parts.append(event)
                if reached is not None:
                    self.events, self.position = self._parts, reached
            case Ended(error=error):
                raise error


class Events:
    """Opens streams of events."""

    def __init__(
        self,
        store: EventStore,
        *,
        calls: OpenCalls,
        validator: TokenValidator,
        draining: asyncio.Event,
        record_now: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`record_now` has all instances look at the recording."""
        self._store, self.reader = store, EventReader(store)
        self._calls, self._validator, self._draining, self._record_now = calls, validator, draining, record_now
        self._catching_up: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # by tenant

    async def open(
        self, caller: Identity, wanted: EventFilter, *, last_event_id: str = "", silent: float | None = None
    ) -> OpenStream[StreamItem]:
        """A stream of what happens from now on, or from a position on.

        Raises InvalidInput, PermissionDenied, Overloaded.
        After `silent` seconds without an event it sends `Alive`. It ends with `Ended`, or when the caller closes it.
        """
        caller.require(Scope.READ)
        if self._draining.is_set():
            raise ShuttingDown("this instance is shutting down; ask another one")
        refused = [] if caller.topics is None else sorted(one for one in wanted.topics if one not in caller.topics)
        if refused:
            names = ", ".join(refused)
            raise PermissionDenied(f"the token of {caller.subject} does not permit the topics {names}")
        begin = Position.parse(last_event_id) if last_event_id else None
        tenant_no = await self._store.tenant_no(caller.tenant)
        with ExitStack() as place:
            one = Subscription(tenant_no, wanted, place.enter_context(self._calls.watched(caller)))
            place.enter_context(self.reader.subscribed(one))
            items = self._items(one, begin, ALIVE_SECONDS if silent is None else silent)
            return OpenStream(items, one.call, place.pop_all())

    async def read(
        self, caller: Identity, wanted: EventFilter, *, last_event_id: str = "", wait_ms: int = 0
    ) -> EventPage:
        """The next events after a position; waits for the first one. Without a position: where to begin.

        Raises InvalidInput, PermissionDenied, TokenRevoked.
        """
        check_integer(wait_ms, field="wait_ms", low=0, high=limits.CLAIM_WAIT_MAX_MS)
        # Not by a timeout around it: a statement that is cut off costs its connection.
        items = await self.open(caller, wanted, last_event_id=last_event_id, silent=wait_ms / 1000)
        page = EventPage()
        async with aclosing(items) as found:
            async for item in found:
                page.add(item)
                if page.events or isinstance(item, Alive) or (isinstance(item, Opened) and not last_event_id):
                    break
        return page

    async def _items(self, one: Subscription, begin: Position | None, silent: float) -> AsyncGenerator[StreamItem]:
        try:
            recorded = await self._record(one)
            now = await self._store.position()
            self.reader.begin_at(now)
            if begin is None or begin.restores != now.restores or begin.xmax > now.xmax:
                if begin is not None:
                    yield Gap(since=_time(begin.at_ms), until=_time(now.at_ms), reason="restored")
                begin = now
            elif (floor := self._floor(now, recorded)) > _time(begin.at_ms):
                yield Gap(since=_time(begin.at_ms), until=floor, reason="retention")
            yield Opened(position=begin)
            one.seen = begin
            while begin != now:
                page, begin = await self._page(one, begin, now)
                one.seen = begin
                for found in page:
                    if self._sends(one, found):
                        yield found
            async for item in self._live(one, silent):
                yield item
        except HeadgateError as error:
            yield Ended(error=error.with_traceback(None))

    async def _record(self, one: Subscription) -> datetime | None:
        """Have completions noted, if the stream wants them. Returns when all instances do, and says since when."""
        if not one.wanted.wants_completed:
            return None
        since = await self.reader.record()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OPEN_WITHIN
        if not await self._store.all_record():
            await self._record_now()
            while not await self._store.all_record() and loop.time() < deadline:
                await asyncio.sleep(RECORD_LOOK_SECONDS)
                self._check(one)
        return since

    def _floor(self, now: Position, recorded: datetime | None) -> datetime:
        """From when on all events are known that a stream wants."""
        at = _time(now.at_ms)
        return at - HISTORY_KEPT if recorded is None else max(recorded, at - self._store.kept)

    async def _page(self, one: Subscription, seen: Position, until: Position) -> tuple[list[Happened], Position]:
        """The next page that a stream reads by itself. One of a tenant at a time: each of them takes the connection."""
        async with self._catching_up.setdefault(one.tenant_no, asyncio.Lock()):
            self._check(one)
            completed = one.wanted.wants_completed
            events, reached = await self._store.since([one.tenant_no], seen, until, completed=completed)
            members = await self.reader.members(one.tenant_no, one.wanted, events)
        return _happened(chosen(events, one.choice, members), reached), reached

    async def _live(self, one: Subscription, silent: float) -> AsyncIterator[StreamItem]:
        while True:
            self._check(one)
            one.news.clear()
            while (found := one.take()) is not None:
                for item in _happened(*found):
                    if self._sends(one, item):
                        yield item
            if one.too_slow:
                raise SlowReader(
                    f"more than {event_reader.QUEUE_EVENTS} events wait for this client; connect again with the last id"
                )
            if not one.news.is_set() and not await self._wait(one, silent):
                position = one.reached()
                if position is not None:
                    yield Alive(position=position)

    def _sends(self, one: Subscription, item: Happened) -> bool:
        """Whether the token still permits it: it may have changed since it was chosen. Raises why the stream ends."""
        self._check(one)
        return may_see(one.call.identity, item.event)

    def _check(self, one: Subscription) -> None:
        """Raises why the stream ends. A token that has other topics now continues with those."""
        if self._draining.is_set():
            raise ShuttingDown("this instance is shutting down; connect to another one")
        if one.call.changed.is_set():
            before = one.call.identity
            one.call.recheck(self._validator, Scope.READ)
            if one.call.identity.tenant != before.tenant:
                raise TokenRevoked(f"the token of {before.subject} has changed")

    async def _wait(self, one: Subscription, seconds: float) -> bool:
        """Wait for news, a changed token or a drain; says whether any of it came in time."""
        return await any_set((one.news, one.call.changed, self._draining), seconds)


def _happened(events: Sequence[StreamEvent], position: Position) -> list[Happened]:
    last = len(events) - 1
    return [Happened(event=event, position=position if index == last else None) for index, event in enumerate(events)]


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(min(at_ms, 253_402_300_799_000) / 1000, tz=UTC)
