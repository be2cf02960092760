"""Outcomes on the stream, frame by frame, and the unary calls that do the same."""

from __future__ import annotations

import asyncio
import os

import pytest

from headgate.wire import jobs_pb2, worker_pb2
from tests.e2e.stream.tokens import APPLIED, DUPLICATE, INVALID, STALE, UNKNOWN
from tests.support.epochs import claims
from tests.support.wire import Wire, abandon, completed, failed, held, nack, new_id, retry_after, snooze

# ---------------------------------------------------------------------- outcomes


@pytest.mark.req("W9", "W14", "W15")
async def test_all_kinds_travel_in_one_frame_and_each_does_what_it_is_named_for(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 6, max_attempts=5)
    async with wire.worker() as session:
        await session.ready(6, topic)
        one, *others = await session.take(6)
        receipts = await session.report_all(
            worker_pb2.Outcomes(
                ids=[one.id],
                epochs=[one.epoch],
                results=[b"fast"],
                others=[
                    completed(others[0], b"slow"),
                    failed(others[1], "out of paper"),
                    nack(others[2], 60_000, "warming up"),
                    snooze(others[3], 60_000),
                    failed(others[4], "never", permanent=True),
                ],
            )
        )
        jobs = [await wire.job(job_id) for job_id in ids]
        assert [(job.state, job.attempt) for job in jobs] == [
            (jobs_pb2.STATE_COMPLETED, 1),
            (jobs_pb2.STATE_COMPLETED, 1),
            (jobs_pb2.STATE_RETRYING, 1),
            (jobs_pb2.STATE_RETRYING, 1),
            (jobs_pb2.STATE_SCHEDULED, 0),
            (jobs_pb2.STATE_DEAD, 1),
        ]
        assert [job.result for job in jobs[:2]] == [b"fast", b"slow"]
        assert {place: (receipt.code, receipt.state) for place, receipt in receipts.items()} == {
            place: (APPLIED, jobs[place].state) for place in (2, 3, 4, 5)
        }
        assert receipts[3].run_at_us == jobs[3].run_at_us  # the delay as applied


