"""`World`: a PostgreSQL of its own, servers, workers and a load, and what may be done to them by name.

    async with World(folder, servers=2, workers=3) as world:
        world.load.start()
        await world.kill("w1")                    # SIGKILL; noted as a fault
        await world.heal()                        # everything that was killed, frozen or cut is whole again
        await world.drain()
        report = await world.judge()

Names: `s1`, `s2` … are servers, `w1`, `w2` … workers, `pg` is PostgreSQL. A server keeps its port over a restart, so
a fault proxy between it and its clients is notified once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from headgate import Headgate, embedded
from headgate.domain.errors import HeadgateError
from headgate.domain.limits import RECONNECT_GRACE_DEFAULT
from headgate.store.connect import connect
from tests.fault.lab.checker import Report, check
from tests.fault.lab.dump import dump
from tests.fault.lab.history import Recorder, merged
from tests.fault.lab.load import RATE, Load
from tests.fault.lab.process import CONCURRENCY, LabServer, LabWorker
from tests.fault.lab.proxies import NotRunHere, Proxy, new_proxy
from tests.support.database import Server as Databases
from tests.support.database import temporary_folder
from tests.support.server import LoggedProcess
from tests.support.waiting import until_async

__all__ = ["DRAIN", "NotRunHere", "World"]
LAB: Final = "headgate lab"
"""How the laboratory's own sessions call themselves, so that it does not end them with the others."""
TENANTS: Final = ("red", "blue")
SYSTEM_TOKEN: Final = "lab-token-of-the-system"
SCOPES: Final = ("submit", "work", "read", "operate", "admin")
LEASE: Final = 3.0
DRAIN: Final = timedelta(seconds=60)
SETTINGS: Final = {"max_wal_size": "256MB", "shared_buffers": "64MB", "max_connections": "60"}
_EMPTY_LOOKS: Final = 3
Undo = Callable[[], Awaitable[None]]
BUSY: Final = """
SELECT EXISTS (SELECT FROM headgate.jobs) OR EXISTS (SELECT FROM headgate.dependency_checks)
    OR EXISTS (SELECT FROM headgate.bulk_operations WHERE state IN (0, 1))"""
LEFT: Final = """
SELECT n.name, t.name, j.state, j.attempt, j.epoch, j.worker, max(j.lease_until - clock_timestamp()) AS lease,
       max(j.run_at - clock_timestamp()) AS due, count(*)
  FROM headgate.jobs j JOIN headgate.topics t USING (topic_no) JOIN headgate.tenants n ON n.tenant_no = j.tenant_no
 GROUP BY 1, 2, 3, 4, 5, 6 LIMIT 20"""
