"""The worker's stream and its unary twins, frame by frame, against a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.stream.tokens import ALPHA, TOKENS
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import Wire, served


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker-stream")


@pytest.fixture(scope="package")
def the_server(postgres: Server, template: str, folder: Path) -> Iterator[ServerProcess]:
    """One for all of them: leases of 10 s, which a busy machine keeps without beats, tokens from a file."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--lease", "10", "--tokens", str(tokens)) as (server, _):
        yield server


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(server.address, token=ALPHA) as wire:
        yield wire


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"topic-{uuid4()}"
