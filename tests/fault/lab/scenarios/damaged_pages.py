"""Pages of tables with bytes that PostgreSQL did not write."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Final
from uuid import UUID

from headgate.domain.errors import HeadgateError
from tests.fault.lab.load import Tenant
from tests.fault.lab.postgres import postgres_stopped
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import OTHERS_LOAD, RED, add_worker, client_of, completed, printed
from tests.support.epochs import claims

PAGE: Final = 8192
OUR_PAGE: Final = """
SELECT (ctid::text::point)[0]::int AS page, (array_agg(id))[1] AS job, pg_relation_filepath('headgate.jobs') AS path
  FROM headgate.jobs j WHERE (ctid::text::point)[0] < pg_relation_size('headgate.jobs') / 8192 - 1
 GROUP BY 1
HAVING bool_and(id = ANY ($1)) AND 8168 - sum((pg_column_size(j) + 7) / 8 * 8 + 4)
       < 819 + (SELECT min(pg_column_size(o)) FROM headgate.jobs o)
 ORDER BY sum(pg_column_size(j)) DESC LIMIT 1"""
"""Not the last one, and so full that no other row has its place there: fillfactor leaves 819 of 8168 bytes free."""
ROW_BYTES: Final = 900
"""Of a job: eight of them fill a page."""
ON_A_PAGE: Final = """
SELECT a.id, a.tableoid::regclass::text, pg_relation_filepath(a.tableoid) FROM headgate.archive a
  JOIN headgate.tenants n USING (tenant_no)
 WHERE n.name = $1 AND (a.ctid::text::point)[0] = 0 AND pg_relation_size(a.tableoid) >= 4 * 8192 LIMIT 1"""


@scenario("F48", "flipped byte in a heap page", checks=("I13",))
async def a_page_is_broken(world: World) -> None:
    """A call for a job on it gets an error that says so; all others run. PostgreSQL finds it by its checksum."""
    await completed(world, await world.load.submit_many(world.load.tenant(RED), "fast", 200))
    async with world.database() as db:
        assert await db.fetchval("SHOW data_checksums") == "on"
        row = await db.fetchrow(ON_A_PAGE, RED)
    assert row is not None
    job, path = UUID(str(row[0])), row[2]
    async with world.faulty("flip a byte"):
        async with postgres_stopped(world) as data:
            _flip(data / path)
        try:
            caller = client_of(world, world.address("s1"))
            try:
                await _told_of(caller.hg.get(job, payload=True))
                await _others_run(world, caller)
                await _told_of(caller.hg.get(job, payload=True))
            finally:
                await caller.hg.close(flush=0.1)
            assert "invalid page" in world.cluster.log.read_text(errors="replace")
        finally:
            async with postgres_stopped(world) as data:
                _flip(data / path)


@scenario("F48b", "flipped byte in a page of jobs that wait", checks=("I13",), world=OTHERS_LOAD)
async def a_page_of_waiting_jobs_is_broken(world: World) -> None:
    """A call for them gets an error; their topic stalls and is logged, the others do not. Repaired, they run."""
    gate = world.folder / "gate-page"
    gate.touch()
    tenant = world.load.tenant(RED)
    jobs = await world.load.submit_many(tenant, "held", 1, until=str(gate), pad="")
    async with world.database() as db:
        size: int = await db.fetchval("SELECT pg_column_size(j) FROM headgate.jobs j WHERE id = ANY ($1)", jobs)
    # No one runs them yet. By one call: rows of others would come between them.
    jobs += await world.load.submit_many(tenant, "held", 150, until=str(gate), pad="x" * (ROW_BYTES - size))
    assert len(jobs) == 151
    async with world.database() as db:
        row = await db.fetchrow(OUR_PAGE, jobs)
    assert row is not None, "none of the pages is full, and has only these jobs"
    async with world.faulty("flip a byte"):
        async with postgres_stopped(world) as data:
            _flip(data / row["path"], row["page"])
        try:
            caller = client_of(world, world.address("s1"))
            try:
                await _told_of(caller.hg.get(row["job"], payload=True))
                await add_worker(world, "w8", servers=["s1"], concurrency=130)
                await printed(world, "s1", "claim.*invalid page")
                await _others_run(world, caller)
            finally:
                await caller.hg.close(flush=0.1)
            assert all(world.alive(name) for name in (*world.server_specs, *world.worker_specs))
        finally:
            async with postgres_stopped(world) as data:
                _flip(data / row["path"], row["page"])
    ended = await completed(world, jobs)
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended


async def _others_run(world: World, caller: Tenant) -> None:
    """Looked at by the client alone: the laboratory's own look reads whole tables."""
    for _ in range(3):
        other = await world.load.submit(caller, "fast", key=f"sound-{world.chance.randrange(10**9)}")
        assert other is not None
        await caller.hg.wait_result(other, timeout=20)


def _flip(file: Path, number: int = 0) -> None:
    """Invert one byte in the middle of a page; a second call repairs it."""
    with file.open("r+b") as page:
        page.seek(number * PAGE + PAGE // 2)
        was = page.read(1)
        page.seek(number * PAGE + PAGE // 2)
        page.write(bytes([was[0] ^ 0x10]))
        os.fsync(page.fileno())


async def _told_of(asked: Awaitable[object]) -> None:
    try:
        found = await asked
    except HeadgateError as error:
        told = str(error)
    else:
        raise AssertionError(f"a job on a broken page was shown as if nothing were wrong: {found}")
    assert "page" in told, told
