"""What status and the list of workers read: running jobs by their index, and the changes of the last two minutes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.store import admin, reads
from headgate.store.admin import RUNNING, AdminStore
from headgate.store.connect import Connection
from headgate.store.new_ids import BEGINNING
from headgate.store.upkeep import fold_flows
from tests.support import explain
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue, stranger

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom", traceback=""))


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def test_running_jobs_are_read_by_their_index_longest_running_first(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await queue.add(4_000, "other")
    started = []
    for worker in ("w-1", "w-2"):
        started += await queue.add()
        await queue.claim(1, workers=(worker,))
        await clock.advance(seconds=1)
    tenant = await queue.tenant_no()
    rows = await queue.db.fetch(RUNNING, tenant, 10, 100, BEGINNING)
    assert [(row[0], row[1], row[2], row[4]) for row in rows] == [
        (started[0], "mail", 1, "w-1"),
        (started[1], "mail", 1, "w-2"),
    ]
    assert [row[0] for row in await queue.db.fetch(RUNNING, tenant + 1, 10, 100, BEGINNING)] == [None]
    await explain.cost(queue.db, RUNNING, tenant, 10, 100, BEGINNING)
    cost = await explain.cost(queue.db, RUNNING, tenant, 10, 100, BEGINNING)
    whole = await explain.cost(queue.db, "SELECT count(payload) FROM headgate.jobs")
    assert cost.pages * 2 < whole.pages, (cost, whole)


async def test_a_running_job_behind_many_that_have_ended_is_read_from_the_floor_of_the_tick(
    queue: Queue, database: str
) -> None:
    async with Instance(database, running=False) as one, stranger(database) as reader:
        await reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await reader.fetch("SELECT FROM headgate.jobs")  # its snapshot keeps dead entries from being removed
        await queue.add(2_000)
        ended = await queue.claim(2_000)
        await queue.settle(*((id_, epoch, Completed()) for id_, epoch in zip(ended.ids, ended.epochs, strict=True)))
        (job,) = await queue.add()
        await queue.claim(1)
        for _ in range(3):  # a floor counts once those in flight when it was found have ended
            await one.ticker.run_once()
        tenant, floor = await queue.tenant_no(), one.store.running_floor
        for at in (floor, BEGINNING):  # what a function reads from the catalogue the first time is not counted
            await explain.cost(queue.db, RUNNING, tenant, 10, 100, at)
        pages = [(await explain.cost(queue.db, RUNNING, tenant, 10, 100, at)).pages for at in (floor, BEGINNING)]
        assert pages[0] * 3 < pages[1], pages
        running = AdminStore(one.store).running
        found, more = await running("acme")
        assert ([one.id for one in found], more) == ([job], False)
        one.store._running.at = floor + timedelta(hours=1)
        assert await running("acme") == ([], False), "it is the floor of the tick that the list is read from"


@pytest.mark.parametrize(("most", "look_at", "listed"), [(2, 100, 2), (3, 100, 3), (100, 2, 2)])
async def test_a_list_of_running_jobs_says_whether_it_was_cut(
    queue: Queue, database: str, monkeypatch: pytest.MonkeyPatch, most: int, look_at: int, listed: int
) -> None:
    await queue.add(3)
    await queue.claim(3)
    monkeypatch.setattr(admin, "RUNNING_MAX", most)
    monkeypatch.setattr(admin, "RUNNING_LOOK_AT", look_at)
    async with Instance(database, running=False) as one:
        found, more = await AdminStore(one.store).running("acme")
    assert (len(found), more) == (listed, listed < 3)


async def test_flows_are_those_of_this_minute_and_the_one_before_folded_or_not(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    tenant, topic = await queue.tenant_no(), await queue.topic()
    await queue.add(5)  # long ago
    await clock.advance(minutes=3)
    await queue.add(3)
    await fold_flows(queue.db)
    await clock.advance(minutes=1)
    claimed = await queue.claim(3)
    outcomes = (Completed(), BOOM, replace(BOOM, permanent=True))
    await queue.settle(*zip(claimed.ids, claimed.epochs, outcomes, strict=True))
    flows = (await reads.flows(queue.db, tenant, clock.now))[topic.no]
    assert [(one.submitted, one.completed, one.retried, one.dead) for one in flows] == [(3, 0, 0, 0), (0, 1, 1, 1)]
    assert flows[1].minute - flows[0].minute == timedelta(minutes=1)
