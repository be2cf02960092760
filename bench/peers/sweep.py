"""`make bench-peers SWEEP=1`: each peer with the settings of the catalogue and with others, one run each.

A setting is tried in the lanes that it changes: the number of jobs in a call in bulk submits, the connections of the
producer in single submits, and all others in drain and cycle, where the geometric mean of both decides. What gives
clearly more than the catalogue's settings is what `make bench-peers` measures from then on.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NotRequired, TypedDict

from bench.peers.install import NotInstallable, install
from bench.peers.lanes import Bench, Sizes
from bench.peers.peer import Peer, Setting, Store
from bench.peers.results import Round
from bench.peers.services import Postgres, redis_server
from headgate.embedded import Cluster

PATH = Path("bench/peers-sweep.json")
BULK, SINGLE, WORK = ("bulk",), ("single",), ("drain", "cycle")
LARGER = 2
"""Peers that also get the large number of jobs get so many times their small one here: else a run is too short."""
CAP_SECONDS = 6
CLEARLY = 1.05
"""How many times as much as with the catalogue's setting; less may be chance, for each setting has one run."""
SECONDS = {BULK: 3.0, SINGLE: 3.5, WORK: 8.0}
"""About how long one trial takes."""
ENOUGH_SECONDS = 720.0
"""No further setting is tried after this."""


class Trial(TypedDict):
    """One run of one setting."""

    changed: dict[str, Setting]
    """What differs from the catalogue; nothing for the catalogue's own settings."""
    settings: str
    rates: dict[str, int]
    problem: NotRequired[str]


class Sweep(TypedDict):
    """What was tried with one peer."""

    measured: str
    options: dict[str, Setting]
    """The catalogue's, at that time."""
    chosen: dict[str, Setting]
    """What is measured instead of them."""
    trials: list[Trial]


def lanes_of(changed: Mapping[str, Setting]) -> tuple[str, ...]:
    """Those that a change has an effect on."""
    if not changed:
        return (*BULK, *SINGLE, *WORK)
    if changed.keys() <= {"CHUNK", "PARALLEL"}:
        return BULK
    return SINGLE if changed.keys() == {"POOL"} else WORK


def score(trial: Trial, lanes: Sequence[str]) -> float:
    """To compare trials of the same lanes; 0 if one of them is missing."""
    rates = [trial["rates"].get(lane, 0) for lane in lanes]
    return statistics.geometric_mean(rates) if min(rates) > 0 else 0.0


def best(trials: Sequence[Trial], lanes: tuple[str, ...]) -> Trial | None:
    """Of the trials that ran in these lanes."""
    ran = [trial for trial in trials if score(trial, lanes) > 0]
    return max(ran, key=lambda trial: score(trial, lanes), default=None)


def choose(trials: Sequence[Trial]) -> dict[str, Setting]:
    """What to change in the catalogue's settings, which are those of the first trial."""
    changed: dict[str, Setting] = {}
    for lanes in (BULK, SINGLE, WORK):
        found = best(trials, lanes)
        if found and score(found, lanes) >= CLEARLY * score(trials[0], lanes):
            changed |= found["changed"]
    return changed


def chosen(peer: Peer, sweeps: Mapping[str, Sweep]) -> Peer:
    """The peer with its best settings; a sweep of other settings than the catalogue now has does not count."""
    found = sweeps.get(peer.name)
    return peer.with_options(found["chosen"]) if found and found["options"] == peer.options else peer


def estimate(peers: Iterable[Peer]) -> float:
    """Seconds."""
    return sum(
        SECONDS[lanes]
        for peer in peers
        for changed in ({}, *peer.sweep)
        for lanes in (BULK, SINGLE, WORK)
        if set(lanes) <= set(lanes_of(changed))
    )


def load(path: Path = PATH) -> dict[str, Sweep]:
    """What was tried so far, by peer."""
    if path.exists():
        found: dict[str, Sweep] = json.loads(path.read_text())
        return found
    return {}


def run(peer: Peer, cluster: Cluster, into: Path, *, until: float, scale: float = 1.0) -> None:
    """All settings of one peer; written at once."""
    trials: list[Trial] = []
    for changed in ({}, *peer.sweep):
        trial: Trial = {"changed": dict(changed), "settings": peer.described(changed or peer.options), "rates": {}}
        try:
            if time.monotonic() > until:
                raise TimeoutError("not tried: the time for the sweep was over")
            trial["rates"] = _try(peer.with_options(changed), cluster, lanes_of(changed), scale=scale)
        except NotInstallable as problem:
            print(f"{peer.name:16} not measured: {problem}", flush=True)
            return
        except Exception as problem:  # noqa: BLE001  # a setting that does not work is a result too
            trial["problem"] = repr(problem)[:200]
        trials.append(trial)
        shown = "  ".join(f"{lane} {rate:,}/s" for lane, rate in trial["rates"].items())
        print(f"{peer.name:16} {trial['settings']:60} {shown}{trial.get('problem', '')}", flush=True)
    changed = choose(trials)
    print(f"{peer.name:16} -> {peer.described(changed) or 'as in the catalogue'}", flush=True)
    known = load(into)
    known[peer.name] = {
        "measured": datetime.now(UTC).date().isoformat(),
        "options": dict(peer.options),
        "chosen": changed,
        "trials": trials,
    }
    into.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _try(peer: Peer, cluster: Cluster, lanes: Sequence[str], *, scale: float) -> dict[str, int]:
    sizes = Sizes(cap=CAP_SECONDS, scale=scale * (LARGER if peer.jobs.many else 1))
    with ExitStack() as stack:
        store = stack.enter_context(redis_server(fsync=False)) if peer.store is Store.REDIS else Postgres(cluster)
        found = asyncio.run(_measure(Bench(peer, install(peer), store, sizes), peer, sizes, lanes))
    return {lane: math.floor(one["jobs"] / one["seconds"]) for lane, one in found.items()}


async def _measure(bench: Bench, peer: Peer, sizes: Sizes, lanes: Sequence[str]) -> dict[str, Round]:
    found: dict[str, Round] = {}
    if "bulk" in lanes:
        found["bulk"] = await bench.bulk(sizes.scaled(peer.jobs.bulk))
    if "single" in lanes:
        found["single"] = await bench.single(round(peer.jobs.single * min(1, sizes.scale)))
    if "drain" in lanes:
        _, found["drain"] = await bench.bulk_and_drain(sizes.scaled(peer.jobs.work))
    if "cycle" in lanes:
        found["cycle"] = await bench.cycle(sizes.scaled(peer.jobs.work))
    return found
