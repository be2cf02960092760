"""bench/peers.json: one entry per peer, written after each round, so that a run can be continued."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import NotRequired, TypedDict

PATH = Path("bench/peers.json")


class Rate(TypedDict):
    """Of one lane at one size."""

    rate: int
    min: int
    max: int
    rounds: int
    jobs: int
    capped: bool


class Pickup(TypedDict):
    """Milliseconds."""

    jobs: int
    p50_ms: float
    p99_ms: float


class Round(TypedDict):
    """One run of one lane at one size."""

    jobs: int
    seconds: float
    capped: bool


class Entry(TypedDict, total=False):
    """What is known of one peer; `missing` instead of figures when it could not be measured.

    `rounds` and `pickups` are as they were measured; `lanes` and `pickup` are their medians.
    """

    measured: str
    missing: str
    versions: dict[str, str]
    settings: str
    load_at_start: list[float]
    rounds: dict[str, dict[str, list[Round]]]
    pickups: list[Pickup]
    lanes: dict[str, dict[str, Rate]]
    pickup: Pickup


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
        lane: {jobs: _spread(rounds) for jobs, rounds in sizes.items()} for lane, sizes in entry["rounds"].items()
    }
    if pickups := entry["pickups"]:
        entry["pickup"] = {
            "jobs": min(one["jobs"] for one in pickups),
            "p50_ms": round(statistics.median(one["p50_ms"] for one in pickups), 2),
            "p99_ms": round(statistics.median(one["p99_ms"] for one in pickups), 2),
        }


def _spread(rounds: list[Round]) -> Rate:
    rates = sorted(one["jobs"] / one["seconds"] for one in rounds)
    return {
        "rate": round(statistics.median(rates)),
        "min": round(rates[0]),
        "max": round(rates[-1]),
        "rounds": len(rounds),
        "jobs": min(one["jobs"] for one in rounds),
        "capped": any(one["capped"] for one in rounds),
    }


def save(results: Results, path: Path = PATH) -> None:
    """All of it; a run that is interrupted loses only the round it was at."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    draft.replace(path)
