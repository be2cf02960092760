"""Dead letters by topic and kind of error, computed when they are looked at.

Nothing is stored for it: the newest DEAD_LOOK_AT jobs that ended badly are put together by their very text in SQL, and
by `domain/fingerprint.py` here. A bounded read whatever lies in the archive, and a better rule needs no migration.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import asyncpg

from headgate.domain.bulk import DeadGroup, DeadGroups
from headgate.domain.filters import Term
from headgate.domain.fingerprint import group_of
from headgate.domain.pacing import Pace
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_page_size
from headgate.store import matching
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.names import Names

DEAD_LOOK_AT: Final = 20_000
DEAD: Final = """
SELECT topic_no, last_error, n, first_at, last_at, sample_id, looked_at FROM headgate.dead_letters_v1($1, $2, $3)"""


async def dead_groups(
    db: Connection,
    names: Names,
    tenant_no: int,
    *,
    named: Sequence[Term] = (),
    topics: TopicSet | None = None,
    limit: int = 100,
) -> DeadGroups:
    """The groups, largest first: of topics that the terms name and the caller may see."""
    check_tenant_no(tenant_no)
    check_page_size(limit)
    numbers = None
    if named or topics is not None:
        numbers = list(await matching.topic_nos(db, tenant_no, named, topics))
    with translating(writing=False):
        rows = await db.fetch(DEAD, tenant_no, numbers, DEAD_LOOK_AT + 1)
    looked = rows[0][6] if rows else 0
    ordered = await grouped(db, names, rows)
    return DeadGroups(
        groups=ordered[:limit],
        looked_at=min(looked, DEAD_LOOK_AT),
        exact=looked <= DEAD_LOOK_AT and len(ordered) <= limit,
    )


async def grouped(db: Connection, names: Names, rows: Sequence[asyncpg.Record]) -> list[DeadGroup]:
    """Put rows together by topic and kind of error, largest group first.

    Each row: number of the topic, error, count, first and last time, and a job.
    """
    groups: dict[tuple[str, str], DeadGroup] = {}
    pace = Pace(time.monotonic)
    for topic_no, error, n, first_at, last_at, sample_id, *_ in rows:
        await pace.rest()
        topic = (await names.topic_by_no(db, topic_no)).name
        kind = group_of(error)
        one = DeadGroup(
            topic=topic,
            group=kind.id,
            title=kind.title,
            count=n,
            first_at=first_at,
            last_at=last_at,
            sample_id=sample_id,
            sample_error=error or "",
        )
        other = groups.get((topic, kind.id))
        groups[topic, kind.id] = one if other is None else _joined(one, other)
    # By name at last, so that two equal groups do not change places from one look to the next.
    return sorted(groups.values(), key=lambda group: (-group.count, group.topic, group.group))


def _joined(one: DeadGroup, other: DeadGroup) -> DeadGroup:
    newer = one if one.last_at >= other.last_at else other
    return replace(
        newer, count=one.count + other.count, first_at=min(one.first_at, other.first_at), last_at=newer.last_at
    )
