"""F47: the database comes back as it was in a backup, while the workers live on with what they hold."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg

from headgate.store.restore_fence import RANGES_AHEAD
from tests.failover.cluster import Cluster, Node, as_account, printed_command
from tests.failover.load import LEASE, Stack
from tests.failover.report import Report
from tests.fault.history import all_ended, connected
from tests.support.server import HEADGATE, LoggedProcess, ServerProcess, clean_environ
from tests.support.workers import all_starts, repeated

DELAY_SECONDS = 6.0
"""Of jobs that are not yet due when the backup is made, and run when the database is lost."""
SCHEDULE = "each-second"
FIRED = "SELECT occurrence, job_id FROM headgate.schedule_jobs ORDER BY occurrence"
ENDED = "SELECT id, epoch, state, result FROM headgate.archive"


def back_up(cluster: Cluster, node: Node, target: Path) -> float:
    """A base backup as an operator makes it, while the queue is in use; returns the seconds it took."""
    began = time.monotonic()
    program = str(cluster.programs.postgres_bin / "pg_basebackup")
    changes = {"pg_basebackup": program, "10.0.0.11": "127.0.0.1", "5432": str(node.port), "/backup/base": str(target)}
    words = [changes.get(word, word) for word in printed_command("pg_basebackup")]
    command = [*as_account(cluster.programs, cluster.account), *words]
    environ = {**clean_environ(), "PGPASSWORD": "change-me-too"}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=120)
    return time.monotonic() - began


@contextmanager
def started(cluster: Cluster, data: Path, port: int) -> Iterator[LoggedProcess]:
    """A PostgreSQL on a restored folder, by itself, at the old address."""
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": str(data.parent),
        "synchronous_standby_names": "",
        "primary_conninfo": "",
    }
    command = [
        *as_account(cluster.programs, cluster.account),
        str(cluster.programs.postgres_bin / "postgres"),
        *("-D", str(data)),
        *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
    ]
    with LoggedProcess("restored", command, folder=cluster.folder, environ=clean_environ()) as process:
        process.saw("database system is ready to accept connections", within=timedelta(seconds=60))
        try:
            yield process
        finally:
            process.signal(signal.SIGQUIT)  # killed, it would leave its shared memory behind
            process.wait()


def fence_restored(dsn: str) -> str:
    """`headgate restore-fence`, as the page says."""
    environ = {**clean_environ(), "HEADGATE_DATABASE_URL": dsn}
    done = subprocess.run(
        [str(HEADGATE), *printed_command("headgate restore-fence")[1:]],
        env=environ,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip().partition(": ")[2]


def servers_again(stack: Stack, folder: Path) -> list[ServerProcess]:
    """The same servers at the same addresses."""
    return [ServerProcess(stack.dsn, folder=folder, port=server.port, args=LEASE) for server in stack.servers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Jobs that workers hold while the database is restored."""

    running: list[UUID]  # they ran when the backup was made
    later: list[UUID]  # they waited then, and began afterwards
    newer: list[UUID]  # they came afterwards

    @property
    def all(self) -> set[UUID]:
        return {*self.running, *self.later, *self.newer}


