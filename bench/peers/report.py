"""`make bench-docs`: docs/benchmarks.md and its plots from bench/peers.json, and from nothing else.

When bench/latest.json exists (`make bench`), its figures are first taken into bench/peers.json, so that the checked-in
file alone always gives the checked-in page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.peers.catalog import BY_NAME, NOT_COMPARED, PEERS, Store
from bench.peers.plots import Row, bars
from bench.peers.results import PATH, Entry, Rate, Results, load, save

PAGE = Path("docs/benchmarks.md")
PLOTS = Path("docs/benchmarks")
LATEST = Path("bench/latest.json")
FSYNC = "+fsync"
OURS = "headgate"
LANES = {
    "bulk": "bulk submit",
    "single": "single submits",
    "drain": "drain",
    "cycle": "cycle",
}


def title(name: str) -> str:
    """As it is shown."""
    peer = BY_NAME[name.removesuffix(FSYNC)]
    return peer.title + (", fsync" if name.endswith(FSYNC) else "")


def order(results: Results) -> list[str]:
    """Headgate, then the catalogue's order, each Redis peer with its second run behind it."""
    wanted = [name for peer in PEERS for name in (peer.name, peer.name + FSYNC)]
    return [name for name in wanted if name in results["peers"]]


class Page:
    """The page and its plots, made from the results."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._small, self._large = (str(round(results["sizes"][key])) for key in ("jobs", "many"))
        self._both = tuple(dict.fromkeys((self._small, self._large)))  # a trial has one size only
        self._measured = [name for name in order(results) if "lanes" in results["peers"][name]]

    def files(self) -> dict[Path, str]:
        """Every file with its content."""
        return dict(self._plots()) | {PAGE: self._text()}

    def _entry(self, name: str) -> Entry:
        return self._results["peers"][name]

    def _rate(self, name: str, lane: str, jobs: str) -> Rate | None:
        return self._entry(name)["lanes"].get(lane, {}).get(jobs)

    def _plots(self) -> Iterator[tuple[Path, str]]:
        for lane, words in LANES.items():
            for jobs in self._both:
                rows = self._rate_rows(lane, jobs)
                if len(rows) > 1 and (jobs == self._small or lane == "cycle"):
                    head = f"{words[0].upper()}{words[1:]}, {int(jobs):,} jobs: jobs a second (longer is better)"
                    yield PLOTS / f"{lane}-{jobs}.svg", bars(head, self._note(), rows)
        rows = []
        for name in self._measured:
            if pickup := self._entry(name).get("pickup"):
                text = f"{pickup['p50_ms']:g} / {pickup['p99_ms']:g}"
                rows.append(
                    Row(
                        label=title(name),
                        value=pickup["p50_ms"],
                        beyond=pickup["p99_ms"],
                        text=text,
                        kind=self._kind(name),
                    )
                )
        if rows:
            rows.sort(key=lambda row: row.value)
            head = "Idle pickup, ms: p50 dark, p99 light, logarithmic (shorter is better)"
            yield PLOTS / "pickup.svg", bars(head, self._note(), rows, logarithmic=True)

    def _note(self) -> str:
        machine = self._results["machine"]
        days = sorted({self._entry(name)["measured"] for name in self._measured})
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        return f"{machine['cpu']}, {machine['cores']} cores; {when}. Grey: PostgreSQL, red: Redis. * stopped at the cap"

    def _rate_rows(self, lane: str, jobs: str) -> list[Row]:
        found = []
        for name in self._measured:
            if rate := self._rate(name, lane, jobs):
                text = f"{rate['rate']:,}{'*' if rate['capped'] else ''}"
                found.append(Row(label=title(name), value=rate["rate"], text=text, kind=self._kind(name)))
        return sorted(found, key=lambda row: -row.value)

    def _kind(self, name: str) -> str:
        if name == OURS:
            return "ours"
        return "redis" if BY_NAME[name.removesuffix(FSYNC)].store is Store.REDIS else ""

    def _text(self) -> str:
        sections = (
            self._opening,
            self._verdicts,
            self._pictures,
            self._rates,
            self._pickups,
            self._losses,
            self._promises,
            self._versions,
            self._missing,
            self._method,
            self._own_lanes,
        )
        return "\n".join(line for section in sections for line in section())

    def _opening(self) -> Iterator[str]:
        yield "# Benchmarks"
        yield ""
        yield "<!-- made by `make bench-docs` from bench/peers.json; do not edit -->"
        yield ""
        yield (
            "The same jobs (100 bytes, a handler that only counts) through Headgate and through what you might pick "
            "instead: public packages at pinned versions, each with its own fast options, on the same machine and the "
            "same PostgreSQL settings, or on a local Redis. `make bench-peers` repeats all of it."
        )
        yield ""
        machine = self._results["machine"]
        postgres = machine["postgres"]
        assert isinstance(postgres, dict)
        shown = ", ".join(f"{key} {value}" for key, value in sorted(postgres.items()) if key != "server_version")
        yield (
            f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['os']}; "
            f"Python {machine['python']}. PostgreSQL {postgres['server_version']}: {shown}. Producer, worker, server "
            "and store share those cores, so a figure is about work per job, not about what a large cluster can do."
        )
        yield ""
        loads = [load for name in self._measured for load in self._entry(name)["load_at_start"]]
        if loads and max(loads) > 2 * float(str(machine["cores"])):
            yield f"**The machine was busy with other work (load up to {max(loads)}): take these figures as a trial.**"
            yield ""
        if self._small != "20000":
            yield f"**Reduced size: {int(self._small):,} jobs instead of 20,000.**"
            yield ""

    def _verdicts(self) -> Iterator[str]:
        yield "## What we want to be true"
        yield ""
        yield "| | Headgate | best of the others | ratio | holds |"
        yield "|---|---:|---|---:|---|"
        for lane in ("bulk", "drain", "cycle"):
            for jobs in self._both:
                if line := self._best(lane, jobs):
                    yield line
        yield from self._best_pickups()
        yield ""
        yield "Bulk, drain and cycle are compared with every peer, pickup with every one on PostgreSQL."
        yield ""

    def _best(self, lane: str, jobs: str) -> str | None:
        ours = self._rate(OURS, lane, jobs) if OURS in self._measured else None
        others = [
            (found["rate"], name)
            for name in self._measured
            if name != OURS and (found := self._rate(name, lane, jobs)) is not None
        ]
        if ours is None or not others:
            return None
        rate, name = max(others)
        holds = "yes" if ours["rate"] > rate else "**no**"
        return (
            f"| {LANES[lane]}, {int(jobs):,} jobs | {ours['rate']:,}/s | {title(name)}: {rate:,}/s | "
            f"{ours['rate'] / rate:.2f} | {holds} |"
        )

    def _best_pickups(self) -> Iterator[str]:
        ours = self._entry(OURS).get("pickup") if OURS in self._measured else None
        if ours is None:
            return
        for words, value in _PICKUP.items():
            others = [
                (value(self._entry(name)), name)
                for name in self._measured
                if "pickup" in self._entry(name) and self._kind(name) == ""
            ]
            if not others:
                continue
            least, name = min(others)
            mine = value(self._entry(OURS))
            holds = "yes" if mine < least else "**no**"
            yield f"| {words} | {mine:g} ms | {title(name)}: {least:g} ms | {least / mine:.2f} | {holds} |"

    def _pictures(self) -> Iterator[str]:
        yield "## At a glance"
        yield ""
        for path, _ in self._plots():
            yield f"![{path.stem}]({path.relative_to(PAGE.parent)})"
            yield ""

    def _rates(self) -> Iterator[str]:
        for jobs in self._both:
            names = [name for name in self._measured if self._rate(name, "cycle", jobs)]
            if not names:
                continue
            yield f"## Jobs a second, {int(jobs):,} jobs"
            yield ""
            lanes = [lane for lane in LANES if any(self._rate(name, lane, jobs) for name in names)]
            yield "| | store | " + " | ".join(f"{LANES[lane]} | ours is" for lane in lanes) + " |"
            yield "|---|---|" + "---:|---:|" * len(lanes)
            for name in names:
                cells = [cell for lane in lanes for cell in self._cells(name, lane, jobs)]
                yield f"| {_bold(name)} | {self._store(name)} | " + " | ".join(cells) + " |"
            yield ""
        yield (
            f"`*`: stopped at the cap of {self._results['sizes']['cap']:g} s; the rate is over what was done by then. "
            f"Medians of up to {self._results['sizes']['rounds']:g} rounds, each of all peers in turn. "
            f'"Ours is 3.0×" means Headgate did three times as many. '
            f"{int(self._large):,} jobs are given only to those that do more than 5,000 cycles a second."
        )
        yield ""

    def _cells(self, name: str, lane: str, jobs: str) -> tuple[str, str]:
        rate = self._rate(name, lane, jobs)
        if rate is None:
            return "", ""
        ours = self._rate(OURS, lane, jobs) if OURS in self._measured else None
        ratio = f"{ours['rate'] / rate['rate']:.1f}×" if ours and name != OURS and rate["rate"] else ""
        return f"{rate['rate']:,}{'*' if rate['capped'] else ''}", ratio

    def _store(self, name: str) -> str:
        if self._kind(name) != "redis":
            return "PostgreSQL"
        return "Redis, fsync always" if name.endswith(FSYNC) else "Redis, snapshots"

    def _pickups(self) -> Iterator[str]:
        names = [name for name in self._measured if "pickup" in self._entry(name)]
        if not names:
            return
        yield "## Idle pickup, milliseconds"
        yield ""
        yield "| | store | p50 | p99 |"
        yield "|---|---|---:|---:|"
        for name in names:
            pickup = self._entry(name)["pickup"]
            yield f"| {_bold(name)} | {self._store(name)} | {pickup['p50_ms']:g} | {pickup['p99_ms']:g} |"
        yield ""

    def _losses(self) -> Iterator[str]:
        yield "## Where we lose"
        yield ""
        found = list(self._lost_lanes()) if OURS in self._measured else []
        yield from found or ["- In no lane of this run."]
        yield "- Headgate needs a server process between producers, workers and PostgreSQL; the libraries need none."
        yield (
            "- Redis without fsync answers before anything is on disk: for work that may be lost, its latency is hard "
            "to beat. Headgate has no mode that promises less."
        )
        yield ""

    def _lost_lanes(self) -> Iterator[str]:
        for lane, words in LANES.items():
            for jobs in self._both:
                ours = self._rate(OURS, lane, jobs)
                for name in self._measured:
                    rate = self._rate(name, lane, jobs)
                    if ours and rate and name != OURS and rate["rate"] >= ours["rate"]:
                        faster = rate["rate"] / ours["rate"]
                        yield f"- {words}, {int(jobs):,} jobs: {title(name)} ({self._store(name)}) does {faster:.2f}×."
        for words, value in _PICKUP.items():
            for name in self._measured:
                if name != OURS and "pickup" in self._entry(name) and "pickup" in self._entry(OURS):
                    theirs, ours_ms = value(self._entry(name)), value(self._entry(OURS))
                    if theirs <= ours_ms:
                        yield f"- {words}: {title(name)} ({self._store(name)}) needs {theirs:g} ms, we {ours_ms:g} ms."

    def _promises(self) -> Iterator[str]:
        yield "## What each promises with these settings"
        yield ""
        yield "| | durability | batching | a finished job |"
        yield "|---|---|---|---|"
        for peer in PEERS:
            if peer.name in self._results["peers"]:
                yield f"| {_bold(peer.name)} | {peer.durability} | {peer.batching} | {peer.visibility} |"
        yield ""
        yield (
            "Every peer on PostgreSQL got the same server with fsync, full_page_writes and synchronous_commit on. "
            "Redis ran with Debian's defaults (snapshots, no log), and once more with `appendonly yes` and "
            "`appendfsync always`, which is the promise PostgreSQL gives: an answer only after the disk has it."
        )
        yield ""

    def _versions(self) -> Iterator[str]:
        yield "## Versions and settings"
        yield ""
        yield "| | measured | versions | settings |"
        yield "|---|---|---|---|"
        for name in self._measured:
            entry = self._entry(name)
            versions = ", ".join(f"{key} {value}" for key, value in entry["versions"].items())
            yield f"| {_bold(name)} | {entry['measured']} | {versions} | {entry['settings']} |"
        yield ""

    def _missing(self) -> Iterator[str]:
        missing = [name for name in order(self._results) if "missing" in self._entry(name)]
        absent = [peer.name for peer in PEERS if peer.name not in self._results["peers"]]
        yield "## Not in these tables"
        yield ""
        for name in missing:
            yield f"- {title(name)}: {self._entry(name)['missing']}"
        for name in absent:
            yield f"- {title(name)}: not measured yet (`make bench-peers ONLY={name}`)"
        for name, reason in NOT_COMPARED.items():
            yield f"- {name}: not measured: {reason}."
        yield ""

    def _method(self) -> Iterator[str]:
        sizes = self._results["sizes"]
        yield "## How it is measured"
        yield ""
        yield "- **bulk submit**: one producer, by the fastest documented way to enqueue many; no worker runs."
        yield (
            "- **single submits**: one call and one acknowledgement per job, from 64 tasks; from 4 threads with "
            "libraries that have no asyncio."
        )
        yield (
            "- **drain**: those jobs worked off by workers that were connected, idle and held still (SIGSTOP) during "
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
            "Settings follow each project's own performance advice; corrections that make a peer faster are welcome: "
            "its program is one short file in `bench/peers/programs`."
        )
        yield ""
        yield "```"
        yield "make bench-peers                 # all of it, about half an hour; nothing else may run meanwhile"
        yield "make bench-peers ONLY=saq,rq     # some of it; the results are merged"
        yield "make bench-peers RESUME=1        # what is still missing"
        yield "make bench-docs                  # this page"
        yield "```"
        yield ""

    def _own_lanes(self) -> Iterator[str]:
        own = self._results.get("own")
        if not own:
            return
        yield "## Headgate's own lanes"
        yield ""
        yield "`make bench`, medians; `bench/` says what each lane does."
        yield ""
        yield "| figure | value |"
        yield "|---|---:|"
        for name, value in sorted(own.items()):
            if shown := _shown(value):
                yield f"| {name} | {shown} |"
        yield ""


_PICKUP: dict[str, Callable[[Entry], float]] = {
    "idle pickup, p50": lambda entry: entry["pickup"]["p50_ms"],
    "idle pickup, p99": lambda entry: entry["pickup"]["p99_ms"],
}


def _bold(name: str) -> str:
    return f"**{title(name)}**" if name == OURS else title(name)


def _shown(value: object) -> str:
    """A number, or a median with its spread; anything deeper has no place in a table."""
    if isinstance(value, bool):
        return ""
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, dict) and {"median", "min", "max"} <= value.keys():
        return f"{value['median']:,} ({value['min']:,} to {value['max']:,})"
    return ""


def take_in_latest(results: Results, path: Path = LATEST) -> None:
    """The figures of the last `make bench`, as far as they are plain."""
    if path.exists():
        found = json.loads(path.read_text())
        results["own"] = {name: value for name, value in found.items() if name != "machine" and _shown(value)}


def main() -> int:
    """Write the page and the plots; plots that are no longer made go away."""
    results = load()
    take_in_latest(results)
    save(results, PATH)
    files = Page(results).files()
    PLOTS.mkdir(exist_ok=True)
    for old in set(PLOTS.glob("*.svg")) - files.keys():
        old.unlink()
    for path, content in files.items():
        path.write_text(content)
    print(f"{PAGE} and {len(files) - 1} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
