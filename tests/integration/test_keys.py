"""API keys in the database: what is stored, who may manage whose, what each change leaves in the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from headgate.control.keyring import KeyRing
from headgate.control.keys import Keys
from headgate.domain import limits
from headgate.domain.api_keys import KeyView, digest_of, id_of_key
from headgate.domain.errors import AlreadyExists, InvalidInput, NotFound, Refused, TooLarge
from headgate.domain.identity import Identity, PermissionDenied, Scope, TokenRevoked, Unauthenticated
from headgate.domain.topic_sets import TopicSet
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.keys import KeyStore


def admin_of(tenant: str) -> Identity:
    return Identity(tenant=tenant, subject=f"admin of {tenant}", scopes=frozenset({Scope.ADMIN}))


ACME, UMBRELLA = admin_of("acme"), admin_of("umbrella")
SYSTEM = Identity(tenant="", subject="root", scopes=frozenset({Scope.SYSTEM}))
DAY = timedelta(days=1)


class Env:
    def __init__(self, database: Database) -> None:
        self.store = KeyStore(database)
        self.keys = Keys(self.store)
        self.ring = KeyRing(self.store)

    async def made(self, name: str = "ana", *, by: Identity = ACME, **fields: Any) -> tuple[KeyView, str]:
        return await self.keys.create(by, name, **({"scopes": ["submit", "work"]} | fields))


@pytest.fixture
async def env(database: str) -> AsyncIterator[Env]:
    made = Database(database, unsafe=True)
    try:
        yield Env(made)
    finally:
        await made.close()


async def test_a_key_is_shown_once_and_only_its_digest_is_stored(env: Env, db: Connection) -> None:
    view, key = await env.made(topics=["orders.*", "mail"], rates={"submit": "5/1s:9"}, expires_in=DAY)
    assert id_of_key(key) == view.id
    who = await env.ring.lookup(key)
    assert (who.tenant, who.subject, who.topics) == ("acme", "ana", TopicSet.of("orders.*", "mail"))
    assert who.scopes == {Scope.SUBMIT, Scope.WORK}
    assert who.rates is not None
    assert who.rates.texts() == view.rates == {"submit": "5/1s:9"}
    (row,) = await db.fetch("SELECT * FROM headgate.api_keys")
    assert row["digest"] == digest_of(key)
    secret = key.rpartition("_")[2]
    everything = str(row) + str(await db.fetch("SELECT * FROM headgate.audit")) + repr(view)
    assert secret not in everything
    assert view.state == "active"
    assert view.expires_at is not None
    assert view.expires_at - view.created_at == DAY


async def test_each_change_is_in_the_audit_log_with_its_actor(env: Env, db: Connection) -> None:
    view, _ = await env.made()
    await env.keys.rotate(ACME, view.id, overlap=DAY, reason="quarterly")
    await env.keys.revoke(SYSTEM, view.id, reason="left")
    await env.keys.revoke(SYSTEM, view.id, reason="again: changes nothing")
    found = await audit.entries(db)
    assert [(one.verb, one.actor, one.reason) for one in found] == [
        ("revoke_key", "root", "left"),
        ("rotate_key", "admin of acme", "quarterly"),
        ("create_key", "admin of acme", ""),
    ]
    assert {one.target for one in found} == {f"key hg_{view.id} ana"}
    assert found[2].detail == {"scopes": ["submit", "work"], "topics": None, "rates": None}


@pytest.mark.parametrize("by_hand", [False, True], ids=["by the use case", "by hand in SQL"])
async def test_a_revoked_key_is_refused_after_the_next_look(env: Env, db: Connection, *, by_hand: bool) -> None:
    view, key = await env.made()
    who = await env.ring.lookup(key)
    assert await env.ring.run_once() is False
    if by_hand:
        await db.execute("DELETE FROM headgate.api_keys")
    else:
        await env.keys.revoke(ACME, view.id)
    assert await env.ring.run_once() is True
    with pytest.raises(TokenRevoked):
        env.ring.recheck(who)
    with pytest.raises(Unauthenticated):
        await env.ring.lookup(key)


async def test_the_last_use_is_stored_and_is_no_change_of_the_keys(env: Env, db: Connection) -> None:
    view, key = await env.made()
    await env.ring.lookup(key)
    before = await env.store.version()
    await env.store.used([view.id])
    first = (await env.keys.get(ACME, view.id)).last_used_at
    assert first is not None
    await env.store.used([view.id])
    assert (await env.keys.get(ACME, view.id)).last_used_at == first, "at most once a minute, whichever instance writes"
    assert await env.store.version() == before
    await db.execute("UPDATE headgate.api_keys SET topics = '{mail}'")
    assert await env.store.version() > before


async def test_a_rotation_keeps_the_old_secret_for_the_overlap_and_the_one_before_no_longer(env: Env) -> None:
    view, first = await env.made()
    _, second = await env.keys.rotate(ACME, f"hg_{view.id}", overlap=DAY)
    after, third = await env.keys.rotate(ACME, view.id, overlap=DAY)
    assert len({first, second, third}) == 3
    assert after.rotated_at is not None
    assert after.old_until == after.rotated_at + DAY
    for good in (second, third):
        assert (await env.ring.lookup(good)).subject == "ana"
    with pytest.raises(Unauthenticated):
        await env.ring.lookup(first)
    done, fourth = await env.keys.rotate(ACME, view.id, overlap=timedelta(0))
    assert done.old_until is None
    await env.ring.run_once()
    assert (await env.ring.lookup(fourth)).subject == "ana"
    with pytest.raises(Unauthenticated):
        env.ring.identify(third)


async def test_a_key_that_is_revoked_or_has_expired_cannot_be_rotated(env: Env, db: Connection) -> None:
    view, _ = await env.made()
    await env.keys.revoke(ACME, view.id)
    with pytest.raises(Refused, match="is revoked"):
        await env.keys.rotate(ACME, view.id, overlap=DAY)
    late, _ = await env.made(expires_in=DAY)
    await db.execute("UPDATE headgate.api_keys SET expires_at = created_at")
    assert (await env.keys.get(ACME, late.id)).state == "expired"
    with pytest.raises(Refused, match="has expired"):
        await env.keys.rotate(ACME, late.id, overlap=DAY)


async def test_keys_of_another_tenant_do_not_exist(env: Env) -> None:
    view, _ = await env.made()
    for call in (
        lambda key_id: env.keys.get(UMBRELLA, key_id),
        lambda key_id: env.keys.revoke(UMBRELLA, key_id),
        lambda key_id: env.keys.rotate(UMBRELLA, key_id, overlap=DAY),
    ):
        texts = set()
        for key_id in (view.id, "nobody00"):
            with pytest.raises(NotFound) as refused:
                await call(key_id)
            texts.add(str(refused.value).replace(key_id, "?"))
        assert texts == {'no key "hg_?"'}
    assert (await env.keys.page(UMBRELLA))[0] == []
    assert [one.id for one in (await env.keys.page(SYSTEM))[0]] == [view.id]


async def test_an_admin_creates_keys_of_its_own_tenant_and_system_of_every_one(env: Env) -> None:
    for fields in ({"scopes": ["system"]}, {"tenant": "umbrella"}):
        with pytest.raises(PermissionDenied):
            await env.made(**fields)
    for caller in (
        Identity(tenant="acme", subject="w", scopes=frozenset({Scope.OPERATE, Scope.SUBMIT, Scope.WORK, Scope.READ})),
    ):
        with pytest.raises(PermissionDenied, match='"admin"'):
            await env.made(by=caller)
    with pytest.raises(InvalidInput, match="tenant: is missing"):
        await env.made(by=SYSTEM)
    view, _ = await env.made(by=SYSTEM, tenant="umbrella")
    assert view.tenant == "umbrella"
    root, key = await env.made("root 2", by=SYSTEM, scopes=["system"])
    assert root.tenant == ""
    assert (await env.ring.lookup(key)).scopes == {Scope.SYSTEM}
    assert [one.name for one in (await env.keys.page(UMBRELLA))[0]] == ["ana"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "name: must have 1 to 100"),
        ({"name": "x" * 101}, "name: 101 characters"),
        ({"name": "a\nb"}, "name: .*control character"),
        ({"scopes": []}, "scopes: is empty"),
        ({"scopes": ["work", "root"]}, "scopes: has an unknown scope, got 'root'; use one or more of"),
        ({"topics": ["or*ders"]}, "topics: is not a pattern"),
        ({"expires_in": timedelta(0)}, "expires_in: must be from 1 second"),
        ({"expires_in": timedelta(days=3651)}, "expires_in: must be from 1 second"),
        ({"rates": {"submit": "fast"}}, "rates.submit: is not a rate"),
    ],
)
async def test_a_wrong_key_is_refused_by_its_field(env: Env, fields: dict[str, Any], words: str) -> None:
    name = fields.pop("name", "ana")
    with pytest.raises(InvalidInput, match=words):
        await env.made(name, **fields)


async def test_an_id_is_eight_characters_and_a_whole_key_is_not_repeated(env: Env) -> None:
    view, key = await env.made()
    with pytest.raises(InvalidInput, match="is a whole key") as refused:
        await env.keys.revoke(ACME, key)
    assert key.rpartition("_")[2] not in str(refused.value)
    for wrong in ("", "hg_", "ABCDEFGH", "../../ab", "x" * 1_000):
        with pytest.raises(InvalidInput, match="id: "):
            await env.keys.revoke(ACME, wrong)
    assert (await env.keys.revoke(ACME, f"hg_{view.id}")).state == "revoked"


async def test_a_name_belongs_to_one_key_until_it_is_revoked(env: Env) -> None:
    view, _ = await env.made()
    with pytest.raises(AlreadyExists, match=f"key hg_{view.id} has the name"):
        await env.made()
    await env.made(by=UMBRELLA)
    await env.keys.revoke(ACME, view.id)
    await env.made()


async def test_a_tenant_has_a_bounded_number_of_keys_and_lists_them_in_pages(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEYS_MAX", 3)
    ids = sorted([(await env.made(f"k{number}"))[0].id for number in range(3)])
    with pytest.raises(TooLarge, match="4 keys is over the limit of 3 keys"):
        await env.made("one more")
    first, after = await env.keys.page(ACME, limit=2)
    rest, end = await env.keys.page(ACME, after=after, limit=2)
    assert ([one.id for one in (*first, *rest)], end) == (ids, "")
    await env.keys.revoke(ACME, ids[0])
    assert [one.id for one in (await env.keys.page(ACME))[0]] == ids[1:]
    assert [one.state for one in (await env.keys.page(ACME, revoked=True))[0]] == ["revoked", "active", "active"]
    await env.made("one more")


async def test_whether_any_key_is_valid_is_known_at_the_start(env: Env) -> None:
    assert not await env.store.exist()
    view, _ = await env.made()
    assert await env.store.exist()
    await env.keys.revoke(ACME, view.id)
    assert not await env.store.exist()


async def test_the_table_repeats_the_rules(env: Env, db: Connection) -> None:
    await env.made()
    for change in (
        "scopes = '{root}'",
        "scopes = '{}'",
        "tenant_no = 0",
        "scopes = '{system}'",
        "digest = 'abc'",
        "old_until = now()",
        "name = ''",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await db.execute(f"UPDATE headgate.api_keys SET {change}")
