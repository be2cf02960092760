"""Fixtures for all tests; those that touch PostgreSQL start it at their first use, so unit tests never do.

They are synchronous (but for `db`), because a session-wide fixture and a test's own event loop do not mix.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from headgate.store.connect import connect
from tests.support.database import Server, running_server

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background of a shell without job control. Processes of tests would inherit that, and ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test may use the profiles of the person who runs it: `headgate profile use prod` would send jobs there.
os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), "headgate-tests", "config")


gc.disable()  # until all tests are collected: almost all that this makes, stays

OWN_TARGETS = frozenset({"browser", "tools"})
"""Folders that `make browser` and `make test-tools` run: neither is a test of the product that needs no browser."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests that have a target of their own to it: it names their folder."""
    if collection_path.parent != Path(__file__).parent or collection_path.name not in OWN_TARGETS:
        return None
    return None if any(collection_path.name in one for one in config.args) else True


def pytest_collection_finish() -> None:
    """Leave what is collected out of all later garbage collections: hundreds of thousands of objects."""
    gc.enable()
    gc.set_threshold(20_000, 20, 20)
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One PostgreSQL for the whole run."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def template(postgres: Server) -> Iterator[str]:
    """The name of a database that was migrated once; never connect to it, or it cannot be cloned."""
    name = postgres.create_template()
    yield name
    postgres.drop(name)


@pytest.fixture
def database(postgres: Server, template: str) -> Iterator[str]:
    """The URL of a fresh migrated database."""
    name = postgres.create(template=template)
    yield postgres.dsn_of(name)
    postgres.drop(name)


@pytest.fixture
def blank_database(postgres: Server) -> Iterator[str]:
    """The URL of a fresh empty database, without our schema."""
    name = postgres.create()
    yield postgres.dsn_of(name)
    postgres.drop(name)


@pytest.fixture
async def db(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection to a fresh migrated database, opened as the server opens its own."""
    connection = await connect(database, application_name="headgate test")
    yield connection
    if not connection.is_closed():
        await connection.close()
