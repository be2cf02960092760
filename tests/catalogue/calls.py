"""Any unary call by its name, with the types that the descriptions give it."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.support.wire import SERVICE_FILES, WAIT, Ended, Wire

_ANSWERS = {
    f"{service.name}/{method.name}": GetMessageClass(method.output_type)
    for file in SERVICE_FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


async def ask(wire: Wire, path: str, request: Message | bytes) -> Any:
    """Make the call; raises grpc.aio.AioRpcError."""
    call: Any = wire.channel.unary_unary(f"/headgate.v1.{path}", response_deserializer=_ANSWERS[path].FromString)
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    return await call(raw, timeout=WAIT, metadata=wire.metadata, wait_for_ready=True)


async def refused(wire: Wire, path: str, request: Message | bytes) -> Ended:
    """How a call that must fail was refused."""
    try:
        answer = await ask(wire, path, request)
    except grpc.aio.AioRpcError as error:
        return Ended.of(error)
    raise AssertionError(f"{path} was not refused: {answer}")
