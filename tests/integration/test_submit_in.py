"""`task.submit_in`: a job in the transaction of each supported library, there if and only if that commits."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from traceback import format_exception
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from headgate import (
    Forbidden,
    Headgate,
    InvalidInput,
    JobHandle,
    PayloadError,
    RetryPolicy,
    SubmitConflict,
    SubmitRefused,
    SyncHandle,
    Task,
    Unique,
)
from headgate.domain.dependencies import NewBatch
from headgate.domain.errors import SchemaMismatch
from headgate.domain.states import State
from headgate.sdk import transactions
from headgate.store.batches import open_batch
from headgate.store.connect import Connection
from tests.support.queue import Queue, new_id

hg = Headgate("127.0.0.1:1", tenant="acme")


def _send(to: str, copies: int = 1) -> int:
    return copies


send: Task[..., Any] = hg.register("mail", _send, max_attempts=7)


Opened: TypeAlias = tuple[Any, Callable[[], Any], Callable[[], Any]]
"""What submit_in takes, in a transaction that has begun; and how to commit and to roll back."""


async def resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# ---------------------------------------------------------------------- the libraries


async def begun(connection: Any) -> Opened:
    """A connection of asyncpg in a transaction, and in the next one when that has ended."""
    await connection.execute("BEGIN")
    return connection, lambda: connection.execute("COMMIT; BEGIN"), lambda: connection.execute("ROLLBACK; BEGIN")


@asynccontextmanager
async def by_asyncpg(dsn: str) -> AsyncIterator[Opened]:
    connection = await asyncpg.connect(dsn)
    # As many applications do: our JSON must not be encoded once more.
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=repr, decoder=repr)
    try:
        yield await begun(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(dsn: str) -> AsyncIterator[Opened]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield await begun(connection)


@asynccontextmanager
async def by_psycopg(dsn: str) -> AsyncIterator[Opened]:
    with psycopg.connect(dsn, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as connection:
        yield connection, connection.commit, connection.rollback


@asynccontextmanager
async def by_psycopg_async(dsn: str) -> AsyncIterator[Opened]:
    async with await psycopg.AsyncConnection.connect(
        dsn, row_factory=dict_row, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        yield connection, connection.commit, connection.rollback


@contextmanager
def psycopg_engine(dsn: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    try:
        yield engine
    finally:
        engine.dispose()


@asynccontextmanager
async def by_sqlalchemy(dsn: str) -> AsyncIterator[Opened]:
    with psycopg_engine(dsn) as engine, engine.connect() as connection:
        yield connection, connection.commit, connection.rollback


@asynccontextmanager
async def by_session(dsn: str) -> AsyncIterator[Opened]:
    with psycopg_engine(dsn) as engine, Session(engine) as session:
        yield session, session.commit, session.rollback


@asynccontextmanager
async def by_scoped_session(dsn: str) -> AsyncIterator[Opened]:
    with psycopg_engine(dsn) as engine:
        session = scoped_session(sessionmaker(engine))
        yield session, session.commit, session.rollback
        session.remove()


@asynccontextmanager
async def async_engine(name: str, connect: Callable[[], Any]) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(name, async_creator=connect)
    try:
        yield engine
    finally:
        await engine.dispose()


def asyncpg_engine(dsn: str) -> AbstractAsyncContextManager[AsyncEngine]:
    return async_engine("postgresql+asyncpg://", lambda: asyncpg.connect(dsn))


@asynccontextmanager
async def by_sqlalchemy_asyncpg(dsn: str) -> AsyncIterator[Opened]:
    async with asyncpg_engine(dsn) as engine, engine.connect() as connection:
        yield connection, connection.commit, connection.rollback


@asynccontextmanager
async def by_session_asyncpg(dsn: str) -> AsyncIterator[Opened]:
    async with asyncpg_engine(dsn) as engine, AsyncSession(engine) as session:
        yield session, session.commit, session.rollback


@asynccontextmanager
async def by_scoped_session_asyncpg(dsn: str) -> AsyncIterator[Opened]:
    async with asyncpg_engine(dsn) as engine:
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
        yield session, session.commit, session.rollback
        await session.remove()


@asynccontextmanager
async def by_session_psycopg_async(dsn: str) -> AsyncIterator[Opened]:
    made = async_engine("postgresql+psycopg://", lambda: psycopg.AsyncConnection.connect(dsn))
    async with made as engine, AsyncSession(engine) as session:
        yield session, session.commit, session.rollback


def django_wrapper(dsn: str) -> Any:
    """Django's connection to this database, as `connections["default"]`."""
    if not django_settings.configured:
        django_settings.configure(DATABASES={})
        django.setup()
    from django.db import connections
    from django.db.backends.postgresql.base import DatabaseWrapper

    parts, query = urlsplit(dsn), parse_qs(urlsplit(dsn).query)
    found = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.removeprefix("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or query["host"][0],
        "PORT": str(parts.port or query["port"][0]),
    }
    connections["default"] = DatabaseWrapper(connections.configure_settings({"default": found})["default"], "default")
    return connections["default"]


