"""Jobs, batches and bulk operations by the first digits of their ids.

Each table is read in the order of its primary key, from the first id of the range, and only a bounded number of rows: a
prefix that many ids share costs as much as one that few share.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from headgate.domain.ids import IdKind
from headgate.domain.topic_sets import TopicSet
from headgate.store import verbs
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating

LOOK_AT: Final = 1_000
"""Ids that a search for a token of some topics reads; it may see few of them, or none."""
JOBS: Final = """
SELECT id FROM headgate.list_ids_oldest_v1($1, $2, $4, 'all', NULL, NULL, 0, NULL, NULL) AS id
 WHERE id <= $3 ORDER BY id"""
# index: batches_pkey
BATCHES: Final = """
SELECT b.id, b.topics FROM headgate.batches b
 WHERE b.tenant_no = $1 AND b.id > $2 AND b.id <= $3 ORDER BY b.id LIMIT $4"""
# index: bulk_operations_pkey
BULK: Final = """
SELECT o.id, o.topics FROM headgate.bulk_operations o
 WHERE o.tenant_no = $1 AND o.id > $2 AND o.id <= $3 ORDER BY o.id LIMIT $4"""
TOPIC_NOS: Final = "SELECT topic_no FROM headgate.topics WHERE tenant_no = $1 AND name LIKE ANY ($2::text[])"


async def find_ids(
    db: Connection,
    tenant_no: int,
    kind: IdKind,
    between: tuple[UUID, UUID],
    *,
    topics: TopicSet | None,
    limit: int,
) -> tuple[list[UUID], bool]:
    """Up to `limit` ids of a range, in ascending order, and whether there may be more.

    With `topics`, only what belongs to them, among the first LOOK_AT ids of the range.
    """
    check_tenant_no(tenant_no)
    first, last = between
    above = UUID(int=max(first.int - 1, 0))
    count = limit + 1 if topics is None else LOOK_AT
    statement = {IdKind.JOB: JOBS, IdKind.BATCH: BATCHES, IdKind.BULK: BULK}[kind]
    with translating(writing=False):
        rows = await db.fetch(statement, tenant_no, above, last, count)
    ids: list[UUID] = [row[0] for row in rows]
    if topics is not None and kind is IdKind.JOB:
        ids = await _of_topics(db, tenant_no, ids, topics)
    elif topics is not None:
        ids = [row[0] for row in rows if topics.covers(TopicSet.stored(row[1]))]
    return ids[:limit], len(ids) > limit or len(rows) == count


async def _of_topics(db: Connection, tenant_no: int, ids: list[UUID], topics: TopicSet) -> list[UUID]:
    with translating(writing=False):
        permitted = {row[0] for row in await db.fetch(TOPIC_NOS, tenant_no, topics.like)}
    found = await verbs.states(db, tenant_no, ids) if ids else {}
    return [one for one in ids if one in found and found[one][1] in permitted]
