"""The standard reflection service, for development: lists services and methods.

Uses the library's answers with our own deserializer: theirs raises on invalid bytes, which gRPC reports as UNKNOWN.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeAlias

import grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha import reflection_pb2 as pb

from headgate.api.grpc.errors import GONE, end_with
from headgate.api.grpc.methods import bidi_stream, grpc_service, next_message
from headgate.api.grpc.peers import PeerStreams
from headgate.control.permissions import REFLECTION
from headgate.domain.errors import HeadgateError

Call: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Reflection:
    """Describes these services."""

    def __init__(self, services: Iterable[str]) -> None:
        self._answers = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME))

    async def info(self, _requests: object, stream: Call) -> None:
        """One answer for each request."""
        try:
            while (question := await next_message(stream, pb.ServerReflectionRequest)) is not None:
                # The type stubs declare the generator as a coroutine.
                async for answer in self._answers.ServerReflectionInfo(_only(question), stream):  # type: ignore[attr-defined]
                    await stream.write(answer)
        except HeadgateError as error:
            await end_with(stream, error)
        except GONE:
            raise asyncio.CancelledError from None  # the peer has left

    def methods(self, peers: PeerStreams) -> grpc.GenericRpcHandler:
        """The service's methods; `peers` bounds the streams."""
        info = bidi_stream(peers.bounded(self.info), pb.ServerReflectionRequest, pb.ServerReflectionResponse)
        return grpc_service(reflection.SERVICE_NAME, {"ServerReflectionInfo": info}, rules=REFLECTION)


async def _only(question: pb.ServerReflectionRequest) -> AsyncIterator[pb.ServerReflectionRequest]:
    yield question
