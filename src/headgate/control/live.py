"""Streams of hints for open pages: which kinds of things have changed (ADR 46).

One reader per instance compares versions for all streams, twice a second, and only while there are streams. A version
comes from rollups and indexes: what a stream costs does not depend on how many jobs there are, or change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from headgate.control.auth import TokenValidator
from headgate.control.revocation import OpenCall, OpenCalls
from headgate.control.streams import OpenStream, SharedReader, any_set
from headgate.domain.errors import HeadgateError, Overloaded, ShuttingDown
from headgate.domain.hints import Hint, Versions
from headgate.domain.identity import Identity, Scope

log = logging.getLogger("headgate.live")
LOOK_SECONDS: Final = 0.5
"""A stream gets at most one hint in this time."""
ALIVE_SECONDS: Final = 15.0
STREAMS_PER_CREDENTIAL: Final = 20
"""On one instance. Browsers share one stream between their tabs."""
_RETRY_MS: Final = 30_000
_MAY_FOLLOW: Final = (Scope.READ, Scope.SYSTEM)
StillOpen = Callable[[], Awaitable[object]]
"""Raises if the session of the browser has ended."""


class HintStore(Protocol):
    """The versions of tenants."""

    async def tenant_no(self, tenant: str) -> int: ...
    async def versions(self, tenant_nos: Collection[int]) -> Mapping[int, Versions]: ...


@dataclass(slots=True, eq=False)
class Follower:
    """One stream, as the reader knows it."""

    tenant_no: int
    call: OpenCall
    versions: Versions | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


class HintReader(SharedReader):
    """Reads versions for all streams of this instance, while there are some."""

    def __init__(self, store: HintStore, *, every: float = LOOK_SECONDS) -> None:
        super().__init__(every=every)
        self._store = store
        self._followers: set[Follower] = set()
        self._by_credential: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._followers)

    @property
    def is_idle(self) -> bool:
        """Whether there are no streams, and nothing is read."""
        return not self._some.is_set()

    @contextmanager
    def followed(self, one: Follower) -> Iterator[None]:
        """Register a stream while it is open. Raises Overloaded if its credential has as many as it may have."""
        key = one.call.identity.credential
        if self._by_credential.get(key, 0) >= STREAMS_PER_CREDENTIAL:
            raise Overloaded(
                f"{STREAMS_PER_CREDENTIAL} live pages are open with this credential, which is the limit",
                retry_after_ms=_RETRY_MS,
            )
        self._by_credential[key] += 1
        self._followers.add(one)
        self.wake()
        try:
            yield
        finally:
            self._followers.discard(one)
            self._by_credential[key] -= 1
            if not self._by_credential[key]:
                del self._by_credential[key]

    def delayed(self, error: HeadgateError) -> None:
        """Log it; the next read is the retry."""
        log.warning('hints_delayed effect="open pages are not updated for now" error=%s', error)

    async def run_once(self) -> int:
        """Read once for all streams; returns how many of them have news."""
        followers = tuple(self._followers)
        self.reads += 1
        found, with_news = await self._store.versions({one.tenant_no for one in followers}), 0
        for one in followers:
            versions = found.get(one.tenant_no)
            if versions is not None and versions != one.versions:
                one.versions = versions
                one.news.set()
                with_news += 1
        return with_news


class Live:
    """Opens streams of hints."""

    def __init__(
        self, store: HintStore, *, calls: OpenCalls, validator: TokenValidator, draining: asyncio.Event
    ) -> None:
        self._store, self.reader = store, HintReader(store)
        self._calls, self._validator, self._draining = calls, validator, draining

    async def open(
        self, caller: Identity, *, last_event_id: str = "", still_open: StillOpen | None = None
    ) -> OpenStream[Hint]:
        """A stream of hints. Its first one has the versions of now, and what has changed since `last_event_id`.

        It ends when the caller closes it, when its credential or session ends, and when this instance stops.
        Raises PermissionDenied, Overloaded, ShuttingDown.
        """
        caller.require(*_MAY_FOLLOW)
        if self._draining.is_set():
            raise ShuttingDown("this instance is shutting down; connect to another one")
        tenant_no = await self._store.tenant_no(caller.tenant) if caller.tenant else 0
        with ExitStack() as place:
            one = Follower(tenant_no, place.enter_context(self._calls.watched(caller)))
            place.enter_context(self.reader.followed(one))
            items = self._items(one, Versions.parse(last_event_id) if last_event_id else None, still_open)
            return OpenStream(items, one.call, place.pop_all())

    async def _items(
        self, one: Follower, before: Versions | None, still_open: StillOpen | None
    ) -> AsyncGenerator[Hint, None]:
        silent = 0.0
        while await self._may_go_on(one, still_open):
            one.news.clear()
            now = one.versions
            if now is not None and (now != before or silent >= ALIVE_SECONDS):
                kinds, alive = [] if before is None else now.changed(before), now == before
                before, silent = now, 0.0
                yield Hint(kinds=kinds, versions=now, alive=alive)
            if not await any_set((one.news, one.call.changed, self._draining), LOOK_SECONDS):
                silent += LOOK_SECONDS

    async def _may_go_on(self, one: Follower, still_open: StillOpen | None) -> bool:
        if self._draining.is_set():
            return False
        try:
            if one.call.changed.is_set():
                before = one.call.identity.tenant
                one.call.recheck(self._validator, *_MAY_FOLLOW)
                if one.call.identity.tenant != before:
                    return False
            if still_open is not None:
                await still_open()
        except HeadgateError:
            return False
        return True
