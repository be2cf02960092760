"""Migrations against a real PostgreSQL: order, races, kills, refusals. Each test writes files of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest

from headgate.domain.errors import MigrationFailed, MissingRights, SchemaMismatch, StoreUnavailable
from headgate.store.connect import connect
from headgate.store.migrate import Phase, Progress, check_schema, migrate, plan
from headgate.store.migration_files import load

Link: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
SHORT = timedelta(milliseconds=200)


class Source:
    """A folder of migrations in the making."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "migrations").mkdir()
        (root / "functions").mkdir()

    def write(self, name: str, text: str) -> None:
        (self.root / "migrations" / name).write_text(text)

    def function(self, name: str, text: str) -> None:
        (self.root / "functions" / name).write_text(text)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    made = Source(tmp_path)
    made.write(
        "0001_first.sql", "-- The first.\nCREATE TABLE headgate.one (n int);\nINSERT INTO headgate.one VALUES (1);\n"
    )
    made.write(
        "0002_second.sql", "ALTER TABLE headgate.one ADD COLUMN m int;\nINSERT INTO headgate.one VALUES (2, 2);\n"
    )
    return made


@pytest.fixture
async def link(blank_database: str) -> AsyncIterator[Link]:
    async with open_link(blank_database) as connection:
        yield connection


@asynccontextmanager
async def open_link(dsn: str, name: str = "migration test") -> AsyncIterator[Link]:
    connection = await connect(dsn, application_name=name)
    try:
        yield connection
    finally:
        connection.terminate()


async def rows(link: Link) -> list[tuple[Any, ...]]:
    found = await link.fetch("SELECT number, name, applied_at IS NOT NULL AS done FROM headgate.migrations ORDER BY 1")
    return [tuple(row) for row in found]


async def seen(condition: Callable[[], Coroutine[Any, Any, object]]) -> object:
    """Poll until the server shows what we wait for."""
    for _ in range(2000):
        if value := await condition():
            return value
        await asyncio.sleep(0.005)
    raise AssertionError("never seen")


# ---------------------------------------------------------------- applying


async def test_all_steps_are_applied_in_order_and_recorded(link: Link, source: Source) -> None:
    events: list[Progress] = []
    applied = await migrate(link, source=source.root, progress=events.append)
    assert [m.number for m in applied] == [1, 2]
    assert [(e.phase, e.migration.number) for e in events] == [
        (Phase.APPLYING, 1),
        (Phase.APPLIED, 1),
        (Phase.APPLYING, 2),
        (Phase.APPLIED, 2),
    ]
    assert await link.fetchval("SELECT count(*) FROM headgate.one") == 2
    row = await link.fetchrow("SELECT * FROM headgate.migrations WHERE number = 1")
    assert row is not None
    assert row["checksum"] == load(source.root)[0].checksum
    assert row["applied_by"]
    assert row["seconds"] >= 0
    await check_schema(link, source=source.root)


async def test_a_second_run_changes_nothing(link: Link, source: Source) -> None:
    await migrate(link, source=source.root)
    before = await link.fetch("SELECT * FROM headgate.migrations ORDER BY number")
    assert await migrate(link, source=source.root) == []
    assert await link.fetch("SELECT * FROM headgate.migrations ORDER BY number") == before


async def test_a_later_release_continues_where_the_earlier_one_ended(link: Link, source: Source) -> None:
    await migrate(link, source=source.root)
    source.write("0003_third.sql", "CREATE TABLE headgate.three ();")
    assert [m.number for m in await migrate(link, source=source.root)] == [3]


async def test_the_packaged_migrations_apply_and_pass_the_check(link: Link) -> None:
    await migrate(link)
    await check_schema(link)
    assert (await plan(link)).pending == ()


async def test_an_include_is_part_of_the_text_and_of_the_checksum(link: Link, source: Source) -> None:
    body = "CREATE FUNCTION headgate.f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN; RETURN 1; END $$;"
    source.function("f_v1.sql", body.replace("BEGIN;", "BEGIN"))
    source.write("0003_third.sql", "-- include: functions/f_v1.sql\nSELECT headgate.f();\n")
    before = load(source.root)[2].checksum
    await migrate(link, source=source.root)
    assert await link.fetchval("SELECT headgate.f()") == 1
    source.function("f_v1.sql", body.replace("BEGIN;", "BEGIN  "))
    assert load(source.root)[2].checksum != before
    with pytest.raises(MigrationFailed, match=r"migrations/0003_third\.sql was changed after it was applied"):
        await check_schema(link, source=source.root)


