"""A whole Headgate for one lane: PostgreSQL of its own, server processes, and producers and workers as processes too.

Everything runs on one machine and one clock (CLOCK_MONOTONIC is shared by processes), so a lane may subtract a time
taken in the producer from one taken in the worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import medians
from headgate import embedded
from headgate.cli.grpc_settings import EXPERIMENTS
from headgate.store import control
from headgate.store.connect import Connection, connect
from headgate.store.migrate import migrate

FOLDER = Path("build/bench")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
TOPIC = "bench"
SERVE = ("serve", "--dev", "--port", "0", "--log-level", "WARNING")
REST = re.compile(r"REST API on (\S+)")
READY = re.compile(r"headgate \S+ ready on (\S+:\d+)")


def poller(role: str) -> dict[str, str]:
    """The variable that selects how gRPC polls: as in processes of `headgate worker`, or as in any application."""
    return {} if role.endswith("_default") else {"GRPC_EXPERIMENTS": EXPERIMENTS}


def ready_address(server: subprocess.Popen[str]) -> str:
    """Wait until a server is ready; the address of its gRPC port."""
    return ready_addresses(server)[0]


def ready_addresses(server: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait until a server is ready; the address of its gRPC port, and the URL of its HTTP port, if it has one."""
    assert server.stdout is not None
    url = ""
    for line in server.stdout:
        if found := REST.fullmatch(line.rstrip("\n")):
            url = found[1]
        if found := READY.fullmatch(line.rstrip("\n")):
            return found[1], url
    raise AssertionError(f"the server ended with {server.wait(10)} before it was ready")


