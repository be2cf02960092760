"""Two tenants with jobs in several states."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.domain.ids import JobId
from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.store import control
from headgate.store.connect import Connection
from tests.integration.bad_input.refusals import World
from tests.support.queue import Queue


@pytest.fixture
async def world(db: Connection) -> World:
    made: dict[str, list[JobId]] = {}
    for tenant in ("acme", "umbrella"):
        queue = Queue(db, tenant=tenant)
        dead, running = await queue.add(2, payload=b"l" * 2_000, tags=["red"])
        await queue.claim(2)
        await queue.settle((dead, 1, Failed(error=ErrorInfo(type="Fatal"), permanent=True)))
        (pending,) = await queue.add(key="once")
        await queue.add(delay=timedelta(hours=1))
        made[tenant] = [pending, running, dead]
    await control.pause(db, reason="a reason to keep")
    await control.resume(db)
    ours, theirs = Queue(db), Queue(db, tenant="umbrella")
    return World(
        db=db,
        queue=ours,
        tenant=await ours.tenant_no(),
        topic=(await ours.topic()).no,
        pending=made["acme"][0],
        running=made["acme"][1],
        dead=made["acme"][2],
        their_tenant=await theirs.tenant_no(),
        their_topic=(await theirs.topic()).no,
        theirs=made["umbrella"],
    )