async def test_the_plan_shows_what_would_be_done_and_does_nothing(link: Link, source: Source) -> None:
    found = await plan(link, source=source.root)
    assert (found.applied, [m.name for m in found.pending], found.problems) == ((), ["first", "second"], ())
    assert await link.fetchval("SELECT to_regnamespace('headgate') IS NULL")
    await migrate(link, source=source.root)
    source.write("0003_third.sql", "CREATE TABLE headgate.three ();")
    found = await plan(link, source=source.root)
    assert [row.number for row in found.applied] == [1, 2]
    assert [m.number for m in found.pending] == [3]
    assert found.version == 2


async def test_it_refuses_to_work_inside_a_transaction_of_its_caller(link: Link, source: Source) -> None:
    async with link.transaction():
        with pytest.raises(ValueError, match="inside a transaction"):
            await migrate(link, source=source.root)


async def test_a_long_step_is_not_cut_off_by_the_timeouts_of_the_connection(
    blank_database: str, source: Source
) -> None:
    source.write("0003_slow.sql", "SELECT pg_sleep(0.6);")
    connection = await asyncpg.connect(
        blank_database, command_timeout=0.3, server_settings={"statement_timeout": "300", "search_path": "public"}
    )
    try:
        assert len(await migrate(connection, source=source.root)) == 3
        assert await connection.fetchval("SHOW statement_timeout") == "300ms"
        assert await connection.fetchval("SHOW search_path") == "public"
    finally:
        connection.terminate()


# ---------------------------------------------------------------- several runners


async def test_runners_that_start_at_once_all_succeed_and_apply_each_step_once(
    blank_database: str, source: Source
) -> None:
    source.write("0003_slow.sql", "SELECT pg_sleep(0.3);\nCREATE TABLE headgate.three ();")
    source.write(
        "0004_index.sql",
        "-- headgate: no transaction\nCREATE INDEX CONCURRENTLY one_n ON headgate.one (n);\nSELECT pg_sleep(0.3);",
    )
    source.write("0005_last.sql", "CREATE TABLE headgate.five ();")

    async def run() -> list[int]:
        async with open_link(blank_database) as connection:
            return [m.number for m in await migrate(connection, source=source.root)]

    answers = await asyncio.gather(*(run() for _ in range(5)))
    assert sorted(number for answer in answers for number in answer) == [1, 2, 3, 4, 5]
    async with open_link(blank_database) as connection:
        assert await connection.fetchval("SELECT count(*) FROM headgate.one") == 2


async def test_a_waiting_runner_reports_it(blank_database: str, source: Source) -> None:
    source.write("0001_first.sql", "CREATE TABLE headgate.one (n int);\nSELECT pg_sleep(0.5);\n")
    events: list[Progress] = []
    async with open_link(blank_database) as one, open_link(blank_database) as two:
        slow = asyncio.create_task(migrate(one, source=source.root))
        await seen(lambda: two.fetchval("SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(0.5)' "))
        await migrate(two, source=source.root, progress=events.append)
        await slow
    assert Phase.WAITING in [event.phase for event in events]


# ---------------------------------------------------------------- failures


async def test_a_runner_killed_midway_leaves_nothing_half_done_and_the_next_run_continues(
    blank_database: str, source: Source
) -> None:
    source.write("0002_second.sql", "ALTER TABLE headgate.one ADD COLUMN m int;\n\nSELECT pg_sleep(60);\n")
    async with open_link(blank_database) as victim, open_link(blank_database) as other:
        run = asyncio.create_task(migrate(victim, source=source.root))
        pid = await seen(lambda: other.fetchval("SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)'"))
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        with pytest.raises(StoreUnavailable, match=r"0002_second\.sql, line 3: .*run `headgate migrate` again"):
            await run
        assert await rows(other) == [(1, "first", True)]
        columns = "SELECT array_agg(attname) FROM pg_attribute WHERE attrelid = 'headgate.one'::regclass AND attnum > 0"
        assert await other.fetchval(columns) == ["n"]
        with pytest.raises(SchemaMismatch, match="is at migration 1, this release needs 2: run `headgate migrate`"):
            await check_schema(other, source=source.root)
        source.write("0002_second.sql", "ALTER TABLE headgate.one ADD COLUMN m int;\n\nSELECT pg_sleep(0);\n")
        assert [m.number for m in await migrate(other, source=source.root)] == [2]


