"""Checks of a database for `headgate doctor`: each is one function that reads, judges, and names the fix.

They change nothing. `pooling.py` has the check that needs connections of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from headgate.domain.diagnosis import Finding, fail, ok, skip, warn
from headgate.domain.errors import MissingRights
from headgate.domain.units import duration_text, size_text
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.migrate import plan
from headgate.store.preflight import OLDEST_SERVER, inspect
from headgate.store.roles import RUNTIME, TENANT, require_rights_to_serve
from headgate.store.upkeep import SNAPSHOT_IS_OLD

CLOCK_SAMPLES: Final = 5
CLOCK_WARN: Final = timedelta(seconds=1)
CLOCK_FAIL: Final = timedelta(minutes=5)
"""Tokens and certificates expire by the clock of this host, jobs are due by that of the database."""
SNAPSHOT_FAIL: Final = timedelta(hours=1)
SLOT_AGE_WARN: Final = 1_000_000
"""Transactions. A slot that no one reads keeps dead rows and WAL files."""
WRAPAROUND_WARN, WRAPAROUND_FAIL = 1_000_000_000, 1_800_000_000
"""Transactions since the oldest row that was not frozen. PostgreSQL stops taking writes at about 2.1 billion."""
DEAD_SHARE_WARN: Final = 0.5
DEAD_ROWS_WARN: Final = 100_000
_FIX_IN_TEXT: Final = re.compile(r"(.*) \((.*)\)", re.DOTALL)


async def check_version(db: Connection, *, title: str) -> Finding:
    """The database answers, and is new enough."""
    found = await inspect(db)
    text = f"PostgreSQL {found.server_version}, {title}"
    if found.server_version_num < OLDEST_SERVER:
        return fail("database", text, fix=f"upgrade PostgreSQL to {OLDEST_SERVER // 10_000} or newer")
    return ok("database", text)


async def check_durability(db: Connection, *, unsafe: bool) -> Finding:
    """What is acknowledged survives a crash: fsync, full_page_writes, synchronous_commit."""
    found = await inspect(db)
    if found.unfit:
        return fail("durability", "; ".join(found.unfit), fix="see the finding")
    if found.problems:
        texts, fixes = zip(*map(_with_fix, found.problems), strict=True)
        level = warn if unsafe else fail
        return level("durability", "; ".join(texts), fix="; ".join(dict.fromkeys(fixes)))
    if found.notes:
        texts, fixes = zip(*map(_with_fix, found.notes), strict=True)
        return warn("durability", "; ".join(texts), fix="; ".join(filter(None, fixes)) or "see the finding")
    return ok(
        "durability",
        f"fsync {found.fsync}, full_page_writes {found.full_page_writes}, "
        f"synchronous_commit {found.synchronous_commit_default}",
    )


def _with_fix(text: str) -> tuple[str, str]:
    """A text of preflight.py, apart from the statement at its end."""
    found = _FIX_IN_TEXT.fullmatch(text)
    return (found[1], found[2]) if found else (text, "")


# Without pg_read_all_stats, the states of standbys are null.
_STANDBYS: Final = """
SELECT current_setting('synchronous_standby_names'),
       count(*), count(r.sync_state), count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum'))
  FROM pg_catalog.pg_stat_replication r"""


async def check_standby(db: Connection) -> Finding:
    """A synchronous standby that is configured is connected; otherwise every commit waits for it."""
    with translating(writing=False):
        ((names, connected, visible, synchronous),) = await db.fetch(_STANDBYS)
    if names and connected > visible:
        return skip(
            "standby", f"synchronous_standby_names is {names}; this role cannot see which standbys are connected"
        )
    if names and not synchronous:
        return fail(
            "standby",
            f"synchronous_standby_names is {names}, and no such standby is connected: every commit waits for one",
            fix="start the standby, or: ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();",
        )
    if names:
        return ok("standby", f"{synchronous} synchronous standby connected ({names})")
    if connected:
        return warn(
            "standby",
            f"{connected} standby connected, none of them synchronous: a failover can lose acknowledged jobs",
            fix="ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf();",
        )
    return ok("standby", "no standby: jobs are as safe as the disk of this database")


async def check_clock(db: Connection, *, now: Callable[[], float]) -> Finding:
    """The clocks of this host and of the database agree. `now` is the wall clock in seconds."""
    best, apart = float("inf"), 0.0
    for _ in range(CLOCK_SAMPLES):
        before = now()
        with translating(writing=False):
            there = await db.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        after = now()
        if after - before < best:  # the shortest round trip has the smallest error
            best, apart = after - before, there - (before + after) / 2
    text = f"the clock of the database is {abs(apart):.3f} s {'ahead' if apart > 0 else 'behind'} (± {best / 2:.3f} s)"
    fix = "synchronise both hosts by NTP: systemctl enable --now chrony"
    if abs(apart) - best / 2 > CLOCK_FAIL.total_seconds():
        return fail("clock", text, fix=fix)
    if abs(apart) - best / 2 > CLOCK_WARN.total_seconds():
        return warn("clock", text, fix=fix)
    return ok("clock", text)


async def check_migrations(db: Connection) -> Finding:
    """The schema is the one of this release."""
    try:
        with translating(writing=False):
            found = await plan(db)
    except MissingRights as error:
        return fail("migrations", str(error), fix="see the finding")
    if found.problems:
        return fail("migrations", "; ".join(map(str, found.problems)), fix="see docs/operations/upgrading.md")
    if found.pending:
        state = "no headgate schema yet" if not found.applied else f"at migration {found.version} of {found.known}"
        return fail("migrations", state, fix="headgate migrate")
    return ok("migrations", f"at migration {found.version}")


# By oid: names of a schema that this user may not use cannot be looked up.
_ROLE: Final = """
SELECT quote_ident(current_user), n.oid IS NOT NULL, u.rolsuper, pg_has_role(n.nspowner, 'USAGE'),
       pg_has_role('pg_read_all_stats', 'USAGE'), to_regrole($1) IS NOT NULL
  FROM pg_catalog.pg_roles u LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'headgate'
 WHERE u.rolname = current_user"""


async def check_role(db: Connection) -> Finding:
    """The role of servers may use the tables, and no more than that (ADR 26)."""
    with translating(writing=False):
        ((role, exists, superuser, owner, statistics, has_group),) = await db.fetch(_ROLE, RUNTIME)
    if not exists:
        return skip("role", f"role {role}; there is no schema yet")
    try:
        await require_rights_to_serve(db)
    except MissingRights as error:
        return fail("role", str(error), fix=f"GRANT {RUNTIME} TO {role};")
    if superuser or owner:
        what = "is a superuser" if superuser else "owns the schema"
        group = "" if has_group else f"CREATE ROLE {RUNTIME} NOLOGIN; -- then: headgate migrate; then "
        return warn(
            "role",
            f"role {role} {what}: who gets hold of a connection of a server can change or drop the tables",
            fix=f"{group}CREATE ROLE headgate_server LOGIN PASSWORD '…' IN ROLE {RUNTIME}; use it in the database URL",
        )
    if not statistics:
        return warn(
            "role",
            f"role {role} cannot see sessions of others: a server cannot name the one that keeps dead rows",
            fix=f"GRANT pg_read_all_stats TO {RUNTIME};",
        )
    return ok("role", f"role {role} may use the tables, and cannot change the schema")


# What row_security_v1 makes: by name, since pg_policies shows conditions to their owner only.
_TENANTS: Final = """
SELECT n.oid IS NOT NULL, to_regrole($1) IS NOT NULL, has_schema_privilege(to_regrole($1)::oid, n.oid, 'USAGE'),
       pg_has_role(to_regrole($1)::oid,
                   CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END),
       quote_ident(current_user), quote_ident(pg_get_userbyid(n.nspowner)),
       (SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_catalog.pg_class c
         WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
           AND c.relname <> 'retention_days'
           AND EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_no')
           AND NOT (c.relrowsecurity AND c.relforcerowsecurity
                    AND EXISTS (SELECT FROM pg_catalog.pg_policy p
                                 WHERE p.polrelid = c.oid AND p.polname = 'one_tenant'
                                   AND p.polroles = ARRAY[to_regrole($1)::oid])))
  FROM (SELECT) AS always LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'headgate'"""


async def check_tenants(db: Connection) -> Finding:
    """Row-level security separates tenants on the connections that list, read and operate (ADR 47)."""
    with translating(writing=False):
        ((exists, made, granted, member, role, owner, open_tables),) = await db.fetch(_TENANTS, TENANT)
    if not exists:
        return skip("tenants", "there is no schema yet")
    without = "tenants are separated by the conditions of statements alone"
    if not made:
        group = RUNTIME if role != owner else owner
        return warn(
            "tenants",
            f"there is no role {TENANT}: {without}",
            fix=f"CREATE ROLE {TENANT} NOLOGIN; GRANT {TENANT} TO {group}; -- then: headgate migrate",
        )
    if not granted or open_tables:
        where = f" (no policy on {open_tables})" if open_tables else ""
        return warn("tenants", f"row-level security is not in force{where}: {without}", fix="headgate migrate")
    if not member:
        return warn("tenants", f"role {role} may not use {TENANT}: {without}", fix=f"GRANT {TENANT} TO {role};")
    return ok("tenants", "row-level security separates tenants, besides the conditions of statements")


# The views of sessions show those of other roles in part; this counter is visible to all.
_CONNECTIONS: Final = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0),
       (SELECT coalesce(sum(s.numbackends), 0)::int FROM pg_catalog.pg_stat_database s),
       nullif(u.rolconnlimit, -1), nullif(d.datconnlimit, -1), quote_ident(u.rolname), quote_ident(d.datname)
  FROM pg_catalog.pg_roles u, pg_catalog.pg_database d
 WHERE u.rolname = current_user AND d.datname = current_database()"""


