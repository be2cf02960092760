"""Revocation against a real store: which bulk operations end with a credential, and when the database is asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.control.auth import TokenFile
from headgate.control.bulk import Bulk, Request
from headgate.control.revocation import OpenCalls, Revocation, RevokedOperations
from headgate.domain.bulk import Progress, StartedBulk
from headgate.domain.errors import StoreUnavailable
from headgate.domain.identity import Identity, PermissionDenied, TokenRevoked
from headgate.store.bulk import BulkStore
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from tests.support.queue import Queue, new_id

ONE, OTHER = "a-token-number-one", "a-token-number-two"
OPERATES = {"tenant": "acme", "name": "ana", "scopes": ["operate"]}


class Watched(BulkStore):
    """Counts how often it is asked; fails on request."""

    asked = 0
    fails = False

    async def started(self) -> list[StartedBulk]:
        self.asked += 1
        if self.fails:
            raise StoreUnavailable("away")
        return await super().started()


class Env:
    """A file of tokens, and operations started with them."""

    def __init__(self, path: Path, store: DispatchStore) -> None:
        self.path = path
        self.now = 1_000_000_000.0  # 2001-09-09T01:46:40Z
        self.write({ONE: OPERATES, OTHER: OPERATES})
        self.tokens = TokenFile(path, clock=lambda: self.now)
        self.store = Watched(store)
        self.many = Bulk(self.store, started=lambda: None, recheck=self.tokens.recheck)
        self.boot()

    def boot(self) -> None:
        """As a server that has just started."""
        self.revocation = Revocation(self.tokens, holders=lambda: (), calls=OpenCalls(), file=self.tokens)
        self.operations = RevokedOperations(self.tokens, self.store)

    def write(self, entries: object) -> None:
        self.path.write_text(json.dumps(entries))

    async def start(self, token: str) -> tuple[Identity, Request]:
        who, request = self.tokens.identify(token), Request(verb="cancel", filter="topic:mail")
        self.id = new_id()
        await self.many.start(who, self.id, request)
        return who, request

    async def state(self) -> Progress:
        return (await self.store.operation("acme", self.id, topics=None)).state

    async def look(self) -> Progress:
        self.revocation.run_once()
        await self.operations.run_once()
        return await self.state()


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


@pytest.fixture
async def env(queue: Queue, database: str, tmp_path: Path) -> AsyncIterator[Env]:
    await queue.add(1, "mail")
    store = DispatchStore(database)
    try:
        yield Env(tmp_path / "tokens.json", store)
    finally:
        await store.close()


async def test_an_operation_ends_when_its_credential_may_not_do_it_any_more(env: Env) -> None:
    for entries in (
        {OTHER: OPERATES},
        {ONE: OPERATES | {"scopes": ["read"]}, OTHER: OPERATES},
        {ONE: OPERATES | {"topics": ["mail"]}, OTHER: OPERATES},
        {ONE: OPERATES | {"tenant": "umbrella"}, OTHER: OPERATES},
        {ONE: OPERATES | {"expires": "2001-09-09T01:46:40Z"}, OTHER: OPERATES},
    ):
        env.write({ONE: OPERATES, OTHER: OPERATES})
        env.tokens.refresh()
        await env.start(ONE)
        assert await env.look() is Progress.PENDING
        env.write(entries)
        assert await env.look() is Progress.CANCELLED, entries


async def test_an_operation_continues_when_its_credential_may_still_do_it(env: Env) -> None:
    await env.start(ONE)
    for entries in (
        {ONE: OPERATES},
        {ONE: OPERATES | {"name": "anna", "scopes": ["admin"]}},
        {ONE: OPERATES | {"expires": "2001-09-09T01:46:41Z"}},
    ):
        env.write(entries)
        assert await env.look() is Progress.PENDING, entries
    env.now += 1
    assert await env.look() is Progress.CANCELLED, "it has expired"


async def test_what_was_revoked_while_no_server_ran_ends_at_the_next_start(env: Env) -> None:
    await env.start(ONE)
    env.write({OTHER: OPERATES})
    env.tokens.refresh()
    env.boot()
    assert await env.look() is Progress.CANCELLED


async def test_an_operation_that_is_started_while_its_token_loses_the_right_to_it_is_not_left_running(
    env: Env,
) -> None:
    for entries, error in (
        ({OTHER: OPERATES}, TokenRevoked),
        ({ONE: OPERATES | {"scopes": ["read"]}}, PermissionDenied),
        ({ONE: OPERATES | {"topics": ["sms"]}}, TokenRevoked),
        ({ONE: OPERATES | {"tenant": "umbrella"}}, TokenRevoked),
    ):
        env.write({ONE: OPERATES, OTHER: OPERATES})
        env.revocation.run_once()
        who = env.tokens.identify(ONE)
        env.write(entries)
        env.revocation.run_once()
        await env.operations.run_once()  # it looks before the operation is there
        env.id = new_id()
        with pytest.raises(error):
            await env.many.start(who, env.id, Request(verb="cancel", filter="topic:mail"))
        assert await env.state() is Progress.CANCELLED, entries


async def test_the_database_is_asked_after_a_change_only_and_again_until_it_answers(env: Env) -> None:
    await env.start(ONE)
    for _ in range(5):
        await env.look()
    assert env.store.asked == 1
    env.write({OTHER: OPERATES})
    env.store.fails = True
    for _ in range(3):
        assert await env.look() is Progress.PENDING
    assert env.store.asked == 4
    env.store.fails = False
    assert await env.look() is Progress.CANCELLED
    await env.look()
    assert env.store.asked == 5