async def test_a_no_transaction_file_killed_midway_is_known_as_unfinished_and_starts_again(
    blank_database: str, source: Source
) -> None:
    text = (
        "-- headgate: no transaction\n"
        "DROP INDEX CONCURRENTLY IF EXISTS headgate.one_n;\n"
        "CREATE INDEX CONCURRENTLY one_n ON headgate.one (n);\n"
        "SELECT pg_sleep({});\n"
    )
    source.write("0003_index.sql", text.format(60))
    async with open_link(blank_database) as victim, open_link(blank_database) as other:
        run = asyncio.create_task(migrate(victim, source=source.root))
        pid = await seen(lambda: other.fetchval("SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)'"))
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        with pytest.raises(StoreUnavailable, match=r"0003_index\.sql, line 4"):
            await run
        assert (await rows(other))[-1] == (3, "index", False)
        with pytest.raises(SchemaMismatch, match=r"migration 3 \(index\) is unfinished: run `headgate migrate` again"):
            await check_schema(other, source=source.root)
        source.write("0003_index.sql", text.format(0))  # unfinished, so it may still be repaired
        assert [m.number for m in await migrate(other, source=source.root)] == [3]
        assert (await rows(other))[-1] == (3, "index", True)
        assert await other.fetchval("SELECT indisvalid FROM pg_index WHERE indexrelid = 'headgate.one_n'::regclass")
        await check_schema(other, source=source.root)


async def test_a_no_transaction_file_leaves_the_session_as_it_found_it(blank_database: str, source: Source) -> None:
    source.write("0003_index.sql", "-- headgate: no transaction\nCREATE INDEX CONCURRENTLY ON headgate.one (n);")
    settings = {"lock_timeout": "7s", "statement_timeout": "9s", "search_path": "public"}
    link = await asyncpg.connect(blank_database, server_settings=settings)
    try:
        await migrate(link, source=source.root)
        assert {name: await link.fetchval(f"SHOW {name}") for name in settings} == settings
        assert await link.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
    finally:
        link.terminate()


async def test_a_statement_that_runs_concurrently_waits_for_others_as_long_as_they_take(
    blank_database: str, source: Source
) -> None:
    """To give up would leave an invalid index behind."""
    long_waiting = """
        SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'
           AND clock_timestamp() - query_start > interval '400 ms'"""
    async with (
        open_link(blank_database) as link,
        open_link(blank_database) as blocker,
        open_link(blank_database) as eye,
    ):
        await migrate(link, source=source.root)
        source.write(
            "0003_index.sql", "-- headgate: no transaction\nCREATE INDEX CONCURRENTLY one_n ON headgate.one (n);"
        )
        async with blocker.transaction():
            await blocker.execute("INSERT INTO headgate.one VALUES (3)")
            run = asyncio.create_task(migrate(link, source=source.root, lock_timeout=SHORT, lock_attempts=1))
            await seen(lambda: eye.fetchval(long_waiting))
        assert [m.number for m in await run] == [3]
        assert await link.fetchval("SELECT indisvalid FROM pg_index WHERE indexrelid = 'headgate.one_n'::regclass")


async def test_other_statements_of_a_no_transaction_file_give_up_and_the_next_run_starts_it_again(
    blank_database: str, source: Source
) -> None:
    async with open_link(blank_database) as link, open_link(blank_database) as blocker:
        await migrate(link, source=source.root)
        source.write("0003_third.sql", "-- headgate: no transaction\nALTER TABLE headgate.one ADD COLUMN o int;\n")
        async with asyncio.timeout(30), blocker.transaction():
            await blocker.execute("SELECT count(*) FROM headgate.one")
            with pytest.raises(MigrationFailed, match=r"0003_third\.sql, line 2: gave up after 1 waits of 0\.2 s"):
                await migrate(link, source=source.root, lock_timeout=SHORT, lock_attempts=1)
        assert (await rows(link))[-1] == (3, "third", False)
        assert [m.number for m in await migrate(link, source=source.root)] == [3]


