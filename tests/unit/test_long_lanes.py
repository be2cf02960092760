"""What the long lanes say of their samples: a leak is seen, a disturbance is not taken for one."""

from __future__ import annotations

import math
import random

import pytest

from bench import long, overload, soak
from bench.load import percentile
from bench.soak import TIMES_DRIFT
from bench.verdicts import LEAST, MOST, Row
from bench.watching import drift, growth, thirds


def samples(values: list[float]) -> list[dict[str, float]]:
    return [{"at": 5.0 * place, "rss": value} for place, value in enumerate(values)]


def test_thirds_leave_the_warm_up_out_and_gaps_too() -> None:
    rising = samples([1_000.0] * 6 + [10.0] * 4 + [20.0] * 4 + [30.0] * 4)
    del rising[8]["rss"]
    assert thirds(rising, "rss", warm_up=30) == [10.0, 20.0, 30.0]
    assert thirds(rising, "other", warm_up=30) == []
    assert thirds([], "rss", warm_up=30) == []


def test_samples_during_which_another_process_worked_do_not_count_for_times() -> None:
    taken = [{"at": float(place), "ms": 1.0, "foreign": 0.1} for place in range(9)]
    for sample in taken[5:8]:
        sample |= {"ms": 9.0, "foreign": 1.5}
    assert thirds(taken, "ms", warm_up=0) == [1.0, 1.0, 9.0]
    assert thirds(taken, "ms", warm_up=0, calm=True) == [1.0, 1.0, 1.0]


def test_a_leak_and_a_jump_both_show_and_noise_does_not() -> None:
    noise = random.Random(1)
    leaking = thirds(samples([100 + place + noise.uniform(-5, 5) for place in range(90)]), "rss", warm_up=0)
    assert growth(leaking) > 1.3
    steady = thirds(samples([100 + noise.uniform(-5, 5) for _ in range(90)]), "rss", warm_up=0)
    assert growth(steady) < 1.03
    assert drift(steady) < 1.03


@pytest.mark.parametrize(
    ("series", "found"),
    [
        ([20, 20, 20], 1.0),
        ([20, 20, 2_000], 100.0),
        ([20, 2_000, 20], 100.0),
        ([20, 2_000, 2_000], 100.0),
        ([2_000, 20, 20], 0.01),
    ],
)
def test_what_drifts_in_any_later_third_is_not_flat(series: list[float], found: float) -> None:
    assert drift(series) == found
    assert Row("p99", drift(series), MOST, TIMES_DRIFT).holds == (found <= 1.2)


def test_nothing_to_compare_is_no_figure_that_holds() -> None:
    for judge in (growth, drift):
        for medians in ([], [0.0, 1.0, 1.0]):
            assert not Row("p99", judge(medians), MOST, 1e9).holds


def test_the_soak_is_red_for_a_p99_that_rises_in_its_last_third() -> None:
    names = ("server_rss", "worker_rss", "producer_rss", "server_fds", "server_threads", "worker_fds", "worker_threads")
    flat = {name: [10.0, 10.0, 10.0] for name in (*names, "claim_us_per_job", "e2e_p99", "submit_p99", "dead_jobs")}
    found: dict[str, object] = {
        "thirds": flat,
        "calm_thirds": flat,
        "conserved": {"acked": 1, "completed": 1, "twice": 0, "left": 0, "other_end": 0, "same_ids": True},
        "unexpected": [],
        "samples": [{"at": 0.0, "completed": 100.0}],
        "rate": 100,
        "log_mb_per_min": 0.0,
    }
    assert all(row.holds for row in soak.verdicts(found))
    for name in flat:
        risen = flat | {name: [20.0, 20.0, 2_000.0]}
        red = [row.name for row in soak.verdicts(found | {"thirds": risen, "calm_thirds": risen}) if not row.holds]
        assert len(red) == 1
        assert red[0].startswith(name)


def minute(**changed: float) -> dict[str, float]:
    return {"claim_index_pages_per_job": 1.0, "claim_us_per_job": 10.0, "e2e_p99": 20.0, "completed": 5_000.0} | changed


@pytest.mark.parametrize(
    ("later", "red"),
    [
        ([minute(), minute()], []),
        ([minute(e2e_p99=51.0), minute(e2e_p99=83.0)], ["p99"]),
        ([minute(e2e_p99=83.0), minute()], ["p99"]),
        ([minute(e2e_p99=math.nan), minute()], ["p99"]),
        ([minute(claim_us_per_job=16.0), minute()], ["claim µs"]),
        ([minute(claim_index_pages_per_job=2.0)], ["claim index pages"]),
        ([minute(completed=4_000.0), minute()], ["completed"]),
        ([], ["claim index pages", "claim µs", "p99", "completed"]),
    ],
)
def test_a_held_snapshot_is_red_where_any_later_minute_is_not_flat(
    later: list[dict[str, float]], red: list[str]
) -> None:
    kept = {"acked": 1, "completed": 1, "twice": 0, "left": 0, "other_end": 0, "same_ids": True}
    rows = long.verdicts({"held": {"minutes": [minute(), *later], "conserved": kept}})
    found = [row.name.removeprefix("held: ") for row in rows if not row.holds]
    assert len(found) == len(red)
    assert all(name.startswith(begin) for name, begin in zip(found, red, strict=True))


def test_the_peak_of_an_overload_is_its_best_step() -> None:
    # The ramp of a run that was judged by another peak: 23,987, what the best rate held later.
    steps = [(9_000, 9_022), (13_500, 13_549), (20_250, 20_360), (30_375, 29_786), (45_562, 26_493), (68_344, 21_834)]
    assert overload.peak_of(steps) == 29_786
    goodput = round(21_613 / overload.peak_of(steps), 3)
    assert not Row("goodput", goodput, LEAST, 0.8).holds


@pytest.mark.parametrize(
    ("changed", "red"),
    [
        ({}, []),
        ({"not_at_first": 1}, ["not completed at the first attempt"]),
        ({"completed": 9}, ["acknowledged and not completed once"]),
    ],
)
def test_an_overload_is_red_for_one_job_that_was_lost_or_run_again(changed: dict[str, int], red: list[str]) -> None:
    kept = {"acked": 10, "completed": 10, "twice": 0, "same_ids": True, "not_at_first": 0, "left": 0}
    found: dict[str, object] = {
        "peak": 100,
        "completed": 90,
        "errors": {"overloaded": 5},
        "hint_ms": [5, 10],
        "server_rss_mib": {"most": 100, "thirds": [100, 100, 100]},
        "polite_refused": 0,
        "held_results": 0,
        "recovery_s": 1.0,
        "conserved": kept | changed,
    }
    assert [row.name for row in overload.verdicts(found) if not row.holds] == red


def test_bounds_bind_the_way_they_say() -> None:
    assert Row("a", 1.0, MOST, 1.0).holds
    assert not Row("a", 1.1, MOST, 1.0).holds
    assert Row("a", 1.0, LEAST, 1.0).holds
    assert not Row("a", 0.9, LEAST, 1.0).holds
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([], 0.99) == 0.0
