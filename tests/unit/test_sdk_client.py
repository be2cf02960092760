"""The client against a scripted server: coalescing, resending, refusals, threads and loops."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from headgate import (
    Closed,
    Headgate,
    InvalidInput,
    NotAcknowledged,
    NotConnected,
    OutboxFull,
    Overloaded,
    RetryPolicy,
    SubmitConflict,
    SubmitRefused,
    Unauthenticated,
)
from headgate.domain.backoff import BackoffKind
from headgate.sdk.addresses import addresses_of
from headgate.sdk.client.producer import WINDOW
from headgate.sdk.connection import Connection
from headgate.sdk.errors import ServerError
from headgate.sdk.ids import new_id_maker
from headgate.sdk.options import SUBMIT_TIMEOUT
from headgate.wire import jobs_pb2, producer_pb2
from tests.support.fake_server import fake_server, until

GONE = "127.0.0.1:1"


def mail(app: Headgate, **options: Any) -> Any:
    async def send(to: str, copies: int = 1) -> dict[str, int]:
        return {"sent": copies}

    return app.register("mail", send, **options)


@pytest.mark.req("W26")
async def test_a_lone_submit_goes_at_once_as_a_plain_job() -> None:
    async with fake_server() as server, Headgate(server.address, token="secret") as app:
        handle = await mail(app).submit("a@b", copies=2)
        peer = await server.producer()
        assert peer.token == "secret"
        (frame,) = peer.frames()
        assert (frame.plain.topic, list(frame.plain.ids)) == ("mail", [handle.id.bytes])
        assert list(frame.plain.payloads) == [b'{"to":"a@b","copies":2}']
        assert (frame.plain.new_id, list(frame.plain.priorities), handle.created) == (True, [], True)
        assert handle.id.version == 7


async def test_submits_made_while_all_frames_are_on_their_way_share_the_next_one() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        await task.submit("first")
        (peer,) = server.producers
        server.answers_submits = False
        _, producer, _ = app._connection._opened()
        free = producer.capacity._jobs
        waiting = [asyncio.ensure_future(task.submit(f"{n}")) for n in range(500)]
        await until(lambda: producer.capacity._jobs == free - 500, "all are in the outbox")
        server.answers_submits = True
        for frame in peer.frames():
            peer.reply(frame.seq)
        handles = await asyncio.gather(*waiting)
        assert len(peer.frames()) <= 1 + WINDOW + 1
        assert set(peer.ids()) >= {handle.id.bytes for handle in handles}
        assert len(set(peer.ids())) == 501


async def test_receipts_find_their_callers_by_place() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        server.answers_submits = False
        older = new_id_maker().next_id()
        calls = {
            "plain": task.submit("plain"),
            "urgent": task.with_options(priority="urgent").submit("urgent"),
            "keyed": task.with_options(key="k1").submit("keyed"),
            "again": task.with_options(key="k2").submit("again"),
            "bad": task.with_options(max_attempts=3).submit("bad"),
        }
        names = list(calls)
        waiting = [asyncio.ensure_future(call) for call in calls.values()]
        await until(lambda: server.producers and len(server.producers[0].ids()) == 5, "all were sent")
        (peer,) = server.producers
        receipts = {
            "keyed": producer_pb2.SubmitReceipt(code=producer_pb2.SUBMIT_CONFLICT, id=older.bytes),
            "again": producer_pb2.SubmitReceipt(code=producer_pb2.SUBMIT_DUPLICATE, id=older.bytes),
            "bad": producer_pb2.SubmitReceipt(
                code=producer_pb2.SUBMIT_REFUSED,
                error=jobs_pb2.Error(code="too_large", message="payload: too much", field="payload"),
            ),
        }
        for frame in peer.frames():
            bodies = [*frame.plain.payloads, *(job.payload for job in frame.jobs)]
            exceptions = []
            for place, body in enumerate(bodies):
                for name, receipt in receipts.items():
                    if f'"{name}"'.encode() in body:
                        receipt.index = place
                        exceptions.append(receipt)
            peer.reply(frame.seq, *exceptions)
        done: dict[str, Any] = dict(zip(names, await asyncio.gather(*waiting, return_exceptions=True), strict=True))
        assert done["plain"].created
        assert done["urgent"].created
        assert (done["again"].id, done["again"].created) == (older, False)
        assert isinstance(done["keyed"], SubmitConflict)
        assert done["keyed"].first == older
        assert 'key "k1"' in str(done["keyed"])
        assert isinstance(done["bad"], SubmitRefused)
        assert (done["bad"].field, done["bad"].problem, done["bad"].reported) == ("payload", "too much", "too_large")


async def test_options_travel_with_the_job() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app, max_attempts=5, tags=["a"])
        due = datetime.now(UTC) + timedelta(hours=1)
        chosen = new_id_maker().next_id()
        await task.submit(
            "x",
            options={
                "priority": 7,
                "run_at": due,
                "retry": RetryPolicy.fixed(timedelta(seconds=3)),
                "key": "k",
                "key_window": 60,
                "headers": {"trace": "1"},
                "id": chosen,
            },
        )
        await task.with_options(delay=1.5, max_attempts=2).submit("y")
        peer = await server.producer(frames=2)
        (one,), (two,) = [list(frame.jobs) for frame in peer.frames()]
        assert (one.id, one.topic, one.priority, one.declared.max_attempts, list(one.tags)) == (
            chosen.bytes,
            "mail",
            7,
            5,
            ["a"],
        )
        assert one.run_at_us == int(due.timestamp() * 1_000_000)
        assert (one.retry.kind, one.retry.base_ms) == (producer_pb2.RetryPolicy.FIXED, 3000)
        assert (one.key, one.key_window_ms, dict(one.headers)) == ("k", 60_000, {"trace": "1"})
        assert not one.new_id  # the caller's own id may have been sent before
        assert (two.delay_ms, two.max_attempts, two.run_at_us, two.new_id) == (1500, 2, 0, True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"priority": "soon"}, "priority"),
        ({"priority": 2**31}, "priority"),
        ({"delay": 1, "run_at": datetime.now(UTC)}, "run_at"),
        ({"run_at": datetime(2026, 1, 1)}, "run_at"),  # noqa: DTZ001
        ({"deadline": datetime.now(UTC)}, "deadline"),
        ({"deadline": datetime(2026, 1, 1)}, "deadline"),  # noqa: DTZ001
        ({"deadline": 0}, "deadline"),
        ({"deadline": -1}, "deadline"),
        ({"deadline": float("nan")}, "deadline"),
        ({"deadline": True}, "deadline"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": 60, "delay": 60}, "deadline"),
        ({"deadline": 60, "run_at": datetime.now(UTC) + timedelta(hours=1)}, "deadline"),
        ({"deadline": datetime.now(UTC) + timedelta(minutes=1), "delay": 3600}, "deadline"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"key_window": 5}, "key_window"),
        ({"headers": {"a b": "c"}}, "headers name"),
        ({"tags": "abc"}, "tags"),
        ({"retry": 3}, "retry"),
        ({"id": "nope"}, "id"),
        ({"timeout": 0}, "timeout"),
        ({"colour": "red"}, "options"),
    ],
)
async def test_bad_options_are_refused_before_the_network(options: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await mail(Headgate(GONE)).submit("x", options=options)
    assert caught.value.field == field


def test_the_retry_kinds_of_the_domain_and_the_wire_are_the_same() -> None:
    assert {kind.name: int(kind) for kind in BackoffKind} == dict(producer_pb2.RetryPolicy.Kind.items())


@pytest.mark.req("O17")
async def test_a_frame_without_a_reply_is_sent_again_without_new_id_after_a_reconnect() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        server.answers_submits = False
        waiting = [asyncio.ensure_future(task.submit(f"{n}")) for n in range(3)]
        waiting.append(asyncio.ensure_future(task.with_options(tags=["t"]).submit("special")))
        await until(lambda: server.producers and len(server.producers[0].ids()) == 4, "all were sent")
        first = server.producers[0]
        server.answers_submits = True
        first.end(grpc.StatusCode.UNAVAILABLE, "going away")
        handles = await asyncio.gather(*waiting)
        second = server.producers[1]
        assert sorted(second.ids()) == sorted(first.ids()) == sorted(handle.id.bytes for handle in handles)
        for frame in second.frames():
            assert not frame.plain.new_id
            assert not any(job.new_id for job in frame.jobs)


async def test_the_next_address_is_tried_when_one_is_gone() -> None:
    async with fake_server() as server:
        for url in (f"{GONE},{server.address}", f"{server.address},{GONE}"):
            async with Headgate(url) as app:
                await mail(app).submit("x", options={"timeout": 10})


async def test_a_refused_frame_is_tried_again_if_the_server_allows_it_and_an_error_if_not() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        server.answers_submits = False
        waiting = asyncio.ensure_future(task.submit("x"))
        peer = await server.producer()
        peer.reply(1, error=jobs_pb2.Error(code="overloaded", message="slow down", retry_after_ms=10))
        await server.producer(frames=2)
        assert peer.ids()[0] == peer.ids()[1]
        peer.reply(2, error=jobs_pb2.Error(code="invalid_input", message="topic: is closed", field="topic"))
        with pytest.raises(SubmitRefused, match="topic: is closed"):
            await waiting


async def test_without_an_answer_the_error_has_the_address_and_the_next_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And a warning is logged after a second, long before the deadline of the submit or of a call."""
    app = Headgate(GONE)
    reading = asyncio.ensure_future(app.get(new_id_maker().next_id()))
    with pytest.raises(NotConnected) as caught:
        await mail(app).submit("x", options={"timeout": 4})
    assert str(caught.value) == (
        f"cannot reach a Headgate server at {GONE} (connection refused); start one with `headgate dev`, or set "
        "HEADGATE_URL to the address of another"
    )
    warnings = [record.getMessage() for record in caplog.records if record.name == "headgate.client"]
    assert sum(line.startswith(f'no_answer server={GONE} jobs=1 error="cannot reach') for line in warnings) == 1
    assert sum(line.startswith(f'no_answer server={GONE} error="cannot reach') for line in warnings) == 1
    reading.cancel()
    with pytest.raises(NotConnected, match=GONE):
        await asyncio.wrap_future(app._connection.start_wait(new_id_maker().next_id(), timeout=0.2))
    await app.close(flush=0)


