"""The client: many jobs at once, blocking calls, results, forks and addresses."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import grpc
import pytest

from headgate import (
    Closed,
    ForkedProcess,
    Headgate,
    InvalidInput,
    JobCancelled,
    JobDead,
    NotAcknowledged,
    NotFound,
    Overloaded,
    PayloadError,
    ResultTimeout,
    SubmitManyError,
    SubmitRefused,
    SyncHeadgate,
)
from headgate.sdk.addresses import addresses_of
from headgate.sdk.ids import new_id_maker
from headgate.sdk.io_thread import io_thread
from headgate.wire import jobs_pb2, producer_pb2
from tests.support.fake_server import fake_server, on_io, until
from tests.unit.test_sdk_client import GONE, mail


async def test_submit_many_sends_arrays_in_frames_of_bounded_size() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        handles = await task.submit_many([*({"to": f"{n}"} for n in range(2000)), *((f"{n}", 2) for n in range(500))])
        (peer,) = server.producers
        assert [len(frame.plain.ids) for frame in peer.frames()] == [1000, 1000, 500]
        assert peer.ids() == [handle.id.bytes for handle in handles]
        assert peer.frames()[2].plain.payloads[0] == b'{"to":"0","copies":2}'
        big = await app.submit_many("raw", [b"x" * 400_000] * 5, priority=3)
        assert [len(frame.plain.ids) for frame in peer.frames()[3:]] == [2, 2, 1]
        assert list(peer.frames()[3].plain.priorities) == [3, 3]
        assert len(big) == 5
        special = await task.with_options(max_attempts=2).submit_many([("a",), ("b",)])
        assert [job.max_attempts for job in peer.frames()[6].jobs] == [2, 2]
        assert len(special) == 2
        assert await task.submit_many([]) == []


async def test_submit_many_names_what_was_refused_and_refuses_bad_calls_at_once() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)
        server.answers_submits = False
        waiting = asyncio.ensure_future(task.submit_many([("a",), ("b",)]))
        peer = await server.producer()
        refused = jobs_pb2.Error(code="invalid_input", message="no", field="x")
        peer.reply(1, producer_pb2.SubmitReceipt(index=1, code=producer_pb2.SUBMIT_REFUSED, error=refused))
        with pytest.raises(SubmitManyError) as caught:
            await waiting
        assert list(caught.value.errors) == [1]
        waiting = asyncio.ensure_future(task.submit_many([("a",), ("b",)]))
        await server.producer(frames=2)
        peer.reply(2, error=refused)
        with pytest.raises(SubmitRefused):
            await waiting
        for calls, says in [([{"to": 1}], "to"), ([{}], "to"), (["text"], "calls"), ([3], "calls")]:
            with pytest.raises(PayloadError, match=says):
                await task.submit_many(calls)
        with pytest.raises(InvalidInput, match="key"):
            await task.with_options(key="k").submit_many([("a",)])


async def test_one_client_serves_several_loops_and_threads() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        task = mail(app)

        def in_a_loop_of_its_own() -> bool:
            return bool(asyncio.run(task.submit("loop")).created)

        def in_a_thread() -> bool:
            return app.sync.submit(task, "thread").created and len(app.sync.submit_many(task, [("a",), ("b",)])) == 2

        calls = [asyncio.to_thread(in_a_loop_of_its_own) for _ in range(4)]
        calls += [asyncio.to_thread(in_a_thread) for _ in range(4)]
        assert await asyncio.gather(*calls, task.submit("here")) is not None
        assert len(server.producers) == 1
        assert len(server.producers[0].ids()) == 4 + 4 * 3 + 1


async def test_the_sync_client_has_the_same_calls() -> None:
    async with fake_server() as server:
        known, chosen = new_id_maker().make(2)
        server.jobs[known.bytes] = jobs_pb2.JobInfo(
            id=known.bytes, state=jobs_pb2.STATE_COMPLETED, result=b"[1]", topic="t", created_us=1
        )

        def script() -> None:
            with SyncHeadgate(server.address) as client:
                assert client.submit_to("t", {"a": 1}, priority=1).created
                assert len(client.submit_many_to("t", [b"1", b"2"])) == 2
                assert client.submit_to("t", b"3", id=chosen).id == chosen
                assert client.result(known) == [1]
                assert client.get(known).state == "completed"

        await asyncio.to_thread(script)
        assert [payload for frame in server.producers[0].frames() for payload in frame.plain.payloads] == [
            b'{"a":1}',
            b"1",
            b"2",
        ]
        (own,) = [job for frame in server.producers[0].frames() for job in frame.jobs]
        assert (own.id, own.new_id) == (chosen.bytes, False), "one of the caller's own may have been sent before"


async def test_results_are_decoded_as_the_function_says_and_failures_are_typed() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        handle = await mail(app).submit("x")

        def stands(state: jobs_pb2.State.ValueType, **more: Any) -> None:
            server.jobs[handle.id.bytes] = jobs_pb2.JobInfo(id=handle.id.bytes, state=state, **more)

        with pytest.raises(NotFound):
            await handle.info()
        stands(jobs_pb2.STATE_COMPLETED, result=b'{"sent":1}', worker="w", attempt=2)
        assert await handle.result() == {"sent": 1}
        assert (await handle.info()).worker == "w"
        assert await app.wait_result(handle.id) == {"sent": 1}
        with pytest.raises(PayloadError, match="result"):
            await handle.result(type=list[int])
        stands(jobs_pb2.STATE_COMPLETED)
        assert await handle.result() is None
        stands(jobs_pb2.STATE_DEAD, last_error="ValueError: no")
        with pytest.raises(JobDead, match="ValueError: no"):
            await handle.result()
        stands(jobs_pb2.STATE_CANCELLED)
        with pytest.raises(JobCancelled):
            await handle.result()
        stands(jobs_pb2.STATE_RUNNING)
        with pytest.raises(ResultTimeout, match="still running"):
            await handle.result(timeout=0.05)
        stands(jobs_pb2.STATE_RETRYING, last_error="ValueError: no\nline", run_at_us=1_800_000_000_000_000)
        with pytest.raises(ResultTimeout) as late:
            await handle.result(timeout=0.05)
        assert str(late.value) == (
            f"job {handle.id} is still retrying after 0.05 s; last error: ValueError: no line; "
            f"next try at 2027-01-15T08:00:00Z; ask again, allow more time, or see `headgate job get {handle.id}`"
        )


async def test_reads_survive_a_server_that_comes_back() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        known = new_id_maker().next_id()
        server.jobs[known.bytes] = jobs_pb2.JobInfo(id=known.bytes, state=jobs_pb2.STATE_COMPLETED, result=b"1")
        port = server.port
        await on_io(server.stop())
        waiting = asyncio.ensure_future(app.wait_result(known, timeout=60))
        await asyncio.sleep(0)
        await on_io(server.start(port))
        assert await waiting == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.UNAVAILABLE, ""),
        (grpc.StatusCode.UNAVAILABLE, "outcome_unknown"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ""),
        (grpc.StatusCode.CANCELLED, ""),
    ],
)
async def test_a_call_whose_answer_was_lost_is_not_made_twice_and_does_not_claim_that_nothing_happened(
    status: grpc.StatusCode, code: str
) -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        server.call_refusals = [(status, code, 100)]
        with pytest.raises(NotAcknowledged, match="may have taken effect"):
            await app.admin.jobs.redrive(new_id_maker().next_id())
        assert len(server.redrives) == 1


async def test_calls_go_on_when_another_one_of_their_client_was_refused() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        known = new_id_maker().next_id()
        server.jobs[known.bytes] = jobs_pb2.JobInfo(id=known.bytes, state=jobs_pb2.STATE_DEAD, created_us=1)
        server.answers_redrives.clear()
        redrive = asyncio.ensure_future(app.admin.jobs.redrive(known))
        await until(lambda: server.redrives, "it has arrived")
        server.call_refusals = [(grpc.StatusCode.UNAVAILABLE, "store_busy", 10)]
        assert (await app.get(known)).state == "dead"  # at the second try
        io_thread().loop.call_soon_threadsafe(server.answers_redrives.set)
        (change,) = await redrive
        assert (change.changed, len(server.redrives)) == (True, 1)


async def test_calls_that_wait_when_their_client_is_closed_say_so() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        server.answers_redrives.clear()
        redrive = asyncio.ensure_future(app.admin.jobs.redrive(new_id_maker().next_id()))
        await until(lambda: server.redrives, "it has arrived")
        await app.close()
        with pytest.raises(Closed):
            await redrive


async def test_a_call_that_was_refused_before_it_began_is_made_again() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        server.call_refusals = [(grpc.StatusCode.UNAVAILABLE, "store_busy", 10)]
        (change,) = await app.admin.jobs.redrive(new_id_maker().next_id())
        assert (change.changed, len(server.redrives)) == (True, 2)


async def test_a_call_waits_as_long_as_a_rate_limit_says_if_it_has_the_time() -> None:
    async with fake_server() as server, Headgate(server.address) as app:
        known, now = new_id_maker().next_id(), asyncio.get_running_loop().time
        server.jobs[known.bytes] = jobs_pb2.JobInfo(id=known.bytes, state=jobs_pb2.STATE_PENDING, created_us=1)
        limited = grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited"
        began, server.call_refusals = now(), [(*limited, 300)]
        assert (await app.get(known)).state == "pending"
        assert now() - began >= 0.3
        server.call_refusals = [(*limited, 60_000)]
        with pytest.raises(Overloaded) as caught:
            async with asyncio.timeout(30):
                await app.get(known)
        assert caught.value.retry_after == 60


def test_a_client_used_after_a_fork_raises_an_error() -> None:
    app = Headgate(GONE)
    task = mail(app)
    app._connection._opened()
    io = app._connection._open
    assert io is not None
    io[0].pid = os.getpid() + 1  # as a forked child sees it
    try:
        with pytest.raises(ForkedProcess, match="first use a client after the fork"):
            app.sync.submit(task, "x")
        with pytest.raises(ForkedProcess):
            app.sync.get(new_id_maker().next_id())
    finally:
        io[0].pid = os.getpid()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("queue", ["queue:7070"]),
        ("a:1, b:2,", ["a:1", "b:2"]),
        ("https://q.example", ["https://q.example:7070"]),
        ("grpc://[::1]:9", ["[::1]:9"]),
        (["a:1", "a:1"], ["a:1"]),
    ],
)
def test_addresses_are_read_in_their_usual_forms(url: Any, expected: list[str]) -> None:
    assert [str(address) for address in addresses_of(url)] == expected


@pytest.mark.parametrize("url", ["", ",", "ftp://a", "a:b", "http://u:p@h", "h:1/path", "a:99999"])
def test_an_address_that_is_none_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", ",")
    with pytest.raises(InvalidInput, match="url"):
        addresses_of(url or None)


def test_the_environment_names_server_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", "q:1,r:2")
    monkeypatch.setenv("HEADGATE_TOKEN", "secret")
    app = Headgate()
    assert [str(address) for address in app._connection.addresses] == ["q:1", "r:2"]
    assert app._connection.token == "secret"


def test_importing_the_package_does_not_import_grpc() -> None:
    import subprocess
    import sys

    code = "import sys, headgate.domain.ids; assert 'grpc' not in sys.modules; from headgate import Job, Nack; Nack(1)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ids_increase_over_threads() -> None:
    maker, made = new_id_maker(), list[Any]()

    def many() -> None:
        made.extend(maker.make(100) + [maker.next_id() for _ in range(100)])

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 800
