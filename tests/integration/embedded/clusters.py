"""Embedded servers of tests: users in processes of their own, and small helpers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, NamedTuple

import asyncpg
import pytest

import headgate
from headgate.embedded import (
    Cluster,
)
from tests.support.waiting import until

SOURCES = Path(headgate.__file__).parent
SMALL = {"shared_buffers": "16MB", "max_connections": "20"}  # many servers on one test machine; fsync stays on
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="is about dropping root's privileges")
on_made_data = pytest.mark.usefixtures("data")
with_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads other processes from /proc")

# A user in a process of its own: starts or joins, says where the server is, leaves when its standard input closes.
USER = """
import json, sys
from pathlib import Path
from headgate.embedded import start
cluster = start(Path(sys.argv[1]), settings=json.loads(sys.argv[2]))
print(json.dumps({"pid": cluster.pid, "dsn": cluster.dsn(), "version": cluster.version}), flush=True)
sys.stdin.read()
cluster.stop()
"""


class User(NamedTuple):
    process: subprocess.Popen[str]
    server_pid: int
    dsn: str

    def leave(self) -> None:
        pipe_of(self.process.stdin).close()
        assert self.process.wait(30) == 0


def copied(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True, timeout=20)  # noqa: S607 - keeps owners, as shutil does not


def spawned(data: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(data), json.dumps(SMALL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def introduced(process: subprocess.Popen[str]) -> User:
    said = json.loads(pipe_of(process.stdout).readline())
    return User(process, said["pid"], said["dsn"])


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(30)
    for pipe in (process.stdin, process.stdout):
        pipe_of(pipe).close()


def pipe_of(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def remove(folder: Path) -> None:
    """Remove a folder in which a process may still be writing."""

    def removed() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    until(removed, f"{folder} is removed")


def gone(pid: int) -> bool:
    """No such process, or only its unreaped remains: a container's first process may never reap, or be at it (X)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def running_pid(cluster: Cluster) -> int:
    assert cluster.pid is not None
    return cluster.pid


async def ask(dsn: str, *statements: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=20)
    try:
        answer: object = None
        for statement in statements:
            answer = await connection.fetchval(statement, timeout=20)
        return answer
    finally:
        await connection.close(timeout=20)


KEEP = ("CREATE TABLE kept (n int)", "INSERT INTO kept SELECT generate_series(1, 1000)")
COUNT = "SELECT count(*) FROM kept"
