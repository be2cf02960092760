"""Data folders of embedded servers, and who starts servers in them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.embedded import Cluster, start
from tests.integration.embedded.clusters import SMALL, User, copied, end, introduced, remove, spawned
from tests.support.database import temporary_folder


@pytest.fixture
def fresh() -> Iterator[Path]:
    """A path in a private (0700) parent, as `mktemp -d` and pytest make them: closed to the server's account."""
    parent = temporary_folder()
    yield parent / "data"
    remove(parent)


@pytest.fixture(scope="package")
def template() -> Iterator[Path]:
    parent = temporary_folder()
    start(parent / "data", settings=SMALL).stop()
    yield parent / "data"
    remove(parent)


@pytest.fixture
def data(fresh: Path, template: Path) -> Path:
    """A data folder that was made and stopped before: a copy takes a tenth of an init."""
    copied(template, fresh)
    return fresh


@pytest.fixture
def begin(fresh: Path) -> Iterator[Callable[..., Cluster]]:
    """`start` on the test's folder; whatever is still held at the end is given back."""
    held: list[Cluster] = []

    def begin(where: Path = fresh, **options: object) -> Cluster:
        held.append(start(where, **{"settings": SMALL, **options}))  # type: ignore[arg-type]  # options are start's own
        return held[-1]

    yield begin
    for cluster in held:
        cluster.stop("immediate")


@pytest.fixture
def user(fresh: Path) -> Iterator[Callable[[], User]]:
    processes: list[subprocess.Popen[str]] = []

    def user() -> User:
        processes.append(spawned(fresh))
        return introduced(processes[-1])

    yield user
    for process in processes:
        end(process)
