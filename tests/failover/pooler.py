"""F46: a PgBouncer in transaction mode beside each PostgreSQL: paused, reloaded, restarted, killed, failed over."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

from tests.failover.cluster import CONFIG, SUPERUSER_PASSWORD, Cluster, Node, replaced
from tests.failover.load import Stack, judge, working
from tests.failover.report import Report
from tests.failover.rounds import MOST_SECONDS, PASSWORD, database_url, prepare
from tests.fault.history import all_ended
from tests.support.pgbouncer import PgBouncer, free_port
from tests.support.server import clean_environ

PAUSED_SECONDS = 3.0
SESSIONS = "SELECT count(*) AS n FROM pg_stat_activity WHERE usename = 'headgate'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where a fault happens: the leader, and the pooler beside it."""

    cluster: Cluster
    leader: Node
    pooler: PgBouncer

    def tell(self, command: str) -> None:
        """PAUSE, RESUME, RELOAD: at the pooler's own console."""
        where = ["-h", "127.0.0.1", "-p", str(self.pooler.port), "-U", "postgres", "-d", "pgbouncer"]
        environ = {**clean_environ(), "PGPASSWORD": SUPERUSER_PASSWORD}
        psql = str(self.cluster.programs.postgres_bin / "psql")
        subprocess.run([psql, *where, "-c", command], env=environ, check=True, capture_output=True, timeout=30)


@contextmanager
def paused(scene: Scene) -> Iterator[None]:
    """PAUSE, and RESUME some seconds later: everyone waits, no one is refused."""
    scene.tell("PAUSE")
    time.sleep(PAUSED_SECONDS)  # the length of the fault
    scene.tell("RESUME")
    yield


@contextmanager
def reloaded(scene: Scene) -> Iterator[None]:
    """Its configuration is read again."""
    scene.tell("RELOAD")
    yield


@contextmanager
def restarted(scene: Scene) -> Iterator[None]:
    """As for an upgrade of it."""
    scene.pooler.restart()
    yield


@contextmanager
def killed(scene: Scene) -> Iterator[None]:
    """kill -9, and its service starts it again."""
    scene.pooler.kill()
    scene.pooler.start()
    yield


@contextmanager
def hangs(scene: Scene) -> Iterator[None]:
    """It answers nothing for a while, although its connections stay."""
    scene.pooler.process.signal(signal.SIGSTOP)
    try:
        time.sleep(PAUSED_SECONDS)  # the length of the fault
    finally:
        scene.pooler.process.signal(signal.SIGCONT)
    yield


@contextmanager
def switched(scene: Scene) -> Iterator[None]:
    """The primary becomes a standby behind a pooler that knows nothing of it."""
    scene.cluster.switch_over(scene.leader)
    scene.cluster.leads(*scene.cluster.others(scene.leader))
    yield


@contextmanager
def primary_dies(scene: Scene) -> Iterator[None]:
    """kill -9 for Patroni and PostgreSQL; the pooler lives on, with nothing behind it."""
    scene.leader.kill()
    try:
        scene.cluster.leads(*scene.cluster.others(scene.leader))
        yield
    finally:
        scene.leader.start()


@contextmanager
def machine_dies(scene: Scene) -> Iterator[None]:
    """The same, and the pooler with it."""
    scene.pooler.kill()
    try:
        with primary_dies(scene):
            yield
    finally:
        scene.pooler.start()


FAULTS: dict[str, Callable[[Scene], AbstractContextManager[None]]] = {
    f"PAUSE for {PAUSED_SECONDS:.0f} s": paused,
    "RELOAD": reloaded,
    "pooler restarted": restarted,
    "pooler killed with -9": killed,
    f"pooler hangs for {PAUSED_SECONDS:.0f} s": hangs,
    "switchover behind it": switched,
    "primary dies behind it": primary_dies,
    "primary and its pooler die": machine_dies,
}


def beside(cluster: Cluster, node: Node, processes: ExitStack) -> PgBouncer:
    """PgBouncer beside one node, with the printed configuration."""
    folder = cluster.folder / f"pgbouncer-{node.name}"
    folder.mkdir()
    users, port = folder / "userlist.txt", free_port()
    users.write_text(f'"headgate" "{PASSWORD}"\n"postgres" "{SUPERUSER_PASSWORD}"\n')
    changes = {
        "port=5432": f"port={node.port}",
        "listen_addr = 10.0.0.11": "listen_addr = 127.0.0.1",
        "listen_port = 6432": f"listen_port = {port}",
        "/etc/pgbouncer/userlist.txt": str(users),
    }
    config = replaced((CONFIG / "pgbouncer.ini").read_text(), changes)
    program = cluster.programs.pgbouncer
    return processes.enter_context(
        PgBouncer(config, port=port, folder=folder, account=cluster.account, program=program)
    )


async def through_poolers(cluster: Cluster, say: Callable[[str], None]) -> list[Report]:
    """Every fault under load, through the poolers; of the two servers one has the way past them as well."""
    direct = await prepare(cluster)
    folder = cluster.folder / "headgate"
    folder.mkdir()
    with ExitStack() as processes:
        poolers = {node.name: beside(cluster, node, processes) for node in cluster.nodes}
        ports = {f":{node.port}": f":{poolers[node.name].port}" for node in cluster.nodes}
        url = replaced(database_url(cluster), ports)
        environs: list[dict[str, str]] = [{}, {"HEADGATE_DIRECT_DATABASE_URL": direct}]
        async with working(url, folder, servers=2, args=("--pooler",), environs=environs) as stack:
            stack.dsn = direct  # for looking; its servers have the other one
            reports = []
            for name in FAULTS:
                reports.append(await under(name, cluster, stack, poolers))
                say(str(reports[-1]))
            return reports


async def under(name: str, cluster: Cluster, stack: Stack, poolers: Mapping[str, PgBouncer]) -> Report:
    """One fault under load: work continues, nothing acknowledged is lost."""
    await asyncio.to_thread(cluster.is_whole)
    leader = await asyncio.to_thread(cluster.leading)
    scene = Scene(cluster=cluster, leader=leader, pooler=poolers[leader.name])
    async with stack.loaded():
        await stack.begins_anew(200)
        since = time.monotonic()
        fault = FAULTS[name](scene)
        await asyncio.to_thread(fault.__enter__)
        try:
            await stack.begins_anew(200)
        finally:
            await asyncio.to_thread(fault.__exit__, None, None, None)
        submits, starts = stack.standstill(since)
        await asyncio.to_thread(cluster.is_whole)
        await stack.begins_anew(200)
        leads = await asyncio.to_thread(cluster.leading)
        sessions = (await leads.fetch(SESSIONS))[0]["n"]
    await all_ended(stack.dsn, within=timedelta(seconds=90))
    found = await judge(stack)
    still = max(submits, starts)
    text = (
        f"submits stood still {submits:.1f} s, handlers {starts:.1f} s; {sessions} sessions; {found}; "
        f"{stack.ledger.unknown} answers unknown so far"
    )
    return Report(
        name=name,
        good=found.clean and still <= MOST_SECONDS,
        text=text,
        acknowledged=found.acknowledged,
        lost=len(found.lost),
        still=still,
    )