class Role:
    """A producer or a worker in a process of its own (bench/roles.py): ready, go, one JSON line at the end."""

    def __init__(self, *arguments: str, dsn: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.roles", *arguments],
            # The database is for those that submit in transactions of their own.
            env=os.environ | poller(arguments[0]) | {"HEADGATE_DATABASE_URL": dsn},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._arguments = arguments

    def ready(self) -> None:
        """Wait until it can begin."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", f"{self._arguments}: {line!r}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self) -> None:
        """Let it begin."""
        self._say("go")

    def stop(self) -> None:
        """Let a worker that has no count of its own end."""
        self._say("stop")

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def report(self, *, seconds: float = 120) -> dict[str, float]:
        """Wait for its end; what it has to say."""
        out, _ = self._process.communicate(timeout=seconds)
        assert self._process.returncode == 0, f"a role ended with {self._process.returncode}"
        found: dict[str, float] = json.loads(out.splitlines()[-1])
        return found

    def kill(self) -> None:
        """If it is still there."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


@dataclass(slots=True)
class Stack:
    """What a lane measures on."""

    dsn: str
    postmaster: int
    aside: str = ""
    """Another database of the same PostgreSQL: looking from there does not add to the transactions counted here."""
    options: tuple[str, ...] = ()
    program: str = "headgate.cli"
    """The module that is run as `headgate`."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Of servers started from now on, over what all have."""
    addresses: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    cores: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By lane and run, how many cores each party kept busy."""

    @contextmanager
    def roles(self, *commands: tuple[str, ...]) -> Iterator[list[Role]]:
        """Processes that are gone afterwards, whatever happens; each gets the addresses."""
        started: list[Role] = []
        try:
            for name, *rest in commands:
                started.append(Role(name, ",".join(self.addresses), *rest, dsn=self.dsn))
            for role in started:
                role.ready()
            yield started
        finally:
            for role in started:
                role.kill()

    @asynccontextmanager
    async def database(self, dsn: str | None = None) -> AsyncIterator[Connection]:
        """A connection for looking."""
        db = await connect(dsn or self.dsn, application_name="headgate bench", statement_timeout=None)
        try:
            yield db
        finally:
            await db.close()

    async def clean(self) -> None:
        """Empty tables, written-out buffers, fresh statistics: every run begins alike."""
        async with self.database() as db:
            await db.execute(
                "TRUNCATE headgate.jobs, headgate.payloads, headgate.archive, headgate.job_events, "
                "headgate.flow_deltas, headgate.state_counts"
            )
            await db.execute("CHECKPOINT")

    async def pause(self) -> None:
        """Nothing is dispatched until `resume`; servers see that at their next tick."""
        async with self.database() as db:
            await control.pause(db, reason="benchmark")

    async def resume(self) -> None:
        """Let go."""
        async with self.database() as db:
            await control.resume(db)

    async def first_claim(self) -> float:
        """When the first of the finished jobs was claimed, on this machine's monotonic clock."""
        async with self.database() as db:
            ago = await db.fetchval(
                "SELECT extract(epoch FROM clock_timestamp() - min(claimed_at))::float8 FROM headgate.archive"
            )
            return time.monotonic() - float(ago)

    async def all_ended(self, *, seconds: float = 120) -> None:
        """Wait until no job of the lane's topics is left."""
        async with asyncio.timeout(seconds), self.database() as db:
            left = (
                "SELECT EXISTS (SELECT FROM headgate.jobs j JOIN headgate.topics t USING (topic_no) "
                "WHERE starts_with(t.name, $1))"
            )
            while await db.fetchval(left, TOPIC):
                await asyncio.sleep(0.1)

    def start_server(self) -> None:
        """One more instance, ready when this returns."""
        process = subprocess.Popen(
            [sys.executable, "-m", self.program, *SERVE, *self.options],
            env=os.environ | {"HEADGATE_DATABASE_URL": self.dsn} | dict(self.environ),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        address, url = ready_addresses(process)
        self.addresses.append(address)
        self.urls.append(url)

    def stop_server(self) -> None:
        """The newest instance ends."""
        process = self.processes.pop()
        self.addresses, self.urls = self.addresses[: len(self.processes)], self.urls[: len(self.processes)]
        process.terminate()
        try:
            process.wait(40)
        finally:
            process.kill()

    @property
    def servers(self) -> list[int]:
        """Their process ids."""
        return [process.pid for process in self.processes]

    def busy(self) -> dict[str, dict[str, float]]:
        """By lane, the median of cores that each party kept busy."""
        return {lane: medians(runs) for lane, runs in self.cores.items()}

    def meter(self) -> Meter:
        """Begin to watch the processors."""
        return Meter(self)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time used so far by the servers and by PostgreSQL with its children."""
        return {
            "server": sum(tree_seconds(pid) for pid in self.servers),  # with `--processes` the work is in children
            "postgres": tree_seconds(self.postmaster),
        }


class Meter:
    """Who kept the processors busy from its making to `stop`: our parties, and what else runs on this machine."""

    def __init__(self, made: Stack) -> None:
        self._made = made
        self._began, self._cpu, self._machine = time.monotonic(), made.cpu_seconds(), machine_seconds()
        self._others = 0.0
        self.spent: dict[str, float] = {}

    def stop(self, **roles: float) -> dict[str, float]:
        """Processor seconds of each party until now; `roles` are those of processes that say it themselves."""
        elapsed = time.monotonic() - self._began
        self.spent = {name: used - self._cpu[name] for name, used in self._made.cpu_seconds().items()} | roles
        self._others = max(0.0, machine_seconds() - self._machine - sum(self.spent.values())) / elapsed
        return self.spent

    def note(self, lane: str, seconds: float) -> None:
        """Keep it as cores of a run of `lane` that took so long: starting and ending processes is not part of it."""
        cores = {name: used / seconds for name, used in self.spent.items()} | {"others": self._others}
        self._made.cores.setdefault(lane, []).append(cores)


@asynccontextmanager
async def stack(
    name: str, *, servers: int = 1, options: tuple[str, ...] = (), program: str = "headgate.cli"
) -> AsyncIterator[Stack]:
    """Start it; everything is gone afterwards."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    cluster = await asyncio.to_thread(embedded.start, folder)
    assert cluster.pid is not None
    made = Stack(cluster.dsn(), cluster.pid, cluster.dsn("template1"), options, program)
    try:
        async with made.database() as db:
            await migrate(db)
        for _ in range(servers):
            made.start_server()
        yield made
    finally:
        while made.processes:
            made.stop_server()
        await asyncio.to_thread(cluster.stop)
        shutil.rmtree(folder, ignore_errors=True)


def machine_seconds() -> float:
    """Processor time that all processes of this machine have used, and what a hypervisor took."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + sum(rest[:3])) / TICKS_PER_SECOND


def memory_mb(pid: int) -> float:
    """What a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def process_seconds(pid: int) -> float:
    """User and system time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def tree_seconds(root: int) -> float:
    """Of a process, its living children, and those it has waited for."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat.parent.name) == root:
            total += sum(int(fields[at]) for at in (11, 12, 13, 14)) / TICKS_PER_SECOND
        elif int(fields[1]) == root:
            total += (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return total
