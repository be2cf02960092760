"""What the SDK adds to the stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from headgate.domain.states import State
from headgate.sdk import Fail, Headgate, Job, JobDead, RetryPolicy
from headgate.store.connect import connect
from headgate.wire import jobs_pb2
from tests.e2e.conftest import Serve, Spawn
from tests.e2e.stream.tokens import ALPHA
from tests.support.epochs import claims
from tests.support.server import HEADGATE, ServerProcess, clean_environ
from tests.support.waiting import until_async
from tests.support.wire import Wire


@pytest.mark.req("P10")
async def test_a_call_without_a_priority_is_what_it_was_and_with_one_it_reaches_the_job(
    server: ServerProcess, wire: Wire, topic: str
) -> None:
    async with asyncio.timeout(60), Headgate(server.address, token=ALPHA) as hg:

        async def send(to: str) -> str:
            return to

        task = hg.register(topic, send)
        handles = {
            0: [await task.submit("a"), await hg.submit(topic, b"{}")],
            10: [await task.with_options(priority=10).submit("a"), await hg.submit(topic, b"{}", priority=10)],
            20: [await hg.submit(topic, b"{}", priority="urgent")],
        }
        for priority, made in handles.items():
            for handle in made:
                assert (await wire.job(handle.id.bytes)).priority == priority


@pytest.mark.req("L2")
async def test_a_lease_is_sixty_seconds_and_a_beat_a_third_of_it_unless_set_otherwise(serve: Serve, topic: str) -> None:
    usual = await asyncio.to_thread(serve)
    async with Wire(usual.address) as wire, wire.worker() as session:
        assert session.ack is not None
        assert (session.ack.lease_seconds, session.ack.beat_seconds) == (60, 20)
        await wire.submit(topic)
        await session.ready(1, topic)
        (job,) = await session.take(1)
        assert job.lease_until_us - (await wire.job(job.id)).claimed_us == 60_000_000
        await session.complete(job)
    shorter = await asyncio.to_thread(serve, "--lease", "6")
    async with Wire(shorter.address) as other, other.worker() as session:
        assert session.ack is not None
        assert (session.ack.lease_seconds, session.ack.beat_seconds) == (6, 2)

    # The SDK beats by its own lease: a handler that outlasts it several times is run once.
    async with asyncio.timeout(60), Headgate(shorter.address) as hg:
        leases: set[int] = set()

        async def long(*, job: Job) -> None:
            async with Wire(shorter.address) as look:

                async def renewed_three_times() -> bool:
                    leases.add((await look.job(job.id.bytes)).lease_until_us)
                    return len(leases) == 4

                await until_async(renewed_three_times, "the lease was renewed three times")

        task = hg.register(f"{topic}-long", long)
        worker = hg.worker(lease=2)
        running = asyncio.create_task(worker.run())
        handle = await task.submit()
        await handle.result(60)
        info = await handle.info()
        assert info.attempt == 1
        worker.stop()
        await running


async def test_a_handler_is_asked_to_stop_once_a_beat_finds_its_lease_gone(
    serve: Serve, database: str, topic: str
) -> None:
    server = await asyncio.to_thread(serve)
    db = await connect(database, application_name="headgate test")
    try:
        async with asyncio.timeout(60), Headgate(server.address) as hg:
            begun, stopped = asyncio.Event(), asyncio.Event()

            async def hold(*, job: Job) -> None:
                begun.set()
                assert not job.cancel_requested
                try:
                    await job.cancelled.wait_async()
                finally:
                    stopped.set()

            task = hg.register(topic, hold)
            worker = hg.worker(lease=1)
            running = asyncio.create_task(worker.run())
            handle = await task.submit()
            await begun.wait()
            # What a claim of another instance does after the lease has expired.
            await db.execute("UPDATE headgate.jobs SET epoch = epoch + 1, owner = 0, lease_until = now() + '1 hour'")
            await stopped.wait()
            worker.stop()
            await running
            assert await db.fetchval("SELECT state FROM headgate.jobs WHERE id = $1", handle.id) == State.RUNNING
            assert "applied" not in worker.receipts
    finally:
        await db.close()


@pytest.mark.req("W28")
async def test_a_handler_knows_its_attempt_and_how_many_there_are_and_may_give_up_early(
    server: ServerProcess, topic: str
) -> None:
    seen: list[tuple[int, int]] = []
    async with asyncio.timeout(60), Headgate(server.address, token=ALPHA) as hg:

        async def give_up(*, job: Job) -> None:
            seen.append((job.attempt, job.max_attempts))
            raise Fail("it cannot succeed", permanent=job.attempt == job.max_attempts - 1)

        task = hg.register(topic, give_up, max_attempts=3, retry=RetryPolicy.fixed(timedelta(milliseconds=10)))
        worker = hg.worker()
        running = asyncio.create_task(worker.run())
        handle = await task.submit()
        with pytest.raises(JobDead):
            await handle.result(30)
        worker.stop()
        await running
    assert seen == [(1, 3), (2, 3)]


@pytest.mark.req("W19", "W22")
async def test_handlers_run_side_by_side_and_one_that_raises_fails_its_job_only(
    server: ServerProcess, topic: str
) -> None:
    hg = Headgate(server.address, token=ALPHA)
    at_once, most = Counter[str](), Counter[str]()
    everybody = asyncio.Barrier(4)

    async def handle(number: int, *, job: Job) -> int:
        at_once["now"] += 1
        most["now"] = max(most["now"], at_once["now"])
        try:
            if number == 3:
                if job.attempt >= job.max_attempts:
                    raise ZeroDivisionError("given up early")
                raise AssertionError("not the last attempt")
            if number < 33:
                await everybody.wait()  # fails unless four run at a time
            return number
        finally:
            at_once["now"] -= 1

    task = hg.register(topic, handle, max_attempts=1)
    async with asyncio.timeout(60), hg:
        worker = hg.worker(concurrency=4, prefetch=28)  # 4 slots, batches of 8 and more: the same handler
        running = asyncio.create_task(worker.run())
        handles = await task.submit_many([(number,) for number in range(33)])
        results = await asyncio.gather(*(handle.result(60) for handle in handles), return_exceptions=True)
        assert [result for number, result in enumerate(results) if number != 3] == [*range(3), *range(4, 33)]
        assert isinstance(results[3], JobDead)
        assert "given up early" in str(results[3])
        assert most["now"] == 4
        assert worker.connected
        worker.stop()
        await running
    assert worker.receipts["applied"] == 33


@pytest.mark.req("W23")
async def test_sigterm_finishes_what_ends_within_the_grace_and_gives_back_the_rest(
    server: ServerProcess, wire: Wire, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(
        "import asyncio\n"
        "from headgate import Headgate\n"
        "hg = Headgate()\n"
        "@hg.job('sleeps')\n"
        "async def sleeps(seconds: float) -> str:\n"
        "    print('started', seconds, flush=True)\n"
        "    await asyncio.sleep(seconds)\n"
        "    return 'rested'\n"
    )
    environ = {**clean_environ(), "HEADGATE_URL": server.address, "HEADGATE_TOKEN": ALPHA}
    worker = spawn("worker", HEADGATE, "worker", "app:hg", "--grace", "6", "--concurrency", "2", environ=environ)
    short, long = await wire.submit_many("sleeps", [b'{"seconds": 0.7}', b'{"seconds": 60}'])
    waits = await wire.submit("sleeps", b'{"seconds": 0}')
    await asyncio.to_thread(worker.saw, "^started", times=2)
    assert await asyncio.to_thread(worker.terminate) == 0
    done, given_back, untouched = [await wire.job(job_id) for job_id in (short, long, waits)]
    assert (done.state, done.result) == (jobs_pb2.STATE_COMPLETED, b'"rested"')
    assert (given_back.state, given_back.attempt) == (jobs_pb2.STATE_PENDING, 0)
    assert [event.kind for event in given_back.events] == ["abandoned"]
    # Never claimed, returned before its turn, or done in the slot that came free.
    assert (untouched.state, claims(untouched.epoch)) in (
        (jobs_pb2.STATE_PENDING, 0),
        (jobs_pb2.STATE_PENDING, 1),
        (jobs_pb2.STATE_COMPLETED, 1),
    )


@pytest.mark.req("W24")
async def test_a_worker_survives_the_restart_of_its_server_by_itself(serve: Serve, topic: str) -> None:
    first = await asyncio.to_thread(serve)
    hg = Headgate(first.address)
    started, let_go, runs = asyncio.Event(), asyncio.Event(), Counter[UUID]()

    async def handle(*, job: Job) -> str:
        runs[job.id] += 1
        if len(runs) == 3:
            started.set()
        await let_go.wait()
        return "done"

    task = hg.register(topic, handle)
    async with asyncio.timeout(60), hg:
        worker = hg.worker(concurrency=4)
        running = asyncio.create_task(worker.run())
        before = [await task.submit() for _ in range(3)]
        await asyncio.wait_for(started.wait(), 60)
        first.kill()
        let_go.set()  # they end while there is no one to tell
        second = await asyncio.to_thread(serve, port=first.port)
        after = await task.submit()
        assert [await handle.result(60) for handle in (*before, after)] == ["done"] * 4
        assert set(runs.values()) == {1}
        worker.stop()
        await running
    assert second.exit_code is None
