"""The standard health service: whether this instance is ready. A watch ends when the instance drains.

It requires no token, so its requests are not read: an unknown peer could send 8 MB of them. The answer is the same for
every service name.
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
    """Ready or not, for all services together: they all depend on the database."""

    def __init__(self) -> None:
        self.ready = False
        self._over = False
        self._changed = asyncio.Event()

    def set(self, *, ready: bool) -> None:
        """Change the state; watchers are notified."""
        self._change(ready=ready)

    def drain(self) -> None:
        """Not ready any more. Watches get the change and end: an open one would outlast the drain."""
        self._over = True
        self._change(ready=False)

    def _change(self, *, ready: bool) -> None:
        self.ready = ready
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def methods(self, *peers: PeerStreams) -> grpc.GenericRpcHandler:
        """The service's methods; each of `peers` bounds the watches."""
        watch: Serve = self.watch
        for one in peers:
            watch = one.bounded(watch)
        response = health_pb2.HealthCheckResponse
        return grpc_service(
            "grpc.health.v1.Health",
            {"Check": unread_unary(self.check, response), "Watch": unread_stream(watch, response)},
        )

    async def check(self, _requests: object, _context: Context) -> health_pb2.HealthCheckResponse:
        """The current state."""
        return health_pb2.HealthCheckResponse(status=_SERVING if self.ready else _NOT_SERVING)

    async def watch(self, _requests: object, context: Context) -> None:
        """The current state, then every change."""
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
            raise asyncio.CancelledError from None  # the peer has left
