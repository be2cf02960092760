"""From bytes to calls. Every request is read within a deadline, and its size is checked before it is parsed.

gRPC itself would read the message of a unary call without a deadline, and keep its bytes until the call ends. So all
methods are registered as streams of requests; on the wire that is the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from headgate.api.errors import RequestTimeout
from headgate.api.grpc.auth import ADMISSION
from headgate.api.grpc.errors import end_with
from headgate.api.grpc.shapes import Shape
from headgate.control.permissions import RULES, Rule
from headgate.domain import failpoints, limits
from headgate.domain.errors import HeadgateError, InvalidInput, Overloaded, TooLarge

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Serve: TypeAlias = "Callable[[object, Context], Awaitable[None]]"
Method: TypeAlias = Callable[[Rule], Handler]
"""A method of a service, built when its rule is known."""


class Unreadable:
    """A message that was refused. gRPC would report an error of its deserializer as UNKNOWN."""

    def __init__(self, error: HeadgateError) -> None:
        self.error = error


def reader_of(kind: type[Request], rule: Rule) -> Callable[[bytes], Request | Unreadable]:
    """A deserializer that never raises, and does not parse a message with too many bytes or elements."""
    parse, most = kind.FromString, rule.max_bytes
    shape = Shape.of(cast("Descriptor", kind.DESCRIPTOR), rule.elements) if rule.elements else None
    garbage = f"cannot be read as {kind.DESCRIPTOR.full_name}"

    def read(raw: bytes) -> Request | Unreadable:
        if len(raw) > most:
            return Unreadable(TooLarge("message", size=len(raw), limit=most, hint="send less at once"))
        try:
            if shape is not None and len(raw) > limits.COUNTED_FROM_BYTES:
                shape.check(raw)
            return parse(raw)
        except DecodeError:
            return Unreadable(InvalidInput("message", garbage, hint="check the version of the client"))
        except TooLarge as error:
            return Unreadable(error.with_traceback(None))  # which would keep the message in memory

    return read


async def first_message(stream: Context, kind: type[Request], *, hello: bool = False) -> Request | None:
    """The first message of a call or a stream; None if there is none. Raises as `next_message` does.

    It waits until its credential has a free turn; then the message must be complete in time (RequestTimeout). The
    credential is checked again when the message has arrived: it may have been revoked meanwhile.
    """
    admission = ADMISSION.get()
    turns = admission.turns.hellos if hello else admission.turns.calls
    within = limits.HELLO_WITHIN if hello else limits.REQUEST_WITHIN
    if turns.locked():
        try:
            async with asyncio.timeout(limits.TURN_WITHIN.total_seconds()):
                await turns.acquire()
        except TimeoutError:
            waited = "too many requests with this token are incomplete"
            raise Overloaded(waited, retry_after_ms=limits.TURN_AGAIN_MS) from None
    else:
        await turns.acquire()
    try:
        async with asyncio.timeout(within.total_seconds()):
            message: object = await stream.read()
    except TimeoutError:
        raise RequestTimeout(within) from None
    finally:
        turns.release()
    admission.renew()
    if isinstance(message, Unreadable):
        raise message.error
    return message if isinstance(message, kind) else None  # else grpc.aio.EOF


async def next_message(stream: Context, kind: type[Request]) -> Request | None:
    """The next message of a stream; None at its end. Raises InvalidInput or TooLarge if it is refused."""
    message: object = await stream.read()
    if isinstance(message, Unreadable):
        raise message.error
    return message if isinstance(message, kind) else None  # else grpc.aio.EOF


def _missing(kind: type[Message]) -> InvalidInput:
    return InvalidInput("message", f"is missing; send one {kind.DESCRIPTOR.full_name}")


# ---------------------------------------------------------------------- kinds of methods


def unary(
    answer: Callable[[Request, Context], Awaitable[Response]], request: type[Request], response: type[Response]
) -> Method:
    """One request, one response; a HeadgateError that `answer` raises becomes the status of the call."""

    async def call(_requests: object, context: Context) -> Response:
        message = None
        try:
            message = await first_message(context, request)
            if message is None:
                raise _missing(request)
            reply = await answer(message, context)
            if failpoints.armed:
                await failpoints.armed.reach("call.before_reply")
            return reply
        except HeadgateError as error:
            del message  # otherwise it would stay in memory with the error: see end_with
            await end_with(context, error)

    def made(rule: Rule) -> Handler:
        return grpc.stream_unary_rpc_method_handler(call, reader_of(request, rule), response.SerializeToString)

    return made


def server_stream(
    serve: Callable[[Request, Context], Awaitable[None]],
    request: type[Request],
    response: type[Response],
    *,
    bounded: Callable[[Serve], Serve] = lambda serve: serve,
) -> Method:
    """One request, many responses. `bounded` applies before the request is read."""

    async def call(_requests: object, context: Context) -> None:
        try:
            message = await first_message(context, request)
            if message is None:
                raise _missing(request)
        except HeadgateError as error:
            await end_with(context, error)
        await serve(message, context)

    return bidi_stream(bounded(call), request, response)


def bidi_stream(serve: Serve, request: type[Request], response: type[Response]) -> Method:
    """Many requests, many responses; the service reads with `next_message`."""

    def made(rule: Rule) -> Handler:
        return grpc.stream_stream_rpc_method_handler(serve, reader_of(request, rule), response.SerializeToString)

    return made


def unread_unary(answer: Callable[[object, Context], Awaitable[Response]], response: type[Response]) -> Method:
    """One response to a request that is not read: for methods that require no token."""

    def made(_rule: Rule) -> Handler:
        return grpc.stream_unary_rpc_method_handler(answer, None, response.SerializeToString)

    return made


def unread_stream(serve: Serve, response: type[Response]) -> Method:
    """Many responses to a request that is not read."""

    def made(_rule: Rule) -> Handler:
        return grpc.stream_stream_rpc_method_handler(serve, None, response.SerializeToString)

    return made


def grpc_service(
    name: str, methods: Mapping[str, Method], *, rules: Mapping[str, Rule] = RULES
) -> grpc.GenericRpcHandler:
    """The handler of a service; a method without a rule is a KeyError."""
    return grpc.method_handlers_generic_handler(
        name, {method: made(rules[f"/{name}/{method}"]) for method, made in methods.items()}
    )


class UnaryService(Protocol):
    """A service of unary calls. For a method `ListJobs` of its protocol it has the function `list_jobs`."""

    protocol: ClassVar[ServiceDescriptor]


def unary_service(service: UnaryService) -> grpc.GenericRpcHandler:
    """The handler of a service; the protocol says which messages its methods take and return."""
    methods = {
        method.name: unary(
            getattr(service, re.sub("(?<=[a-z])(?=[A-Z])", "_", method.name).lower()),
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for method in service.protocol.methods
    }
    return grpc_service(service.protocol.full_name, methods)
