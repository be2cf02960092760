"""The stores the peers run on: one embedded PostgreSQL with a fresh database each time, and Debian's Redis."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg

from bench.peers.install import ROOT, NotInstallable
from bench.peers.peer import Peer
from bench.stack import SERVE, ready_address
from headgate.embedded import Cluster
from headgate.store.connect import connect
from headgate.store.migrate import migrate

DATABASE = "peer"


class Postgres:
    """One database of an embedded cluster, made again for every lane of every peer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.url = cluster.dsn(DATABASE)

    async def fresh(self) -> None:
        """An empty database, and a checkpoint behind it: every lane begins alike."""
        admin = await asyncpg.connect(self._cluster.dsn())
        try:
            await admin.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
            await admin.execute(f"CREATE DATABASE {DATABASE}")
            await admin.execute("CHECKPOINT")
        finally:
            await admin.close()

    @asynccontextmanager
    async def eye(self, peer: Peer) -> AsyncIterator[Eye]:
        """Something to look with."""
        connection = await asyncpg.connect(self.url)
        try:
            await check_durable(connection, peer)
            yield PostgresEye(connection, peer)
        finally:
            await connection.close()


async def check_durable(connection: asyncpg.Connection, peer: Peer) -> None:
    """All peers get the same: an acknowledged job is on disk. Raises RuntimeError if a library has set it otherwise.

    The connection is a new one, so what a library set for the database or the role shows in it.
    """
    rows = await connection.fetch(
        "SELECT name FROM pg_settings WHERE setting <> 'on' "
        "AND name IN ('fsync', 'full_page_writes', 'synchronous_commit')"
    )
    off = [row["name"] for row in rows]
    table = peer.left[0].split()[0]
    if not table.startswith("("):
        lost = await connection.fetchval(
            "SELECT relpersistence <> 'p' FROM pg_class WHERE oid = to_regclass($1)", table
        )
        if lost or lost is None:
            off.append(f"WAL of table {table}")
    if off:
        raise RuntimeError(f"not durable: off or missing: {', '.join(off)}")


class Eye:
    """Asks the store whether anything is left to do."""

    async def anything_left(self) -> bool:
        raise NotImplementedError

    async def first_claim(self) -> float:
        """When the first of Headgate's finished jobs was claimed, on this machine's monotonic clock."""
        raise NotImplementedError


class PostgresEye(Eye):
    def __init__(self, connection: asyncpg.Connection, peer: Peer) -> None:
        self._connection, self._statement = connection, f"SELECT EXISTS (SELECT FROM {peer.left[0]})"

    async def anything_left(self) -> bool:
        return bool(await self._connection.fetchval(self._statement))

    async def first_claim(self) -> float:
        ago = await self._connection.fetchval(
            "SELECT extract(epoch FROM clock_timestamp() - min(claimed_at))::float8 FROM headgate.archive"
        )
        return time.monotonic() - float(ago)


class RedisEye(Eye):
    def __init__(self, redis: Redis, peer: Peer) -> None:
        self._redis, self._commands = redis, [command.split() for command in peer.left]

    async def anything_left(self) -> bool:
        return any(int(self._redis.ask(*command)) for command in self._commands)


@asynccontextmanager
async def headgate_server(url: str) -> AsyncIterator[str]:
    """A server on a fresh database; yields its address."""
    db = await connect(url, application_name="headgate bench")
    await migrate(db)
    await db.close()
    server = subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", *SERVE],
        env=os.environ | {"HEADGATE_DATABASE_URL": url},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield ready_address(server)
    finally:
        server.terminate()
        server.wait(40)


class Redis:
    """A running server, and the few commands needed to look into it: no client library in our own environment."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.url = f"redis://127.0.0.1:{port}/0"
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._answers = self._socket.makefile("rb")

    def ask(self, *words: str) -> str:
        """One command, one simple answer."""
        sent = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in map(str.encode, words))
        self._socket.sendall(sent)
        line = self._answers.readline().decode().strip()
        kind, rest = line[:1], line[1:]
        if kind == "$":
            return self._answers.read(int(rest) + 2)[:-2].decode()
        if kind == "-":
            raise RuntimeError(rest)
        return rest

    @property
    def version(self) -> str:
        info = self.ask("INFO", "server")
        return next(line.partition(":")[2] for line in info.splitlines() if line.startswith("redis_version"))

    async def fresh(self) -> None:
        """Empty."""
        self.ask("FLUSHALL")

    @asynccontextmanager
    async def eye(self, peer: Peer) -> AsyncIterator[Eye]:
        """Something to look with."""
        yield RedisEye(self, peer)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.terminate()
        self._process.wait(20)


@contextmanager
def redis_server(*, fsync: bool) -> Iterator[Redis]:
    """Debian's own settings for persistence (snapshots, no log), or a log that is flushed before every answer."""
    binary, libraries = redis_binary()
    folder = ROOT / "redis-data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--logfile", str(folder / "log")]
    if fsync:
        options += ["--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen([str(binary), *options], env=os.environ | libraries)
    try:
        redis = _until_connected(process, port)
    except BaseException:
        process.kill()
        process.wait(10)
        raise
    try:
        yield redis
    finally:
        redis.close()
        shutil.rmtree(folder, ignore_errors=True)


def _until_connected(process: subprocess.Popen[bytes], port: int) -> Redis:
    until = time.monotonic() + 10
    while True:
        try:
            return Redis(process, port)
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.02)


def redis_binary() -> tuple[Path, dict[str, str]]:
    """On PATH, or taken out of Debian's packages without installing them (which would start a service)."""
    if found := shutil.which("redis-server"):
        return Path(found), {}
    folder = ROOT / "redis"
    binary = folder / "usr/bin/redis-check-rdb"  # the same program: redis-server is a link to it, in another package
    if not binary.exists():
        if shutil.which("apt-get") is None:
            raise NotInstallable("no redis-server on PATH, and no apt-get to fetch Debian's")
        folder.mkdir(parents=True, exist_ok=True)
        listed = subprocess.run(
            ["apt-cache", "depends", "redis-tools"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
        needed = [line.split()[-1] for line in listed.splitlines() if line.strip().startswith("Depends: lib")]
        for package in ("redis-tools", *needed):
            _take_out(package, folder)
    server = folder / "redis-server"
    if not server.exists():
        shutil.copy(binary, server)  # it looks at the name it was started by
    paths = ":".join(str(path) for path in folder.glob("usr/lib/*-linux-*"))
    return server, {"LD_LIBRARY_PATH": paths}


def _take_out(package: str, folder: Path) -> None:
    try:
        subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True, timeout=120, check=True)
        for archive in folder.glob(f"{package}_*.deb"):
            subprocess.run(["dpkg", "-x", archive, folder], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        if package == "redis-tools":
            raise NotInstallable(f"apt-get could not fetch {package}: {problem}") from problem