OTHERS: Final = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> $1"""


@dataclass(slots=True)
class ServerSpec:
    """How to start a server again."""

    port: int = 0
    args: tuple[str, ...] = ()
    armed: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()


@dataclass(slots=True)
class WorkerSpec:
    """How to start a worker again."""

    tenant: str
    servers: tuple[str, ...] = ()
    """By name; none: all."""
    options: dict[str, Any] = field(default_factory=dict)


class World:
    """Everything of one run. Blocking starts happen in threads, so that the load continues meanwhile."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 1,
        servers: int = 2,
        workers: int = 4,
        tenants: Sequence[str] = TENANTS,
        lease: float = LEASE,
        reconnect_grace: float | None = None,
        rate: float = RATE,
        weights: Mapping[str, int] | None = None,
        schedules: Sequence[str] | None = None,
        server_args: Sequence[str] = (),
        worker_options: Mapping[str, Any] | None = None,
        settings: Mapping[str, str] | None = None,
        proxy_servers: bool = False,
        proxy_database: bool = False,
        long: bool = False,
    ) -> None:
        self.folder, self.seed, self.lease, self.long = folder, seed, lease, long
        self.chance = random.Random(f"faults {seed}")
        self.tenants = tuple(tenants)
        self.servers: dict[str, LabServer] = {}
        self.workers: dict[str, LabWorker] = {}
        self.reconnect_grace = reconnect_grace
        grace = () if reconnect_grace is None else ("--reconnect-grace", str(reconnect_grace))
        self.server_specs = {f"s{n}": ServerSpec(args=(*server_args, *grace)) for n in range(1, servers + 1)}
        self.worker_specs = {
            f"w{n}": WorkerSpec(self.tenants[(n - 1) % len(self.tenants)], options=dict(worker_options or {}))
            for n in range(1, workers + 1)
        }
        self.proxies: dict[str, Proxy] = {}
        """By the name of what is behind: s1, s2 …, pg."""
        self.clients: dict[str, Headgate] = {}
        self.system: Headgate
        self.load: Load
        self.coverage: set[str] = set()
        """What a scenario saw for itself; the checker adds what the history shows."""
        self._rate, self._weights, self._schedules = rate, weights, schedules
        self._proxy_servers, self._proxy_database = proxy_servers, proxy_database
        self._settings = {**SETTINGS, **(settings or {})}
        self._frozen: dict[str, list[int]] = {}
        self._ends_expected: set[LoggedProcess] = set()
        """Servers that a fault ends, or that have ended and were noted."""
        self._undo: list[tuple[str, Undo]] = []
        self._keeper: asyncio.Task[None] | None = None
        self.recorder = Recorder(folder, "lab")
        self._load_recorder = Recorder(folder, "load")
        self._data = temporary_folder()
        self.cluster: embedded.Cluster
        self.dsn = ""
        """PostgreSQL itself, past any proxy: the laboratory's own way in."""

    # --- beginning and end -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _open(self) -> None:
        self.recorder.note("world", seed=self.seed, servers=len(self.server_specs), workers=len(self.worker_specs),
                           tenants=self.tenants, lease_ms=int(self.lease * 1000),
                           grace_ms=int(1000 * self._grace()), slots=self._slots())  # fmt: skip
        self.cluster = await asyncio.to_thread(
            lambda: embedded.start(self._data / "postgres", settings=self._settings, tcp=True)
        )
        self.dsn = await asyncio.to_thread(self._migrated)
        self.server_dsn = self.dsn
        if self._proxy_database:
            self.proxies["pg"] = new_proxy(self.cluster.port, seed=self.seed)
            self.server_dsn = _at_port(self.dsn, self.proxies["pg"].port)
        self.tokens = {tenant: f"lab-token-of-{tenant}" for tenant in self.tenants}
        self._write_tokens()
        await self._all(self._start_server, self.server_specs)
        if self._proxy_servers:
            for name in self.server_specs:
                self.proxies[name] = new_proxy(self.servers[name].port, seed=self.seed)
        await self._all(self._start_worker, self.worker_specs)
        for tenant in self.tenants:
            self.clients[tenant] = Headgate(self.addresses(), token=self.tokens[tenant])
        self.system = Headgate(self.addresses(), token=SYSTEM_TOKEN)
        made: dict[str, Any] = {} if self._schedules is None else {"schedules": self._schedules}
        self.load = Load(
            self.clients, self._load_recorder, system=self.system, seed=self.seed, rate=self._rate,
            weights=self._weights, **made,
        )  # fmt: skip
        await self.load.prepare()

    def _slots(self) -> dict[str, int]:
        """By tenant, those of the workers that are there from the start."""
        slots = dict.fromkeys(self.tenants, 0)
        for spec in self.worker_specs.values():
            slots[spec.tenant] += int(spec.options.get("concurrency", CONCURRENCY))
        return slots

    def _grace(self) -> float:
        """For how many seconds at least the servers keep the leases of a worker whose connection was lost."""
        if self.reconnect_grace is not None:
            return self.reconnect_grace
        return min(self.lease, RECONNECT_GRACE_DEFAULT.total_seconds())

    def _migrated(self) -> str:
        databases = Databases(self.cluster.dsn())
        try:
            return databases.dsn_of(databases.create_template())
        finally:
            databases.close()

    def _write_tokens(self) -> None:
        entries = ", ".join(
            f'"{token}": {{"tenant": "{tenant}", "name": "lab", "scopes": {json.dumps(SCOPES)}}}'
            for tenant, token in self.tokens.items()
        )
        self.tokens_file = self.folder / "tokens.json"
        self.tokens_file.write_text(f'{{{entries}, "{SYSTEM_TOKEN}": {{"name": "lab system", "scopes": ["system"]}}}}')
        self.tokens_file.chmod(0o600)

    async def _all(self, start: Callable[[str], None], names: Mapping[str, object]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(asyncio.to_thread(start, name))

    async def _close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
        if hasattr(self, "load"):
            await self.load.stop(within=1.0)
        for hg in (*self.clients.values(), *([self.system] if hasattr(self, "system") else ())):
            with suppress(HeadgateError):
                await hg.close(flush=0.1)
        for name in list(self._frozen):
            await self.thaw(name)
        for process in (*self.workers.values(), *self.servers.values()):
            process.kill()
        for _, undo in reversed(self._undo):
            with suppress(OSError, asyncpg.PostgresError):
                await undo()
        for proxy in self.proxies.values():
            proxy.close()
        if hasattr(self, "cluster"):
            await asyncio.to_thread(self.cluster.stop, "immediate")
        shutil.rmtree(self._data, ignore_errors=True)
        self.recorder.close()
        self._load_recorder.close()

    # --- who is where ------------------------------------------------------------------------------------------------

    def address(self, server: str) -> str:
        """Where clients and workers dial a server: its proxy's address if it has one."""
        proxy = self.proxies.get(server)
        return f"127.0.0.1:{self.servers[server].port if proxy is None else proxy.port}"

    def addresses(self, servers: Sequence[str] = ()) -> list[str]:
        """The addresses of these servers, or of all."""
        return [self.address(name) for name in servers or self.server_specs]

    def process(self, name: str) -> LoggedProcess:
        """The process of that name; it may have ended."""
        found = self.servers.get(name) or self.workers.get(name)
        if found is None:
            raise KeyError(f"there is no {name}; there are {', '.join((*self.servers, *self.workers))}")
        return found

    def alive(self, name: str) -> bool:
        """True while that process runs, frozen or not."""
        return self.process(name).exit_code is None

    def expect_end(self, name: str) -> None:
        """A fault is about to end this server: its exit is no violation. `kill` and `stop` call it."""
        if name in self.servers:
            self._note_end(name)
            self._ends_expected.add(self.servers[name])

    def _note_end(self, name: str) -> None:
        """Note the exit of a server that no fault has ended; the checker fails the run for it (I13)."""
        process = self.servers.get(name)
        if process is None or process in self._ends_expected or process.exit_code is None:
            return
        self._ends_expected.add(process)
        self.recorder.note("ended_by_itself", name=name, pid=process.pid, code=process.exit_code)

    def _start_server(self, name: str) -> None:
        self._note_end(name)
        spec = self.server_specs[name]
        self.servers[name] = LabServer(
            name, self.server_dsn, folder=self.folder, tokens=self.tokens_file, lease=self.lease, port=spec.port,
            args=spec.args, armed=spec.armed, seed=self.seed, variables=spec.variables, prefix=spec.prefix,
        )  # fmt: skip
        spec.port = self.servers[name].port
        self.recorder.note("proc", what="start", name=name, pid=self.servers[name].pid)

    def _start_worker(self, name: str, *, wait: bool = True) -> None:
        spec = self.worker_specs[name]
        self.workers[name] = LabWorker(
            name, self.addresses(spec.servers), folder=self.folder, token=self.tokens[spec.tenant],
            seed=self.seed,
            **{"wait": wait, **spec.options},
        )  # fmt: skip
        self.recorder.note("proc", what="start", name=name, pid=self.workers[name].pid)

    # --- faults ------------------------------------------------------------------------------------------------------

    def lasting(self, short: float, long: float) -> float:
        """For how many seconds, or how often, a fault continues: the second is the catalogue's, with LONG=1."""
        return long if self.long else short

    def fault(self, phase: str, what: str, **data: object) -> None:
        """Note that a fault starts or stops: `fault("start", "cut s1")`. A moment's fault is a start and a stop."""
        self.recorder.note("fault", phase=phase, what=what, **data)

    @asynccontextmanager
    async def faulty(self, what: str) -> AsyncIterator[None]:
        """A fault that lasts for as long as the block."""
        self.fault("start", what)
        try:
            yield
        finally:
            self.fault("stop", what)

    def measured(self, what: str, text: str) -> None:
        """A figure for readers of the table at the end."""
        self.recorder.note("measured", what=what, text=text)

    def undo_at_heal(self, what: str, undo: Undo) -> None:
        """What `heal` has to do so that this fault is over; also done when the world ends early."""
        self._undo.append((what, undo))

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        self.fault("start", f"kill {name}")
        self._frozen.pop(name, None)
        self.expect_end(name)
        await asyncio.to_thread(self.process(name).kill)
        self.fault("stop", f"kill {name}")

    async def stop(self, name: str, *, within: timedelta = timedelta(seconds=40)) -> int:
        """SIGTERM, and wait for the end; gives the exit code."""
        async with self.faulty(f"stop {name}"):
            self.expect_end(name)
            return await asyncio.to_thread(lambda: self.process(name).terminate(within=within))

    async def start(self, name: str, *, wait: bool = True) -> None:
        """Start a server or worker that has ended, at its old address. Also: one that is new in the specs."""
        if name in self.server_specs:
            await asyncio.to_thread(self._start_server, name)
        else:
            await asyncio.to_thread(lambda: self._start_worker(name, wait=wait))

    async def restart(self, name: str) -> None:
        """SIGKILL and start again."""
        await self.kill(name)
        await self.start(name)

    async def freeze(self, name: str) -> None:
        """SIGSTOP, to all processes of PostgreSQL for `pg`."""
        self.fault("start", f"freeze {name}")
        pids = self.postgres_pids() if name == "pg" else [self.process(name).pid]
        self._frozen[name] = pids
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    async def thaw(self, name: str) -> None:
        """SIGCONT."""
        for pid in self._frozen.pop(name, ()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.fault("stop", f"freeze {name}")

    def postgres_pids(self) -> list[int]:
        """The postmaster and its children."""
        postmaster = self.cluster.pid
        if postmaster is None:
            return []
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return [postmaster, *map(int, children)]

    @asynccontextmanager
    async def database(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """A session of the laboratory's own, straight to PostgreSQL."""
        db = await connect(self.dsn, application_name=LAB)
        try:
            yield db
        finally:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await db.close()

    async def kill_backends(self, *, most: int = 1_000, application: str | None = None) -> int:
        """End sessions of the servers, chosen at random; gives how many."""
        async with self.database() as db:
            pids = [row["pid"] for row in await db.fetch(OTHERS, LAB)]
            if application is not None:
                named = "SELECT pid FROM pg_stat_activity WHERE application_name = $1"
                pids = [row["pid"] for row in await db.fetch(named, application)]
            self.chance.shuffle(pids)
            self.fault("start", "kill backends", pids=pids[:most])
            for pid in pids[:most]:
                await db.execute("SELECT pg_terminate_backend($1)", pid)
            self.fault("stop", "kill backends")
        return len(pids[:most])

    async def restart_postgres(self, mode: str = "fast") -> None:
        """`fast`, or `immediate`, which is a crash; `kill` is SIGKILL to the postmaster."""
        async with self.faulty(f"restart postgres {mode}"):
            if mode == "kill":
                pid = self.cluster.pid
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)

                async def gone() -> bool:
                    return self.cluster.pid is None

                await until_async(gone, "the postmaster is gone")
                await asyncio.to_thread(self.cluster.restart)
            else:
                await asyncio.to_thread(self.cluster.restart, mode)  # type: ignore[arg-type]

    def supervise(self, *, every: float = 0.2) -> None:
        """From now on a worker that ends by itself is started again, as a process manager would."""

        async def keep() -> None:
            while True:
                for name in list(self.workers):
                    if self.workers[name].exit_code is not None:
                        self.recorder.note("proc", what="exit", name=name, code=self.workers[name].exit_code)
                        await self.start(name, wait=False)
                await asyncio.sleep(every)

        self._keeper = asyncio.create_task(keep(), name="supervise workers")

    # --- the end phase -----------------------------------------------------------------------------------------------

    async def heal(self) -> None:
        """No more faults: thaw, mend the links, start what is down. Load continues.

        A server that is down although no fault has ended it is started, too, and fails the run.
        """
        for name in list(self._frozen):
            await self.thaw(name)
        while self._undo:
            what, undo = self._undo.pop()
            await undo()
            self.fault("stop", what)
        for proxy in self.proxies.values():
            proxy.heal()
        if self.cluster.pid is None:
            await asyncio.to_thread(self.cluster.restart)
        await self._all(lambda name: None if self._up(name) else self._start_server(name), self.server_specs)
        await self._all(lambda name: None if self._up(name) else self._start_worker(name), self.worker_specs)
        self.recorder.note("healed")

    def _up(self, name: str) -> bool:
        found = self.servers.get(name) or self.workers.get(name)
        return found is not None and found.exit_code is None

    async def drain(self, within: timedelta = DRAIN) -> bool:
        """No new jobs; wait until none is left, and every server answers. Says whether it came to that in time."""
        await self.load.stop()
        await self.load.finish()
        op = self.recorder.invoke("drain", within_s=within.total_seconds())
        try:
            await until_async(self._empty_for_long, "no job is alive", within=within)
            for name in self.server_specs:
                await self._answers(name)
        except (AssertionError, HeadgateError) as error:
            self.recorder.end(op, "fail", text=str(error)[:500], left=await self._left())
            return False
        self.recorder.end(op, "ok")
        await self._probe()
        return True

    async def _empty_for_long(self) -> bool:
        async with self.database() as db:
            for _ in range(_EMPTY_LOOKS):
                if await db.fetchval(BUSY):
                    return False
                await asyncio.sleep(0.1)
        return True

    async def _left(self) -> list[str]:
        async with self.database() as db:
            return [str(tuple(row.values())) for row in await db.fetch(LEFT)]

    async def _answers(self, server: str) -> None:
        """Each server by itself, past the others."""
        hg = Headgate(self.address(server), token=self.tokens[self.tenants[0]])
        try:
            await hg.admin.status()
            self.recorder.note("answers", name=server)
        finally:
            await hg.close(flush=0.1)

    async def _probe(self) -> None:
        """A job for each tenant, when all is over: submitted, given and completed in a moment."""
        for name in self.tenants:
            tenant = self.load.tenant(name)
            job = await self.load.submit(tenant, "fast")
            op = self.recorder.invoke("probe", tenant=name, job=job and job.hex)
            try:
                if job is not None:
                    await tenant.hg.wait_result(job, timeout=15)
                self.recorder.end(op, "ok" if job is not None else "fail")
            except HeadgateError as error:
                self.recorder.end(op, "fail", text=str(error))

    async def judge(self, **options: Any) -> Report:
        """Note who lives, dump the tables, and let the checker read everything. `options` are those of `check`."""
        for name in self.servers:
            self._note_end(name)
        for name in (*self.server_specs, *self.worker_specs):
            self.recorder.note("lives", name=name, alive=self._up(name))
        async with self.database() as db:
            await dump(db, self.recorder)
        for tenant, hg in self.clients.items():
            shown = await hg.admin.status()
            self.recorder.note("final_status", tenant=tenant, topics={one.topic: one.counts for one in shown.topics})
        for word in sorted(self.coverage):
            self.recorder.note("sometimes", what=word)
        events = await asyncio.to_thread(merged, self.folder)
        return await asyncio.to_thread(lambda: check(events, **options))


def _at_port(dsn: str, port: int) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{port}"))
