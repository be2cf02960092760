"""API keys: digests, rights, and how they change. A change and its audit entry are one transaction.

Servers ask for the version of the keys, and read the keys that they know when it has changed. A trigger counts it up
(keys_changed_v1), so a change in SQL counts as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import asyncpg

from headgate.domain import limits
from headgate.domain.api_keys import KeyView, NewKey, StoredKey, digest_of, new_key, new_key_id
from headgate.domain.errors import AlreadyExists, NotFound, Refused, TooLarge
from headgate.domain.identity import Scope
from headgate.domain.rate_limits import Rates
from headgate.domain.topic_sets import TopicSet
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.rows import from_row
from headgate.store.tenant_calls import TenantCalls, any_tenant_call, lane_call

VERSION: Final = "SELECT version FROM headgate.key_changes"
LOAD: Final = """
SELECT k.id, coalesce(t.name, ''), k.name, k.digest, k.old_digest,
       extract(epoch FROM k.old_until - c.now)::float8, k.scopes, k.topics, k.rates,
       extract(epoch FROM k.expires_at - c.now)::float8, k.revoked_at IS NOT NULL
  FROM (SELECT headgate.clock_v1() AS now) AS c
 CROSS JOIN headgate.api_keys k LEFT JOIN headgate.tenants t ON t.tenant_no = k.tenant_no
 WHERE k.id = ANY ($1::text[])"""
ANY: Final = """
SELECT EXISTS (SELECT FROM headgate.api_keys
                WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > headgate.clock_v1()))"""
# At most once a minute for each key, whatever the number of instances that it is used on.
USED: Final = """
UPDATE headgate.api_keys SET last_used_at = headgate.clock_v1()
 WHERE id = ANY ($1::text[]) AND (last_used_at IS NULL OR last_used_at < headgate.clock_v1() - interval '50 seconds')"""
COUNT: Final = "SELECT count(*) FROM headgate.api_keys WHERE tenant_no = $1 AND revoked_at IS NULL"
INSERT: Final = """
INSERT INTO headgate.api_keys (id, tenant_no, name, digest, scopes, topics, rates, created_at, created_by, expires_at)
SELECT $1, $2, $3, $4, $5, $6, $7, c.now, $8, c.now + $9::interval FROM (SELECT headgate.clock_v1() AS now) AS c
ON CONFLICT DO NOTHING RETURNING id"""
NAMED: Final = "SELECT id FROM headgate.api_keys WHERE tenant_no = $1 AND name = $2 AND revoked_at IS NULL"
# $2 NULL: of any tenant
LOCK: Final = """
SELECT tenant_no, name, revoked_at IS NOT NULL FROM headgate.api_keys
 WHERE id = $1 AND ($2::int IS NULL OR tenant_no = $2) FOR UPDATE"""
ROTATE: Final = """
UPDATE headgate.api_keys
   SET digest = $2, rotated_at = c.now,
       old_digest = CASE WHEN $3::interval > interval '0' THEN digest END,
       old_until = CASE WHEN $3::interval > interval '0' THEN c.now + $3 END
  FROM (SELECT headgate.clock_v1() AS now) AS c
 WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > c.now) RETURNING id"""
REVOKE: Final = """
UPDATE headgate.api_keys SET revoked_at = headgate.clock_v1(), revoked_by = $2 WHERE id = $1 AND revoked_at IS NULL"""
LIST: Final = """
SELECT k.id, coalesce(t.name, ''), k.name, k.scopes, k.topics, k.rates, k.created_at, k.created_by, k.expires_at,
       k.rotated_at, CASE WHEN k.old_until > c.now THEN k.old_until END, k.revoked_at, k.revoked_by, k.last_used_at,
       coalesce(k.expires_at <= c.now, false)
  FROM (SELECT headgate.clock_v1() AS now) AS c
 CROSS JOIN headgate.api_keys k LEFT JOIN headgate.tenants t ON t.tenant_no = k.tenant_no
 WHERE ($1::int IS NULL OR k.tenant_no = $1) AND ($2::text IS NULL OR k.id = $2) AND ($3 OR k.revoked_at IS NULL)
   AND k.id > $4
 ORDER BY k.id LIMIT $5"""


async def create(db: Connection, tenant_no: int, new: NewKey, *, actor: str) -> tuple[KeyView, str]:
    """Store a key; returns it, and the key itself, which is not stored. Raises AlreadyExists, TooLarge."""
    topics = None if new.topics is None else new.topics.listed
    rates = None if new.rates is None else json.dumps(new.rates.texts())
    async with transaction(db):
        with translating(writing=True):
            if (count := await db.fetchval(COUNT, tenant_no)) >= limits.KEYS_MAX:
                raise TooLarge("keys", size=count + 1, limit=limits.KEYS_MAX, unit="keys", hint="revoke unused ones")
            while True:  # again, if another key has this id
                if (other := await db.fetchval(NAMED, tenant_no, new.name)) is not None:
                    raise AlreadyExists(f'key hg_{other} has the name "{new.name}"; revoke it, or choose another name')
                key_id = new_key_id()
                key = new_key(key_id)
                made = await db.fetchval(
                    INSERT,
                    key_id,
                    tenant_no,
                    new.name,
                    digest_of(key),
                    sorted(new.scopes),
                    topics,
                    rates,
                    actor,
                    new.expires_in,
                )
                if made is not None:
                    break
        detail = {"scopes": sorted(new.scopes), "topics": topics, "rates": new.rates and new.rates.texts()}
        await audit.record(
            db, tenant_no, actor=actor, verb="create_key", target=f"key hg_{key_id} {new.name}", detail=detail
        )
        return await one(db, tenant_no, key_id), key


async def rotate(
    db: Connection, tenant_no: int | None, key_id: str, *, overlap: timedelta, actor: str, reason: str = ""
) -> tuple[KeyView, str]:
    """Give a key a new secret; the old one works until the overlap is over, and one before that no more.

    `tenant_no` None: of any tenant. Raises NotFound, and Refused for a key that is revoked or has expired.
    """
    async with transaction(db):
        owner, name, revoked = await _locked(db, tenant_no, key_id)
        key = new_key(key_id)
        with translating(writing=True):
            done = await db.fetchval(ROTATE, key_id, digest_of(key), overlap)
        if done is None:
            state = "is revoked" if revoked else "has expired"
            raise Refused(f"key hg_{key_id} {state} and cannot be rotated; create another one")
        await audit.record(
            db,
            owner,
            actor=actor,
            verb="rotate_key",
            target=f"key hg_{key_id} {name}",
            reason=reason,
            detail={"overlap_seconds": overlap.total_seconds()},
        )
        return await one(db, tenant_no, key_id), key


async def revoke(db: Connection, tenant_no: int | None, key_id: str, *, actor: str, reason: str = "") -> KeyView:
    """End a key, its old secret included; a key that is revoked already stays as it is. Raises NotFound."""
    async with transaction(db):
        owner, name, revoked = await _locked(db, tenant_no, key_id)
        if not revoked:
            with translating(writing=True):
                await db.execute(REVOKE, key_id, actor)
            await audit.record(
                db, owner, actor=actor, verb="revoke_key", target=f"key hg_{key_id} {name}", reason=reason
            )
        return await one(db, tenant_no, key_id)


async def listed(
    db: Connection, tenant_no: int | None, *, revoked: bool = False, after: str = "", limit: int = limits.PAGE_MAX
) -> list[KeyView]:
    """A page of keys by id, of one tenant or (None) of all."""
    with translating(writing=False):
        rows = await db.fetch(LIST, tenant_no, None, revoked, after, limit)
    return [_view(row) for row in rows]


async def one(db: Connection, tenant_no: int | None, key_id: str) -> KeyView:
    """One key, revoked or not. Raises NotFound."""
    revoked = True
    with translating(writing=False):
        row = await db.fetchrow(LIST, tenant_no, key_id, revoked, "", 1)
    if row is None:
        raise NotFound("key", f"hg_{key_id}")
    return _view(row)


async def load(db: Connection, ids: Sequence[str]) -> list[StoredKey]:
    """Keys as servers check them; without those that do not exist."""
    with translating(writing=False):
        rows = await db.fetch(LOAD, list(ids))
    return [
        from_row(
            StoredKey,
            row,
            scopes=frozenset(map(Scope, row[6])),
            topics=TopicSet.stored(row[7]),
            rates=Rates.parse(json.loads(row[8]), field="rates") if row[8] else None,
        )
        for row in rows
    ]


async def _locked(db: Connection, tenant_no: int | None, key_id: str) -> tuple[int, str, bool]:
    with translating(writing=True):
        row = await db.fetchrow(LOCK, key_id, tenant_no)
    if row is None:
        raise NotFound("key", f"hg_{key_id}")
    return row[0], row[1], row[2]


def _view(row: asyncpg.Record) -> KeyView:
    topics = None if row[4] is None else tuple(row[4])
    rates = json.loads(row[5]) if isinstance(row[5], str) else {}
    return from_row(KeyView, row, scopes=tuple(row[3]), topics=topics, rates=rates)


class KeyStore(TenantCalls):
    """Keys over the connections of one instance; fits the ports of control/. `tenant` None: a key of any tenant."""

    rotate = any_tenant_call("admin", rotate)
    revoke = any_tenant_call("admin", revoke)
    listed = any_tenant_call("read", listed)
    get = any_tenant_call("read", one)
    load = lane_call("keys", load)

    async def create(self, new: NewKey, *, actor: str) -> tuple[KeyView, str]:
        """Store a key, of the tenant that it names."""
        tenant_no = await self._database.tenant_no(new.tenant) if new.tenant else 0
        async with self._database.as_tenant("admin", tenant_no) as db:
            return await create(db, tenant_no, new, actor=actor)

    async def exist(self) -> bool:
        """Whether any key is valid now."""
        async with self._database.lane("tick").use() as db:
            with translating(writing=False):
                return bool(await db.fetchval(ANY))

    async def version(self) -> int:
        """Changes with every change of a key, but not with its use."""
        async with self._database.lane("keys").use() as db:
            with translating(writing=False):
                return int(await db.fetchval(VERSION))

    async def used(self, ids: Sequence[str]) -> None:
        """Note that keys are in use; not while the database is read-only."""
        if self._database.read_only:
            return
        async with self._database.lane("keys").use() as db:
            with translating(writing=True):
                await db.execute(USED, list(ids))
