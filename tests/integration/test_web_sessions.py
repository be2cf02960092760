"""Browser sessions in the database: what is stored, what ends them, and how many there can be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from headgate.control.auth import StaticTokens, parse_tokens
from headgate.control.failed_logins import FREE_FAILURES, HELD_SECONDS, FailedLogins
from headgate.control.keyring import USED_SECONDS, KeyRing
from headgate.control.web_sessions import READ_SECONDS, WebSessions
from headgate.domain.api_keys import NewKey
from headgate.domain.errors import NotFound
from headgate.domain.identity import Identity, PermissionDenied, Scope, TokenRevoked, Unauthenticated
from headgate.domain.web_sessions import PER_CREDENTIAL, digest_of_secret
from headgate.store.dispatch_store import DispatchStore
from headgate.store.keys import KeyStore
from headgate.store.web_sessions import WebSessionStore, expire_sessions

TOKEN, OTHER = "token-ana-xxxxxxxxxxxx", "token-bob-xxxxxxxxxxxx"
FILE = (
    f'{{"{TOKEN}": {{"tenant": "acme", "name": "ana", "scopes": ["read"]}},'
    f'"{OTHER}": {{"tenant": "other", "name": "bob", "scopes": ["read"]}}}}'
)
ADMIN = Identity(tenant="acme", subject="admin", scopes=frozenset({Scope.ADMIN}))


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store(database: str) -> AsyncIterator[DispatchStore]:
    opened = DispatchStore(database)
    yield opened
    await opened.close()


def sessions(store: DispatchStore, text: str = FILE, clock: Clock | None = None) -> WebSessions:
    tokens = StaticTokens(parse_tokens(text, source="test"))
    return WebSessions(WebSessionStore(store), tokens, FailedLogins(), now=clock or Clock())


async def test_a_session_is_what_its_token_permits_now(store: DispatchStore) -> None:
    clock = Clock()
    one = sessions(store, clock=clock)
    secret, session = await one.login(TOKEN, address="192.0.2.1", agent="Firefox" * 100)
    assert (session.subject, session.tenant, len(session.agent)) == ("ana", "acme", 200)
    assert session.expires_at - session.created_at == timedelta(hours=12)
    found, identity = await one.identify(secret)
    assert (found.id, identity.scopes) == (session.id, frozenset({Scope.READ}))
    # Another instance, whose file gives the token other rights, and one that does not have it any more.
    wider = sessions(store, FILE.replace('"ana", "scopes": ["read"]', '"ana", "scopes": ["read", "operate"]'))
    assert (await wider.identify(secret))[1].permits(Scope.OPERATE)
    with pytest.raises(TokenRevoked):
        await sessions(store, "{}").identify(secret)
    with pytest.raises(TokenRevoked, match="another tenant"):
        await sessions(store, FILE.replace("acme", "moved")).identify(secret)


async def test_a_revoked_session_is_known_elsewhere_after_two_seconds(store: DispatchStore) -> None:
    clock = Clock()
    here, there = sessions(store), sessions(store, clock=clock)
    secret, session = await here.login(TOKEN, address="", agent="")
    await there.identify(secret)
    await here.revoke(ADMIN, session.id, reason="left")
    with pytest.raises(Unauthenticated):
        await here.identify(secret)
    await there.identify(secret)  # as it was read
    clock.now += READ_SECONDS
    with pytest.raises(Unauthenticated):
        await there.identify(secret)
    with pytest.raises(NotFound):
        await here.revoke(ADMIN, session.id)


async def test_a_tenant_sees_and_ends_its_own_sessions_only(store: DispatchStore) -> None:
    one = sessions(store)
    _, mine = await one.login(TOKEN, address="", agent="")
    _, theirs = await one.login(OTHER, address="", agent="")
    assert [found.id for found in (await one.page(ADMIN))[0]] == [mine.id]
    with pytest.raises(NotFound):
        await one.revoke(ADMIN, theirs.id)
    with pytest.raises(PermissionDenied):
        await one.page(Identity(tenant="acme", subject="v", scopes=frozenset({Scope.READ})))
    system = Identity(tenant="", subject="s", scopes=frozenset({Scope.SYSTEM}))
    assert {found.id for found in (await one.page(system))[0]} == {mine.id, theirs.id}


async def test_a_list_of_sessions_does_not_count_as_a_use_of_their_keys(
    store: DispatchStore, db: asyncpg.Connection[asyncpg.Record]
) -> None:
    clock = Clock()
    keys = KeyStore(store)
    view, key = await keys.create(NewKey(name="k", tenant="acme", scopes=frozenset({Scope.READ})), actor="t")
    ring = KeyRing(keys, now=clock)
    one = WebSessions(WebSessionStore(store), ring, FailedLogins(), now=clock)
    secret, _ = await one.login(key, address="", agent="")

    async def is_used() -> bool:
        await db.execute("UPDATE headgate.api_keys SET last_used_at = NULL")
        clock.now += USED_SECONDS
        await ring.run_once()
        return await db.fetchval("SELECT last_used_at FROM headgate.api_keys WHERE id = $1", view.id) is not None

    assert await is_used(), "by the login"
    (listed,) = (await one.page(ADMIN))[0]
    assert listed.subject == "k"
    assert not await is_used(), "someone has looked at the list"
    await one.identify(secret)
    assert await is_used(), "the browser has asked for a page"


async def test_failed_logins_are_answered_late(store: DispatchStore) -> None:
    held: list[float] = []

    async def hold(seconds: float) -> None:
        held.append(seconds)

    tokens = StaticTokens(parse_tokens(FILE, source="test"))
    one = WebSessions(WebSessionStore(store), tokens, FailedLogins(now=Clock(), hold=hold), now=Clock())
    for _ in range(FREE_FAILURES):
        with pytest.raises(Unauthenticated):
            await one.login("guess", address="192.0.2.1", agent="")
    assert held == []
    with pytest.raises(Unauthenticated):
        await one.login("guess", address="192.0.2.1", agent="")
    assert held == [HELD_SECONDS]
    await one.login(TOKEN, address="192.0.2.1", agent="")
    assert held == [HELD_SECONDS], "a valid token is never delayed"


async def test_a_logout_everywhere_ends_the_sessions_of_one_credential(store: DispatchStore) -> None:
    one = sessions(store)
    (first, _), (second, _), (other, _) = [
        await one.login(token, address="", agent="") for token in (TOKEN, TOKEN, OTHER)
    ]
    assert await one.logout("none such", everywhere=True) == 0
    assert await one.logout(first, everywhere=True) == 2
    for secret in (first, second):
        with pytest.raises(Unauthenticated):
            await one.identify(secret)
    await one.identify(other)
    assert await one.logout(other) == 1


async def test_sessions_that_have_ended_are_not_found_and_removed(
    store: DispatchStore, db: asyncpg.Connection[asyncpg.Record]
) -> None:
    one = sessions(store)
    secret, _ = await one.login(TOKEN, address="", agent="")
    kept, _ = await one.login(TOKEN, address="", agent="")
    await db.execute(
        "UPDATE headgate.web_sessions SET expires_at = headgate.clock_v1() WHERE digest = $1", digest_of_secret(secret)
    )
    with pytest.raises(Unauthenticated):
        await one.identify(secret)
    assert await expire_sessions(db, limit=100) == 1
    await one.identify(kept)


async def test_a_credential_has_a_bounded_number_of_sessions(
    store: DispatchStore, db: asyncpg.Connection[asyncpg.Record]
) -> None:
    one = sessions(store)
    first, _ = await one.login(TOKEN, address="", agent="")
    for _ in range(PER_CREDENTIAL):
        await one.login(TOKEN, address="", agent="")
    assert await db.fetchval("SELECT count(*) FROM headgate.web_sessions") == PER_CREDENTIAL
    with pytest.raises(Unauthenticated):
        await one.identify(first)
