"""Samples of a loaded system every few seconds, and what can be said of them on a machine that does other things too.

A slope over a few minutes is mostly noise. So what has passed after the warm-up is cut into thirds, and their medians
are compared: a leak moves all of them, a neighbour's build only one sample in some. Each sample also says how much of
the processors others used (`foreign`, in cores); times are judged by calm samples only.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import Loaded, LoadProcess, clock, descriptors, memory_mib, threads
from bench.stack import TICKS_PER_SECOND, process_seconds, tree_seconds

EVERY_SECONDS = 5.0
CALM_CORES = 0.3
"""Others may use so much of the processors during a sample that counts for a verdict about time."""
HOT_TABLES = ("jobs", "payloads", "flow_deltas")
Sample = dict[str, float]

TABLES = """
SELECT relname, n_dead_tup, n_live_tup, n_tup_ins::float8
  FROM pg_stat_user_tables WHERE schemaname = 'headgate' AND relname = ANY ($1)"""
INDEXES = """
SELECT coalesce(sum(idx_blks_hit + idx_blks_read), 0)::float8 FROM pg_statio_user_indexes
 WHERE schemaname = 'headgate' AND indexrelname = 'jobs_claim_order'"""
FUNCTIONS = """
SELECT funcname, sum(calls)::float8, sum(total_time)::float8 FROM pg_stat_user_functions
 WHERE schemaname = 'headgate' GROUP BY funcname"""


@dataclass(slots=True)
class Watch:
    """Takes samples until it is stopped."""

    made: Loaded
    producers: Sequence[LoadProcess]
    workers: Callable[[], Sequence[LoadProcess]]
    samples: list[Sample] = field(default_factory=list)
    _last: dict[str, tuple[float, float]] = field(default_factory=dict)
    _pages: float = 0.0
    _jobs: float = 0.0
    _used: tuple[float, float, float] | None = None  # when, by all processes, by ours

    async def run(self, stop: asyncio.Event) -> None:
        """One sample every few seconds. A database that is away leaves its part of a sample out."""
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), EVERY_SECONDS)
            except TimeoutError:
                self.samples.append(await self.sample())

    async def sample(self) -> Sample:
        now = clock()
        found: Sample = {"at": now}
        pids = {"server": self.made.server.pid, "worker": self.workers()[0].pid, "producer": self.producers[0].pid}
        for name, pid in pids.items():
            try:
                found[f"{name}_rss"] = round(memory_mib(pid), 1)
                found[f"{name}_fds"] = descriptors(pid)
                found[f"{name}_threads"] = threads(pid)
            except (FileNotFoundError, ProcessLookupError):  # between two lives
                continue
        self._neighbours(found)
        found["log_bytes"] = sum(server.log.stat().st_size for server in self.made.servers)
        recent = [line for worker in self.workers() for line in worker.since(now - EVERY_SECONDS - 1) if "p99" in line]
        if recent:
            found["e2e_p99"] = round(statistics.median(line["p99"] for line in recent), 1)
            found["e2e_worst_second"] = round(max(line["p99"] for line in recent), 1)
            found["e2e_p50"] = round(statistics.median(line["p50"] for line in recent), 1)
        for name, processes in (("completed", self.workers()), ("acked", self.producers)):
            found[name] = sum(line.get("acked", 0) for one in processes for line in one.since(now - EVERY_SECONDS))
            found[name] = round(found[name] / EVERY_SECONDS)
        submitted = [line["p99"] for one in self.producers for line in one.since(now - EVERY_SECONDS) if "p99" in line]
        if submitted:
            found["submit_p99"] = round(statistics.median(submitted), 1)
        try:
            await asyncio.wait_for(self._look(found), EVERY_SECONDS)
        except Exception as error:  # noqa: BLE001 - a killed backend, a restart: the next sample has it again
            found["unseen"] = 1
            print(f"sample without the database: {error!r}"[:120], flush=True)
        return found

    def _neighbours(self, found: Sample) -> None:
        ours = tree_seconds(self.made.postmaster) + process_seconds(os.getpid())
        pids = [server.pid for server in self.made.servers]
        for pid in (*pids, *(one.pid for one in (*self.producers, *self.workers()))):
            try:
                ours += process_seconds(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
        now = (found["at"], (user + nice + system + irq + softirq) / TICKS_PER_SECOND, ours)
        if self._used is not None and ours >= self._used[2]:  # less: one of ours was restarted, and counts again
            spent, span = (now[1] - self._used[1]) - (ours - self._used[2]), now[0] - self._used[0]
            found["foreign"] = round(max(0.0, spent / span), 2)
        self._used = now

    async def _look(self, found: Sample) -> None:
        async with self.made.database() as db:
            jobs = 1.0
            for name, dead, live, inserted in await db.fetch(TABLES, list(HOT_TABLES)):
                found[f"dead_{name}"], found[f"live_{name}"] = dead, live
                if name == "jobs":
                    jobs, self._jobs = max(1.0, inserted - self._jobs), inserted
            calls = {row[0]: (row[1], row[2]) for row in await db.fetch(FUNCTIONS)}
            for name, (count, spent) in calls.items():
                before = self._last.get(name, (0.0, 0.0))
                if name in ("claim_v1", "submit_v1", "settle_v1", "tick_v1") and count > before[0]:
                    found[f"{name[:-3]}_ms"] = round((spent - before[1]) / (count - before[0]), 3)
                    found[f"{name[:-3]}_us_per_job"] = round(1000 * (spent - before[1]) / jobs, 2)
            pages = float(await db.fetchval(INDEXES))
            found["claim_index_pages_per_job"] = round((pages - self._pages) / jobs, 2)
            self._last, self._pages = calls, pages


def column(samples: Sequence[Sample], name: str) -> list[float]:
    return [sample[name] for sample in samples if name in sample]


def thirds(samples: Sequence[Sample], name: str, *, warm_up: float, calm: bool = False) -> list[float]:
    """Medians of the thirds of what came after the warm-up; `calm`: only of samples during which others did little."""
    if not samples:
        return []
    warm = [sample for sample in samples if sample["at"] >= samples[0]["at"] + warm_up]
    if calm:
        warm = [sample for sample in warm if sample.get("foreign", 0.0) <= CALM_CORES]
    values = column(warm, name)
    if len(values) < 3:
        return []
    cuts = [len(values) * part // 3 for part in range(4)]
    return [round(statistics.median(values[cuts[part] : cuts[part + 1]]), 2) for part in range(3)]


def growth(medians: Sequence[float]) -> float:
    """Last third over the first. Where there is nothing to compare, nothing is known: that is no number that holds."""
    return round(medians[2] / medians[0], 3) if len(medians) == 3 and medians[0] else math.inf


def drift(medians: Sequence[float]) -> float:
    """The highest of the later thirds over the first: what is flat is flat in each of them."""
    return round(max(medians[1:]) / medians[0], 3) if len(medians) == 3 and medians[0] else math.inf
