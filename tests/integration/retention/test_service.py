"""The service that removes jobs in a server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import asyncpg
import pytest

from headgate.dispatch.retention import Retention
from headgate.domain.errors import StoreUnavailable
from headgate.domain.outcomes import Completed
from headgate.domain.retention import Removed
from headgate.server import Server, ServerOptions
from headgate.store import retention
from headgate.store.connect import Connection
from tests.integration.retention.finishing import all_passes, end, known, later
from tests.support.queue import Clock, Queue, links
from tests.support.waiting import until_async

# ---------------------------------------------------------------------- the service


async def test_the_service_rests_a_minute_when_nothing_is_left_and_survives_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    answers: list[Removed | Exception] = [
        Removed(jobs=1_000, more=True),
        StoreUnavailable("away"),
        Removed(),
    ]

    class Store:
        async def run_pass(self) -> Removed:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    async def wait_at_most(_stopped: asyncio.Event, seconds: float) -> bool:
        waits.append(seconds)
        return not answers

    monkeypatch.setattr("headgate.dispatch.periodic.wait_at_most", wait_at_most)
    await Retention(Store()).run()
    assert 6 <= waits[0] <= 30
    assert waits[1] < 5
    assert all(48 <= wait <= 72 for wait in waits[2:])
    assert "retention_failed" in caplog.text


class Answers:
    """A store whose passes end like this."""

    def __init__(self, *answers: Removed) -> None:
        self._answers = list(answers)

    async def run_pass(self) -> Removed:
        return self._answers.pop(0)


async def test_after_a_pass_that_left_something_the_service_rests_three_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((10.0, 14.0, 20.0, 20.001))
    monkeypatch.setattr("headgate.dispatch.retention.time", SimpleNamespace(monotonic=lambda: next(times)))
    service, rests = Retention(Answers(Removed(more=True), Removed(more=True))), list[float]()
    for _ in range(2):
        await service.run_once()
        rests.append(service.pause())
    assert rests == [12, 0.5]
    assert 48 <= service.pause() <= 72, "said once"


async def test_a_pass_that_removed_jobs_or_days_is_logged_and_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    service = Retention(Answers(Removed(jobs=2), Removed(days=3), Removed(other=4)))
    with caplog.at_level("INFO"):
        for _ in range(3):
            await service.run_once()
    assert [record.getMessage() for record in caplog.records] == [
        "retention_removed jobs=2 days=0 other=0 more=False",
        "retention_removed jobs=0 days=3 other=0 more=False",
    ]


async def test_a_dropped_table_or_a_held_lock_ends_a_day_and_not_the_pass(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await end(queue, Completed(), 2, payload=b"l" * 3_000)
    await later(clock, queue.db, days=1)
    second = await end(queue, Completed(), 2)
    await later(clock, queue.db, days=9)
    monkeypatch.setattr(retention, "LOCK_WAIT", timedelta(milliseconds=50))
    async with links(database, 1) as (holder,), holder.transaction():
        await holder.execute("SELECT FROM headgate.payloads WHERE id = $1 FOR UPDATE", first[0])
        assert (await retention.run_pass(queue.db)).jobs == 2
        assert await known(queue, [*first, *second]) == first
    assert (await all_passes(queue.db)).jobs == 2
    with pytest.raises(asyncpg.UndefinedTableError):
        await queue.db.fetchrow("SELECT * FROM headgate.retire_chunk_v1('2020-01-01', 5, false)")


async def test_a_server_removes_old_jobs_by_itself(db: Connection, database: str) -> None:
    await db.execute(
        """CREATE TABLE headgate.archive_20200102 (LIKE headgate.archive INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
           INSERT INTO headgate.archive_20200102 (id, created_at, run_at, finished_at, tenant_no, topic_no, priority,
                                                  attempt, max_attempts, epoch, policy_no, state, flags)
           SELECT gen_random_uuid(), now(), now(), '2020-01-02 05:00+00', 1, 1, 0, 1, 1, 1, 1, 5, 0
             FROM generate_series(1, 100);
           ALTER TABLE headgate.archive ATTACH PARTITION headgate.archive_20200102
               FOR VALUES FROM ('2020-01-02') TO ('2020-01-03')"""
    )
    server = Server(ServerOptions(database_url=database, port=0, dev=True, retention_seconds=0.2, grace=timedelta(0)))
    await server.start()

    async def gone() -> bool:
        return await db.fetchval("SELECT to_regclass('headgate.archive_20200102') IS NULL") is True

    try:
        await until_async(gone, "the day of 2020 is gone")
    finally:
        await server.stop(drain=False)
    assert await db.fetchval("SELECT count(*) FROM headgate.archive") == 0