async def check_connections(db: Connection, *, needed: int) -> Finding:
    """The database accepts as many connections as the server opens."""
    with translating(writing=False):
        ((most, used, of_role, of_database, role, database),) = await db.fetch(_CONNECTIONS)
    text = f"this server opens up to {needed} connections; {used} of {most} are in use"
    more = f"ALTER SYSTEM SET max_connections = {most + needed + 50}; then restart PostgreSQL; or use a pooler"
    if of_role is not None and of_role < needed:
        return fail(
            "connections",
            f"{text}; role {role} may have {of_role}",
            fix=f"ALTER ROLE {role} CONNECTION LIMIT {needed * 2};",
        )
    if of_database is not None and of_database < needed:
        return fail(
            "connections",
            f"{text}; database {database} may have {of_database}",
            fix=f"ALTER DATABASE {database} CONNECTION LIMIT {needed * 2};",
        )
    if needed > most:
        return fail("connections", text, fix=more)
    if needed > most - used + 1:  # one of them is ours
        return warn("connections", f"{text}: another server would not start", fix=more)
    return ok("connections", text)


_VACUUM: Final = """
SELECT current_setting('autovacuum')::bool, current_setting('track_counts')::bool,
       (SELECT age(d.datfrozenxid) FROM pg_catalog.pg_database d WHERE d.datname = current_database()),
       (SELECT string_agg(format('headgate.%I', c.relname), ', ' ORDER BY c.relname) FROM pg_catalog.pg_class c
         WHERE c.relnamespace = n.oid AND c.reloptions::text ~ 'autovacuum_enabled=(false|off|0)'),
       j.n_dead_tup, j.n_live_tup
  FROM (SELECT) AS always LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'headgate'
  LEFT JOIN pg_catalog.pg_stat_all_tables j ON j.schemaname = 'headgate' AND j.relname = 'jobs'"""


