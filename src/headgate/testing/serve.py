"""The program of `LocalServer`: a PostgreSQL if no database is given, its schema, and a server on a free port.

    python -m headgate.testing.serve FOLDER

Prints one line of JSON when it is ready. When its standard input is closed it ends and removes the folder: the process
that started it may have been killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Final

from headgate import embedded
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Identity, Scope, Unauthenticated
from headgate.domain.release import version
from headgate.domain.validation import check_tenant
from headgate.ops.logs import configure
from headgate.server import Server, ServerOptions
from headgate.store.connect import connect
from headgate.store.migrate import migrate
from headgate.store.roles import OWNER, RUNTIME, prepare_embedded

# What is lost with the machine is test data. Nothing else differs from the embedded PostgreSQL of `headgate dev`.
_SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_wal_size": "256MB",
    "min_wal_size": "64MB",
    "shared_buffers": "64MB",
}


@dataclass(frozen=True, slots=True)
class TenantPerToken:
    """Every token is the name of a tenant, and permits everything in it; nothing reaches all tenants."""

    def identify(self, token: str) -> Identity:
        if not token:
            raise Unauthenticated("no token", missing=True)
        return _administrator(check_tenant(token))

    async def lookup(self, token: str) -> Identity:
        return self.identify(token)

    async def learn(self, credential: str) -> None:
        del credential

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        del uses
        return identity

    def state(self) -> tuple[int, int]:
        return 0, 0


@lru_cache(maxsize=1_000)
def _administrator(tenant: str) -> Identity:
    return Identity(tenant=tenant, subject="test", scopes=frozenset({Scope.ADMIN}))


@asynccontextmanager
async def database(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The URLs of a database, for its owner and for a server: the given one, else an embedded one in this folder."""
    if url := embedded.database_url():
        yield url, url
        return
    cluster = await asyncio.to_thread(embedded.start, folder, settings=_SETTINGS)
    try:
        await prepare_embedded(cluster.dsn())
        yield cluster.dsn(role=OWNER), cluster.dsn(role=RUNTIME)
    finally:
        await asyncio.to_thread(cluster.stop, "immediate")


async def serve(folder: Path, closed: threading.Event) -> None:
    """Serve until the standard input is closed."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        closed.set()
        loop.call_soon_threadsafe(stop.set)

    # A daemon: if the start fails, nothing waits for the input.
    threading.Thread(target=wait_for_the_end, name="input", daemon=True).start()
    async with database(folder) as (owner_url, url):
        connection = await connect(owner_url, application_name="headgate testing")
        try:
            await migrate(connection)
        finally:
            await connection.close()
        options = ServerOptions(
            database_url=url, port=0, dev=True, unsafe=True, grace=timedelta(seconds=1), version=version()
        )
        server = Server(options, validator=TenantPerToken())
        await server.start()
        sys.stdout.write(json.dumps({"url": f"127.0.0.1:{server.port}", "database_url": owner_url}) + "\n")
        sys.stdout.flush()
        try:
            await server.run(stop)
        finally:
            await server.stop()


def main() -> int:
    """Run the program; an error of ours is one line on standard error."""
    configure(logging.INFO)
    folder, closed = Path(sys.argv[1]), threading.Event()
    try:
        asyncio.run(serve(folder / "postgres", closed))
    except HeadgateError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    finally:
        if closed.is_set():  # else the start has failed, and the log in this folder is still to be read
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    os._exit(main())  # handlers of the interpreter's exit could wait for a thread of the event loop
