"""Arithmetic of figures: medians with their spread, percentiles, and who kept the processors busy."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from headgate.cli.bench_runs import percentile

__all__ = ["Spread", "median", "medians", "percentile", "spread", "what_bounds"]
Spread: TypeAlias = dict[str, float]
CORES = os.cpu_count() or 1
FULL = 0.9
"""From this share of a core, or of all of them, it is the processors that bound a run."""


def spread(values: Sequence[float], digits: int = 0) -> Spread:
    """Median, least and most, and of how many runs."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) if digits else round(value) for name, value in found.items()} | {
        "runs": len(values)
    }


def median(figure: object) -> float:
    """Of a figure that is plain, or has a spread."""
    found = figure["median"] if isinstance(figure, dict) else figure
    assert isinstance(found, int | float)
    return found


def medians(runs: Sequence[Mapping[str, float]], digits: int = 2) -> dict[str, float]:
    """Of each part by itself."""
    return {name: round(statistics.median(run[name] for run in runs), digits) for name in runs[0]}


def what_bounds(cores: Mapping[str, float], *, of: int = CORES) -> str:
    """In words, from the cores each party kept busy; "others" are strangers on the same machine."""
    total = sum(cores.values())
    shares = ", ".join(f"{name} {used:.2f}" for name, used in sorted(cores.items(), key=lambda one: -one[1]))
    hottest = max((name for name in cores if name not in ("postgres", "others")), key=cores.__getitem__, default="")
    if total >= FULL * of:
        return f"all {of} cores busy: {shares}"
    if hottest and cores[hottest] >= FULL:
        return f"the {hottest}'s one core is full: {shares}"
    return f"waiting (commits, round trips): {total:.1f} of {of} cores busy: {shares}"