async def check_vacuum(db: Connection) -> Finding:
    """Dead rows are removed, and transaction numbers do not run out."""
    with translating(writing=False):
        ((on, counts, age, tables, dead, live),) = await db.fetch(_VACUUM)
    for setting, value in (("autovacuum", on), ("track_counts", counts)):
        if not value:
            return fail(
                "vacuum",
                f"{setting} is off: dead rows are not removed, and every claim becomes slower",
                fix=f"ALTER SYSTEM SET {setting} = on; SELECT pg_reload_conf();",
            )
    if tables:
        first = tables.partition(",")[0]
        return fail("vacuum", f"autovacuum is off for {tables}", fix=f"ALTER TABLE {first} RESET (autovacuum_enabled);")
    freeze = f"{age:,} transactions since the oldest row that is not frozen"
    if age > WRAPAROUND_WARN:
        level = fail if age > WRAPAROUND_FAIL else warn
        return level("vacuum", f"{freeze}: writes stop at 2,100,000,000", fix="VACUUM (FREEZE);")
    if dead and dead > DEAD_ROWS_WARN and dead > DEAD_SHARE_WARN * (dead + live):
        return warn(
            "vacuum",
            f"headgate.jobs has {dead:,} dead and {live:,} live rows",
            fix="look for what holds them (the check `snapshots`), then: VACUUM (TRUNCATE false) headgate.jobs;",
        )
    return ok("vacuum", f"autovacuum on; {freeze}")


