"""The arithmetic of the benchmark's table."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from rich.console import Console

from bench.figures import median, percentile, spread, what_bounds
from bench.lane_promises import used_rate, used_slots
from bench.lane_scale import worst_fall
from bench.table import BOUNDS, BROKEN, Bound, show, verdicts

MACHINE = {
    "cpu": "?",
    "cores": 2,
    "memory_gib": 1,
    "load_at_start": 0,
    "python": "3",
    "versions": {},
    "postgres": {},
}
YARDSTICK = "64d686414efef41324d768a7add8979b"


def test_a_spread_is_median_least_and_most_of_so_many_runs() -> None:
    assert spread([3, 1, 2]) == {"median": 2, "min": 1, "max": 3, "runs": 3}
    assert spread([0.1234, 0.4567], 2) == {"median": 0.29, "min": 0.12, "max": 0.46, "runs": 2}
    assert (median(spread([3, 1, 2])), median(7.5)) == (2, 7.5)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_a_fall_is_held_against_the_best_before_it() -> None:
    assert worst_fall([10, 20, 15, 30]) == 0.75
    assert worst_fall([10, 20, 30]) == 1.0


def test_what_bounds_a_run_is_read_off_the_cores() -> None:
    assert what_bounds({"postgres": 1.3, "server": 0.6}, of=2).startswith("all 2 cores busy: postgres 1.30")
    assert what_bounds({"postgres": 0.3, "server": 0.95}, of=4).startswith("the server's one core is full")
    assert what_bounds({"postgres": 0.3, "server": 0.5}, of=2).startswith("waiting (commits, round trips): 0.8 of 2")


def test_verdicts_go_by_medians_and_a_broken_one_is_explained() -> None:
    report: dict[str, object] = {
        "to_ceiling": {"cycle": spread([0.7, 0.9, 0.85], 2), "drain": spread([1.0, 1.1, 1.3], 2)},
        "cores": {"drain": {"postgres": 1.2, "server": 0.7, "worker": 0.1}},
        "commits_per_job": 0.004,
        "machine": MACHINE,
    }
    found = verdicts(report)
    assert {name: row["verdict"] for name, row in found.items()} == {
        "cycle / ceiling": "holds",
        "drain / ceiling": BROKEN,
        "commits_per_job": "reaches its aim",
    }
    assert str(found["drain / ceiling"]["what_bounds_it"]).startswith("all ")
    console = Console(width=150, record=True, quiet=True)
    assert not show(report, console)
    report["to_ceiling"] = {"cycle": 1.0}
    assert show(report, console)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: str(bound.figure))
def test_every_bound_can_be_missed_and_a_missed_one_is_red(bound: Bound) -> None:
    worse, better = (2.0, 0.5) if bound.at_most else (0.5, 2.0)
    assert bound.verdict(worse * bound.bound or 1) is BROKEN  # of a bound of 0, the first one
    assert bound.verdict(bound.bound) is not BROKEN
    assert bound.verdict(better * bound.aim) == "reaches its aim"
    assert bound.verdict(float("nan")) is BROKEN


def test_a_bound_that_no_lane_has_measured_is_red_when_all_lanes_have_run() -> None:
    report: dict[str, object] = {
        "machine": MACHINE,
        "commits_per_job": spread([0.004], 3),
    }
    console = Console(width=150, record=True, quiet=True)
    assert show(report, console)
    assert not show(report, console, all_lanes=True)


def test_the_use_of_a_limit_is_that_of_its_slots_or_tokens() -> None:
    assert used_slots([(0.0, 1.0)] * 6 + [(1.0, 2.0)] * 6, "slots") == 1.0
    assert used_slots([(0.0, 1.0)] * 6 + [(1.25, 2.0)] * 6, "slots") == pytest.approx(0.8)
    assert used_rate([(0.05 * place, 9.0) for place in range(-3, 101)], "rate") == pytest.approx(104 / 107)
    with pytest.raises(AssertionError, match="more ran"):
        used_slots([(0.0, 1.0)] * 7 + [(1.0, 2.0)] * 7, "slots")


def test_the_yardstick_is_the_one_that_was_frozen() -> None:
    """Ratios to it are compared between releases, so not a byte of it may change."""
    text = (Path(__file__).parents[2] / "bench/reference.py").read_bytes()
    assert hashlib.sha256(text).hexdigest()[:32] == YARDSTICK
