"""`make bench-peers`: Headgate and its peers, in turn, some rounds. Run nothing else meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from bench.machine import describe
from bench.peers import sweep
from bench.peers.catalog import BY_NAME, PEERS
from bench.peers.install import ROOT, NotInstallable, install
from bench.peers.lanes import Bench, Sizes, Stuck
from bench.peers.peer import Peer, Store
from bench.peers.results import PATH, Entry, Results, load, save, sum_up
from bench.peers.services import Postgres, redis_server
from headgate import embedded
from headgate.embedded import Cluster
from headgate.store.connect import connect

FSYNC = "+fsync"
"""Behind a Redis peer's name in the results: the same with a log that is flushed before every answer."""
GUESS_SECONDS = 40.0
"""Of one round of a peer that was never measured."""


def names() -> list[str]:
    """In the order they are measured."""
    return [
        name for peer in PEERS for name in (peer.name, *((peer.name + FSYNC,) if peer.store is Store.REDIS else ()))
    ]


def peer_of(name: str) -> Peer:
    """With the best settings that are known."""
    return sweep.chosen(BY_NAME[name.removesuffix(FSYNC)], sweep.load())


def measure(name: str, cluster: Cluster, sizes: Sizes, known: Entry) -> Entry:
    """What is known, and one more round; a reason beside it if that could not be measured here."""
    peer, entry = peer_of(name), deepcopy(known)
    entry["measured"], entry["settings"] = datetime.now(UTC).date().isoformat(), peer.settings
    entry.setdefault("load_at_start", []).append(round(os.getloadavg()[0], 2))
    fsync = name.endswith(FSYNC)
    began = time.monotonic()
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
    except NotInstallable as problem:
        return known | {"missing": f"not measured: {problem}"}
    except Exception as problem:  # noqa: BLE001  # one library's trouble must not end the others' run
        return known | {"missing": f"not measured: {reason(problem)}{_last_words(peer)}"}
    entry.setdefault("seconds", []).append(round(time.monotonic() - began, 1))
    sum_up(entry)
    return entry


def reason(problem: Exception) -> str:
    """In one line."""
    what = str(problem) if isinstance(problem, Stuck | RuntimeError) else repr(problem)
    return what[:300]


def _last_words(peer: Peer) -> str:
    log = ROOT / "run" / "worker.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f" (its worker said: {lines[-1][:200]})" if lines else f" ({peer.program} said nothing)"


def show(name: str, entry: Entry) -> str:
    """One line."""
    if missing := entry.get("missing"):
        return f"{name:24} {missing}"
    words = []
    for lane, sizes in entry["lanes"].items():
        for found in sizes.values():
            rate = f"{found['median']:,.0f}/s{'*' if found['capped'] else ''}"
            words.append(f"{lane} {found['jobs'] / 1000:g}k {rate}")
    if pickup := entry.get("pickup"):
        words.append(f"pickup {pickup['p50_ms']['median']}/{pickup['p99_ms']['median']} ms")
    return f"{name:24} {entry['seconds'][-1]:3.0f} s  " + "  ".join(words)


async def machine(cluster: Cluster) -> dict[str, object]:
    """What all this was measured on."""
    db = await connect(cluster.dsn(), application_name="headgate bench")
    try:
        return await describe(db)
    finally:
        await db.close()


def remaining(results: Results, wanted: Sequence[str], rounds: int) -> list[str]:
    """What is left to measure, one name per round: all peers once, then all once more."""
    return [
        name
        for number in range(rounds)
        for name in wanted
        if len(results["peers"].get(name, {}).get("seconds", ())) <= number
    ]


def estimate(results: Results, turns: Sequence[str]) -> float:
    """Seconds for these turns, by how long a round of each took before."""
    known = {
        name: statistics.median(entry["seconds"]) for name, entry in results["peers"].items() if "seconds" in entry
    }
    return sum(known.get(name, GUESS_SECONDS) for name in turns)


def main() -> int:
    """Measure what was asked for; every entry is written at once."""
    chosen, wanted = _arguments()
    if chosen.install:
        return _install(wanted)
    # Told to end, it must still end what it started: workers and Redis are in sessions of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path("build/bench/peers")
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    try:
        with embedded.start(folder) as cluster:
            into = _sweep(chosen, wanted, cluster) if chosen.sweep else _rounds(chosen, wanted, cluster)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.monotonic() - started:.0f} s on {os.cpu_count()} cores; written to {into}")
    return 0


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    arguments = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    arguments.add_argument("--only", default="", help="names with commas between: saq,rq,saq+fsync")
    arguments.add_argument("--resume", action="store_true", help="leave out the rounds that the file already has")
    arguments.add_argument(
        "--quick", action="store_true", help="a tenth of the jobs, one round: does it run, not how fast"
    )
    arguments.add_argument("--brief", action="store_true", help="one round")
    arguments.add_argument("--sweep", action="store_true", help="try the settings of the catalogue, one run each")
    arguments.add_argument("--install", action="store_true", help="only install")
    arguments.add_argument("--into", type=Path, help="another file than the checked-in one")
    chosen = arguments.parse_args()
    wanted = [name for name in chosen.only.split(",") if name] or names()
    if unknown := set(wanted) - set(names()):
        arguments.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    return chosen, wanted


def _rounds(chosen: argparse.Namespace, wanted: Sequence[str], cluster: Cluster) -> Path:
    sizes = Sizes()
    if chosen.quick:
        sizes = Sizes(pickups=50, cap=10, rounds=1, scale=0.1)
    elif chosen.brief:
        sizes = Sizes(rounds=1)
    into: Path = chosen.into or (ROOT / "quick.json" if chosen.quick or chosen.brief else PATH)
    before = load(into)
    results = deepcopy(before)
    if results["sizes"] != asdict(sizes):
        results["peers"] = {}  # figures of other sizes do not belong beside these
    results["sizes"] = cast("dict[str, float]", asdict(sizes))
    for name in wanted:
        entry = results["peers"].get(name, {})
        if not chosen.resume or entry.get("settings") != peer_of(name).settings:
            results["peers"].pop(name, None)
        else:
            entry.pop("missing", None)  # it may work by now
    turns = remaining(results, wanted, sizes.rounds)
    print(f"{len(turns)} turns, {sizes.rounds} rounds: about {estimate(before, turns) / 60:.0f} minutes", flush=True)
    results["machine"] = asyncio.run(machine(cluster))
    for name in turns:
        if "missing" in results["peers"].get(name, {}):
            continue
        results["peers"][name] = measure(name, cluster, sizes, results["peers"].get(name, {}))
        save(results, into)
        print(show(name, results["peers"][name]), flush=True)
    return into


def _sweep(chosen: argparse.Namespace, wanted: Sequence[str], cluster: Cluster) -> Path:
    into: Path = chosen.into or sweep.PATH
    peers = [BY_NAME[name] for name in wanted if not name.endswith(FSYNC)]
    print(
        f"{sum(1 + len(peer.sweep) for peer in peers)} settings: about {sweep.estimate(peers) / 60:.0f} minutes",
        flush=True,
    )
    until = time.monotonic() + sweep.ENOUGH_SECONDS
    for peer in peers:
        sweep.run(peer, cluster, into, until=until, scale=0.1 if chosen.quick else 1.0)
    return into


def _install(wanted: Sequence[str]) -> int:
    for peer in [BY_NAME[name] for name in wanted if not name.endswith(FSYNC)]:
        try:
            print(peer.name, install(peer).versions, flush=True)
        except NotInstallable as problem:
            print(peer.name, f"not measured: {problem}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
