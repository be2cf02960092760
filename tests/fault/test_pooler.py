"""A real PgBouncer in transaction mode between server and database, with fewer sessions than the server has lanes."""

from __future__ import annotations

import asyncio
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from headgate.store.connect import connect
from headgate.store.control import pause, resume
from headgate.store.dispatch_store import DispatchStore
from headgate.store.upkeep import vacuum_hot_tables
from tests.fault.conftest import Servers, Workers
from tests.fault.history import (
    TESTER,
    all_ended,
    assert_no_link_dropped,
    attempts,
    begun_anew,
    check,
    client,
    connected,
    steady_load,
    submit,
)
from tests.support.pgbouncer import PROGRAM, PgBouncer, config_of, free_port
from tests.support.stalls import Stalls
from tests.support.waiting import until_async

LEASE = ("--lease", "6")
SESSIONS = 3
"""Of the database's, for the seven lanes of each server: no session is anybody's for longer than a transaction."""
TROUBLE = "(tick|claim|renewal)_failed|(submits|outcomes)_delayed|submit_and_claim_failed"
"""What a server says that has noticed."""

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(PROGRAM is None, reason="NO PGBOUNCER ON THIS MACHINE: apt-get install pgbouncer to run this"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """PgBouncer before the test's database, and the URL through it."""

    bouncer: PgBouncer
    dsn: str


@pytest.fixture
def pooler(database: str, processes: ExitStack) -> Iterator[Pooler]:
    if "host=" not in database:
        pytest.skip("the test database has no socket of its own for PgBouncer to use")
    assert PROGRAM is not None
    parts, query = urlsplit(database), parse_qs(urlsplit(database).query)
    host, of_database, user, port = query["host"][0], query["port"][0], parts.username or "", free_port()
    # Whom the database runs as can reach its socket.
    account = pwd.getpwuid(Path(host, f".s.PGSQL.{of_database}").stat().st_uid)
    config = config_of(host, of_database, user=user, port=port, sessions=SESSIONS)
    folder = Path(tempfile.mkdtemp(prefix="headgate-pooler-"))  # not pytest's: that one is closed to other accounts
    folder.chmod(0o755)
    try:
        with PgBouncer(config, port=port, folder=folder, account=account, program=PROGRAM) as bouncer:
            yield Pooler(bouncer=bouncer, dsn=f"postgresql://{user}@127.0.0.1:{port}{parts.path}")
            processes.close()  # before the pooler goes
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def all_have_ticked(database: str, *, times: int) -> None:
    """Wait until every instance that lives has looked for work so many times from now on."""
    async with connected(database) as db:

        async def ticked() -> bool:
            return bool(await db.fetchval("SELECT min(seen_at) > $1 FROM headgate.instances", since))

        for _ in range(times):
            since = await db.fetchval("SELECT clock_timestamp()")
            await until_async(ticked, "every instance has ticked")


async def test_hot_tables_are_vacuumed_through_a_pooler(pooler: Pooler) -> None:
    db = await connect(pooler.dsn, application_name=TESTER, pooler=True)
    try:
        assert all(table.vacuumed for table in await vacuum_hot_tables(db, dead_rows=0))
    finally:
        await db.close()


async def test_commits_through_a_pooler_wait_for_the_disk_whatever_the_default_is(
    pooler: Pooler, database: str
) -> None:
    async with connected(database) as db:
        await db.execute(f'ALTER DATABASE "{urlsplit(database).path[1:]}" SET synchronous_commit = off')
    store = DispatchStore(pooler.dsn, pooler=True)
    store.checks_durability = True
    try:
        for lane in ("submit", "settle", "tick"):
            async with store.lane(lane).use() as behind:
                assert await behind.fetchval("SELECT current_setting('synchronous_commit')") == "on"
        other = await connect(pooler.dsn, application_name=TESTER, pooler=True)
        assert await other.fetchval("SELECT current_setting('synchronous_commit')") == "off", "it does not leak"
        await other.close()
    finally:
        await store.close()


@pytest.mark.req("F46")
async def test_jobs_run_retry_pause_and_drain_through_a_pooler_that_dies_under_load(
    database: str, pooler: Pooler, servers: Servers, workers: Workers, stalls: Stalls
) -> None:
    instances = await asyncio.to_thread(servers, 2, *LEASE, "--pooler", dsn=pooler.dsn)
    worker_processes = await asyncio.to_thread(workers, 1, instances, concurrency=8)
    worker_processes += await asyncio.to_thread(workers, 1, instances[1:], concurrency=8)
    ids: list[UUID] = []
    async with client(instances) as hg:
        ids += await submit(hg, "flaky", [b""] * 20)  # fails once, is retried
        async with steady_load(hg, ids, worker_processes):
            await begun_anew(worker_processes, 200)
            pooler.bouncer.kill()
            for server in instances:
                await asyncio.to_thread(server.saw, TROUBLE)
            await asyncio.to_thread(pooler.bouncer.start)
            back_at = time.monotonic()
            await begun_anew(worker_processes, 200)
            resumed = time.monotonic() - back_at
        await all_ended(database)

        # A pause through the pooler holds at once, on both instances.
        db = await connect(pooler.dsn, application_name=TESTER, pooler=True)
        async with db.transaction():
            await pause(db, reason="a test")
        before = sum(worker.count() for worker in worker_processes)
        ids += await submit(hg, "fast", [b""] * 100)
        await all_have_ticked(database, times=2)  # a tick that began before the submits may end after them
        assert sum(worker.count() for worker in worker_processes) == before
        async with db.transaction():
            await resume(db)
        await db.close()

        # A drain: one instance goes in the middle of work, and spends no one's attempt.
        ids += await submit(hg, "slow", [b"20"] * 200)
        await begun_anew(worker_processes, 150)
        assert await asyncio.to_thread(instances[0].terminate, within=timedelta(seconds=20)) == 0
        await all_ended(database)
    ended, _ = await check(database, ids, worker_processes)
    async with connected(database) as direct:
        sessions = await direct.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> $1",
            TESTER,
        )
    figures = f"{len(ids)} jobs, {sessions} sessions, attempts {attempts(ended)}"
    print(f"{figures}; work went on {resumed:.2f} s after the pooler was back")  # noqa: T201
    assert sessions <= SESSIONS
    assert resumed < 30
    assert max(attempts(ended)) <= 3  # a claim whose answer was lost costs its attempt
    assert not [server for server in instances if server.seen("CRITICAL|Traceback")]
    assert_no_link_dropped([], instances[1:], stalls)
