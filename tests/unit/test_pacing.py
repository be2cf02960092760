"""Long computations on the event loop give others their turn; previews of schedules are among them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control.payload_check import PayloadCheck
from headgate.control.schedules import Schedules
from headgate.domain import pacing
from headgate.domain.errors import InvalidInput
from headgate.domain.pacing import SLICE_SECONDS, Pace
from headgate.domain.schedules import Cron
from tests.support.turns import counted_turns


async def test_a_loop_stops_for_others_by_the_time_it_has_taken() -> None:
    now = 0.0
    pace = Pace(clock=lambda: now)
    async with counted_turns() as turns:
        for _ in range(1_000):
            await pace.rest()
        assert turns.number == 0  # no time has passed: there is nothing to stop for
        for row in range(1, 101):
            now = row * SLICE_SECONDS * 1.5
            await pace.rest()
            assert turns.number == row
        for _ in range(1_000):
            await pace.rest()
        assert turns.number == 100  # a slice begins with each stop


def schedules() -> Schedules:
    store: Any = SimpleNamespace()
    payloads = PayloadCheck(lambda tenant: {})
    return Schedules(store, topics_ready=lambda topics: None, wake=lambda: None, payloads=payloads)


@pytest.mark.parametrize("after", [datetime(1, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)])
async def test_a_preview_begins_within_the_calendar(after: datetime) -> None:
    with pytest.raises(InvalidInput, match="after: must be from 1970 to 2199"):
        await schedules().preview(Cron(expression="0 0 29 2 */7"), count=1_000, after=after)


async def test_a_long_preview_gives_others_their_turn_and_looks_a_century_ahead_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pacing, "SLICE_SECONDS", 0.0)
    after = datetime(2199, 12, 31, tzinfo=UTC)
    async with counted_turns() as turns:
        rare = await schedules().preview(
            Cron(expression="0 0 29 2 */7", zone="Europe/Zurich"), count=1_000, after=after
        )
        assert 2 <= len(rare) <= 5
        assert (rare[-1] - rare[0]).days <= 36_525
        before = turns.number
        assert len(await schedules().preview(Cron(expression="* * * * *"), count=1_000, after=after)) == 1_000
        assert turns.number - before >= 999
