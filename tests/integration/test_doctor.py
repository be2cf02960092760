"""Each check of `headgate doctor` fails when what it checks is broken for real, and names the fix."""

from __future__ import annotations

import asyncio
import pwd
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from headgate import embedded
from headgate.domain.diagnosis import Finding, Level
from headgate.store import diagnosis
from headgate.store.connect import Connection, connect
from headgate.store.dispatch_store import DispatchStore
from headgate.store.pooling import check_pooler
from tests.support.database import temporary_folder
from tests.support.pgbouncer import PROGRAM, PgBouncer, config_of, free_port
from tests.support.roles import owned_database


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Connection]:
    connection = await connect(dsn, application_name="headgate doctor", pooler=True)
    try:
        yield connection
    finally:
        await connection.close()


def level(finding: Finding) -> tuple[Level, str]:
    assert bool(finding.fix) == (finding.level in (Level.WARN, Level.FAIL)), finding
    return finding.level, finding.fix


@pytest.fixture(scope="module")
def bad_server() -> Iterator[str]:
    """A server of its own, with everything wrong that belongs to a whole server."""
    folder = temporary_folder()
    settings = {
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "synchronous_standby_names": "ghost",
        "synchronous_commit": "local",
        "shared_buffers": "16MB",
    }
    try:
        with embedded.start(folder / "postgres", settings=settings) as cluster:
            yield cluster.dsn()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_database_as_it_should_be_passes_every_check(database: str, db: Connection) -> None:
    await db.execute("VACUUM headgate.jobs")
    found = [
        await diagnosis.check_version(db, title="here"),
        await diagnosis.check_durability(db, unsafe=False),
        await diagnosis.check_standby(db),
        await diagnosis.check_clock(db, now=time.time),
        await diagnosis.check_migrations(db),
        await diagnosis.check_connections(db, needed=1),
        await diagnosis.check_vacuum(db),
        await diagnosis.check_snapshots(db),
        await check_pooler(database, pooler=False, direct_dsn=None),
    ]
    assert [one for one in found if one.level is not Level.OK and "data_checksums" not in one.found] == []


async def test_settings_that_lose_acknowledged_jobs_fail_with_the_statements_that_mend_them(bad_server: str) -> None:
    async with opened(bad_server) as db:
        found, fix = level(await diagnosis.check_durability(db, unsafe=False))
        assert found is Level.FAIL
        for statement in ("SET fsync = on", "SET full_page_writes = on", "SET synchronous_commit = on"):
            assert statement in fix
        assert (await diagnosis.check_durability(db, unsafe=True)).level is Level.WARN


async def test_a_synchronous_standby_that_is_not_connected_fails(bad_server: str) -> None:
    async with opened(bad_server) as db:
        found, fix = level(await diagnosis.check_standby(db))
    assert found is Level.FAIL
    assert "ALTER SYSTEM SET synchronous_standby_names = ''" in fix


async def test_vacuum_that_is_off_fails_for_the_server_and_for_a_table(bad_server: str, db: Connection) -> None:
    async with opened(bad_server) as bad:
        assert level(await diagnosis.check_vacuum(bad)) == (
            Level.FAIL,
            "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf();",
        )
    await db.execute("ALTER TABLE headgate.jobs SET (autovacuum_enabled = off)")
    found, fix = level(await diagnosis.check_vacuum(db))
    assert found is Level.FAIL
    await db.execute(fix)  # the fix is exact
    assert (await diagnosis.check_vacuum(db)).level is Level.OK


@pytest.mark.parametrize(("seconds", "expected"), [(30, Level.WARN), (-30, Level.WARN), (600, Level.FAIL)])
async def test_a_clock_that_is_wrong_is_found(db: Connection, seconds: int, expected: Level) -> None:
    found = await diagnosis.check_clock(db, now=lambda: time.time() + seconds)
    assert found.level is expected
    assert f"{abs(seconds)}." in found.found or f"{abs(seconds) - 1}." in found.found
    assert ("behind" if seconds > 0 else "ahead") in found.found


async def test_a_database_without_the_schema_fails_with_the_command(blank_database: str) -> None:
    async with opened(blank_database) as db:
        assert level(await diagnosis.check_migrations(db)) == (Level.FAIL, "headgate migrate")
        assert (await diagnosis.check_role(db)).level is Level.SKIP
        assert (await diagnosis.check_vacuum(db)).level is Level.OK


