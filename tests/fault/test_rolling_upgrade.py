"""Two releases on one database at once, under load: nothing is lost, and who cannot take part is notified why."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

import pytest

from headgate.domain.release import version
from tests.fault.conftest import Workers
from tests.fault.history import all_ended, attempts, begun_anew, check, client, connected, steady_load
from tests.support.releases import KNOWN, VERSION, LaterRelease
from tests.support.server import HEADGATE, ServerProcess, clean_environ

BY_RELEASE = """
SELECT i.version, count(*) AS n
  FROM headgate.archive a JOIN headgate.instances i ON i.instance_no = a.owner GROUP BY 1"""
GRACE = ("--grace", "10")


def command(*arguments: str, dsn: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command line of this or another release, to its end."""
    return subprocess.run(
        [HEADGATE, *arguments],
        env={**clean_environ(), "HEADGATE_DATABASE_URL": dsn, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


Start = Callable[..., list[ServerProcess]]


@pytest.mark.req("F57", "F11")
async def test_servers_are_upgraded_one_by_one_under_load_and_back(
    database: str, start: Start, workers: Workers, tmp_path: Path
) -> None:
    later = LaterRelease(tmp_path)

    async def serve(name: str, *, port: int = 0, environ: Mapping[str, str] | None = None) -> ServerProcess:
        folder = tmp_path / name
        folder.mkdir()
        (server,) = await asyncio.to_thread(
            start, [lambda: ServerProcess(database, folder=folder, port=port, args=GRACE, environ=environ)]
        )
        return server

    first, second = await asyncio.gather(serve("first"), serve("second"))
    worker_processes = await asyncio.to_thread(workers, 2, [first, second], workers=3, concurrency=4, prefetch=4)
    ids: list[UUID] = []
    async with client([first, second]) as hg:
        async with steady_load(hg, ids, worker_processes):
            await begun_anew(worker_processes, 50)
            migrated = await asyncio.to_thread(command, "migrate", dsn=database, environ=later.environ)
            assert migrated.returncode == 0, migrated.stderr
            assert f"2 applied, now at migration {KNOWN + 2}" in migrated.stdout
            await begun_anew(worker_processes, 50)  # both earlier servers go on
            assert await asyncio.to_thread(first.terminate) == 0
            first = await serve("first-upgraded", port=first.port, environ=later.environ)
            await begun_anew(worker_processes, 100)  # old and new together
            assert await asyncio.to_thread(second.terminate) == 0
            # Going back is possible until the next release contracts: the earlier one starts on the later schema.
            second = await serve("second-earlier-again", port=second.port)
            await begun_anew(worker_processes, 100)
            assert await asyncio.to_thread(second.terminate) == 0
            await serve("second-upgraded", port=second.port, environ=later.environ)
            await begun_anew(worker_processes, 100)
        await all_ended(database)
    ended, starts = await check(database, ids, worker_processes)
    assert attempts(ended) == {1: len(ids)}
    assert len(starts) == len(ids)
    async with connected(database) as db:
        by_release = {row["version"]: row["n"] for row in await db.fetch(BY_RELEASE)}
    assert set(by_release) == {version(), VERSION}
    assert min(by_release.values()) >= 50


@pytest.mark.req("F57")
async def test_a_step_that_ends_compatibility_waits_for_the_servers_it_would_break(
    database: str, start: Start, tmp_path: Path
) -> None:
    breaking = LaterRelease(tmp_path, compatible=False)
    (server,) = await asyncio.to_thread(start, [lambda: ServerProcess(database, folder=tmp_path, args=GRACE)])
    refused = await asyncio.to_thread(command, "migrate", dsn=database, environ=breaking.environ)
    assert refused.returncode == 4
    assert f"migration {KNOWN + 1} (expand) would break servers of earlier releases, and some run: " in refused.stderr
    assert f"({version()}). Stop them" in refused.stderr
    newer = await asyncio.to_thread(command, "serve", "--dev", "--port", "0", dsn=database, environ=breaking.environ)
    assert newer.returncode == 78
    assert f"is at migration {KNOWN}, this release needs {KNOWN + 2}: run `headgate migrate`" in newer.stderr
    assert await asyncio.to_thread(server.terminate) == 0
    async with connected(database) as db:
        await db.execute(
            "UPDATE headgate.instances SET seen_at = seen_at - interval '5 seconds'"
        )  # as if we had waited
    migrated = await asyncio.to_thread(command, "migrate", dsn=database, environ=breaking.environ)
    assert migrated.returncode == 0, migrated.stderr
    older = await asyncio.to_thread(command, "serve", "--dev", "--port", "0", dsn=database)
    assert older.returncode == 78
    assert older.stderr.splitlines()[-1] == (
        f"error: the database is at migration {KNOWN + 2} (applied by headgate {VERSION}), this release knows {KNOWN}: "
        f"upgrade headgate to a release that knows {KNOWN + 2} or later"
    )
