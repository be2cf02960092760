"""The members of a batch with their states, and what they wait for: a bounded part of a batch of any size."""

from __future__ import annotations

from typing import Final

from headgate.domain.batch_graph import EDGES_MAX, MEMBERS_MAX, BatchGraph, BatchMember, Edge
from headgate.domain.dependencies import BatchStatus, Met
from headgate.domain.states import State
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.names import Names

# By key, a member at a time; index: batch_jobs_pkey. None can have ended before its batch was opened.
MEMBERS: Final = """
WITH member AS MATERIALIZED (
    SELECT m.job_id FROM headgate.batch_jobs m WHERE m.tenant_no = $1 AND m.batch_id = $2 ORDER BY m.job_id LIMIT $3)
SELECT m.job_id, f.topic_no, f.state, f.attempt
  FROM member m
  LEFT JOIN LATERAL (
       (SELECT j.topic_no, j.state, j.attempt FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = m.job_id)
        UNION ALL
       (SELECT a.topic_no, a.state, a.attempt FROM headgate.archive a
         WHERE a.tenant_no = $1 AND a.id = m.job_id AND a.finished_at >= $4)
        LIMIT 1) AS f ON true
 ORDER BY m.job_id"""
# index: job_dependencies_of_child
EDGES: Final = """
SELECT d.parent_id, d.child_id, d.met FROM headgate.job_dependencies d
 WHERE d.tenant_no = $1 AND d.child_id = ANY ($2) LIMIT $3"""


async def batch_graph(db: Connection, names: Names, tenant_no: int, status: BatchStatus) -> BatchGraph:
    """A batch with its first members, by id, and the dependencies between them."""
    with translating(writing=False):
        rows = await db.fetch(MEMBERS, tenant_no, status.id, MEMBERS_MAX + 1, status.created_at)
        shown = rows[:MEMBERS_MAX]
        ids = {row[0] for row in shown}
        found = await db.fetch(EDGES, tenant_no, list(ids), EDGES_MAX)
    members = [
        BatchMember(
            id=job_id,
            topic="" if topic_no is None else (await names.topic_by_no(db, topic_no)).name,
            state=None if state is None else State(state),
            attempt=attempt or 0,
        )
        for job_id, topic_no, state, attempt in shown
    ]
    edges = [
        Edge(parent=parent, child=child, met=met == Met.FULFILLED) for parent, child, met in found if parent in ids
    ]
    return BatchGraph(batch=status, members=members, edges=edges, more=len(rows) > MEMBERS_MAX)