async def test_a_role_without_rights_fails_and_one_with_too_many_is_a_warning(blank_database: str) -> None:
    async with owned_database(blank_database) as roles:
        async with opened(roles.url(roles.app)) as db:
            found, fix = level(await diagnosis.check_role(db))
            assert found is Level.FAIL
        async with opened(roles.superuser) as admin:
            assert "superuser" in (await diagnosis.check_role(admin)).found
            await admin.execute(fix)
        async with opened(roles.url(roles.app)) as db:
            assert (await diagnosis.check_role(db)).level is Level.OK
        async with opened(roles.url(roles.owner)) as db:
            found, fix = level(await diagnosis.check_role(db))
            assert found is Level.WARN
            assert "IN ROLE headgate_runtime" in fix


async def test_too_few_connections_fail(database: str, db: Connection) -> None:
    needed = DispatchStore(database).connections
    assert needed >= 15  # its lanes, and the one that listens
    assert level(await diagnosis.check_connections(db, needed=100_000))[0] is Level.FAIL
    name = unquote(urlsplit(database).path[1:])
    await db.execute(f'ALTER DATABASE "{name}" CONNECTION LIMIT {needed - 1}')
    found, fix = level(await diagnosis.check_connections(db, needed=needed))
    assert found is Level.FAIL
    await db.execute(fix)
    assert "may have" not in (await diagnosis.check_connections(db, needed=needed)).found


async def test_a_transaction_that_stays_open_is_named_and_the_fix_ends_it(database: str, db: Connection) -> None:
    async with opened(database) as other:
        await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pid = await other.fetchval("SELECT pg_backend_pid() FROM headgate.jobs LIMIT 1")
        pid = pid or await other.fetchval("SELECT pg_backend_pid()")
        found = await diagnosis.check_snapshots(db, longer_than=timedelta(0))
        assert found.level is Level.WARN
        assert (f"session {pid} " in found.found, found.fix) == (True, f"SELECT pg_terminate_backend({pid});")
        assert (await diagnosis.check_snapshots(db)).level is Level.OK  # it is young
        await db.execute(found.fix)
        async with asyncio.timeout(30):
            while (await diagnosis.check_snapshots(db, longer_than=timedelta(0))).level is not Level.OK:
                await asyncio.sleep(0.01)


async def test_the_option_pooler_without_one_is_a_warning(database: str) -> None:
    found = await check_pooler(database, pooler=True, direct_dsn=None)
    assert (found.level, "remove --pooler" in found.fix) == (Level.WARN, True)


@pytest.fixture
def pooled(database: str) -> Iterator[str]:
    """The URL of the database through a PgBouncer in transaction mode."""
    if PROGRAM is None or "host=" not in database:
        pytest.skip("NO PGBOUNCER ON THIS MACHINE, or no socket for it: apt-get install pgbouncer to run this")
    parts, query = urlsplit(database), parse_qs(urlsplit(database).query)
    host, of_database, user, port = query["host"][0], query["port"][0], parts.username or "", free_port()
    account = pwd.getpwuid(Path(host, f".s.PGSQL.{of_database}").stat().st_uid)
    folder = Path(tempfile.mkdtemp(prefix="headgate-pooler-"))  # not pytest's: that one is closed to other accounts
    folder.chmod(0o755)
    config = config_of(host, of_database, user=user, port=port, sessions=3)
    try:
        with PgBouncer(config, port=port, folder=folder, account=account, program=PROGRAM):
            yield f"postgresql://{user}@127.0.0.1:{port}{parts.path}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_transaction_pooler_is_detected_and_the_direct_url_checked(pooled: str, database: str) -> None:
    found = await check_pooler(pooled, pooler=False, direct_dsn=None, listen_seconds=0.3)
    assert (found.level, "--pooler" in found.fix) == (Level.FAIL, True)
    found = await check_pooler(pooled, pooler=True, direct_dsn=None)
    assert (found.level, "HEADGATE_DIRECT_DATABASE_URL" in found.fix) == (Level.WARN, True)
    assert (await check_pooler(pooled, pooler=True, direct_dsn=database, listen_seconds=10)).level is Level.OK
    assert (await check_pooler(pooled, pooler=True, direct_dsn=pooled, listen_seconds=0.3)).level is Level.FAIL
    async with opened(pooled) as db:  # the other checks work through it
        for check in (diagnosis.check_vacuum, diagnosis.check_migrations, diagnosis.check_standby):
            async with db.transaction():
                assert (await check(db)).level is Level.OK
