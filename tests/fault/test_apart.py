"""All faults in one go: what becomes of one keeps no other from running, and the table tells of each."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.fault.lab import apart
from tests.fault.lab.runner import ELSEWHERE, FAILED, PASSED, WAITS, Result
from tests.fault.lab.scenarios import Scenario, World, all_scenarios


async def _nothing(world: World) -> None:
    raise AssertionError("not in this process")


def test_one_that_ends_without_a_verdict_or_in_no_time_has_failed_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apart, "TO_BEGIN_AND_END", 0.0)
    unknown = Scenario(number="F999", title="nobody knows it", act=_nothing)
    hasty = Scenario(number="F1", title="no time at all", act=_nothing, within=timedelta(seconds=0.1))
    waiting = Scenario(number="F54", title="to come", act=_nothing, waits_for="webhooks")
    results = apart.run_all([unknown, hasty, waiting], seed=1)
    assert [(one.name, one.verdict) for one in results] == [("F999", FAILED), ("F1", FAILED), ("F54", WAITS)]
    assert results[0].note == "ended with 2 and without a verdict"
    assert "after its deadline" in results[1].note


def test_the_table_names_what_failed_what_waits_and_what_is_tested_elsewhere() -> None:
    results = [
        Result(name="F1", title="one", verdict=PASSED, seconds=12.34),
        Result(name="F2", title="two", verdict=FAILED, seconds=1, note="Traceback …\nAssertionError: it is late"),
        Result(name="F54", title="hooks", verdict=WAITS, seconds=0, note="for webhooks"),
        Result(name="F43", title="failover", verdict=ELSEWHERE, seconds=0, note="make failover"),
    ]
    assert apart.table(results).splitlines() == [
        "fault  verdict   seconds  what",
        "F1     passed       12.3  one",
        "F2     FAILED        1.0  two: AssertionError: it is late",
        "F54    waits              hooks: for webhooks",
        "F43    elsewhere          failover: make failover",
        "passed 1, FAILED 1 (F2), NOT RUN on this machine 0, waiting 1 (F54), tested elsewhere 1 (F43); 13 s",
    ]


def test_every_fault_of_the_catalogue_is_accounted_for() -> None:
    assert {f"F{number}" for number in range(1, 61)} <= set(all_scenarios())
