"""Translations between the wire and the domain: what is not set, what is 0, and what is rounded."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, patch
from uuid import UUID

import pytest

from headgate.api.grpc import bulk_service, worker_codec
from headgate.api.grpc.bulk_service import BulkService
from headgate.api.grpc.codec import retry_policy
from headgate.api.grpc.errors import message_of
from headgate.api.grpc.peers import PeerStreams, TooManyStreams, address_of
from headgate.api.grpc.submit_codec import submission_of
from headgate.api.grpc.worker_service import WorkerService
from headgate.domain.backoff import RetryPolicy
from headgate.domain.dispatching import Settled
from headgate.domain.errors import LOCKED_OUTCOME, InvalidInput, Overloaded
from headgate.domain.states import Receipt
from headgate.sdk.ids import new_id_maker
from headgate.wire import bulk_pb2, jobs_pb2, producer_pb2, worker_pb2

IDS = [new_id_maker().next_id() for _ in range(4)]


def uuids(raw: Any) -> list[UUID]:
    return [UUID(bytes=bytes(one)) for one in raw]


def test_a_locked_outcome_has_one_text_on_all_transports() -> None:
    answer = worker_codec.receipt(0, Settled(receipt=Receipt.LOCKED))
    assert answer.message == LOCKED_OUTCOME
    source = Path(worker_codec.__file__).parents[2]
    texts = [file.name for file in sorted(source.rglob("*.py")) if "locked this job;" in file.read_text()]
    assert texts == ["errors.py"]


def logged(*lines: jobs_pb2.LogLine, job_id: bytes | None = None) -> list[Any]:
    message = worker_pb2.JobLines(id=IDS[0].bytes if job_id is None else job_id, epoch=7, lines=lines)
    return list(worker_codec.logs_of([message], uuids))


def test_of_too_many_log_lines_the_newest_are_kept() -> None:
    ((_, epoch, _, lines),) = logged(*(jobs_pb2.LogLine(seq=seq) for seq in range(1, 202)))
    assert (epoch, [one.seq for one in lines]) == (7, list(range(2, 202)))


def test_a_log_line_without_a_level_is_info_and_one_that_is_not_valid_costs_only_itself() -> None:
    given = [jobs_pb2.LogLine(seq=1), jobs_pb2.LogLine(seq=0), jobs_pb2.LogLine(seq=2, level=9)]
    first, second, (_, _, _, lines) = logged(*given)
    assert [type(one) for one in (first, second)] == [InvalidInput, InvalidInput]
    assert [(one.seq, one.level) for one in lines] == [(1, 2)]
    (error,) = logged(given[0], job_id=b"short")
    assert error.field == "logs.id"


async def test_log_lines_never_cost_the_lease_of_a_heartbeat() -> None:
    service = object.__new__(WorkerService)
    answer = SimpleNamespace(lost=[], cancel=[], skipped=[])
    service._uuids, service._calls = uuids, Mock(heartbeat=AsyncMock(return_value=answer))
    held = worker_pb2.Held(ids=[IDS[0].bytes], epochs=[7])
    lines = [jobs_pb2.LogLine(seq=seq) for seq in range(201)]
    logs = [worker_pb2.JobLines(id=b"short"), worker_pb2.JobLines(id=IDS[0].bytes, epoch=7, lines=lines)]
    with patch("headgate.api.grpc.worker_service.caller"):
        await service.heartbeat(worker_pb2.HeartbeatRequest(worker_id="w", held=held, logs=logs), Mock())
    (kept,) = service._calls.heartbeat.await_args.kwargs["logs"]  # type: ignore[attr-defined]
    assert [one.seq for one in kept.lines] == list(range(1, 201))


def submission(**fields: Any) -> Any:
    job = producer_pb2.NewJob(topic="mail", payload=b"{}", **fields)
    return submission_of(job, tenant="acme", make_id=lambda: IDS[0])


def test_a_priority_of_0_is_not_that_of_the_topic() -> None:
    assert submission(priority=0).priority == 0
    assert submission().priority is None


def test_a_deadline_that_has_passed_hides_no_job_that_exists() -> None:
    """Of a new job it is refused. One that is sent again has an id, and may have been stored in time."""
    past = int((datetime.now(UTC) - timedelta(minutes=1)).timestamp() * 1e6)
    assert submission(id=IDS[1].bytes, deadline_us=past).id == IDS[1]
    for new in ({}, {"id": IDS[1].bytes, "new_id": True}):
        with pytest.raises(InvalidInput, match="has passed"):
            submission(deadline_us=past, **new)


def test_parts_of_a_retry_policy_that_are_not_set_are_those_of_the_default() -> None:
    assert retry_policy(producer_pb2.RetryPolicy()) == RetryPolicy()
    assert retry_policy(producer_pb2.RetryPolicy(base_ms=5_000)) == RetryPolicy(base_ms=5_000)


def test_an_error_within_a_stream_says_when_to_come_back() -> None:
    assert message_of(Overloaded("full", retry_after_ms=700)).retry_after_ms == 700


# --- workers ---------------------------------------------------------------------------------------------------------


def test_a_result_that_is_too_large_does_not_give_its_neighbours_the_results_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.domain.limits.RESULT_MAX_BYTES", 4)
    frame = worker_codec.outcome_frame(
        worker_pb2.Outcomes(
            seq=1, ids=[one.bytes for one in IDS[:3]], epochs=[1, 2, 3], results=[b"a", b"too large", b"c"]
        ),
        uuids,
    )
    assert (list(frame.ids), list(frame.epochs), list(frame.results)) == ([IDS[0], IDS[2]], [1, 3], [b"a", b"c"])
    assert (list(frame.indexes), [index for index, _ in frame.refused]) == ([0, 2], [1])


def test_a_rule_of_no_limit_is_not_the_lack_of_a_rule() -> None:
    limits_ms = {1: 0, 2: None, 3: 500}
    topics: Any = SimpleNamespace(time_limit_ms=limits_ms.get, topic_name=str)
    delivery: Any = SimpleNamespace(
        **{name: [] for name in ("ids", "epochs", "payloads", "attempts", "max_attempts", "priorities", "created_us")},
        topic_nos=[3, 1, 2],
        headers=[],
        lease_until_us=0,
        claimed_us=0,
        seq=1,
    )
    frame = worker_codec.jobs_frame(delivery, topics)
    sent = dict(zip(frame.jobs.topic_names, frame.jobs.time_limits_ms, strict=True))
    assert (sent["1"], sent["3"]) == (0, 500)
    assert sent["2"] < 0


@pytest.mark.parametrize(("left_us", "left_ms"), [(1, 1), (1_000, 1), (1_001, 2), (0, 0), (-5_000, 0)])
def test_a_worker_does_not_stop_a_job_before_its_deadline(left_us: int, left_ms: int) -> None:
    with patch.object(worker_codec, "deadline_us_of", return_value=10**15):
        assert worker_codec._job_headers(0, {}, 10**15 - left_us).deadline_in_ms == left_ms


# --- bulk ------------------------------------------------------------------------------------------------------------


async def test_an_operation_and_a_page_of_operations_are_asked_for_as_they_were_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_service, "caller", Mock())
    jobs = Mock(operations=AsyncMock(return_value=[]))
    service = BulkService(jobs)
    await service.list_bulk(bulk_pb2.ListBulkRequest(before=IDS[0].bytes, limit=7), Mock())
    asked = jobs.operations.await_args.kwargs
    assert (asked["before"], asked["limit"], asked["active"]) == (IDS[0], 7, False)
    plan = bulk_pb2.BulkPlan(verb="redrive", filter="topic:mail", delay_ms=1_500, per_second=3, priority=0)
    request = bulk_service._request(plan)
    assert (request.delay, request.per_second, request.priority) == (timedelta(seconds=1.5), 3, 0)


# --- peers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:192.0.2.7:5123", "192.0.2.7"), ("ipv6:%5B2001:db8::1%5D:5123", "[2001:db8::1]"), ("unix:/run/x", "")],
)
def test_an_address_is_that_of_its_peer_without_the_port(peer: str, address: str) -> None:
    assert address_of(peer) == address


async def test_an_address_has_exactly_as_many_streams_as_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_context: object, error: Exception) -> None:
        raise error

    monkeypatch.setattr("headgate.api.grpc.peers.end_with", refuse)
    entered, leave = asyncio.Semaphore(0), asyncio.Event()

    async def serve(_first: object, _context: object) -> None:
        entered.release()
        await leave.wait()

    serve_one, context = PeerStreams(2).bounded(serve), Mock(peer=lambda: "ipv4:192.0.2.7:1")
    open_ = [asyncio.create_task(serve_one(None, context)) for _ in range(2)]  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        for _ in open_:
            await entered.acquire()
    with pytest.raises(TooManyStreams):
        await serve_one(None, context)
    leave.set()
    await asyncio.gather(*open_)
    await serve_one(None, context)
