"""Watching a real database: the lanes of a server are seen by name, and statements where the extension is."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headgate.cli.doctor_load import load_report
from headgate.domain.errors import InvalidInput
from headgate.domain.load import Statement
from headgate.store.load import _changed, name_of
from tests.support.dispatching import Instance


async def test_a_busy_lane_is_seen_with_what_it_waits_for(stepped: Instance, database: str) -> None:
    async def busy() -> None:
        async with stepped.store.lane("settle").use() as db:
            await db.execute("SELECT pg_sleep(1.5)")

    sleeping = asyncio.create_task(busy())
    await stepped.submit(5)
    report = await load_report(database, span=timedelta(seconds=1))
    await sleeping
    lanes = {one.lane: one for one in report.lanes}
    assert lanes["settle"].busy > 0.5
    assert lanes["settle"].mostly == "Timeout:PgSleep"
    assert lanes["submit"].busy < 0.5
    assert report.connections_max > 0
    assert 1.0 <= report.seconds < 30.0


async def test_a_span_out_of_range_is_refused(database: str) -> None:
    with pytest.raises(InvalidInput, match="--load"):
        await load_report(database, span=timedelta(0))


def test_statements_are_added_up_by_the_function_they_call() -> None:
    assert name_of("SELECT ord FROM headgate.settle_v1($1)") == "settle_v1"
    before = {(1, 1): Statement(name="claim_v1", calls=10, total_ms=5.0, rows=3)}
    after = {
        (1, 1): Statement(name="claim_v1", calls=12, total_ms=9.0, rows=5),
        (1, 2): Statement(name="claim_v1", calls=1, total_ms=1.0, rows=1),
        (1, 3): Statement(name="tick_v1", calls=5, total_ms=50.0, rows=0),
    }
    assert _changed(before, after) == [
        Statement(name="tick_v1", calls=5, total_ms=50.0, rows=0),
        Statement(name="claim_v1", calls=3, total_ms=5.0, rows=3),
    ]