@asynccontextmanager
async def by_django(dsn: str, *, alias: bool = False) -> AsyncIterator[Opened]:
    wrapper = django_wrapper(dsn)
    from django.db import connection

    # Django refuses its database on an event loop. An application calls it in a thread; here no one else uses the loop.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        try:
            wrapper.set_autocommit(False)
            yield ("default" if alias else connection), wrapper.commit, wrapper.rollback
        finally:
            wrapper.close()


def by_django_alias(dsn: str) -> Any:
    return by_django(dsn, alias=True)


WAYS = [
    by_asyncpg,
    by_asyncpg_pool,
    by_psycopg,
    by_psycopg_async,
    by_sqlalchemy,
    by_session,
    by_scoped_session,
    by_sqlalchemy_asyncpg,
    by_session_asyncpg,
    by_scoped_session_asyncpg,
    by_session_psycopg_async,
    by_django,
    by_django_alias,
]
SYNC = {by_psycopg, by_sqlalchemy, by_session, by_scoped_session, by_django, by_django_alias}
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("by_"))
TABLES = (
    "jobs",
    "arrivals",
    "batch_jobs",
    "dependency_checks",
    "flow_deltas",
    "idempotency_keys",
    "job_dependencies",
    "job_limit_keys",
    "job_tags",
    "payloads",
    "unique_jobs",
)


async def written(db: Connection) -> dict[str, int]:
    return {table: await db.fetchval(f"SELECT count(*) FROM headgate.{table}") for table in TABLES}


# ---------------------------------------------------------------------- all of them


