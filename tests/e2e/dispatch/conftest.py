"""One server for these tests, and a client of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import asyncpg
import pytest

from headgate.store.connect import connect
from tests.e2e.dispatch.calls import ALPHA, TOKENS
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import Wire, served


@pytest.fixture(scope="package")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    """One server for the folder, with leases of 8 s and tokens of two tenants; and the URL of its database."""
    folder = tmp_path_factory.mktemp("dispatch")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--lease", "8", "--tokens", str(tokens)) as both:
        yield both


@pytest.fixture
def the_server(running: tuple[ServerProcess, str]) -> ServerProcess:
    return running[0]


@pytest.fixture
async def rows(running: tuple[ServerProcess, str]) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection to the server's database."""
    connection = await connect(running[1], application_name="headgate test")
    yield connection
    await connection.close()


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(server.address, token=ALPHA) as wire:
        yield wire


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4()}"
