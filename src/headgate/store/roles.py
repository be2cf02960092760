"""Roles of the database: the groups that servers and readers are members of, and what they are granted (ADR 26); and
the role that a connection has while it works for one tenant (ADR 47).

Roles belong to the whole PostgreSQL server, so an owner of one database may not be allowed to make them. Then
everything works with one role, the owner, and `headgate migrate` prints what an administrator has to run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from headgate.domain.errors import MissingRights, StoreError
from headgate.store.connect import Connection, connect
from headgate.store.errors import translating

OWNER: Final = "headgate_owner"
"""Of the embedded PostgreSQL. Elsewhere the owner is the role that runs the migrations."""
RUNTIME: Final = "headgate_runtime"
READER: Final = "headgate_reader"
TENANT: Final = "headgate_tenant"
GROUPS: Final = [RUNTIME, READER, TENANT]
STATEMENTS: Final = {
    RUNTIME: (f"CREATE ROLE {RUNTIME} NOLOGIN;", f"GRANT pg_read_all_stats TO {RUNTIME};"),
    READER: (f"CREATE ROLE {READER} NOLOGIN;",),
    TENANT: (f"CREATE ROLE {TENANT} NOLOGIN;", f"GRANT {TENANT} TO {RUNTIME};"),
}
"""What an administrator runs once for a PostgreSQL server. With the statistics of others, a server can name the session
that keeps dead rows from being removed; without them everything else works."""

_MISSING: Final = "SELECT name FROM unnest($1::text[]) AS name WHERE to_regrole(name) IS NULL"
_MAY_CREATE: Final = "SELECT rolsuper OR rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = current_user"
# Another runner, of another database perhaps, may make them at the same moment.
_CREATE: Final = """
DO $$
DECLARE
    v_name text;
BEGIN
    FOREACH v_name IN ARRAY ARRAY['headgate_runtime', 'headgate_reader', 'headgate_tenant'] LOOP
        IF to_regrole(v_name) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', v_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    IF NOT pg_has_role('headgate_runtime', 'pg_read_all_stats', 'MEMBER')
       AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        BEGIN
            GRANT pg_read_all_stats TO headgate_runtime;
        EXCEPTION WHEN unique_violation OR internal_error THEN      -- the other runner did it
            NULL;
        END;
    END IF;
    -- To servers with a role of their own, and to the owner, as which a server may log in.
    FOREACH v_name IN ARRAY ARRAY['headgate_runtime', current_user::text] LOOP
        IF NOT pg_has_role(v_name, 'headgate_tenant', 'MEMBER') THEN
            BEGIN
                EXECUTE format('GRANT headgate_tenant TO %I', v_name);
            EXCEPTION WHEN unique_violation OR internal_error OR insufficient_privilege THEN
                NULL;       -- the other runner did it; or an administrator made the role, who grants it
            END;
        END IF;
    END LOOP;
END $$"""
# By oid: names of a schema that this user may not use cannot be looked up.
_RIGHTS: Final = """
SELECT quote_ident(current_user), quote_ident(current_database()), n.oid IS NOT NULL,
       has_database_privilege(current_database(), 'CREATE'), quote_ident(pg_get_userbyid(n.nspowner)),
       pg_has_role(n.nspowner, 'USAGE'),
       has_schema_privilege(n.oid, 'USAGE') AND (SELECT coalesce(bool_and(has_table_privilege(c.oid, 'INSERT')), true)
                                                   FROM pg_catalog.pg_class c
                                                  WHERE c.relnamespace = n.oid AND c.relname = 'jobs')
  FROM (SELECT) AS always LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'headgate'"""
_OWNS: Final = """
SELECT to_regprocedure('headgate.grant_roles_v1()') IS NOT NULL AND pg_has_role(n.nspowner, 'USAGE')
  FROM pg_catalog.pg_namespace n WHERE n.nspname = 'headgate'"""
# A role to be made, or one that was made since; a function that anyone may call, as every new one; or a new table.
_DUE: Final = """
SELECT EXISTS (SELECT FROM unnest($1::text[]) AS r (name)
                WHERE CASE WHEN to_regrole(r.name) IS NULL
                      THEN (SELECT u.rolsuper OR u.rolcreaterole FROM pg_catalog.pg_roles u
                             WHERE u.rolname = current_user)
                      ELSE NOT has_schema_privilege(r.name, 'headgate', 'USAGE') END)
    OR EXISTS (SELECT FROM pg_catalog.pg_proc p
                WHERE p.pronamespace = 'headgate'::regnamespace
                  AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) AS a WHERE a.grantee = 0)))
    OR EXISTS (SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
                WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                  AND a.attname = 'tenant_no' AND c.relname <> 'retention_days'
                  AND NOT (c.relforcerowsecurity
                           AND (to_regrole('headgate_tenant') IS NULL
                                OR EXISTS (SELECT FROM pg_catalog.pg_policy p
                                            WHERE p.polrelid = c.oid AND p.polname = 'one_tenant'))))"""


# For the embedded PostgreSQL, whose socket is in a folder that only its user can enter: there roles log in without a
# password. The advisory lock: two processes may start at the same moment.
_PREPARED: Final = """
SELECT count(*) = 4 AND count(*) FILTER (WHERE r.rolcanlogin) = 3 AND bool_or(d.datdba = r.oid)
  FROM pg_catalog.pg_roles r JOIN pg_catalog.pg_database d ON d.datname = current_database()
 WHERE r.rolname = ANY ($1::text[])"""
_PREPARE: Final = """
DO $$
DECLARE
    v_name text;