@pytest.mark.req("W9")
async def test_an_outcome_of_no_kind_is_refused_and_the_job_stays_leased(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(1, topic)
        (job,) = await session.take(1)
        receipts = await session.report(jobs_pb2.Outcome(id=job.id, epoch=job.epoch))
        assert receipts[0].code == INVALID
        assert "none of completed" in receipts[0].message
        assert (await wire.job(job_id)).state == jobs_pb2.STATE_RUNNING
        assert await session.complete(job) == {}


async def test_a_result_is_kept_as_it_is_and_can_be_waited_for(wire: Wire, topic: str) -> None:
    bodies = [b"", b"{}", bytes(range(256)), os.urandom(1_048_576)]
    ids = await wire.submit_many(topic, [b""] * len(bodies))
    waiting = [asyncio.create_task(wire.ended(job_id)) for job_id in ids]
    async with wire.worker() as session:
        await session.ready(len(bodies), topic)
        jobs = await session.take(len(bodies))
        assert await session.complete(*jobs, results=bodies) == {}
    assert [job.result for job in await asyncio.gather(*waiting)] == bodies


@pytest.mark.req("W11")
async def test_failures_and_nacks_cost_attempts_and_end_with_the_dead_letters(wire: Wire, topic: str) -> None:
    fails, nacks = await wire.submit_many(topic, [b"", b""], max_attempts=2, retry=retry_after(20))
    async with wire.worker() as session:
        await session.ready(2, topic)
        jobs = {job.id: job for job in await session.take(2)}
        receipts = await session.report(failed(jobs[fails], "first"), nack(jobs[nacks], 20, "not yet"))
        assert [receipts[place].state for place in (0, 1)] == [jobs_pb2.STATE_RETRYING] * 2
        assert (await wire.job(nacks)).events[-1].reason == "not yet"
        await session.ready(2)
        jobs = {job.id: job for job in await session.take(2)}
        assert {job.attempt for job in jobs.values()} == {2}
        receipts = await session.report(failed(jobs[fails], "second"), nack(jobs[nacks], 20, "still not"))
        assert [receipts[place].state for place in (0, 1)] == [jobs_pb2.STATE_DEAD] * 2
    dead, given_up = await wire.job(fails), await wire.job(nacks)
    assert "second" in dead.last_error
    assert [event.error_message for event in dead.events] == ["first", "second"]
    assert "still not" in given_up.last_error
    assert [event.reason for event in given_up.events] == ["not yet", "still not"]


@pytest.mark.req("W12")
async def test_nack_zero_means_at_once(wire: Wire, topic: str) -> None:
    await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(2, topic)
        (job,) = await session.take(1)
        receipts = await session.report(nack(job, 0))
        assert (receipts[0].code, receipts[0].state) == (APPLIED, jobs_pb2.STATE_PENDING)
        (again,) = await session.take(1)
        assert (again.id, again.attempt, claims(again.epoch)) == (job.id, 2, 2)


@pytest.mark.req("W12")
async def test_a_delay_the_server_cannot_take_is_refused_and_the_job_stays_leased(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(1, topic)
        (job,) = await session.take(1)
        for outcome, field in (
            (nack(job, -1), "nack.delay_ms"),
            (nack(job, -(2**63)), "nack.delay_ms"),
            (nack(job, 6 * 365 * 86_400_000), "delay"),
            (snooze(job, -1), "snooze.delay_ms"),
        ):
            (receipt,) = (await session.report(outcome)).values()
            assert (receipt.code, field in receipt.message) == (INVALID, True), receipt
            info = await wire.job(job_id)
            assert (info.state, claims(info.epoch)) == (jobs_pb2.STATE_RUNNING, 1)
        assert await session.complete(job) == {}


@pytest.mark.req("W13")
async def test_an_abandoned_job_is_back_at_its_old_place_at_no_cost(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 3, max_attempts=1)
    async with wire.worker() as session:
        await session.ready(1, topic)
        (job,) = await session.take(1)
        receipts = await session.report(abandon(job))
        assert (receipts[0].code, receipts[0].state) == (APPLIED, jobs_pb2.STATE_PENDING)
        await session.ready(3)
        again = await session.take(3)
        assert [job.id for job in again] == ids
        assert [(job.attempt, claims(job.epoch)) for job in again] == [(1, 2), (1, 1), (1, 1)]


@pytest.mark.req("W14", "W15")
async def test_every_outcome_has_a_receipt_of_its_own_and_bad_ones_spare_their_neighbours(
    wire: Wire, topic: str
) -> None:
    ids = await wire.submit_many(topic, [b""] * 5, max_attempts=9)
    async with wire.worker() as session:
        await session.ready(5, topic)
        fine, stale, repeated, large, odd = await session.take(5)
        assert await session.complete(repeated) == {}
        future = stale._replace(epoch=stale.epoch + 1)
        unsigned = stale._replace(epoch=2**64 - 1)
        receipts = await session.report_all(
            worker_pb2.Outcomes(
                ids=[fine.id, large.id, stale.id, b"short"],
                epochs=[fine.epoch, large.epoch, unsigned.epoch, 1],
                results=[b"fine", bytes(1_048_577), b"", b""],
                others=[
                    completed(future),
                    nack(future, 0),
                    completed(repeated),
                    failed(repeated),
                    completed(fine._replace(id=new_id())),
                    completed(large, bytes(1_048_577)),
                    jobs_pb2.Outcome(id=b"", epoch=1, abandon=jobs_pb2.Abandon()),
                    failed(unsigned),
                    failed(odd, "\0 is mended, not refused"),
                ],
            )
        )
        assert {place: receipt.code for place, receipt in receipts.items()} == {
            1: INVALID,  # the result is over its limit
            2: INVALID,  # no such epoch was ever given
            3: INVALID,  # not an id
            4: STALE,
            5: STALE,
            6: DUPLICATE,
            7: STALE,  # settled, but otherwise
            8: UNKNOWN,
            9: INVALID,
            10: INVALID,
            11: INVALID,
            12: APPLIED,
        }
        assert "1048577 bytes is over the limit of 1048576 bytes" in receipts[1].message
        assert "result" in receipts[9].message
        assert "16 bytes" in receipts[3].message
        assert "16 bytes" in receipts[10].message
        states = [(await wire.job(job_id)).state for job_id in ids]
        assert states == [
            jobs_pb2.STATE_COMPLETED,
            jobs_pb2.STATE_RUNNING,
            jobs_pb2.STATE_COMPLETED,
            jobs_pb2.STATE_RUNNING,
            jobs_pb2.STATE_RETRYING,
        ]
        assert await session.complete(stale, large) == {}  # still theirs


@pytest.mark.req("W14")
async def test_receipts_come_after_commit(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 30)
    async with wire.worker() as session:
        await session.ready(30, topic)
        for job in await session.take(30):
            assert await session.complete(job) == {}
            assert (await wire.job(job.id)).state == jobs_pb2.STATE_COMPLETED
    assert len(ids) == 30


# ---------------------------------------------------------------------- unary twins


@pytest.mark.req("W25")
async def test_a_script_claims_beats_and_reports_without_a_stream(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b"a", b"b", b"c"])
    claim = worker_pb2.ClaimRequest(worker_id="script", topics=[topic], count=2, wait_ms=30_000)
    jobs = list((await wire.call("Claim", claim)).jobs)
    assert [(job.id, job.payload, job.tenant, job.attempt) for job in jobs] == [
        (ids[0], b"a", "alpha", 1),
        (ids[1], b"b", "alpha", 1),
    ]
    assert (await wire.job(ids[0])).worker == "script"
    stranger = worker_pb2.Held(ids=[new_id()], epochs=[1])
    beat = worker_pb2.HeartbeatRequest(worker_id="script", held=held(*jobs), lease_seconds=100)
    beat.held.MergeFrom(stranger)
    answer = await wire.call("Heartbeat", beat)
    assert list(answer.lost.ids) == list(stranger.ids)
    assert (await wire.job(ids[0])).lease_until_us > jobs[0].lease_until_us + 90_000_000
    report = worker_pb2.ReportOutcomeRequest(
        worker_id="script",
        outcomes=[
            completed(jobs[0], b"done"),
            nack(jobs[1], -1),
            failed(jobs[1]),
            completed(jobs[0]),
            jobs_pb2.Outcome(id=new_id(), epoch=1, abandon=jobs_pb2.Abandon()),
        ],
    )
    receipts = (await wire.call("ReportOutcome", report)).receipts
    assert [(one.index, one.code, one.state) for one in receipts] == [
        (0, APPLIED, jobs_pb2.STATE_COMPLETED),
        (1, INVALID, 0),
        (2, APPLIED, jobs_pb2.STATE_RETRYING),
        (3, DUPLICATE, jobs_pb2.STATE_COMPLETED),
        (4, UNKNOWN, 0),
    ]
    assert (await wire.job(ids[0])).result == b"done"


@pytest.mark.req("W25")
async def test_a_claim_waits_for_work_as_long_as_it_says_and_leaves_nothing_behind(wire: Wire, topic: str) -> None:
    claim = worker_pb2.ClaimRequest(worker_id="script", topics=[topic], wait_ms=200)
    assert not (await wire.call("Claim", claim)).jobs
    job_id = await wire.submit(topic)  # with no one waiting any more
    claim.wait_ms = 5_000
    (job,) = (await wire.call("Claim", claim)).jobs
    assert (job.id, job.attempt, claims(job.epoch)) == (job_id, 1, 1)
    waiting = asyncio.create_task(wire.call("Claim", claim))
    later = await wire.submit(topic)
    assert [job.id for job in (await waiting).jobs] == [later]
