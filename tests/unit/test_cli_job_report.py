"""What `headgate job get` shows of the attempts of a job."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate.cli.job_report import JobReport
from headgate.domain.redaction import Redaction
from headgate.sdk import JobInfo
from headgate.sdk.admin import JobEvent
from headgate.sdk.ids import new_id_maker

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
BANK = 'File "pay.py", line 7\n  raise TimeoutError("the bank did not answer")'
CARD = 'File "pay.py", line 9\n  raise ValueError("declined")'


def failed(attempt: int, trace: str) -> JobEvent:
    return JobEvent(
        at=NOON + timedelta(minutes=attempt),
        kind="failed",
        epoch=attempt,
        attempt=attempt,
        state="retrying",
        run_at=None,
        claimed_at=NOON,
        worker="w-1",
        actor="",
        reason="",
        error_type="Error",
        error_message="no",
        error_trace=trace,
    )


def job(**more: Any) -> JobInfo:
    known = {
        "id": new_id_maker().next_id(),
        "tenant": "acme",
        "topic": "pay",
        "state": "dead",
        "priority": 0,
        "attempt": 4,
        "max_attempts": 4,
        "cancel_requested": False,
        "worker": "w-1",
        "created_at": NOON,
        "run_at": None,
        "claimed_at": NOON,
        "lease_until": None,
        "finished_at": NOON,
        "last_error": "Error: no",
    }
    return JobInfo(**(known | more))


def test_secrets_are_masked_in_headers_progress_and_reasons() -> None:
    secret = "hunter2"
    info = job(
        state="running",
        headers={"authorization": f"Bearer {secret}", "note": f"password={secret}", "kind": "plain"},
        progress=(1, 2, f"token={secret} is used"),
        last_error=f"api_key={secret}",
    )
    nacked = replace(failed(1, ""), kind="nacked", error_type="", error_message="", reason=f"token={secret}")
    report = JobReport(info=info, events=[nacked], redaction=Redaction())
    for text in ("\n".join(report.lines(full=True)), repr(report.fields())):
        assert "token=••• is used" in text
        assert secret not in text
    assert report.fields()["headers"] == {"authorization": "•••", "note": "password=•••", "kind": "plain"}


def test_the_keys_of_a_job_are_shown() -> None:
    report = JobReport(info=job(key="order-7", unique_key="user-42"), events=[], redaction=Redaction())
    lines = [line.split() for line in report.lines(full=False)]
    assert ["key", "order-7"] in lines
    assert ["unique", "key", "user-42"] in lines
    assert (report.fields()["key"], report.fields()["unique_key"]) == ("order-7", "user-42")


def test_an_equal_traceback_of_several_attempts_is_shown_once() -> None:
    info = job()
    events = [failed(1, BANK), failed(2, CARD), failed(3, BANK), failed(4, BANK)]
    lines = list(JobReport(info=info, events=events, redaction=Redaction()).lines(full=True))
    text = "\n".join(lines)
    assert text.count("the bank did not answer") == text.count("declined") == 1
    assert "attempt 3, 2026-11-16T12:03:00Z: the same traceback as attempt 4" in lines
    assert "attempt 1, 2026-11-16T12:01:00Z: the same traceback as attempt 4" in lines
    assert lines.index("attempt 4, 2026-11-16T12:04:00Z:") < lines.index("attempt 2, 2026-11-16T12:02:00Z:")


def test_of_many_attempts_the_newest_ten_are_shown_and_the_others_counted() -> None:
    report = JobReport(info=job(), events=[failed(n, "") for n in range(1, 13)], redaction=Redaction())
    *_, head, newest, _, _, _, _, _, _, _, _, oldest, note = report.lines(full=False)
    assert head.split()[0] == "ATTEMPT"
    assert (newest.split()[0], oldest.split()[0]) == ("12", "3")
    assert note == "2 earlier attempts; --full shows them"
    assert [*report.lines(full=True)][-1].split()[0] == "1"


def test_long_arguments_are_cut_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({f"key-{n}": n for n in range(60)}).encode()  # 62 lines
    report = JobReport(info=job(payload=body), events=[], redaction=Redaction())
    whole = "\n".join(report.lines(full=False))
    assert "key-59" in whole
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\n".join(report.lines(full=True)).count("key-") == 60
    cut = "\n".join(report.lines(full=False))
    assert "key-38" in cut
    assert "key-39" not in cut
    assert "… 22 more lines (--full shows them)" in cut