async def test_what_was_sent_and_not_acknowledged_says_which_job_may_exist() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        await task.submit("connected")  # else it may not be sent in time
        server.answers_submits = False
        with pytest.raises(NotAcknowledged, match="may have been stored") as caught:
            await task.submit("x", options={"timeout": 2})
        peer = await server.producer()
        assert caught.value.job_id is not None
        assert peer.ids()[1:] == [caught.value.job_id.bytes]
        await app.close(flush=0)


async def test_what_no_server_could_store_in_time_says_why() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        server.refuses_submits = jobs_pb2.Error(code="read_only", message="the database is read-only: set it to off")
        with pytest.raises(
            NotAcknowledged, match=r"\(the database is read-only: set it to off\); it may have been stored"
        ):
            await mail(app).submit("x", options={"timeout": 2})


async def test_a_refused_token_fails_at_once() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        server.refuses = grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(Unauthenticated, match="HEADGATE_TOKEN"):
            await mail(app).submit("x")
        server.refuses = None
        await mail(Headgate(server.address)).submit("x")


async def test_a_closed_client_raises_an_error_and_sends_what_waits_first() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        task = mail(app)
        server.answers_submits = False
        waiting = asyncio.ensure_future(task.submit("x"))
        peer = await server.producer()
        closing = asyncio.ensure_future(app.close())
        await asyncio.sleep(0)
        peer.reply(1)
        await closing
        assert (await waiting).created
        with pytest.raises(Closed):
            await task.submit("y")
        with pytest.raises(Closed):
            await app.get(new_id_maker().next_id())
        await app.close()
        unused = Headgate(server.address)
        await unused.close()
        with pytest.raises(Closed):
            await mail(unused).submit("z")


