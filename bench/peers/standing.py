"""Who is ahead: said only where the spreads of the runs do not overlap, and of us only with enough runs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from bench.peers.results import Figure

ENOUGH_RUNS: Final = 3
"""Of both sides, to say that we are ahead. That we are behind, or level, is said with two."""


class Standing(StrEnum):
    """Of Headgate, beside another."""

    AHEAD = "ahead"
    LEVEL = "level"
    BEHIND = "behind"
    UNKNOWN = "not judged (fewer than 3 runs)"


def standing(ours: Figure, theirs: Figure, *, less_is_better: bool = False) -> Standing:
    """Ahead if the worst of our runs beats the best of theirs, behind if it is the other way round, else level."""
    runs = min(ours["runs"], theirs["runs"])
    if runs < 2:
        return Standing.UNKNOWN
    low, high = (theirs, ours) if less_is_better else (ours, theirs)
    if low["min"] > high["max"]:
        return Standing.AHEAD if runs >= ENOUGH_RUNS else Standing.UNKNOWN
    if low["max"] < high["min"]:
        return Standing.BEHIND
    return Standing.LEVEL


def times(ours: Figure, theirs: Figure, *, less_is_better: bool = False) -> float:
    """How many times better our median is; below 1 it is worse."""
    better, worse = (theirs, ours) if less_is_better else (ours, theirs)
    return better["median"] / worse["median"]


def judged(ours: Figure, theirs: Figure, *, less_is_better: bool = False) -> str:
    """For a cell of a table: the standing, and by how much where there is a difference."""
    found = standing(ours, theirs, less_is_better=less_is_better)
    if found not in (Standing.AHEAD, Standing.BEHIND):
        return str(found)
    words = f"{found}, {times(ours, theirs, less_is_better=less_is_better):.2f}×"
    return f"**{words}**" if found is Standing.BEHIND else words


def judged_among(ours: Figure, theirs: Mapping[str, Figure], best: str, *, less_is_better: bool = False) -> str:
    """As `judged` with the best of them by its median; but ahead only if we are ahead of every one of them."""
    if standing(ours, theirs[best], less_is_better=less_is_better) is Standing.AHEAD:
        others = [
            name
            for name, figure in theirs.items()
            if standing(ours, figure, less_is_better=less_is_better) in (Standing.LEVEL, Standing.BEHIND)
        ]
        if others:
            return f"level with {', '.join(others)}"
    return judged(ours, theirs[best], less_is_better=less_is_better)


def spelled(figure: Figure, unit: str = "") -> str:
    """The median with least and most, or the only run."""
    median = f"{figure['median']:,}{unit}"
    if figure["runs"] < 2:
        return f"{median} (one run)"
    return f"{median} ({figure['min']:,} … {figure['max']:,})"
