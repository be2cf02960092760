"""`headgate job logs`: what it asks a server for, and what it prints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.cli import job_logs, main
from headgate.sdk.admin.job_logs import JobLogs, LogLine
from headgate.sdk.ids import new_id_maker

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
ID = new_id_maker().next_id()
NOTHING = JobLogs(lines=[], cursor="", more=False)


def line(seq: int, *, left_out: int = 0, logger: str = "shop") -> LogLine:
    return LogLine(
        at=NOON, attempt=1, level="info", logger=logger, text=f"line {seq}", left_out=left_out, epoch=1, seq=seq
    )


def page(*lines: LogLine, more: bool = False) -> JobLogs:
    return JobLogs(lines=list(lines), cursor=f"1.{lines[-1].seq}", more=more)


class Server:
    """Stands in for a server: its answers in turn. The job has ended when it was asked for this often."""

    def __init__(self, *pages: JobLogs, ends_after: int = 1) -> None:
        self._pages, self._running, self.asked = list(pages), ends_after, list[str]()

    async def logs(self, _known: object, *, after: str = "", **_: object) -> JobLogs:
        self.asked.append(after)
        return self._pages.pop(0) if self._pages else NOTHING

    async def get(self, _known: object) -> object:
        self._running -= 1
        return SimpleNamespace(finished=self._running <= 0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    monkeypatch.setattr(job_logs, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(job_logs, "LATE_SECONDS", 0.2)

    def server(*pages: JobLogs, **more: int) -> Server:
        made = Server(*pages, **more)
        client = SimpleNamespace(admin=SimpleNamespace(jobs=made), get=made.get)

        def with_id(_server: object, _kind: str, _given: str, use: Callable[[Any, Any], Awaitable[object]]) -> None:
            asyncio.run(use(client, ID))  # type: ignore[arg-type]

        monkeypatch.setattr(job_logs, "with_id", with_id)
        return made

    return server


def test_following_continues_behind_the_last_line_and_takes_those_that_are_stored_after_the_end(
    server: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    found = server(page(line(1)), NOTHING, page(line(2), more=True), page(line(3)), page(line(4)), ends_after=2)
    assert main(["job", "logs", "0190a3b2", "--follow", "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == ["1.1", "1.2", "1.3", "1.4"]
    assert found.asked[:6] == ["", "1.1", "1.1", "1.2", "1.3", "1.4"]


def test_lines_that_are_not_shown_are_mentioned_where_they_are(
    server: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server(page(line(2, left_out=1), line(5, left_out=2)))
    assert main(["job", "logs", "0190a3b2"]) == 0
    printed = capsys.readouterr().out
    assert [" ".join(row.split()[4:]) for row in printed.splitlines()] == [
        "LINE",
        "… 1 line was left out",
        "line 2",
        "… 2 lines were left out",
        "line 5",
    ]
    assert "are shown" not in printed
    server(page(line(8), line(9), more=True))
    assert main(["job", "logs", "0190a3b2", "--limit", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "the newest 2 lines are shown; --attempt N shows those of one attempt"


@pytest.mark.parametrize("output", ["table", "wide", "json", "ndjson", "yaml"])
def test_secrets_are_masked_in_names_of_loggers_too(
    output: str, server: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server(page(line(1, logger="shop token=hunter2")))
    assert main(["job", "logs", "0190a3b2", "-o", output]) == 0
    printed = capsys.readouterr().out
    assert "token=•••" in printed
    assert "hunter2" not in printed