async def test_a_no_transaction_file_that_fails_is_unfinished_and_its_repair_is_what_is_recorded(
    link: Link, source: Source
) -> None:
    source.write("0003_third.sql", "-- headgate: no transaction\nSELECT 1 / 0;\n")
    with pytest.raises(
        MigrationFailed, match=r"0003_third\.sql, line 2: .*is unfinished, and starts again at the next"
    ):
        await migrate(link, source=source.root)
    record = "SELECT started_at, compatible_with, applied_at FROM headgate.migrations WHERE number = 3"
    failed = await link.fetchrow(record)
    assert failed is not None
    assert tuple(failed)[1:] == (None, None)
    source.write("0003_third.sql", "-- headgate: no transaction\n-- compatible with: 2\nSELECT 1;\n")
    assert [m.number for m in await migrate(link, source=source.root)] == [3]
    repaired = await link.fetchrow(record)
    assert repaired is not None
    assert failed["started_at"] < repaired["started_at"] <= repaired["applied_at"]
    assert repaired["compatible_with"] == 2


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("CREATE TABLE headgate.x ();\nSELECT\n  1 / 0;\n", "0003_bad.sql, line 2", "division by zero"),
        ("CREATE TABLE headgate.x ();\nSELECT 1,\n  nix;\n", "0003_bad.sql, line 3", 'column "nix" does not exist'),
        ("CREATE TABLE headgate.x ();\n\n\nCREATE TABEL y;", "0003_bad.sql, line 4", "syntax error"),
        ("CREATE TABLE unqualified ();", "0003_bad.sql, line 1", "no schema has been selected"),
        ("CREATE TABLE headgate.x ();\n-- include: functions/f_v1.sql\n", "functions/f_v1.sql, line 3", "syntax error"),
        ("INSERT INTO headgate.one VALUES ('a');", "0003_bad.sql, line 1", "invalid input syntax"),
        (
            "CREATE UNIQUE INDEX ON headgate.one ((n > 0));",
            "0003_bad.sql, line 1",
            "; detail: Key ((n > 0))=(t) is dup",
        ),
        ("SELECT headgate.no_such();", "0003_bad.sql, line 1", "; hint: No function matches"),
    ],
)
async def test_a_step_that_fails_is_rolled_back_and_named_with_line_and_reason(
    link: Link, source: Source, text: str, place: str, words: str
) -> None:
    source.function(
        "f_v1.sql", "CREATE FUNCTION headgate.f() RETURNS int LANGUAGE plpgsql AS $$\nBEGIN\n  RETRUN 1;\nEND $$;\n"
    )
    source.write("0003_bad.sql", text)
    with pytest.raises(MigrationFailed) as caught:
        await migrate(link, source=source.root)
    assert place in str(caught.value)
    assert words in str(caught.value)
    assert "rolled back" in str(caught.value)
    assert isinstance(caught.value.__cause__, asyncpg.PostgresError)
    assert await rows(link) == [(1, "first", True), (2, "second", True)]
    assert await link.fetchval("SELECT to_regclass('headgate.x') IS NULL")


async def test_a_lock_that_is_not_free_is_given_up_naming_the_blocker(blank_database: str, source: Source) -> None:
    async with open_link(blank_database) as link, open_link(blank_database, "the nightly report") as blocker:
        await link.execute("CREATE SCHEMA headgate; CREATE TABLE headgate.one (n int)")
        source.write("0001_first.sql", "ALTER TABLE headgate.one ADD COLUMN o int;\n")
        source.write("0002_second.sql", "SELECT 1;")
        hold = blocker.transaction()
        await hold.start()
        await blocker.execute("SELECT count(*) FROM headgate.one")
        pid = blocker.get_server_pid()
        await asyncio.sleep(SHORT.total_seconds())  # it must be older than the timeout to be what blocked us
        events: list[Progress] = []
        with pytest.raises(MigrationFailed) as caught:
            await migrate(link, source=source.root, lock_timeout=SHORT, lock_attempts=2, progress=events.append)
        for part in ("0001_first.sql, line 1", f"pid {pid}", "the nightly report", "open for", "count(*)", "2 waits"):
            assert part in str(caught.value)
        assert [event.phase for event in events].count(Phase.STEPPED_BACK) == 1
        await hold.rollback()
        assert len(await migrate(link, source=source.root, lock_timeout=SHORT)) == 2


