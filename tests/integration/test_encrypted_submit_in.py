"""Encrypted jobs in a transaction of the user's own: many go in few statements, each bound to its own id."""

from __future__ import annotations

import asyncpg
import pytest

from headgate import Encryption, Headgate, Task
from headgate.sdk import transactions
from headgate.sdk.ids import new_id_maker
from headgate.store.connect import Connection


def _send(to: str) -> None:
    del to


@pytest.mark.parametrize(("most", "statements"), [(1_000, 1), (2, 3)])
async def test_many_encrypted_jobs_go_in_few_statements_and_each_opens_with_its_own_id(
    database: str, db: Connection, monkeypatch: pytest.MonkeyPatch, most: int, statements: int
) -> None:
    monkeypatch.setattr(transactions, "JOBS_PER_STATEMENT", most)
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
    assert len([query for query in sent if "submit_returning" in query]) == statements
    stored = {row["id"]: row["payload"] for row in await db.fetch("SELECT id, payload FROM headgate.jobs")}
    assert [keys.open_payload(stored[one.id], one.id.bytes) for one in handles] == [
        b'{"to":"to %d"}' % n for n in range(5)
    ]


async def test_an_encrypted_job_keeps_the_id_that_its_caller_has_chosen(database: str, db: Connection) -> None:
    keys, chosen = Encryption({"k": Encryption.new_key()}, write="k"), new_id_maker().next_id()
    hg = Headgate("127.0.0.1:1", tenant="acme", encryption=keys)
    send: Task[..., None] = hg.register("mail", _send)
    connection = await asyncpg.connect(database)
    try:
        for created in (True, False):  # the same again is the same bytes, and so the same job
            async with connection.transaction():
                handle = await send.with_options(id=chosen).submit_in(connection, "one")
            assert (handle.id, handle.created) == (chosen, created)
    finally:
        await connection.close()
    payload = await db.fetchval("SELECT payload FROM headgate.jobs")
    assert keys.open_payload(payload, chosen.bytes) == b'{"to":"one"}'
