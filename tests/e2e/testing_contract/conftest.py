"""Each test of this folder runs in a box, and on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from headgate import Headgate
from headgate.testing import LocalServer
from tests.e2e.testing_contract.worlds import InBox, OnServer, World
from tests.support.database import Server


@pytest.fixture(scope="package")
def the_server(postgres: Server, template: str) -> Iterator[LocalServer]:
    name = postgres.create(template=template)
    with LocalServer(postgres.dsn_of(name)) as server:
        yield server
    postgres.drop(name)


@pytest.fixture(params=["box", "server"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    app = Headgate("127.0.0.1:1")
    if request.param == "box":
        with app.testing() as box:
            yield InBox(app, box)
    else:
        server: LocalServer = request.getfixturevalue("the_server")
        with server.attach(app) as attached:
            yield OnServer(app, attached)
