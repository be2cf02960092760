"""`headgate serve --processes N`: one port, several processes, from outside as one server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate import Headgate
from tests.e2e.conftest import Serve, Spawn
from tests.fault.history import all_ended, attempts, begun, check, connected, submit
from tests.support import http_clients
from tests.support.epochs import claims
from tests.support.server import HEADGATE, READY, LoggedProcess, clean_environ
from tests.support.waiting import until, until_async
from tests.support.workers import WorkerProcess

STARTED = r"process_started process=(?P<process>\d+) pid=(?P<pid>\d+)$"
PROCESS_READY = r"\[(?P<number>\d+)\] ready instance="
BOTH = (["1", "2"], ["2", "1"])
SESSIONS = 24
"""So many that all of them on one of two processes happens once in eight million runs."""
INSTANCES = "SELECT name FROM headgate.instances WHERE seen_at > clock_timestamp() - interval '1 minute' ORDER BY name"


def pids(server: LoggedProcess) -> dict[int, int]:
    """The processes by their numbers, as last started."""
    return {int(match["process"]): int(match["pid"]) for match in server.seen(STARTED)}


def gone(pid: int) -> bool:
    """Whether there is no such process any more; one that no one has waited for yet counts as gone."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_gone(found: dict[int, int]) -> None:
    until(lambda: all(gone(pid) for pid in found.values()), f"processes {found} are gone")


