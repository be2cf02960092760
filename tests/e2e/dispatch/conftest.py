"""One server for these tests, and a client of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import pytest

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
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(server.address, token=ALPHA) as wire:
        yield wire
