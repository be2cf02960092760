"""`headgate events`: how many it prints, and what it masks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.cli import events, main
from headgate.sdk.admin.events import Event, EventGap

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
GAP = EventGap(since=NOON, until=NOON, reason="retention")
TWO = [
    Event(id="1", kind="job.failed", at=NOON, error_type="E", error_message="password=hunter2"),
    Event(id="2", kind="topic.paused", at=NOON, reason="token: abc"),
]


@pytest.fixture
def happens(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes these the events that a server has; then the stream ends."""

    def set_events(*items: Event | EventGap) -> None:
        async def found(**_asked: object) -> AsyncIterator[Event | EventGap]:
            for one in items:
                yield one

        def with_client(_server: object, use: Callable[[Any], Awaitable[None]]) -> None:
            asyncio.run(use(SimpleNamespace(admin=SimpleNamespace(events=found))))  # type: ignore[arg-type]

        monkeypatch.setattr(events, "with_client", with_client)

    return set_events


def test_without_a_limit_a_gap_at_the_beginning_does_not_end_the_stream(
    happens: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first answer to an old position is a gap: zero events are no limit that was reached."""
    happens(GAP, *TWO)
    assert main(["events", "-o", "name", "--after", "old"]) == 0
    gap, *ids = capsys.readouterr().out.splitlines()
    assert gap.endswith("are not known any more (retention)")
    assert ids == ["1", "2"]


def test_a_limit_counts_events_and_no_gaps(happens: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    happens(TWO[0], GAP, TWO[1], TWO[0])
    assert main(["events", "-o", "ndjson", "--limit", "2"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one.get("id") for one in found] == ["1", None, "2"]


@pytest.mark.parametrize("output", ["table", "json", "yaml", "ndjson"])
def test_no_format_shows_a_secret_value(
    output: str, happens: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    happens(*TWO)
    assert main(["events", "-o", output]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert "abc" not in text
    assert text.count("•••") == 2
