"""Fixtures for tests of whole processes. Their logs are part of the report of a test that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import asyncpg
import pytest

from headgate.store.connect import connect
from tests.support.server import HEADGATE, LoggedProcess, ServerProcess

_PROCESSES = pytest.StashKey[list[LoggedProcess]]()


class Serve(Protocol):
    """Starts a server on the test's database; it is ready when this returns, and killed when the test is over."""

    def __call__(
        self, *args: str, port: int = 0, dsn: str | None = None, environ: Mapping[str, str] | None = None
    ) -> ServerProcess: ...


class Spawn(Protocol):
    """Starts any other process under the same care."""

    def __call__(self, name: str, *command: str | Path, environ: Mapping[str, str]) -> LoggedProcess: ...


@pytest.fixture
def processes(request: pytest.FixtureRequest, database: str) -> Iterator[ExitStack]:
    """What a test has started, killed at its end, the newest first."""
    del database  # asked for so that it is dropped later: a server alive would connect again and again
    request.node.stash[_PROCESSES] = []
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def serve(request: pytest.FixtureRequest, processes: ExitStack, database: str, tmp_path: Path) -> Serve:
    """A factory of servers."""

    def start(
        *args: str, port: int = 0, dsn: str | None = None, environ: Mapping[str, str] | None = None
    ) -> ServerProcess:
        server = ServerProcess(dsn or database, folder=tmp_path, port=port, args=args, environ=environ)
        request.node.stash[_PROCESSES].append(processes.enter_context(server))
        return server

    return start


@pytest.fixture
def spawn(request: pytest.FixtureRequest, processes: ExitStack, tmp_path: Path) -> Spawn:
    """A factory of other processes."""

    def start(name: str, *command: str | Path, environ: Mapping[str, str]) -> LoggedProcess:
        fork = "headgate" if _is_worker(command) else None
        process = LoggedProcess(name, command, folder=tmp_path, environ=environ, fork=fork)
        request.node.stash[_PROCESSES].append(processes.enter_context(process))
        return process

    return start


def _is_worker(command: Sequence[str | Path]) -> bool:
    """Whether it is `headgate worker`, and one that runs in one process."""
    line = [str(part) for part in command]
    is_headgate = line[:1] == [str(HEADGATE)] or line[1:3] == ["-m", "headgate.cli"]
    return is_headgate and "worker" in line[1:4] and "--reload" not in line


@pytest.fixture
def the_server(running: tuple[ServerProcess, str]) -> ServerProcess:
    """The server of `running`, which a module or package defines: a server, and the URL of its database."""
    return running[0]


@pytest.fixture
async def rows(running: tuple[ServerProcess, str]) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection to the database of `running`."""
    connection = await connect(running[1], application_name="headgate test")
    yield connection
    await connection.close()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{uuid4()}"


@pytest.fixture
def server(request: pytest.FixtureRequest, the_server: ServerProcess) -> Iterator[ServerProcess]:
    """`the_server` of a module or package, for one test: it must outlive it, and its log is part of the report."""
    request.node.stash.setdefault(_PROCESSES, []).append(the_server)
    yield the_server
    assert the_server.exit_code is None, the_server.shown()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for process in item.stash.get(_PROCESSES, []):
            report.sections.append((f"Log of {process.name}", process.shown()))
    return report
