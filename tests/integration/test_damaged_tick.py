"""A tick that meets something unreadable: what lies elsewhere is still found, promoted and reported."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.domain.errors import StoreBusy
from headgate.domain.states import State
from headgate.store.connect import Connection
from tests.support.dispatching import Instance
from tests.support.queue import Clock

PROMOTE = """
CREATE OR REPLACE FUNCTION headgate.promote_v1(n_ int, floor_ timestamptz, one_by_one_ boolean DEFAULT false)
RETURNS TABLE (tenant_no int, topic_no int, id uuid, rank_class int, rank_at bigint, run_at timestamptz, problem text)
LANGUAGE plpgsql AS $$ BEGIN
    IF floor_ < '9000-01-01' THEN RAISE 'invalid page in block 7' USING ERRCODE = '%s'; END IF;
END $$"""
REAP = """
CREATE OR REPLACE FUNCTION headgate.reap_v1(n_ int, floor_ timestamptz, one_by_one_ boolean DEFAULT false)
RETURNS TABLE (tenant_no int, id uuid, state smallint, run_at timestamptz, topic_no int, problem text)
LANGUAGE plpgsql AS $$ BEGIN RAISE 'invalid page in block 7' USING ERRCODE = 'XX001'; END $$"""


async def test_a_tick_that_cannot_promote_still_finds_what_is_pending_and_what_runs(
    stepped: Instance, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await stepped.submit(2)
    await stepped.worker("w", slots=1)
    assert await stepped.claimer.run_once() == 1
    await stepped.submit(1, delay=timedelta(hours=1))
    await db.execute(PROMOTE % "XX001")
    await stepped.worker("other", slots=1)
    tick = await stepped.ticker.run_once()
    assert tick.pending == await stepped.topic_nos("mail")
    assert tick.oldest_running is not None
    assert tick.now is not None
    assert "tick_part_failed part=promote" in caplog.text
    assert await stepped.claimer.run_once() == 1


async def test_a_tick_that_cannot_reap_is_of_use_nevertheless_and_reaps_page_by_page(
    stepped: Instance, db: Connection
) -> None:
    clock = await Clock.install(db)
    await stepped.submit(1)
    await stepped.worker("w", slots=1)
    assert await stepped.claimer.run_once() == 1
    await stepped.submit(1, delay=timedelta(seconds=30))
    await db.execute(REAP)
    await clock.advance(seconds=61)
    tick = await stepped.ticker.run_once()
    assert (len(tick.promoted), tick.reaped) == (1, 1)
    states = await stepped.states()
    assert (states[State.PENDING], states[State.RETRYING]) == (1, 1)


async def test_a_database_that_is_busy_fails_the_tick_as_a_whole(stepped: Instance, db: Connection) -> None:
    await db.execute(PROMOTE % "53200")
    with pytest.raises(StoreBusy):
        await stepped.ticker.run_once()
