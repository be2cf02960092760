"""What is measured, alike for Headgate and every peer.

- *bulk*: one producer, by the fastest documented way to enqueue many; no one works meanwhile.
- *drain*: those jobs worked off; from letting idle workers go until the store has nothing left.
- *cycle*: producer and worker at once; from the first submit until the store has nothing left.
- *single*: one call per job, each acknowledged, from many tasks (threads, for libraries without asyncio).
- *pickup*: one job every 30 ms to an idle worker; from before the submit to the start of the handler.

Handlers do nothing but count. A lane ends when every handler ran *and* the store says that no job is left, so what a
library writes late counts as well; a job that ran twice is an error. No lane lasts longer than its cap: what is slower
is a rate over the jobs that were done, and reports it.

A round is every lane of every peer once, and then the next begins: what the neighbours of this machine do in some
minute is shared by all, not by the one that is being measured three times in a row.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.install import Installed
from bench.peers.peer import Peer, Store
from bench.peers.processes import Count, Programs, held_still
from bench.peers.results import LARGE, SMALL, Entry, Pickup, Round
from bench.peers.services import Eye, Postgres, Redis, headgate_server

FOLDER = Path("build/peers/run").absolute()
WARM_UP = 20
APART_SECONDS = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything; the catalogue has the number of jobs of each peer."""

    many: int = 200_000
    pickups: int = 300
    cap: float = 15
    rounds: int = 3
    scale: float = 1.0
    """Of the catalogue's numbers of jobs."""

    def scaled(self, jobs: int) -> int:
        return max(200, round(jobs * self.scale))


class Stuck(Exception):
    """The library did not do what was asked within the time it had."""


