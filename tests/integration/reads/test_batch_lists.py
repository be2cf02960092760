"""Lists of batches: a page looks at a bounded number of batches and members, and says where the next one begins."""

from __future__ import annotations

from uuid import UUID

import pytest

from headgate.domain.limits import BATCH_LISTED_MAX
from headgate.domain.topic_sets import TopicSet
from headgate.store import batches
from headgate.store.batches import list_batches
from headgate.store.connect import Connection
from headgate.store.listing import NEWEST
from tests.support import explain
from tests.support.queue import Queue

LOOK_AT = 100
MAKE = """
INSERT INTO headgate.batches (tenant_no, id, name, needs, on_failure, created_at, expires_at, topics)
SELECT $1, ('0190' || lpad(to_hex(n), 8, '0') || '70008000000000000000')::uuid,  -- a millisecond apart
       '', 0, 0, now(), now() + interval '1 day',
       ARRAY[CASE n WHEN 1 THEN 'rare' ELSE 'mail' END]
  FROM generate_series(1, $2::int) AS n"""
FILL = """
INSERT INTO headgate.batch_jobs (tenant_no, batch_id, job_id)
SELECT $1, $2, gen_random_uuid() FROM generate_series(1, $3::int)"""


def batch_id(number: int) -> UUID:
    """The id that MAKE gives."""
    return UUID(f"0190{number:08x}70008000000000000000")


OLDEST = batch_id(1)


@pytest.fixture
async def queue(db: Connection) -> Queue:
    await db.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")  # as with more than a few pages
    return Queue(db)


async def test_a_page_for_some_topics_looks_at_a_bounded_number_of_batches_and_all_pages_find_all(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "LOOK_AT", LOOK_AT)
    tenant = await queue.tenant_no()
    await queue.db.execute(MAKE, tenant, 3 * LOOK_AT)
    await queue.db.execute("ANALYZE headgate.batches")
    looked: list[int] = []
    fetch, fetchval = queue.db.fetch, queue.db.fetchval

    async def cost(statement: str, *arguments: object) -> None:
        plan = (await explain.cost(queue.db, statement, *arguments)).plan
        looked.append(sum(scan.rows_read for scan in plan.scans_of("batches")))

    class Counting:
        async def fetch(self, statement: str, *arguments: object) -> object:
            await cost(statement, *arguments)
            return await fetch(statement, *arguments)

        async def fetchval(self, statement: str, *arguments: object) -> object:
            await cost(statement, *arguments)
            return await fetchval(statement, *arguments)

    found, pages, before = [], 0, None
    while pages == 0 or before is not None:
        page, before = await list_batches(Counting(), tenant, topics=TopicSet.of("rare"), before=before)  # type: ignore[arg-type]
        found += [one.id for one in page]
        pages += 1
        assert max(looked) <= LOOK_AT, looked
    assert (found, pages) == ([OLDEST], 4), "three times the bound, and an empty page: the last one ended at the bound"
    assert await list_batches(queue.db, tenant, topics=TopicSet.of("rare"), limit=1, before=None) == (
        [],
        batch_id(1 + 2 * LOOK_AT),
    )


async def test_a_list_counts_few_members_of_an_open_batch_and_reports_it(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await queue.db.execute(MAKE, tenant, 2)
    await queue.db.execute(FILL, tenant, OLDEST, 5_000)
    await queue.db.execute(FILL, tenant, batch_id(2), BATCH_LISTED_MAX)
    await queue.db.execute("ANALYZE headgate.batch_jobs")
    (exact, cut), _ = await list_batches(queue.db, tenant)
    assert (exact.total, exact.more_members) == (BATCH_LISTED_MAX, False)
    assert (cut.total, cut.more_members) == (BATCH_LISTED_MAX, True)
    plan = (
        await explain.cost(queue.db, batches.LIST, tenant, NEWEST, False, None, 50, BATCH_LISTED_MAX + 1, UUID(int=0))
    ).plan
    assert sum(scan.rows_read for scan in plan.scans_of("batch_jobs")) == 2 * BATCH_LISTED_MAX + 1