async def restore(cluster: Cluster, stack: Stack) -> Report:
    """Back up under load, run on, lose everything since, and start again from the backup."""
    leader = await asyncio.to_thread(cluster.leading)
    folder = cluster.folder / "headgate"
    release = folder / "release"
    target = leader.folder / "backup"

    async def hold(**options: float) -> list[UUID]:
        payload = str(release).encode()
        return [(await stack.hg.submit("held", payload, delay=options.get("delay", 0.0))).id for _ in range(3)]

    def begun() -> set[UUID]:
        return {start.job_id for start in all_starts(stack.worker_processes)}

    async def runs(ids: Sequence[UUID]) -> None:
        deadline = time.monotonic() + 60
        while not set(ids) <= begun():
            assert time.monotonic() < deadline, "the jobs to be held do not run"
            await asyncio.sleep(0.1)

    await stack.hg.admin.schedules.put(SCHEDULE, "fast", b"", every=1)
    async with stack.loaded():
        await stack.begins_anew(300)
        running = await hold()
        await runs(running)
        later = await hold(delay=DELAY_SECONDS)
        safe = list(stack.ledger.acknowledged)
        seconds = await asyncio.to_thread(back_up, cluster, leader, target)
        await stack.begins_anew(300)
        held = Held(running=running, later=later, newer=await hold())
        await runs([*held.all])
    epochs = {start.job_id: start.epoch for start in all_starts(stack.worker_processes) if start.job_id in held.all}
    # All but the workers is lost.
    for server in stack.servers:
        server.kill()
    await asyncio.to_thread(leader.stop)
    connections = [len(worker.connections) for worker in stack.worker_processes]
    with ExitStack() as again:
        await asyncio.to_thread(again.enter_context, started(cluster, target, leader.port))
        async with connected(stack.dsn) as db:
            fired_before = {row["occurrence"]: row["job_id"] for row in await db.fetch(FIRED)}
        said = await asyncio.to_thread(fence_restored, stack.dsn)
        stack.servers[:] = await asyncio.to_thread(servers_again, stack, folder)
        for server in stack.servers:
            again.enter_context(server)
        for worker, times in zip(stack.worker_processes, connections, strict=True):
            await asyncio.to_thread(worker.is_connected, times=times + 1, within=timedelta(seconds=60))
        release.touch()
        await stack.begins_anew(10)
        await runs([*held.running, *held.later])
        async with connected(stack.dsn) as db:
            fired = await db.fetch(FIRED)
        await stack.hg.admin.schedules.delete(SCHEDULE)
        await all_ended(stack.dsn, within=timedelta(seconds=90))
        async with connected(stack.dsn) as db:
            rows = {row["id"]: row for row in await db.fetch(ENDED)}
    wrong = problems(stack, held, epochs, rows)
    missing = set(safe) - rows.keys()
    wrong += [f"{len(missing)} of before the backup are missing"] if missing else []
    made: dict[datetime, UUID] = {}
    for row in fired:
        if made.setdefault(row["occurrence"], row["job_id"]) != row["job_id"]:
            wrong.append(f"{row['occurrence']} fired twice")
    wrong += [f"{at} fired again" for at, job_id in fired_before.items() if made.get(at) != job_id]
    text = (
        f"backup in {seconds:.1f} s; {said}; of {len(stack.ledger.acknowledged)} acknowledged {len(safe)} were before "
        f"it; nine runs of before refused; {len(fired_before)} occurrences fired before and "
        f"{len(made) - len(fired_before)} after, each once"
    )
    return Report(
        name="restore from a backup",
        good=not wrong,
        text="; ".join([*wrong, text]),
        acknowledged=len(safe),  # what came afterwards is not in the backup, and cannot be back
        lost=len(missing),
    )


def problems(stack: Stack, held: Held, epochs: Mapping[UUID, int], rows: Mapping[UUID, asyncpg.Record]) -> list[str]:
    """What is wrong with the jobs that were held, and with any job that ended."""
    found: list[str] = []
    log = "\n".join(worker.text() for worker in stack.worker_processes)
    for job_id in held.all:
        lost = f"lease_lost job_id={job_id} epoch={epochs[job_id]} "
        refused = f"outcome_not_applied job_id={job_id} epoch={epochs[job_id]} "
        if lost not in log and refused not in log:
            found.append(f"the old run of {job_id} was not refused")
    for job_id in (*held.running, *held.later):
        row = rows.get(job_id)
        if row is None or row["state"] != 5 or row["epoch"] <= RANGES_AHEAD << 10:
            found.append(f"{job_id} did not run anew: {row}")
    found += [f"{job_id} came after the backup and is there" for job_id in held.newer if job_id in rows]
    found += [f"{job} began twice with epoch {epoch}" for job, epoch in repeated(all_starts(stack.worker_processes))]
    strange = [row for row in rows.values() if row["result"] != str(row["epoch"]).encode()]
    return [*found, *(f"the result of another run: {row}" for row in strange[:3])]
