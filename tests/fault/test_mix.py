"""The laboratory itself in one run: a minute of random faults under a mixed load, and everything must hold."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.fault.lab.checker.coverage import IN_A_MINUTE
from tests.fault.lab.mix import mix, plan, setting
from tests.fault.lab.runner import PASSED, run

SECONDS = 60.0
SEED = 1


def test_the_same_seed_plans_the_same_faults() -> None:
    def planned(seed: int) -> list[object]:
        return list(plan(seed, 30, servers=("s1", "s2"), workers=("w1", "w2"), proxies=False))

    assert planned(1) == planned(1)
    assert planned(1) != planned(2)


@pytest.mark.timeout(240)
@pytest.mark.req("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "I15", "I22")
async def test_a_minute_of_random_faults_breaks_no_promise() -> None:
    result = await run(
        "mix",
        lambda world: mix(world, seconds=SECONDS),
        seed=SEED,
        world=setting(),
        must_meet=IN_A_MINUTE,
        within=timedelta(seconds=220),
    )
    shown = result.report.text() if result.report is not None else ""
    assert result.verdict == PASSED, f"{result.note}\n{shown}\nhistory: {result.folder}"
