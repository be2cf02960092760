"""Submitting and claiming in one call and one commit: for a job whose worker already waits.

Two calls cost two commits and two ways to the database, one after the other. On an idle system that is most of the time
from a submit to its handler's start (ADR 0009).
"""

from __future__ import annotations

from typing import Final

from headgate.store.claim import Claimed, ClaimRequest, claimed
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.submit import SubmitAnswer, SubmitFlush, answers_of, submit_arguments

# The two parts run in this order, and each statement within them has a snapshot of its own, so the claim finds what was
# submitted. It reads the pause rows under their lock as always: a paused job is submitted and not claimed.
SUBMIT_AND_CLAIM: Final = """
SELECT s.ord, s.receipt, s.job_id, s.detail, NULL::uuid AS id, NULL::int AS topic_no, NULL::int AS epoch,
       NULL::int AS attempt, NULL::int AS max_attempts, NULL::int AS priority, NULL::int AS rank_class,
       NULL::bigint AS rank_at, NULL::timestamptz AS created_at, NULL::timestamptz AS lease_until, NULL::text AS worker,
       NULL::jsonb AS headers, NULL::bytea AS payload
  FROM headgate.submit_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
                          $20, $21, $22) AS s
 UNION ALL
SELECT NULL, NULL, NULL, NULL, c.id, c.topic_no, c.epoch, c.attempt, c.max_attempts, c.priority, c.rank_class,
       c.rank_at, c.created_at, c.lease_until, c.worker, c.headers, c.payload
  FROM headgate.claim_v1($23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35) AS c"""


async def submit_and_claim(
    db: Connection, flush: SubmitFlush, request: ClaimRequest
) -> tuple[dict[int, SubmitAnswer], Claimed]:
    """Write a plain flush (`flush.plain`) and claim; all of it is committed, or nothing.

    An error says nothing about single rows: submit by itself, which finds the one that cannot be written.
    """
    flush.check_shape()
    arguments = (*submit_arguments(flush), *request.arguments())
    with translating(writing=True):
        rows = await db.fetch(SUBMIT_AND_CLAIM, *arguments)
        answers = await answers_of(db, flush, [row[:4] for row in rows if row[0] is not None])
    got = sorted(
        (row[4:] for row in rows if row[0] is None),
        key=lambda row: (row[0] is None, row[6], row[7], row[0]),  # what only tells of a wait comes last
    )
    return answers, claimed(got)
