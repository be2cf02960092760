"""Open connections with the session settings that the store counts on.

Direct connections pin what a DBA's defaults could change under us: time zone, isolation level (the functions need a
fresh snapshot per statement: READ COMMITTED), an empty search_path (every name is written with its schema, and this
proves it), no JIT (it costs more than it saves on statements of milliseconds), and bounds on statements, locks and idle
transactions.

Through a transaction pooler (PgBouncer) a session is not ours: settings would be refused at start-up or leak to others,
and named prepared statements do not survive. There the driver's own timeout bounds statements, its statement cache is
off, and callers run everything in explicit transactions.

A URL may name several hosts, one of which takes writes; which one may change at any time. They are tried in turn, each
for a few seconds only: a host that has vanished answers nothing, not even a refusal, and must not cost the others their
turn (the driver has one timeout for all of them).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from headgate.domain.errors import InvalidInput, StoreUnavailable
from headgate.store import array_types
from headgate.store.errors import DRIVER_ERRORS, translate

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

STATEMENT_TIMEOUT = timedelta(seconds=30)
LOCK_TIMEOUT = timedelta(seconds=10)
IDLE_IN_TRANSACTION_TIMEOUT = timedelta(seconds=10)
"""A session whose client cannot be reached any more (a network that drops everything, a frozen process) keeps its
row locks for no longer. Between two statements of a transaction of ours lie microseconds."""
BACKGROUND_STATEMENT_TIMEOUT = timedelta(seconds=10)
"""For calls that services make again and again, each bounded in rows: over a connection that drops everything they
wait so long, and a little more for the driver, and then go on over a new one."""
CONNECT_TIMEOUT = timedelta(seconds=10)
HOST_TIMEOUT = timedelta(seconds=3)
"""For each host, where there are several."""
# A network that went silent is noticed by the kernel, on either side: on a session that waits for an answer, on one
# that only listens, and on PostgreSQL's end, where a lost session would keep its locks. In less than 15 seconds, also
# when something is sent just before an idle session would have been given up: the two spans add up.
_TCP_IDLE_SECONDS, _TCP_PROBE_SECONDS, _TCP_PROBES, _TCP_UNANSWERED_MS = 3, 2, 2, 6_000
_TAKES_NO_WRITES = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool"
# What a host, or the pooler before it, says when it is not there, not yet or no more.
_TRY_THE_NEXT = (
    OSError,
    asyncpg.CannotConnectNowError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
# The server's own timeout comes first and leaves a usable connection; the driver's is for a network that went silent.
_DRIVER_GRACE = timedelta(seconds=2)


async def connect(
    dsn: str,
    *,
    application_name: str,
    pooler: bool = False,
    statement_timeout: timedelta | None = STATEMENT_TIMEOUT,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    only_reads: bool = False,
) -> Connection:
    """Open one connection; the caller closes it. Raises StoreUnavailable or StoreBusy, never showing the password.

    Of several hosts it uses the one that takes writes. `only_reads`: if there is none, one that does not will do.
    """
    options = _options(application_name, pooler=pooler, statement_timeout=statement_timeout, lock_timeout=lock_timeout)
    async with _naming(dsn):
        return await _open(dsn, only_reads=only_reads, **options)


def hosts_of(dsn: str) -> list[tuple[str, int]]:
    """The hosts of a URL that names several; empty for one that names one, in whatever way."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    named = parts.netloc.rpartition("@")[2]
    if named:
        split = [_host_and_port(word) for word in named.split(",")]
    else:
        hosts = query.get("host", [""])[0].split(",")
        ports = query.get("port", [""])[0].split(",")
        if len(ports) not in (1, len(hosts)):
            return []  # the driver has words for that
        split = [(host, ports[place % len(ports)]) for place, host in enumerate(hosts)]
    return [(host, int(port or 5432)) for host, port in split] if len(split) > 1 else []


def describe(dsn: str) -> str:
    """Host, port and database of a URL, for people: never user or password."""
    try:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        hosts = unquote(parts.netloc.rpartition("@")[2]) or query.get("host", ["localhost"])[0]
        port = query.get("port", [""])[0]
        database = unquote(parts.path.lstrip("/")) or query.get("dbname", query.get("database", ["(default)"]))[0]
    except ValueError:
        return "the given database URL"
    if port and not parts.netloc.rpartition("@")[2]:
        hosts = f"{hosts}:{port}"
    return f'database "{database}" at {hosts}'


