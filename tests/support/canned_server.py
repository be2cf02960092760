"""A server that answers every call of a method with the same message, for what a command makes of an answer.

It lives on the SDK's own I/O loop, because grpc.aio takes one loop per process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import grpc
import grpc.aio
from google.protobuf.message import Message

from headgate.sdk.io_thread import io_thread

Answers = Mapping[str, Message]
"""By the name of the method: `AdminService/Status`."""


class CannedServer(grpc.GenericRpcHandler):
    """Use as a context manager; a method without an answer is not served."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.address = ""
        self.asked: list[str] = []

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = handler_call_details.method.removeprefix("/headgate.v1.")
        if name not in self._answers:
            return None

        async def answer(_request: bytes, _call: object) -> bytes:
            self.asked.append(name)
            return self._answers[name].SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)

    def __enter__(self) -> Self:
        asyncio.run_coroutine_threadsafe(self._start(), io_thread().loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(None), io_thread().loop).result(30)

    async def _start(self) -> None:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
