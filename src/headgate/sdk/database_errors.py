"""What the database says about a submit in a user's transaction, as the errors of a submit through a server.

Only what `headgate.submit_returning` raises itself, and what says that it cannot be called. Everything else passes as
the library of the user raised it: a lost connection, a deadlock, a serialization failure, for which the user's own code
may run the transaction again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from headgate.domain.errors import HeadgateError, SchemaMismatch
from headgate.sdk.errors import Forbidden, SubmitConflict, SubmitRefused

if TYPE_CHECKING:
    from headgate.sdk.drivers import Call

_CODE: Final = re.compile(r"headgate code: ([a-z_]+)")
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_FIELD: Final = re.compile(r"([a-z_]+): (.+)", re.DOTALL)
_UNDEFINED: Final = frozenset({"3F000", "42883"})  # schema, function
_NOT_ALLOWED: Final = "42501"
_PASSED_ON: Final = frozenset({"store_busy"})  # a serialization failure: the user's own code runs it again
_CHAIN_MAX: Final = 5


class translating:  # noqa: N801 - read as a statement, as in the store
    """Turn errors of this class into Headgate's where the database speaks about the submit."""

    __slots__ = ("_call", "_kind")

    def __init__(self, kind: type[BaseException], call: Call) -> None:
        self._kind, self._call = kind, call

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, self._kind):
            for one in _chain(error):
                if (ours := translated(one, self._call)) is not None:
                    # From the error of the driver: that of SQLAlchemy prints the parameters, so the payload.
                    raise ours from one


def translated(error: BaseException, call: Call) -> HeadgateError | None:
    """Headgate's error for that of a driver; None if it is not about the submit itself."""
    state, message, hint = _report(error)
    if code := _CODE.search(hint):
        return None if code[1] in _PASSED_ON else _refused(code[1], message, hint, call)
    if "headgate" not in message and "submit_returning" not in message:
        return None
    if state in _UNDEFINED:
        return SchemaMismatch(
            f"this database does not have the schema that this release submits to ({message}); run `headgate "
            "migrate` on it, or pass a connection to the database that has it"
        )
    if state == _NOT_ALLOWED:
        return Forbidden(
            f"the database role of this connection may not submit ({message}); the owner of the schema can allow "
            f"it: SELECT headgate.allow_submit('ROLE', '{call.tenant}')"
        )
    return None


def _refused(code: str, message: str, hint: str, call: Call) -> HeadgateError:
    if code == "conflict" and (first := _ID.search(message)):
        key = msgspec.json.decode(call.options).get("key")
        return SubmitConflict(UUID(first[0]), what=f'key "{key}"' if key else f"id {first[0]}")
    if code == "permission_denied":
        return Forbidden(f"{message}; the owner of the schema can allow it: {hint.rpartition(': ')[2]}")
    found = _FIELD.match(message.replace("unique_key", "unique"))  # as the option is named here
    field, problem = (found[1], found[2]) if found else ("job", message.replace("unique_key", "unique"))
    return SubmitRefused(field, problem, reported=code)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those it was made from: SQLAlchemy and Django wrap what the driver raises."""
    found: BaseException | None = error
    for _ in range(_CHAIN_MAX):
        if found is None:
            return
        yield found
        found = found.__cause__


def _report(error: BaseException) -> tuple[str, str, str]:
    """SQLSTATE, message and hint as asyncpg and psycopg show them; empty where an error has none."""
    if (report := getattr(error, "diag", None)) is not None:  # psycopg
        found = report.sqlstate, report.message_primary, report.message_hint
    else:
        found = getattr(error, "sqlstate", ""), getattr(error, "message", ""), getattr(error, "hint", "")
    state, message, hint = (value if isinstance(value, str) else "" for value in found)
    return state, message, hint
