"""Row-level security: a connection that works for one tenant finds no rows of another, whatever it asks (ADR 47)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from headgate.domain.bulk import Plan, Verb
from headgate.domain.errors import NotFound
from headgate.domain.filter_parser import parse
from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.domain.stats import Flows, window_of
from headgate.domain.topic_sets import TopicSet
from headgate.store import audit, bulk, diagnosis, reads, series, upkeep, verbs
from headgate.store.bulk_chunks import BulkChunks
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from headgate.store.listing import CHOOSE
from headgate.store.roles import TENANT, roles_due
from headgate.store.topics import TopicStore
from tests.support.explain import cost
from tests.support.queue import Queue, new_id
from tests.support.roles import owned_database

DEAD = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
TABLES = """
SELECT c.relname::text, c.relrowsecurity AND c.relforcerowsecurity,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
  FROM pg_class c
 WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1"""
OF_NO_TENANT = {
    *("arrivals_floor", "epoch_floors", "event_recording", "key_changes", "migrations", "retention", "retention_days"),
    "tenant_defaults",
    "instances",  # one row for a process; its summary names workers of all tenants, and is read by number
    "role_tenants",  # of roles that submit by SQL; no grant for connections of a tenant
}
FILLED = (
    "jobs",
    "archive",
    "job_events",
    "topics",
    "tenants",
    "audit",
    "job_tags",
    "schedules",
    "webhooks",
    "api_keys",
)
MORE = """
INSERT INTO headgate.schedules (tenant_no, name, topic_no, payload, kind, at, overlap, catch_up, catch_up_most,
                                created_at, changed_at)
SELECT t.tenant_no, 'nightly', t.topic_no, '', 0, now(), 0, 0, 1, now(), now() FROM headgate.topics t;
INSERT INTO headgate.webhooks (tenant_no, id, url, events, topics, patterns, created_at, created_by, changed_at,
                               changed_by)
