"""Streams of events of one instance, as tests open them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

from headgate.control.auth import TokenValidator
from headgate.control.events import Events
from headgate.control.revocation import OpenCalls
from headgate.domain.events import Alive, EventFilter, Happened, Opened, StreamItem
from headgate.domain.identity import Identity, Scope, TokenRevoked
from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.store.events import EventStore
from tests.support.dispatch_waits import SOON
from tests.support.dispatching import Instance

READS = Identity(tenant="acme", subject="reads", scopes=frozenset({Scope.READ}), credential="one")
OPERATES = Identity(tenant="acme", subject="operates", scopes=frozenset(Scope))
FAILED = Failed(error=ErrorInfo(type="E", message="broken"))
NO_COMPLETIONS = EventFilter(kinds=frozenset({"job.failed", "job.abandoned", "job.cancelled", "topic.paused"}))


class Tokens:
    """Tokens whose rights a test changes."""

    def __init__(self) -> None:
        self.now: Identity | None = READS

    def identify(self, token: str) -> Identity:
        raise NotImplementedError(token)

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        del uses
        if self.now is None:
            raise TokenRevoked(f"{identity.subject} is gone")
        return self.now

    def state(self) -> tuple[int, int]:
        return 0, 0


class Stand:
    """The streams of one instance, whose reader looks when the test says so, or runs."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.store = EventStore(instance.store)
        self.calls, self.tokens, self.draining = OpenCalls(), Tokens(), asyncio.Event()
        self.events = Events(
            self.store,
            calls=self.calls,
            validator=cast("TokenValidator", self.tokens),
            draining=self.draining,
            record_now=instance.wakes.control_changed,
        )
        self.reader = self.events.reader
        self.reader.every = 0.05

    def change(self) -> None:
        """Tell all streams that their tokens have changed."""
        for call in self.calls:
            call.changed.set()

    @asynccontextmanager
    async def stream(
        self, wanted: EventFilter = NO_COMPLETIONS, *, last: str = "", who: Identity = READS
    ) -> AsyncIterator[Stream]:
        items: Any = await self.events.open(who, wanted, last_event_id=last)
        try:
            yield Stream(items)
        finally:
            await items.aclose()


class Stream:
    def __init__(self, items: AsyncIterator[StreamItem]) -> None:
        self._items = items
        self.last = ""

    async def next(self) -> StreamItem:
        async with asyncio.timeout(SOON.total_seconds()):
            item = await anext(self._items)
        if isinstance(item, Opened | Alive) or (isinstance(item, Happened) and item.position is not None):
            self.last = str(item.position)
        return item

    async def opened(self) -> Opened:
        item = await self.next()
        assert isinstance(item, Opened)
        return item

    async def take(self, count: int) -> list[tuple[str, str, UUID | None]]:
        """The next events: kind, topic and job."""
        found: list[tuple[str, str, UUID | None]] = []
        while len(found) < count:
            item = await self.next()
            if isinstance(item, Alive):
                continue
            assert isinstance(item, Happened), item
            found.append((item.event.kind, item.event.topic, item.event.job_id))
        return found
