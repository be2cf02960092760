"""The primary is lost: pages are read from its streaming standby, and work goes on after the promotion."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from headgate import embedded
from headgate.embedded.binaries import find_binaries
from headgate.embedded.layout import Folder
from headgate.server import Server, ServerOptions
from headgate.store.connect import Connection, connect
from headgate.store.migrate import migrate
from headgate.testing.server import temporary_folder
from tests.support import http_clients
from tests.support.dispatch_waits import soon
from tests.support.waiting import until_async
from tests.support.wire import Wire, completed

SETTINGS = {"shared_buffers": "32MB", "max_wal_size": "128MB", "min_wal_size": "32MB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two PostgreSQL servers, of which the second follows the first."""

    primary: embedded.Cluster
    standby: embedded.Cluster

    @property
    def dsn(self) -> str:
        """The URL that names both."""
        hosts = ",".join(quote(str(one.socket_dir), safe="") for one in (self.primary, self.standby))
        return f"postgresql://headgate@/postgres?host={hosts}&port={self.primary.port}"


@pytest.fixture
def pair() -> Iterator[Pair]:
    folder = temporary_folder()
    try:
        with embedded.start(folder / "one", settings=SETTINGS) as primary:
            copy(primary, folder / "one", folder / "two")
            with embedded.start(folder / "two", settings=SETTINGS) as standby:
                yield Pair(primary=primary, standby=standby)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy(primary: embedded.Cluster, source: Path, target: Path) -> None:
    """Make a standby of it that streams."""
    folder = Folder.prepare(target)
    folder.start_lock.touch()  # a folder of ours
    shutil.copy2(source / "password", folder.password)
    program = str(find_binaries().bin_dir / "pg_basebackup")
    command = [program, "-D", str(folder.pgdata), "-R", "-c", "fast", "--no-sync"]
    command += ["-h", str(primary.socket_dir), "-p", str(primary.port), "-U", "headgate"]
    subprocess.run(command, check=True, timeout=60)
    owner = (source / "pgdata").stat()
    for path in (folder.pgdata, *folder.pgdata.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


@asynccontextmanager
async def serving(dsn: str) -> AsyncIterator[Server]:
    server = Server(
        ServerOptions(database_url=dsn, port=0, http_port=0, dev=True, grace=timedelta(0), tick_seconds=0.1)
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(drain=False)


async def test_pages_are_read_from_a_standby_and_work_goes_on_when_it_is_promoted(pair: Pair) -> None:
    db = await connect(pair.primary.dsn(), application_name="test")
    await migrate(db)
    await db.close()
    async with serving(pair.dsn) as server:
        url = f"http://127.0.0.1:{server.http_port}"
        headers = {"origin": url, "sec-fetch-site": "same-origin"}
        async with http_clients.async_client(base_url=url, headers=headers) as api:
            job = (await api.post("/v1/jobs", json={"topic": "mail", "payload": {}})).json()["id"]
            page = (await api.get(f"/ui/jobs/{job}")).text
            assert ('id="read-only" hidden' in page, 'action="/ui/jobs/cancel"' in page) == (True, True)
            token = page.split('name="csrf" content="')[1].split('"')[0]
            other = await connect(pair.standby.dsn(), application_name="test")
            await until_async(lambda: followed(other), "the standby has the job")

            pair.primary.stop("immediate")
            await soon(lambda: server.store.read_only, "the server has noticed")

            for path in ("/ui", "/ui/jobs", f"/ui/jobs/{job}", "/ui/topics", "/ui/workers", "/ui/charts", "/ui/system"):
                answer = await api.get(path)
                assert (answer.status_code, 'id="read-only">' in answer.text) == (200, True), (path, answer.text)
            assert 'action="/ui/jobs/cancel"' not in (await api.get(f"/ui/jobs/{job}")).text
            refused = await api.post("/ui/jobs/cancel", data={"csrf": token, "id": job})
            assert (refused.status_code, "<code>read_only</code>" in refused.text) == (503, True)
            for path, body in (
                ("/v1/jobs", {"topic": "mail", "payload": {}}),
                ("/v1/jobs/cancel", {"ids": [job]}),
                ("/v1/pause", {"target": {"topic": "mail"}}),
            ):
                answer = await api.post(path, json=body)
                assert (answer.status_code, answer.json().get("code")) == (503, "read_only"), (path, answer.text)
            assert (await api.get("/health/ready")).status_code == 503
            details = (await api.get("/health/details")).json()
            assert (details["ready"], details["database"]["in_recovery"]) == (False, True)
            assert "no host takes writes" in details["reason"]

            await other.execute("SELECT pg_promote()")
            await other.close()
            await soon(lambda: not server.store.read_only, "the server has noticed")

            assert 'id="read-only" hidden' in (await api.get(f"/ui/jobs/{job}")).text
            assert (await api.post("/v1/jobs", json={"topic": "mail", "payload": {}})).status_code == 201
            async with Wire(f"127.0.0.1:{server.port}") as wire, wire.worker("w") as session:
                await session.ready(2, "mail")
                await session.report(*(completed(one) for one in await session.take(2)))
            assert (await api.get(f"/v1/jobs/{job}")).json()["state"] == "completed"


async def followed(standby: Connection) -> bool:
    return bool(await standby.fetchval("SELECT EXISTS (SELECT FROM headgate.jobs)"))
