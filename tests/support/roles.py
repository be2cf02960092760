"""Roles of a test's own: login roles that are dropped again, and URLs to log in with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from headgate.store.connect import connect
from headgate.store.migrate import migrate

PASSWORD = "not-a-secret"


def url_as(dsn: str, role: str) -> str:
    """The same database, as another role."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{role}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"))


class Roles:
    """A database that an ordinary role owns, and one login role of each kind."""

    def __init__(self, dsn: str) -> None:
        self.superuser = dsn
        mark = uuid4().hex[:8]
        self.owner, self.runtime, self.reader, self.app, self.member = (
            f"{kind}_{mark}" for kind in ("owner", "server", "looks", "app", "member")
        )

    @property
    def all(self) -> tuple[str, ...]:
        return self.owner, self.runtime, self.reader, self.app, self.member

    def url(self, role: str) -> str:
        return url_as(self.superuser, role)


@asynccontextmanager
async def owned_database(dsn: str) -> AsyncIterator[Roles]:
    """An empty database, given to an owner who is no superuser and may create no roles, and migrated by it."""
    roles = Roles(dsn)
    admin = await connect(dsn, application_name="headgate tests")
    try:
        for role in roles.all:
            await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
        name = await admin.fetchval("SELECT quote_ident(current_database())")
        await admin.execute(f"ALTER DATABASE {name} OWNER TO {roles.owner}")
        await admin.execute(f"GRANT headgate_runtime TO {roles.runtime}; GRANT headgate_reader TO {roles.reader}")
        await admin.execute(f"GRANT {roles.app} TO {roles.member}")
        owner = await connect(roles.url(roles.owner), application_name="headgate tests")
        try:
            await migrate(owner)
        finally:
            await owner.close()
        yield roles
    finally:
        await admin.execute(f"REASSIGN OWNED BY {roles.owner} TO CURRENT_USER")
        for role in roles.all:
            await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await admin.close()
