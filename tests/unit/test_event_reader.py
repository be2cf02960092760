"""What waits for one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from headgate.control import event_reader
from headgate.control.event_reader import EventReader, Subscription, chosen
from headgate.control.ports import EventStore
from headgate.control.revocation import OpenCall
from headgate.domain.events import EventFilter, Position, StreamEvent
from headgate.domain.identity import Identity, Scope
from headgate.domain.topic_sets import TopicSet

CALLER = Identity(tenant="acme", subject="reads", scopes=frozenset({Scope.READ}))


NARROW = Identity(tenant="acme", subject="reads", scopes=frozenset({Scope.READ}), topics=TopicSet.of("mail"))


def event(xid: int, *, topic: str = "", tenant_no: int = 1) -> StreamEvent:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return StreamEvent(id=f"j{xid}", kind="job.failed", at=at, tenant_no=tenant_no, xid=xid, topic=topic)


def position(xmax: int, *running: int) -> Position:
    return Position(at_ms=1, restores=0, xmin=min((*running, xmax)), xmax=xmax, running=running)


def test_what_a_stream_has_read_by_itself_is_not_sent_again_by_the_reader() -> None:
    one = Subscription(1, EventFilter(), OpenCall(CALLER))
    one.offer([event(5), event(6), event(7)], position(8))  # while it read up to 7, with 6 under way
    one.offer([event(7), event(9)], position(10))  # the reader has gone back
    one.seen = position(7, 6)
    assert [one.take(), one.take(), one.take()] == [
        ([event(6), event(7)], position(8)),
        ([event(9)], position(10)),
        None,
    ]


def test_a_client_is_slow_by_what_waits_for_it_and_not_by_what_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "QUEUE_EVENTS", 3)
    one = Subscription(1, EventFilter(), OpenCall(CALLER))
    one.offer([event(xid) for xid in range(5, 15)], position(15))
    assert not one.too_slow
    assert one.take() is not None
    one.offer([event(xid) for xid in range(15, 25)], position(25))
    assert not one.too_slow
    one.offer([event(25)], position(26))
    assert one.too_slow
    assert one.take() is None


def test_what_a_token_does_not_permit_any_more_is_not_taken_from_the_queue() -> None:
    one = Subscription(1, EventFilter(), OpenCall(CALLER))
    one.offer([event(5, topic="mail"), event(6, topic="pay")], position(7))
    one.call.identity = NARROW
    assert one.take() == ([event(5, topic="mail")], position(7))


class Store:
    """A page of events, as of a database."""

    def __init__(self, *events: StreamEvent) -> None:
        self.events = events

    async def position(self) -> Position:
        return position(100)

    async def since(
        self, tenant_nos: Collection[int], seen: Position, until: Position, *, completed: bool
    ) -> tuple[list[StreamEvent], Position]:
        del tenant_nos, seen, completed
        return list(self.events), until


async def test_a_page_is_chosen_once_for_equal_streams_and_with_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(event(5, topic="mail"), event(6, topic="pay"), event(7, tenant_no=2), event(8, tenant_no=0))
    reader = EventReader(cast("EventStore", store))
    reader.begin_at(position(5))
    calls = 0

    def counted(*given: Any) -> list[StreamEvent]:
        nonlocal calls
        calls += 1
        return chosen(*given)

    monkeypatch.setattr(event_reader, "chosen", counted)
    mail = EventFilter(topics=frozenset({"mail"}), kinds=frozenset({"job.failed"}))
    every = EventFilter(kinds=frozenset({"job.failed"}))
    groups = [(1, every, CALLER), (1, mail, CALLER), (1, every, NARROW), (2, every, CALLER)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    with ExitStack() as opened:
        streams = [Subscription(no, wanted, OpenCall(who)) for no, wanted, who in groups for _ in range(50)]
        for one in streams:
            opened.enter_context(reader.subscribed(one))
        other = asyncio.create_task(others())
        assert await reader.run_once() == 4
        other.cancel()
    assert calls == len(groups)
    assert turns >= len(groups) - 1
    found = [one.take() for one in streams[::50]]
    assert [[event.xid for event in one[0]] for one in found if one] == [[5, 6, 8], [5], [5], [7, 8]]
