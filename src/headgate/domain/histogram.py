"""Histograms in plain integers: counted where batches are handled anyway, read when metrics are scraped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_MS: Final = 1_000
_SECOND: Final = 1_000 * _MS
WAITS_US: Final = (
    *(_MS, 2 * _MS, 5 * _MS, 10 * _MS, 25 * _MS, 50 * _MS, 100 * _MS, 250 * _MS, 500 * _MS),
    *(_SECOND, 2 * _SECOND, 5 * _SECOND, 15 * _SECOND, 60 * _SECOND),
    *(300 * _SECOND, 900 * _SECOND, 3_600 * _SECOND, 4 * 3_600 * _SECOND, 24 * 3_600 * _SECOND),
)
"""Bounds for what jobs wait and run, in microseconds: 1 ms to a day."""
STATEMENT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds for calls of the database."""
ROWS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_000, 5_000)
"""Bounds for the rows of one flush."""


class Histogram:
    """How many values lie up to each bound, and their sum. `counts` has one place more than there are bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value; a bound includes what is equal to it."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def observe_since(self, now: int, since: Sequence[int]) -> None:
        """Count `now` less each of `since`: one search for each bucket that the batch reaches, not for each job."""
        ordered = sorted(since)  # a claim has nearly this order, which makes it cheap
        bounds, counts, left = self.bounds, self.counts, len(ordered)
        self.total += left * now - sum(ordered)
        place, last = bisect_left(bounds, now - ordered[-1]), bisect_left(bounds, now - ordered[0])
        while place < last:
            first = bisect_left(ordered, now - bounds[place], 0, left)
            counts[place] += left - first
            left = first
            place += 1
        counts[place] += left

    def add(self, other: Histogram) -> None:
        """Count what another one with the same bounds has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The value below which this share of all counted values lies, estimated on a straight line within its bucket.

    As `histogram_quantile` of Prometheus: above the last bound it is that bound. 0 if nothing was counted.
    """
    left, low = sum(counts) * share, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and left <= count:
            return low + (bound - low) * left / count
        left -= count
        low = bound
    return low if any(counts) else 0.0
