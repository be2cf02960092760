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
    "boot.checked": "the database, its schema and the pause rows were checked; nothing is written yet",
    "boot.registered": "the instance has its number; no port is open",
    "boot.listening": "the port is open; the instance is not ready",
    "drain.begun": "a stop was requested; workers are not notified yet",
    "call.before_reply": "a unary call has its answer; it was not sent",
    # --- jobs in ---
    "submit.before_commit": "a flush of submits is about to be sent to the database",
    "submit.after_commit": "a flush of submits is committed; no answer was sent",
    "submit_claim.before_commit": "a submit and a claim in one call are about to be sent",
    "submit_claim.after_commit": "both are committed; neither answer nor job was sent",
    "submit_atomic.before_commit": "an atomic batch is about to be sent",
    "submit_atomic.after_commit": "it is committed, or rolled back; no answer was sent",
    "batch.before_commit": "a batch is about to be opened or sealed",
    "batch.after_commit": "it is opened or sealed; no answer was sent",
    # --- jobs out ---
    "claim.before_commit": "a claim is about to be sent",
    "claim.after_commit": "jobs are claimed; this instance has no result yet",
    "claim.before_send": "jobs are claimed and about to be assigned to sessions",
    "deliver.after_send": "a frame of jobs was written to a worker's stream",
    "hello.before_ack": "a worker is registered and its declared jobs are renewed; no acknowledgement was sent",
    "beat.before_ack": "the heartbeat of a worker was accepted; no answer was sent",
    # --- what became of them ---
    "settle.before_commit": "a flush of outcomes is about to be sent",
    "settle.after_commit": "it is committed; no receipt was sent",
    "renew.before_commit": "renewals are about to be sent",
    "renew.after_commit": "they are committed; this instance has no result yet",
    "abandon_unsent.before_queue": "jobs that never reached a worker are about to be abandoned",
    "undeclared.before_commit": "jobs that a reconnecting worker does not declare are about to be abandoned",
    "undeclared.after_commit": "they are abandoned; no acknowledgement was sent",
    "unblock.before_commit": "jobs whose dependencies are fulfilled are about to be unblocked",
    "unblock.after_commit": "they are unblocked; dispatch was not notified",
    "tick.before_commit": "a tick (promote, reap, read) is about to be sent",
    "tick.after_commit": "it is committed; dispatch was not notified",
    # --- events out ---
    "webhook_claim.before_commit": "deliveries of events are about to be claimed",
    "webhook_claim.after_commit": "deliveries are claimed; this instance has no result yet",
    "webhook.before_send": "a delivery is claimed; its request was not sent",
    "webhook.after_send": "the request has ended; nothing is recorded",
    "webhook_record.before_commit": "the result of a request is about to be recorded",
    "webhook_record.after_commit": "it is recorded",
    # --- schedules, operations ---
    "schedule.before_commit": "due schedules are read and planned; nothing has fired",
    "schedule.after_mark": "occurrences are marked and their jobs made; behind a pooler, not committed",
    "schedule.after_commit": "they are committed; dispatch was not notified",
    "bulk.before_commit": "a chunk of an operation is done; not committed",
    "bulk.after_commit": "the chunk is committed; dispatch was not notified",
    "transaction.before_commit": "an explicit transaction has executed all its statements",
    "transaction.after_commit": "it is committed",
    # --- the schema ---
    "migrate.before_statement": "a statement of a migration is about to run",
    "migrate.before_commit": "a migration has run; not committed, or not recorded as finished",
    "migrate.after_commit": "it is committed and recorded",
    # --- a worker ---
    "worker.after_delivery": "a frame of jobs has arrived; no handler has started",
    "worker.before_result": "handlers have ended; their outcomes are about to be written to the stream",
    "worker.after_result": "the outcomes are written to the stream; no receipt has come",
}
"""Every site in the code, and what is true there."""
