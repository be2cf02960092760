"""Databases that are filled once for the tests of a module."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from statistics import median

import pytest

from headgate.store.connect import Connection
from headgate.store.leases import REAP
from headgate.store.new_ids import BEGINNING
from tests.integration.claim_pages.scratch import (
    N,
    PageTable,
    ScratchDatabase,
    Usual,
    session,
    with_due_rows,
    with_expired_rows,
)
from tests.support.database import Server
from tests.support.explain import Cost
from tests.support.store_calls import PROMOTE


@pytest.fixture(scope="module")
def table() -> Iterator[PageTable]:
    table = PageTable()
    yield table
    sys.stdout.write(f"\n\n{table.text()}\n")  # seen with -s only


@pytest.fixture(scope="module")
def fresh(postgres: Server, template: str) -> Iterator[Callable[[], str]]:
    """Makes databases that are dropped at the end of the module."""
    names: list[str] = []

    def make() -> str:
        names.append(postgres.create(template=template))
        return postgres.dsn_of(names[-1])

    yield make
    for name in names:
        postgres.drop(name)


@pytest.fixture(scope="module")
def usual(postgres: Server, fresh: Callable[[], str], table: PageTable) -> Usual:
    async def claims(scratch: ScratchDatabase) -> list[Cost]:
        await scratch.fill(1_000)
        return await (await scratch.claimer()).costs()

    async def promotions(scratch: ScratchDatabase) -> list[Cost]:
        await with_due_rows(scratch, waiting=1_000)
        return await scratch.counted(PROMOTE, N, BEGINNING)

    async def reaps(scratch: ScratchDatabase) -> list[Cost]:
        await with_expired_rows(scratch, running=1_000)
        return await scratch.counted(REAP, N, BEGINNING)

    async def settles(scratch: ScratchDatabase) -> list[Cost]:
        await scratch.fill(1_000)
        settles, renewals = await scratch.settled_and_renewed()
        found["renew"] = renewals
        return settles

    async def measure(dsn: str, name: str, work: Callable[[ScratchDatabase], Awaitable[list[Cost]]]) -> None:
        async with session(dsn) as db:
            found[name] = await work(await ScratchDatabase.quiet(db))
            versions.append(db.get_server_version().major)

    found: dict[str, list[Cost]] = {}
    versions: list[int] = []
    for name, work in (("claim", claims), ("promote", promotions), ("reap", reaps), ("settle", settles)):
        postgres.run(measure(fresh(), name, work))
    usual = {name: median(cost.pages for cost in costs) for name, costs in found.items()}
    for name, costs in found.items():
        table.judge(f"{name}: 1 k rows", costs, usual=usual[name], growth=None)
    return Usual(**usual, modern=min(versions) >= 17)


@pytest.fixture
async def scratch(db: Connection) -> ScratchDatabase:
    return await ScratchDatabase.quiet(db)
