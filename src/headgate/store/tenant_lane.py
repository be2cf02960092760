"""A lane whose connection works for one tenant at a time: row-level security hides the rows of all others (ADR 47).

The connection has the role `headgate_tenant`, and the tenant in the setting `headgate.tenant_no`. A statement that
lacks its tenant condition finds the rows of that tenant, and without a tenant none. A connection of our own keeps both
for its session: a call for the tenant of the call before it costs no round trip more. Behind a transaction pooler both
last for the transaction, and are set by the statement that begins it anyway.

Where the role is missing, or may not be set, calls work without row-level security: `headgate doctor` reports it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import Lane

# The role, if this login may have it: made, granted to it, and known to the schema. Before PostgreSQL 16 a member may
# always set it.
_ROLE: Final = """
SELECT set_config('role', 'headgate_tenant', $1)
  FROM pg_catalog.pg_roles r JOIN pg_catalog.pg_namespace n ON n.nspname = 'headgate'
 WHERE r.rolname = 'headgate_tenant' AND has_schema_privilege(r.oid, n.oid, 'USAGE')
   AND pg_has_role(r.oid, CASE WHEN current_setting('server_version_num')::int >= 160000
                          THEN 'SET' ELSE 'MEMBER' END)"""
_TENANT: Final = "SELECT set_config('headgate.tenant_no', $1, false)"
_TENANT_NOW: Final = "SELECT set_config('headgate.tenant_no', $1, true)"
# Also what `preflight.pin` does: one statement begins the transaction of a call behind a pooler.
_BEGIN: Final = """
SELECT CASE WHEN $2 THEN set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                    WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) END,
       CASE WHEN $3 THEN set_config('role', 'headgate_tenant', true) END,
       set_config('headgate.tenant_no', $1, true)"""


async def confine(db: Connection, tenant_no: int) -> None:
    """For the rest of the open transaction, show and change rows of this tenant only."""
    with translating(writing=False):
        await db.fetchval(_TENANT_NOW, str(tenant_no))
        await db.fetchval(_ROLE, True)  # noqa: FBT003 - a parameter of the statement: for the transaction


class TenantLane(Lane):
    """A lane for calls of one tenant each: `async with lane.use_as(tenant_no) as db`."""

    pins = False
    """Behind a pooler: whether commits of its transactions wait for the disk, whatever the defaults are."""

    confined = False
    """Whether its connection has the role of one tenant. Known once it has been opened."""

    _tenant_no: int | None = None  # of the session

    def use(self, call: str = "") -> AbstractAsyncContextManager[Connection]:
        """Not without a tenant: it would see no rows, without an error."""
        raise TypeError(f"lane {self._name} works for one tenant at a time; name it: Database.as_tenant")

    @asynccontextmanager
    async def use_as(self, tenant_no: int, call: str = "") -> AsyncIterator[Connection]:
        """The connection, for calls of one tenant. 0: for what concerns all of them."""
        async with super().use(call) as db:
            if self.pooler:
                with translating(writing=False):
                    await db.fetchrow(_BEGIN, str(tenant_no), self.pins, self.confined)
            elif tenant_no != self._tenant_no:
                self._tenant_no = None
                with translating(writing=False):
                    await db.fetchval(_TENANT, str(tenant_no))
                self._tenant_no = tenant_no
            yield db

    async def prepare(self, opened: Connection) -> None:
        await super().prepare(opened)
        self._tenant_no = None
        with translating(writing=False):
            # Behind a pooler, of a session that is no longer ours afterwards: the role must not stay with it.
            self.confined = await opened.fetchval(_ROLE, self.pooler) is not None
