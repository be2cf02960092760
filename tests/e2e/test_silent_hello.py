"""A server that takes connections and says nothing, as on a machine that stalls: no one waits there forever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from headgate import Headgate
from headgate.sdk.client import producer
from headgate.sdk.worker import stream
from tests.support.waiting import until_async


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Its address, and who has called."""
    callers: list[asyncio.StreamWriter] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer)
        with suppress(OSError):
            while await reader.read(65536):
                pass

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", callers
    finally:
        server.close()
        for writer in callers:
            writer.transport.abort()


async def test_a_client_calls_again_where_its_greeting_was_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "HELLO_SECONDS", 0.2)
    async with silent() as (address, callers):
        hg = Headgate(address)

        async def called_again() -> bool:
            return len(callers) >= 3

        try:
            asked = asyncio.create_task(hg.submit("mail", b"x", timeout=30))
            await until_async(called_again, "the client has called three times")
            asked.cancel()
            with suppress(asyncio.CancelledError):
                await asked
        finally:
            await hg.close(flush=0.1)


async def test_a_worker_calls_again_where_its_greeting_was_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HELLO_SECONDS", 0.2)
    async with silent() as (address, callers):
        hg = Headgate(address)

        @hg.job("mail")
        async def mail() -> None: ...

        async def called_again() -> bool:
            return len(callers) >= 3

        worker = asyncio.create_task(hg.work(grace=0.1))
        try:
            await until_async(called_again, "the worker has called three times")
        finally:
            worker.cancel()
            await asyncio.wait((worker,), timeout=10)
            await hg.close(flush=0.1)
