"""API keys in memory: what is looked up, what is kept, what ends. The test has the clock and the database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headgate.control import keyring
from headgate.control.keyring import LOOK_SECONDS, UNCHECKED_MAX_SECONDS, UNKNOWN_SECONDS, USED_SECONDS, KeyRing
from headgate.domain.api_keys import StoredKey, digest_of, new_key
from headgate.domain.errors import StoreUnavailable
from headgate.domain.identity import (
    CredentialsUnavailable,
    Identity,
    LookupRequired,
    Scope,
    TokenRevoked,
    Unauthenticated,
)
from headgate.domain.topic_sets import TopicSet

ID = "abcd1234"
KEY = new_key(ID)


class Rows:
    """The keys in the database, and what was asked of it."""

    def __init__(self) -> None:
        self.keys: dict[str, StoredKey] = {}
        self.changes = 0
        self.loads: list[list[str]] = []
        self.versions = 0
        self.noted: list[list[str]] = []
        self.away = False
        self.gate: asyncio.Event | None = None

    def put(self, key: str, **fields: object) -> None:
        key_id = key.split("_")[1]
        stored = StoredKey(
            id=key_id,
            tenant="acme",
            name="ana",
            digest=digest_of(key),
            old_digest=None,
            old_for=None,
            scopes=frozenset({Scope.SUBMIT, Scope.WORK}),
            topics=None,
            rates=None,
            expires_in=None,
            revoked=False,
        )
        self.keys[key_id] = replace(stored, **fields)  # type: ignore[arg-type]
        self.changes += 1

    async def version(self) -> int:
        self.versions += 1
        self._check()
        return self.changes

    async def load(self, ids: Sequence[str], /) -> list[StoredKey]:
        self.loads.append(sorted(ids))
        if self.gate is not None:
            await self.gate.wait()
        self._check()
        return [self.keys[one] for one in ids if one in self.keys]

    async def used(self, ids: Sequence[str], /) -> None:
        self._check()
        self.noted.append(sorted(ids))

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("the database is away")


class Env:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.rows = Rows()
        self.changed = 0
        self.ring = KeyRing(self.rows, now=lambda: self.now, on_change=self._on_change)
        self.rows.put(KEY)

    def _on_change(self) -> None:
        self.changed += 1

    async def look(self, seconds: float = LOOK_SECONDS) -> None:
        self.now += seconds
        await self.ring.run_once()


@pytest.fixture
def env() -> Env:
    return Env()


async def known(env: Env) -> Identity:
    with pytest.raises(LookupRequired):
        env.ring.identify(KEY)
    return await env.ring.lookup(KEY)


async def test_a_key_is_looked_up_once_and_then_known(env: Env) -> None:
    who = await known(env)
    assert (who.tenant, who.subject, who.topics) == ("acme", "ana", None)
    assert who.credential.startswith(f"key-{ID}-")
    for _ in range(3):
        assert env.ring.identify(KEY) is who is env.ring.recheck(who)
    assert env.rows.loads == [[ID]]


async def test_lookups_that_come_together_are_one_query_at_a_time(env: Env) -> None:
    keys = [new_key(f"key0000{number}") for number in range(5)]
    for key in keys:
        env.rows.put(key)
    env.rows.gate = asyncio.Event()
    first = asyncio.create_task(env.ring.lookup(KEY))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(env.ring.lookup(key)) for key in (*keys, *keys)]
    await asyncio.sleep(0)
    env.rows.gate.set()
    async with asyncio.timeout(10):
        await asyncio.gather(first, *others)
    assert env.rows.loads == [[ID], [f"key0000{number}" for number in range(5)]]


async def test_an_id_that_does_not_exist_is_remembered_briefly(env: Env) -> None:
    guess = new_key("nobodyss")
    with pytest.raises(Unauthenticated) as refused:
        await env.ring.lookup(guess)
    assert refused.value.reason == "no key hg_nobodyss"
    with pytest.raises(Unauthenticated):
        env.ring.identify(new_key("nobodyss"))
    assert len(env.rows.loads) == 1
    env.rows.put(guess)
    env.now += UNKNOWN_SECONDS
    with pytest.raises(LookupRequired):
        env.ring.identify(guess)
    assert (await env.ring.lookup(guess)).subject == "ana"


async def test_the_memory_of_guesses_is_bounded(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "UNKNOWN_IDS", 3)
    for number in range(9):
        with pytest.raises(Unauthenticated):
            await env.ring.lookup(new_key(f"guess{number:03}"))
    assert len(env.ring._unknown) == 3


@pytest.mark.parametrize(
    "other",
    [new_key(ID), KEY[:-1], KEY + "x", KEY.upper(), f"hg_{ID}_", "hg_", KEY[3:]],
    ids=["another secret", "short", "long", "upper case", "no secret", "no id", "no prefix"],
)
async def test_another_secret_of_the_same_id_and_malformed_keys_are_refused(env: Env, other: str) -> None:
    await known(env)
    with pytest.raises(Unauthenticated) as refused:
        env.ring.identify(other)
    assert str(refused.value) == "the token is not valid"
    assert len(env.rows.loads) == 1, "nothing is looked up for it"


@pytest.mark.req("W5")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"revoked": True}, f"key hg_{ID} is revoked"),
        ({"expires_in": -0.1}, f"key hg_{ID} has expired"),
        (None, "the key of ana is not valid any more"),
    ],
    ids=["revoked", "expired", "deleted"],
)
async def test_a_key_that_has_ended_is_refused_after_one_look(
    env: Env, change: dict[str, object] | None, reason: str
) -> None:
    who = await known(env)
    if change is None:
        del env.rows.keys[ID]
        env.rows.changes += 1
    else:
        env.rows.put(KEY, **change)
    assert env.ring.identify(KEY) is who, "as it was, until the look"
    await env.look()
    assert env.changed == 1, "what is open is told at once"
    with pytest.raises(TokenRevoked, match=reason):
        env.ring.recheck(who)
    with pytest.raises((Unauthenticated, LookupRequired)):
        env.ring.identify(KEY)


async def test_a_narrowed_key_has_its_new_rights_after_one_look(env: Env) -> None:
    who = await known(env)
    env.rows.put(KEY, topics=TopicSet.of("mail"), scopes=frozenset({Scope.WORK}))
    await env.look()
    now = env.ring.recheck(who)
    assert (now.topics, now.scopes) == (TopicSet.of("mail"), frozenset({Scope.WORK}))
    assert now.credential == who.credential


async def test_expiry_needs_no_look(env: Env) -> None:
    env.rows.put(KEY, expires_in=10.0)
    who = await known(env)
    state = env.ring.state()
    env.now += 9.9
    assert env.ring.recheck(who) is who
    env.now += 0.1
    with pytest.raises(TokenRevoked, match="has expired"):
        env.ring.recheck(who)
    assert env.ring.state() != state


async def test_after_a_rotation_the_old_secret_works_until_the_overlap_is_over_and_then_ends_what_it_has_open(
    env: Env,
) -> None:
    before = await known(env)
    new = new_key(ID)
    env.rows.put(new, old_digest=digest_of(KEY), old_for=60.0)
    await env.look()
    now = env.ring.identify(new)
    assert env.ring.recheck(before) == env.ring.identify(KEY) == before
    assert now.credential != before.credential, "what is open with one secret ends with that secret"
    env.now += 60
    with pytest.raises(TokenRevoked, match="was rotated"):
        env.ring.recheck(before)
    with pytest.raises(Unauthenticated):
        env.ring.identify(KEY)
    assert env.ring.recheck(now) == env.ring.identify(new) == now


async def test_a_rotation_without_overlap_ends_the_old_secret_after_one_look(env: Env) -> None:
    before = await known(env)
    env.rows.put(new_key(ID))
    await env.look()
    with pytest.raises(TokenRevoked):
        env.ring.recheck(before)
    with pytest.raises(Unauthenticated):
        env.ring.identify(KEY)


async def test_nothing_is_asked_while_no_key_is_known_and_one_number_while_nothing_changes(env: Env) -> None:
    await env.look()
    assert (env.rows.versions, env.rows.loads) == (0, [])
    await known(env)
    env.rows.versions = 0
    for _ in range(3):
        await env.look()
    assert (env.rows.versions, env.rows.loads) == (3, [[ID]])


async def test_while_the_database_is_away_known_keys_work_for_a_bounded_time_and_others_do_not(env: Env) -> None:
    who = await known(env)
    await env.look()
    env.rows.away = True
    with pytest.raises(CredentialsUnavailable, match="cannot be looked up"):
        await env.ring.lookup(new_key("unknown1"))
    await env.look(UNCHECKED_MAX_SECONDS)
    assert env.ring.identify(KEY) is env.ring.recheck(who) is who
    env.now += 1
    with pytest.raises(CredentialsUnavailable, match="901 s"):
        env.ring.identify(KEY)
    with pytest.raises(CredentialsUnavailable, match="901 s"):
        env.ring.recheck(who)
    env.rows.away = False
    await env.look()
    assert env.ring.identify(KEY) is who


async def test_the_last_use_is_written_once_a_minute_and_only_for_keys_in_use(env: Env) -> None:
    await known(env)
    idle = new_key("idlekey1")
    env.rows.put(idle)
    await env.ring.lookup(idle)
    await env.look(USED_SECONDS)
    assert env.rows.noted == [[ID, "idlekey1"]]
    for _ in range(50):
        env.ring.identify(KEY)
    await env.look()
    assert len(env.rows.noted) == 1
    await env.look(USED_SECONDS)
    assert env.rows.noted[1:] == [[ID]]
    await env.look(USED_SECONDS)
    assert len(env.rows.noted) == 2


async def test_a_key_that_is_looked_up_during_a_look_stays_known(env: Env) -> None:
    await known(env)
    other = new_key("other001")
    env.rows.put(other)
    env.rows.gate = asyncio.Event()
    looking = asyncio.create_task(env.look())
    await asyncio.sleep(0)
    finding = asyncio.create_task(env.ring.lookup(other))
    await asyncio.sleep(0)
    env.rows.gate.set()
    async with asyncio.timeout(10):
        who = await finding
        await looking
    assert env.ring.recheck(who).subject == "ana"


async def test_the_credential_of_a_stored_operation_is_learnt_before_it_is_judged(env: Env) -> None:
    who = await known(env)
    fresh = KeyRing(env.rows, now=lambda: env.now)
    await fresh.learn(who.credential)
    assert fresh.recheck(replace(who, scopes=frozenset())) == who
    env.rows.away = True
    with pytest.raises(CredentialsUnavailable):
        await fresh.learn("key-unknown2-00000000")


async def test_forgotten_keys_are_those_that_are_not_used(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "KEYS_KEPT", 1)
    who = await known(env)
    idle = new_key("idlekey1")
    env.rows.put(idle)
    gone = await env.ring.lookup(idle)
    await env.look(USED_SECONDS)
    env.ring.recheck(who)
    await env.look(USED_SECONDS)
    assert env.ring.recheck(who) == who
    with pytest.raises(LookupRequired):
        env.ring.identify(idle)
    with pytest.raises(TokenRevoked):
        env.ring.recheck(gone)
