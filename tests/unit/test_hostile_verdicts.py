"""The judge of `make hostile`: each bound can be broken by itself, and a missing figure is not a good one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hostile.lane import CALM_ROUNDS, P99_MS, RECOVERY_SECONDS, RSS_MIB, Verdict, recovery_of

GOOD = Verdict("x", rss_mib=100, rounds=50, p99_ms=20, errors=0, leases_lost=0, recovery_s=0.1, counts={"calls": 1})


def test_an_attack_that_harms_no_one_breaks_nothing() -> None:
    assert GOOD.broken == []


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"rss_mib": RSS_MIB}, "memory"),
        ({"p99_ms": P99_MS}, "p99"),
        ({"rounds": 0}, "p99"),
        ({"errors": 1}, "errors"),
        ({"leases_lost": 1}, "leases"),
        ({"recovery_s": RECOVERY_SECONDS}, "recovery"),
        ({"recovery_s": float("inf")}, "recovery"),
        ({"counts": {}}, "the attack did not run"),
        ({"counts": {"calls": 0}}, "the attack did not run"),
    ],
)
def test_each_bound_is_judged(change: dict[str, object], broken: str) -> None:
    assert replace(GOOD, **change).broken == [broken]  # type: ignore[arg-type]  # fields of the verdict


def test_a_verdict_without_figures_is_broken() -> None:
    assert set(Verdict("x").broken) == {"p99", "leases", "recovery", "the attack did not run"}


def test_recovery_is_the_end_of_the_first_quick_rounds_in_a_row() -> None:
    slow = [{"at": 100.0 + place, "ms": 900.0} for place in range(3)]
    quick = [{"at": 104.0 + place / 10, "ms": 10.0} for place in range(CALM_ROUNDS)]
    assert recovery_of(slow, 100.0, 20.0) is None
    assert recovery_of([*slow, *quick[:-1]], 100.0, 20.0) is None
    found = recovery_of([*slow, *quick], 100.0, 20.0)
    assert found == pytest.approx(quick[-1]["at"] - 100.0)
    broken = [*quick[:-1], {"at": 105.0, "ms": 5.0, "error": 1.0}]
    assert recovery_of(broken, 100.0, 20.0) is None
