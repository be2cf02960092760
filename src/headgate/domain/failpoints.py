"""Named places at which the fault laboratory may delay, fail, stop or end this process. In a normal start: nothing.

    if failpoints.armed:
        await failpoints.armed.reach("submit.after_commit")

`armed` is None, and no setting, flag or variable changes that: only a launcher that is not part of the product sets it,
before it calls the command line (tests/fault/lab/armed.py). It is module state, against the rule: passed in, it would
be a parameter of every layer, for something no user ever has.

A site is passed once for a flush, a frame, a call or a tick, never once for a job.
"""

from __future__ import annotations

from typing import Final, Protocol


class Armed(Protocol):
    """What a launcher puts here. Both may raise, and may not return at all."""

    async def reach(self, site: str) -> None:
        """This site was reached."""

    def touch(self, site: str) -> None:
        """The same where nothing can be awaited: such a site cannot be made to sleep, only to block."""


armed: Armed | None = None

SITES: Final[dict[str, str]] = {
    # --- an instance ---
    "boot.checked": "the database, its schema and the pause rows were looked at; nothing is written yet",
    "boot.registered": "the instance has its number; no port is open",
    "boot.listening": "the port is open; the instance is not ready",
    "drain.begun": "a stop was asked for; workers are not told yet",
    "call.before_reply": "a unary call has its answer; the caller does not",
    # --- jobs in ---
    "submit.before_commit": "a flush of submits is about to be sent to the database",
    "submit.after_commit": "a flush of submits is committed; no caller knows",
    "submit_claim.before_commit": "a submit and a claim in one call are about to be sent",
    "submit_claim.after_commit": "both are committed; neither the caller nor the worker knows",
    "submit_atomic.before_commit": "a batch that is all or nothing is about to be sent",
    "submit_atomic.after_commit": "it is committed, or rolled back; the caller does not know",
    "batch.before_commit": "a batch is about to be opened or sealed",
    "batch.after_commit": "it is; the caller does not know",
    # --- jobs out ---
    "claim.before_commit": "a claim is about to be sent",
    "claim.after_commit": "jobs are claimed; this instance does not know which",
    "claim.before_send": "jobs are claimed and about to be dealt to sessions",
    "deliver.after_send": "a frame of jobs was written to a worker's stream",
    "hello.before_ack": "a worker is registered and what it declared is renewed; it was not greeted",
    "beat.before_ack": "a worker's beat was taken; it was not answered",
    # --- what became of them ---
    "settle.before_commit": "a flush of outcomes is about to be sent",
    "settle.after_commit": "it is committed; no worker has a receipt",
    "renew.before_commit": "renewals are about to be sent",
    "renew.after_commit": "they are committed; this instance does not know what was lost",
    "abandon_unsent.before_queue": "jobs that never reached a worker are about to be given back",
    "undeclared.before_commit": "what a worker does not declare after it came back is about to be given back",
    "undeclared.after_commit": "it is; the worker was not greeted",
    "free.before_commit": "jobs that waited for others are about to be let go",
    "free.after_commit": "they are; nobody was told",
    "tick.before_commit": "a tick (promote, reap, look) is about to be sent",
    "tick.after_commit": "it is committed; nobody was told",
    # --- schedules, operations ---
    "schedule.before_commit": "what is due is read and planned; nothing is fired",
    "schedule.after_mark": "occurrences are marked and their jobs made; behind a pooler, not committed",
    "schedule.after_commit": "they are committed; dispatch was not told",
    "operation.before_commit": "a chunk of an operation is done; not committed",
    "operation.after_commit": "it is committed; dispatch was not told",
    "transaction.before_commit": "an explicit transaction has written all it has to",
    "transaction.after_commit": "it is committed",
    # --- the schema ---
    "migrate.before_statement": "a statement of a migration is about to run",
    "migrate.before_commit": "a migration has run; not committed, or not noted as finished",
    "migrate.after_commit": "it is committed and noted",
    # --- a worker ---
    "worker.after_delivery": "a frame of jobs has arrived; no handler has begun",
    "worker.before_result": "handlers have ended; their outcomes are about to be written to the stream",
    "worker.after_result": "the outcomes are written to the stream; no receipt has come",
}
"""Every site in the code, and what is true there."""
