"""F46: a PgBouncer in transaction mode beside each PostgreSQL: paused, reloaded, killed, failed over; and its cost."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta

from tests.failover.cluster import CONFIG, SUPERUSER_PASSWORD, Cluster, Node, as_account, free_port, replaced
from tests.failover.load import Stack, judge, working
from tests.failover.rounds import MOST_SECONDS, PASSWORD, Report, database_url, prepare
from tests.fault.history import all_ended
from tests.support.server import LoggedProcess, clean_environ

PAUSED_SECONDS = 3.0
COST_JOBS = 5_000
COST_ROUNDS = 3


class Pooler:
    """PgBouncer beside one node, with the printed configuration."""

    def __init__(self, cluster: Cluster, node: Node, processes: ExitStack) -> None:
        self._cluster, self._processes = cluster, processes
        self.port = free_port()
        self._folder = cluster.folder / f"pgbouncer-{node.name}"
        self._folder.mkdir()
        users = self._folder / "userlist.txt"
        users.write_text(f'"headgate" "{PASSWORD}"\n"postgres" "{SUPERUSER_PASSWORD}"\n')
        self._config = self._folder / "pgbouncer.ini"
        self._config.write_text(
            replaced(
                (CONFIG / "pgbouncer.ini").read_text(),
                {
                    "port=5432": f"port={node.port}",
                    "listen_addr = 10.0.0.11": "listen_addr = 127.0.0.1",
                    "listen_port = 6432": f"listen_port = {self.port}",
                    "/etc/pgbouncer/userlist.txt": str(users),
                },
            )
        )
        for path in (self._folder, users, self._config):
            shutil.chown(path, cluster.account.pw_uid, cluster.account.pw_gid)
        self.process = self.start()

    def start(self) -> LoggedProcess:
        """Start it; it takes connections when this returns."""
        programs = self._cluster.programs
        command = [*as_account(programs, self._cluster.account), programs.pgbouncer, str(self._config)]
        self.process = LoggedProcess("pgbouncer", command, folder=self._folder, environ=clean_environ())
        self._processes.enter_context(self.process)
        self.process.listens(self.port)
        return self.process

    def tell(self, command: str) -> None:
        """PAUSE, RESUME, RELOAD: at its own console."""
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", "pgbouncer"]
        environ = {**clean_environ(), "PGPASSWORD": SUPERUSER_PASSWORD}
        psql = str(self._cluster.programs.postgres_bin / "psql")
        subprocess.run([psql, *where, "-c", command], env=environ, check=True, capture_output=True, timeout=30)


async def through_poolers(cluster: Cluster) -> list[Report]:
    """The cost of a pooler, by the same work past it and through it; then its faults."""
    direct = await prepare(cluster)
    for name in ("direct", "pooled"):
        (cluster.folder / name).mkdir()
    with ExitStack() as processes:
        poolers = {node.name: Pooler(cluster, node, processes) for node in cluster.nodes}
        ports = {f":{node.port}": f":{poolers[node.name].port}" for node in cluster.nodes}
        url = replaced(database_url(cluster), ports)
        async with working(direct, cluster.folder / "direct", servers=2) as past:
            without = [await throughput(past) for _ in range(COST_ROUNDS)]
        async with working(url, cluster.folder / "pooled", servers=2, args=("--pooler",)) as through:
            through.dsn = direct  # for looking; its servers have the other one
            through.ledger.acknowledged.extend(past.ledger.acknowledged)
            through.begun_elsewhere = len(past.ledger.acknowledged)
            with_it = [await throughput(through) for _ in range(COST_ROUNDS)]
            loss = 1 - max(with_it) / max(without)
            text = f"jobs a second past it {shown(without)}, through it {shown(with_it)}: {loss:.0%} less"
            return [
                Report(name="cost of PgBouncer", good=True, text=text),
                await pooler_faults(cluster, through, poolers),
            ]


def shown(figures: Sequence[float]) -> str:
    """Rounded."""
    return " ".join(f"{figure:,.0f}" for figure in figures)


async def throughput(stack: Stack) -> float:
    """Jobs a second, from the first submit to the last that ended."""
    before, began = stack.begun(), time.monotonic()
    handles = await stack.hg.submit_many("fast", [b""] * COST_JOBS, timeout=120.0)
    stack.ledger.note([handle.id for handle in handles])
    deadline = time.monotonic() + 120
    while stack.begun() < before + COST_JOBS:
        assert time.monotonic() < deadline, "too slow"
        await asyncio.sleep(0.02)
    figure = COST_JOBS / (time.monotonic() - began)
    await all_ended(stack.dsn, within=timedelta(seconds=60))
    return figure


async def pooler_faults(cluster: Cluster, stack: Stack, poolers: dict[str, Pooler]) -> Report:
    """PAUSE and RESUME, RELOAD, kill -9, a switchover: under load, through the poolers."""
    leader = await asyncio.to_thread(cluster.leading)
    pooler = poolers[leader.name]
    stood: dict[str, float] = {}

    async def measure(name: str, since: float) -> None:
        await stack.begins_anew(200)
        stood[name] = max(stack.standstill(since))

    async with stack.loaded():
        await stack.begins_anew(200)
        since = time.monotonic()
        await asyncio.to_thread(pooler.tell, "PAUSE")
        await asyncio.sleep(PAUSED_SECONDS)  # the length of the fault
        await asyncio.to_thread(pooler.tell, "RESUME")
        await measure("PAUSE of 3 s", since)
        since = time.monotonic()
        await asyncio.to_thread(pooler.tell, "RELOAD")
        await measure("RELOAD", since)
        since = time.monotonic()
        pooler.process.kill()
        await asyncio.to_thread(pooler.start)
        await measure("kill -9", since)
        since = time.monotonic()
        await asyncio.to_thread(cluster.switch_over, leader)
        await asyncio.to_thread(cluster.leads, *cluster.others(leader))
        await measure("switchover", since)
    await all_ended(stack.dsn, within=timedelta(seconds=90))
    found = await judge(stack)
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in stood.items())
    good = found.clean and max(stood.values()) <= MOST_SECONDS
    return Report(name="PgBouncer", good=good, text=f"work stood still: {times}; {found}")
