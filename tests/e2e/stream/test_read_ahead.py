"""Jobs that a worker has read ahead, and what becomes of them when its handlers begin to take their time."""

from __future__ import annotations

import asyncio

import pytest

from headgate.sdk import Headgate
from headgate.sdk.worker.read_ahead import ReadAhead
from headgate.wire import jobs_pb2
from tests.e2e.stream.tokens import ALPHA
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import Wire


async def test_jobs_read_ahead_behind_a_slow_handler_run_at_another_worker(
    server: ServerProcess, wire: Wire, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def handle(number: int) -> int:
        if number < 0:
            begun.set()
            await release.wait()
        return number

    # As after a time of short handlers; on a busy machine what is measured may be less.
    monkeypatch.setattr(ReadAhead, "_found", lambda _self, _passed: 100)
    async with asyncio.timeout(90), Headgate(server.address, token=ALPHA) as hg:
        task = hg.register(topic, handle)
        first, second = hg.worker(concurrency=1), hg.worker(concurrency=1)
        running = [asyncio.create_task(first.run())]
        try:
            quick = await task.submit_many([(number,) for number in range(1_000)])
            await quick[-1].result(60)  # by now the worker reads ahead

            slow = await task.submit(-1)
            await begun.wait()
            waiting = await task.submit_many([(number,) for number in range(30)])

            async def all_are_there() -> bool:
                infos = [await wire.job(one.id.bytes) for one in waiting]
                return all(info.state == jobs_pb2.STATE_RUNNING for info in infos)

            await until_async(all_are_there, "they wait behind the slow one")
            running.append(asyncio.create_task(second.run()))
            assert [await one.result(60) for one in waiting] == list(range(30))
            infos = [await one.info() for one in (slow, *waiting)]
            assert [info.attempt for info in infos] == [1] * 31
            assert infos[0].state == "running"
            release.set()
            await slow.result(60)
        finally:
            release.set()
            for worker in (first, second):
                worker.stop()
            await asyncio.gather(*running)
