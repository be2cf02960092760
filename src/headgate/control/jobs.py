"""Reading jobs, and waiting for their results."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headgate.control.auth import TokenValidator
from headgate.control.ports import JobStore
from headgate.control.results import Waiters
from headgate.control.revocation import OpenCall, OpenCalls
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, NotFound, ShuttingDown
from headgate.domain.identity import Identity, Scope
from headgate.domain.job_logs import LINES_MAX, PAGE_MAX, LogPage, parse_cursor
from headgate.domain.validation import check_integer
from headgate.domain.views import JobView

WAIT_MAX_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Jobs of the caller's tenant; one of a topic that its token does not permit does not exist for it."""

    store: JobStore
    waiters: Waiters
    calls: OpenCalls
    validator: TokenValidator
    draining: asyncio.Event

    async def get(
        self,
        caller: Identity,
        job_id: UUID,
        *,
        payload: bool = False,
        result: bool = False,
        events: bool = False,
        events_before: int = 0,
        events_limit: int = limits.JOB_EVENTS_MAX,
    ) -> JobView:
        """One job; of its events the newest, or those before the one numbered `events_before`. Raises NotFound."""
        check_integer(events_before, field="events_before", low=0, high=2**63 - 1)
        check_integer(events_limit, field="events_limit", low=1, high=limits.JOB_EVENTS_MAX)
        found = await self.store.job(
            caller.tenant,
            job_id,
            payload=payload,
            result=result,
            events=events,
            events_before=events_before or None,
            events_limit=events_limit,
        )
        if caller.topics is not None and found.topic not in caller.topics:
            raise NotFound("job", str(job_id))  # as if it were another tenant's
        return found

    async def logs(
        self,
        caller: Identity,
        job_id: UUID,
        *,
        attempt: int = 0,
        after: str = "",
        limit: int = LINES_MAX,
        newest: bool = False,
    ) -> LogPage:
        """What handlers logged while they ran the job, oldest first; `attempt` 0: all attempts. Raises NotFound.

        `after` is the cursor of an earlier page; with `newest` the newest lines are read instead of the oldest ones.
        """
        check_integer(attempt, field="attempt", low=0, high=limits.MAX_ATTEMPTS_LIMIT)
        check_integer(limit, field="limit", low=1, high=PAGE_MAX)
        if newest and after:
            raise InvalidInput("newest", "cannot be given together with after")
        position = parse_cursor(after)
        found = await self.get(caller, job_id)  # as for the job itself: another tenant's does not exist
        return await self.store.logs(
            caller.tenant,
            job_id,
            since=found.created_at,
            attempt=attempt or None,
            after=position,
            limit=limit,
            newest=newest,
        )

    async def newest_logs_of(self, caller: Identity, job: JobView) -> LogPage:
        """The newest lines of a job that the caller has just read: as many as one attempt can have."""
        return await self.store.logs(
            caller.tenant, job.id, since=job.created_at, attempt=None, after=(0, 0), limit=LINES_MAX, newest=True
        )

    async def wait(self, caller: Identity, job_id: UUID, *, seconds: float) -> JobView:
        """The job with its result when it has ended, or as it is after `seconds` (at most a minute)."""
        until = asyncio.get_running_loop().time() + min(seconds, WAIT_MAX_SECONDS)
        with self.calls.watched(caller) as call:
            while True:
                found = await self.get(call.identity, job_id, result=True)
                left = until - asyncio.get_running_loop().time()
                if found.state.is_final or left <= 0:
                    return found
                if self.draining.is_set():
                    raise ShuttingDown("this instance is shutting down; ask another one")
                await self._wait(call, job_id, left)
                # Again: the token may have been narrowed or revoked meanwhile, in this very moment too.
                call.recheck(self.validator, Scope.READ)

    async def _wait(self, call: OpenCall, job_id: UUID, seconds: float) -> None:
        """Return when the job has ended, the time is over, the instance stops, or the token has changed."""
        tenant_no = await self.store.tenant_no(call.identity.tenant)
        ended = asyncio.create_task(self.waiters.wait(tenant_no, job_id, seconds), name="wait for a result")
        changed = asyncio.create_task(call.changed.wait(), name="revocation of a wait")
        try:
            await asyncio.wait((ended, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            changed.cancel()
