"""`make bench-peers`: Headgate and its peers, in turn, some rounds. Run nothing else meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from bench.machine import describe
from bench.peers.catalog import BY_NAME, PEERS, Peer, Store
from bench.peers.install import ROOT, NotInstallable, install
from bench.peers.lanes import Bench, Sizes, Stuck
from bench.peers.results import PATH, Entry, load, save, sum_up
from bench.peers.services import Postgres, redis_server
from headgate import embedded
from headgate.embedded import Cluster
from headgate.store.connect import connect

FSYNC = "+fsync"
"""Behind a Redis peer's name in the results: the same with a log that is flushed before every answer."""


def names() -> list[str]:
    """In the order they are measured."""
    return [
        name for peer in PEERS for name in (peer.name, *((peer.name + FSYNC,) if peer.store is Store.REDIS else ()))
    ]


def measure(name: str, cluster: Cluster, sizes: Sizes, entry: Entry) -> None:
    """One more round of one peer; a reason instead of figures if it cannot be measured here."""
    peer = BY_NAME[name.removesuffix(FSYNC)]
    entry["measured"], entry["settings"] = datetime.now(UTC).date().isoformat(), peer.settings
    entry.setdefault("load_at_start", []).append(round(os.getloadavg()[0], 2))
    fsync = name.endswith(FSYNC)
    try:
        installed = install(peer)
        entry["versions"] = installed.versions
        with ExitStack() as stack:
            if peer.store is Store.REDIS:
                redis = stack.enter_context(redis_server(fsync=fsync))
                entry["versions"]["redis-server"] = redis.version
                bench = Bench(peer, installed, redis, sizes)
            else:
                bench = Bench(peer, installed, Postgres(cluster), sizes)
            asyncio.run(bench.run(entry, short=fsync))
        sum_up(entry)
    except NotInstallable as problem:
        entry["missing"] = f"not installed: {problem}"
    except Exception as problem:  # noqa: BLE001  # one library's trouble must not end the others' run
        what = str(problem) if isinstance(problem, Stuck | RuntimeError) else repr(problem)
        entry["missing"] = f"not measured: {what[:300]}{_last_words(peer)}"


def _last_words(peer: Peer) -> str:
    log = ROOT / "run" / "worker.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f" (its worker said: {lines[-1][:200]})" if lines else f" ({peer.program} said nothing)"


def show(name: str, entry: Entry) -> str:
    """One line."""
    if reason := entry.get("missing"):
        return f"{name:24} {reason}"
    words = []
    for lane, sizes in entry["lanes"].items():
        for jobs, found in sizes.items():
            words.append(f"{lane} {int(jobs) // 1000}k {found['rate']:,}/s{'*' if found['capped'] else ''}")
    if pickup := entry.get("pickup"):
        words.append(f"pickup {pickup['p50_ms']}/{pickup['p99_ms']} ms")
    return f"{name:24} " + "  ".join(words)


async def machine(cluster: Cluster) -> dict[str, object]:
    """What all this was measured on."""
    db = await connect(cluster.dsn(), application_name="headgate bench")
    try:
        return await describe(db)
    finally:
        await db.close()


def main() -> int:
    """Measure what was asked for; every entry is written at once."""
    arguments = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    arguments.add_argument("--only", default="", help="names with commas between: saq,rq,saq+fsync")
    arguments.add_argument("--resume", action="store_true", help="leave out the rounds that the file already has")
    arguments.add_argument("--quick", action="store_true", help="a tenth of the jobs: does it run, not how fast")
    arguments.add_argument("--brief", action="store_true", help="one round with a cap of 10 s")
    arguments.add_argument("--install", action="store_true", help="only install")
    arguments.add_argument("--into", type=Path, help="another file than bench/peers.json, or build/peers/quick.json")
    chosen = arguments.parse_args()
    wanted = [name for name in chosen.only.split(",") if name] or names()
    if unknown := set(wanted) - set(names()):
        arguments.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    if chosen.install:
        return _install(wanted)
    sizes = Sizes()
    if chosen.quick:
        sizes = Sizes(jobs=2_000, many=2_000, pickups=50, cap=10, rounds=1)
    elif chosen.brief:
        sizes = Sizes(pickups=200, cap=10, rounds=1)
    into = chosen.into or (ROOT / "quick.json" if chosen.quick else PATH)
    results = load(into)
    if results["sizes"] != asdict(sizes):
        results["peers"] = {}  # figures of other sizes do not belong beside these
    results["sizes"] = cast("dict[str, float]", asdict(sizes))
    if not chosen.resume:
        for name in wanted:
            results["peers"].pop(name, None)
    folder = Path("build/bench/peers")
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    # Told to end, it must still end what it started: workers and Redis are in sessions of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with embedded.start(folder) as cluster:
        results["machine"] = asyncio.run(machine(cluster))
        for number in range(sizes.rounds):
            for name in wanted:
                entry = results["peers"].setdefault(name, {})
                if len(entry.get("load_at_start", ())) > number or "missing" in entry:
                    continue
                measure(name, cluster, sizes, entry)
                save(results, into)
                print(show(name, entry), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.monotonic() - started:.0f} s on {os.cpu_count()} cores; written to {into}")
    return 0


def _install(wanted: list[str]) -> int:
    for peer in dict.fromkeys(BY_NAME[name.removesuffix(FSYNC)] for name in wanted):
        try:
            print(peer.name, install(peer).versions, flush=True)
        except NotInstallable as problem:
            print(peer.name, f"not installed: {problem}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