@ways
async def test_a_job_is_there_if_and_only_if_the_transaction_commits(database: str, db: Connection, way: Any) -> None:
    queue = Queue(db)
    (parent,) = await queue.add(topic="parents")
    batch = NewBatch(id=new_id())
    await open_batch(db, queue.names, await queue.tenant_no(), batch)
    before = await written(db)
    due = datetime.now(UTC) + timedelta(hours=1)
    rich = send.with_options(
        priority="high",
        run_at=due,
        deadline=due + timedelta(microseconds=1),
        retry=RetryPolicy.explicit(timedelta(seconds=5)),
        key='a "key" with 100 % and :colon, $1',
        key_window=60,
        unique=Unique(key="u", on_conflict="replace", debounce_max=timedelta(days=1)),
        depends_on=[parent],
        needs="ended",
        on_parent_failure="block",
        batch=batch.id,
        headers={"trace": "ü :x %s"},
        tags=["a", "b"],
        limit_key="customer-7",
    )
    async with way(database) as (connection, commit, rollback):
        lost = await resolved(rich.submit_in(connection, "a@b.example", copies=2))
        assert isinstance(lost, SyncHandle if way in SYNC else JobHandle)
        assert len(await resolved(send.submit_many_in(connection, [("a",), ("b",)]))) == 2
        assert await written(db) == before, "not committed"
        await resolved(rollback())
        assert await written(db) == before

        plain = await resolved(send.submit_in(connection, "ü@b.example"))
        late = await resolved(send.with_options(delay=0.25, deadline=3600).submit_in(connection, to="x"))
        made = await resolved(rich.submit_in(connection, "a@b.example", copies=2))
        again = await resolved(rich.submit_in(connection, "a@b.example", copies=2))
        raw = await resolved(hg.submit_in(connection, "elsewhere", b"\x00\xff" * 1_000))
        many = await resolved(send.submit_many_in(connection, [("c",), {"to": "d", "copies": 2}]))
        many += await resolved(hg.submit_many_in(connection, "elsewhere", [b"\x00\xff", {"e": 1}], priority=4))
        await resolved(commit())
    assert (plain.created, late.created, made.created, again.created, raw.created) == (True, True, True, False, True)
    assert (plain.id.version, again.id) == (7, made.id)

    rows = {row["id"]: row for row in await db.fetch("SELECT * FROM headgate.jobs")}
    assert (rows[plain.id]["payload"], rows[plain.id]["max_attempts"]) == ('{"to":"ü@b.example"}'.encode(), 7)
    assert rows[plain.id]["state"] == State.PENDING
    assert {type(one) for one in many} == {SyncHandle if way in SYNC else JobHandle}
    assert [(rows[one.id]["payload"], rows[one.id]["priority"]) for one in many] == [
        (b'{"to":"c"}', 0),
        (b'{"to":"d","copies":2}', 0),
        (b"\x00\xff", 4),
        (b'{"e":1}', 4),
    ]
    assert rows[late.id]["run_at"] - rows[late.id]["created_at"] == timedelta(milliseconds=250)
    assert ".deadline_us" in rows[late.id]["headers"]
    job = rows[made.id]
    assert (job["payload"], job["priority"], job["state"]) == (b'{"to":"a@b.example","copies":2}', 10, State.BLOCKED)
    assert job["run_at"] == due
    assert await db.fetchval(
        "SELECT delays_ms FROM headgate.retry_policies WHERE policy_no = $1", job["policy_no"]
    ) == [5_000]
    assert await db.fetchval("SELECT key FROM headgate.idempotency_keys") == 'a "key" with 100 % and :colon, $1'
    assert await db.fetchval("SELECT key FROM headgate.unique_jobs") == "u"
    assert await db.fetchval("SELECT array_agg(tag ORDER BY tag) FROM headgate.job_tags") == ["a", "b"]
    assert await db.fetchval("SELECT limit_key FROM headgate.job_limit_keys") == "customer-7"
    assert await db.fetchval("SELECT batch_id FROM headgate.batch_jobs WHERE job_id = $1", made.id) == batch.id
    depends = await db.fetchrow("SELECT parent_id, needs, on_failure FROM headgate.job_dependencies")
    assert tuple(depends) == (parent, 1, 2)
    assert await db.fetchval("SELECT payload FROM headgate.payloads WHERE id = $1", raw.id) == b"\x00\xff" * 1_000


@ways
async def test_what_the_database_refuses_is_an_error_of_the_sdk(
    database: str, db: Connection, way: Any, blank_database: str
) -> None:
    (taken,) = await Queue(db).add(payload=b'{"to":"first"}', key="once")
    private = "second@b.example"
    async with way(database) as (connection, _, rollback):
        with pytest.raises(SubmitConflict, match='key "once" was used before') as conflict:
            await resolved(send.with_options(key="once").submit_in(connection, private))
        assert (conflict.value.first, conflict.value.code) == (taken, "submit_conflict")
        assert private not in "".join(format_exception(conflict.value)), "a log shows no payload"
        await resolved(rollback())
        unknown = new_id()
        with pytest.raises(SubmitRefused, match=f'no parent job "{unknown}"') as refused:
            await resolved(send.with_options(depends_on=[unknown]).submit_in(connection, "second"))
        assert refused.value.reported == "not_found"
        await resolved(rollback())
        with pytest.raises(PayloadError, match="copies"):  # before anything is sent
            await resolved(send.submit_in(connection, "x", copies="two"))
        handle = await resolved(send.submit_in(connection, "x"))  # so the transaction is as it was
        assert handle.created
        await resolved(rollback())
    async with way(blank_database) as (connection, _, rollback):
        with pytest.raises(SchemaMismatch, match="run `headgate migrate` on it"):
            await resolved(send.submit_in(connection, "x"))
        await resolved(rollback())


# ---------------------------------------------------------------------- some of them


