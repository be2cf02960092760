"""The long lanes' side of their load: processes of `load_roles`, a server that can be restarted, and what they use."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.stack import FOLDER, poller, ready_address
from headgate import embedded
from headgate.store.connect import Connection, connect
from headgate.store.migrate import migrate

Line = dict[str, float]
KIB = 1024


class LoadProcess:
    """One producer or worker; its lines are collected as they come."""

    def __init__(self, module: str, kind: str, *arguments: str, log: Path) -> None:
        self.kind = kind
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=os.environ | poller(kind),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.lines: list[Line] = []
        self.end: dict[str, object] = {}
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", f"{kind} did not begin; see {log}"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def rate(self, jobs_per_second: float) -> None:
        self.tell(f"rate {jobs_per_second}")

    def stop(self, *, seconds: float = 150) -> dict[str, object]:
        """Let it end; its totals."""
        if self._process.poll() is None:
            self.tell("stop")
        self._process.wait(seconds)
        self._reader.join(10)
        assert self.end, f"{self.kind} ended with {self._process.returncode} and without its totals"
        return self.end

    def kill(self) -> None:
        """If it is still there."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def since(self, at: float, until: float = float("inf")) -> list[Line]:
        """The lines of that time."""
        return [line for line in tuple(self.lines) if at < line["at"] <= until]

    def tell(self, command: str) -> None:
        """Send it a line on its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if line.get("ended"):
                self.end = line
            else:
                self.lines.append(line)


class ServerUnderLoad:
    """`headgate serve` with a log file; a restarted one takes the same port."""

    def __init__(self, dsn: str, log: Path, options: Iterable[str] = ()) -> None:
        self._dsn, self._options = dsn, tuple(options)
        self.log = log
        self.port = 0
        self.start()

    def start(self) -> None:
        """Returns when it is ready."""
        ports = ("--port", str(self.port), "--http-port", "0")  # the one after may be in use
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headgate.cli", "serve", *ports, *self._options],
                env=os.environ | {"HEADGATE_DATABASE_URL": self._dsn},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.port = int(ready_address(self._process).rpartition(":")[2])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """SIGTERM, and its drain."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(10)


@dataclass(slots=True)
class Loaded:
    """A database, a server and the load on it."""

    dsn: str
    postmaster: int
    folder: Path
    servers: list[ServerUnderLoad]
    tokens: Mapping[str, str]
    processes: list[LoadProcess] = field(default_factory=list)

    @property
    def server(self) -> ServerUnderLoad:
        """The first one, which no one restarts."""
        return self.servers[0]

    def begin(self, kind: str, tenant: str, **options: int) -> LoadProcess:
        """Another producer or worker of a tenant: a role of `load_roles`."""
        return self.begin_module("bench.load_roles", tenant, kind, options=options)

    def begin_module(
        self, module: str, tenant: str, kind: str = "", *, options: Mapping[str, int] | None = None
    ) -> LoadProcess:
        """Another process for a tenant; it is given its kind and options if it has any."""
        addresses = ",".join(server.address for server in self.servers)
        arguments = [addresses, self.tokens[tenant]]
        if kind:
            arguments = [kind, *arguments, json.dumps(dict(options or {}))]
        made = LoadProcess(module, kind or module, *arguments, log=self.folder / "load.log")
        self.processes.append(made)
        return made

    @asynccontextmanager
    async def database(self) -> AsyncIterator[Connection]:
        """A connection for looking."""
        db = await connect(self.dsn, application_name="headgate bench", statement_timeout=None)
        try:
            yield db
        finally:
            await db.close()


async def create_log_files(db: Connection) -> None:
    """Give PostgreSQL as many files of its write-ahead log as it may keep, as it has after some hours of load.

    It reuses them from then on. To create one takes 42 ms, and all commits wait for it (ADR 24).
    """
    size = "SELECT pg_size_bytes(current_setting($1))"
    files = await db.fetchval(size, "max_wal_size") // await db.fetchval(size, "wal_segment_size")
    for _ in range(files):
        await db.execute("SELECT pg_logical_emit_message(true, 'headgate bench', '')")
        await db.execute("SELECT pg_switch_wal()")
    await db.execute("CHECKPOINT")


@asynccontextmanager
async def loaded(
    name: str,
    *,
    tenants: Iterable[str] = (),
    grants: Mapping[str, Mapping[str, object]] | None = None,
    servers: int = 1,
    options: Iterable[str] = (),
) -> AsyncIterator[Loaded]:
    """Start it; all processes are gone afterwards, the logs stay in build/bench/NAME-logs.

    Each tenant has a token that may submit, work and read; `grants` are further tokens, by a name for each.
    """
    folder, logs = FOLDER / name, FOLDER / f"{name}-logs"
    for old in (folder, logs):
        shutil.rmtree(old, ignore_errors=True)
    logs.mkdir(parents=True)
    entries: dict[str, Mapping[str, object]] = {
        tenant: {"tenant": tenant, "scopes": ["submit", "work", "read"]} for tenant in tenants
    }
    entries |= grants or {}
    tokens = {title: secrets.token_hex(16) for title in entries}
    known = logs / "tokens.json"
    known.touch(mode=0o600)
    known.write_text(json.dumps({token: entries[title] for title, token in tokens.items()}))
    cluster = embedded.start(folder)
    made: Loaded | None = None
    try:
        db = await connect(cluster.dsn(), application_name="headgate bench")
        await migrate(db)
        database = await db.fetchval("SELECT quote_ident(current_database())")
        await db.execute(f"ALTER DATABASE {database} SET track_functions = 'pl'")
        await create_log_files(db)
        await db.close()
        assert cluster.pid is not None
        made = Loaded(cluster.dsn(), cluster.pid, logs, [], tokens)
        for number in range(1, servers + 1):
            log = logs / f"server-{number}.log"
            made.servers.append(ServerUnderLoad(cluster.dsn(), log, ("--tokens", str(known), *options)))
        yield made
    finally:
        if made is not None:
            for process in made.processes:
                process.kill()
            for server in made.servers:
                server.kill()
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    return _status(pid, "VmRSS") / KIB


def memory_most_mib(pid: int) -> float:
    """The most it ever had."""
    return _status(pid, "VmHWM") / KIB


def threads(pid: int) -> int:
    return int(_status(pid, "Threads"))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _status(pid: int, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def per_second(processes: Iterable[LoadProcess], what: str, since: float, until: float) -> float:
    """How many of something all of them had a second, on average over the lines of that time."""
    total = 0.0
    for process in processes:
        lines = process.since(since, until)
        total += sum(line.get(what, 0) for line in lines) / max(1, len(lines))
    return total


def percentile(values: Iterable[float], share: float) -> float:
    """By rank; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def clock() -> float:
    """Of this machine, shared by all processes."""
    return time.monotonic()