async def test_a_short_blocker_only_delays(blank_database: str, source: Source) -> None:
    async with open_link(blank_database) as link, open_link(blank_database) as blocker:
        await migrate(link, source=source.root)
        source.write("0003_third.sql", "ALTER TABLE headgate.one ADD COLUMN o int;\n")
        hold = blocker.transaction()
        await hold.start()
        await blocker.execute("SELECT count(*) FROM headgate.one")
        stepped_back = asyncio.Event()

        def report(event: Progress) -> None:
            if event.phase is Phase.STEPPED_BACK:
                stepped_back.set()

        run = asyncio.create_task(migrate(link, source=source.root, lock_timeout=SHORT, progress=report))
        await stepped_back.wait()
        await hold.rollback()
        assert [m.number for m in await run] == [3]


# ---------------------------------------------------------------- refusals


async def test_an_edited_file_is_refused_by_name(link: Link, source: Source) -> None:
    await migrate(link, source=source.root)
    source.write("0001_first.sql", "CREATE TABLE headgate.one (n bigint);\n")
    source.write("0003_third.sql", "CREATE TABLE headgate.three ();")
    for refused in (check_schema(link, source=source.root), migrate(link, source=source.root)):
        with pytest.raises(MigrationFailed, match=r"0001_first\.sql was changed after it was applied.*new migration"):
            await refused
    assert (await plan(link, source=source.root)).problems
    assert len(await rows(link)) == 2


async def test_a_database_without_our_schema_needs_a_migration(link: Link, source: Source) -> None:
    with pytest.raises(SchemaMismatch, match="no headgate schema yet: run `headgate migrate`"):
        await check_schema(link, source=source.root)


async def test_an_older_database_needs_a_migration(link: Link, source: Source) -> None:
    await migrate(link, source=source.root)
    source.write("0003_third.sql", "CREATE TABLE headgate.three ();")
    source.write("0004_fourth.sql", "CREATE TABLE headgate.four ();")
    with pytest.raises(SchemaMismatch, match="at migration 2, this release needs 4: run `headgate migrate`"):
        await check_schema(link, source=source.root)


async def newer_by_two(link: Link, source: Source, *headers: str) -> None:
    """Migrate with a release that knows two steps more, then go back to the one that does not."""
    for number, header in enumerate(headers, start=3):
        source.write(f"{number:04}_newer.sql", f"{header}CREATE TABLE headgate.newer_{number} ();")
    await migrate(link, source=source.root)
    for number in range(3, 3 + len(headers)):
        (source.root / "migrations" / f"{number:04}_newer.sql").unlink()


async def test_a_newer_database_is_refused_with_what_to_upgrade_to(link: Link, source: Source) -> None:
    await newer_by_two(link, source, "", "")
    for refused in (check_schema(link, source=source.root), migrate(link, source=source.root)):
        with pytest.raises(SchemaMismatch, match=r"at migration 4 .*this release knows 2: upgrade headgate .*knows 4"):
            await refused


async def test_a_newer_database_that_says_it_is_compatible_is_accepted(link: Link, source: Source) -> None:
    await newer_by_two(link, source, "-- compatible with: 1\n", "-- What for.\n-- compatible with: 2\n")
    await check_schema(link, source=source.root)
    assert await migrate(link, source=source.root) == []


async def test_the_strictest_of_the_newer_steps_decides(link: Link, source: Source) -> None:
    await newer_by_two(link, source, "-- compatible with: 2\n", "-- compatible with: 3\n")
    with pytest.raises(SchemaMismatch, match="knows 3 or later"):
        await check_schema(link, source=source.root)


async def test_a_gap_in_the_database_is_refused(link: Link, source: Source) -> None:
    await migrate(link, source=source.root)
    await link.execute("DELETE FROM headgate.migrations WHERE number = 1")
    for refused in (check_schema(link, source=source.root), migrate(link, source=source.root)):
        with pytest.raises(SchemaMismatch, match="migration 1 is not in the database although 2 is"):
            await refused


async def test_a_role_without_the_right_to_create_gets_the_statement_that_grants_it(
    blank_database: str, source: Source
) -> None:
    async with open_link(blank_database) as link:
        await link.execute("CREATE ROLE migration_test_guest")
        try:
            await link.execute("SET ROLE migration_test_guest")
            with pytest.raises(MissingRights, match=r"GRANT CREATE ON DATABASE .* TO migration_test_guest;"):
                await migrate(link, source=source.root)
        finally:
            await link.execute("RESET ROLE")
            await link.execute("DROP ROLE migration_test_guest")
