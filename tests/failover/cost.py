"""What PgBouncer costs: the same work past it and through it, in turns, on one durable PostgreSQL.

Every hop is a local socket, so that what is measured is PgBouncer and what servers do differently because of it: each
statement in a transaction of its own, none prepared, and without a direct URL no LISTEN.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from urllib.parse import parse_qs, urlsplit

from bench.figures import Spread, percentile, spread
from bench.lane_cycle import CONCURRENCY, PREFETCH, cycle
from bench.machine import describe
from bench.stack import Stack, process_seconds, stack
from headgate import Headgate, Job
from headgate.cli import bench_runs
from tests.failover.report import Report
from tests.support.pgbouncer import PgBouncer, config_of, free_port
from tests.support.waiting import until_async

ROUNDS = 3
JOBS = 60_000
PICKUPS, ACROSS = 80, 8
SESSIONS = 20
LEAST_SHARE = 0.5
"""Of the jobs a second past PgBouncer, what must come through it at least."""
PAST, THROUGH, BESIDE = "direct", "through PgBouncer", "through PgBouncer, with a direct URL"
PARTIES = ("server", "producer", "worker", "postgres")
TICK_SECONDS = 1.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How servers reach the database."""

    options: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is measured on."""

    made: Stack
    bouncer: PgBouncer
    ways: Mapping[str, Way]

    def in_turns(self) -> Iterator[tuple[str, Way]]:
        """Each way once a round, another one first in each."""
        names = list(self.ways)
        for number in range(ROUNDS):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                yield name, self.ways[name]

    @contextmanager
    def serving(self, way: Way) -> Iterator[None]:
        """A server that goes this way; it is gone afterwards, and so are others started meanwhile."""
        self.made.options, self.made.environ = way.options, way.environ
        try:
            self.made.start_server()
            yield
        finally:
            while self.made.processes:
                self.made.stop_server()


@asynccontextmanager
async def place(name: str, program: str, say: Say) -> AsyncIterator[Place]:
    """A PostgreSQL with the settings of `make bench`, and a PgBouncer before it."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-pooler-"))
    folder.chmod(0o755)
    try:
        async with stack(name, servers=0) as made:
            parts, query = urlsplit(made.dsn), parse_qs(urlsplit(made.dsn).query)
            host, of_database, user, port = query["host"][0], query["port"][0], parts.username or "", free_port()
            account = pwd.getpwuid(Path(host, f".s.PGSQL.{of_database}").stat().st_uid)
            config = config_of(host, of_database, user=user, port=port, sessions=SESSIONS, socket_dir=folder)
            through = {"HEADGATE_DATABASE_URL": f"postgresql://{user}@{parts.path}?host={folder}&port={port}"}
            beside = through | {"HEADGATE_DIRECT_DATABASE_URL": made.dsn}
            ways = {
                PAST: Way(),
                THROUGH: Way(options=("--pooler",), environ=through),
                BESIDE: Way(options=("--pooler",), environ=beside),
            }
            async with made.database() as db:
                machine = await describe(db)
            say(f"machine: {machine}")
            with PgBouncer(config, port=port, folder=folder, account=account, program=program) as bouncer:
                yield Place(made=made, bouncer=bouncer, ways=ways)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def throughput(program: str, say: Say) -> list[Report]:
    """Jobs a second of whole cycles; a run that lost or doubled a job raises."""
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[dict[str, float]]] = {}
    async with place("pooler-cost", program, say) as at:
        for name, way in at.in_turns():
            with at.serving(way):
                before = process_seconds(at.bouncer.process.pid)
                rate, cost = await cycle(at.made, JOBS)
                cost["PgBouncer"] = (process_seconds(at.bouncer.process.pid) - before) / JOBS * 1e6
            strangers = at.made.cores["cycle"][-1]["others"] - cost["PgBouncer"] * rate / 1e6
            rates.setdefault(name, []).append(rate)
            costs.setdefault(name, []).append(cost)
            spent = ", ".join(f"{party} {cost[party]:.0f}" for party in (*PARTIES, "PgBouncer"))
            say(f"{name}: {rate:,.0f} jobs/s; µs of processor a job: {spent}; {others(strangers)}")
    past = spread(rates[PAST])
    return [
        Report(
            name=f"cycle {name}",
            good=spread(found)["median"] >= LEAST_SHARE * past["median"],
            figure=f"{spread(found)['median']:,} jobs/s",
            text=(
                f"{shown(spread(found))} jobs/s, {spread(found)['median'] / past['median']:.0%} of direct; "
                f"{spread([cost['server'] for cost in costs[name]])['median']} µs of the server and "
                f"{spread([cost['PgBouncer'] for cost in costs[name]])['median']} of PgBouncer for a job; "
                f"{ROUNDS} rounds of {JOBS:,}, concurrency {CONCURRENCY:,}, prefetch {PREFETCH:,}"
            ),
        )
        for name, found in rates.items()
    ]


