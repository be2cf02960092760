"""What the long lanes say of their samples: a leak is seen, a disturbance is not taken for one."""

from __future__ import annotations

import random

from bench.load import percentile
from bench.verdicts import LEAST, MOST, Row
from bench.watching import growth, steady_growth, thirds


def samples(values: list[float]) -> list[dict[str, float]]:
    return [{"at": 5.0 * place, "rss": value} for place, value in enumerate(values)]


def test_thirds_leave_the_warm_up_out_and_gaps_too() -> None:
    rising = samples([1_000.0] * 6 + [10.0] * 4 + [20.0] * 4 + [30.0] * 4)
    del rising[8]["rss"]
    assert thirds(rising, "rss", warm_up=30) == [10.0, 20.0, 30.0]
    assert thirds(rising, "other", warm_up=30) == []
    assert thirds([], "rss", warm_up=30) == []


def test_samples_during_which_a_neighbour_worked_do_not_count_for_times() -> None:
    taken = [{"at": float(place), "ms": 1.0, "foreign": 0.1} for place in range(9)]
    for sample in taken[5:8]:
        sample |= {"ms": 9.0, "foreign": 1.5}
    assert thirds(taken, "ms", warm_up=0) == [1.0, 1.0, 9.0]
    assert thirds(taken, "ms", warm_up=0, calm=True) == [1.0, 1.0, 1.0]


def test_a_leak_grows_in_each_step_and_a_disturbance_in_one() -> None:
    noise = random.Random(1)
    leaking = thirds(samples([100 + place + noise.uniform(-5, 5) for place in range(90)]), "rss", warm_up=0)
    assert steady_growth(leaking) > 1.15
    disturbed = thirds(
        samples([100 + noise.uniform(-5, 5) + 50 * (place > 55) for place in range(90)]), "rss", warm_up=0
    )
    assert growth(disturbed) > 1.3
    assert steady_growth(disturbed) < 1.03
    assert steady_growth([]) == growth([]) == 1.0


def test_bounds_bind_the_way_they_say() -> None:
    assert Row("a", 1.0, MOST, 1.0).holds
    assert not Row("a", 1.1, MOST, 1.0).holds
    assert Row("a", 1.0, LEAST, 1.0).holds
    assert not Row("a", 0.9, LEAST, 1.0).holds
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([], 0.99) == 0.0
