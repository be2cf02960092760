"""Encrypted jobs in a transaction of the user's own: many go in few statements, each bound to its own id."""

from __future__ import annotations

import asyncpg

from headgate import Encryption, Headgate, Task
from headgate.store.connect import Connection


def _send(to: str) -> None:
    del to


async def test_many_encrypted_jobs_go_in_one_statement_and_each_opens_with_its_own_id(
    database: str, db: Connection
) -> None:
    keys = Encryption({"k": Encryption.new_key()}, write="k")
    hg = Headgate("127.0.0.1:1", tenant="acme", encryption=keys)
    send: Task[..., None] = hg.register("mail", _send)
    sent: list[str] = []
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            connection.add_query_logger(lambda record: sent.append(str(record.query)))
            handles = await send.submit_many_in(connection, [(f"to {n}",) for n in range(5)])
    finally:
        await connection.close()
    assert len([query for query in sent if "submit_returning" in query]) == 1
    stored = {row["id"]: row["payload"] for row in await db.fetch("SELECT id, payload FROM headgate.jobs")}
    assert [keys.open_payload(stored[one.id], one.id.bytes) for one in handles] == [
        b'{"to":"to %d"}' % n for n in range(5)
    ]
