"""`headgate migrate` as real processes: killed in the middle of each step, or started several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from headgate.store.connect import Connection, connect
from headgate.store.migrate import migrate
from headgate.store.migration_files import Migration
from tests.support.database import Server
from tests.support.releases import LaterRelease
from tests.support.server import HEADGATE, clean_environ
from tests.support.waiting import until_async

DDL = {"CREATE", "ALTER", "DROP", "COMMENT", "GRANT", "REVOKE"}
# The n-th statement that changes the schema waits at its end, for as long as the test holds the lock.
HOLD = """
CREATE SEQUENCE public.ddl_seen;
CREATE TABLE public.hold_at (n int);
CREATE FUNCTION public.hold() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('public.ddl_seen') = (SELECT n FROM public.hold_at) THEN
        PERFORM pg_advisory_xact_lock_shared(57, 57);
    END IF;
END $$;
CREATE EVENT TRIGGER hold ON ddl_command_end EXECUTE FUNCTION public.hold()"""
WAITING = """
SELECT a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE l.locktype = 'advisory' AND l.classid = 57 AND NOT l.granted AND a.datname = current_database()"""
SCHEMA = """
SELECT 'column', c.table_name::text, c.column_name::text,
       concat_ws(' ', c.ordinal_position, c.data_type, c.is_nullable, c.column_default)
  FROM information_schema.columns c WHERE c.table_schema = 'headgate'
UNION ALL SELECT 'index', i.tablename::text, i.indexname::text, i.indexdef
  FROM pg_indexes i WHERE i.schemaname = 'headgate'
UNION ALL SELECT 'valid', x.indrelid::regclass::text, x.indexrelid::regclass::text, x.indisvalid::text
  FROM pg_index x JOIN pg_class r ON r.oid = x.indexrelid WHERE r.relnamespace = 'headgate'::regnamespace
UNION ALL SELECT 'function', p.proname::text, pg_get_function_identity_arguments(p.oid), pg_get_functiondef(p.oid)
  FROM pg_proc p WHERE p.pronamespace = 'headgate'::regnamespace AND p.prokind = 'f'
UNION ALL SELECT 'constraint', k.conrelid::regclass::text, k.conname::text, pg_get_constraintdef(k.oid)
  FROM pg_constraint k WHERE k.connamespace = 'headgate'::regnamespace
ORDER BY 1, 2, 3, 4"""


@contextmanager
def migrating(dsn: str, release: LaterRelease) -> Iterator[subprocess.Popen[str]]:
    """`headgate migrate` of that release; gone at the end."""
    process = subprocess.Popen(
        [HEADGATE, "migrate"],
        env={**clean_environ(), "HEADGATE_DATABASE_URL": dsn, **release.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def middle(migration: Migration) -> int:
    """Which of its statements that change the schema to stop at."""
    count = sum(statement.words[0] in DDL for statement in migration.statements if statement.words)
    return count // 2 + 1


async def schema(dsn: str) -> list[tuple[object, ...]]:
    db = await connect(dsn, application_name="headgate test")
    try:
        return [tuple(row) for row in await db.fetch(SCHEMA)]
    finally:
        await db.close()


async def finished(db: Connection) -> int:
    try:
        return int(await db.fetchval("SELECT count(*) FROM headgate.migrations WHERE applied_at IS NOT NULL"))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return 0


@pytest.mark.req("F57")
async def test_killed_in_the_middle_of_each_step_it_is_continued_by_the_next_run(
    blank_database: str, postgres: Server, tmp_path: Path
) -> None:
    release = LaterRelease(tmp_path)
    db = await connect(blank_database, application_name="headgate test")
    await db.execute(HOLD)
    await db.execute("INSERT INTO public.hold_at VALUES (0)")
    for migration in release.migrations:
        await db.execute("UPDATE public.hold_at SET n = $1", middle(migration))
        await db.execute("SELECT setval('public.ddl_seen', 1, false)")
        await db.execute("SELECT pg_advisory_lock(57, 57)")
        with migrating(blank_database, release) as run:

            async def held() -> int | None:
                assert run.poll() is None, run.communicate()[0]
                found: int | None = await db.fetchval(WAITING)
                return found

            backend = await until_async(held, f"step {migration.number} is under way")
            if migration.number % 2:
                os.kill(run.pid, signal.SIGKILL)
                run.wait(10)
            else:
                await db.execute("SELECT pg_terminate_backend($1)", backend)
                said, _ = run.communicate(timeout=60)
                assert run.returncode == 5, said
                assert "run `headgate migrate` again, it continues here" in said
        await db.execute("UPDATE public.hold_at SET n = 0")
        await db.execute("SELECT pg_advisory_unlock(57, 57)")

        async def over(pid: int = int(backend or 0)) -> bool:
            return not await db.fetchval("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid)

        await until_async(over, "its session has ended")
        assert await finished(db) == migration.number - 1  # all of a step or nothing of it
        await migrate(db, source=_until(release, migration.number, tmp_path))
        assert await finished(db) == migration.number
    await db.execute("DROP EVENT TRIGGER hold")
    await db.close()

    straight = postgres.create()
    try:
        with migrating(postgres.dsn_of(straight), release) as run:
            said, _ = run.communicate(timeout=60)
            assert run.returncode == 0, said
        assert await schema(blank_database) == await schema(postgres.dsn_of(straight))
    finally:
        postgres.drop(straight)


@pytest.mark.req("F57")
async def test_several_processes_that_migrate_at_once_apply_each_step_once(blank_database: str, tmp_path: Path) -> None:
    release = LaterRelease(tmp_path)
    with (
        migrating(blank_database, release) as one,
        migrating(blank_database, release) as two,
        migrating(blank_database, release) as three,
    ):
        said = [process.communicate(timeout=60)[0] for process in (one, two, three)]
        assert [process.returncode for process in (one, two, three)] == [0, 0, 0], said
    applied = [line.split()[0] for text in said for line in text.splitlines() if line.split()[2:3] == ["new"]]
    assert sorted(applied) == [f"{migration.number:04}" for migration in release.migrations]


def _until(release: LaterRelease, number: int, folder: Path) -> Path:
    """The release's migrations up to this number."""
    source = folder / f"until-{number}"
    source.mkdir()
    (source / "functions").symlink_to(release.source / "functions")
    (source / "migrations").mkdir()
    for file in (release.source / "migrations").glob("*.sql"):
        if int(file.name[:4]) <= number:
            (source / "migrations" / file.name).symlink_to(file)
    return source
