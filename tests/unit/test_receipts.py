"""Receipts go with jobs when jobs are about to come, and never wait for ones that are not."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from headgate.dispatch import session as session_module
from headgate.dispatch.delivery import ControlFrame, Delivery
from headgate.dispatch.demand import Demand
from headgate.dispatch.session import RECEIPTS_WAITING, WorkerSession
from headgate.dispatch.session_ends import SessionEnded
from headgate.domain.identity import Identity


def delivery(count: int = 1) -> Delivery:
    now = int(datetime.now(UTC).timestamp() * 1e6)
    return Delivery(
        tenant_no=1,
        lease_ms=60_000,
        ids=[uuid4() for _ in range(count)],
        topic_nos=[1] * count,
        epochs=[1] * count,
        attempts=[1] * count,
        max_attempts=[3] * count,
        priorities=[0] * count,
        created_us=[now] * count,
        lease_until_us=now,
        headers=[None] * count,
        payloads=[b""] * count,
    )


@pytest.fixture
def demand() -> Demand:
    made = Demand(1, (1,), 60_000)
    made.saturated = True
    return made


@pytest.fixture
def session(demand: Demand) -> WorkerSession:
    made = WorkerSession(Identity(tenant="acme", subject="test", scopes=frozenset()), 1, "w", lambda: 0.0, 60_000)
    demand.grant(made, 10)
    return made


async def test_receipts_wait_for_jobs_that_are_about_to_come_and_go_with_them(session: WorkerSession) -> None:
    session.answer(ControlFrame(receipts_seq=1))
    session.deliver(delivery())
    assert isinstance(await session.next_part(), Delivery)
    taken = session.take_receipts()
    assert taken is not None
    assert taken.receipts_seq == 1
    assert session.take_receipts() is None


async def test_receipts_go_at_once_where_the_last_claim_left_nothing(session: WorkerSession, demand: Demand) -> None:
    demand.saturated = False
    session.answer(ControlFrame(receipts_seq=1))
    assert session.take_receipts() is None  # none waits
    assert await session.next_part() == ControlFrame(receipts_seq=1)


async def test_receipts_go_at_once_to_a_worker_that_asked_for_nothing(session: WorkerSession, demand: Demand) -> None:
    demand.reserve(10)
    session.answer(ControlFrame(receipts_seq=1))
    assert session.take_receipts() is None  # none waits
    assert await session.next_part() == ControlFrame(receipts_seq=1)


async def test_receipts_wait_for_a_claim_that_is_under_way(session: WorkerSession, demand: Demand) -> None:
    demand.reserve(10)
    demand.claiming = True
    session.answer(ControlFrame(receipts_seq=1))
    assert session.take_receipts() == ControlFrame(receipts_seq=1)


async def test_control_frames_come_after_earlier_receipts(session: WorkerSession) -> None:
    session.answer(ControlFrame(receipts_seq=1))
    session.send_control(ControlFrame(beat_ack=True))
    assert [await session.next_part(), await session.next_part()] == [
        ControlFrame(receipts_seq=1),
        ControlFrame(beat_ack=True),
    ]


async def test_more_frames_of_outcomes_than_of_jobs_are_answered_nevertheless(session: WorkerSession) -> None:
    for seq in range(RECEIPTS_WAITING + 1):
        session.answer(ControlFrame(receipts_seq=seq))
    assert session.take_receipts() is None  # none waits any longer
    assert [(await _told(session)).receipts_seq for _ in range(RECEIPTS_WAITING + 1)] == [*range(RECEIPTS_WAITING + 1)]


async def test_receipts_go_alone_when_no_jobs_have_come_for_a_while(
    session: WorkerSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RECEIPTS_SECONDS", 0.001)
    session.answer(ControlFrame(receipts_seq=1))
    async with asyncio.timeout(5):
        assert await session.next_part() == ControlFrame(receipts_seq=1)


@pytest.mark.parametrize("way", ["finish", "end"])
async def test_the_last_receipts_are_still_sent_when_a_session_ends(session: WorkerSession, way: str) -> None:
    session.answer(ControlFrame(receipts_seq=1))
    if way == "finish":
        session.finish()
    else:
        session.end(SessionEnded("over"))
    assert await session.next_part() == ControlFrame(receipts_seq=1)
    assert await session.next_part() is None


async def _told(session: WorkerSession) -> ControlFrame:
    part = await session.next_part()
    assert isinstance(part, ControlFrame)
    return part
