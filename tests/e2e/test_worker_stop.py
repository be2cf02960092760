"""`headgate workers stop`: a real worker process finishes what it runs and ends; one that takes its id runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from headgate import Headgate
from tests.e2e.conftest import Serve, Spawn
from tests.support.server import HEADGATE, clean_environ
from tests.support.waiting import until_async

APP = """
import asyncio
from pathlib import Path
from headgate import Headgate

hg = Headgate()

@hg.job("wait")
async def wait() -> str:
    print("handler began", flush=True)
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return "done"

@hg.job("count", run_in="process")
def count(n: int) -> int:
    return n + 1
"""


async def test_a_worker_that_is_asked_to_stop_finishes_ends_with_0_and_its_successor_runs(
    serve: Serve, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    asked, other = await asyncio.to_thread(serve), await asyncio.to_thread(serve)
    environ = {**clean_environ(), "HEADGATE_URL": other.address}
    command = (sys.executable, "-m", "headgate.cli", "worker", "app:hg", "--worker-id", "ant", "--concurrency", "1")
    async with asyncio.timeout(180), Headgate(asked.address) as hg:
        worker = spawn("worker", *command, environ=environ)
        counted = await hg.submit("count", {"n": 1})
        assert await counted.result(60) == 2  # it has a child process
        running = await hg.submit("wait", {})
        await asyncio.to_thread(worker.saw, "^handler began")
        waiting = await hg.submit("wait", {})

        async def listed() -> bool:
            return any(one.worker == "ant" for one in await hg.admin.workers.list())

        await until_async(listed, "the server that is asked knows it from the other's summary")
        done = await asyncio.to_thread(
            subprocess.run,
            [HEADGATE, "workers", "stop", "ant", "--yes", "--reason", "memory leak", "--url", asked.address],
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "ant is asked to stop (1 session)\n"), done.stderr
        await asyncio.to_thread(worker.saw, r'stopping asked_by=\S+ reason="memory leak"')
        await asyncio.to_thread(other.saw, "worker_stop_sent worker=ant")

        async def stopping() -> bool:
            return [(one.state, one.stop and one.stop.reason) for one in await hg.admin.workers.list()] == [
                ("stopping", "memory leak")
            ]

        await until_async(stopping, "people see that it stops")
        assert worker.exit_code is None, "its handler runs"
        (tmp_path / "go").touch()
        assert await asyncio.to_thread(worker.wait) == 0
        assert await running.result(60) == "done"
        assert (await hg.get(waiting.id)).state == "pending", "what it had not begun is for others"
        assert not (await hg.admin.workers.list()).lost
        entry = next(one for one in await hg.admin.audit() if one.verb == "stop_worker")
        assert (entry.actor, entry.target, entry.reason) == ("dev", "worker ant", "memory leak")

        successor = spawn("successor", *command, environ=environ)
        assert await waiting.result(60) == "done"
        later = await hg.submit("wait", {}, delay=2.5)  # ticks of the server have passed when it is due
        assert await later.result(60) == "done"
        assert successor.exit_code is None
        assert not successor.seen("stopping")
        assert await asyncio.to_thread(successor.terminate) == 0


async def test_a_reloading_worker_that_is_asked_to_stop_is_not_started_again(
    serve: Serve, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    server = await asyncio.to_thread(serve)
    environ = {**clean_environ(), "HEADGATE_URL": server.address}
    command = (sys.executable, "-m", "headgate.cli", "worker", "app:hg", "--worker-id", "ant", "--reload")
    worker = spawn("worker", *command, environ=environ)
    async with asyncio.timeout(90), Headgate(server.address) as hg:

        async def listed() -> bool:
            return bool(await hg.admin.workers.list())

        await until_async(listed, "it is connected")
        await hg.admin.workers.stop("ant")
        assert await asyncio.to_thread(worker.wait) == 0
    assert len(worker.seen("worker_started")) == 1
