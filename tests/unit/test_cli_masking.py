"""Commands that print texts of jobs mask secret values in every format; `job get` is in test_cli_job_report.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headgate.cli import bulk, lists, main, schedule
from headgate.sdk.admin import ScheduleInfo
from headgate.sdk.admin.bulk import BulkPreview
from tests.unit.test_cli_job_report import failed, job

SECRET = "hunter2"
FORMATS = ("table", "wide", "json", "ndjson", "yaml")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a server answers: `admin.x.y` of the client that commands get."""
    found = SimpleNamespace(full_id=AsyncMock(return_value=job().id))

    def with_client(_server: object, use: Callable[[Any], Awaitable[object]]) -> object:
        return asyncio.run(use(SimpleNamespace(admin=found)))  # type: ignore[arg-type]

    for module in (bulk, lists, schedule):
        monkeypatch.setattr(module, "with_client", with_client)
    return found


def printed(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main([*line]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("output", FORMATS)
def test_the_history_of_a_job(output: str, admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    event = replace(failed(1, f"token={SECRET}"), error_message=f"password={SECRET}")
    asked = replace(failed(2, ""), error_type="", error_message="", reason=f"api_key={SECRET}")
    admin.jobs = SimpleNamespace(events=AsyncMock(return_value=[event, asked]))
    text = printed(capsys, "job", "events", "0190a3b2", "-o", output)
    assert "password=•••" in text
    assert "api_key=•••" in text
    assert SECRET not in text


@pytest.mark.parametrize("output", FORMATS)
def test_the_sample_of_a_dry_run(output: str, admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    sample = [job(last_error=f"password={SECRET}")]
    preview = BulkPreview(filter="topic:pay", total=1, exact=True, eligible=1, by_state={"dead": 1}, sample=sample)
    admin.bulk = SimpleNamespace(preview=AsyncMock(return_value=preview))
    text = printed(capsys, "bulk", "start", "redrive", "--filter", "topic:pay", "--dry-run", "-o", output)
    assert "password=•••" in text
    assert SECRET not in text


@pytest.mark.parametrize("output", FORMATS)
def test_the_errors_of_a_list_of_jobs(output: str, admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    page = AsyncMock(return_value=SimpleNamespace(jobs=[job(last_error=f"password={SECRET}")], cursor=""))
    admin.jobs_matching = lambda *_, **__: SimpleNamespace(page=page)
    text = printed(capsys, "job", "list", "-o", output)
    assert "password=•••" in text
    assert SECRET not in text


def test_the_headers_and_the_payload_of_a_schedule(admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    unset = dict.fromkeys(ScheduleInfo.__dataclass_fields__)
    info = ScheduleInfo(
        **unset  # type: ignore[arg-type]
        | {
            "name": "nightly",
            "headers": {"authorization": SECRET, "note": f"token={SECRET}"},
            "payload": f'{{"password": "{SECRET}"}}'.encode(),
        }
    )
    admin.schedules = SimpleNamespace(get=AsyncMock(return_value=info), list=AsyncMock(return_value=[info]))
    for text in (
        printed(capsys, "schedule", "get", "nightly", "-o", "json"),
        printed(capsys, "schedule", "list", "-o", "json"),
    ):
        assert text.count("•••") == 3
        assert SECRET not in text
