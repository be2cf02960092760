"""Connections as the server opens them, and what callers see when a real PostgreSQL lets them down."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit, urlunsplit

import asyncpg
import pytest

from headgate.domain.errors import (
    HeadgateError,
    InvalidInput,
    OutcomeUnknown,
    ReadOnly,
    SchemaMismatch,
    StoreBusy,
    StoreUnavailable,
)
from headgate.store import connect as connecting
from headgate.store.connect import connect
from headgate.store.dispatch_store import DispatchStore
from headgate.store.errors import translating
from tests.fault.lab.proxy import FaultProxy
from tests.support.ports import deaf_port

Link: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@asynccontextmanager
async def opened(dsn: str, **options: object) -> AsyncIterator[Link]:
    connection = await connect(dsn, application_name="store test", **options)  # type: ignore[arg-type]
    try:
        yield connection
    finally:
        connection.terminate()


# ---------------------------------------------------------------- settings of a session


async def test_a_direct_session_pins_what_the_store_counts_on(database: str) -> None:
    async with opened(database) as link:
        rows = await link.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", list(PINNED))
    assert {row["name"]: row["setting"] for row in rows} == PINNED


PINNED = {
    "application_name": "store test",
    "statement_timeout": "30000",
    "lock_timeout": "10000",
    "idle_in_transaction_session_timeout": "10000",
    "default_transaction_isolation": "read committed",
    "search_path": "",
    "TimeZone": "UTC",
    "jit": "off",
}


async def test_a_pooled_session_sets_nothing_a_pooler_would_refuse(database: str) -> None:
    async with opened(database, pooler=True) as link:
        changed = await link.fetch("SELECT name FROM pg_settings WHERE source = 'client' ORDER BY name")
        assert [row["name"] for row in changed] == ["application_name", "client_encoding"]
        await link.fetchval("SELECT 1")
        assert await link.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == 0


# ---------------------------------------------------------------- no connection


async def error_of(dsn: str) -> HeadgateError:
    """The error of a connection to a bad address."""
    with pytest.raises(HeadgateError) as caught:
        await connect(dsn, application_name="t")
    return caught.value


def whole_text(error: BaseException) -> str:
    """All that a log could show of it: the chain of causes too."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        parts.append(f"{current!r} {current}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return " ".join(parts)


async def test_no_one_listens(database: str) -> None:
    with deaf_port() as port:
        error = await error_of(f"postgresql://ann:s3cret@127.0.0.1:{port}/queue")
        assert isinstance(error, StoreUnavailable)
        assert f'database "queue" at 127.0.0.1:{port}' in str(error)
        assert "s3cret" not in whole_text(error)


async def test_the_database_does_not_exist(database: str) -> None:
    name = unquote(urlsplit(database).path[1:])
    error = await error_of(database.replace(name, "nothing_here"))
    assert isinstance(error, StoreUnavailable)
    assert 'database "nothing_here" does not exist' in str(error)


async def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "CONNECT_TIMEOUT", timedelta(seconds=0.3))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        error = await error_of(f"postgresql://ann:s3cret@127.0.0.1:{port}/queue")
        assert isinstance(error, StoreUnavailable)
        assert f"127.0.0.1:{port} did not answer" in str(error)


# ---------------------------------------------------------------- several hosts, one of which takes writes


def among(database: str, *others: int) -> str:
    """A URL that names these ports first, and the test's own server last."""
    parts = urlsplit(database)
    query = parse_qs(parts.query)
    if "host" not in query:
        pytest.skip("the test database has no socket of its own")
    hosts = ",".join([*("127.0.0.1" for _ in others), query["host"][0]])
    ports = ",".join([*map(str, others), query["port"][0]])
    return urlunsplit(parts._replace(query=urlencode({"host": hosts, "port": ports})))


