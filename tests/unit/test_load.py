"""The advice of `headgate doctor --load`."""

from __future__ import annotations

import pytest

from headgate.cli.doctor_load import load_lines
from headgate.domain.load import IDLE, LaneLoad, LoadReport, Statement


def lane(**seen: int) -> LaneLoad:
    return LaneLoad(lane="submit", seen={name.replace("__", ":"): count for name, count in seen.items()})


QUIET = LaneLoad(lane="tick", seen={IDLE: 99, "running": 1})


@pytest.mark.parametrize(
    ("report", "advice"),
    [
        (LoadReport(seconds=10), "no server is connected"),
        (LoadReport(seconds=10, lanes=[QUIET]), "not what limits throughput"),
        (LoadReport(seconds=10, lanes=[lane(running=9, idle=1)]), "processor is the limit"),
        (LoadReport(seconds=10, lanes=[lane(IO__WALSync=9, idle=1)]), "disk of the WAL"),
        (LoadReport(seconds=10, lanes=[lane(IPC__SyncRep=9, idle=1)]), "synchronous standby"),
        (LoadReport(seconds=10, lanes=[lane(Lock__transactionid=9, idle=1)]), "locks of other transactions"),
        (LoadReport(seconds=10, lanes=[QUIET], oldest_transaction_seconds=90), "open for 90 s"),
        (LoadReport(seconds=10, lanes=[QUIET], dead_rows={"jobs": 200_000}), "headgate.jobs has 200000 dead rows"),
        (LoadReport(seconds=1, lanes=[QUIET], blocks_read=5_000, blocks_hit=5_000), "50% of the pages"),
        (LoadReport(seconds=1, lanes=[QUIET], connections=90, connections_max=100), "90 of 100 connections"),
        (LoadReport(seconds=1, lanes=[QUIET], deadlocks=2), "2 deadlocks"),
        (LoadReport(seconds=1, lanes=[QUIET], rollbacks=2), "rolled back"),
    ],
)
def test_what_was_seen_becomes_advice(report: LoadReport, advice: str) -> None:
    assert advice in report.advice()[0]


def test_without_the_extension_the_report_says_how_to_get_it() -> None:
    assert "pg_stat_statements" in LoadReport(seconds=1, lanes=[QUIET]).advice()[-1]
    assert len(LoadReport(seconds=1, lanes=[QUIET], statements=[]).advice()) == 1


def test_the_report_for_people_has_lanes_statements_and_advice() -> None:
    statements = [Statement(name="claim_v1", calls=4, total_ms=10.0, rows=40)]
    report = LoadReport(seconds=2, lanes=[QUIET, lane(running=9, idle=1)], statements=statements, commits=10)
    text = "\n".join(load_lines(report))
    assert "5 commits/s" in text
    assert "claim_v1" in text
    assert "2.500" in text
    assert text.index("submit") < text.index("tick"), "the busiest first"
    assert "- lane submit is busy 90% of the time, mostly running" in text
