"""Large payloads and results are outside of the rows that claims and listings read (ADR 1)."""

from __future__ import annotations

import pytest

from headgate.domain.outcomes import Completed
from headgate.store import reads
from headgate.store.connect import Connection
from tests.support.queue import Queue

JOBS = 40
# The main pages of a table and, apart from them, what its rows keep out of line.
SIZES = """
SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::bigint, coalesce(sum(pg_relation_size(c.reltoastrelid)), 0)::bigint
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'headgate' AND c.relkind = 'r' AND c.relname ~ $1"""


async def sizes(db: Connection, tables: str) -> tuple[int, int]:
    ((pages, out_of_line),) = await db.fetch(SIZES, tables)
    return pages, out_of_line


@pytest.mark.parametrize("size", [8 << 10, 64 << 10])
async def test_results_are_out_of_line_in_the_archive_and_never_in_the_live_table(db: Connection, size: int) -> None:
    queue = Queue(db)
    ids = await queue.add(JOBS)
    claimed = await queue.claim(limit=JOBS)
    live_before, _ = await sizes(db, "^jobs$")
    archive_before, _ = await sizes(db, r"^archive_\d")
    result = bytes(range(256)) * (size // 256)
    await queue.settle(*((job_id, 1, Completed(result=result)) for job_id in claimed.ids))
    assert (await sizes(db, "^jobs$"))[0] == live_before
    archive, out_of_line = await sizes(db, r"^archive_\d")
    assert archive - archive_before <= JOBS * 400, "an archived row has its columns and a pointer of 18 bytes"
    assert out_of_line >= JOBS * size
    assert (await reads.result(db, await queue.tenant_no(), ids[0])).result == result


async def test_payloads_are_outside_of_the_live_rows(db: Connection) -> None:
    queue = Queue(db)
    await queue.add(JOBS, payload=bytes(range(256)) * 32)
    live, out_of_line = await sizes(db, "^jobs$")
    assert live <= JOBS * 400 + 8_192
    assert out_of_line == 0
    apart, apart_out_of_line = await sizes(db, "^payloads$")
    assert apart + apart_out_of_line >= JOBS * 8_192
