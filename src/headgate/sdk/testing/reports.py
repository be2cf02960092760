"""What a worker says about an attempt, said by a box: the same log line, and the hooks of the app."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence

from headgate.domain.timestamps import unix_us
from headgate.sdk.hooks import Failure, FailureHook, Hooks, name_of
from headgate.sdk.job_context import bound_to
from headgate.sdk.outcomes import Outcome
from headgate.sdk.testing.messages import wire_state
from headgate.sdk.testing.store import StoredJob
from headgate.sdk.worker.attempt_log import Settled, failure_of, log_attempt
from headgate.sdk.worker.held_job import HeldJob
from headgate.wire import jobs_pb2 as jobs

log = logging.getLogger("headgate.worker")


def settled_attempt(job: HeldJob, outcome: Outcome, stored: StoredJob) -> Settled:
    """An attempt with the receipt that a server would send for it, as the job is now."""
    run_at_us = 0 if stored.state.is_final else unix_us(stored.record.run_at)
    return Settled(job, outcome, jobs.Receipt(state=wire_state(stored.state), run_at_us=run_at_us))


async def report_attempt(settled: Settled, hooks: Hooks) -> None:
    """Log the attempt and call the hooks for failures, each to its end before the next."""
    failure = None if isinstance(settled.outcome, bytes) else failure_of(settled)
    log_attempt(settled, failure)
    if failure is not None:
        await _call("on_failure", hooks.on_failure, failure)
        await _call("on_dead", hooks.on_dead if failure.dead else (), failure)


async def _call(kind: str, functions: Sequence[FailureHook], failure: Failure) -> None:
    for function in functions:
        try:
            with bound_to(failure.job):
                made = function(failure)
                if inspect.iscoroutine(made):
                    await made
        except (Exception, SystemExit):  # whatever a hook raises, the others are called, as by a worker
            log.exception("hook_failed hook=%s function=%s", kind, name_of(function))
