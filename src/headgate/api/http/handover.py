"""Responses of which the server must know whether the client has got them, or has left: claimed jobs, streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Protocol, TypeVar, cast

from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Message, Receive, Scope, Send

from headgate.api.http.edge import HEAD

Body = TypeVar("Body")
Item = TypeVar("Item")
Sent = TypeVar("Sent", covariant=True)


class HandedOver(Protocol):
    """What a response hands over; `give_back` does nothing after `written`."""

    def written(self) -> None: ...
    def give_back(self) -> None: ...


class HandoverResponse(Response[Body]):
    """A response whose content goes back when the client leaves before all of it is written."""

    def __init__(self, content: Body, handed: HandedOver) -> None:
        super().__init__(content)
        self.handed = handed

    def to_asgi_response(self, *given: Any, **named: Any) -> ASGIResponse:
        """As it is sent."""
        try:
            plain = super().to_asgi_response(*given, **named)
        except BaseException:
            self.handed.give_back()
            raise
        return _Handover(plain, self.handed)


class _Handover(ASGIResponse):
    def __init__(self, plain: ASGIResponse, handed: HandedOver) -> None:
        super().__init__(status_code=plain.status_code)
        self.plain, self.handed = plain, handed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it in chunks: the client has it with the last one, which is empty, and not before.

        With a content length it could leave as soon as it has all bytes, and that would look like leaving too early.
        """
        del scope
        try:
            with _client(receive) as left:
                headers = [(name, value) for name, value in self.plain.encode_headers() if name != b"content-length"]
                await send(_start(self.plain.status_code, headers))
                await send(_part(self.plain.body))
                await send(_part(b""))  # waits until most of it is with the kernel
                for _ in range(3):  # for the loop to notice a connection that is lost
                    await asyncio.sleep(0)
                if not left.done():
                    await send(_part(b"", more=False))
                    self.handed.written()
        finally:
            self.handed.give_back()


class Source(Protocol[Sent]):
    """What a stream sends. `overdue` returns when it should have ended, and the client does not take the end."""

    def __aiter__(self) -> AsyncIterator[Sent]: ...
    async def aclose(self) -> None: ...
    async def overdue(self) -> None: ...


class StreamResponse(Response[bytes]):
    """A stream of text that ends when its source does, or when the client leaves; the source is closed then."""

    def __init__(self, source: Source[Item], encode: Callable[[Item], bytes], *, media_type: str) -> None:
        super().__init__(b"", media_type=media_type)
        self.source: Source[Any] = source
        self.encode: Callable[[Any], bytes] = encode

    def to_asgi_response(self, *given: Any, **named: Any) -> ASGIResponse:
        """As it is sent."""
        return _Stream(super().to_asgi_response(*given, **named), self.source, self.encode)


class _Stream(ASGIResponse):
    def __init__(self, plain: ASGIResponse, source: Source[Any], encode: Callable[[Any], bytes]) -> None:
        super().__init__(status_code=plain.status_code)
        self.plain, self.source, self.encode = plain, source, encode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send parts until the end of the source or of the connection."""
        headers = [(name, value) for name, value in self.plain.encode_headers() if name != b"content-length"]
        with _client(receive) as left:
            sending = asyncio.create_task(self._send(headers, send, head=bool(scope.get(HEAD))))
            overdue = asyncio.create_task(self.source.overdue(), name="end of a response")
            try:
                await asyncio.wait((sending, left, overdue), return_when=asyncio.FIRST_COMPLETED)
            finally:
                overdue.cancel()
                if not sending.done():
                    sending.cancel()
                    await asyncio.wait((sending,))
            if not sending.cancelled():
                sending.result()

    async def _send(self, headers: list[tuple[bytes, bytes]], send: Send, *, head: bool) -> None:
        async with aclosing(self.source) as source:
            await send(_start(self.plain.status_code, headers))
            if not head:
                async for item in source:
                    await send(_part(self.encode(item)))
            await send(_part(b"", more=False))


@contextmanager
def _client(receive: Receive) -> Iterator[asyncio.Task[None]]:
    """A task that ends when the client has left, whose request was read."""
    left = asyncio.create_task(_left(receive), name="client of a response")
    try:
        yield left
    finally:
        left.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    return cast("Message", {"type": "http.response.start", "status": status, "headers": headers})


def _part(body: bytes, *, more: bool = True) -> Message:
    return cast("Message", {"type": "http.response.body", "body": body, "more_body": more})
