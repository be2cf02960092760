"""A real server that logs in as a role of servers, and the embedded PostgreSQL as `headgate dev` uses it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headgate.store.connect import connect
from tests.e2e.conftest import Spawn
from tests.support.roles import owned_database
from tests.support.server import HEADGATE, ServerProcess, clean_environ
from tests.support.wire import Wire, failed, retry_after


async def test_a_server_that_is_no_owner_serves_and_is_refused_nothing(
    blank_database: str, template: str, tmp_path: Path
) -> None:
    async with owned_database(blank_database) as owned:
        server = await asyncio.to_thread(ServerProcess, owned.url(owned.runtime), folder=tmp_path)
        try:
            async with Wire(server.address) as wire, wire.worker() as session:
                first, second = await wire.submit("mail"), await wire.submit("mail", retry=retry_after(10))
                await session.ready(2, "mail")
                jobs = {job.id: job for job in await session.take(2)}
                assert await session.complete(jobs[first]) == {}
                await session.report(failed(jobs[second]))
                await session.ready(1)
                (again,) = await session.take(1)
                assert (again.id, again.attempt) == (second, 2)
                assert await session.complete(again) == {}
                await wire.ended(second)
        finally:
            assert await asyncio.to_thread(server.terminate) == 0
            server.kill()
        assert server.seen("permission denied|must be owner") == []


async def test_the_embedded_postgresql_serves_without_its_superuser(spawn: Spawn, tmp_path: Path) -> None:
    environ = {**clean_environ(), "HEADGATE_DATA": str(tmp_path / "data")}
    dev = await asyncio.to_thread(spawn, "dev", HEADGATE, "dev", "--port", "0", environ=environ)
    url = await asyncio.to_thread(dev.saw, r"export HEADGATE_DATABASE_URL=(\S+)")
    await asyncio.to_thread(dev.saw, r"^ready in")
    db = await connect(url[1].strip("'"), application_name="headgate test")
    try:
        rows = await db.fetch(
            "SELECT a.application_name, r.rolname, r.rolsuper "
            "FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid "
            "WHERE a.application_name LIKE 'headgate%' AND a.pid <> pg_backend_pid()"
        )
        assert rows
        assert {(row[1], row[2]) for row in rows} == {("headgate_runtime", False)}
        mine = await db.fetchrow("SELECT rolname, rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user")
        assert tuple(mine or ()) == ("headgate_owner", False, False)
        owners = await db.fetch(
            "SELECT DISTINCT r.rolname, r.rolsuper FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner "
            "WHERE p.pronamespace = 'headgate'::regnamespace"
        )
        assert [tuple(row) for row in owners] == [("headgate_owner", False)]
        await db.execute("CREATE TABLE public.mine (n int)")  # a developer's own tables live beside the queue
        assert await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb)")
    finally:
        await db.close()
    assert await asyncio.to_thread(dev.terminate) == 0
    assert dev.seen("permission denied") == []