def run(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command line to its end."""
    return subprocess.run(
        [HEADGATE, "serve", "--dev", *arguments],
        env={**clean_environ(), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answers_of(url: str, instances: set[str]) -> Callable[[], bool]:
    """Whether all of these instances have answered over HTTP; each request is a connection of its own."""
    seen: set[str] = set()

    def all_have() -> bool:
        seen.add(http_clients.get(f"{url}/health/details").json()["instance"])
        return seen == instances

    return all_have


@pytest.mark.parametrize("how", [(), ("--poll-only",)], ids=["notified", "poll-only"])
async def test_jobs_go_through_all_processes_and_a_pause_holds_in_all(
    serve: Serve, database: str, tmp_path: Path, how: tuple[str, ...]
) -> None:
    server = await asyncio.to_thread(serve, "--processes", "2", "--http-port", "0", "--name", "pair", *how)
    await asyncio.to_thread(until, answers_of(server.http_url, {"pair-1", "pair-2"}), "both answer over HTTP")
    release = tmp_path / "release"
    with WorkerProcess(server.address, folder=tmp_path, workers=SESSIONS, concurrency=1) as worker:
        async with Headgate(server.address) as hg, connected(database) as db:
            assert [row["name"] for row in await db.fetch(INSTANCES)] == ["pair-1", "pair-2"]

            async def both_have_sessions() -> bool:
                return {one.instance for one in await hg.admin.workers.list()} == {"pair-1", "pair-2"}

            await until_async(both_have_sessions, "workers are connected to both")
            ids = await submit(hg, "fast", [b""])  # a topic can be paused once it has had a job
            # One for each session, and all at once: no process can do without the other.
            ids += await submit(hg, "held", [str(release).encode()] * SESSIONS)
            await begun([worker], 1 + SESSIONS)
            release.touch()
            await all_ended(database)
            owners = await db.fetch("SELECT owner, count(*) AS n FROM headgate.archive GROUP BY 1")
            assert len(owners) == 2, owners

            await hg.admin.pause(topic="fast", reason="a look at both")
            begun_before = worker.count()
            ids += await submit(hg, "fast", [b""] * 50)
            ids += await submit(hg, "slow", [b"1"] * 50)
            await begun([worker], begun_before + 50)
            assert Counter(start.topic for start in worker.starts()) == {"fast": 1, "held": SESSIONS, "slow": 50}
            await hg.admin.resume(topic="fast")
            await all_ended(database)
        ended, starts = await check(database, ids, [worker])
    assert attempts(ended) == {1: SESSIONS + 101}
    assert len(starts) == SESSIONS + 101
    (printed,) = server.seen(READY)
    assert [match["number"] for match in server.seen(PROCESS_READY) if match.start() < printed.start()] in BOTH
    assert await asyncio.to_thread(server.terminate) == 0
    all_gone(pids(server))


async def test_a_process_that_is_killed_is_started_again_while_the_others_serve(
    serve: Serve, database: str, tmp_path: Path
) -> None:
    server = await asyncio.to_thread(serve, "--processes", "2", "--lease", "3")
    first = pids(server)
    with WorkerProcess(server.address, folder=tmp_path, workers=4, concurrency=1) as worker:
        async with Headgate(server.address) as hg:
            os.kill(first[1], signal.SIGKILL)
            ids = await submit(hg, "fast", [b""] * 20)
            await all_ended(database)
            await asyncio.to_thread(server.saw, r"process_ended process=1 exit=-9 restart_in=")
            await asyncio.to_thread(server.saw, r"\[1\] ready instance=", times=2)
            second = pids(server)
            assert second[1] != first[1]
            assert second[2] == first[2]
            # One that ends by itself is missed as well.
            os.kill(second[2], signal.SIGTERM)
            await asyncio.to_thread(server.saw, r"process_ended process=2 exit=0 restart_in=")
            await asyncio.to_thread(server.saw, r"\[2\] ready instance=", times=2)
            ids += await submit(hg, "fast", [b""] * 20)
            await all_ended(database)
        await check(database, ids, [worker])
    assert len(server.seen(READY)) == 1
    assert await asyncio.to_thread(server.terminate) == 0
    all_gone(pids(server))


async def test_a_stop_waits_for_handlers_also_when_the_whole_group_is_signalled(
    serve: Serve, database: str, tmp_path: Path
) -> None:
    server = await asyncio.to_thread(serve, "--processes", "2")
    release = tmp_path / "release"
    with WorkerProcess(server.address, folder=tmp_path, workers=4, concurrency=1) as worker:
        async with Headgate(server.address) as hg:
            ids = await submit(hg, "held", [str(release).encode()] * 4)
            await begun([worker], 4)
            for pid in (server.pid, *pids(server).values()):  # as a service manager does
                os.kill(pid, signal.SIGTERM)
            await asyncio.to_thread(worker.saw, "server_draining", times=4)
            assert server.exit_code is None
            release.touch()
            assert await asyncio.to_thread(server.wait) == 0
            all_gone(pids(server))
        ended, starts = await check(database, ids, [worker])
    assert {(job.attempt, claims(job.epoch)) for job in ended} == {(1, 1)}
    assert len(starts) == 4


async def test_a_second_signal_ends_all_processes_at_once(serve: Serve, tmp_path: Path) -> None:
    server = await asyncio.to_thread(serve, "--processes", "2")
    with WorkerProcess(server.address, folder=tmp_path, workers=2, concurrency=1) as worker:
        async with Headgate(server.address) as hg:
            await submit(hg, "held", [str(tmp_path / "never").encode()] * 2)
            await begun([worker], 2)
            server.signal(signal.SIGTERM)
            await asyncio.to_thread(worker.saw, "server_draining", times=2)
            assert await asyncio.to_thread(server.terminate) == 1
            all_gone(pids(server))
            assert len(server.seen("second_signal ")) == 1


async def test_processes_end_when_their_parent_is_killed(serve: Serve, database: str, tmp_path: Path) -> None:
    server = await asyncio.to_thread(serve, "--processes", "2")
    found = pids(server)
    release = tmp_path / "release"
    with WorkerProcess(server.address, folder=tmp_path, workers=2, concurrency=1) as worker:
        async with Headgate(server.address) as hg:
            ids = await submit(hg, "held", [str(release).encode()] * 2)
            await begun([worker], 2)
            server.kill()
            # In good order: what runs is not cut off.
            await asyncio.to_thread(worker.saw, "server_draining", times=2)
            release.touch()
            await asyncio.to_thread(all_gone, found)
        ended, _ = await check(database, ids, [worker])
    assert {(job.attempt, claims(job.epoch)) for job in ended} == {(1, 1)}


async def test_a_process_that_was_started_again_gets_its_share_of_the_workers(
    serve: Serve, database: str, tmp_path: Path
) -> None:
    server = await asyncio.to_thread(serve, "--processes", "2", "--name", "pair")
    release = tmp_path / "release"
    with WorkerProcess(server.address, folder=tmp_path, workers=SESSIONS, concurrency=1) as worker:
        async with Headgate(server.address) as hg:
            ids = await submit(hg, "held", [str(release).encode()] * SESSIONS)
            await begun([worker], SESSIONS)
            os.kill(pids(server)[1], signal.SIGKILL)  # all gather at the other one
            await asyncio.to_thread(server.saw, r"sessions_moved process=2 ")

            async def shared() -> bool:
                found = Counter(one.instance for one in await hg.admin.workers.list())
                return found["pair-1"] >= SESSIONS // 4 - 2 and found.total() == SESSIONS

            # What runs is taken along, so no one has to wait for it.
            await until_async(shared, "both have workers")
            release.touch()
            await all_ended(database)
        ended, starts = await check(database, ids, [worker])
    assert {(job.attempt, claims(job.epoch)) for job in ended} == {(1, 1)}
    assert len(starts) == SESSIONS


def test_a_port_in_use_is_refused_and_never_shared(serve: Serve, database: str) -> None:
    environ = {"HEADGATE_DATABASE_URL": database}
    several = serve("--processes", "2")
    for more in ((), ("--processes", "2")):
        refused = run("--port", str(several.port), *more, environ=environ)
        assert refused.returncode == 78
        assert "cannot listen on" in refused.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run("--processes", "2", "--port", str(taken.getsockname()[1]), environ=environ)
    assert refused.returncode == 78
    assert "cannot listen on" in refused.stderr


def test_what_keeps_all_from_starting_is_reported_once(blank_database: str) -> None:
    refused = run("--processes", "3", "--port", "0", environ={"HEADGATE_DATABASE_URL": blank_database})
    assert refused.returncode == 78
    errors = [line for line in refused.stderr.splitlines() if line.startswith("error:")]
    assert errors == ["error: the database has no headgate schema yet: run `headgate migrate`"]
    assert "ready" not in refused.stdout


def test_a_wrong_number_is_refused_before_anything_happens(tmp_path: Path) -> None:
    refused = run("--processes=0", "--port", "0", environ={"HEADGATE_DATA": str(tmp_path / "data")})
    assert refused.returncode == 78
    assert refused.stderr == "error: --processes: is 0; use 1 to 256, about one per processor\n"
    assert not (tmp_path / "data").exists()


def test_only_the_parent_runs_the_embedded_database(spawn: Spawn, tmp_path: Path) -> None:
    environ = {**clean_environ(), "HEADGATE_DATA": str(tmp_path / "data")}
    assert spawn("migrate", HEADGATE, "migrate", environ=environ).wait() == 0
    server = spawn("serve", HEADGATE, "serve", "--dev", "--port", "0", "--processes", "2", environ=environ)
    server.saw(READY)
    postmaster = next((tmp_path / "data").rglob("postmaster.pid"))
    pid = int(postmaster.read_text().split()[0])
    assert server.terminate() == 0
    all_gone({**pids(server), 0: pid})
