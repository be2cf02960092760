"""Sessions of browsers: the digest of each secret, the credential it began with, and when it ends."""

from __future__ import annotations

from typing import Final

import asyncpg

from headgate.domain.errors import NotFound
from headgate.domain.web_sessions import PER_CREDENTIAL, NewSession, WebSession
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.rows import from_row
from headgate.store.tenant_calls import TenantCalls, any_tenant_call

# Beyond the maximum of a credential, and those that have ended. index: web_sessions_of_credential
TRIM: Final = """
DELETE FROM headgate.web_sessions s
 WHERE s.credential = $1
   AND (s.expires_at <= headgate.clock_v1()
        OR s.id NOT IN (SELECT o.id FROM headgate.web_sessions o WHERE o.credential = $1
                         ORDER BY o.created_at DESC LIMIT $2))"""
INSERT: Final = """
INSERT INTO headgate.web_sessions
       (id, digest, tenant_no, subject, credential, scopes, topics, credential_expires, created_at, expires_at,
        seen_at, address, agent)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, c.now, c.now + $9::interval, c.now, $10, $11
  FROM (SELECT headgate.clock_v1() AS now) AS c"""
FIND: Final = """
SELECT s.id, coalesce(t.name, ''), s.subject, s.credential, s.scopes, s.topics, s.credential_expires, s.created_at,
       s.expires_at, s.seen_at, s.address, s.agent
  FROM headgate.web_sessions s LEFT JOIN headgate.tenants t ON t.tenant_no = s.tenant_no
 WHERE s.digest = $1 AND s.expires_at > headgate.clock_v1()"""
SEEN: Final = "UPDATE headgate.web_sessions SET seen_at = headgate.clock_v1() WHERE digest = $1"
# index: the unique one of digest; for all of a credential: web_sessions_of_credential
END: Final = """
WITH gone AS (DELETE FROM headgate.web_sessions WHERE digest = $1 RETURNING 1) SELECT count(*) FROM gone"""
END_EVERYWHERE: Final = """
WITH gone AS (
     DELETE FROM headgate.web_sessions s
      WHERE s.credential = (SELECT o.credential FROM headgate.web_sessions o
                             WHERE o.digest = $1 AND o.expires_at > headgate.clock_v1()) RETURNING 1)
SELECT count(*) FROM gone"""
LIST: Final = """
SELECT s.id, coalesce(t.name, ''), s.subject, s.credential, s.scopes, s.topics, s.credential_expires, s.created_at,
       s.expires_at, s.seen_at, s.address, s.agent
  FROM headgate.web_sessions s LEFT JOIN headgate.tenants t ON t.tenant_no = s.tenant_no
 WHERE ($1::int IS NULL OR s.tenant_no = $1) AND ($2::text IS NULL OR s.id = $2)
   AND ($3 = '' OR (s.created_at, s.id) < (SELECT o.created_at, o.id FROM headgate.web_sessions o WHERE o.id = $3))
   AND s.expires_at > headgate.clock_v1()
 ORDER BY s.created_at DESC, s.id DESC LIMIT $4"""
EXISTS: Final = "SELECT EXISTS (SELECT FROM headgate.web_sessions s WHERE s.id = $1)"
REVOKE: Final = "DELETE FROM headgate.web_sessions WHERE id = $1 RETURNING tenant_no"
# Oldest first, in bounded numbers. index: web_sessions_expiry
EXPIRE: Final = """
WITH old AS (SELECT s.id FROM headgate.web_sessions s WHERE s.expires_at <= headgate.clock_v1()
              ORDER BY s.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED),
     gone AS (DELETE FROM headgate.web_sessions s USING old o WHERE s.id = o.id RETURNING 1)
SELECT count(*) FROM gone"""


async def expire_sessions(db: Connection, *, limit: int) -> int:
    """Remove sessions that have ended; returns how many."""
    with translating(writing=True):
        return int(await db.fetchval(EXPIRE, limit))


async def listed(db: Connection, tenant_no: int | None, *, after: str, limit: int) -> list[WebSession]:
    """A page, newest first. Raises NotFound if `after` has ended meanwhile: where the page begins is not known."""
    with translating(writing=False):
        rows = await db.fetch(LIST, tenant_no, None, after, limit)
        if after and not rows and not await db.fetchval(EXISTS, after):
            raise NotFound("session", after)
    return [_session(row) for row in rows]


async def revoke(
    db: Connection, tenant_no: int | None, session_id: str, *, actor: str, reason: str
) -> WebSession | None:
    """Remove a session, with its audit entry; None if there is none."""
    async with transaction(db):
        with translating(writing=True):
            row = await db.fetchrow(LIST, tenant_no, session_id, "", 1)
            owner = None if row is None else await db.fetchval(REVOKE, session_id)
        if row is None or owner is None:
            return None
        session = _session(row)
        target = f"session {session.id} {session.subject}"
        await audit.record(db, owner, actor=actor, verb="revoke_session", target=target, reason=reason)
    return session


class WebSessionStore(TenantCalls):
    """Sessions over the connections of one instance; fits the port of control/web_sessions.py."""

    listed = any_tenant_call("read", listed)
    revoke = any_tenant_call("admin", revoke)

    async def begin(self, new: NewSession) -> WebSession:
        """Store a session. Beyond the maximum, the oldest one of the same credential ends."""
        identity = new.identity
        tenant_no = await self._database.tenant_no(identity.tenant) if identity.tenant else 0
        topics = None if identity.topics is None else identity.topics.listed
        async with self._database.lane("keys").use() as db, transaction(db):
            with translating(writing=True):
                await db.execute(TRIM, identity.credential, PER_CREDENTIAL - 1)
                await db.execute(
                    INSERT,
                    new.id,
                    new.digest,
                    tenant_no,
                    identity.subject,
                    identity.credential,
                    sorted(identity.scopes),
                    topics,
                    identity.expires_at,
                    new.life,
                    new.address,
                    new.agent,
                )
                row = await db.fetchrow(FIND, new.digest)
        assert row is not None  # noqa: S101
        return _session(row)

    async def find(self, digest: bytes, *, seen: bool) -> WebSession | None:
        """A session that has not ended; `seen` notes that it is in use."""
        async with self._database.lane("keys").use() as db:  # the session tells the tenant
            if seen and not self._database.read_only:
                with translating(writing=True):
                    await db.execute(SEEN, digest)
            with translating(writing=False):
                row = await db.fetchrow(FIND, digest)
        return None if row is None else _session(row)

    async def end(self, digest: bytes, *, everywhere: bool) -> int:
        """Remove a session, if it is there, or all sessions of its credential; returns how many."""
        async with self._database.lane("keys").use() as db:
            with translating(writing=True):
                return int(await db.fetchval(END_EVERYWHERE if everywhere else END, digest))


def _session(row: asyncpg.Record) -> WebSession:
    return from_row(WebSession, row, scopes=tuple(row[4]), topics=None if row[5] is None else tuple(row[5]))
