"""bench/peers.json: one entry per peer, written after each round, so that a run can be continued."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

PATH = Path("bench/peers.json")
SMALL, LARGE = "small", "large"


class Figure(TypedDict):
    """The median of some runs, with the least and the most of them."""

    median: float
    min: float
    max: float
    runs: int


class Rate(Figure):
    """Jobs a second of one lane at one size."""

    jobs: int
    capped: bool


class Pickup(TypedDict):
    """One run, in milliseconds."""

    jobs: int
    p50_ms: float
    p99_ms: float


class Pickups(TypedDict):
    """All runs, in milliseconds."""

    jobs: int
    p50_ms: Figure
    p99_ms: Figure


class Round(TypedDict):
    """One run of one lane at one size."""

    jobs: int
    seconds: float
    capped: bool


class Entry(TypedDict, total=False):
    """What is known of one peer; `missing` instead of figures when it could not be measured.

    `rounds` and `pickups` are as they were measured; `lanes` and `pickup` are their medians. `seconds` is how long each
    round took, with all that is started for it.
    """

    measured: str
    missing: str
    versions: dict[str, str]
    settings: str
    load_at_start: list[float]
    seconds: list[float]
    rounds: dict[str, dict[str, list[Round]]]
    pickups: list[Pickup]
    lanes: dict[str, dict[str, Rate]]
    pickup: Pickups


class Results(TypedDict):
    """The file."""

    machine: dict[str, object]
    sizes: dict[str, float]
    peers: dict[str, Entry]
    own: NotRequired[dict[str, object]]
    """Figures of `make bench`, taken in by `make bench-docs`."""


def load(path: Path = PATH) -> Results:
    """What has been measured so far."""
    if path.exists():
        found: Results = json.loads(path.read_text())
        return found
    return {"machine": {}, "sizes": {}, "peers": {}}


def sum_up(entry: Entry) -> None:
    """The medians of all rounds so far."""
    entry["lanes"] = {
        lane: {size: rate(rounds) for size, rounds in sizes.items()} for lane, sizes in entry["rounds"].items()
    }
    if pickups := entry["pickups"]:
        entry["pickup"] = {
            "jobs": min(one["jobs"] for one in pickups),
            "p50_ms": figure([one["p50_ms"] for one in pickups], 2),
            "p99_ms": figure([one["p99_ms"] for one in pickups], 2),
        }


def figure(values: Sequence[float], digits: int | None = None) -> Figure:
    """Of the values of some runs."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "runs": len(values),
    }


def rate(rounds: Sequence[Round]) -> Rate:
    """Of the runs of one lane at one size."""
    return {
        **figure([one["jobs"] / one["seconds"] for one in rounds]),
        "jobs": min(one["jobs"] for one in rounds),
        "capped": any(one["capped"] for one in rounds),
    }


def save(results: Results, path: Path = PATH) -> None:
    """All of it; a run that is interrupted loses only the round it was at."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    draft.replace(path)