class Bench:
    """One peer on one store."""

    def __init__(self, peer: Peer, installed: Installed, store: Postgres | Redis, sizes: Sizes) -> None:
        self._peer, self._installed, self._store, self._sizes = peer, installed, store, sizes

    async def run(self, entry: Entry, *, short: bool = False) -> None:
        """One more round of all lanes; `short` leaves out the large size and pickups."""
        jobs, scaled = self._peer.jobs, self._sizes.scaled
        rounds = entry.setdefault("rounds", {"bulk": {}, "drain": {}, "cycle": {}, "single": {}})
        pickups = entry.setdefault("pickups", [])
        await self._size(rounds, SMALL, bulk=scaled(jobs.bulk), work=scaled(jobs.work))
        rounds["single"].setdefault(SMALL, []).append(await self.single(scaled(jobs.single)))
        if short:
            return
        if jobs.many:
            many = scaled(self._sizes.many)
            await self._size(rounds, LARGE, bulk=many, work=many)
        pickups.append(await self._pickup(self._sizes.pickups))

    async def _size(self, rounds: dict[str, dict[str, list[Round]]], size: str, *, bulk: int, work: int) -> None:
        filled, drained = await self.bulk_and_drain(work)
        if bulk != work:
            filled = await self.bulk(bulk)
        found = {"bulk": filled, "drain": drained, "cycle": await self.cycle(work)}
        for lane, one in found.items():
            rounds[lane].setdefault(size, []).append(one)

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[tuple[Programs, Eye]]:
        """An empty store, the library's tables in it, and no worker yet."""
        await self._store.fresh()
        shutil.rmtree(FOLDER, ignore_errors=True)
        (FOLDER / "tally").mkdir(parents=True)
        async with AsyncExitStack() as stack:
            url = self._store.url
            if self._peer.store is Store.HEADGATE:
                url = await stack.enter_async_context(headgate_server(url))
            programs = Programs(self._installed, url, FOLDER / "tally", self._peer.options)
            if self._peer.store is not Store.HEADGATE:
                await asyncio.to_thread(programs.prepare)
            yield programs, await stack.enter_async_context(self._store.eye(self._peer))

    async def bulk(self, jobs: int) -> Round:
        """Without any worker."""
        async with self._fresh() as (programs, eye):
            return await self._bulk(programs, eye, jobs)

    async def bulk_and_drain(self, jobs: int) -> tuple[Round, Round]:
        """Both begin with idle workers that are held still meanwhile (ours: see below)."""
        async with self._fresh() as (programs, eye):
            if self._peer.store is Store.HEADGATE:
                return await self._bulk_and_first_claim(programs, eye, jobs)
            with programs.workers(self._peer.workers) as workers:
                await self._warm(programs, eye)
                with held_still(workers):
                    bulk = await self._bulk(programs, eye, jobs)
                    since = time.monotonic()
                return bulk, await self._until_done(programs, eye, bulk["jobs"], since=since, already=WARM_UP)

    async def _bulk_and_first_claim(self, programs: Programs, eye: Eye, jobs: int) -> tuple[Round, Round]:
        """Our server would send to a worker that is held still, so ours starts after the submit; its time runs from
        the first claim, by the database's clock."""
        bulk = await self._bulk(programs, eye, jobs)
        with programs.workers(self._peer.workers):
            started = time.monotonic()
            drain = await self._until_done(programs, eye, bulk["jobs"], since=started)
        drain["seconds"] -= await eye.first_claim() - started
        return bulk, drain

    async def _bulk(self, programs: Programs, eye: Eye, jobs: int) -> Round:
        with programs.producer("bulk", jobs, self._sizes.cap) as producer:
            sent = await asyncio.to_thread(producer.go, seconds=self._sizes.cap + 60)
        if not await eye.anything_left():
            raise Stuck("the store shows no job after the bulk submit")
        return Round(jobs=sent.count, seconds=sent.ended - sent.started, capped=sent.count < jobs)

    async def cycle(self, jobs: int) -> Round:
        async with self._fresh() as (programs, eye):
            with programs.workers(self._peer.workers):
                await self._warm(programs, eye)
                with programs.producer("bulk", jobs, self._sizes.cap) as producer:
                    before = time.monotonic()
                    sending = asyncio.create_task(asyncio.to_thread(producer.go, seconds=self._sizes.cap + 60))
                    while not sending.done() and time.monotonic() - before < self._sizes.cap:
                        await asyncio.sleep(0.005)
                    if not sending.done():  # the producer stops at its next chunk; what was handled by now counts
                        handled = programs.count().handled - WARM_UP
                        spent = time.monotonic() - before
                        await sending
                        if handled <= 0:
                            raise Stuck(f"no job was handled within {self._sizes.cap:g} s")
                        return Round(jobs=handled, seconds=spent, capped=True)
                    sent = await sending
                return await self._until_done(programs, eye, sent.count, since=sent.started, already=WARM_UP)

    async def single(self, jobs: int) -> Round:
        async with self._fresh() as (programs, _):
            with programs.producer("single", jobs, self._sizes.cap) as producer:
                sent = await asyncio.to_thread(producer.go, seconds=self._sizes.cap + 60)
            return Round(jobs=sent.count, seconds=sent.ended - sent.started, capped=sent.count < jobs)

    async def _pickup(self, jobs: int) -> Pickup:
        async with self._fresh() as (programs, eye):
            with programs.workers(self._peer.workers):
                await self._warm(programs, eye)
                before = {name: len(waits) for name, waits in programs.waits().items()}
                with programs.producer("paced", jobs, APART_SECONDS) as producer:
                    await asyncio.to_thread(producer.go, seconds=self._sizes.cap + 60 + jobs)
                await _until(lambda count: count.handled >= jobs + WARM_UP, programs, seconds=15)
                waits = sorted(
                    wait for name, found in programs.waits().items() for wait in found[before.get(name, 0) :]
                )
        return {
            "jobs": jobs,
            "p50_ms": round(statistics.median(waits), 2),
            "p99_ms": round(waits[int(len(waits) * 0.99)], 2),
        }

    async def _warm(self, programs: Programs, eye: Eye) -> None:
        with programs.producer("paced", WARM_UP, 0.02) as producer:
            await asyncio.to_thread(producer.go, seconds=60)
        await _until(lambda count: count.handled >= WARM_UP, programs, seconds=30)
        until = time.monotonic() + 15
        while await eye.anything_left():
            if time.monotonic() > until:
                raise Stuck("the store still shows jobs after the warm-up")
            await asyncio.sleep(0.02)

    async def _until_done(self, programs: Programs, eye: Eye, jobs: int, *, since: float, already: int = 0) -> Round:
        """Every handler ran and the store has nothing left, or the cap."""
        wanted = jobs + already
        until = since + self._sizes.cap
        while (count := programs.count()).handled < wanted and time.monotonic() < until:
            await asyncio.sleep(0.002)
        if count.handled <= already:
            raise Stuck(f"no job was handled within {self._sizes.cap:g} s")  # a rate of 0 compares with nothing
        if count.handled < wanted:
            return Round(jobs=count.handled - already, seconds=time.monotonic() - since, capped=True)
        until = time.monotonic() + 30
        while await eye.anything_left():
            if time.monotonic() > until:
                raise Stuck("every handler ran, but the store still shows jobs 30 s later")
            await asyncio.sleep(0.002)
        ended = time.monotonic()
        await asyncio.sleep(0.2)
        if (handled := programs.count().handled) != wanted:
            raise Stuck(f"{handled - already} handlers ran for {jobs} jobs")
        return Round(jobs=jobs, seconds=ended - since, capped=False)


async def _until(reached: Callable[[Count], bool], programs: Programs, *, seconds: float) -> Count:
    until = time.monotonic() + seconds
    while not reached(count := programs.count()):
        if time.monotonic() > until:
            raise Stuck(f"the worker had begun {count.handled} jobs after {seconds:.0f} s")
        await asyncio.sleep(0.002)
    return count
