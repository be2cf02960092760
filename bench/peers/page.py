"""docs/benchmarks.md: the figures of bench/peers.json as tables and plots, and what they say; some in README.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.peers import page_notes
from bench.peers.catalog import BY_NAME, NOT_COMPARED, PEERS
from bench.peers.peer import Store
from bench.peers.plots import Row, bars
from bench.peers.readme import README, readme_with
from bench.peers.results import LARGE, SMALL, Entry, Figure, Rate, Results
from bench.peers.standing import Standing, judged, judged_among, spelled, standing, times
from bench.peers.sweep import Sweep

PAGE = Path("docs/benchmarks.md")
PLOTS = Path("docs/benchmarks")
FSYNC = "+fsync"
OURS = "headgate"
LANES = {
    "bulk": "bulk submit",
    "single": "single submits",
    "drain": "drain",
    "cycle": "cycle",
}
PICKUP: Mapping[str, Callable[[Entry], Figure]] = {
    "idle pickup, p50": lambda entry: entry["pickup"]["p50_ms"],
    "idle pickup, p99": lambda entry: entry["pickup"]["p99_ms"],
}
FULL_ROUNDS = 3


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

    def __init__(self, results: Results, sweeps: Mapping[str, Sweep]) -> None:
        self._results, self._sweeps = results, sweeps
        self._measured = [name for name in order(results) if "lanes" in results["peers"][name]]

    def files(self) -> dict[Path, str]:
        """Every file with its content."""
        return dict(self._plots()) | {PAGE: self._text(), README: readme_with(self._verdicts())}

    def _entry(self, name: str) -> Entry:
        return self._results["peers"][name]

    def _rate(self, name: str, lane: str, size: str) -> Rate | None:
        return self._entry(name)["lanes"].get(lane, {}).get(size) if name in self._measured else None

    def _lanes(self) -> Iterator[tuple[str, str, str]]:
        """Every lane at every size that Headgate has a figure of: lane, size, words."""
        for size in (SMALL, LARGE):
            for lane, words in LANES.items():
                if rate := self._rate(OURS, lane, size):
                    yield lane, size, f"{words}, {rate['jobs']:,} jobs"

    def _plots(self) -> Iterator[tuple[Path, str]]:
        for lane, size, words in self._lanes():
            rows = self._rate_rows(lane, size)
            if len(rows) > 1 and (size == SMALL or lane == "cycle"):
                head = f"{words[0].upper()}{words[1:]}: jobs a second (longer is better)"
                yield PLOTS / f"{lane}-{size}.svg", bars(head, self._note(), rows)
        rows = []
        for name in self._measured:
            if "pickup" in self._entry(name):
                p50, p99 = (value(self._entry(name)) for value in PICKUP.values())
                text = f"{p50['median']:g} / {p99['median']:g}"
                rows.append(
                    Row(
                        label=title(name),
                        value=p50["median"],
                        beyond=p99["median"],
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
        return (
            f"{machine['cpu']}, {machine['cores']} cores; {when}. Medians, least … most. Grey: PostgreSQL, red: Redis. "
            "* stopped at the cap"
        )

    def _rate_rows(self, lane: str, size: str) -> list[Row]:
        found = []
        for name in self._measured:
            if rate := self._rate(name, lane, size):
                text = f"{spelled(rate)}{'*' if rate['capped'] else ''}"
                found.append(Row(label=title(name), value=rate["median"], text=text, kind=self._kind(name)))
        return sorted(found, key=lambda row: -row.value)

    def _kind(self, name: str) -> str:
        if name == OURS:
            return "ours"
        return "redis" if BY_NAME[name.removesuffix(FSYNC)].store is Store.REDIS else ""

    def _store(self, name: str) -> str:
        if self._kind(name) != "redis":
            return "PostgreSQL"
        return "Redis, fsync always" if name.endswith(FSYNC) else "Redis, snapshots"

    def _text(self) -> str:
        results, shown = self._results, {name: title(name) for name in order(self._results)}
        sections = (
            page_notes.opening(results, self._measured, self._sweeps),
            self._verdicts(),
            self._losses(),
            self._pictures(),
            self._rates(),
            self._pickups(),
            page_notes.promises(results),
            page_notes.versions(results, {name: shown[name] for name in self._measured}),
            page_notes.sweeps(self._sweeps),
            self._missing(),
            page_notes.method(results),
            page_notes.own_lanes(results),
        )
        return "\n".join(line for section in sections for line in section)

    def _verdicts(self) -> Iterator[str]:
        yield "## Headgate and the best of the others"
        yield ""
        yield "| | Headgate | the best of the others | Headgate is |"
        yield "|---|---|---|---|"
        for lane, size, words in self._lanes():
            others = {name: rate for name in self._measured if name != OURS and (rate := self._rate(name, lane, size))}
            if others and (ours := self._rate(OURS, lane, size)):
                name = max(others, key=lambda one: others[one]["median"])
                told = judged_among(ours, {title(one): rate for one, rate in others.items()}, title(name))
                yield f"| {words} | {spelled(ours, '/s')} | {title(name)}: {spelled(others[name], '/s')} | {told} |"
        for words, value in PICKUP.items():
            theirs = {
                name: value(self._entry(name))
                for name in self._measured
                if "pickup" in self._entry(name) and self._kind(name) == ""
            }
            if theirs and OURS in self._measured and "pickup" in self._entry(OURS):
                name = min(theirs, key=lambda one: theirs[one]["median"])
                mine = value(self._entry(OURS))
                titled = {title(one): figure for one, figure in theirs.items()}
                told = judged_among(mine, titled, title(name), less_is_better=True)
                best = f"{title(name)}: {spelled(theirs[name], ' ms')}"
                yield f"| {words}, on PostgreSQL | {spelled(mine, ' ms')} | {best} | {told} |"
        yield ""
        yield (
            "Rates are compared with every peer, pickup with every one on PostgreSQL. A figure is the "
            'median of the runs with the least and the most of them. "Ahead" and "behind" are said where the two '
            'spreads do not overlap, "ahead" only with three runs of both, and only if no other peer is level; where '
            'they do overlap, it is "level". The factor is that of the medians.'
        )
        yield ""

    def _losses(self) -> Iterator[str]:
        compared = list(self._compared())
        lost = [line for found, line in compared if found is Standing.BEHIND]
        level = [line for found, line in compared if found is Standing.LEVEL]
        unknown = [line for found, line in compared if found is Standing.UNKNOWN]
        yield "## Where we lose"
        yield ""
        judged_lanes = "lane that has more than one run" if unknown else "lane of this run"
        yield from lost or [f"- In no {judged_lanes}."]
        yield "- Headgate needs a server process between producers, workers and PostgreSQL; the libraries need none."
        yield (
            "- Redis without fsync answers before anything is on disk: for work that may be lost, its latency is hard "
            "to beat. Headgate has no mode that promises less."
        )
        yield ""
        if level:
            yield "Level, the spreads overlap:"
            yield ""
            yield from level
            yield ""
        if unknown:
            yield "A single run on one side, and faster than ours by it:"
            yield ""
            yield from unknown
            yield ""

    def _compared(self) -> Iterator[tuple[Standing, str]]:
        """Every peer that is not plainly slower than Headgate in a lane; a single run only if it is the faster one."""
        for lane, size, words in self._lanes():
            for name in self._measured:
                ours, theirs = self._rate(OURS, lane, size), self._rate(name, lane, size)
                if name != OURS and ours and theirs:
                    found, ratio = standing(ours, theirs), 1 / times(ours, theirs)
                    if found is not Standing.UNKNOWN or ratio > 1:
                        yield (
                            found,
                            (
                                f"- {words}: {title(name)} ({self._store(name)}) does {ratio:.2f} times as many, "
                                f"{spelled(theirs, '/s')} against our {spelled(ours, '/s')}."
                            ),
                        )
        for words, value in PICKUP.items():
            for name in self._measured:
                if name != OURS and "pickup" in self._entry(name) and "pickup" in self._entry(OURS):
                    mine, other = value(self._entry(OURS)), value(self._entry(name))
                    found = standing(mine, other, less_is_better=True)
                    if found is not Standing.UNKNOWN or other["median"] < mine["median"]:
                        yield (
                            found,
                            (
                                f"- {words}: {title(name)} ({self._store(name)}) needs {spelled(other, ' ms')}, "
                                f"we {spelled(mine, ' ms')}."
                            ),
                        )

    def _pictures(self) -> Iterator[str]:
        yield "## At a glance"
        yield ""
        for path, _ in self._plots():
            yield f"![{path.stem}]({path.relative_to(PAGE.parent)})"
            yield ""

    def _rates(self) -> Iterator[str]:
        for lane, size, words in self._lanes():
            names = [name for name in self._measured if self._rate(name, lane, size)]
            yield f"## {words[0].upper()}{words[1:]}"
            yield ""
            yield "| | store | jobs | runs | jobs a second (least … most) | Headgate is |"
            yield "|---|---|---:|---:|---:|---|"
            ours = self._rate(OURS, lane, size)
            for name in names:
                rate = self._rate(name, lane, size)
                assert rate is not None
                assert ours is not None
                against = "" if name == OURS else judged(ours, rate)
                yield (
                    f"| {page_notes.bold(name, title(name))} | {self._store(name)} | {rate['jobs']:,} | "
                    f"{rate['runs']} | {spelled(rate)}{'*' if rate['capped'] else ''} | {against} |"
                )
            yield ""
        yield (
            f"`*`: stopped at the cap of {self._results['sizes']['cap']:g} s; the rate is over what was done by then. "
            "Peers that are slow get fewer jobs. A round is all peers in turn, then the next round begins. "
            '"Ahead, 3.00×" means that Headgate did three times as many.'
        )
        yield ""

    def _pickups(self) -> Iterator[str]:
        names = [name for name in self._measured if "pickup" in self._entry(name)]
        if not names:
            return
        yield "## Idle pickup, milliseconds"
        yield ""
        yield "| | store | jobs | runs | p50 (least … most) | Headgate is | p99 (least … most) | Headgate is |"
        yield "|---|---|---:|---:|---:|---|---:|---|"
        for name in names:
            cells = []
            for value in PICKUP.values():
                found = value(self._entry(name))
                ours = value(self._entry(OURS)) if OURS in names and name != OURS else None
                cells += [spelled(found), judged(ours, found, less_is_better=True) if ours else ""]
            pickup = self._entry(name)["pickup"]
            yield (
                f"| {page_notes.bold(name, title(name))} | {self._store(name)} | {pickup['jobs']} | "
                f"{pickup['p50_ms']['runs']} | " + " | ".join(cells) + " |"
            )
        yield ""

    def _missing(self) -> Iterator[str]:
        yield "## Not in these tables"
        yield ""
        for name in order(self._results):
            if "missing" in self._entry(name):
                yield f"- {title(name)}: {self._entry(name)['missing']}"
        for peer in PEERS:
            if peer.name not in self._results["peers"]:
                yield f"- {peer.title}: not measured yet (`make bench-peers ONLY={peer.name}`)"
        for name, why in NOT_COMPARED.items():
            yield f"- {name}: not measured: {why}."
        yield ""
