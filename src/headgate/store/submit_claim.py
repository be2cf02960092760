"""Submitting and claiming in one call and one commit: for a job whose worker already waits.

Two calls cost two commits and two ways to the database, one after the other. On an idle system that is most of the time
from a submit to its handler's start (ADR 0009).
"""

from __future__ import annotations

from typing import Final

from headgate.domain.dispatching import Claimed, ClaimRequest
from headgate.domain.jobs import SubmitAnswer
from headgate.domain.keyrange import KeyRanges
from headgate.store.claim import NOTE, claim_arguments, claimed
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.flush import SubmitFlush, submit_arguments
from headgate.store.submit import answers_of

_COLUMNS: Final = """
SELECT ord, receipt, job_id, detail, id, topic_no, epoch, attempt, max_attempts, priority, rank_class, rank_at,
       created_at, lease_until, worker, headers, payload, run_at, note"""
SUBMIT_RUNNING: Final = f"""{_COLUMNS}
  FROM headgate.submit_running_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
                             $20, $21, $22, $23, $24)"""
SUBMIT_AND_CLAIM: Final = f"""{_COLUMNS}
  FROM headgate.submit_claim_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
                                $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36,
                                $37, $38)"""


async def submit_and_claim(
    db: Connection, flush: SubmitFlush, request: ClaimRequest, *, owner: int
) -> tuple[dict[int, SubmitAnswer], Claimed]:
    """Write a plain flush (`flush.plain`) and claim; all of it is committed, or nothing.

    An error says nothing about single rows: submit by itself, which finds the one that cannot be written.
    """
    with translating(writing=True):
        if len(flush.ids) == 1 and not request.hints and request.ranges is not None:
            rows = await db.fetch(SUBMIT_RUNNING, *_of_one(flush, request, request.ranges, owner))
            if len(rows) == 1 and rows[0][0] is None:  # made and claimed, as nearly always
                return {}, claimed([rows[0][4:]])
        else:
            flush.check_shape()
            rows = await db.fetch(SUBMIT_AND_CLAIM, *submit_arguments(flush), *claim_arguments(request, owner))
        answers = await answers_of(db, flush, [row[:4] for row in rows if row[0] is not None])
    got = sorted(
        (row[4:] for row in rows if row[0] is None),
        # What is no job comes last.
        key=lambda row: (False, row[6], row[7], row[0]) if row[NOTE] is None else (True, 0, 0, 0),
    )
    return answers, claimed(got)


def _of_one(flush: SubmitFlush, request: ClaimRequest, ranges: KeyRanges, owner: int) -> tuple[object, ...]:
    """The arguments of `submit_running_v1`. Nothing is checked again: on an idle system each step costs time."""
    return (
        request.tenant_no,
        flush.ids[0],
        flush.topic_nos[0],
        flush.payloads[0],
        flush.priorities[0] if flush.priorities else None,
        flush.rank_classes[0] if flush.rank_classes else None,
        flush.rank_offsets[0] if flush.rank_offsets else None,
        flush.max_attempts[0] if flush.max_attempts else None,
        flush.policy_nos[0] if flush.policy_nos else None,
        flush.headers[0] if flush.headers else None,
        flush.new_id_until,
        request.topic_nos,
        ranges.topic_nos,
        ranges.class_from,
        ranges.rank_from,
        ranges.class_to,
        ranges.rank_to,
        request.limit,
        owner,
        request.workers,
        request.runs,
        request.lease_ms,
        *(request.seen or (None, None)),
    )
