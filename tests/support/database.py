"""One real PostgreSQL for a test run, and databases cloned from a migrated template: 19 ms to make, 6 ms to drop.

The administrator's connection lives on a loop in a thread of its own. So fixtures can stay synchronous, whatever loop a
test uses, and a clone costs no new connection.

The clones of our own server, in memory, are copies of files that the kernel makes: 16 ms of a processor on PostgreSQL
18 with the drop, 18 ms if PostgreSQL copies them, and more than twice as much with the default strategy, which also
writes 17 MB of log. They also have the template's cache of catalog entries, without which the first six sessions of a
database cost 23 ms instead of 14. The catalogs of a template are compacted: migrations replace many of their rows, and
a third of the bytes would be dead rows; a compacted table also has one file instead of three. On a disk the two
checkpoints of a copy cost more than the log, so other servers clone by their default.

DROP … WITH (FORCE) that finds a session still ending sleeps 100 ms in the server; with all of them ended and awaited
beforehand, it takes 6 ms.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from headgate import embedded
from headgate.store.connect import connect
from headgate.store.migrate import migrate
from headgate.testing.server import temporary_folder as temporary_folder

T = TypeVar("T")
_numbers = count(1)  # of all databases that this process makes
# Less log to keep in memory, and PostgreSQL's own time between two looks of autovacuum at a database: each starts a
# process, and a database of a test lives for a second. Everything that concerns durability stays as users have it.
_SETTINGS = {
    "max_wal_size": "256MB",
    "min_wal_size": "64MB",
    "shared_buffers": "64MB",
    "autovacuum_naptime": "60s",
}
# Not our own tables: a table that was never vacuumed is planned for as if it had some rows.
_COMPACT = """
SELECT format('VACUUM FULL %s', oid::regclass) FROM pg_catalog.pg_class
 WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared"""


class Server:
    """A PostgreSQL server in which tests make and drop databases."""

    def __init__(self, dsn: str, *, in_memory: bool = False) -> None:
        self.dsn = dsn
        self._in_memory = in_memory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test database admin", daemon=True)
        self._thread.start()
        self._admin: asyncpg.Connection[asyncpg.Record] | None = None

    def dsn_of(self, database: str) -> str:
        """The URL of another database on this server."""
        return urlunsplit(urlsplit(self.dsn)._replace(path="/" + quote(database, safe="")))

    def create(self, *, template: str | None = None) -> str:
        """Make a database, empty or as a copy of `template`, and return its name."""
        name = f"headgate_test_{os.getpid()}_{next(_numbers)}"
        self.run(self._create(name, template or "template0"))
        return name

    def drop(self, name: str) -> None:
        """Drop a database; sessions that a test left behind in it are ended."""
        self.run(self._drop(name))

    def create_template(self) -> str:
        """Make a database with all migrations applied, to be cloned."""
        name = self.create()
        self.run(_migrate(self.dsn_of(name)))
        return name

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the administrator's loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=200)

    def close(self) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _administrator(self) -> asyncpg.Connection[asyncpg.Record]:
        # A test may have restarted the server.
        if self._admin is None or self._admin.is_closed():
            self._admin = await connect(self.dsn, application_name="headgate tests", statement_timeout=None)
            if self._in_memory and self._admin.get_server_version() >= (18,):
                await self._admin.execute("SET file_copy_method = clone")  # by the kernel
        return self._admin

    async def _create(self, name: str, template: str) -> None:
        admin = await self._administrator()
        copies = self._in_memory and admin.get_server_version() >= (15,)  # before, there was no choice
        statement = await admin.fetchval(
            "SELECT format('CREATE DATABASE %I TEMPLATE %I', $1::text, $2::text)", name, template
        )
        await admin.execute(statement + (" STRATEGY file_copy" if copies else ""))

    async def _drop(self, name: str) -> None:
        admin = await self._administrator()
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        for _ in range(1000):
            if not await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = $1", name):
                break
            await asyncio.sleep(0.001)
        await admin.execute(
            await admin.fetchval("SELECT format('DROP DATABASE IF EXISTS %I WITH (FORCE)', $1::text)", name)
        )

    async def _close(self) -> None:
        if self._admin is not None:
            await self._admin.close()


async def _migrate(dsn: str) -> None:
    connection = await connect(dsn, application_name="headgate tests")
    try:
        await migrate(connection)
        for (compact,) in await connection.fetch(_COMPACT):
            await connection.execute(compact)
    finally:
        await connection.close()


@contextmanager
def running_server() -> Iterator[Server]:
    """The server that HEADGATE_TEST_DATABASE_URL names, else an embedded one in a folder that is removed afterwards."""
    if url := os.environ.get("HEADGATE_TEST_DATABASE_URL", "").strip():
        yield from _serve(url)
        return
    folder = temporary_folder()
    try:
        with embedded.start(folder / "postgres", settings=_SETTINGS) as cluster:
            yield from _serve(cluster.dsn(), in_memory=folder.parent == Path("/dev/shm"))  # noqa: S108
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(dsn: str, *, in_memory: bool = False) -> Iterator[Server]:
    server = Server(dsn, in_memory=in_memory)
    try:
        yield server
    finally:
        server.close()
