"""What a new connection costs before its first statement of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg

import headgate.store
from headgate.store.connect import connect

STORE = Path(headgate.store.__file__).parent
ARRAY = re.compile(r"\b(double precision|[a-z][a-z0-9]*)\[\]")


def array_types() -> list[str]:
    """Those that stand in a statement or in a function of the store."""
    files = [*STORE.glob("functions/*.sql"), *STORE.glob("*.py")]
    found = {name for file in files for line in file.read_text().splitlines() for name in ARRAY.findall(line)}
    return sorted(found)


async def test_a_new_connection_asks_nothing_about_the_array_types_of_the_store(blank_database: str) -> None:
    db = await connect(blank_database, application_name="headgate test")
    asked: list[str] = []

    def note(query: Any) -> None:
        asked.append(query.query)

    try:
        assert {"int", "bigint", "uuid", "bytea", "timestamptz"} <= set(array_types())
        db.add_query_logger(note)
        for name in array_types():
            statement = await db.prepare(f"SELECT $1::{name}[], NULL::{name}[]")
            assert await statement.fetchval([]) == []
        assert asked == []
        await db.fetchval("SELECT NULL::pg_catalog.int4range[]")  # one that no statement uses
        assert any("typeinfo_tree" in query for query in asked)
    finally:
        await db.close()


async def test_arrays_are_read_as_they_were_written(db: asyncpg.Connection[asyncpg.Record]) -> None:
    written = await db.fetchrow(
        """SELECT ARRAY[1, NULL]::int[] AS a, ARRAY[9223372036854775807]::bigint[] AS b,
                  ARRAY['{"x": 1}']::jsonb[] AS c,
                  ARRAY['\\x00ff']::bytea[] AS d, ARRAY[[1, 2], [3, 4]]::smallint[] AS e, ARRAY[true, false] AS f,
                  ARRAY['2026-01-02 03:04:05+00']::timestamptz[] AS g, ARRAY['3 days']::interval[] AS h,
                  ARRAY['2026-01-02']::date[] AS i, ARRAY['77']::xid8[] AS j, ARRAY[1.5]::float8[] AS k,
                  ARRAY['01890a5d-ac96-774b-bcce-b302099a8057']::uuid[] AS l"""
    )
    assert written is not None
    again = await db.fetchrow(
        """SELECT $1::int[], $2::bigint[], $3::jsonb[], $4::bytea[], $5::smallint[], $6::boolean[], $7::timestamptz[],
                  $8::interval[], $9::date[], $10::xid8[], $11::float8[], $12::uuid[]""",
        *written.values(),
    )
    assert again is not None
    assert list(again.values()) == list(written.values())
    assert written["a"] == [1, None]
    assert written["e"] == [[1, 2], [3, 4]]
