"""The table at the end of `make failover`: a verdict on each part, which one failed check spoils."""

from __future__ import annotations

from tests.failover.report import Report, table, verdict

GOOD = Report(name="power cut", good=True, text="", acknowledged=41_008, lost=0, still=11.24)
BAD = Report(name="RELOAD", good=False, text="", acknowledged=3, lost=1, still=0.0)


def test_a_part_is_as_good_as_its_worst_check() -> None:
    assert verdict([GOOD]) == "ok"
    assert verdict([GOOD, BAD]) == "FAILED"


def test_a_part_without_checks_proves_nothing() -> None:
    assert verdict([]) == "FAILED"


def test_the_table_has_a_row_for_each_check_and_a_verdict_on_each_part() -> None:
    shown = table({"rounds": [GOOD], "pooler": [GOOD, BAD]}, {"rounds": 61.2, "pooler": 3.0})
    assert [line.split() for line in shown.splitlines()] == [
        ["part", "check", "acknowledged", "lost", "still", "figure", "verdict"],
        ["-" * len(shown.splitlines()[0])],
        ["rounds", "power", "cut", "41,008", "0", "11.2", "s", "ok"],
        ["rounds", "=", "1", "checks", "in", "61", "s", "OK"],
        ["pooler", "power", "cut", "41,008", "0", "11.2", "s", "ok"],
        ["pooler", "RELOAD", "3", "1", "0.0", "s", "FAILED"],
        ["pooler", "=", "2", "checks", "in", "3", "s", "FAILED"],
    ]
