"""docs/benchmarks.md, beside the comparison: machine, promises, versions, settings tried, method, own lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.peers.catalog import BY_NAME, PEERS
from bench.peers.results import SMALL, Results
from bench.peers.sweep import BULK, CLEARLY, SINGLE, WORK, Sweep, best
from bench.table import BOUNDS

FULL_ROUNDS = 3
LESS_WORK = {
    "sql_ceiling": "a bare two-table queue on one connection, which does less than Headgate",
    "echo_unary": "a call that does nothing",
}
"""Figures of `make bench` that are no work of Headgate's and complete less or nothing: no ratio to them is shown."""


def bold(name: str, title: str) -> str:
    """Ours stands out."""
    return f"**{title}**" if name == "headgate" else title


def opening(results: Results, measured: Sequence[str], found: Mapping[str, Sweep]) -> Iterator[str]:
    """What was measured, on what, and what to hold against it."""
    yield "# Benchmarks"
    yield ""
    yield "<!-- made by `make bench-docs` from bench/peers.json and bench/peers-sweep.json; do not edit -->"
    yield ""
    yield (
        "The same jobs (100 bytes, a handler that only counts) through Headgate and through what you might pick "
        "instead: public packages at pinned versions, each with "
        f"{'the best settings that we found' if found else 'settings that follow its own advice'}, on the same "
        "machine and the same PostgreSQL settings, or on a local Redis. `make bench-peers` repeats all of it."
    )
    yield ""
    untried = [peer.title for peer in PEERS if peer.name in found and _tried(found[peer.name]) < 2]
    if untried:
        yield f"Of {', '.join(untried)} no other settings were tried: theirs follow their own advice."
        yield ""
    machine = results["machine"]
    postgres = machine["postgres"]
    assert isinstance(postgres, dict)
    shown = ", ".join(f"{key} {value}" for key, value in sorted(postgres.items()) if key != "server_version")
    yield (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['os']}; "
        f"Python {machine['python']}. PostgreSQL {postgres['server_version']}: {shown}. Producer, worker, server "
        "and store share those cores, so a figure is about work per job, not about what a large cluster can do."
    )
    yield ""
    loads = [load for name in measured for load in results["peers"][name]["load_at_start"]]
    if loads and max(loads) > 2 * float(str(machine["cores"])):
        yield f"**The machine was busy with other work (load up to {max(loads)}): take these figures as a trial.**"
        yield ""
    fewer = [
        name
        for name in measured
        if any(lane[SMALL]["runs"] < FULL_ROUNDS for lane in results["peers"][name]["lanes"].values() if SMALL in lane)
    ]
    if fewer:
        titles = ", ".join(dict.fromkeys(BY_NAME[name.partition("+")[0]].title for name in fewer))
        yield f"**Fewer than {FULL_ROUNDS} runs in some lane: {titles}. The tables say how many.**"
        yield ""
    missing = [peer.title for peer in PEERS if peer.name not in measured]
    if not found:
        missing.append("other settings of each peer (the sweep)")
    if missing:
        yield f"**Not measured yet: {', '.join(missing)}.**"
        yield ""
    if results["sizes"].get("scale", 1) != 1:
        yield f"**Reduced size: {results['sizes']['scale']:g} of the jobs.**"
        yield ""


def promises(results: Results) -> Iterator[str]:
    """What each gives with these settings."""
    yield "## What each promises with these settings"
    yield ""
    yield "| | durability | batching | a finished job |"
    yield "|---|---|---|---|"
    for peer in PEERS:
        if peer.name in results["peers"]:
            title = bold(peer.name, peer.title)
            yield f"| {title} | {peer.durability} | {peer.batching} | {peer.visibility} |"
    yield ""
    yield (
        "Every peer on PostgreSQL got the same server with fsync, full_page_writes and synchronous_commit on. "
        "Redis ran with Debian's defaults (snapshots, no log), and once more with `appendonly yes` and "
        "`appendfsync always`, which is the promise PostgreSQL gives: an answer only after the disk has it."
    )
    yield ""


def versions(results: Results, titles: Mapping[str, str]) -> Iterator[str]:
    """What was measured, and how it was set."""
    yield "## Versions and settings"
    yield ""
    yield "| | measured | versions | settings |"
    yield "|---|---|---|---|"
    for name, title in titles.items():
        entry = results["peers"][name]
        found = ", ".join(f"{key} {value}" for key, value in entry["versions"].items())
        yield f"| {bold(name, title)} | {entry['measured']} | {found} | {entry['settings']} |"
    yield ""


def _tried(sweep: Sweep) -> int:
    """How many settings of a peer were measured."""
    return sum(bool(trial["rates"]) for trial in sweep["trials"])


