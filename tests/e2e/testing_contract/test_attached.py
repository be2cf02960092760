"""An app on the server for tests: what a drain reports, and what a killed test run leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import Headgate, Unauthenticated, Worker
from headgate.testing import LocalServer, NotDrained
from tests.support.server import clean_environ
from tests.support.waiting import until

KILLED = """
import os
import signal
import sys
from headgate.testing import LocalServer

server = LocalServer(sys.argv[1])
print(server._folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def app() -> Headgate:
    app = Headgate("127.0.0.1:1")

    @app.job("double")
    async def double(n: int) -> int:
        return n * 2

    return app


async def test_a_drain_raises_the_error_of_its_worker_at_once(
    the_server: LocalServer, app: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: Worker) -> None:
        raise Unauthenticated("no such token")

    with the_server.attach(app) as attached:
        await app.submit("double", {"n": 4})
        monkeypatch.setattr(Worker, "run", refused)
        with pytest.raises(Unauthenticated, match="no such token"):
            async with asyncio.timeout(60):
                await attached.drain(timeout=600)


async def test_a_drain_ends_when_its_worker_is_stopped(the_server: LocalServer, app: Headgate) -> None:
    app.on_start(Worker.stop)
    with the_server.attach(app) as attached:
        await app.submit("double", {"n": 4})
        with pytest.raises(NotDrained, match="the worker has stopped, and jobs are left"):
            async with asyncio.timeout(60):
                await attached.drain(timeout=600)


async def test_a_drain_names_the_jobs_that_no_handler_can_run(the_server: LocalServer, app: Headgate) -> None:
    with the_server.attach(app) as attached:
        await app.submit("elsewhere", {"n": 4})
        with pytest.raises(NotDrained, match='of topic "elsewhere" is pending, and this app has no handler for it'):
            await attached.drain(timeout=0.1)


async def test_an_app_whose_client_does_not_close_is_attached_no_longer(
    the_server: LocalServer, app: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*, flush: float) -> None:
        raise TimeoutError("the client does not close")

    with pytest.raises(TimeoutError), the_server.attach(app):
        monkeypatch.setattr(app._connection, "start_close", hangs)
    assert [str(one) for one in app._connection.addresses] == ["127.0.0.1:1"]


def test_a_killed_test_run_leaves_no_folder(the_server: LocalServer) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, the_server.database_url],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = Path(done.stdout.strip())
    until(lambda: not os.path.lexists(folder), "the server for tests has removed its folder")
