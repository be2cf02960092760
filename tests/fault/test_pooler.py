"""A real PgBouncer in transaction mode between server and database, with fewer sessions than the server has lanes."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from headgate.store.connect import connect
from headgate.store.control import pause, resume
from tests.fault.conftest import Servers, Workers
from tests.fault.history import TESTER, all_ended, attempts, begun_anew, check, client, connected, steady_load, submit
from tests.support.server import LoggedProcess, clean_environ

LEASE = ("--lease", "6")
SESSIONS = 3
"""Of the database's, for the seven lanes of each server: no session is anybody's for longer than a transaction."""
_FOLDERS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
PGBOUNCER = shutil.which("pgbouncer", path=_FOLDERS)

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(PGBOUNCER is None, reason="NO PGBOUNCER ON THIS MACHINE: apt-get install pgbouncer to run this"),
]


class Pooler:
    """PgBouncer before one PostgreSQL; may be killed and started again, on the same port."""

    def __init__(self, dsn: str, processes: ExitStack, folder: Path) -> None:
        parts, query = urlsplit(dsn), parse_qs(urlsplit(dsn).query)
        host, port = query["host"][0], query["port"][0]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.dsn = f"postgresql://{parts.username}@127.0.0.1:{self.port}{parts.path}"
        self._config = folder / "pgbouncer.ini"
        self._config.write_text(
            f"""[databases]
* = host={host} port={port} user={parts.username}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {SESSIONS}
max_client_conn = 200
"""
        )
        self._config.chmod(0o644)
        owner = Path(host, f".s.PGSQL.{port}").stat().st_uid  # whom the database runs as can reach its socket
        # It refuses to be root, as PostgreSQL does.
        self._user = ["-u", pwd.getpwuid(owner).pw_name] if os.getuid() == 0 else []
        self._processes, self._folder = processes, folder
        self.process = self.start()

    def start(self) -> LoggedProcess:
        """Start it; it takes connections when this returns."""
        assert PGBOUNCER is not None
        command = [PGBOUNCER, *self._user, self._config]
        self.process = LoggedProcess("pgbouncer", command, folder=self._folder, environ=clean_environ())
        self._processes.enter_context(self.process)
        self.process.listens(self.port)
        return self.process


@pytest.fixture
def pooler(database: str, processes: ExitStack) -> Iterator[Pooler]:
    if "host=" not in database:
        pytest.skip("the test database has no socket of its own for PgBouncer to use")
    folder = Path(tempfile.mkdtemp(prefix="headgate-pooler-"))  # not pytest's: that one is closed to other accounts
    folder.chmod(0o755)
    yield Pooler(database, processes, folder)
    processes.close()  # before its folder goes
    shutil.rmtree(folder, ignore_errors=True)


async def test_jobs_run_retry_pause_and_drain_through_a_pooler_that_dies_under_load(
    database: str, pooler: Pooler, servers: Servers, workers: Workers
) -> None:
    instances = await asyncio.to_thread(servers, 2, *LEASE, "--pooler", dsn=pooler.dsn)
    crew = await asyncio.to_thread(workers, 1, instances, concurrency=8)
    crew += await asyncio.to_thread(workers, 1, instances[1:], concurrency=8)
    ids: list[UUID] = []
    async with client(instances) as hg:
        ids += await submit(hg, "flaky", [b""] * 20)  # fails once, is retried
        async with steady_load(hg, ids, crew):
            await begun_anew(crew, 200)
            pooler.process.kill()
            await asyncio.sleep(0.5)  # the length of the fault
            await asyncio.to_thread(pooler.start)
            back_at = time.monotonic()
            await begun_anew(crew, 200)
            resumed = time.monotonic() - back_at
        await all_ended(database)

        # A pause through the pooler holds at once, on both instances.
        db = await connect(pooler.dsn, application_name=TESTER, pooler=True)
        async with db.transaction():
            await pause(db, reason="a test")
        before = sum(worker.count() for worker in crew)
        ids += await submit(hg, "fast", [b""] * 100)
        await asyncio.sleep(1.5)  # more than a tick of each server: time in which something could start
        assert sum(worker.count() for worker in crew) == before
        async with db.transaction():
            await resume(db)
        await db.close()

        # A drain: one instance goes in the middle of work, and spends nobody's attempt.
        ids += await submit(hg, "slow", [b"20"] * 200)
        await begun_anew(crew, 150)
        assert await asyncio.to_thread(instances[0].terminate, within=timedelta(seconds=20)) == 0
        await all_ended(database)
    ended, _ = await check(database, ids, crew)
    async with connected(database) as direct:
        sessions = await direct.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> $1",
            TESTER,
        )
    figures = f"{len(ids)} jobs, {sessions} sessions, attempts {attempts(ended)}"
    print(f"{figures}; work went on {resumed:.2f} s after the pooler was back")  # noqa: T201
    assert sessions <= SESSIONS
    assert resumed < 10
    assert max(attempts(ended)) <= 3  # a claim whose answer was lost costs its attempt
    assert not [server for server in instances if server.seen("CRITICAL|Traceback")]
    assert not instances[1].seen("link_ended")