def _host_and_port(word: str) -> tuple[str, str]:
    if word.startswith("["):  # [::1]:5432
        host, _, rest = word[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, port = word.partition(":")
    return unquote(host), port


async def _open(dsn: str, *, only_reads: bool, **options: Any) -> Connection:
    hosts = hosts_of(dsn)
    # Of several hosts, one takes writes, and we need that one.
    asked = parse_qs(urlsplit(dsn).query).get("target_session_attrs", ["read-write" if hosts else "any"])[0]
    # Through a pooler the driver's own look at the host may be answered by two sessions, of which one was not asked.
    look = options.get("statement_cache_size") == 0 and asked in ("read-write", "primary")
    options["target_session_attrs"] = "any" if look else asked
    if not hosts:
        return await _open_one(dsn, look=look, **options)
    refusals: list[str] = []
    readable: list[dict[str, Any]] = []
    cause: BaseException | None = None
    for host, port in hosts:
        each = options | {"host": host, "port": port, "timeout": HOST_TIMEOUT.total_seconds()}
        try:
            return await _open_one(dsn, look=look, **each)
        except TimeoutError as error:
            refusals.append(f"{host}:{port} did not answer within {HOST_TIMEOUT.total_seconds():.0f} s")
            cause = error
        except asyncpg.TargetServerAttributeNotMatched as error:
            refusals.append(f"{host}:{port} takes no writes")
            readable.append(each)
            cause = error
        except _TRY_THE_NEXT as error:
            refusals.append(f"{host}:{port}: {error}")
            cause = error
    if only_reads and readable:
        return await _open_one(dsn, look=False, **readable[0] | {"target_session_attrs": "any"})
    unavailable = StoreUnavailable("no host takes writes: " + "; ".join(refusals))
    unavailable.no_primary = bool(readable)
    raise unavailable from cause


async def _open_one(dsn: str, *, look: bool, **options: Any) -> Connection:
    connection: Connection = await asyncpg.connect(dsn, connection_class=array_types.Connection, **options)
    _watch_socket(connection)
    if not look:
        return connection
    try:
        async with asyncio.timeout(options["timeout"]), connection.transaction():
            if await connection.fetchval(_TAKES_NO_WRITES):
                raise asyncpg.TargetServerAttributeNotMatched("it takes no writes")
    except BaseException:
        connection.terminate()
        raise
    return connection


def _options(
    application_name: str,
    *,
    pooler: bool,
    statement_timeout: timedelta | None,
    lock_timeout: timedelta,
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "timeout": CONNECT_TIMEOUT.total_seconds(),
        "command_timeout": None if statement_timeout is None else (statement_timeout + _DRIVER_GRACE).total_seconds(),
        "server_settings": {"application_name": application_name},
    }
    if pooler:
        options["statement_cache_size"] = 0
        return options
    options["server_settings"] |= {
        "statement_timeout": _milliseconds(statement_timeout or timedelta()),
        "lock_timeout": _milliseconds(lock_timeout),
        "idle_in_transaction_session_timeout": _milliseconds(IDLE_IN_TRANSACTION_TIMEOUT),
        "default_transaction_isolation": "read committed",
        "search_path": "",
        "timezone": "UTC",
        "jit": "off",
        "tcp_keepalives_idle": str(_TCP_IDLE_SECONDS),
        "tcp_keepalives_interval": str(_TCP_PROBE_SECONDS),
        "tcp_keepalives_count": str(_TCP_PROBES),
        "tcp_user_timeout": str(_TCP_UNANSWERED_MS),
    }
    return options


def _milliseconds(span: timedelta) -> str:
    return str(span // timedelta(milliseconds=1))


def _watch_socket(connection: Connection) -> None:
    """Have the kernel end the connection when the other side's kernel is silent. Nothing to do on a local socket."""
    found = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]  # the driver has no way to ask
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _TCP_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _TCP_PROBE_SECONDS),
        ("TCP_KEEPCNT", _TCP_PROBES),
        ("TCP_USER_TIMEOUT", _TCP_UNANSWERED_MS),
    ):
        if hasattr(socket, name):  # not everywhere by these names
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@asynccontextmanager
async def _naming(dsn: str) -> AsyncIterator[None]:
    """Say in the error which database it was about."""
    try:
        yield
    except StoreUnavailable as error:
        unavailable = StoreUnavailable(f"{describe(dsn)}: {error}")
        unavailable.no_primary = error.no_primary
        raise unavailable from error.__cause__
    except (asyncpg.InterfaceError, ValueError) as error:
        if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
            raise StoreUnavailable(f"{describe(dsn)}: {error}") from error
        # Neither the URL nor the driver's text is shown or chained: a password with a stray @ or # ends up in any part.
        raise InvalidInput(
            "database URL",
            "not a PostgreSQL URL",
            hint="write postgresql://user:password@host:port/database, with special characters percent-encoded",
        ) from None
    except TimeoutError as error:
        waited = CONNECT_TIMEOUT.total_seconds()
        raise StoreUnavailable(f"{describe(dsn)} did not answer within {waited:.0f} s; check host and port") from error
    except DRIVER_ERRORS as error:
        reason = translate(error, writing=False)
        raise type(reason)(f"{describe(dsn)}: {reason}") from error