def small(address: str, capacity: int) -> Headgate:
    """A client that keeps no more than so many jobs until they are answered."""
    app = Headgate(address)
    app._connection = Connection(addresses_of(address), token="", capacity=capacity)
    return app


async def test_a_full_outbox_makes_submits_wait_their_turn() -> None:
    async with fake_server() as server, small(server.address, 3) as app:
        task = mail(app)
        server.answers_submits = False
        waiting = [asyncio.ensure_future(task.submit(f"{n}")) for n in range(6)]
        left = asyncio.ensure_future(task.submit("changes its mind"))
        many = asyncio.ensure_future(task.submit_many([("a",), ("b",)]))
        await until(lambda: server.producers and len(server.producers[0].ids()) == 3, "three were sent")
        with pytest.raises(OutboxFull):
            await task.submit("does not wait", options={"when_busy": "raise"})
        with pytest.raises(OutboxFull, match=r"after 0\.05 s"):
            await task.submit("does not wait long", options={"timeout": 0.05})
        with pytest.raises(OutboxFull):
            await task.submit_many([(f"{n}",) for n in range(4)])  # more than there ever is capacity for
        left.cancel()
        peer = server.producers[0]
        server.answers_submits = True
        for frame in peer.frames():
            peer.reply(frame.seq)
        await asyncio.gather(*waiting, many)
        assert [payload for frame in peer.frames() for payload in frame.plain.payloads] == [
            *(f'{{"to":"{n}"}}'.encode() for n in range(6)),
            b'{"to":"a"}',
            b'{"to":"b"}',
        ]
        await task.submit("capacity again", options={"when_busy": "raise"})


async def test_a_full_outbox_blocks_threads_until_there_is_capacity() -> None:
    async with fake_server() as server, small(server.address, 1) as app:
        task = mail(app)
        server.answers_submits = False
        waiting = [asyncio.ensure_future(asyncio.to_thread(app.sync.submit, task, f"{n}")) for n in range(3)]
        await until(lambda: server.producers and len(server.producers[0].ids()) == 1, "one was sent")
        with pytest.raises(OutboxFull):
            await asyncio.to_thread(app.sync.submit, task.with_options(timeout=0.05), "impatient")
        peer = server.producers[0]
        server.answers_submits = True
        peer.reply(peer.frames()[0].seq)
        await asyncio.gather(*waiting)
        assert len(peer.ids()) == 3