def sweeps(found: Mapping[str, Sweep]) -> Iterator[str]:
    """Every setting that was tried, and what it gave."""
    yield "## Settings that were tried"
    yield ""
    if not found:
        yield "None yet: `make bench-peers SWEEP=1` has not run. The settings above follow each project's own advice."
        yield ""
        return
    yield (
        "`make bench-peers SWEEP=1`, one run each, jobs a second. The first row of a peer is what the sweep began "
        "with; the others change it as they say. In bold the best of a peer: of bulk and of single submits, and by the "
        f"geometric mean of drain and cycle. What gives {CLEARLY - 1:.0%} more than the first row or better is taken; "
        "the settings that all other tables are about stand above."
    )
    yield ""
    yield "| | setting | bulk | single | drain | cycle |"
    yield "|---|---|---:|---:|---:|---:|"
    for peer in PEERS:
        if peer.name not in found:
            continue
        trials = found[peer.name]["trials"]
        top = {lane: best(trials, lanes) for lanes in (BULK, SINGLE, WORK) for lane in lanes}
        for trial in trials:
            cells = []
            for lane in (*BULK, *SINGLE, *WORK):
                rate = trial["rates"].get(lane)
                shown = "" if rate is None else f"{rate:,}"
                cells.append(f"**{shown}**" if rate is not None and trial is top[lane] else shown)
            problem = f" (failed: {trial['problem']})" if "problem" in trial else ""
            yield f"| {bold(peer.name, peer.title)} | {trial['settings']}{problem} | " + " | ".join(cells) + " |"
    yield ""


def method(results: Results) -> Iterator[str]:
    """How to read it, and how to repeat it."""
    sizes = results["sizes"]
    yield "## How it is measured"
    yield ""
    yield "- **bulk submit**: one producer, by the fastest documented way to enqueue many; no worker runs."
    yield (
        "- **single submits**: one call and one acknowledgement per job, from 64 tasks; from 4 threads with "
        "libraries that have no asyncio."
    )
    yield (
        "- **drain**: jobs worked off by workers that were connected, idle and held still (SIGSTOP) during "
        "the submit, from letting them go until the store has none left. Headgate's server would send jobs to a "
        "worker that is held still, so ours starts afterwards and its time runs from the first claim."
    )
    yield "- **cycle**: producer and worker at once, from the first submit until the store has none left."
    yield (
        f"- **idle pickup**: {sizes['pickups']:g} jobs, one every 30 ms, from before the submit to the start of "
        "the handler, producer and worker in processes of their own."
    )
    yield ""
    yield (
        "Counting is the same for all. Handlers count in the worker's memory, which the measuring process sees; a "
        "lane ends when every handler ran *and* a query to the store finds no unfinished job, so late "
        "acknowledgements are part of the time. A handler that ran twice fails the lane. Every lane starts on an "
        "empty store with fresh processes, warmed up by 20 jobs where a worker runs from the start. "
        "Corrections that make a peer faster are welcome: its program is one short file in `bench/peers/programs`, its "
        "settings are in `bench/peers/catalog.py`."
    )
    yield ""
    yield "```"
    yield "make bench-peers                 # all of it, about 35 minutes; nothing else may run meanwhile"
    yield "make bench-peers ONLY=saq,rq     # some of it; the results are merged"
    yield "make bench-peers RESUME=1        # what is still missing"
    yield "make bench-peers SWEEP=1         # other settings of each peer, about 12 minutes"
    yield "make bench-docs                  # this page"
    yield "```"
    yield ""


def own_lanes(results: Results) -> Iterator[str]:
    """The figures of `make bench`."""
    own = results.get("own")
    if not own:
        return
    yield "## Headgate's own lanes"
    yield ""
    yield (
        "`make bench`; `bench/README.md` says what each lane does. "
        + " ".join(f"`{name}` is {words}." for name, words in LESS_WORK.items() if name in own)
        + " They tell how fast this machine is, and are no competitors."
    )
    yield ""
    yield "| figure | median (least … most) | runs |"
    yield "|---|---:|---:|"
    for name, value in sorted(own.items()):
        if cells := _cells(value):
            yield f"| {name} | {cells[0]} | {cells[1]} |"
    yield ""
    bounds = [bound for bound in BOUNDS if len(bound.where) == 1 and is_plain(bound.where[0], 0)]
    if missing := [bound.figure for bound in bounds if bound.where[0] not in own]:
        yield f"Not measured yet, as these rows are defined now: {'; '.join(missing)}."
        yield ""


def _cells(value: object) -> tuple[str, str] | None:
    """A number, or a median with its spread; anything deeper has no place in a table."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return f"{value:,}", "1"
    if isinstance(value, dict) and {"median", "min", "max"} <= value.keys():
        runs = value.get("runs", FULL_ROUNDS)  # before it was written down, every spread was one of three
        return f"{value['median']:,} ({value['min']:,} … {value['max']:,})", str(runs)
    return None


def is_plain(name: str, value: object) -> bool:
    """Whether a figure of `make bench` has a place on the page; ratios to what does less work have none."""
    return name not in ("machine", "submit_unary_to_echo", "to_ceiling") and _cells(value) is not None
