"""The durability check reads a real server's settings, and refuses what would lose acknowledged work."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

import asyncpg
import pytest

from headgate import embedded
from headgate.domain.durability import Durability
from headgate.domain.errors import ReadOnly, UnsafeDatabase, UnsuitableDatabase
from headgate.store.connect import connect
from headgate.store.preflight import inspect, require_durable
from tests.support.database import temporary_folder

Link: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Link]:
    connection = await connect(dsn, application_name="preflight test")
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def unsafe_server() -> Iterator[str]:
    """A server of its own: fsync and full_page_writes belong to a whole server, and others are using the shared one."""
    folder = temporary_folder()
    settings = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "shared_buffers": "16MB"}
    try:
        with embedded.start(folder / "postgres", settings=settings) as cluster:
            yield cluster.dsn()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_server_with_ordinary_settings_is_accepted(blank_database: str) -> None:
    async with opened(blank_database) as link:
        found = await inspect(link)
    require_durable(found, unsafe=False)
    assert (found.fsync, found.full_page_writes, found.synchronous_commit) == ("on", "on", "on")
    assert found.problems == found.unfit == ()
    assert found.server_version_num >= 140000
    assert found.server_encoding == "UTF8"
    assert found.max_connections > 0
    assert found.data_checksums in {"on", "off"}


async def test_every_setting_that_loses_work_is_named_with_value_and_fix(unsafe_server: str) -> None:
    async with opened(unsafe_server) as link:
        found = await inspect(link)
    with pytest.raises(UnsafeDatabase) as caught:
        require_durable(found, unsafe=False)
    message = str(caught.value)
    for part in ("fsync is off", "full_page_writes is off", "synchronous_commit is off", "SET fsync = on", "--unsafe"):
        assert part in message
    assert len(caught.value.problems) == 4  # synchronous_commit counts twice: this session, and the default
    require_durable(found, unsafe=True)


async def test_the_session_counts_and_not_only_the_default(blank_database: str) -> None:
    async with opened(blank_database) as link:
        await link.execute("SET synchronous_commit = off")
        found = await inspect(link)
    assert (found.synchronous_commit, found.synchronous_commit_default) == ("off", "on")
    with pytest.raises(UnsafeDatabase, match="synchronous_commit is off of this session"):
        require_durable(found, unsafe=False)


async def test_the_default_of_the_database_counts_and_not_only_the_session(blank_database: str) -> None:
    name = unquote(urlsplit(blank_database).path[1:])
    async with opened(blank_database) as link:
        statement = await link.fetchval(
            "SELECT format('ALTER DATABASE %I SET synchronous_commit = off', $1::text)", name
        )
        await link.execute(statement)
    async with opened(blank_database) as link:
        await link.execute("SET synchronous_commit = on")
        found = await inspect(link)
    assert (found.synchronous_commit, found.synchronous_commit_default) == ("on", "off")
    with pytest.raises(UnsafeDatabase, match="synchronous_commit is off by default for this role and database"):
        require_durable(found, unsafe=False)


@pytest.mark.parametrize("value", ["local", "remote_write"])
async def test_a_flush_on_this_server_is_enough_without_a_synchronous_standby(blank_database: str, value: str) -> None:
    async with opened(blank_database) as link:
        await link.execute(f"SET synchronous_commit = {value}")
        found = await inspect(link)
    require_durable(found, unsafe=False)
    assert any(f"synchronous_commit is {value}" in note for note in found.notes)


@pytest.mark.parametrize("value", ["local", "remote_write"])
async def test_a_flush_on_this_server_is_not_enough_with_a_synchronous_standby(unsafe_server: str, value: str) -> None:
    async with opened(unsafe_server) as link:
        # Nothing commits while the name of a standby that does not exist is set, unless synchronous_commit is lower.
        await link.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody_there'")
        try:
            await link.execute("SELECT pg_reload_conf()")
            while await link.fetchval("SHOW synchronous_standby_names") != "nobody_there":
                pass
            await link.execute(f"SET synchronous_commit = {value}")
            found = await inspect(link)
        finally:
            await link.execute("SET synchronous_commit = off")
            await link.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await link.execute("SELECT pg_reload_conf()")
    assert any(f"synchronous_commit is {value} of this session" in problem for problem in found.problems)
    assert any("failover" in problem for problem in found.problems)


async def test_a_database_that_takes_no_writes_is_refused_even_as_unsafe(blank_database: str) -> None:
    name = unquote(urlsplit(blank_database).path[1:])
    async with opened(blank_database) as link:
        text = "SELECT format('ALTER DATABASE %I SET default_transaction_read_only = on', $1::text)"
        await link.execute(await link.fetchval(text, name))
    async with opened(blank_database) as link:
        found = await inspect(link)
    with pytest.raises(ReadOnly, match=r"is read-only \(transaction_read_only is on\)"):
        require_durable(found, unsafe=True)


@pytest.fixture
async def ordinary(blank_database: str) -> Durability:
    async with opened(blank_database) as link:
        return await inspect(link)


async def test_what_unsafe_waives_does_not_cover_an_unfit_database(ordinary: Durability) -> None:
    with pytest.raises(UnsuitableDatabase, match="server_version is 13"):
        require_durable(replace(ordinary, unfit=("server_version is 13",)), unsafe=True)


async def test_a_database_of_another_encoding_is_refused(postgres_latin1: str) -> None:
    async with opened(postgres_latin1) as link:
        found = await inspect(link)
    with pytest.raises(UnsuitableDatabase, match=r"server_encoding is LATIN1.*ENCODING 'UTF8'"):
        require_durable(found, unsafe=True)


@pytest.fixture
async def postgres_latin1(unsafe_server: str) -> AsyncIterator[str]:
    async with opened(unsafe_server) as link:
        await link.execute("CREATE DATABASE latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        yield unsafe_server.replace("/postgres?", "/latin1?")
        await link.execute("DROP DATABASE latin1 WITH (FORCE)")
