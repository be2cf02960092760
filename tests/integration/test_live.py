"""Hints for open pages: which kinds have changed, for whom, and at what cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from headgate.control import live
from headgate.control.auth import TokenValidator
from headgate.control.live import Live
from headgate.control.revocation import OpenCalls
from headgate.control.streams import OpenStream
from headgate.domain.errors import HeadgateError, Overloaded, ShuttingDown
from headgate.domain.hints import Hint, HintKind
from headgate.domain.identity import Identity, PermissionDenied, Scope, TokenRevoked
from headgate.store import upkeep
from headgate.store.connect import Connection
from headgate.store.hints import VERSIONS, HintStore
from tests.support.dispatch_waits import SOON
from tests.support.dispatching import Instance
from tests.support.event_streams import READS, Tokens
from tests.support.explain import cost
from tests.support.queue import Queue
from tests.support.waiting import until_async

OTHER = Identity(tenant="other", subject="other", scopes=frozenset({Scope.READ}), credential="two")


class Pages:
    """Open pages of one instance, whose reader looks when the test says so."""

    def __init__(self, instance: Instance) -> None:
        self.calls, self.tokens, self.draining = OpenCalls(), Tokens(), asyncio.Event()
        self.live = Live(
            HintStore(instance.store),
            calls=self.calls,
            validator=cast("TokenValidator", self.tokens),
            draining=self.draining,
        )

    @asynccontextmanager
    async def open(self, who: Identity = READS, last: str = "") -> AsyncIterator[OpenStream[Hint]]:
        stream = await self.live.open(who, last_event_id=last)
        try:
            yield stream
        finally:
            await stream.aclose()

    async def look(self) -> int:
        return await self.live.reader.run_once()


@pytest.fixture
def pages(stepped: Instance, monkeypatch: pytest.MonkeyPatch) -> Pages:
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.02)
    return Pages(stepped)


async def following(stream: OpenStream[Hint]) -> Hint:
    async with asyncio.timeout(SOON.total_seconds()):
        return await anext(stream)


async def test_a_page_is_informed_which_kind_has_changed_before_and_after_folding(pages: Pages, db: Connection) -> None:
    queue, other = Queue(db), Queue(db, tenant="other")
    await queue.add(1)
    await other.add(1)
    async with pages.open() as page, pages.open(OTHER) as others:
        await pages.look()
        first, theirs = await following(page), await following(others)
        assert first.kinds == theirs.kinds == [], "the first one says where it begins"
        assert await pages.look() == 0, "nothing has changed"
        await queue.add(1)
        assert await pages.look() == 1, "the other tenant hears nothing"
        hint = await following(page)
        assert hint.kinds == [HintKind.JOBS]
        await upkeep.fold_flows(db)
        assert await pages.look() == 0, "folding changes no job"
        await queue.add(1)
        await upkeep.fold_flows(db)
        assert await pages.look() == 1, "also when it was folded between two looks"
        assert (await following(page)).kinds == [HintKind.JOBS]
    async with pages.open(last=str(hint.versions)) as page:
        await pages.look()
        assert (await following(page)).kinds == [HintKind.JOBS], "what has changed while it was away"


async def test_a_silent_page_is_kept_alive_and_a_credential_that_ends_closes_it(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ALIVE_SECONDS", 0.05)
    async with pages.open() as page:
        await pages.look()
        first = await following(page)
        again = await following(page)
        assert (again.kinds, again.versions, again.alive) == ([], first.versions, True)
        pages.tokens.now = None
        for call in pages.calls:
            call.changed.set()
        with pytest.raises(StopAsyncIteration):
            await following(page)
    assert len(pages.live.reader) == 0


async def test_a_page_of_the_scope_system_goes_on_when_its_credential_has_changed(pages: Pages) -> None:
    system = Identity(tenant="", subject="sys", scopes=frozenset({Scope.SYSTEM}), credential="three")
    pages.tokens.now = replace(system, subject="renamed")
    async with pages.open(system) as page:
        await pages.look()
        await following(page)
        (call,) = pages.calls
        call.changed.set()
        ending = asyncio.create_task(following(page))

        async def is_checked() -> bool:
            return ending.done() or not call.changed.is_set()

        await until_async(is_checked, "the stream has taken the new rights")
        assert not ending.done()
        pages.tokens.now = replace(system, scopes=frozenset({Scope.SUBMIT}))
        call.changed.set()
        with pytest.raises(StopAsyncIteration):
            await ending


async def test_a_page_ends_when_its_credential_gets_another_tenant_and_when_the_instance_stops(
    pages: Pages,
) -> None:
    async with pages.open() as page:
        await pages.look()
        await following(page)
        pages.tokens.now = replace(READS, tenant="other")
        for call in pages.calls:
            call.changed.set()
        with pytest.raises(StopAsyncIteration):
            await following(page)
    async with pages.open() as page:
        await pages.look()
        await following(page)
        pages.draining.set()
        with pytest.raises(StopAsyncIteration):
            await following(page)
    with pytest.raises(ShuttingDown):
        await pages.live.open(READS)


async def test_a_credential_that_may_read_nothing_follows_no_page(pages: Pages) -> None:
    with pytest.raises(PermissionDenied):
        await pages.live.open(replace(READS, scopes=frozenset({Scope.SUBMIT, Scope.WORK})))
    assert len(pages.live.reader) == 0


async def test_a_page_ends_with_the_session_of_its_browser(pages: Pages) -> None:
    ended: list[HeadgateError] = []

    async def still_open() -> None:
        if ended:
            raise ended[0]

    stream = await pages.live.open(READS, still_open=still_open)
    await pages.look()
    await following(stream)
    ended.append(TokenRevoked("signed out"))
    with pytest.raises(StopAsyncIteration):
        await following(stream)
    await stream.aclose()


async def test_a_credential_has_a_bounded_number_of_pages_and_a_dropped_one_gives_its_place_back(pages: Pages) -> None:
    streams = [await pages.live.open(READS) for _ in range(live.STREAMS_PER_CREDENTIAL)]
    with pytest.raises(Overloaded, match="20 live pages are open with this credential"):
        await pages.live.open(READS)
    async with pages.open(OTHER):
        pass
    streams.pop()
    await streams.pop().aclose()
    async with pages.open(), pages.open():
        pass
    for stream in streams:
        await stream.aclose()


async def test_nothing_is_read_without_open_pages(pages: Pages) -> None:
    reader = pages.live.reader
    reader.every = 0.01
    running = asyncio.create_task(reader.run())
    async with pages.open() as page:
        await following(page)
    assert reader.reads >= 1

    async def idle() -> bool:
        return reader.is_idle

    await until_async(idle, "the reader waits for a stream")
    reads = reader.reads
    async with pages.open() as page:
        await following(page)
        assert reader.reads > reads, "it begins again with the next page"
    reader.stop()
    await running


async def test_versions_cost_the_same_with_few_and_many_jobs(db: Connection) -> None:
    queue = Queue(db)
    tenant = await queue.tenant_no()
    await queue.add(10)
    await upkeep.fold_flows(db)
    await cost(db, VERSIONS, [tenant])
    few = await cost(db, VERSIONS, [tenant])
    await queue.add(3_000)
    await upkeep.fold_flows(db)
    many = await cost(db, VERSIONS, [tenant])
    assert many.pages <= few.pages + 10, (few, many)
