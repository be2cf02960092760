"""Responses that are streams: how they end when the client does not read."""

from __future__ import annotations

import asyncio
from typing import Any, Self, cast

from litestar.response.base import ASGIResponse

from headgate.api.http.handover import _Stream


class Source:
    """One item after the other; overdue when a test says so."""

    def __init__(self) -> None:
        self.late, self.closed = asyncio.Event(), False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return "more"

    async def aclose(self) -> None:
        self.closed = True

    async def overdue(self) -> None:
        await self.late.wait()


async def test_a_response_that_is_overdue_ends_while_the_client_does_not_read() -> None:
    source, blocked = Source(), asyncio.Event()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            blocked.set()
            await asyncio.Event().wait()

    plain = ASGIResponse(media_type="text/event-stream")
    answer = _Stream(plain, source, str.encode)
    async with asyncio.timeout(30):
        running = asyncio.create_task(answer(cast("Any", {}), receive, send))
        await blocked.wait()
        assert not running.done()
        source.late.set()
        await running
    assert source.closed
