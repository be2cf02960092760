"""Roles of the database: what owner, servers, readers and applications may do, each logged in as itself (ADR 26)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from headgate import embedded
from headgate.cli import main
from headgate.cli.migrate import advice
from headgate.dispatch.listener import APART_SECONDS, PacedWakes
from headgate.domain.errors import MissingRights
from headgate.domain.outcomes import Completed
from headgate.store import partitions, roles, upkeep
from headgate.store.connect import Connection, connect
from headgate.store.migrate import check_schema, migrate
from headgate.store.roles import GROUPS, RUNTIME, missing_roles, roles_due
from tests.support import store_calls
from tests.support.database import Server
from tests.support.dispatch_waits import soon
from tests.support.dispatch_workers import completing
from tests.support.dispatching import Instance
from tests.support.queue import Queue
from tests.support.roles import Roles, owned_database, url_as

DENIED = asyncpg.InsufficientPrivilegeError
OLD_DAY = """
CREATE TABLE headgate.archive_20200102 (LIKE headgate.archive INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
INSERT INTO headgate.archive_20200102 (id, created_at, run_at, finished_at, tenant_no, topic_no, priority, attempt,
                                       max_attempts, epoch, policy_no, state, flags)
SELECT gen_random_uuid(), now(), now(), '2020-01-02 05:00+00', 1, 1, 0, 1, 1, 1, 1, 5, 0 FROM generate_series(1, 100);
ALTER TABLE headgate.archive ATTACH PARTITION headgate.archive_20200102 FOR VALUES FROM ('2020-01-02') TO ('2020-01-03')
"""


@pytest.fixture
async def owned(blank_database: str, template: str) -> AsyncIterator[Roles]:
    """`template` has made the two group roles."""
    async with owned_database(blank_database) as made:
        yield made


@asynccontextmanager
async def logged_in(owned: Roles, role: str) -> AsyncIterator[Connection]:
    connection = await connect(owned.url(role), application_name="headgate test")
    try:
        yield connection
    finally:
        await connection.close()


async def test_public_may_do_nothing(db: Connection) -> None:
    rights = "SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER"
    ours = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind"
    functions = "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'headgate'::regnamespace"
    for question in (
        f"{functions} AND has_function_privilege('public', p.oid, 'EXECUTE')",
        f"{ours} IN ('r', 'p', 'v') AND has_table_privilege('public', c.oid, '{rights}')",
        # CASE: else it may be asked of a table first, which is an error.
        f"{ours} = 'S' AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege('public', c.oid, 'USAGE, SELECT') END",
        "SELECT 'the schema' WHERE has_schema_privilege('public', 'headgate', 'USAGE, CREATE')",
    ):
        assert [row[0] for row in await db.fetch(question)] == []


async def test_every_function_with_its_owners_rights_is_known_and_pins_its_search_path(db: Connection) -> None:
    found = await db.fetch(
        "SELECT p.proname::text, p.proconfig::text[] FROM pg_proc p "
        "WHERE p.pronamespace = 'headgate'::regnamespace AND p.prosecdef"
    )
    assert {row[0] for row in found} == {
        "submit",
        "submit_returning",
        "ensure_partitions_v1",
        "detach_day_v1",
        "retire_day_v1",
        "first_live_v1",
    }
    assert all("search_path=pg_catalog, pg_temp" in (row[1] or []) for row in found)


async def test_a_role_of_servers_does_what_servers_do(owned: Roles) -> None:
    async with logged_in(owned, owned.runtime) as db:
        await check_schema(db)
        queue = Queue(db)
        ids = await queue.add(3, "mail")
        claimed = await queue.claim(3, "mail")
        assert list(claimed.ids) == ids
        await queue.settle(*((job, epoch, Completed()) for job, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
        assert await db.fetchval("SELECT count(*) FROM headgate.archive") == 3


async def test_a_role_of_servers_makes_and_drops_days_it_does_not_own(owned: Roles) -> None:
    async with logged_in(owned, owned.owner) as owner:
        await owner.execute(OLD_DAY)
    async with logged_in(owned, owned.runtime) as db:
        made = await partitions.ensure_partitions(db, days_ahead=9)
        assert len(made) == 2 * 2, "those of a week ahead are there"
        for name in made:  # by their own names, as retention reads them
            assert await db.fetchval(f"SELECT count(*) FROM headgate.{name}") == 0
        dropped = await store_calls.drop_expired(db, keep=timedelta(days=30))
        assert dropped == ["archive_20200102"]
        assert await db.fetchval("SELECT to_regclass('headgate.archive_20200102')") is None


async def test_a_day_with_a_reader_is_dropped_later_and_delays_no_one_for_long(owned: Roles) -> None:
    async with logged_in(owned, owned.owner) as owner, logged_in(owned, owned.runtime) as db:
        await owner.execute(OLD_DAY)
        async with owner.transaction():
            await owner.fetch("SELECT id FROM headgate.archive LIMIT 1")
            assert await store_calls.drop_expired(db, keep=timedelta(days=30)) == []
        assert await store_calls.drop_expired(db, keep=timedelta(days=30)) == ["archive_20200102"]


async def test_a_role_of_servers_may_vacuum(owned: Roles) -> None:
    async with logged_in(owned, owned.runtime) as db:
        words: list[str] = []
        db.add_log_listener(lambda _, message: words.append(str(message)))
        assert all(bloat.vacuumed for bloat in await upkeep.vacuum_hot_tables(db, dead_rows=0))
        permitted = db.get_server_version() >= (17,)  # before, only owners may: PostgreSQL warns, and continues
        assert not words if permitted else all("permission denied" in one or "skipping" in one for one in words)
        assert bool(words) is not permitted


async def test_a_role_of_servers_may_change_neither_the_schema_nor_who_may_submit(owned: Roles) -> None:
    async with logged_in(owned, owned.runtime) as db:
        for statement in (
            "CREATE TABLE headgate.mine (n int)",
            "CREATE FUNCTION headgate.submit(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "DROP TABLE headgate.jobs",
            "TRUNCATE headgate.jobs",
            "ALTER TABLE headgate.jobs ADD COLUMN mine int",
            "CREATE TRIGGER t AFTER INSERT ON headgate.jobs FOR EACH ROW EXECUTE FUNCTION headgate.nothing()",
            "DELETE FROM headgate.migrations",
            f"INSERT INTO headgate.role_tenants VALUES ('{owned.app}', 'acme')",
            f"SELECT headgate.allow_submit('{owned.app}', 'acme')",
            "SELECT headgate.grant_roles_v1()",
            f"SET ROLE {owned.owner}",
        ):
            with pytest.raises(DENIED):
                await db.execute(statement)


async def test_a_reader_reads_everything_but_digests_of_keys_and_changes_nothing(owned: Roles) -> None:
    async with logged_in(owned, owned.runtime) as server:
        await Queue(server).add(2, "mail")
        await partitions.ensure_partitions(server, days_ahead=8)
    async with logged_in(owned, owned.reader) as db:
        assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 2
        tables = await db.fetch(
            "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'headgate'::regnamespace "
            "AND c.relkind IN ('r', 'p', 'v')"
        )
        assert len(tables) > 30
        for (table,) in tables:
            if table in ("headgate.webhook_secrets", "headgate.api_keys", "headgate.web_sessions"):  # for servers alone
                with pytest.raises(DENIED):
                    await db.execute(f"SELECT FROM {table} LIMIT 1")
            else:
                await db.execute(f"SELECT FROM {table} LIMIT 1")
            with pytest.raises(DENIED):
                await db.execute(f"DELETE FROM {table}")
        with pytest.raises(DENIED):
            await db.execute("SELECT digest FROM headgate.api_keys")
        assert (
            await db.fetch(
                "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'headgate'::regnamespace "
                "AND has_function_privilege(p.oid, 'EXECUTE')"
            )
            == []
        )


async def test_an_application_submits_for_its_own_tenants_only(owned: Roles) -> None:
    async with logged_in(owned, owned.owner) as owner:
        await owner.execute(f"SELECT headgate.allow_submit('{owned.app}', 'acme')")
        async with logged_in(owned, owned.app) as db:
            assert await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb, tenant => 'acme')")
            for tenant in ("other", "default"):
                for body in ("'{}'::jsonb", "''::bytea"):
                    words = f'role "{owned.app}" may not submit for tenant "{tenant}"'
                    with pytest.raises(DENIED, match=words) as told:
                        await db.fetchval(f"SELECT headgate.submit('mail', {body}, tenant => '{tenant}')")
                    assert "headgate code: permission_denied" in str(told.value.hint)
        assert await owner.fetchval("SELECT array_agg(name) FROM headgate.tenants") == ["acme"], "none for the others"
        await owner.execute(f"SELECT headgate.allow_submit('{owned.app}', 'beta')")
        async with logged_in(owned, owned.app) as db:
            assert await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb, tenant => 'beta')")
            await owner.execute(f"SELECT headgate.disallow_submit('{owned.app}', 'acme')")
            with pytest.raises(DENIED, match="may not submit"):
                await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb, tenant => 'acme')")
            await owner.execute(f"SELECT headgate.disallow_submit('{owned.app}', 'beta')")
            with pytest.raises(DENIED, match="permission denied for function submit"):
                await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb, tenant => 'beta')")


async def test_members_have_their_groups_tenants_and_a_role_that_was_set_has_only_its_own(owned: Roles) -> None:
    submit = "SELECT headgate.submit('mail', '{}'::jsonb, tenant => 'acme')"
    async with logged_in(owned, owned.owner) as owner, logged_in(owned, owned.member) as db:
        await owner.execute(f"SELECT headgate.allow_submit('{owned.app}', 'acme')")
        assert await db.fetchval(submit)
        await owner.execute(f"SELECT headgate.allow_submit('{owned.member}', 'beta')")
        assert await db.fetchval(submit.replace("acme", "beta"))
        async with db.transaction():
            await db.execute(f"SET LOCAL ROLE {owned.app}")
            assert await db.fetchval(submit)
            with pytest.raises(DENIED, match=f'role "{owned.app}" may not submit for tenant "beta"'):
                async with db.transaction():
                    await db.fetchval(submit.replace("acme", "beta"))
    async with logged_in(owned, owned.runtime) as server:
        assert await server.fetchval(submit), "who may write the tables may submit for all tenants"


async def test_a_notification_from_anyone_is_a_hint_and_a_flood_of_them_costs_little(owned: Roles) -> None:
    """No tick helps: the next one is an hour away."""
    async with (
        logged_in(owned, owned.owner) as owner,
        logged_in(owned, owned.app) as stranger,
        Instance(owned.url(owned.runtime)) as one,
    ):
        paced = PacedWakes(one.wakes.follow, one.demands.wake_all)
        one.start("words", one.store.listen(paced.on_notify))
        worker = await one.worker(slots=1, handler=completing())
        await soon(lambda: one.store._listener is not None and one.store.got, "it listens, and has found nothing")
        (topic_no,) = await one.topic_nos("mail")
        for junk in ("", "mail", "-", "9" * 7_999, "٣", "1;DROP", "\u202e"):
            await stranger.execute("SELECT pg_notify('headgate_topics', $1)", junk)
        before, began = one.store.calls["claim"], time.monotonic()
        # No two alike, or PostgreSQL would send one.
        flood = "SELECT pg_notify('headgate_topics', $1 || repeat(',', n)) FROM generate_series(1, 3000) AS n"
        await stranger.execute(flood, str(topic_no))
        job = await owner.fetchval("SELECT headgate.submit('mail', 'x'::bytea, tenant => $1)", one.tenant)
        await stranger.execute("SELECT pg_notify('headgate_topics', $1)", str(topic_no))
        await soon(lambda: worker.tracker.times[job] == 1, "the last hint was followed")
        rounds = 2 + (time.monotonic() - began) / APART_SECONDS
        assert one.store.calls["claim"] - before <= 2 * rounds  # a round that found a job looks once more


async def test_roles_are_granted_what_a_later_migration_brings(owned: Roles) -> None:
    async with logged_in(owned, owned.owner) as owner, logged_in(owned, owned.runtime) as db:
        assert not await roles_due(owner)
        await owner.execute("CREATE FUNCTION headgate.new_v1() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        assert await roles_due(owner)
        assert not await roles_due(db), "it is not the owner's"
        functions = "SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p WHERE p.proname LIKE 'submit%'"
        await owner.execute(f"SELECT headgate.allow_submit('{owned.app}', 'acme')")
        await owner.execute(f"REVOKE ALL ON FUNCTION {await owner.fetchval(functions)} FROM {owned.app}")
        await migrate(owner)
        async with logged_in(owned, owned.app) as app:
            assert await app.fetchval("SELECT headgate.submit('mail', '{}'::jsonb, tenant => 'acme')")
        assert not await roles_due(owner)
        assert not await owner.fetchval("SELECT has_function_privilege('public', 'headgate.new_v1()', 'EXECUTE')")
        assert await db.fetchval("SELECT headgate.new_v1()") == 1


async def test_a_right_that_is_missing_is_named_with_the_statement_that_grants_it(
    owned: Roles, postgres: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = postgres.create()
    try:
        url = url_as(postgres.dsn_of(empty), owned.app)

        async def migrated(by: str, *options: str) -> str:
            assert await asyncio.to_thread(main, ["migrate", *options, "--database-url", by]) == 78
            return capsys.readouterr().err

        told = await migrated(url)
        grant = f"GRANT CREATE ON DATABASE {empty} TO {owned.app};"
        assert told.rstrip().endswith(f"run: {grant}")
        admin = await connect(postgres.dsn_of(empty), application_name="headgate test")
        await admin.execute(grant)
        await admin.close()
        assert await asyncio.to_thread(main, ["migrate", "--database-url", url]) == 0
        capsys.readouterr()
    finally:
        postgres.drop(empty)
    for options in ((), ("--plan",)):
        told = await migrated(owned.url(owned.app), *options)
        assert f"belongs to role {owned.owner}, and {owned.app} cannot change it" in told
    for role in (owned.app, owned.reader):
        async with logged_in(owned, role) as db:
            with pytest.raises(MissingRights, match=f"GRANT headgate_runtime TO {role};"):
                await check_schema(db)


async def test_an_owner_without_the_right_to_create_roles_migrates_and_gets_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with await asyncio.to_thread(embedded.start, tmp_path / "data") as cluster:
        admin = await connect(cluster.dsn(), application_name="headgate test")
        try:
            await admin.execute("CREATE ROLE plain LOGIN")
            await admin.execute("CREATE DATABASE plain OWNER plain")
            url = cluster.dsn("plain", role="plain")
            line = ["migrate", "--database-url", url]
            assert await asyncio.to_thread(main, line) == 0
            out = capsys.readouterr().out
            statements = [text for name in GROUPS for text in roles.STATEMENTS[name]]
            assert [text.strip() for text in out.splitlines() if text.startswith("  ")] == statements
            owner = await connect(url, application_name="headgate test")
            await Queue(owner).add(1)
            assert await missing_roles(owner) == statements
            assert not await owner.fetchval(
                "SELECT has_function_privilege('public', p.oid, 'EXECUTE') FROM pg_proc p "
                "WHERE p.pronamespace = 'headgate'::regnamespace ORDER BY 1 DESC LIMIT 1"
            )
            for statement in statements:
                await admin.execute(statement)
            assert await asyncio.to_thread(main, line) == 0
            assert "roles:" not in capsys.readouterr().out
            assert await owner.fetchval(f"SELECT has_table_privilege('{RUNTIME}', 'headgate.jobs', 'UPDATE')")
            assert advice(await missing_roles(owner)) == []
            await owner.close()
        finally:
            await admin.close()
