"""The rules of worker sessions and of calls, without any transport: what REST would use as gRPC does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from headgate.control.tenant_limits import TenantLimits
from headgate.dispatch.delivery import ControlFrame, Delivery
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_ends import SessionForgotten
from headgate.dispatch.session_rules import Beat, Hello, OutcomeFrame, reporting_errors
from headgate.dispatch.worker_calls import WorkerCalls
from headgate.domain.errors import HeadgateError, InvalidInput, QuotaExceeded
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.states import Receipt, State
from headgate.domain.tenants import checked_quotas
from headgate.domain.topic_sets import TopicSet
from headgate.store.tenants import TenantStore
from tests.support.dispatch_waits import SOON
from tests.support.dispatching import Instance

OURS = Identity(tenant="acme", subject="ours", scopes=frozenset(Scope))
WRONG = InvalidInput("id", "is wrong")


async def part(session: WorkerSession) -> Delivery | ControlFrame | None:
    async with asyncio.timeout(SOON.total_seconds()):
        return await session.next_part()


async def jobs(session: WorkerSession) -> Delivery:
    delivery = await part(session)
    assert isinstance(delivery, Delivery)
    return delivery


async def control(session: WorkerSession) -> ControlFrame:
    frame = await part(session)
    assert isinstance(frame, ControlFrame)
    return frame


def beat(*held: tuple[UUID, int], seen: int = 0, extensions: Sequence[object] = (), progress: object = ()) -> Beat:
    return Beat(
        count=len(held),
        listed=lambda: list(held),
        jobs_seen=seen,
        extensions=extensions,  # type: ignore[arg-type]
        progress=progress,  # type: ignore[arg-type]
    )


def completions(delivery: Delivery, *, seq: int, refused: Sequence[tuple[int, HeadgateError]] = ()) -> OutcomeFrame:
    """All of a delivery, at the indexes that were not refused."""
    taken = {index for index, _ in refused}
    free = [index for index in range(len(delivery) + len(refused)) if index not in taken]
    return OutcomeFrame(
        seq=seq,
        ids=delivery.ids,
        epochs=delivery.epochs,
        results=[b""] * len(delivery),
        others=(),
        indexes=free,
        refused=refused,
        size=100,
    )


async def test_a_session_gets_the_jobs_it_asks_for_and_the_receipts_of_what_it_reports(one: Instance) -> None:
    session, lost = await one.rules.open(OURS, Hello(worker_id="w"))
    assert lost == []
    ids = await one.submit(3)
    await one.rules.request_jobs(session, ["mail"], 2)
    first = await jobs(session)
    await one.rules.request_jobs(session, [], 1)  # of the same topics
    second = await jobs(session)
    assert [*first.ids, *second.ids] == ids
    one.rules.report(session, completions(first, seq=7, refused=[(1, WRONG)]))
    assert await control(session) == ControlFrame(receipts_seq=7, receipt_exceptions=[(1, WRONG)])
    one.start("unmatched", one.unmatched.writer.run())
    one.rules.report(session, completions(first, seq=8))  # again, though they are not its own any more
    stale = await control(session)
    assert stale.receipts_seq == 8
    assert [(index, answer.receipt) for index, answer in stale.receipt_exceptions] == [  # type: ignore[union-attr]
        (0, Receipt.DUPLICATE),
        (1, Receipt.DUPLICATE),
    ]
    assert set(session.held) == set(second.ids)
    one.rules.close(session, "gone")
    assert session not in set(one.sessions)
    assert len(one.demands) == 0


async def test_an_empty_frame_of_outcomes_is_answered_at_once(stepped: Instance) -> None:
    session, _ = await stepped.rules.open(OURS, Hello(worker_id="w"))
    frame = OutcomeFrame(seq=3, ids=(), epochs=(), results=(), others=(), indexes=(), refused=[(0, WRONG)], size=0)
    stepped.rules.report(session, frame)
    assert await control(session) == ControlFrame(receipts_seq=3, receipt_exceptions=[(0, WRONG)])


async def test_a_worker_that_comes_back_declares_what_it_holds_and_learns_what_it_has_lost(one: Instance) -> None:
    session, _ = await one.rules.open(OURS, Hello(worker_id="w", incarnation=1))
    (job,) = await one.submit(1)
    await one.rules.request_jobs(session, ["mail"], 1)
    delivery = await jobs(session)
    session.written()
    one.rules.close(session, "gone")
    invented = uuid4()
    hello = Hello(
        worker_id="w",
        incarnation=1,
        declared=2,
        ids=lambda: [job, invented],
        epochs=[delivery.epochs[0], 1],
    )
    again, lost = await one.rules.open(OURS, hello)
    assert lost == [(invented, 1)]
    assert again.holds(job, delivery.epochs[0])


async def test_a_beat_is_answered_although_parts_of_it_are_wrong(one: Instance) -> None:
    session, _ = await one.rules.open(OURS, Hello(worker_id="w"))
    (job,) = await one.submit(1)
    await one.rules.request_jobs(session, ["mail"], 1)
    epoch = (await jobs(session)).epochs[0]
    session.written()
    unknown = (uuid4(), 1)
    extensions = [WRONG, (job, epoch, 10**9), (job, epoch, 3_600)]
    one.rules.beat(session, beat((job, epoch), unknown, extensions=extensions, progress=[WRONG, (job, epoch, {})]))
    frames = [await control(session) for _ in range(4)]
    assert frames == [
        ControlFrame(lost=[unknown]),
        ControlFrame(error=WRONG),  # the first of them
        ControlFrame(error=WRONG),
        ControlFrame(beat_ack=True),
    ]
    assert session.held[job][1] == timedelta(hours=1) // timedelta(milliseconds=1)
    one.rules.beat(session, beat(seen=1))  # it has had the delivery, and does not hold the job any more
    assert not session.held


async def test_a_session_that_its_instance_has_forgotten_ends_with_its_next_beat(stepped: Instance) -> None:
    session, _ = await stepped.rules.open(OURS, Hello(worker_id="w"))
    stepped.sessions.close(session)
    stepped.rules.beat(session, beat())
    assert isinstance(session.ended, SessionForgotten)


async def test_an_error_in_a_part_of_a_frame_is_sent_and_a_missing_right_ends_the_session(stepped: Instance) -> None:
    narrow = Identity(tenant="acme", subject="narrow", scopes=frozenset(Scope), topics=TopicSet.of("mail"))
    session, _ = await stepped.rules.open(narrow, Hello(worker_id="w"))
    for topics, count in (((), 1), (["mail"], 0), (["no topic!"], 1), ([f"t{n}" for n in range(1_001)], 1)):
        with reporting_errors(session, seq=5):
            await stepped.rules.request_jobs(session, topics, count)
        frame = await control(session)
        assert (isinstance(frame.error, InvalidInput), frame.error_seq) == (True, 5)
    with pytest.raises(PermissionDenied), reporting_errors(session):
        await stepped.rules.request_jobs(session, ["pay"], 1)


async def test_a_worker_that_finishes_gets_no_jobs_but_its_receipts(one: Instance) -> None:
    session, _ = await one.rules.open(OURS, Hello(worker_id="w"))
    await one.submit(2)
    await one.rules.request_jobs(session, ["mail"], 1)
    delivery = await jobs(session)
    await one.rules.request_jobs(session, [], 5)
    one.rules.report(session, completions(delivery, seq=1))
    one.rules.finish(session)
    left = [await part(session), await part(session)]
    assert left == [ControlFrame(receipts_seq=1, receipt_exceptions=[]), None]
    assert one.free() == 0


@pytest.mark.parametrize(
    ("withdraws", "finishes", "reason"),
    [(True, True, "closed_by_worker"), (False, True, "connection_lost"), (True, False, "connection_lost")],
)
async def test_the_log_tells_a_worker_that_has_stopped_from_one_that_was_lost(
    one: Instance, caplog: pytest.LogCaptureFixture, withdraws: bool, finishes: bool, reason: str
) -> None:
    """The end of the stream alone proves nothing: gRPC reports it for a killed process as well."""
    session, _ = await one.rules.open(OURS, Hello(worker_id="w"))
    await one.rules.request_jobs(session, ["mail"], 1)
    if withdraws:
        one.rules.withdraw(session)
    if finishes:
        one.rules.finish(session)
    with caplog.at_level(logging.INFO, "headgate"):
        one.rules.close(session, "its stream has ended")
    assert f"session_ended worker=w reason={reason}" in caplog.text


# ---------------------------------------------------------------------- calls


async def test_calls_claim_renew_and_report_without_a_session(one: Instance) -> None:
    calls = WorkerCalls(one.rules)
    job, other = await one.submit(2)
    pulled = await calls.claim(OURS, "script", ["mail"], lease_seconds=60, count=1, wait_ms=30_000)
    pulled.written()
    (claimed,) = pulled.deliveries
    assert list(claimed.ids) == [job]
    epochs = list(claimed.epochs)
    renewed = await calls.heartbeat(
        OURS, "script", [job, other], [*epochs, 1], lease_seconds=120, progress=[(job, epochs[0], {"done": 1})]
    )
    assert (list(renewed.lost), list(renewed.cancel), list(renewed.skipped)) == ([(other, 1)], [], [])
    one.start("unmatched", one.unmatched.writer.run())
    failed = Failed(error=ErrorInfo(type="E", message="m"), permanent=True)
    answers = await calls.report(OURS, "script", [(job, epochs[0], failed), (uuid4(), 1, Completed())], size=100)
    assert [answers[index].receipt for index in range(2)] == [Receipt.APPLIED, Receipt.UNKNOWN]  # type: ignore[union-attr]
    assert (await one.job(job)).state is State.DEAD
    assert not one.sessions.with_calls()


async def test_a_report_returns_the_credit_of_the_plain_stream_that_delivered_the_job(one: Instance) -> None:
    calls = WorkerCalls(one.rules)
    first, second = await one.submit(2)
    session = await calls.open_stream(OURS, "plain", ["mail"], lease_seconds=60, max_in_flight=1)
    delivery = await jobs(session)
    session.written()
    assert list(delivery.ids) == [first]
    await calls.report(OURS, "plain", [(first, delivery.epochs[0], Completed())], size=1)
    assert list((await jobs(session)).ids) == [second]


async def test_a_tenant_opens_no_more_sessions_than_its_quota_but_who_holds_jobs_is_let_in(one: Instance) -> None:
    limits = TenantLimits(TenantStore(one.store))
    rules = replace(one.rules, admit=limits.check_session)
    changes = checked_quotas({"max_sessions": 2})
    await TenantStore(one.store).set_quotas("acme", changes, actor="test", reason="")
    for worker in ("a", "b", "b"):  # one that connects again replaces its older session
        await rules.open(OURS, Hello(worker_id=worker))
    with pytest.raises(QuotaExceeded, match=r"has 2 of 2 .max_sessions: worker sessions"):
        await rules.open(OURS, Hello(worker_id="c"))
    holding = Hello(worker_id="c", declared=1, ids=lambda: [uuid4()], epochs=[1025])
    session, _ = await rules.open(OURS, holding)
    rules.close(session, "left")
    await rules.open(replace(OURS, tenant="other"), Hello(worker_id="d"))
    await limits.close()


async def test_the_quota_of_sessions_counts_plain_streams_and_workers_that_claim_by_calls(one: Instance) -> None:
    limits = TenantLimits(TenantStore(one.store))
    rules = replace(one.rules, admit=limits.check_session)
    calls = WorkerCalls(rules)
    changes = checked_quotas({"max_sessions": 3})
    await TenantStore(one.store).set_quotas("acme", changes, actor="test", reason="")
    await rules.open(OURS, Hello(worker_id="connected"))
    await calls.open_stream(OURS, "plain", ["mail"], lease_seconds=60, max_in_flight=1)
    for worker in ("pulls", "pulls"):  # its next call is no further worker
        await calls.claim(OURS, worker, ["mail"])
    full = r"has 3 of 3 .max_sessions: worker sessions"
    with pytest.raises(QuotaExceeded, match=full):
        await calls.claim(OURS, "pulls too", ["mail"])
    with pytest.raises(QuotaExceeded, match=full):
        await calls.open_stream(OURS, "plain too", ["mail"], lease_seconds=60, max_in_flight=1)
    with pytest.raises(QuotaExceeded, match=full):
        await rules.open(OURS, Hello(worker_id="connected too"))
    await calls.claim(replace(OURS, tenant="other"), "pulls too", ["mail"])
    await limits.close()
