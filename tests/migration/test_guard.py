"""Steps that running servers could not live with: refused with their names, let through once they are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from headgate.domain.errors import MigrationFailed
from headgate.store.dispatch_store import DispatchStore
from headgate.store.migrate import migrate
from headgate.store.migration_files import load
from tests.migration.test_migrate import Link, Source, open_link, rows

INSTANCES = """\
CREATE TABLE headgate.instances (instance_no int GENERATED ALWAYS AS IDENTITY, name text NOT NULL,
    version text NOT NULL, seen_at timestamptz NOT NULL DEFAULT clock_timestamp(), knows int NOT NULL DEFAULT 0);
"""


@pytest.fixture
async def link(blank_database: str) -> AsyncIterator[Link]:
    async with open_link(blank_database) as connection:
        yield connection


@pytest.fixture
async def running(link: Link, tmp_path: Path) -> Source:
    """A database at migration 2, as a release that knows 2 left it; no server runs yet."""
    source = Source(tmp_path)
    source.write("0001_first.sql", INSTANCES)
    source.write("0002_second.sql", "CREATE TABLE headgate.two ();")
    await migrate(link, source=source.root)
    return source


def later(source: Source, *compatible: int | None) -> None:
    """Steps from 3 on, each with the oldest release that it lets run; None: only those that know the step itself."""
    for number, oldest in enumerate(compatible, start=3):
        header = "" if oldest is None else f"-- compatible with: {oldest}\n"
        source.write(f"{number:04}_later.sql", f"{header}CREATE TABLE headgate.later_{number} ();")


async def serves(link: Link, name: str, *, knows: int, age: float = -60.0) -> None:
    """An instance that was seen so many seconds ago; negative: it counts for that much longer than five seconds."""
    await link.execute(
        "INSERT INTO headgate.instances (name, version, knows, seen_at)"
        " VALUES ($1, '1.' || $2::int, $2, clock_timestamp() - $3 * interval '1 second')",
        name,
        knows,
        age,
    )


async def refused(link: Link, source: Source, step: int) -> str:
    """The servers named in the refusal; nothing was applied."""
    before = await rows(link)
    with pytest.raises(MigrationFailed) as error:
        await migrate(link, source=source.root)
    assert await rows(link) == before
    text = str(error.value)
    start = f"migration {step} (later) would break servers of earlier releases, and some run: "
    assert text.startswith(start)
    named, advice = text.removeprefix(start).split(". Stop them, ")
    assert advice == "wait 5 seconds, and run `headgate migrate` again; or pass --break-running"
    return named


async def test_a_step_that_ends_compatibility_is_refused_while_an_earlier_server_lives(
    link: Link, running: Source
) -> None:
    await serves(link, "old", knows=2)
    later(running, None)
    assert await refused(link, running, 3) == "old (1.2)"


@pytest.mark.parametrize("oldest", [1, 2])
async def test_a_step_that_the_servers_can_live_with_is_applied(link: Link, running: Source, oldest: int) -> None:
    await serves(link, "old", knows=2)
    later(running, oldest)
    assert [step.number for step in await migrate(link, source=running.root)] == [3]


async def test_a_later_step_that_breaks_a_server_is_seen_before_the_first_is_applied(
    link: Link, running: Source
) -> None:
    await serves(link, "old", knows=2)
    later(running, 2, 3)
    assert await refused(link, running, 4) == "old (1.2)"


async def test_a_server_that_lived_through_a_compatible_step_is_not_broken_by_the_next_run(
    link: Link, running: Source
) -> None:
    await serves(link, "old", knows=2)
    later(running, 2)
    assert len(await migrate(link, source=running.root)) == 1
    await serves(link, "new", knows=3)
    later(running, 2, 3)
    assert await refused(link, running, 4) == "old (1.2)"
    await link.execute("DELETE FROM headgate.instances WHERE name = 'old'")
    assert [step.number for step in await migrate(link, source=running.root)] == [4]


async def test_only_those_that_would_break_are_named_and_of_many_the_first_five(link: Link, running: Source) -> None:
    later(running, None)
    await serves(link, "knows-it-already", knows=3)
    for number in range(1, 6):
        await serves(link, f"old-{number}", knows=2)
    five = "old-1 (1.2), old-2 (1.2), old-3 (1.2), old-4 (1.2), old-5 (1.2)"
    assert await refused(link, running, 3) == five
    await serves(link, "old-6", knows=1)
    assert await refused(link, running, 3) == f"{five} and 1 more"


async def test_a_server_counts_until_it_was_not_seen_for_five_seconds(link: Link, running: Source) -> None:
    later(running, None)
    await serves(link, "gone", knows=2, age=5)
    await serves(link, "long-gone", knows=2, age=3600)
    await serves(link, "paused", knows=2)
    assert await refused(link, running, 3) == "paused (1.2)"
    gone = "UPDATE headgate.instances SET seen_at = clock_timestamp() - interval '5 seconds' WHERE name = 'paused'"
    await link.execute(gone)
    assert [step.number for step in await migrate(link, source=running.root)] == [3]


async def test_the_operator_may_break_them_anyway(link: Link, running: Source) -> None:
    await serves(link, "old", knows=2)
    later(running, None, None)
    assert [step.number for step in await migrate(link, source=running.root, break_running=True)] == [3, 4]


async def test_a_server_tells_the_newest_migration_that_it_knows(database: str) -> None:
    store = DispatchStore(database)
    try:
        number = await store.register("here", "1.0")
    finally:
        await store.close()
    async with open_link(database) as link:
        row: asyncpg.Record | None = await link.fetchrow(
            "SELECT name, version, knows FROM headgate.instances WHERE instance_no = $1", number
        )
    assert row is not None
    assert tuple(row) == ("here", "1.0", load()[-1].number)
