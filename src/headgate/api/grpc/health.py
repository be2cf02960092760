"""The standard health service: whether this instance is ready, asked once or watched. A watch ends with the drain.

Not by the generated servicer: its readers raise on what is no message, and gRPC calls that UNKNOWN.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2

from headgate.api.grpc.errors import GONE
from headgate.api.grpc.methods import server_stream, unary

Call: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


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

    def methods(self) -> grpc.GenericRpcHandler:
        """The service as gRPC wants it."""
        asked, told = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        return grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health",
            {"Check": unary(self.check, asked, told), "Watch": server_stream(self.watch, asked, told)},
        )

    async def check(self, request: health_pb2.HealthCheckRequest, context: Call) -> health_pb2.HealthCheckResponse:
        """How it is now; NOT_FOUND for a single service, as they are not told apart."""
        if request.service:
            await context.abort(grpc.StatusCode.NOT_FOUND, "ask for the whole server: leave the service empty")
        return health_pb2.HealthCheckResponse(status=_SERVING if self.ready else _NOT_SERVING)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: Call) -> None:
        """How it is, at every change."""
        last = None
        try:
            while True:
                changed, known = self._changed, not request.service
                status = (_SERVING if self.ready else _NOT_SERVING) if known else _UNKNOWN
                if status != last:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    last = status
                if self._over:
                    return
                await changed.wait()
        except GONE:
            raise asyncio.CancelledError from None  # it watches no longer
