"""Durability after the start: settings that change under a running server, and nothing that is acknowledged without."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg
import pytest

from headgate import embedded
from headgate import server as composition
from headgate.domain.errors import StoreUnavailable
from headgate.domain.ids import TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.server import Server, ServerOptions
from headgate.store.connect import connect
from headgate.store.migrate import migrate
from headgate.store.service import Store
from tests.support.database import temporary_folder
from tests.support.dispatching import soon

LANES = ("submit", "claim", "settle", "leases", "tick", "operate", "free", "schedule")


async def commit_levels(store: Store) -> set[str]:
    """What the sessions of a store wait for at a commit."""
    levels = set()
    for name in LANES:
        async with store.lane(name).use() as db:
            levels.add(await db.fetchval("SELECT current_setting('synchronous_commit')"))
    return levels


async def test_no_default_of_the_database_makes_our_commits_wait_for_less(
    database: str, db: asyncpg.Connection
) -> None:
    name = urlsplit(database).path[1:]
    store = Store(database)
    store.checks_durability = True
    unsafe = Store(database, unsafe=True)
    try:
        assert await commit_levels(store) == {"on"}
        await db.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        await db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'headgate %' "
            "AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        for lane in LANES:
            store.lane(lane).drop()
        assert await commit_levels(store) == {"on"}
        assert "synchronous_commit is off by default" in await store.check_durability()
        await db.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = remote_apply')
        for lane in LANES:
            store.lane(lane).drop()
        assert await commit_levels(store) == {"remote_apply"}, "what waits for more is left as it is"
        await db.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        assert await commit_levels(unsafe) == {"off"}
    finally:
        await store.close()
        await unsafe.close()


@pytest.fixture
def own_server() -> Iterator[str]:
    """A server of its own: fsync belongs to a whole server, and others are using the shared one."""
    folder = temporary_folder()
    try:
        with embedded.start(folder / "postgres", settings={"shared_buffers": "16MB"}) as cluster:
            yield cluster.dsn()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def server(own_server: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(composition, "DURABILITY_SECONDS", 0.2)
    monkeypatch.setattr(composition, "UNREADY_SECONDS", 0.2)
    thresholds = gc.get_threshold()
    db = await connect(own_server, application_name="headgate test")
    await migrate(db)
    await db.close()
    one = Server(ServerOptions(database_url=own_server, port=0, dev=True, grace=timedelta(0), tick_seconds=0.2))
    await one.start()
    yield one
    await asyncio.wait_for(one.stop(drain=False), 60)
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_loses_its_durability_is_not_ready_acknowledges_nothing_and_recovers_by_itself(
    own_server: str, server: Server, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin = await asyncpg.connect(own_server)

    async def submit() -> None:
        job = Submission(tenant=TenantName("default"), topic=TopicName("mail"), id=server.ids.next_id())
        await server.store.submit(await server.store.fill([job]))

    try:
        await submit()
        await admin.execute(f"ALTER SYSTEM SET {setting} = off")
        await admin.execute("SELECT pg_reload_conf()")
        await soon(lambda: not server._health.ready, "the server is not ready")
        assert "not_ready reason=" in caplog.text
        assert f"{setting} is off" in caplog.text
        before = await admin.fetchval("SELECT count(*) FROM headgate.jobs")
        with pytest.raises(StoreUnavailable, match=f"{setting} is off"):
            await submit()
        assert await admin.fetchval("SELECT count(*) FROM headgate.jobs") == before
        await admin.execute(f"ALTER SYSTEM RESET {setting}")
        await admin.execute("SELECT pg_reload_conf()")
        await soon(lambda: server._health.ready, "the server is ready again")
        await submit()
    finally:
        await admin.close()
