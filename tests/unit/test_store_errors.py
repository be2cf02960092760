"""Every driver error has one meaning, and a write is called unknown exactly when it may have been committed."""

from __future__ import annotations

import asyncio
import socket

import asyncpg
import pytest
from asyncpg import exceptions as pg

from headgate.domain.errors import (
    HeadgateError,
    NotFound,
    OutcomeUnknown,
    ReadOnly,
    RowLocked,
    SchemaMismatch,
    StorageFull,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from headgate.store.connect import describe, hosts_of
from headgate.store.errors import translate, translating

# error, while reading, while writing
TABLE: list[tuple[BaseException, type[HeadgateError], type[HeadgateError]]] = [
    # The connection ended: a write that was under way may have been committed.
    (pg.ConnectionDoesNotExistError("connection was closed in the middle"), StoreUnavailable, OutcomeUnknown),
    (pg.ConnectionFailureError("x"), StoreUnavailable, OutcomeUnknown),
    (pg.AdminShutdownError("terminating connection"), StoreUnavailable, OutcomeUnknown),
    (pg.CrashShutdownError("x"), StoreUnavailable, OutcomeUnknown),
    (pg.IdleSessionTimeoutError("x"), StoreUnavailable, OutcomeUnknown),
    (ConnectionResetError("reset by peer"), StoreUnavailable, OutcomeUnknown),
    (BrokenPipeError("x"), StoreUnavailable, OutcomeUnknown),
    (EOFError(), StoreUnavailable, OutcomeUnknown),
    (pg.InternalClientError("cannot switch to state 12; another"), StoreUnavailable, OutcomeUnknown),
    (OSError(113, "No route to host"), StoreUnavailable, OutcomeUnknown),
    (TimeoutError(), StoreBusy, OutcomeUnknown),
    # Never sent: nothing can have been written.
    (ConnectionRefusedError("x"), StoreUnavailable, StoreUnavailable),
    (FileNotFoundError("no socket"), StoreUnavailable, StoreUnavailable),
    (socket.gaierror(-2, "Name or service not known"), StoreUnavailable, StoreUnavailable),
    (pg.CannotConnectNowError("the database system is starting up"), StoreUnavailable, StoreUnavailable),
    (pg.InvalidPasswordError("password authentication failed"), StoreUnavailable, StoreUnavailable),
    (pg.InvalidCatalogNameError('database "x" does not exist'), StoreUnavailable, StoreUnavailable),
    (asyncpg.InterfaceError("connection is closed"), StoreUnavailable, StoreUnavailable),
    (asyncpg.InterfaceError("pool is closing"), StoreUnavailable, StoreUnavailable),
    (asyncpg.InterfaceError("pool is closed"), StoreUnavailable, StoreUnavailable),
    # Rolled back for certain, and worth another try.
    (pg.TooManyConnectionsError("x"), StoreBusy, StoreBusy),
    (pg.DeadlockDetectedError("x"), StoreBusy, StoreBusy),
    (pg.SerializationError("x"), StoreBusy, StoreBusy),
    (pg.LockNotAvailableError("x"), RowLocked, RowLocked),
    (pg.QueryCanceledError("canceling statement due to statement timeout"), StoreBusy, StoreBusy),
    (pg.OutOfMemoryError("x"), StoreBusy, StoreBusy),
    (pg.IdleInTransactionSessionTimeoutError("x"), StoreBusy, StoreBusy),
    # Rolled back, and it needs someone's hand.
    (pg.DiskFullError("could not extend file"), StorageFull, StorageFull),
    (pg.ReadOnlySQLTransactionError("cannot execute INSERT"), ReadOnly, ReadOnly),
    (pg.UndefinedTableError('relation "headgate.jobs" does not exist'), SchemaMismatch, SchemaMismatch),
    (pg.UndefinedFunctionError("function headgate.claim_v2(integer) does not exist"), SchemaMismatch, SchemaMismatch),
    (pg.InvalidSchemaNameError('schema "headgate" does not exist'), SchemaMismatch, SchemaMismatch),
    (pg.UndefinedTableError('relation "other.table" does not exist'), StoreError, StoreError),
    (pg.UniqueViolationError("x"), StoreError, StoreError),
    (pg.InsufficientPrivilegeError("permission denied for schema headgate"), StoreError, StoreError),
    (asyncpg.InterfaceError("cannot perform operation: another operation is in progress"), StoreError, StoreError),
    (ValueError("x"), StoreError, StoreError),
]


@pytest.mark.parametrize(
    ("error", "reading", "writing"), TABLE, ids=[f"{type(row[0]).__name__}-{n}" for n, row in enumerate(TABLE)]
)
def test_each_driver_error_has_its_meaning(
    error: BaseException, reading: type[HeadgateError], writing: type[HeadgateError]
) -> None:
    assert type(translate(error, writing=False)) is reading
    assert type(translate(error, writing=True)) is writing


def test_our_own_errors_stay_themselves() -> None:
    error = NotFound("job", "x")
    assert translate(error, writing=True) is error


def test_the_details_of_a_row_are_not_repeated() -> None:
    error = pg.UniqueViolationError("duplicate key value violates unique constraint")
    error.detail = "Key (payload)=(secret) already exists."
    assert "secret" not in str(translate(error, writing=True))


def test_translating_keeps_the_cause() -> None:
    with pytest.raises(StoreBusy) as caught, translating(writing=True):
        raise pg.DeadlockDetectedError("x")
    assert isinstance(caught.value.__cause__, pg.DeadlockDetectedError)


@pytest.mark.parametrize("error", [KeyError("a bug"), asyncio.CancelledError(), NotFound("job", "x")])
def test_translating_lets_everything_else_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, translating(writing=True):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("dsn", "text"),
    [
        ("postgresql://ann:pa%40ss@db.example:6543/queue", 'database "queue" at db.example:6543'),
        ("postgresql://ann@db.example/queue", 'database "queue" at db.example'),
        ("postgresql://ann:x@a:1,b:2/queue", 'database "queue" at a:1,b:2'),
        ("postgresql://ann:x@/q?host=/run/pg&port=5433", 'database "q" at /run/pg:5433'),
        ("postgresql:///q", 'database "q" at localhost'),
        ("postgresql://ann:x@[::1]:5432/q", 'database "q" at [::1]:5432'),
        ("postgresql://ann:x@h", 'database "(default)" at h'),
        ("postgresql://ann:x@[::1/q", "the given database URL"),
    ],
)
def test_a_url_is_described_without_user_and_password(dsn: str, text: str) -> None:
    assert describe(dsn) == text


@pytest.mark.parametrize(
    ("dsn", "hosts"),
    [
        ("postgresql://a:b@h1:5433,h2/q", [("h1", 5433), ("h2", 5432)]),
        ("postgresql://a@[::1]:5433,[fe80::2]/q", [("::1", 5433), ("fe80::2", 5432)]),
        ("postgresql:///q?host=h1,/run/pg&port=5433", [("h1", 5433), ("/run/pg", 5433)]),
        ("postgresql:///q?host=h1,h2&port=5433,5434", [("h1", 5433), ("h2", 5434)]),
        ("postgresql://h1:5433/q", []),
        ("postgresql:///q", []),
    ],
)
def test_a_url_may_name_several_hosts(dsn: str, hosts: list[tuple[str, int]]) -> None:
    assert hosts_of(dsn) == hosts
