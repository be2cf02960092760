"""The database libraries whose transactions `submit_in` takes: how each is recognised, and how it runs one statement.

None of them is imported here. A connection is recognised by the names of its classes, and by then its library is
loaded: what else is needed of it is read from `sys.modules`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown
from headgate.sdk.database_errors import translating

Rows: TypeAlias = list[tuple[str, bool]]
"""For each job its id, and whether it was created."""

_SUPPORTED: Final = (
    "pass a connection or session of asyncpg, psycopg 3, SQLAlchemy 2 or Django, or the alias of a Django database"
)
_BEGIN: Final = "begin a transaction first, or use submit(), which stores the job at once"

STATEMENT: Final = """
SELECT CAST(s.job_id AS text), s.created
  FROM jsonb_to_record(CAST(CAST({options} AS text) AS jsonb)) AS o(
           tenant text, priority int, delay interval, run_at timestamptz, max_attempts int, key text,
           key_window interval, id uuid, headers jsonb, tags text[], limit_key text, deadline timestamptz,
           deadline_in interval, unique_key text, on_conflict text, debounce_max interval, depends_on uuid[],
           needs text, on_parent_failure text, batch uuid, retry jsonb, declared jsonb, ids uuid[])
 CROSS JOIN unnest(CAST({payloads} AS bytea[])) WITH ORDINALITY AS p(payload, n)
 CROSS JOIN LATERAL headgate.submit_returning(
           CAST({topic} AS text), p.payload, tenant => o.tenant, priority => o.priority,
           delay => o.delay, run_at => o.run_at, max_attempts => o.max_attempts, key => o.key,
           key_window => coalesce(o.key_window, '24 hours'), id => coalesce(o.ids[p.n], o.id),
           headers => o.headers, tags => o.tags, limit_key => o.limit_key,
           deadline => coalesce(o.deadline, clock_timestamp() + o.deadline_in),
           unique_key => o.unique_key, on_conflict => coalesce(o.on_conflict, 'keep'), debounce_max => o.debounce_max,
           depends_on => o.depends_on, needs => coalesce(o.needs, 'succeeded'),
           on_parent_failure => coalesce(o.on_parent_failure, 'cancel'), batch => o.batch, retry => o.retry,
           declared => o.declared) AS s
 ORDER BY p.n"""
"""JSON as text, and casts by name: connections may have codecs of their own for jsonb, and a colon is a parameter."""
_NUMBERED: Final = STATEMENT.format(topic="$1", payloads="$2", options="$3")
_PERCENT: Final = STATEMENT.format(topic="%(topic)s", payloads="%(payloads)s", options="%(options)s")
_NAMED: Final = STATEMENT.format(topic=":topic", payloads=":payloads", options=":options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One submit, of one job or more."""

    topic: str
    payloads: list[bytes]
    options: str  # JSON
    tenant: str

    @property
    def named(self) -> dict[str, str | list[bytes]]:
        """The parameters by name."""
        return {"topic": self.topic, "payloads": self.payloads, "options": self.options}


# ---------------------------------------------------------------------- as type checkers see them


class AsyncTransaction(Protocol):
    """A connection or session whose calls are awaited, of asyncpg, psycopg or SQLAlchemy."""

    @property
    def execute(self) -> Callable[..., Coroutine[Any, Any, Any]]: ...


class _Rows(Protocol):
    @property
    def fetchone(self) -> Callable[[], Any]: ...


class _Executes(Protocol):
    @property
    def execute(self) -> Callable[..., _Rows]: ...


class _HasCursor(Protocol):
    @property
    def in_atomic_block(self) -> bool: ...
    @property
    def cursor(self) -> Callable[..., Any]: ...


SyncTransaction: TypeAlias = _Executes | _HasCursor | str
"""A connection or session of psycopg, SQLAlchemy or Django, or the alias of a Django database."""


# ---------------------------------------------------------------------- one function for each library


async def _asyncpg(connection: Any, call: Call) -> Rows:
    if not connection.is_in_transaction():
        raise _outside()
    with translating(sys.modules["asyncpg"].PostgresError, call):
        rows = await connection.fetch(_NUMBERED, call.topic, call.payloads, call.options)
    return [(row[0], row[1]) for row in rows]


def _psycopg(connection: Any, call: Call) -> Rows:
    _require_transaction_of_psycopg(connection)
    psycopg = sys.modules["psycopg"]
    # Not connection.cursor(): the application may have set another class, with placeholders of its own.
    with translating(psycopg.Error, call), psycopg.Cursor(connection, row_factory=_tuples) as cursor:
        cursor.execute(_PERCENT, call.named)
        rows: Rows = cursor.fetchall()
    return rows