async def pickup(program: str, say: Say) -> list[Report]:
    """From before a submit to the start of its handler: on one instance, and from one to another."""
    alone: dict[str, list[float]] = {}
    apart: dict[str, list[float]] = {}
    async with place("pooler-pickup", program, say) as at:
        for name, way in at.in_turns():
            with at.serving(way):
                async with Headgate(at.made.addresses[0]) as hg:
                    here = await bench_runs.pickup(hg, "pickup", PICKUPS)
                at.made.start_server()
                there = await across(*at.made.addresses, count=ACROSS)
            alone.setdefault(name, []).append(percentile(here, 0.5))
            apart.setdefault(name, []).append(percentile(there, 0.5))
            say(f"{name}: p50 {alone[name][-1]:.2f} ms, to another instance {apart[name][-1]:.2f} ms; {others()}")
    return [
        Report(
            name=f"idle pickup {name}",
            good=True,
            figure=f"p50 {spread(found, 2)['median']:.2f} ms, {spread(apart[name], 2)['median']:.2f} ms to another",
            text=(
                f"p50 {shown(spread(found, 2))} ms on one instance, {shown(spread(apart[name], 2))} ms to another; "
                f"{ROUNDS} rounds of {PICKUPS} and {ACROSS}"
            ),
        )
        for name, found in alone.items()
    ]


async def across(submit_at: str, work_at: str, *, count: int) -> list[float]:
    """Milliseconds of single jobs that one instance takes in and another one's worker handles."""
    began: dict[bytes, float] = {}
    waits: list[float] = []
    moments = Random(1)  # spread over a tick, the same ones for every way
    async with Headgate(submit_at) as producer, Headgate(work_at) as consumer:

        async def handle(job: Job) -> None:
            began[job.payload] = time.perf_counter()

        consumer.register("across", handle)
        worker = consumer.worker()
        running = asyncio.create_task(worker.run())
        try:

            async def connected() -> bool:
                return worker.connected

            await until_async(connected, "the worker is connected")
            for number in range(-1, count):  # the first one warms everything up
                payload = b"%d" % number

                async def handled(payload: bytes = payload) -> bool:
                    return payload in began

                await asyncio.sleep(moments.uniform(0, TICK_SECONDS))
                sent = time.perf_counter()
                await producer.submit("across", payload)
                await until_async(handled, "the job was handled")
                waits.append((began[payload] - sent) * 1000)
        finally:
            worker.stop()
            await running
    return waits[1:]


def others(cores: float | None = None) -> str:
    """What else ran on this machine."""
    load = f"load {os.getloadavg()[0]:.1f}"
    return load if cores is None else f"others kept {max(0.0, cores):.2f} cores busy, {load}"


def shown(figure: Spread) -> str:
    """The median, and between what all rounds were."""
    return f"{figure['median']:,} ({figure['min']:,} to {figure['max']:,})"