async def test_a_host_that_never_answers_does_not_cost_the_others_their_turn(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HOST_TIMEOUT", timedelta(seconds=3))
    with socket.socket() as silent, deaf_port() as refusing:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        dsn = among(database, silent.getsockname()[1], refusing)
        for pooler in (False, True):
            async with opened(dsn, pooler=pooler) as link:
                assert await link.fetchval("SELECT 1") == 1


async def test_of_several_hosts_only_one_that_takes_writes_will_do(database: str) -> None:
    async with opened(database) as link:
        await link.execute(
            await link.fetchval(
                "SELECT format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database())"
            )
        )
    with deaf_port() as port:
        error = await error_of(among(database, port))
        assert isinstance(error, StoreUnavailable)
        assert "no host takes writes" in str(error)
        assert f"127.0.0.1:{port}: " in str(error)
        assert "takes no writes" in str(error)
        assert error.no_primary
        with pytest.raises(StoreUnavailable, match="takes no writes"):  # looked at in a transaction
            await connect(among(database, port), application_name="t", pooler=True)
        # For what only reads, a standby is better than nothing.
        reading = await connect(among(database, port), application_name="t", only_reads=True)
        assert await reading.fetchval("SHOW transaction_read_only") == "on"
        await reading.close()


@pytest.mark.parametrize(
    "dsn",
    [
        "mysql://ann:s3cret@h/q",
        "postgresql://ann:s3cret@h:port/q",
        "postgresql://ann:p/s3cret@h:5432/q",
        "host=h s3cret",
    ],
)
async def test_what_is_no_database_url_is_refused_without_showing_it(dsn: str) -> None:
    error = await error_of(dsn)
    assert isinstance(error, InvalidInput)
    assert "postgresql://user:password@host:port/database" in str(error)
    assert "s3cret" not in whole_text(error)


async def test_a_wrong_password_is_never_shown(database: str) -> None:
    parts = urlsplit(database)
    dsn = parts._replace(netloc=f"nobody_known:{quote('s3cret')}@{parts.netloc.rpartition('@')[2]}").geturl()
    error = await error_of(dsn)
    assert isinstance(error, StoreUnavailable)
    assert "s3cret" not in whole_text(error)


# ---------------------------------------------------------------- broken in the middle


@pytest.mark.parametrize(("writing", "kind"), [(True, OutcomeUnknown), (False, StoreUnavailable)])
async def test_a_backend_that_is_terminated_during_a_statement(
    database: str, writing: bool, kind: type[HeadgateError]
) -> None:
    async with opened(database) as victim, opened(database) as other:

        async def statement() -> None:
            with translating(writing=writing):
                await victim.execute("SELECT pg_sleep(60)")

        run = asyncio.create_task(statement())
        while not await other.fetchval(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%sleep(60)'"
        ):
            await asyncio.sleep(0.005)
        with pytest.raises(kind) as caught:
            await run
        assert type(caught.value) is kind
        with pytest.raises(StoreUnavailable), translating(writing=True):
            await victim.execute("SELECT 1")


async def test_a_lock_that_is_not_free_in_time(database: str) -> None:
    async with opened(database) as one, opened(database) as two, one.transaction():
        await one.execute("LOCK TABLE headgate.migrations")
        await two.execute("SET lock_timeout = '50ms'")
        with pytest.raises(StoreBusy, match="lock_timeout"), translating(writing=True):
            await two.execute("DELETE FROM headgate.migrations")


async def test_a_statement_that_takes_too_long(database: str) -> None:
    async with opened(database, statement_timeout=timedelta(milliseconds=50)) as link:
        with pytest.raises(StoreBusy, match="statement_timeout"), translating(writing=True):
            await link.execute("SELECT pg_sleep(60)")
        assert await link.fetchval("SELECT 1") == 1


async def test_a_deadlock_fails_one_session_which_may_try_again(database: str) -> None:
    async with opened(database) as one, opened(database) as two:
        await one.execute("CREATE TABLE headgate.a (); CREATE TABLE headgate.b ()")

        async def locks(link: Link, first: str, second: str, met: asyncio.Barrier) -> None:
            with translating(writing=True):
                async with link.transaction():
                    await link.execute(f"LOCK TABLE headgate.{first}")
                    await met.wait()
                    await link.execute(f"LOCK TABLE headgate.{second}")

        met = asyncio.Barrier(2)
        answers = await asyncio.gather(locks(one, "a", "b", met), locks(two, "b", "a", met), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["NoneType", "StoreBusy"]


async def test_a_write_to_a_read_only_database(database: str) -> None:
    async with opened(database) as link:
        await link.execute("SET default_transaction_read_only = on")
        with pytest.raises(ReadOnly), translating(writing=True):
            await link.execute("DELETE FROM headgate.migrations")


async def test_a_database_without_our_schema(blank_database: str) -> None:
    async with opened(blank_database) as link:
        for statement in ("SELECT headgate.no_such_function()", "SELECT FROM headgate.no_such_table"):
            with pytest.raises(SchemaMismatch, match="headgate migrate"), translating(writing=False):
                await link.execute(statement)


# ---------------------------------------------------------------- a network that went silent


async def test_the_kernel_watches_connections_over_a_network_on_both_sides(database: str) -> None:
    parts = urlsplit(database)
    asked = parse_qs(parts.query)
    with FaultProxy(unix=f"{asked['host'][0]}/.s.PGSQL.{asked['port'][0]}") as proxy:
        async with opened(f"postgresql://{parts.username}@{proxy.address}{parts.path}?sslmode=disable") as link:
            ours = link._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, apart, times, unanswered = (
                ours.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            )
    options = connecting._options("test", pooler=False, statement_timeout=None, lock_timeout=timedelta(seconds=1))
    asked_of_postgres = options["server_settings"]
    assert {
        "tcp_keepalives_idle": str(idle),
        "tcp_keepalives_interval": str(apart),
        "tcp_keepalives_count": str(times),
        "tcp_user_timeout": str(unanswered),
    }.items() <= asked_of_postgres.items()
    # What is sent just before an idle connection is given up waits for its own answer once more.
    assert idle + apart * times + unanswered / 1000 < 15


async def test_a_session_that_began_read_only_does_not_outlive_the_reason(database: str) -> None:
    name = urlsplit(database).path.lstrip("/")
    async with opened(database) as link:
        await link.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await link.execute("SET default_transaction_read_only = off")
        store = DispatchStore(database)
        try:
            with pytest.raises(ReadOnly):
                await store.tick([])
            await link.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
            await store.tick([])
        finally:
            await store.close()
