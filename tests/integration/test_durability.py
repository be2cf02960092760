"""Durability after the start: settings that change under a running server, and nothing that is acknowledged without."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg
import pytest

from headgate import embedded
from headgate.dispatch import maintenance
from headgate.domain.errors import StoreUnavailable
from headgate.domain.ids import TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.embedded import launch
from headgate.ops import readiness
from headgate.server import Server, ServerOptions
from headgate.store import preflight
from headgate.store.connect import connect
from headgate.store.dispatch_store import DispatchStore
from headgate.store.migrate import migrate
from headgate.testing.server import temporary_folder
from tests.support.dispatch_waits import soon

SMALL = {"shared_buffers": "32MB", "max_wal_size": "128MB", "min_wal_size": "32MB"}
LANES = ("submit", "claim", "settle", "leases", "tick", "upkeep", "unblock", "schedule")


async def commit_levels(store: DispatchStore) -> set[str]:
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
    store = DispatchStore(database)
    store.checks_durability = True
    unsafe = DispatchStore(database, unsafe=True)
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
async def server(
    database: str, db: asyncpg.Connection[asyncpg.Record], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Server]:
    """One whose durability a test can take away: tests' PostgreSQL has its settings from its command line, for good."""
    await db.execute("CREATE TABLE public.settings AS SELECT 'on'::text AS fsync, 'on'::text AS full_page_writes")
    asked = preflight._SETTINGS
    for setting in ("fsync", "full_page_writes"):
        asked = asked.replace(f"current_setting('{setting}')", f"(SELECT s.{setting} FROM public.settings s)")
    monkeypatch.setattr(preflight, "_SETTINGS", asked)
    monkeypatch.setattr(maintenance, "DURABILITY_SECONDS", 0.2)
    monkeypatch.setattr(readiness, "UNREADY_SECONDS", 0.2)
    thresholds = gc.get_threshold()
    one = Server(ServerOptions(database_url=database, port=0, dev=True, grace=timedelta(0), tick_seconds=0.2))
    await one.start()
    yield one
    await asyncio.wait_for(one.stop(drain=False), 60)
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_loses_its_durability_is_not_ready_acknowledges_nothing_and_recovers_by_itself(
    db: asyncpg.Connection[asyncpg.Record], server: Server, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def submit() -> None:
        job = Submission(tenant=TenantName("default"), topic=TopicName("mail"), id=server.ids.next_id())
        await server.store.submit(await server.store.fill([job]))

    await submit()
    await db.execute(f"UPDATE public.settings SET {setting} = 'off'")
    await soon(lambda: not server.health.ready, "the server is not ready")
    assert "not_ready reason=" in caplog.text
    assert f"{setting} is off" in caplog.text
    before = await db.fetchval("SELECT count(*) FROM headgate.jobs")
    with pytest.raises(StoreUnavailable, match=f"{setting} is off"):
        await submit()
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == before
    await db.execute(f"UPDATE public.settings SET {setting} = 'on'")
    await soon(lambda: server.health.ready, "the server is ready again")
    await submit()


async def test_a_reload_that_turns_fsync_off_under_a_running_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of its own, whose settings come from its file and not from its command line."""
    from_file = {name: value for name, value in launch._DEFAULTS.items() if name not in ("fsync", "full_page_writes")}
    monkeypatch.setattr(launch, "_DEFAULTS", from_file)
    monkeypatch.setattr(maintenance, "DURABILITY_SECONDS", 0.2)
    monkeypatch.setattr(readiness, "UNREADY_SECONDS", 0.2)
    folder = temporary_folder()
    thresholds = gc.get_threshold()
    try:
        with embedded.start(folder, settings=SMALL) as cluster:
            db = await connect(cluster.dsn(), application_name="test")
            await migrate(db)
            one = Server(
                ServerOptions(database_url=cluster.dsn(), port=0, dev=True, grace=timedelta(0), tick_seconds=0.2)
            )
            await one.start()
            try:
                for setting in ("fsync", "full_page_writes"):
                    await db.execute(f"ALTER SYSTEM SET {setting} = off")
                    await db.execute("SELECT pg_reload_conf()")
                    await soon(lambda: not one.health.ready, f"not ready without {setting}")
                    job = Submission(tenant=TenantName("default"), topic=TopicName("mail"), id=one.ids.next_id())
                    with pytest.raises(StoreUnavailable, match=f"{setting} is off"):
                        await one.store.submit(await one.store.fill([job]))
                    await db.execute(f"ALTER SYSTEM RESET {setting}")
                    await db.execute("SELECT pg_reload_conf()")
                    await soon(lambda: one.health.ready, f"ready with {setting}")
                    await one.store.submit(await one.store.fill([job]))
                assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 2
            finally:
                await asyncio.wait_for(one.stop(drain=False), 60)
                await db.close()
                gc.unfreeze()
                gc.set_threshold(*thresholds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