async def test_the_error_for_a_role_without_the_right_has_the_statement_that_gives_it(
    database: str, db: Connection
) -> None:
    role = await db.fetchval("SELECT 'sender_of_' || current_database()")
    await db.execute(f"CREATE ROLE {role} LOGIN")
    parts = urlsplit(database)
    dsn = parts._replace(netloc=parts.netloc.replace(parts.username or "", role, 1)).geturl()
    try:
        with psycopg.connect(dsn) as connection:
            with pytest.raises(Forbidden, match=r"SELECT headgate\.allow_submit\('ROLE', 'acme'\)"):
                send.submit_in(connection, "x")
            connection.rollback()
            await db.execute("SELECT headgate.allow_submit($1, 'other')", role)
            allow = rf"SELECT headgate\.allow_submit\('{role}', 'acme'\)"
            with pytest.raises(Forbidden, match=rf'role "{role}" may not submit for tenant "acme".*{allow}'):
                send.submit_in(connection, "x")
            connection.rollback()
            await db.execute("SELECT headgate.allow_submit($1, 'acme')", role)
            assert send.submit_in(connection, "x").created
            connection.commit()
    finally:
        await db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_many_jobs_of_a_transaction_go_in_few_statements_in_their_order(
    database: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "JOBS_PER_STATEMENT", 2)
    connection = await asyncpg.connect(database)
    sent: list[object] = []
    try:
        async with connection.transaction():
            assert await send.submit_many_in(connection, []) == []
            connection.add_query_logger(lambda record: sent.append(record.query))
            handles = await send.submit_many_in(connection, [(str(n),) for n in range(5)])
    finally:
        await connection.close()
    assert len([query for query in sent if "submit_returning" in str(query)]) == 3
    stored = {row["id"]: row["payload"] for row in await db.fetch("SELECT id, payload FROM headgate.jobs")}
    assert [stored[one.id] for one in handles] == [b'{"to":"%d"}' % n for n in range(5)]
    with pytest.raises(InvalidInput, match="key: names a single job"):
        hg.submit_many_in("default", "mail", [b""], key="k")


async def test_outside_a_transaction_nothing_is_submitted(database: str, db: Connection) -> None:
    wrapper = django_wrapper(database)
    outside = "is not in a transaction.*begin a transaction first, or use submit"
    with (
        psycopg_engine(database) as engine,
        pytest.MonkeyPatch.context() as patch,
        psycopg.connect(database, autocommit=True) as connection,
    ):
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with pytest.raises(InvalidInput, match=outside):
            await send.submit_in(db, "x")
        with pytest.raises(InvalidInput, match=outside):
            send.submit_in(connection, "x")
        with pytest.raises(InvalidInput, match=outside), engine.connect() as autocommit:
            send.submit_in(autocommit.execution_options(isolation_level="AUTOCOMMIT"), "x")
        with pytest.raises(InvalidInput, match=outside):
            send.submit_in("default", "x")
        assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 0
        with connection.transaction():
            assert send.submit_in(connection, "x").created
        wrapper.close()
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 1


async def test_at_another_isolation_level_the_option_is_named_as_in_python(database: str, db: Connection) -> None:
    await Queue(db).topic()
    with psycopg.connect(database) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(SubmitRefused, match="unique, depends_on and batch need READ COMMITTED") as refused:
            send.with_options(unique="k").submit_in(connection, "x")
        assert refused.value.reported == "isolation_level"
        connection.rollback()
        with pytest.raises(SubmitRefused, match=r"id: .*pass a key to submit only once"):
            send.with_options(id=new_id()).submit_in(connection, "x")
        connection.rollback()


async def test_a_session_with_engines_by_class_passes_the_connection_of_one(database: str, db: Connection) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        no: Mapped[int] = mapped_column(primary_key=True)

    with psycopg_engine(database) as engine, Session(binds={Order: engine}) as session:
        send.submit_in(session.connection(bind_arguments={"mapper": Order}), "x")
        session.commit()
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 1


async def test_other_errors_pass_as_the_library_raised_them(database: str, db: Connection) -> None:
    with psycopg.connect(database) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            send.submit_in(connection, "x")
        connection.rollback()
    await Queue(db).topic()
    async with by_session_asyncpg(database) as (session, _, rollback):
        await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        await send.submit_in(session, "x")
        await db.fetchval("SELECT headgate.submit('mail', '{\"to\":\"y\"}'::bytea, tenant => 'acme', key => 'k')")
        with pytest.raises(sqlalchemy.exc.DBAPIError) as failed:  # the caller's own code runs the transaction again
            await send.with_options(key="k").submit_in(session, "y")
        driver: Any = failed.value.orig
        assert driver.__cause__.sqlstate == "40001"
        await rollback()


def test_another_database_is_refused() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(InvalidInput, match="is one to sqlite; jobs are stored by"):
        send.submit_in(connection, "x")
    engine.dispose()
