"""A connection that knows PostgreSQL's own array types.

asyncpg knows the scalar types, and asks the database about every array type: on each new connection, at the first
statement that has one. That takes three statements and 5 to 10 ms of PostgreSQL, and every statement of the hot path
has arrays. The numbers of PostgreSQL's own types are the same in all versions and databases.

`_introspect_types` is private to asyncpg. If it gets another name, connections ask the database again, as they do about
all other types, and `tests/integration/test_connect.py` fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

_ELEMENTS: Final = {
    271: (5069, "xid8"),
    1000: (16, "bool"),
    1001: (17, "bytea"),
    1003: (19, "name"),
    1005: (21, "int2"),
    1007: (23, "int4"),
    1010: (27, "tid"),
    1016: (20, "int8"),
    1022: (701, "float8"),
    1182: (1082, "date"),
    1185: (1184, "timestamptz"),
    1187: (1186, "interval"),
    2951: (2950, "uuid"),
    3807: (3802, "jsonb"),
}
"""Array types of the store: number and name of their elements, as in pg_type.dat of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class _NoStatement:
    """Stands for the statement that would have read the types. With a name: none was prepared in place of another."""

    name: str = "none"


class Connection(asyncpg.Connection):
    """As asyncpg's own."""

    __slots__ = ()

    async def _introspect_types(
        self,
        typeoids: Iterable[int],
        timeout: float,  # noqa: ASYNC109 -- asyncpg's own signature
    ) -> tuple[Iterable[Mapping[str, Any]], object]:
        if all(oid in _ELEMENTS for oid in typeoids):
            return [_array_type(oid) for oid in typeoids], _NoStatement()
        found: tuple[Iterable[Mapping[str, Any]], object] = await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
        return found


def _array_type(oid: int) -> Mapping[str, Any]:
    """The row that asyncpg's own query would have found."""
    element, name = _ELEMENTS[oid]
    return {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
    }
