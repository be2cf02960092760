"""bench/peers.json: one entry per peer, written as soon as it is measured, so that a run can be continued."""

from __future__ import annotations

import json
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


class Entry(TypedDict, total=False):
    """What is known of one peer; `missing` instead of figures when it could not be measured."""

    measured: str
    missing: str
    versions: dict[str, str]
    settings: str
    load_at_start: float
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


def save(results: Results, path: Path = PATH) -> None:
    """All of it; a run that is interrupted loses only the peer it was at."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    draft.replace(path)
