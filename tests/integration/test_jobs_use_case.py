"""Reading jobs, waiting for results and batches as every transport asks for them: rights and ends. No gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.control.auth import KnowsAll
from headgate.control.batches import Batches
from headgate.control.jobs import Jobs
from headgate.control.results import Waiters
from headgate.control.revocation import OpenCalls
from headgate.control.submit import Submits
from headgate.domain.errors import NotFound, ShuttingDown
from headgate.domain.identity import Identity, PermissionDenied, TokenRevoked
from headgate.domain.redaction import Redaction
from headgate.domain.states import State
from headgate.store.batches import BatchStore
from headgate.store.reads import JobStore
from headgate.web.models.job_page import job_page
from tests.support.dispatch_waits import SOON, soon
from tests.support.dispatch_workers import completing
from tests.support.dispatching import Instance
from tests.support.drafts import Draft, caller_of, read_draft
from tests.support.queue import new_id


class Tokens(KnowsAll):
    """One token, whose rights a test changes."""

    def __init__(self, now: Identity | None) -> None:
        self.now = now

    def identify(self, token: str) -> Identity:
        raise AssertionError(token)

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        del uses
        if self.now is None:
            raise TokenRevoked(f"the token of {identity.subject} is not valid any more")
        return self.now

    def state(self) -> tuple[int, int]:
        return 0, 0


class Desk:
    """Reading at one instance."""

    def __init__(self, one: Instance) -> None:
        self.caller = caller_of(one.tenant)
        self.tokens, self.calls, self.draining = Tokens(self.caller), OpenCalls(), asyncio.Event()
        store = JobStore(one.store)
        self.waiters = Waiters(store)
        self.jobs = Jobs(
            store=store,
            waiters=self.waiters,
            calls=self.calls,
            validator=self.tokens,
            draining=self.draining,
        )

    async def waiting(self, job_id: Any) -> asyncio.Task[Any]:
        """A call that waits."""
        task = asyncio.create_task(self.jobs.wait(self.caller, job_id, seconds=60))
        await soon(lambda: self.waiters.any(), "it waits")
        return task


async def test_a_job_of_another_topic_or_tenant_does_not_exist(stepped: Instance) -> None:
    (job,) = await stepped.submit()
    desk = Desk(stepped)
    assert (await desk.jobs.get(caller_of(stepped.tenant, "mail"), job, payload=True)).payload == b"x"
    for caller in (caller_of(stepped.tenant, "sms"), caller_of("other")):
        with pytest.raises(NotFound):
            await desk.jobs.get(caller, job)
        with pytest.raises(NotFound):
            await desk.jobs.wait(caller, job, seconds=0)


async def test_the_page_of_a_job_reads_no_more_lines_than_an_attempt_has_and_knows_of_lines_it_does_not_show(
    stepped: Instance,
) -> None:
    desk, (job_id,) = Desk(stepped), await stepped.submit(1)
    async with stepped.store.lane("tick").use() as db:
        await db.execute(
            "INSERT INTO headgate.job_logs (tenant_no, job_id, epoch, seq, attempt, at, stored_at, level, logger, line)"
            " SELECT j.tenant_no, j.id, 1, n, 1, j.created_at, j.created_at, 2, '', ''"
            " FROM headgate.jobs j, generate_series(1, 300) AS n WHERE j.id = $1",
            job_id,
        )
    job = await desk.jobs.get(desk.caller, job_id)
    page = await desk.jobs.newest_logs_of(desk.caller, job)
    assert ([one.seq for one in page.lines], page.more) == (list(range(101, 301)), True)
    assert job_page(job, Redaction(), before=7, log=page).has_log
    assert not job_page(job, Redaction()).has_log


async def test_a_wait_ends_with_the_job_or_with_its_time(one: Instance) -> None:
    (job,) = await one.submit()
    desk = Desk(one)
    assert (await desk.jobs.wait(desk.caller, job, seconds=0)).state is State.PENDING
    task = await desk.waiting(job)
    await one.worker("w", slots=1, handler=completing())
    await one.reach(1, State.COMPLETED)
    desk.waiters.ended(await one.store.tenant_no(one.tenant), job)
    assert (await asyncio.wait_for(task, SOON.total_seconds())).state is State.COMPLETED


async def test_a_wait_ends_when_its_token_is_revoked_or_permits_the_topic_no_more(stepped: Instance) -> None:
    (job,) = await stepped.submit()
    for now, error in ((None, TokenRevoked), (caller_of(stepped.tenant, "sms"), NotFound)):
        desk = Desk(stepped)
        task = await desk.waiting(job)
        desk.tokens.now = now
        for call in desk.calls:
            call.changed.set()
        with pytest.raises(error):
            await asyncio.wait_for(task, SOON.total_seconds())
        assert not len(desk.calls)


async def test_a_wait_ends_when_the_instance_stops(stepped: Instance) -> None:
    (job,) = await stepped.submit()
    desk = Desk(stepped)
    task = await desk.waiting(job)
    desk.draining.set()
    desk.waiters.stop()
    with pytest.raises(ShuttingDown):
        await asyncio.wait_for(task, SOON.total_seconds())


async def test_batches_are_opened_once_and_seen_by_those_whose_topics_they_have(stepped: Instance) -> None:
    submits = Submits(stepped.store, stepped.submitter, make_id=new_id)
    batches = Batches(BatchStore(stepped.store), submits, make_id=new_id)
    mail = caller_of(stepped.tenant, "mail")
    batch_id, callback = new_id(), Draft(id=new_id().bytes, new_id=False)
    opened = await batches.open(mail, callback, read_draft, batch_id=batch_id, name="letters")
    assert (
        (await batches.open(mail, callback, read_draft, batch_id=batch_id, name="letters")).id == opened.id == batch_id
    )
    with pytest.raises(PermissionDenied):
        await batches.open(mail, Draft(topic="sms"), read_draft)
    for stranger in (caller_of(stepped.tenant, "sms"), caller_of("other")):
        with pytest.raises(NotFound):
            await batches.get(stranger, opened.id)
        with pytest.raises(NotFound):
            await batches.seal(stranger, opened.id)
    assert (await batches.get(mail, opened.id)).sealed_at is None
    assert (await batches.seal(mail, opened.id)).sealed_at is not None