SELECT tenant_no, gen_random_uuid(), 'https://example.com', 1, '{}', '{%}', now(), '', now(), '' FROM headgate.tenants;
INSERT INTO headgate.webhook_secrets (webhook_no, secret, created_at)
SELECT webhook_no, id, now() FROM headgate.webhooks;
INSERT INTO headgate.api_keys (id, tenant_no, name, digest, scopes, created_at, created_by)
SELECT 'abcdefg' || tenant_no % 10, tenant_no, 'k', sha256(name::bytea), '{read}', now(), '' FROM headgate.tenants;
INSERT INTO headgate.topic_rules (topic_no) SELECT topic_no FROM headgate.topics;
INSERT INTO headgate.audit (at, tenant_no, actor, verb, target)
SELECT now(), tenant_no, '', 'x', 'x' FROM headgate.tenants"""


class Stand:
    """Two tenants with the same kinds of rows, and the lanes of a server."""

    def __init__(self, store: DispatchStore, ours: Queue, theirs: Queue) -> None:
        self.store, self.ours, self.theirs = store, ours, theirs
        self.our_no = self.their_no = 0

    async def fill(self) -> None:
        for queue in (self.ours, self.theirs):
            (first, *_) = await queue.add(3, tags=["red"])
            claimed = await queue.claim(1)
            await queue.settle((claimed.ids[0], claimed.epochs[0], DEAD))
            assert first == claimed.ids[0]
        self.our_no, self.their_no = await self.ours.tenant_no(), await self.theirs.tenant_no()
        await self.ours.db.execute(MORE)


@pytest.fixture(params=["session", "pooler"])
async def stand(request: pytest.FixtureRequest, database: str, db: Connection) -> AsyncIterator[Stand]:
    store = DispatchStore(database, pooler=request.param == "pooler")
    made = Stand(store, Queue(db), Queue(db, tenant="other"))
    try:
        await made.fill()
        yield made
    finally:
        await store.close()


async def test_every_table_with_rows_of_tenants_has_a_policy_also_for_its_owner(db: Connection) -> None:
    assert {name for name, forced, _ in await db.fetch(TABLES) if not forced} == OF_NO_TENANT
    policies = await db.fetch(
        "SELECT tablename::text, roles::text[] FROM pg_policies "
        "WHERE schemaname = 'headgate' AND policyname = 'one_tenant'"
    )
    assert {name for name, _ in policies} == {name for name, forced, _ in await db.fetch(TABLES) if forced}
    assert {role for _, roles in policies for role in roles} == {TENANT}


async def test_a_read_without_its_tenant_condition_returns_nothing_of_another_tenant(stand: Stand) -> None:
    tables = [(name, columns) for name, forced, columns in await stand.ours.db.fetch(TABLES) if forced]
    for table in FILLED:
        rows = await stand.ours.db.fetch(f"SELECT DISTINCT tenant_no FROM headgate.{table}")
        assert {stand.our_no, stand.their_no} <= {row[0] for row in rows}, f"{table} has rows of both"
    for lane, tenant_no in product(("read", "list", "admin"), (stand.our_no, stand.their_no)):
        async with stand.store.as_tenant(lane, tenant_no) as db:
            for name, columns in tables:
                if "tenant_no" in columns:
                    seen = {row[0] for row in await db.fetch(f"SELECT DISTINCT tenant_no FROM headgate.{name}")}
                    assert seen <= {tenant_no, 0}, name
                    assert tenant_no in seen or name not in FILLED, name
            for child in ("topic_rules", "webhook_secrets"):
                assert await db.fetchval(f"SELECT count(*) FROM headgate.{child}") == 1


async def test_a_tenant_reads_of_what_concerns_all_only_verbs_that_are_for_it(stand: Stand) -> None:
    shown = {"pause", "resume", "set_retention", "set_tenant_defaults"}
    for verb in (*shown, "create_key", "revoke_session", "a_new_verb"):
        await audit.record(stand.ours.db, 0, actor="sys", verb=verb, target="x")
    async with stand.store.as_tenant("read", stand.our_no) as db:
        assert {row[0] for row in await db.fetch("SELECT verb FROM headgate.audit WHERE tenant_no = 0")} == shown


async def test_a_tenant_sees_when_a_server_was_running(stand: Stand) -> None:
    await upkeep.note_served(stand.ours.db)
    async with stand.store.as_tenant("read", stand.our_no) as db:
        found = await series.series(db, stand.our_no, window=window_of("7d"), topics=TopicSet.of("nothing"))
    assert found.intervals[-1].flows == Flows(), "an hour without jobs, not one that nothing is known of"


async def test_a_connection_without_a_tenant_sees_no_rows_of_any(stand: Stand) -> None:
    tables = [name for name, forced, _ in await stand.ours.db.fetch(TABLES) if forced]
    async with stand.store.as_tenant("read", stand.our_no):
        pass
    with pytest.raises(TypeError, match="name it"):
        stand.store.lane("read").use()
    async with stand.store.as_tenant("read", 0) as db:
        shared = {"audit": 0, "dispatch_control": 1, "retry_policies": 1}  # what concerns all tenants
        for name in tables:
            assert await db.fetchval(f"SELECT count(*) FROM headgate.{name}") == shared.get(name, 0), name
        await db.execute("SELECT set_config('headgate.tenant_no', '', false)")
        assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 0


async def test_a_write_without_its_tenant_condition_changes_nothing_of_another_tenant(stand: Stand) -> None:
    async with stand.store.as_tenant("admin", stand.our_no) as db:
        await db.execute("UPDATE headgate.jobs SET priority = 7")
        await db.execute("DELETE FROM headgate.job_tags")
        for statement in (
            f"INSERT INTO headgate.job_tags VALUES ({stand.their_no}, 'x', gen_random_uuid())",
            f"UPDATE headgate.schedules SET tenant_no = {stand.their_no}",
            "INSERT INTO headgate.dispatch_control (paused, paused_at) VALUES (true, now())",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"row.level security"):
                async with db.transaction():
                    await db.execute(statement)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):  # a day by its own name has no policy, and no grant
            async with db.transaction():
                await db.fetch(
                    await stand.ours.db.fetchval(
                        "SELECT format('SELECT FROM %s', inhrelid::regclass) FROM pg_inherits "
                        "WHERE inhparent = 'headgate.archive'::regclass LIMIT 1"
                    )
                )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with db.transaction():
                await db.fetchval("SELECT headgate.submit('mail', ''::bytea, tenant => 'other')")
    changed = await stand.ours.db.fetch("SELECT DISTINCT tenant_no FROM headgate.jobs WHERE priority = 7")
    assert [row[0] for row in changed] == [stand.our_no]
    left = await stand.ours.db.fetch("SELECT DISTINCT tenant_no FROM headgate.job_tags")
    assert [row[0] for row in left] == [stand.their_no]


async def test_a_verb_with_the_number_of_another_tenant_finds_nothing(stand: Stand) -> None:
    theirs = new_id()
    await stand.theirs.submit(stand.theirs.job(id=theirs))
    async with stand.store.as_tenant("admin", stand.our_no) as db:
        with pytest.raises(NotFound):
            await reads.get(db, stand.their_no, theirs)
        done = await verbs.cancel(db, stand.their_no, [theirs])
        assert not any(change.changed for change in done.values())
    assert (await reads.get(stand.ours.db, stand.their_no, theirs)).state.name == "PENDING"


async def test_a_chunk_of_a_bulk_operation_is_confined_to_its_tenant(stand: Stand) -> None:
    plan = Plan(verb=Verb.CANCEL, matching=parse("topic:mail"))
    await bulk.start(stand.ours.db, stand.ours.names, stand.our_no, new_id(), plan, who="ana")
    await stand.ours.db.execute(
        f"""CREATE FUNCTION public.check_role() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF current_user <> '{TENANT}' OR current_setting('headgate.tenant_no') <> OLD.tenant_no::text THEN
                    RAISE EXCEPTION 'as %', current_user;
                END IF;
                RETURN OLD;
            END $$;
            CREATE TRIGGER checked BEFORE DELETE ON headgate.jobs FOR EACH ROW EXECUTE FUNCTION public.check_role()"""
    )
    done = await BulkChunks(stand.store).run_chunk()
    assert done is not None
    assert (done.changed, done.error) == (2, "")


async def test_commits_of_a_confined_call_wait_for_the_disk_whatever_the_default_is(
    stand: Stand, database: str
) -> None:
    name = urlsplit(database).path[1:]
    await stand.ours.db.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    async with stand.store.as_tenant("admin", stand.our_no) as db:
        assert await db.fetchval("SELECT current_setting('synchronous_commit')") == "on"
        assert await db.fetchval("SELECT current_user") == TENANT


async def test_flushes_see_all_tenants(stand: Stand) -> None:
    for lane in ("submit", "claim", "settle", "tick", "upkeep"):
        async with stand.store.lane(lane).use() as db:
            assert await db.fetchval("SELECT count(DISTINCT tenant_no) FROM headgate.jobs") == 2


async def test_a_change_of_a_topic_hides_no_changes_of_other_tenants_from_the_server(stand: Stand) -> None:
    """A server asks what has changed since it last looked. On a connection of one tenant it sees only some of it."""
    await stand.store.refresh_names()
    theirs = await stand.theirs.db.fetchval("SELECT name FROM headgate.topics WHERE tenant_no = $1", stand.their_no)
    await stand.theirs.db.execute("UPDATE headgate.topics SET max_attempts = 3 WHERE tenant_no = $1", stand.their_no)
    await TopicStore(stand.store).set_topic(
        stand.ours.tenant, "mail", rules={"max_attempts": 5}, limits={}, actor="ana", reason=""
    )
    assert stand.store.names.known_topic_of(stand.our_no, "mail").rules.max_attempts == 5
    await stand.store.refresh_names()
    assert stand.store.names.known_topic_of(stand.their_no, theirs).rules.max_attempts == 3


async def test_a_call_for_the_tenant_of_the_call_before_costs_no_statement_more(database: str, db: Connection) -> None:
    store = DispatchStore(database)
    sent: list[str] = []
    try:
        async with store.as_tenant("read", 1) as link:
            link.add_query_logger(lambda record: sent.append(record.query))
        for tenant_no, statements in ((1, 1), (1, 1), (2, 2), (2, 1)):
            sent.clear()
            async with store.as_tenant("read", tenant_no) as link:
                await link.fetchval("SELECT 1")
            await asyncio.sleep(0)  # the driver calls loggers from the loop
            assert len(sent) == statements
    finally:
        await store.close()


async def test_a_walk_over_waiting_jobs_of_all_tenants_keeps_its_bound(stand: Stand) -> None:
    """Hidden by a policy, the jobs of others would not count, and a list of one tenant could read all of them."""
    walk = "SELECT ids, looked FROM headgate.first_live_v1($1, 'waiting', 10)"
    await stand.ours.db.execute("UPDATE headgate.jobs SET state = 2 WHERE tenant_no = $1", stand.their_no)
    await stand.ours.db.execute(
        "INSERT INTO headgate.jobs (id, rank_at, created_at, run_at, tenant_no, topic_no, rank_class, priority, "
        "max_attempts, policy_no, state, payload) SELECT gen_random_uuid(), 0, now(), now(), $1, 1, -1, 0, 1, 1, 2, '' "
        "FROM generate_series(1, 50)",
        stand.their_no,
    )
    async with stand.store.as_tenant("list", stand.our_no) as db:
        assert tuple(await db.fetchrow(walk, stand.our_no) or ()) == (None, 11)
        assert tuple(await db.fetchrow(walk, stand.their_no) or ()) == (None, 11), "nothing of another tenant"
    assert len((await stand.ours.db.fetchrow(walk, stand.their_no) or [()])[0]) == 11


async def test_a_page_of_a_list_reads_the_same_index_with_and_without_policies(stand: Stand) -> None:
    await stand.ours.add(300)
    await stand.theirs.add(300)
    await stand.ours.db.execute("ANALYZE headgate.jobs")
    arguments = (stand.our_no, new_id(), 50, "live", None, None, 0, None, None)
    await cost(stand.ours.db, CHOOSE, *arguments)  # it also reads the catalogue, the first time
    free = await cost(stand.ours.db, CHOOSE, *arguments)
    async with stand.store.as_tenant("list", stand.our_no) as db:
        await cost(db, CHOOSE, *arguments)
        confined = await cost(db, CHOOSE, *arguments)
        plan = "\n".join(
            row[0]
            for row in await db.fetch(
                "EXPLAIN SELECT id FROM headgate.jobs WHERE tenant_no = $1 AND id < $2 ORDER BY id DESC LIMIT 50",
                *arguments[:2],
            )
        )
    assert "jobs_pkey" in plan
    assert "Filter: (tenant_no" not in plan, "the policy is a condition of the index, or is asked once"
    assert confined.pages <= free.pages + 2


async def test_doctor_says_whether_row_level_security_is_in_force(blank_database: str) -> None:
    async def found(dsn: str) -> Any:
        link = await asyncpg.connect(dsn)
        try:
            return await diagnosis.check_tenants(link)
        finally:
            await link.close()

    async with owned_database(blank_database) as roles:
        assert (await found(roles.url(roles.runtime))).level == "ok"
        one = await found(roles.url(roles.owner))
        assert (one.level, one.fix) == ("warn", f"GRANT {TENANT} TO {roles.owner};")
        owner = await asyncpg.connect(roles.url(roles.owner))
        await owner.execute("DROP POLICY one_tenant ON headgate.jobs")
        one = await found(roles.url(roles.runtime))
        assert (one.level, one.fix) == ("warn", "headgate migrate")
        assert "no policy on jobs" in one.found
        assert await roles_due(owner)
        await owner.execute("SELECT headgate.grant_roles_v1()")
        assert not await roles_due(owner)
        await owner.close()
        assert (await found(roles.url(roles.runtime))).level == "ok"


async def test_an_owner_without_the_role_serves_without_the_second_wall(blank_database: str) -> None:
    async with owned_database(blank_database) as roles:
        for role, confined in ((roles.runtime, True), (roles.owner, False)):
            store = DispatchStore(roles.url(role))
            try:
                tenant_no = await store.tenant_no("acme")
                async with store.as_tenant("read", tenant_no) as db:
                    assert await db.fetchval("SELECT name FROM headgate.tenants") == "acme"
                assert store.confined is confined
            finally:
                await store.close()
