"""Every call of every service, found in the descriptions and not in a list, and how one is made and judged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import TimeoutError as TooLong
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headgate.wire import producer_pb2, worker_pb2
from tests.support.wire import SERVICE_FILES

T = TypeVar("T")
FILES = (
    *SERVICE_FILES,
    health_pb2,
    reflection_pb2,
)
FAULTS = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS})
"""What a server says when it is at its wits' end. Nothing that a peer sends may bring it there."""
OUR_OWN = "Internal error from Core"
"""What grpc.aio says by itself of a write to a stream whose end it had not noticed yet."""
CALL_SECONDS = 5.0
LISTEN_SECONDS = 0.05
"""How long a stream that stays open is listened to."""
HELLO = {
    "headgate.v1.WorkerService.Work": lambda: worker_pb2.WorkerFrame(
        hello=worker_pb2.Hello(worker_id=f"fuzz-{uuid4()}")
    ).SerializeToString(),
    "headgate.v1.ProducerService.Produce": lambda: producer_pb2.ProducerFrame(
        hello=producer_pb2.ProducerHello()
    ).SerializeToString(),
}
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True)
class Method:
    """One call: its name, what it takes, whether it streams."""

    name: str
    path: str
    request: Descriptor
    many_in: bool
    many_out: bool


def all_methods() -> list[Method]:
    """Of all services in the descriptions; a new one is fuzzed without anybody's help."""
    return [_method(one) for file in FILES for service in _services(file) for one in service]


def _services(file: Any) -> list[Sequence[MethodDescriptor]]:
    return [service.methods for service in file.DESCRIPTOR.services_by_name.values()]


def _method(found: MethodDescriptor) -> Method:
    service = found.containing_service.full_name
    return Method(
        name=found.full_name,
        path=f"/{service}/{found.name}",
        request=found.input_type,
        many_in=found.client_streaming,
        many_out=found.server_streaming,
    )


class Caller:
    """Makes calls on a loop of its own, so that tests and programs without one can ask."""

    def __init__(self, address: str, *, token: str) -> None:
        self._token = token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fuzz calls", daemon=True)
        self._thread.start()
        self._channel = self.run(self._open(address))

    async def _open(self, address: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=OPTIONS)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something on the loop, not forever."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(4 * CALL_SECONDS)
        except TooLong:
            future.cancel()
            raise AssertionError(f"the server did not answer for {4 * CALL_SECONDS:g} s") from None

    def close(self) -> None:
        self.run(self._channel.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, method: Method, frames: Sequence[bytes]) -> grpc.StatusCode:
        """Make a call of raw bytes; fails if the server is at fault."""
        status, details = self.run(self._ask(method, frames))
        if details.startswith(OUR_OWN):
            return grpc.StatusCode.CANCELLED
        assert status not in FAULTS, f"{method.name} answered {status.name}: {details}"
        return status

    async def _ask(self, method: Method, frames: Sequence[bytes]) -> tuple[grpc.StatusCode, str]:
        metadata = (("authorization", f"Bearer {self._token}"),)
        call: Any
        if method.many_in:
            call = self._channel.stream_stream(method.path)(metadata=metadata)
            if (hello := HELLO.get(method.name)) is not None and frames[0][:1] != b"\xff":
                frames = [hello(), *frames]
            return await self._converse(call, frames)
        if method.many_out:
            ask: Any = self._channel.unary_stream(method.path)
            return await self._converse(ask(frames[0], metadata=metadata), ())
        ask = self._channel.unary_unary(method.path)
        call = ask(frames[0], metadata=metadata, timeout=CALL_SECONDS)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

    async def _converse(self, call: Any, frames: Sequence[bytes]) -> tuple[grpc.StatusCode, str]:
        """Say everything, listen for a moment, and leave in the middle if the server has not ended it by then."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                for frame in frames:
                    await call.write(frame)
                if frames:
                    await call.done_writing()
            async with asyncio.timeout(LISTEN_SECONDS):
                while await call.read() is not grpc.aio.EOF:
                    pass
            return await call.code(), await call.details() or ""
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        except (TimeoutError, asyncio.InvalidStateError):
            if call.done():
                return await call.code(), await call.details() or ""
            call.cancel()
            return grpc.StatusCode.CANCELLED, "by us"
