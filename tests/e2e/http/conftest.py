"""One server for these tests, and clients of its REST API under several tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TypeAlias

import httpx
import pytest

from tests.support import http_clients
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import served

OWNER, OTHER, LIMITED, READER, SYSTEM = (f"token-{name}-xxxxxxxx" for name in ("own", "oth", "lim", "rea", "sys"))
OWN_ADMIN, OTHER_ADMIN, THIRD_ADMIN = (f"token-{name}-admin-xxxxxxxx" for name in ("own", "oth", "thi"))
ALL = ["submit", "work", "read", "operate"]
TOKENS: dict[str, dict[str, object]] = {
    OWNER: {"tenant": "own", "name": "owner", "scopes": ALL},
    OTHER: {"tenant": "other", "name": "other", "scopes": ALL},
    LIMITED: {"tenant": "own", "name": "limited", "scopes": ALL, "topics": ["mail"]},
    READER: {"tenant": "own", "name": "reader", "scopes": ["read"]},
    OWN_ADMIN: {"tenant": "own", "name": "admin", "scopes": ["admin"]},
    OTHER_ADMIN: {"tenant": "other", "name": "other admin", "scopes": ["admin"]},
    THIRD_ADMIN: {"tenant": "third", "name": "third admin", "scopes": ["admin"]},
    SYSTEM: {"name": "system", "scopes": ["system"]},
}
Client: TypeAlias = Callable[[str], httpx.Client]


@pytest.fixture(scope="package")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    """One server for the folder, with tokens of two tenants; and the URL of its database."""
    folder = tmp_path_factory.mktemp("http")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--http-port", "0", "--tokens", str(tokens), dev=False) as both:
        yield both


@pytest.fixture
def as_(the_server: ServerProcess) -> Iterator[Client]:
    """A client under a token; an empty token is none."""
    made: dict[str, httpx.Client] = {}

    def client(token: str) -> httpx.Client:
        if token not in made:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            made[token] = http_clients.client(base_url=the_server.http_url, headers=headers)
        return made[token]

    yield client
    for one in made.values():
        one.close()


@pytest.fixture
def api(as_: Client) -> httpx.Client:
    """The client of most tests."""
    return as_(OWNER)
