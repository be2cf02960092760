"""Sessions held at a chosen point, and what came of it.

Nothing in these tests is left to luck or to time. A session is held by a transaction that is not yet committed or by a
gate put into the store's own function, and the test continues when PostgreSQL itself says that the session waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Outcome
from headgate.domain.states import Receipt, State
from headgate.store import reads
from headgate.store.connect import Connection, connect
from tests.support.queue import Queue
from tests.support.waiting import until_async

T = TypeVar("T")
DONE = Completed(result=b"done")
BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom"))
FATAL = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
GATE = 7_770_777


class Rivals:
    """Other sessions on the same database, and what they are waiting for."""

    def __init__(self, database: str, queue: Queue, watcher: Connection) -> None:
        self._database = database
        self._queue = queue
        self._watcher = watcher
        self._connections: list[asyncpg.Connection[asyncpg.Record]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def queue(self) -> Queue:
        """The same tenant's queue, seen through a session of its own."""
        connection = await connect(self._database, application_name="headgate rival")
        self._connections.append(connection)
        rival = Queue(connection, owner=len(self._connections) + 1)
        rival.names = self._queue.names
        return rival

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def waiting(self, rival: Queue, *, on: Queue | None = None) -> None:
        """Return when the rival's session waits for a lock; `on` says who must be in its way."""
        pid = _pid(rival)

        async def check() -> bool:
            blockers: list[int] = await self._watcher.fetchval("SELECT pg_blocking_pids($1)", pid)
            return bool(blockers) if on is None else _pid(on) in blockers

        await until_async(check, "a session waits for a lock")

    async def gate(self, function: str, *, before: str) -> Gate:
        """Put a gate into a function of the store, in front of the given piece of its text. It is closed at first."""
        source: str = await self._watcher.fetchval(
            "SELECT pg_get_functiondef($1::text::regproc)", f"headgate.{function}"
        )
        assert source.count(before) == 1, f"{function} has changed: the gate's place is gone"
        wait = f"PERFORM pg_advisory_xact_lock_shared({GATE}, 1)"
        stop = f"IF current_setting('test.stops', true) = 'yes' THEN {wait}; END IF; "
        await self._watcher.execute(source.replace(before, stop + before))
        return await Gate.closed(self._watcher)

    async def gate_after_the_first_row(self) -> Gate:
        """A gate at which a submit stops when one of its rows is in."""
        # A row-level trigger sees what its own statement has inserted so far, and nothing uncommitted of the others.
        await self._watcher.execute(
            f"""CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF current_setting('test.stops', true) = 'yes' AND EXISTS (SELECT FROM headgate.jobs) THEN
                        PERFORM pg_advisory_xact_lock_shared({GATE}, 1);
                    END IF;
                    RETURN NEW;
                END $$;
                CREATE TRIGGER stop BEFORE INSERT ON headgate.jobs FOR EACH ROW EXECUTE FUNCTION public.stop()"""
        )
        return await Gate.closed(self._watcher)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections:
            connection.terminate()


class Gate:
    """Holds the sessions that were notified to stop at it."""

    def __init__(self, keeper: Connection) -> None:
        self._keeper = keeper

    @classmethod
    async def closed(cls, keeper: Connection) -> Gate:
        await keeper.fetchval(f"SELECT pg_advisory_lock({GATE}, 1)")
        return cls(keeper)

    async def holds(self, rival: Queue) -> None:
        await rival.db.execute("SET test.stops = 'yes'")

    async def open(self) -> None:
        await self._keeper.fetchval(f"SELECT pg_advisory_unlock({GATE}, 1)")


def _pid(queue: Queue) -> int:
    return queue.db.get_server_pid()


def resent(job: Submission) -> Submission:
    return replace(job, new_id=False)


async def run(queue: Queue, job_id: UUID, outcome: Outcome = DONE) -> State | None:
    """Claim the one job there is and settle it."""
    claimed = await queue.claim()
    assert claimed.ids == (job_id,)
    (settled,) = await queue.settle((job_id, claimed.epochs[0], outcome))
    assert settled.receipt is Receipt.APPLIED
    return settled.state


async def state_of(queue: Queue, job_id: UUID) -> State:
    return (await reads.get(queue.db, await queue.tenant_no(), job_id)).state


async def all_jobs(queue: Queue) -> dict[State, int]:
    """How many jobs stand where, counted row by row; no job is there twice, and the rollups say the same."""
    rows = await queue.db.fetch(
        "SELECT id, state FROM headgate.jobs UNION ALL SELECT id, state FROM headgate.archive ORDER BY id"
    )
    assert len({row["id"] for row in rows}) == len(rows), "a job is there twice"
    counted: dict[State, int] = {}
    for row in rows:
        counted[State(row["state"])] = counted.get(State(row["state"]), 0) + 1
    told: dict[State, int] = {}
    for topic in (await reads.counts(queue.db, await queue.tenant_no())).values():
        for state, n in topic.items():
            told[state] = told.get(state, 0) + n
    assert told == counted, "the counts people read differ from the rows"
    return counted


def last_instant(days_ahead: int = 1) -> datetime:
    """A millisecond before a midnight (UTC) for which there are partitions on both sides."""
    day = datetime.now(UTC).date() + timedelta(days=days_ahead)
    return datetime(day.year, day.month, day.day, 23, 59, 59, 999_000, tzinfo=UTC)