# Of other roles' sessions the times are shown only to a role with pg_read_all_stats.
_SNAPSHOTS: Final = """
SELECT format('session %s (%s, user %s)', a.pid, coalesce(nullif(a.application_name, ''), 'no application name'),
              a.usename),
       now() - coalesce(a.xact_start, a.query_start), format('SELECT pg_terminate_backend(%s);', a.pid)
  FROM pg_catalog.pg_stat_activity a
 WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.backend_type = 'client backend'
   AND a.datname = current_database() AND a.pid <> pg_catalog.pg_backend_pid()
   AND now() - coalesce(a.xact_start, a.query_start) >= $1
 UNION ALL
SELECT format('prepared transaction %L', p.gid), now() - p.prepared, format('ROLLBACK PREPARED %L;', p.gid)
  FROM pg_catalog.pg_prepared_xacts p WHERE p.database = current_database() AND now() - p.prepared >= $1
 ORDER BY 2 DESC LIMIT 1"""
_SLOTS: Final = """
SELECT quote_literal(s.slot_name), greatest(age(s.xmin), age(s.catalog_xmin))
  FROM pg_catalog.pg_replication_slots s
 WHERE NOT s.active AND greatest(age(s.xmin), age(s.catalog_xmin)) >= $1
 ORDER BY 2 DESC LIMIT 1"""


async def check_snapshots(
    db: Connection, *, longer_than: timedelta = SNAPSHOT_IS_OLD, slot_age: int = SLOT_AGE_WARN
) -> Finding:
    """No transaction, and no replication slot, keeps dead rows from being removed."""
    with translating(writing=False):
        held = await db.fetch(_SNAPSHOTS, longer_than)
        slots = await db.fetch(_SLOTS, slot_age)
    for who, age, end in held:
        text = f"{who} has had a transaction open for {_rounded(age)}: dead rows of since then cannot be removed"
        return (fail if age >= SNAPSHOT_FAIL else warn)("snapshots", text, fix=end)
    for name, age in slots:
        return warn(
            "snapshots",
            f"replication slot {name} is not used, and keeps the dead rows of {age:,} transactions",
            fix=f"connect its reader, or: SELECT pg_drop_replication_slot({name});",
        )
    return ok("snapshots", f"no transaction is older than {duration_text(longer_than)}")


def _rounded(age: timedelta) -> str:
    return duration_text(timedelta(seconds=int(age.total_seconds())))


_SIZE: Final = """
SELECT pg_catalog.pg_database_size(current_database()),
       (SELECT s.setting FROM pg_catalog.pg_settings s WHERE s.name = 'data_directory')"""


async def size_and_folder(db: Connection) -> tuple[str, str | None]:
    """The size of the database, and the folder of its files where this role may know it."""
    with translating(writing=False):
        ((size, folder),) = await db.fetch(_SIZE)
    return size_text(size - size % (1 << 20)) if size >= 1 << 20 else size_text(size), folder
