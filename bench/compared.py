"""Runs beside the yardstick: a machine's minutes differ, so each run is held against the yardstick of its own."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping

from bench import reference
from bench.figures import spread
from bench.stack import Stack

YARDSTICK_JOBS = 50_000


class Compared:
    """Lanes on one PostgreSQL, with a run of the frozen yardstick before and after each of their runs."""

    def __init__(self, made: Stack, *, quick: bool) -> None:
        self._made, self._jobs = made, YARDSTICK_JOBS // 5 if quick else YARDSTICK_JOBS
        self._last: float | None = None
        self.ceilings: list[float] = []
        self.rates: dict[str, list[float]] = {}
        self.ratios: dict[str, list[float]] = {}

    async def run(self, lane: Callable[[], Awaitable[Mapping[str, float]]]) -> None:
        """Run a lane once: jobs a second by name, each also as a share of what the yardstick did around it."""
        before = self._last if self._last is not None else await self._yardstick()
        rates = await lane()
        after = self._last = await self._yardstick()
        for name, rate in rates.items():
            self.rates.setdefault(name, []).append(rate)
            self.ratios.setdefault(name, []).append(rate / statistics.mean((before, after)))

    def report(self) -> dict[str, object]:
        """`sql_ceiling`, the lanes, and the ratios of runs to their own yardsticks."""
        return {
            "sql_ceiling": spread(self.ceilings),
            **{name: spread(rates) for name, rates in self.rates.items()},
            "to_ceiling": {name: spread(ratios, 3) for name, ratios in self.ratios.items()},
        }

    async def _yardstick(self) -> float:
        measured = await reference.measure(self._made.dsn, jobs=self._jobs, flush=500, rounds=1)
        self.ceilings.append(float(str(measured["cycles_per_s"])))
        return self.ceilings[-1]
