"""Outcomes that the worker decides itself, not the handler: abandoned, cancelled, out of time."""

from __future__ import annotations

from headgate.domain.outcomes import DEADLINE_EXCEEDED
from headgate.sdk.outcomes import failure
from headgate.sdk.worker.held_job import HeldJob
from headgate.wire import jobs_pb2 as jobs


def abandoned() -> jobs.Outcome:
    """The job is abandoned."""
    return jobs.Outcome(abandon=jobs.Abandon())


def cancelled_unbegun() -> jobs.Outcome:
    """The job was cancelled before its handler began."""
    return failure("Cancelled", "the job was cancelled on request before it started")


def out_of_time(job: HeldJob) -> jobs.Outcome:
    """The handler ran longer than its task or its job allows."""
    if job.past_deadline:
        return deadline_exceeded(job)
    text = f"the handler of {job.topic} ran longer than its time limit of {job.time_limit:g} s"
    return failure("TimeLimitExceeded", text)


def deadline_exceeded(job: HeldJob) -> jobs.Outcome:
    """The job's deadline has passed. No other attempt could be in time."""
    end = "its handler was stopped" if job.began_at else "it was not started"
    text = f"the deadline of the job, {job.deadline:%Y-%m-%dT%H:%M:%S.%fZ}, has passed, and {end}"
    return failure(DEADLINE_EXCEEDED, text, permanent=True)


def unbegun(job: HeldJob) -> jobs.Outcome | None:
    """The outcome of a job that must not begin any more; None if it was lost or abandoned."""
    if job.lost or job.abandoned:
        return None
    return deadline_exceeded(job) if job.past_deadline else cancelled_unbegun()
