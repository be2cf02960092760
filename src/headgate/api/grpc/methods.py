"""From bytes to calls: method handlers that answer what is no message at all with a sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from headgate.api.grpc.errors import end_with
from headgate.domain import failpoints
from headgate.domain.errors import HeadgateError, InvalidInput

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Unreadable:
    """What came could not be read as the message that was due. gRPC would call an error of its reader UNKNOWN."""


UNREADABLE: Final = Unreadable()


def reader_of(kind: type[Request]) -> Callable[[bytes], Request | Unreadable]:
    """A deserializer that never raises."""
    read = kind.FromString

    def read_or_say_so(raw: bytes) -> Request | Unreadable:
        try:
            return read(raw)
        except DecodeError:
            return UNREADABLE

    return read_or_say_so


def unreadable(kind: type[Message]) -> InvalidInput:
    """The error for bytes that are no `kind`."""
    return InvalidInput("message", f"cannot be read as {kind.DESCRIPTOR.full_name}", hint="is it of this protocol?")


async def next_message(stream: Context, kind: type[Request]) -> Request | None:
    """The next message of a stream; None at its end. Raises InvalidInput when it cannot be read."""
    message: object = await stream.read()
    if isinstance(message, Unreadable):
        raise unreadable(kind)
    return message if isinstance(message, kind) else None  # else grpc.aio.EOF


def unary(
    answer: Callable[[Request, Context], Awaitable[Response]], request: type[Request], response: type[Response]
) -> grpc.RpcMethodHandler[Any, Any]:
    """One message for one message; an error of ours that `answer` raises becomes the status of the call."""

    async def call(message: Request | Unreadable, context: Context) -> Response:
        if isinstance(message, Unreadable):
            await end_with(context, unreadable(request))
        try:
            reply = await answer(message, context)
            if failpoints.armed:
                await failpoints.armed.reach("call.before_reply")
            return reply
        except HeadgateError as error:
            await end_with(context, error)

    return grpc.unary_unary_rpc_method_handler(call, reader_of(request), response.SerializeToString)


def server_stream(
    serve: Callable[[Request, Context], Awaitable[None]], request: type[Request], response: type[Response]
) -> grpc.RpcMethodHandler[Any, Any]:
    """One message for many."""

    async def call(message: Request | Unreadable, context: Context) -> None:
        if isinstance(message, Unreadable):
            await end_with(context, unreadable(request))
        await serve(message, context)

    return grpc.unary_stream_rpc_method_handler(call, reader_of(request), response.SerializeToString)


def bidi_stream(
    serve: Callable[[object, Context], Awaitable[None]], request: type[Request], response: type[Response]
) -> grpc.RpcMethodHandler[Any, Any]:
    """Many for many; the service reads by `next_message`."""
    return grpc.stream_stream_rpc_method_handler(serve, reader_of(request), response.SerializeToString)
