"""Fixtures for tests that kill things: servers and workers by the handful, and a PostgreSQL that may die."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from headgate import embedded
from tests.e2e.conftest import _PROCESSES, processes, pytest_runtest_makereport
from tests.support.database import Server, temporary_folder
from tests.support.server import LoggedProcess, ServerProcess
from tests.support.stalls import Stalls
from tests.support.workers import WorkerProcess

__all__ = ["processes", "pytest_runtest_makereport"]  # fixtures and a hook, found here by their names

P = TypeVar("P", bound=LoggedProcess)


class Servers(Protocol):
    """Starts so many servers at once; all are ready when this returns, and killed when the test is over."""

    def __call__(self, number: int, *args: str, port: int = 0, dsn: str | None = None) -> list[ServerProcess]: ...


class Workers(Protocol):
    """Starts so many worker processes at once; see WorkerProcess. Connected when this returns, unless `wait` is off."""

    def __call__(
        self,
        number: int,
        servers: Sequence[ServerProcess],
        *,
        workers: int = 1,
        concurrency: int = 8,
        prefetch: int = 0,
        topics: Sequence[str] = (),
        lease: int = 0,
        grace: float = 30,
        wait: bool = True,
    ) -> list[WorkerProcess]: ...


@pytest.fixture
def start(request: pytest.FixtureRequest, processes: ExitStack) -> Callable[[Sequence[Callable[[], P]]], list[P]]:
    """Starts processes side by side: one after the other, eight of them would take eight seconds."""

    def side_by_side(makers: Sequence[Callable[[], P]]) -> list[P]:
        with ThreadPoolExecutor(len(makers)) as threads:
            futures = [threads.submit(make) for make in makers]
        started = [future.result() for future in futures if future.exception() is None]
        for process in started:
            request.node.stash[_PROCESSES].append(processes.enter_context(process))
        return [future.result() for future in futures]  # raises what the first that failed has raised

    return side_by_side


@pytest.fixture
def stalls() -> Iterator[Stalls]:
    """How long the machine stalls while the test runs."""
    with Stalls() as found:
        yield found


@pytest.fixture
def servers(start: Callable[..., list[ServerProcess]], database: str, tmp_path: Path) -> Servers:
    """A factory of servers, each with a folder for its log."""
    numbers = count(1)

    def make(args: Sequence[str], port: int, dsn: str | None) -> ServerProcess:
        folder = tmp_path / f"server-{next(numbers)}"
        folder.mkdir()
        return ServerProcess(dsn or database, folder=folder, port=port, args=args)

    def start_them(number: int, *args: str, port: int = 0, dsn: str | None = None) -> list[ServerProcess]:
        return start([lambda: make(args, port, dsn)] * number)

    return start_them


@pytest.fixture
def workers(start: Callable[..., list[WorkerProcess]], tmp_path: Path) -> Workers:
    """A factory of worker processes."""
    numbers = count(1)

    def start_them(
        number: int,
        servers: Sequence[ServerProcess],
        *,
        workers: int = 1,
        concurrency: int = 8,
        prefetch: int = 0,
        topics: Sequence[str] = (),
        lease: int = 0,
        grace: float = 30,
        wait: bool = True,
    ) -> list[WorkerProcess]:
        def make() -> WorkerProcess:
            return WorkerProcess(
                [server.address for server in servers],
                folder=tmp_path,
                name=f"worker-{next(numbers)}",
                workers=workers,
                concurrency=concurrency,
                prefetch=prefetch,
                topics=topics,
                lease=lease,
                grace=grace,
                wait=wait,
            )

        return start([make] * number)

    return start_them


# ---------------------------------------------------------------------- a PostgreSQL that may die


@pytest.fixture(scope="package")
def mortal() -> Iterator[embedded.Cluster]:
    """A PostgreSQL of its own: a test that kills it starts it again."""
    folder = temporary_folder()
    try:
        with embedded.start(folder / "postgres", settings={"max_wal_size": "256MB", "shared_buffers": "64MB"}) as own:
            yield own
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="package")
def mortal_template(mortal: embedded.Cluster) -> str:
    """The name of a database in it that was migrated once."""
    admin = Server(mortal.dsn())
    name = admin.create_template()
    admin.close()
    return name


@pytest.fixture
def mortal_database(mortal: embedded.Cluster, mortal_template: str, processes: ExitStack) -> Iterator[str]:
    """The URL of a fresh migrated database in it."""
    admin = Server(mortal.dsn())
    name = admin.create(template=mortal_template)
    yield admin.dsn_of(name)
    processes.close()  # first: a server alive would connect again and again
    if mortal.pid is None:  # the test failed in the middle of its outage
        mortal.restart()
    admin.drop(name)
    admin.close()
