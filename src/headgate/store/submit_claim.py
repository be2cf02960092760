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

SUBMIT_AND_CLAIM: Final = """
SELECT ord, receipt, job_id, detail, id, topic_no, epoch, attempt, max_attempts, priority, rank_class, rank_at,
       created_at, lease_until, worker, headers, payload
  FROM headgate.hand_over_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
                             $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35)"""


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
