"""The standard health service: whether this instance is ready, asked once or watched. A watch ends with the drain.

It needs no token, so its requests are not read: a stranger could send 8 MB of them. Every service that is asked about
gets the same answer.
"""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2

from headgate.api.grpc.errors import GONE
from headgate.api.grpc.methods import Context, Serve, grpc_service, unread_stream, unread_unary
from headgate.api.grpc.peers import PeerStreams

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """Ready or not, as a whole: all services of an instance stand and fall with its database."""

    def __init__(self) -> None:
        self.ready = False
        self._over = False
        self._changed = asyncio.Event()

    def set(self, *, ready: bool) -> None:
        """Ready from now on, or not."""
        self._tell(ready=ready)

    def drain(self) -> None:
        """Not ready any more. Who watches is told, and then let go: a watch would outlast any grace."""
        self._over = True
        self._tell(ready=False)

    def _tell(self, *, ready: bool) -> None:
        self.ready = ready
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def methods(self, *peers: PeerStreams) -> grpc.GenericRpcHandler:
        """The service as gRPC wants it; each of `peers` bounds the watches."""
        watch: Serve = self.watch
        for one in peers:
            watch = one.bounded(watch)
        told = health_pb2.HealthCheckResponse
        return grpc_service(
            "grpc.health.v1.Health",
            {"Check": unread_unary(self.check, told), "Watch": unread_stream(watch, told)},
        )

    async def check(self, _requests: object, _context: Context) -> health_pb2.HealthCheckResponse:
        """How it is now."""
        return health_pb2.HealthCheckResponse(status=_SERVING if self.ready else _NOT_SERVING)

    async def watch(self, _requests: object, context: Context) -> None:
        """How it is, at every change."""
        last = None
        try:
            while True:
                changed, status = self._changed, _SERVING if self.ready else _NOT_SERVING
                if status != last:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    last = status
                if self._over:
                    return
                await changed.wait()
        except GONE:
            raise asyncio.CancelledError from None  # it watches no longer