@pytest.mark.parametrize("blocking", [False, True])
async def test_the_time_that_a_submit_waits_for_capacity_is_part_of_its_timeout(blocking: bool) -> None:
    async with fake_server() as server, small(server.address, 1) as app:
        task = mail(app)
        server.answers_submits = False
        first = asyncio.ensure_future(task.submit("first"))
        peer = await server.producer()
        io, producer, _ = app._connection._opened()
        call = asyncio.to_thread(app.sync.submit, task, "second") if blocking else task.submit("second")
        second = asyncio.ensure_future(call)
        await until(lambda: producer.capacity._queue, "it waits for capacity")
        latest = io.loop.time() + SUBMIT_TIMEOUT
        peer.reply(1)
        await server.producer(frames=2)
        (sent,) = producer._in_flight.values()
        assert sent.submits[0].deadline <= latest
        peer.reply(2)
        await asyncio.gather(first, second)


BUSY = jobs_pb2.Error(code="overloaded", message="submits: 16000 rows wait", retry_after_ms=40)


async def test_an_overloaded_server_is_given_time_and_then_the_same_frames_in_their_order() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        server.answers_submits = False
        waiting = []
        for number in range(3):
            waiting.append(asyncio.ensure_future(task.submit(f"{number}")))
            await server.producer(frames=number + 1)
        peer = server.producers[0]
        began = asyncio.get_running_loop().time()
        for seq in (1, 2, 3):  # all are refused before the first may go out again
            peer.reply(seq, error=jobs_pb2.Error(code="overloaded", message="wait", retry_after_ms=1_000))
        server.answers_submits = True
        handles = await asyncio.gather(*waiting)
        assert asyncio.get_running_loop().time() - began >= 1.0
        (again,) = peer.frames()[3:]
        assert list(again.plain.ids) == [handle.id.bytes for handle in handles]
        assert again.plain.new_id  # nothing was written, so there is no twin to look for


async def test_a_submit_that_does_not_wait_for_an_overloaded_server_fails_at_once() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        server.refuses_submits = BUSY
        with pytest.raises(Overloaded, match="16000 rows wait") as caught:
            await task.submit("x", options={"when_busy": "raise"})
        assert caught.value.retry_after == 0.04
        waiting = asyncio.ensure_future(task.submit("y", options={"timeout": 2}))
        await server.producer(frames=2)
        # Once more, and then not again for long: when its time is up, it must not be on its way just then.
        server.refuses_submits = jobs_pb2.Error(code="overloaded", message="16000 rows wait", retry_after_ms=60_000)
        with pytest.raises(Overloaded):  # and not NotAcknowledged: it is known that it was not stored
            await waiting
        assert len(server.producers[0].frames()) >= 3  # it was tried again meanwhile
        with pytest.raises(InvalidInput, match="when_busy"):
            task.with_options(when_busy="later")


@pytest.mark.parametrize("code", ["overloaded", "permission_denied"])
async def test_what_was_sent_before_may_be_stored_whatever_is_answered_when_it_is_sent_again(code: str) -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        server.answers_submits = False
        waiting = asyncio.ensure_future(task.submit("x", options={"when_busy": "raise", "timeout": 3}))
        peer = await server.producer()
        server.answers_submits = True
        server.refuses_submits = jobs_pb2.Error(code=code, message="no", retry_after_ms=60_000 * (code == "overloaded"))
        peer.end(grpc.StatusCode.UNAVAILABLE, "gone")
        with pytest.raises(NotAcknowledged, match="may have been stored"):
            await waiting
        assert len(server.producers) == 2


@pytest.mark.parametrize("code", ["internal", "store_error", "storage_full"])
async def test_trouble_of_the_server_is_not_called_a_fault_of_the_job(code: str) -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        server.refuses_submits = jobs_pb2.Error(code=code, message="the database refused: invalid page")
        with pytest.raises(ServerError, match="invalid page") as caught:
            await mail(app).submit("x")
        assert caught.value.reported == code


async def test_a_submit_without_a_turn_behind_others_gets_overloaded_and_not_not_connected() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        server.answers_submits = False
        behind = []
        for number in range(WINDOW):
            behind.append(asyncio.ensure_future(task.submit(f"{number}", options={"timeout": 60})))
            await server.producer(frames=number + 1)
        with pytest.raises(Overloaded, match="had no turn"):
            await task.submit("x", options={"timeout": 0.1})
        server.answers_submits = True
        for frame in server.producers[0].frames():
            server.producers[0].reply(frame.seq)
        await asyncio.gather(*behind)