BEGIN
    PERFORM pg_advisory_xact_lock(4847423, 4 /* roles */);
    FOREACH v_name IN ARRAY ARRAY['headgate_owner', 'headgate_runtime', 'headgate_reader'] LOOP
        IF to_regrole(v_name) IS NULL THEN EXECUTE format('CREATE ROLE %I', v_name); END IF;
        EXECUTE format('ALTER ROLE %I LOGIN', v_name);
    END LOOP;
    IF to_regrole('headgate_tenant') IS NULL THEN CREATE ROLE headgate_tenant NOLOGIN; END IF;
    GRANT headgate_tenant TO headgate_owner, headgate_runtime;
    GRANT pg_read_all_stats TO headgate_runtime;
    EXECUTE format('ALTER DATABASE %I OWNER TO headgate_owner', current_database());
END $$"""


async def prepare_embedded(superuser_dsn: str) -> None:
    """Make the roles of an embedded PostgreSQL, so that neither servers nor migrations need its superuser."""
    db = await connect(superuser_dsn, application_name="headgate roles")
    try:
        with translating(writing=True):
            if not await db.fetchval(_PREPARED, [OWNER, *GROUPS]):
                await db.execute(_PREPARE)
    finally:
        await db.close()


@asynccontextmanager
async def naming_missing_rights(db: Connection) -> AsyncIterator[None]:
    """Migrate inside. What PostgreSQL denies becomes MissingRights, with the statement that grants it."""
    try:
        yield
    except StoreError as error:
        if isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
            await _require_rights_to_migrate(db)
        raise


async def _require_rights_to_migrate(db: Connection) -> None:
    with translating(writing=False):
        ((role, database, exists, may_create, owner, owns, _),) = await db.fetch(_RIGHTS)
    if not exists and not may_create:
        raise MissingRights(
            f"role {role} cannot create the schema headgate in database {database}; have an administrator or the owner "
            f"of the database run: GRANT CREATE ON DATABASE {database} TO {role};"
        )
    if exists and not owns:
        raise MissingRights(
            f"the schema headgate belongs to role {owner}, and {role} cannot change it; run `headgate migrate` with "
            f"the URL of {owner} (docs/operations/database-roles.md)"
        )


async def require_rights_to_serve(db: Connection) -> None:
    """Raise MissingRights, with the statement that grants it, if a server could not work as this user."""
    with translating(writing=False):
        ((role, _, exists, _, _, _, may_serve),) = await db.fetch(_RIGHTS)
    if exists and not may_serve:
        raise MissingRights(
            f"role {role} cannot use the tables of the schema headgate; have an administrator run: GRANT {RUNTIME} TO "
            f"{role}; (docs/operations/database-roles.md)"
        )


async def missing_roles(db: Connection) -> list[str]:
    """What an administrator has to run before `headgate migrate` can grant anything to the roles; none: they exist."""
    with translating(writing=False):
        rows = await db.fetch(_MISSING, GROUPS)
    return [statement for (name,) in rows for statement in STATEMENTS[name]]


async def roles_due(db: Connection) -> bool:
    """Whether `apply_roles` has anything to do. It does nothing for a user who does not own the schema."""
    return bool(await db.fetchval(_OWNS)) and bool(await db.fetchval(_DUE, GROUPS))


async def apply_roles(db: Connection) -> None:
    """Make the roles if this user may, and grant them what they need. Under the lock of the runner of migrations."""
    if await db.fetch(_MISSING, GROUPS) and await db.fetchval(_MAY_CREATE):
        await db.execute(_CREATE)
    await db.execute("SELECT headgate.grant_roles_v1()")
