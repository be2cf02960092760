"""A producer's stream is read no further for a moment after a frame of it was refused, and at once after one taken."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from headgate.api.grpc import producer_service
from headgate.api.grpc.producer_service import ProducerParts, ProducerService
from headgate.wire import producer_pb2 as pb

HELLO = pb.ProducerFrame(hello=pb.ProducerHello(token="t"))


class Stream:
    """Gives frames one by one, and says how many were asked for."""

    def __init__(self, count: int) -> None:
        self._frames = [pb.ProducerFrame(seq=seq, plain=pb.PlainJobs(topic="mail")) for seq in range(1, count + 1)]
        self.read_so_far = 0
        self.ended = asyncio.Event()

    async def read(self) -> object:
        if not self._frames:
            self.ended.set()
            return grpc.aio.EOF
        self.read_so_far += 1
        return self._frames.pop(0)


class Service(ProducerService):
    """Refuses the frames that it is told to."""

    def __init__(self, refused: set[int]) -> None:
        super().__init__(cast("ProducerParts", None))
        self._refused = refused
        self.seen: list[int] = []
        self.refused_one = asyncio.Event()

    def _identify(self, *_: Any, **__: Any) -> Any:
        return None

    async def _take(self, identity: Any, frame: Any, account: Any, reply: Any, *, greeted: bool) -> bool:
        del identity, account, reply, greeted
        self.seen.append(frame.seq)
        if frame.seq in self._refused:
            self.refused_one.set()
        return frame.seq not in self._refused


async def test_frames_that_are_taken_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_service, "REFUSED_SECONDS", 3_600.0)
    service, stream = Service(refused=set()), Stream(5)
    async with asyncio.timeout(10):
        await service._read(cast("Any", stream), HELLO, "t", producer_service._Replies())
    assert service.seen == [1, 2, 3, 4, 5]


async def test_after_a_refused_frame_the_next_is_not_read_before_the_rest_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_service, "REFUSED_SECONDS", 3_600.0)
    service, stream = Service(refused={2}), Stream(5)
    reading = asyncio.create_task(service._read(cast("Any", stream), HELLO, "t", producer_service._Replies()))
    async with asyncio.timeout(10):
        await service.refused_one.wait()
        for _ in range(20):
            await asyncio.sleep(0)
    assert (service.seen, stream.read_so_far) == ([1, 2], 2)
    reading.cancel()
    await asyncio.wait((reading,))
    monkeypatch.setattr(producer_service, "REFUSED_SECONDS", 0.0)
    service, stream = Service(refused={2, 3}), Stream(5)
    async with asyncio.timeout(10):
        await service._read(cast("Any", stream), HELLO, "t", producer_service._Replies())
    assert service.seen == [1, 2, 3, 4, 5]
