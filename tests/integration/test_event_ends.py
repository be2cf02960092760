"""What streams of events cost, what bounds them, and how they end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import pytest

from headgate.control import event_reader, streams
from headgate.control import events as event_streams
from headgate.domain.errors import InvalidInput, Overloaded, ShuttingDown
from headgate.domain.events import Alive, Ended, EventFilter, Opened
from headgate.domain.topic_sets import TopicSet
from headgate.store import events as store_events
from headgate.store.connect import Connection
from headgate.store.events import EventStore
from tests.support.admin import Desk
from tests.support.dispatch_waits import SOON, soon
from tests.support.dispatching import Instance
from tests.support.event_streams import NO_COMPLETIONS, OPERATES, READS, Stand


@pytest.fixture
async def stand(one: Instance) -> AsyncIterator[Stand]:
    stand = Stand(one)
    one.start("events", stand.reader.run())
    yield stand
    stand.reader.stop()


# ---------------------------------------------------------------------- cost and ends


async def test_without_a_stream_nothing_is_read(one: Instance, stand: Stand) -> None:
    async with stand.stream() as stream:
        await stream.opened()
        await soon(lambda: stand.reader.reads > 1, "it reads")
    reads = stand.reader.reads
    await asyncio.sleep(0.3)  # six times as long as it waits between two reads
    assert stand.reader.reads <= reads + 1
    assert len(stand.reader) == 0


async def test_a_client_that_reads_too_slowly_gets_an_error_and_can_continue(
    one: Instance, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "QUEUE_EVENTS", 3)
    ids = await one.submit(10)
    async with stand.stream() as stream:
        await stream.opened()
        reading = asyncio.create_task(stream.next())
        desk = Desk(one)
        await desk.verbs.cancel(OPERATES, [ids[0]])
        await reading
        last = stream.last
        await desk.verbs.cancel(OPERATES, list(ids[1:9]))  # not too many yet: they come at once
        (waits,) = stand.reader
        await soon(lambda: waits.waiting == 8, "they wait for the client")
        await desk.verbs.cancel(OPERATES, [ids[9]])
        await soon(lambda: waits.too_slow, "more have come")
        ended = await stream.next()
        assert isinstance(ended, Ended)
        assert ended.error.code == "slow_reader"
    monkeypatch.undo()
    async with stand.stream(last=last) as again:
        await again.opened()
        assert {job_id for _, _, job_id in await again.take(9)} == set(ids[1:])


async def test_a_revoked_token_ends_a_stream(one: Instance, stand: Stand) -> None:
    async with stand.stream() as stream:
        await stream.opened()
        stand.tokens.now = None
        stand.change()
        ended = await stream.next()
        assert isinstance(ended, Ended)
        assert ended.error.code == "token_revoked"
    assert len(stand.calls) == 0


async def test_a_stream_ends_when_its_token_belongs_to_another_tenant(stand: Stand) -> None:
    async with stand.stream() as stream:
        await stream.opened()
        stand.tokens.now = replace(READS, tenant="umbrella")
        stand.change()
        ended = await stream.next()
        assert isinstance(ended, Ended)
        assert ended.error.code == "token_revoked"


async def test_what_waits_for_a_client_is_not_sent_after_a_revocation_or_for_topics_that_it_lost(
    one: Instance, stand: Stand
) -> None:
    verbs = Desk(one).verbs

    async def cancelled() -> list[UUID]:
        """Jobs whose cancellations come in this order: the one between them is of the topic that the token loses."""
        (first, last), (hidden,) = await one.submit(2), await one.submit(1, topic="pay")
        for job_id in (first, hidden, last):
            await verbs.cancel(OPERATES, [job_id])
        return [first, last]

    before = str(await stand.store.position())
    ids = await cancelled()
    for begin in ("", before):  # by the reader, and read by itself
        async with stand.stream(last=begin) as stream:
            await stream.opened()
            if not begin:
                (waits,) = stand.reader
                ids, earlier = await cancelled(), ids
                await soon(lambda waits=waits: waits.waiting == 3, "events wait")
            assert [job_id for _, _, job_id in await stream.take(1)] == ids[:1]
            stand.tokens.now = replace(READS, topics=TopicSet.of("mail"))
            stand.change()
            assert [job_id for _, _, job_id in await stream.take(1)] == ids[1:]
            ids = earlier
            stand.tokens.now = None
            stand.change()
            ended = await stream.next()
            assert isinstance(ended, Ended)
            assert ended.error.code == "token_revoked"
        stand.tokens.now = READS


async def test_a_stream_whose_client_takes_nothing_is_overdue_after_a_revocation(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "END_WITHIN", 0.01)
    stream = await stand.events.open(READS, NO_COMPLETIONS)
    assert isinstance(await anext(stream), Opened)
    waiting = asyncio.create_task(stream.overdue())
    stand.change()
    await asyncio.wait_for(waiting, SOON.total_seconds())
    await stream.aclose()


async def test_a_client_that_leaves_during_a_statement_does_not_cost_the_connection(
    stand: Stand, db: Connection
) -> None:
    lane = stand.instance.store.lane("events")
    async with lane.use() as link:
        before = await link.fetchval("SELECT pg_backend_pid()")

    async def slow(link: Connection) -> None:
        await link.execute("SELECT pg_sleep(0.2)")

    reading = asyncio.create_task(stand.store._read(slow))
    sleeps = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state = 'active'"
    async with asyncio.timeout(SOON.total_seconds()):
        while not await db.fetchval(sleeps, before):
            await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    async with lane.use() as link:
        assert await link.fetchval("SELECT pg_backend_pid()") == before


async def test_a_page_of_completions_is_bounded_by_their_number(
    one: Instance, stand: Stand, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_events, "COMPLETIONS_A_PAGE", 4)
    await EventStore(one.store).record()
    await one.submit(1)
    tenant_no = await one.store.tenant_no("acme")
    begin = await stand.store.position()
    topic_no = await db.fetchval("SELECT topic_no FROM headgate.topics WHERE tenant_no = $1", tenant_no)
    sizes = (3, 3, 5, 1)
    for size in sizes:
        await db.execute(
            """INSERT INTO headgate.completions (tenant_no, at, ids, topic_nos, epochs, attempts)
               VALUES ($1, now(), $2, array_fill($3::int, ARRAY[$4::int]), array_fill(1, ARRAY[$4]),
                       array_fill(1, ARRAY[$4]))""",
            tenant_no,
            list(one.ids.make(size)),
            topic_no,
            size,
        )
    until, got = await stand.store.position(), []
    while begin != until:
        events, begin = await stand.store.since([tenant_no], begin, until, completed=True)
        got.append(len(events))
    assert [count for count in got if count] == [6, 5, 1]


async def test_a_drain_ends_streams_and_refuses_new_ones(one: Instance, stand: Stand) -> None:
    async with stand.stream() as stream:
        await stream.opened()
        stand.draining.set()
        ended = await stream.next()
        assert isinstance(ended, Ended)
        assert ended.error.code == "shutting_down"
    with pytest.raises(ShuttingDown):
        await stand.events.open(READS, EventFilter())


async def test_a_silent_stream_says_how_far_it_is(one: Instance, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "ALIVE_SECONDS", 0.05)
    async with stand.stream() as stream:
        opened = await stream.opened()
        (theirs,) = await one.submit(1, tenant="other")
        item = await stream.next()
        while isinstance(item, Alive) and item.position.xmax <= opened.position.xmax:
            item = await stream.next()
        assert isinstance(item, Alive)
    assert theirs


async def test_the_streams_of_a_tenant_are_bounded(
    one: Instance, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "STREAMS_PER_TENANT", 1)
    burst = await asyncio.gather(*(stand.events.open(READS, EventFilter()) for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in burst].count(Overloaded) == 4
    del burst  # not closed, and never begun
    await asyncio.sleep(0)  # the loop has them until here
    gc.collect()
    assert (len(stand.reader), len(stand.calls)) == (0, 0)
    async with stand.stream() as stream:
        await stream.opened()
        with pytest.raises(Overloaded):
            await stand.events.open(READS, EventFilter())
    async with stand.stream() as stream:
        await stream.opened()


async def test_a_wrong_last_id_is_refused_before_anything_is_sent(stand: Stand) -> None:
    with pytest.raises(InvalidInput) as refused:
        await stand.events.open(READS, EventFilter(), last_event_id="12")
    assert refused.value.field == "last_event_id"


async def test_events_are_read_by_calls_from_position_to_position(one: Instance, stand: Stand) -> None:
    (job,) = await one.submit(1)
    begin = await stand.events.read(READS, NO_COMPLETIONS)
    assert (begin.events, begin.gap) == ([], None)
    waiting = asyncio.create_task(
        stand.events.read(READS, NO_COMPLETIONS, last_event_id=str(begin.position), wait_ms=60_000)
    )
    await Desk(one).verbs.cancel(OPERATES, [job])
    page = await asyncio.wait_for(waiting, SOON.total_seconds())
    assert [(event.kind, event.job_id) for event in page.events] == [("job.cancelled", job)]
    nothing = await stand.events.read(READS, NO_COMPLETIONS, last_event_id=str(page.position), wait_ms=1)
    assert nothing.events == []
    with pytest.raises(InvalidInput):
        await stand.events.read(READS, NO_COMPLETIONS, wait_ms=60_001)
