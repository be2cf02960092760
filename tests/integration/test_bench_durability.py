"""Peers are compared at the same durability, or not at all."""

from __future__ import annotations

import asyncpg
import pytest

from bench.peers.catalog import BY_NAME
from bench.peers.services import check_durable


async def test_a_peer_that_is_not_durable_is_refused(database: str) -> None:
    peer = BY_NAME["river"]
    connection = await asyncpg.connect(database)
    try:
        with pytest.raises(RuntimeError, match="WAL of table river_job"):
            await check_durable(connection, peer)  # there is no such table
        await connection.execute("CREATE TABLE river_job (id int)")
        await check_durable(connection, peer)
        await connection.execute("ALTER TABLE river_job SET UNLOGGED")
        with pytest.raises(RuntimeError, match="WAL of table river_job"):
            await check_durable(connection, peer)
        await connection.execute("ALTER TABLE river_job SET LOGGED")
        await connection.execute("SET synchronous_commit = off")
        with pytest.raises(RuntimeError, match="missing: synchronous_commit"):
            await check_durable(connection, peer)
    finally:
        await connection.close()
