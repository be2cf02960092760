"""Epochs in tests, where they are counted: the first claim of a job, its second, whatever range its flush was given."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from headgate.store.connect import Connection

RANGE = 1_024
_NEWEST = """
SELECT id, max(epoch) FROM (SELECT id, epoch FROM headgate.jobs WHERE id = ANY ($1)
                            UNION ALL SELECT id, epoch FROM headgate.archive WHERE id = ANY ($1)) AS f GROUP BY id"""


def claims(epoch: int) -> int:
    """The claims a job has had at this epoch: 1 at the first."""
    return epoch % RANGE


def counted(attempts: Iterable[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
    """Jobs with their epochs, as jobs with the number of the claim."""
    return [(job_id, claims(epoch)) for job_id, epoch in attempts]


async def epochs_of(db: Connection, ids: Iterable[UUID], nth: int = 1) -> list[int]:
    """The epochs of the n-th claim of each; of jobs that do not exist, an epoch that no job has."""
    ids = list(ids)
    newest: dict[UUID, int] = {row[0]: row[1] for row in await db.fetch(_NEWEST, ids)}
    return [newest.get(job_id, 0) // RANGE * RANGE + nth for job_id in ids]
