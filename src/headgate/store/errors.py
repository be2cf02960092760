"""Driver errors become Headgate's own at the edge of the store, in one table; the cause stays chained.

The one question that matters to a caller of a write is: may it have been committed? The answer is "unknown"
(OutcomeUnknown) whenever the connection ended after the statement was sent, even when the server reported its end
(57P01, 57P02): a backend can be ended after it committed and before it answered, and with synchronous replication it
ends *because* it waits after a local commit. Every other error of a statement means that it was rolled back.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from types import TracebackType

import asyncpg

from headgate.domain.errors import (
    HeadgateError,
    InvalidInput,
    OutcomeUnknown,
    ReadOnly,
    RowLocked,
    SchemaMismatch,
    StorageFull,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from headgate.domain.validation import shown

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)

_BUSY = {
    "40001": "it conflicted with another transaction (serialization failure)",
    "40P01": "it was in a deadlock with another transaction",
    "57014": "it was cancelled, by statement_timeout or by an operator",
    "53300": "the server has no connection left (max_connections)",
    "53200": "the server is out of memory",
    "25P03": "the transaction was idle for longer than idle_in_transaction_session_timeout",
    "25P04": "the transaction took longer than transaction_timeout",
}
# The session ended with a message: shutdown by the administrator, crash of another session, database dropped, session
# idle.
_ENDED = {"57P01", "57P02", "57P04", "57P05"}
# The server turned us away before any statement: starting up or shutting down; wrong user or password; no such
# database.
_TURNED_AWAY = {"57P03", "08001", "08004", "28000", "28P01", "3D000"}
_UNDEFINED = {"42P01", "42883", "3F000"}  # table, function, schema
# A value that the checks let through and a column cannot hold: number, time, text with a NUL, malformed text or bytes.
_UNFIT = {"22003", "22008", "22021", "22P02", "22P03", "22P05"}
_OUR_SCHEMA = re.compile(r"\bheadgate\b")
_ARGUMENT = re.compile(r"query argument \$(\d+)")
_NEVER_SENT = re.compile(r"\b(connection|pool) is (closed|closing)\b")


def translate(error: BaseException, *, writing: bool, names: Sequence[str] = ()) -> HeadgateError:
    """The Headgate error for what a driver call raised.

    `writing`: a statement that writes was under way. `names`: what its arguments are called, in their order.
    """
    if isinstance(error, HeadgateError):
        return error
    if isinstance(error, asyncpg.DataError) and error.__cause__ is not None:
        return _not_encoded(error, error.__cause__, names)
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, writing=writing)
    if isinstance(error, asyncpg.InterfaceError):
        if _NEVER_SENT.search(str(error)):  # the driver noticed before sending: nothing can have been written
            return StoreUnavailable(f"the connection to the database is gone ({error}); try again")
        return StoreError(f"the database call failed: {error}")
    if isinstance(error, ConnectionRefusedError | socket.gaierror | FileNotFoundError):
        return StoreUnavailable(f"the database cannot be reached: {error}")
    if isinstance(error, TimeoutError):
        if writing:
            return OutcomeUnknown(
                "the database did not answer a write in time; it may have been committed: send it again"
            )
        return StoreBusy("the database did not answer in time; try again")
    # The driver lost track of the protocol: mostly because PostgreSQL has reported the end and not yet closed.
    if isinstance(error, OSError | EOFError | asyncpg.InternalClientError):
        return _connection_lost(str(error) or type(error).__name__, writing=writing)
    return StoreError(f"the database call failed: {type(error).__name__}: {error}")


class translating:  # noqa: N801 - read as a statement; a class, for a generator's costs ten calls on every hot path
    """Turn driver errors of the enclosed calls into Headgate's; other exceptions and cancellation pass untouched.

    Acquire from a pool outside of a `writing=True` block: running out of time there has written nothing.
    """

    __slots__ = ("_names", "_writing")

    def __init__(self, *, writing: bool, names: Sequence[str] = ()) -> None:
        self._writing, self._names = writing, names

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, DRIVER_ERRORS):
            raise translate(error, writing=self._writing, names=self._names) from error


def _not_encoded(error: asyncpg.DataError, cause: BaseException, names: Sequence[str]) -> HeadgateError:
    """The driver could not encode an argument, so nothing was sent. Its text repeats the value; ours does not."""
    found = _ARGUMENT.search(str(error))
    place = int(found[1]) if found else 0
    field = names[place - 1] if 0 < place <= len(names) else f"argument {place}"
    if isinstance(cause, AttributeError):  # it takes whatever has the attribute of a UUID for one
        return InvalidInput(field, f"must be a UUID, got {shown(cause.obj)}")
    if isinstance(cause, UnicodeError):
        return InvalidInput(field, "has a lone surrogate and no UTF-8 form")
    return InvalidInput(field, f"cannot be stored: {cause}")


def _from_server(error: asyncpg.PostgresError, *, writing: bool) -> HeadgateError:
    # Only the primary message: DETAIL may carry the values of a row, so a payload.
    state, message = error.sqlstate or "", error.args[0] if error.args else ""
    if state == "55P03":
        return RowLocked(
            f"the database is busy: a lock was not free within lock_timeout; try again ({state}: {message})"
        )
    if state in _BUSY:
        return StoreBusy(f"the database is busy: {_BUSY[state]}; try again ({state}: {message})")
    if state in _TURNED_AWAY:
        return StoreUnavailable(f"the database turned the connection away: {message}")
    if state in _ENDED or state.startswith("08"):
        return _connection_lost(message, writing=writing)
    if state == "53100":
        return StorageFull(f"the database is out of disk space: {message}; free or add disk space")
    if state == "25006":
        return ReadOnly(f"the database is read-only: {message}; connect to the primary")
    if state in _UNFIT:
        return InvalidInput("value", f"cannot be stored: {message} ({state})")
    if state in _UNDEFINED and _OUR_SCHEMA.search(message):
        return SchemaMismatch(f"the database schema does not fit this release: {message}; run `headgate migrate`")
    return StoreError(f"the database refused: {message} ({state or 'no SQLSTATE'})")


def _connection_lost(reason: str, *, writing: bool) -> HeadgateError:
    if writing:
        return OutcomeUnknown(
            f"the database connection was lost during a write ({reason}); it may have been committed: send it again"
        )
    return StoreUnavailable(f"the database connection was lost ({reason}); try again")
