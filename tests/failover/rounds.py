"""Rounds of failover under load: with synchronous replication nothing acknowledged is lost; without, something is."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import timedelta

from headgate.store.connect import connect
from headgate.store.migrate import migrate
from tests.failover.cluster import CONFIG, Cluster, Node, replaced
from tests.failover.load import Stack, judge, working
from tests.failover.report import Report
from tests.fault.history import all_ended

MOST_SECONDS = 30.0
"""Work continues after at most this long."""
PASSWORD = "a-password"
STREAMING = "SELECT count(*) AS n FROM pg_stat_replication WHERE state = 'streaming'"


def database_url(cluster: Cluster) -> str:
    """As printed in the documentation, with this cluster's addresses."""
    text = (CONFIG / "headgate.env").read_text().strip().removeprefix("HEADGATE_DATABASE_URL=")
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
    return replaced(text, {"10.0.0.11:5432,10.0.0.12:5432,10.0.0.13:5432": hosts})


async def prepare(cluster: Cluster) -> str:
    """Make role, database and schema; returns the URL for servers."""
    leader = cluster.leading()
    for statement in (CONFIG / "setup.sql").read_text().split(";\n"):
        if statement.strip():
            await leader.fetch(statement)
    url = database_url(cluster)
    db = await connect(url, application_name="headgate failover")
    try:
        await migrate(db)
    finally:
        await db.close()
    return url


@asynccontextmanager
async def stack_on(cluster: Cluster, *, servers: int = 3) -> AsyncIterator[Stack]:
    """Servers, workers and a client over the cluster."""
    folder = cluster.folder / "headgate"
    folder.mkdir()
    async with working(await prepare(cluster), folder, servers=servers) as stack:
        yield stack


# ---------------------------------------------------------------------- faults


@contextmanager
def power_cut(cluster: Cluster, node: Node) -> Iterator[None]:
    """kill -9 for Patroni and PostgreSQL; both are started again afterwards, and rewound."""
    node.kill()
    try:
        yield
    finally:
        node.start()


@contextmanager
def postgres_killed(cluster: Cluster, node: Node) -> Iterator[None]:
    """Patroni and the postmaster alone are killed: backends find out by themselves."""
    assert node.process is not None
    node.process.kill()
    postmaster = node.postmaster()
    assert postmaster is not None
    os.kill(postmaster, signal.SIGKILL)
    try:
        yield
    finally:
        node.kill()
        node.start()


@contextmanager
def cut_from_etcd(cluster: Cluster, node: Node) -> Iterator[None]:
    """The leader cannot reach etcd, everyone else can reach the leader: it must step down by itself."""
    with cluster.cut_off(node, clients=False):
        yield


@contextmanager
def cut_from_all(cluster: Cluster, node: Node) -> Iterator[None]:
    """The leader's network is gone: packets to and from it vanish, no one is refused."""
    with cluster.cut_off(node, clients=True):
        yield


@contextmanager
def patroni_hangs(cluster: Cluster, node: Node) -> Iterator[None]:
    """The leader's Patroni is delayed for twice its ttl, its PostgreSQL is not: for a while there are two primaries.

    The old one cannot acknowledge anything, since no one follows it any more.
    """
    node.signal(signal.SIGSTOP, patroni=True)
    cluster.leads(*cluster.others(node))
    time.sleep(10)  # the length of the fault
    node.signal(signal.SIGCONT, patroni=True)
    yield


@contextmanager
def planned(cluster: Cluster, node: Node) -> Iterator[None]:
    """A switchover, as for an upgrade."""
    cluster.switch_over(node)
    yield


Fault = Callable[[Cluster, Node], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {
    "power cut": power_cut,
    "kill -9 of Patroni and postmaster": postgres_killed,
    "leader cut off from etcd": cut_from_etcd,
    "leader cut off from everybody": cut_from_all,
    "Patroni of the leader hangs": patroni_hangs,
    "planned switchover": planned,
}


async def fail_over(cluster: Cluster, stack: Stack, name: str) -> Report:
    """One round: a fault under load, another node leads, work continues, the old leader is back as a standby."""
    await asyncio.to_thread(cluster.is_whole)
    leader = await asyncio.to_thread(cluster.leading)
    async with stack.loaded():
        await stack.begins_anew(300)
        since = time.monotonic()
        fault = FAULTS[name](cluster, leader)
        await asyncio.to_thread(fault.__enter__)
        try:
            await asyncio.to_thread(cluster.leads, *cluster.others(leader))
            led = time.monotonic() - since
            await stack.begins_anew(300)
        finally:
            await asyncio.to_thread(fault.__exit__, None, None, None)
        submits, starts = stack.standstill(since)
        await asyncio.to_thread(cluster.is_whole)
        whole = time.monotonic() - since
        await stack.begins_anew(300)  # also after the old leader is back
    await all_ended(stack.dsn, within=timedelta(seconds=90))
    found = await judge(stack)
    text = (
        f"another node led after {led:.1f} s; submits stood still {submits:.1f} s, handlers {starts:.1f} s; "
        f"old leader follows after {whole:.1f} s; {found}; {stack.ledger.unknown} answers unknown so far"
    )
    still = max(submits, starts)
    return Report(
        name=name,
        good=found.clean and still <= MOST_SECONDS,
        text=text,
        acknowledged=found.acknowledged,
        lost=len(found.lost),
        still=still,
    )


async def lose(cluster: Cluster, stack: Stack) -> Report:
    """The control: the standby gets no log for a moment, then the leader dies. Acknowledged jobs must be missing."""
    await asyncio.to_thread(cluster.is_whole)
    leader = await asyncio.to_thread(cluster.leading)
    [standby] = cluster.others(leader)
    deadline = time.monotonic() + 60
    while not (await leader.fetch(STREAMING))[0]["n"]:  # "running", Patroni says, also before it has its slot
        assert time.monotonic() < deadline, "the standby gets no log"
        await asyncio.sleep(0.2)
    async with stack.loaded():
        await stack.begins_anew(300)
        receiver = standby.wal_receiver()
        os.kill(receiver, signal.SIGSTOP)
        before = len(stack.ledger.acknowledged)
        while len(stack.ledger.acknowledged) < before + 200:
            await asyncio.sleep(0.01)
        since = time.monotonic()
        await asyncio.to_thread(leader.kill)
        os.kill(receiver, signal.SIGKILL)  # with what its socket still holds
        await asyncio.to_thread(cluster.leads, standby)
        led = time.monotonic() - since
        await stack.begins_anew(100)
        submits, starts = stack.standstill(since)
    await asyncio.to_thread(leader.start)
    await all_ended(stack.dsn, within=timedelta(seconds=90))
    found = await judge(stack)
    text = f"led after {led:.1f} s; submits stood still {submits:.1f} s, handlers {starts:.1f} s; {found}"
    seen = "the checker sees the loss" if found.lost else "THE CHECKER SEES NO LOSS, so its other verdicts mean nothing"
    return Report(
        name="asynchronous: loss is seen",
        good=bool(found.lost),
        text=f"{seen}: {text}",
        acknowledged=found.acknowledged,
        lost=len(found.lost),
        still=max(submits, starts),
    )