async def _psycopg_async(connection: Any, call: Call) -> Rows:
    _require_transaction_of_psycopg(connection)
    psycopg = sys.modules["psycopg"]
    with translating(psycopg.Error, call):
        async with psycopg.AsyncCursor(connection, row_factory=_tuples) as cursor:
            await cursor.execute(_PERCENT, call.named)
            rows: Rows = await cursor.fetchall()
    return rows


def _tuples(_cursor: object) -> type[tuple[Any, ...]]:
    """Rows as tuples, whatever the connection makes of them."""
    return tuple


def _require_transaction_of_psycopg(connection: Any) -> None:
    if connection.autocommit and not connection.info.transaction_status:  # 0: idle
        raise _outside()


def _sqlalchemy(connection: Any, call: Call) -> Rows:
    _require_postgresql(connection.dialect.name)
    if getattr(connection.connection.dbapi_connection, "autocommit", False):  # the isolation level AUTOCOMMIT
        raise _outside()
    alchemy = sys.modules["sqlalchemy"]
    with translating(alchemy.exc.DBAPIError, call):
        return [(row[0], row[1]) for row in connection.execute(alchemy.text(_NAMED), call.named)]


def _sqlalchemy_session(session: Any, call: Call) -> Rows:
    return _sqlalchemy(session.connection(), call)


async def _sqlalchemy_async(connection: Any, call: Call) -> Rows:
    rows: Rows = await connection.run_sync(_sqlalchemy, call)
    return rows


async def _sqlalchemy_async_session(session: Any, call: Call) -> Rows:
    return await _sqlalchemy_async(await session.connection(), call)


def _django(connection: Any, call: Call) -> Rows:
    _require_postgresql(connection.vendor)
    if connection.get_autocommit():
        raise _outside()
    with translating(sys.modules["django.db"].Error, call), connection.cursor() as cursor:
        cursor.execute(_PERCENT, call.named)
        return [(row[0], row[1]) for row in cursor.fetchall()]


def _django_alias(alias: str, call: Call) -> Rows:
    if "django.db" not in sys.modules:
        raise InvalidInput("connection", f"is {shown(alias)}, and Django is not in use here", hint=_SUPPORTED)
    return _django(sys.modules["django.db"].connections[alias], call)


def _require_postgresql(name: str) -> None:
    if name != "postgresql":
        raise InvalidInput(
            "connection",
            f"is one to {name}; jobs are stored by PostgreSQL, in the database that has the schema headgate",
            hint="use submit(), which goes through a server",
        )


def _outside() -> InvalidInput:
    return InvalidInput("connection", "is not in a transaction, so nothing could be rolled back", hint=_BEGIN)


# ---------------------------------------------------------------------- recognising them


@dataclass(frozen=True, slots=True)
class Driver:
    """How a statement is run; `run` returns its rows, or a coroutine of them if `is_async`."""

    run: Callable[[Any, Call], Any]
    is_async: bool = False


_ALIAS: Final = Driver(_django_alias)
_DRIVERS: Final = {
    ("asyncpg", "Connection"): Driver(_asyncpg, is_async=True),
    ("asyncpg", "PoolConnectionProxy"): Driver(_asyncpg, is_async=True),
    ("psycopg", "Connection"): Driver(_psycopg),
    ("psycopg", "AsyncConnection"): Driver(_psycopg_async, is_async=True),
    ("sqlalchemy", "Connection"): Driver(_sqlalchemy),
    ("sqlalchemy", "Session"): Driver(_sqlalchemy_session),
    ("sqlalchemy", "scoped_session"): Driver(_sqlalchemy_session),
    ("sqlalchemy", "AsyncConnection"): Driver(_sqlalchemy_async, is_async=True),
    ("sqlalchemy", "AsyncSession"): Driver(_sqlalchemy_async_session, is_async=True),
    ("sqlalchemy", "async_scoped_session"): Driver(_sqlalchemy_async_session, is_async=True),
    ("django", "BaseDatabaseWrapper"): Driver(_django),
    ("django", "ConnectionProxy"): Driver(_django),
}


def driver_of(connection: object) -> Driver:
    """How to use this connection. Raises InvalidInput, naming what is supported."""
    if isinstance(connection, str):
        return _ALIAS
    for kind in type(connection).__mro__:
        if driver := _DRIVERS.get((kind.__module__.partition(".")[0], kind.__name__)):
            return driver
    kind = type(connection)
    raise InvalidInput("connection", f"cannot be a {kind.__module__}.{kind.__qualname__}", hint=_SUPPORTED)
