"""The worker's stream and its unary twins, frame by frame, against a real server; what the SDK adds, at the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import grpc
import pytest

from headgate.sdk import Headgate, Job, JobDead
from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.e2e.conftest import _PROCESSES, Serve, Spawn
from tests.support.database import Server
from tests.support.server import HEADGATE, ServerProcess, clean_environ
from tests.support.waiting import until_async
from tests.support.wire import (
    Wire,
    abandon,
    completed,
    failed,
    held,
    nack,
    new_id,
    retry_after,
    served,
    snooze,
)

ALPHA, NARROW, REVOKED, SUBMIT_ONLY = (f"a-token-for-{name}-only" for name in ("alpha", "narrow", "revoked", "submits"))
TOKENS: dict[str, dict[str, object]] = {
    REVOKED: {"tenant": "alpha"},  # the first, so that revoking it moves the others up
    ALPHA: {"tenant": "alpha"},
    NARROW: {"tenant": "alpha", "topics": ["mail", "print"]},
    SUBMIT_ONLY: {"tenant": "alpha", "scopes": ["submit", "read"]},
}
APPLIED, DUPLICATE, STALE, UNKNOWN, INVALID = range(5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker-stream")


@pytest.fixture(scope="module")
def the_server(postgres: Server, template: str, folder: Path) -> Iterator[ServerProcess]:
    """One for the module: leases of 3 s, tokens from a file."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--lease", "3", "--tokens", str(tokens)) as (server, _):
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest, the_server: ServerProcess) -> Iterator[ServerProcess]:
    """It must outlive every test; its log is part of the report of one that fails."""
    request.node.stash.setdefault(_PROCESSES, []).append(the_server)
    yield the_server
    assert the_server.exit_code is None, the_server.shown()


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(server.address, token=ALPHA) as wire:
        yield wire


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"topic-{uuid4()}"


# ---------------------------------------------------------------------- hello


@pytest.mark.req("W1", "W8")
async def test_one_stream_carries_many_slots_and_a_slow_one_holds_only_itself(wire: Wire, topic: str) -> None:
    async with wire.worker() as link:
        await wire.submit_many(topic, [b"%d" % n for n in range(12)])
        await link.ready(4, topic)
        slow, *rest = await link.take(4)
        for _ in range(8):  # three slots go round, the first never answers
            done, *rest = rest
            await link.complete(done)
            await link.ready(1)
            rest += await link.take(1)
        assert await link.complete(slow, *rest) == {}


@pytest.mark.req("W2")
async def test_anything_but_hello_first_ends_the_stream(wire: Wire, topic: str) -> None:
    link = wire.link()
    await link.ready(1, topic)
    ended = await link.ended()
    assert (ended.status, ended.code) == (grpc.StatusCode.FAILED_PRECONDITION, "protocol_error")
    assert "hello" in ended.details


@pytest.mark.req("W2")
async def test_a_bad_token_is_not_let_in(wire: Wire) -> None:
    for token in ("", "a-token-nobody-knows"):
        link = wire.link()
        await link.send(worker_pb2.WorkerFrame(hello=worker_pb2.Hello(token=token, worker_id="w")))
        ended = await link.ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
        assert "token" in ended.details
        assert token not in ended.details or not token


@pytest.mark.req("W2")
async def test_a_second_hello_is_an_error_and_the_stream_lives(wire: Wire, topic: str) -> None:
    async with wire.worker("first-name") as link:
        await link.send(worker_pb2.WorkerFrame(hello=worker_pb2.Hello(token=ALPHA, worker_id="second-name")))
        error = await link.error()
        assert (error.code, "hello" in error.message) == ("protocol_error", True)
        job_id = await wire.submit(topic)
        await link.ready(1, topic)
        await link.take(1)
        assert (await wire.job(job_id)).worker == "first-name"


@pytest.mark.req("W3")
async def test_hello_fixes_worker_and_tenant_for_the_whole_stream(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker("the-name") as link:
        assert link.ack is not None
        assert (link.ack.worker_id, link.ack.tenant, link.ack.lease_seconds) == ("the-name", "alpha", 3)
        assert link.ack.beat_seconds == 1
        assert link.ack.instance
        assert link.ack.server
        await link.ready(1, topic)
        await link.take(1)
        job = await wire.job(job_id)
        assert (job.worker, job.tenant) == ("the-name", "alpha")


async def test_a_newer_stream_of_the_same_worker_replaces_the_older(wire: Wire) -> None:
    async with wire.worker("twin") as older, wire.worker("twin") as newer:
        ended = await older.ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.ABORTED, "superseded")
        assert "twin" in ended.details
        await newer.beat()


@pytest.mark.req("W4")
async def test_a_worker_gets_the_topics_it_asked_for_that_its_token_permits(server: ServerProcess, wire: Wire) -> None:
    other = await wire.submit("other")
    mail = await wire.submit("mail")
    async with Wire(server.address, token=NARROW) as narrow:
        async with narrow.worker() as link:
            await link.ready(2, "other", "mail")
            (job,) = await link.take(1)
            assert job.id == mail
            await link.complete(job)
        async with narrow.worker() as link:
            await link.ready(1, "other", "another")
            ended = await link.ended()
            assert (ended.status, ended.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
            assert "other, another" in ended.details
    assert (await wire.job(other)).state == jobs_pb2.STATE_PENDING


async def test_a_token_without_the_scope_to_work_is_told_which_it_lacks(server: ServerProcess) -> None:
    async with Wire(server.address, token=SUBMIT_ONLY) as wire:
        link = wire.link()
        await link.send(worker_pb2.WorkerFrame(hello=worker_pb2.Hello(token=SUBMIT_ONLY, worker_id="w")))
        ended = await link.ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
        assert '"work"' in ended.details
        for method, request in (
            ("Claim", worker_pb2.ClaimRequest(worker_id="w", topics=["mail"])),
            ("Heartbeat", worker_pb2.HeartbeatRequest(worker_id="w")),
            ("ReportOutcome", worker_pb2.ReportOutcomeRequest(worker_id="w")),
        ):
            assert (await wire.refused(method, request)).code == "permission_denied"


@pytest.mark.req("W5")
async def test_revoking_a_token_ends_its_streams_within_five_seconds_and_no_others(
    server: ServerProcess, wire: Wire, folder: Path, topic: str
) -> None:
    async with (
        Wire(server.address, token=REVOKED) as revoked,
        revoked.worker() as ends,
        revoked.stream_jobs("streams", topic, max_in_flight=1) as ends_too,
        revoked.producer() as producer,
        wire.worker() as stays,
    ):
        (folder / "tokens.json").write_text(json.dumps({key: TOKENS[key] for key in TOKENS if key != REVOKED}))
        for stream in (ends, ends_too):
            ended = await stream.ended(within=20)  # it looks every two seconds; the rest is for a busy machine
            assert (ended.status, ended.code) == (grpc.StatusCode.UNAUTHENTICATED, "token_revoked")
        frame = producer_pb2.ProducerFrame(seq=1, jobs=[producer_pb2.NewJob(topic=topic)])
        await producer.send(frame)
        assert (await producer.ended()).status is grpc.StatusCode.UNAUTHENTICATED
        # The others moved up in the file; that is no change of theirs.
        await wire.submit(topic)
        await stays.ready(1, topic)
        await stays.take(1)


# ---------------------------------------------------------------------- ready


@pytest.mark.req("W6")
async def test_a_ready_is_answered_with_up_to_its_count_in_one_frame(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b"%d" % n for n in range(10)])
    async with wire.worker() as link:
        await link.ready(1, topic)
        (first,) = await link.take(1)
        await link.ready(5)  # of the same topics
        several = await link.take(5)
        frames = [list(frame.jobs.ids) for frame in link.frames if frame.HasField("jobs")]
        assert frames == [ids[:1], ids[1:6]]
        await link.complete(first, *several)
        await link.ready(50)
        assert [job.id for job in await link.take(4)] == ids[6:]


@pytest.mark.req("T13", "K10")
async def test_the_jobs_of_a_frame_are_in_the_order_in_which_they_are_to_run(wire: Wire, topic: str) -> None:
    """Neither in that of their ids nor in that of the rows: both are shuffled against the priorities."""
    ids = sorted(new_id() for _ in range(60))
    shuffled = random.Random(13).sample(ids, len(ids))
    new = [producer_pb2.NewJob(id=one, topic=topic, priority=place % 7 - 3) for place, one in enumerate(shuffled)]
    for part in (new[:30], new[30:]):
        await wire.call("SubmitBatch", producer_pb2.SubmitBatchRequest(jobs=part))
    expected = [bytes(job.id) for job in sorted(new, key=lambda job: -job.priority)]  # stable: as submitted
    async with wire.worker() as link:
        for count in (1, 9, 50):
            await link.ready(count, topic)
            await link.take(count)
        frames = [list(frame.jobs.ids) for frame in link.frames if frame.HasField("jobs")]
        assert frames == [expected[:1], expected[1:10], expected[10:]]


@pytest.mark.req("W6")
async def test_a_lease_is_the_servers_or_as_long_as_asked_for_within_a_cap(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 2)
    async with wire.worker() as link:
        for seconds, expected in ((0, 3), (40, 40)):
            await link.ready(1, topic, lease_seconds=seconds)
            (job,) = await link.take(1)
            info = await wire.job(job.id)
            assert info.lease_until_us == job.lease_until_us
            assert info.lease_until_us - info.claimed_us == expected * 1_000_000
        await link.ready(1, topic, lease_seconds=24 * 3600 + 1)
        error = await link.error()
        assert (error.code, error.field) == ("invalid_input", "ready.lease_seconds")
        assert "86400" in error.message
        assert {job_id: (await wire.job(job_id)).state for job_id in ids} == dict.fromkeys(ids, jobs_pb2.STATE_RUNNING)


@pytest.mark.req("W7")
async def test_a_ready_without_work_is_never_forgotten(wire: Wire, topic: str) -> None:
    async with wire.worker() as link:
        await link.ready(2, topic)
        deadline = time.monotonic() + 3.2  # longer than the lease, many ticks, several refused claims
        while time.monotonic() < deadline:
            await link.beat()
            await asyncio.sleep(0.3)
        for n in range(2):  # one by one: what is left of the credit stays as well
            job_id = await wire.submit(topic, b"%d" % n)
            (job,) = await link.take(1)
            assert job.id == job_id


# ---------------------------------------------------------------------- outcomes


@pytest.mark.req("W9", "W14", "W15")
async def test_all_kinds_travel_in_one_frame_and_each_does_what_it_is_named_for(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 6, max_attempts=5)
    async with wire.worker() as link:
        await link.ready(6, topic)
        one, *others = await link.take(6)
        receipts = await link.report_all(
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
    async with wire.worker() as link:
        await link.ready(1, topic)
        (job,) = await link.take(1)
        receipts = await link.report(jobs_pb2.Outcome(id=job.id, epoch=job.epoch))
        assert receipts[0].code == INVALID
        assert "none of completed" in receipts[0].message
        assert (await wire.job(job_id)).state == jobs_pb2.STATE_RUNNING
        assert await link.complete(job) == {}


async def test_a_result_is_kept_as_it_is_and_can_be_waited_for(wire: Wire, topic: str) -> None:
    bodies = [b"", b"{}", bytes(range(256)), os.urandom(1_048_576)]
    ids = await wire.submit_many(topic, [b""] * len(bodies))
    waiting = [asyncio.create_task(wire.ended(job_id)) for job_id in ids]
    async with wire.worker() as link:
        await link.ready(len(bodies), topic)
        jobs = await link.take(len(bodies))
        assert await link.complete(*jobs, results=bodies) == {}
    assert [job.result for job in await asyncio.gather(*waiting)] == bodies


@pytest.mark.req("W11")
async def test_failures_and_nacks_cost_attempts_and_end_with_the_dead_letters(wire: Wire, topic: str) -> None:
    fails, nacks = await wire.submit_many(topic, [b"", b""], max_attempts=2, retry=retry_after(20))
    async with wire.worker() as link:
        await link.ready(2, topic)
        jobs = {job.id: job for job in await link.take(2)}
        receipts = await link.report(failed(jobs[fails], "first"), nack(jobs[nacks], 20, "not yet"))
        assert [receipts[place].state for place in (0, 1)] == [jobs_pb2.STATE_RETRYING] * 2
        assert (await wire.job(nacks)).events[-1].reason == "not yet"
        await link.ready(2)
        jobs = {job.id: job for job in await link.take(2)}
        assert {job.attempt for job in jobs.values()} == {2}
        receipts = await link.report(failed(jobs[fails], "second"), nack(jobs[nacks], 20, "still not"))
        assert [receipts[place].state for place in (0, 1)] == [jobs_pb2.STATE_DEAD] * 2
    dead, given_up = await wire.job(fails), await wire.job(nacks)
    assert "second" in dead.last_error
    assert [event.error_message for event in dead.events] == ["first", "second"]
    assert "still not" in given_up.last_error
    assert [event.reason for event in given_up.events] == ["not yet", "still not"]


@pytest.mark.req("W12")
async def test_nack_zero_means_at_once(wire: Wire, topic: str) -> None:
    await wire.submit(topic)
    async with wire.worker() as link:
        await link.ready(2, topic)
        (job,) = await link.take(1)
        receipts = await link.report(nack(job, 0))
        assert (receipts[0].code, receipts[0].state) == (APPLIED, jobs_pb2.STATE_PENDING)
        (again,) = await link.take(1)
        assert (again.id, again.attempt, again.epoch) == (job.id, 2, 2)


@pytest.mark.req("W12")
async def test_a_delay_the_server_cannot_take_is_refused_and_the_job_stays_leased(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker() as link:
        await link.ready(1, topic)
        (job,) = await link.take(1)
        for outcome, field in (
            (nack(job, -1), "nack.delay_ms"),
            (nack(job, -(2**63)), "nack.delay_ms"),
            (nack(job, 6 * 365 * 86_400_000), "delay"),
            (snooze(job, -1), "snooze.delay_ms"),
        ):
            (receipt,) = (await link.report(outcome)).values()
            assert (receipt.code, field in receipt.message) == (INVALID, True), receipt
            info = await wire.job(job_id)
            assert (info.state, info.epoch) == (jobs_pb2.STATE_RUNNING, 1)
        assert await link.complete(job) == {}


@pytest.mark.req("W13")
async def test_an_abandoned_job_is_back_at_its_old_place_at_no_cost(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 3, max_attempts=1)
    async with wire.worker() as link:
        await link.ready(1, topic)
        (job,) = await link.take(1)
        receipts = await link.report(abandon(job))
        assert (receipts[0].code, receipts[0].state) == (APPLIED, jobs_pb2.STATE_PENDING)
        await link.ready(3)
        again = await link.take(3)
        assert [job.id for job in again] == ids
        assert [(job.attempt, job.epoch) for job in again] == [(1, 2), (1, 1), (1, 1)]


@pytest.mark.req("W14", "W15")
async def test_every_outcome_has_a_receipt_of_its_own_and_bad_ones_spare_their_neighbours(
    wire: Wire, topic: str
) -> None:
    ids = await wire.submit_many(topic, [b""] * 5, max_attempts=9)
    async with wire.worker() as link:
        await link.ready(5, topic)
        fine, stale, repeated, large, odd = await link.take(5)
        assert await link.complete(repeated) == {}
        future = stale._replace(epoch=stale.epoch + 1)
        unsigned = stale._replace(epoch=2**32 - 1)
        receipts = await link.report_all(
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
        assert await link.complete(stale, large) == {}  # still theirs


@pytest.mark.req("W14")
async def test_receipts_come_after_commit(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 30)
    async with wire.worker() as link:
        await link.ready(30, topic)
        for job in await link.take(30):
            assert await link.complete(job) == {}
            assert (await wire.job(job.id)).state == jobs_pb2.STATE_COMPLETED
    assert len(ids) == 30


# ---------------------------------------------------------------------- leases and back-pressure


@pytest.mark.req("W16")
async def test_a_job_without_an_outcome_in_time_is_back_as_a_failed_attempt(server: ServerProcess, wire: Wire) -> None:
    topic = "lapses"
    job_id = await wire.submit(topic, retry=retry_after(1))
    async with Wire(server.address, token=ALPHA) as dying:
        async with dying.worker("dying") as link:
            await link.ready(1, topic, lease_seconds=1)
            (first,) = await link.take(1)
        # Its stream is gone, not its lease: nobody else gets the job before that is over, by the database's clock.
        async with wire.worker() as link:
            await link.ready(1, topic)
            beats = asyncio.create_task(link.beat_on())
            (second,) = await link.take(1)
            beats.cancel()
            assert (second.id, second.attempt, second.epoch) == (job_id, 2, 2)
            info = await wire.job(job_id)
            assert info.claimed_us >= first.lease_until_us
            (lapsed,) = info.events
            assert (lapsed.kind, lapsed.worker, lapsed.attempt) == ("lapsed", "dying", 1)
            assert (await link.report(completed(first)))[0].code == STALE
            assert await link.complete(second) == {}


@pytest.mark.req("W17")
async def test_beats_keep_leases_and_say_what_is_lost(wire: Wire, topic: str) -> None:
    await wire.submit(topic)
    async with wire.worker() as link:
        await link.ready(1, topic, lease_seconds=1)
        (job,) = await link.take(1)
        stranger = job._replace(id=new_id())
        await link.beat(job, stranger)
        await link.until(lambda: link.lost, "the stranger is told to be lost")
        assert link.lost == [(stranger.id, stranger.epoch)]

        async def renewed() -> bool:
            await link.beat(job)
            # Twice its first length: the lease was pushed forward again and again.
            return (await wire.job(job.id)).lease_until_us > job.lease_until_us + 1_000_000

        await until_async(renewed, "the lease was pushed forward")
        info = await wire.job(job.id)
        assert (info.state, info.epoch) == (jobs_pb2.STATE_RUNNING, 1)
        assert link.lost == [(stranger.id, stranger.epoch)]


@pytest.mark.req("W17")
async def test_a_handler_may_ask_for_a_longer_lease_of_its_own_attempt(wire: Wire, topic: str) -> None:
    await wire.submit(topic)
    async with wire.worker() as link:
        await link.ready(2, topic)
        (old,) = await link.take(1)
        await link.report(nack(old, 0))
        (job,) = await link.take(1)
        wish = worker_pb2.Extension(id=job.id, epoch=job.epoch, lease_seconds=600)
        late = worker_pb2.Extension(id=old.id, epoch=old.epoch, lease_seconds=900)  # of the attempt before: not heeded
        await link.beat(job, extensions=[wish, late])

        async def extended() -> bool:
            return (await wire.job(job.id)).lease_until_us > job.lease_until_us + 500_000_000

        await until_async(extended, "the lease is longer")
        assert (await wire.job(job.id)).lease_until_us < job.lease_until_us + 700_000_000
        assert not link.lost
        wish.lease_seconds = 90_000
        await link.send(worker_pb2.WorkerFrame(beat=worker_pb2.Beat(held=held(job), extensions=[wish])))
        error = await link.error()
        assert (error.code, error.field) == ("invalid_input", "extension.lease_seconds")
        assert await link.complete(job) == {}


@pytest.mark.req("W18")
async def test_a_worker_without_free_slots_is_sent_nothing(wire: Wire, topic: str) -> None:
    async with wire.worker() as busy, wire.worker() as other:
        await wire.submit_many(topic, [b""] * 2)
        await busy.ready(2, topic)
        await busy.take(2)
        more = await wire.submit_many(topic, [b""] * 20)
        await other.ready(20, topic)
        assert sorted(job.id for job in await other.take(20)) == sorted(more)
        await busy.beat()  # whatever was sent before has arrived by now
        assert not busy.jobs


@pytest.mark.req("W19")
async def test_four_slots_in_batches_of_eight_settle_each_job_when_it_is_done(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b"%d" % n for n in range(64)])
    async with wire.worker() as link:
        waiting, running, seen = list[bytes](), dict[bytes, object](), list[bytes]()
        await link.ready(8, topic)
        by_id = {}
        while len(seen) < 64:
            if not waiting and not running:
                batch = await link.take(8)
                waiting = [job.id for job in batch]
                by_id = {job.id: job for job in batch}
            while waiting and len(running) < 4:
                job_id = waiting.pop(0)
                running[job_id] = None
            last = list(running)[-1]  # the newest ends first: its outcome does not wait for the batch
            del running[last]
            assert await link.complete(by_id[last]) == {}
            assert (await wire.job(last)).state == jobs_pb2.STATE_COMPLETED
            seen.append(last)
            if not waiting and not running and len(seen) < 64:
                await link.ready(8)
    assert sorted(seen) == sorted(ids)


# ---------------------------------------------------------------------- jobs


@pytest.mark.req("W20")
async def test_a_worker_sees_everything_about_its_job(wire: Wire, topic: str) -> None:
    """All fields there are; trace context travels in the headers. Left of W20: webhook, schedule, deadline."""
    before = time.time_ns() // 1000
    job_id = await wire.submit(
        topic,
        b"\x00body",
        priority=-7,
        max_attempts=4,
        headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "user": "Zoë"},
    )
    plain = await wire.submit(topic)
    async with wire.worker() as link:
        assert link.ack is not None
        assert link.ack.tenant == "alpha"
        await link.ready(2, topic)
        other, job = await link.take(2)  # the priority is below the default
        assert other.id == plain
        assert (other.priority, other.max_attempts, other.headers) == (0, 20, {})
        assert (job.id, job.epoch, job.topic, job.payload) == (job_id, 1, topic, b"\x00body")
        assert (job.attempt, job.max_attempts, job.priority) == (1, 4, -7)
        assert job.headers == {
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "user": "Zoë",
        }
        assert job.created_us == pytest.approx(before, abs=5_000_000)
        assert job.lease_until_us > job.created_us


@pytest.mark.req("W21")
async def test_a_payload_is_any_bytes_from_none_to_a_mebibyte(wire: Wire, topic: str) -> None:
    bodies = [b"", b"\0", b"\xff\xfe\x00", bytes(range(256)), os.urandom(1_024), os.urandom(1_025), os.urandom(1 << 20)]
    await wire.submit_many(topic, bodies)
    async with wire.worker() as link:
        await link.ready(len(bodies), topic)
        assert [job.payload for job in await link.take(len(bodies))] == bodies
    request = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=topic, payload=bytes((1 << 20) + 1)))
    refused = await wire.refused("Submit", request)
    assert (refused.status, refused.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large")
    assert "1048577" in refused.details
    assert "1048576" in refused.details


@pytest.mark.req("W21")
async def test_many_large_payloads_come_in_frames_that_any_client_takes(wire: Wire, topic: str) -> None:
    """4 MiB is what a gRPC client takes unless told otherwise."""
    bodies = [os.urandom(1 << 20) for _ in range(6)]
    for start in (0, 3):
        await wire.submit_many(topic, bodies[start : start + 3])
    async with wire.worker() as link:
        await link.ready(100, topic)
        jobs = await link.take(6)
        assert [job.payload for job in jobs] == bodies
        assert max(frame.ByteSize() for frame in link.frames) < 4 << 20
        await link.report(*map(abandon, jobs))
    claim = worker_pb2.ClaimRequest(worker_id="script", topics=[topic], count=10, wait_ms=2000)
    claimed: list[bytes] = []
    while len(claimed) < 6:
        answer = await wire.call("Claim", claim)
        assert answer.jobs
        assert all(job.attempt == 1 for job in answer.jobs)  # what did not fit went back at no cost
        claimed += [job.payload for job in answer.jobs]
        await wire.call("ReportOutcome", worker_pb2.ReportOutcomeRequest(outcomes=map(completed, answer.jobs)))
    assert sorted(claimed) == sorted(bodies)


# ---------------------------------------------------------------------- unary twins


@pytest.mark.req("W25")
async def test_a_script_claims_beats_and_reports_without_a_stream(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b"a", b"b", b"c"])
    claim = worker_pb2.ClaimRequest(worker_id="script", topics=[topic], count=2)
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
    assert [(one.place, one.code, one.state) for one in receipts] == [
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
    job_id = await wire.submit(topic)  # with nobody waiting any more
    claim.wait_ms = 5_000
    (job,) = (await wire.call("Claim", claim)).jobs
    assert (job.id, job.attempt, job.epoch) == (job_id, 1, 1)
    waiting = asyncio.create_task(wire.call("Claim", claim))
    later = await wire.submit(topic)
    assert [job.id for job in (await waiting).jobs] == [later]


# ---------------------------------------------------------------------- producing


@pytest.mark.req("W26")
async def test_a_producer_pipelines_frames_with_every_option_and_is_answered_by_number(wire: Wire, topic: str) -> None:
    """Trace context travels in the headers. Left of W26: the webhook, when there is one."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    ids = [new_id() for _ in range(5)]
    key = f"key-{uuid4()}"
    async with wire.producer() as producer:
        assert producer.ack is not None
        assert producer.ack.tenant == "alpha"
        specials = [
            producer_pb2.NewJob(id=ids[0], topic=topic, run_at_us=int(tomorrow.timestamp() * 1_000_000)),
            producer_pb2.NewJob(id=ids[1], topic=topic, delay_ms=3_600_000, priority=9),
            producer_pb2.NewJob(
                id=ids[2],
                topic=topic,
                payload=b"keyed",
                max_attempts=3,
                key=key,
                headers={"traceparent": "00-1-2-3"},
                tags=["a", "b"],
                retry=retry_after(50),
            ),
        ]
        plain = [producer_pb2.PlainJobs(topic=topic, ids=[job_id], payloads=[b"p"], fresh=True) for job_id in ids[3:]]
        same_key = producer_pb2.NewJob(topic=topic, payload=b"keyed", key=key)
        other_body = producer_pb2.NewJob(topic=topic, payload=b"another", key=key)
        nameless = producer_pb2.NewJob(topic=topic)
        for frame in (  # all at once, none awaited; numbered downwards
            producer_pb2.ProducerFrame(seq=9, jobs=specials),
            producer_pb2.ProducerFrame(seq=8, plain=plain[0]),
            producer_pb2.ProducerFrame(seq=7, plain=plain[1], jobs=[same_key, other_body, nameless]),
        ):
            await producer.send(frame)
        mixed = await producer.reply(7)
        assert not (await producer.reply(9)).odd
        assert not (await producer.reply(8)).odd
        odd = {receipt.place: receipt for receipt in mixed.odd}
        assert {place: receipt.code for place, receipt in odd.items()} == {
            1: producer_pb2.SUBMIT_DUPLICATE,
            2: producer_pb2.SUBMIT_CONFLICT,
            3: producer_pb2.SUBMIT_CREATED,  # told, because the server made its id
        }
        assert odd[1].id == odd[2].id == ids[2]
        assert odd[2].error.code == "conflict"
        await producer.done_writing()
        assert (await producer.ended()).status is grpc.StatusCode.OK
    later, delayed, keyed, *plains = [await wire.job(job_id) for job_id in ids]
    assert (later.state, later.run_at_us) == (jobs_pb2.STATE_SCHEDULED, int(tomorrow.timestamp() * 1_000_000))
    assert (delayed.state, delayed.priority) == (jobs_pb2.STATE_SCHEDULED, 9)
    assert delayed.run_at_us - delayed.created_us == pytest.approx(3_600_000_000, abs=1_000)
    assert (keyed.max_attempts, dict(keyed.headers)) == (3, {"traceparent": "00-1-2-3"})
    assert [(job.state, job.payload) for job in plains] == [(jobs_pb2.STATE_PENDING, b"p")] * 2
    assert (await wire.job(odd[3].id)).state == jobs_pb2.STATE_PENDING


async def test_a_bad_job_of_a_frame_is_refused_alone_and_a_bad_frame_as_a_whole(wire: Wire, topic: str) -> None:
    async with wire.producer() as producer:
        good = new_id()
        jobs = [
            producer_pb2.NewJob(id=good, topic=topic),
            producer_pb2.NewJob(topic="no topic"),
            producer_pb2.NewJob(topic=topic, run_at_us=253_402_300_000_000_000),
            producer_pb2.NewJob(topic=topic, delay_ms=-1),
            producer_pb2.NewJob(topic=topic, id=b"short"),
            producer_pb2.NewJob(topic=topic, delay_ms=1, run_at_us=1_800_000_000_000_000),
            producer_pb2.NewJob(topic=topic, max_attempts=10**9),
        ]
        await producer.send(producer_pb2.ProducerFrame(seq=1, jobs=jobs))
        reply = await producer.reply(1)
        assert {receipt.place: receipt.error.field for receipt in reply.odd} == {
            1: "topic",
            2: "run_at_us",
            3: "delay_ms",
            4: "id",
            5: "run_at_us",
            6: "max_attempts",
        }
        assert {receipt.code for receipt in reply.odd} == {producer_pb2.SUBMIT_REFUSED}
        assert (await wire.job(good)).state == jobs_pb2.STATE_PENDING
        for plain, field in (
            (producer_pb2.PlainJobs(topic=topic, ids=[new_id()]), "plain.payloads"),
            (
                producer_pb2.PlainJobs(topic=topic, ids=[new_id()], payloads=[b""], priorities=[1, 2]),
                "plain.priorities",
            ),
            (producer_pb2.PlainJobs(topic=topic, ids=[b"x"], payloads=[b""]), "plain.ids"),
            (producer_pb2.PlainJobs(topic="", ids=[new_id()], payloads=[b""]), "topic"),
            (producer_pb2.PlainJobs(topic=topic, ids=[], payloads=[b""]), "plain.ids"),
        ):
            await producer.send(producer_pb2.ProducerFrame(seq=2, plain=plain))
            error = (await producer.reply(2)).error
            assert (error.code, error.field) == ("invalid_input", field)


@pytest.mark.req("W28")
async def test_one_stream_may_ask_as_often_as_it_likes(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 500)
    async with wire.worker() as link:
        for _ in range(500):
            await link.ready(1, topic)
        jobs = await link.take(500)
        assert [job.id for job in jobs] == ids
        assert await link.complete(*jobs) == {}
        assert not link.errors


@pytest.mark.req("W29")
async def test_reading_a_job_shows_who_holds_it_since_when_and_until_when(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic, b"body", priority=3)
    waiting = await wire.job(job_id)
    assert (waiting.state, waiting.worker, waiting.claimed_us) == (jobs_pb2.STATE_PENDING, "", 0)
    assert (waiting.lease_until_us, waiting.attempt, waiting.priority) == (0, 0, 3)
    async with wire.worker("reader") as link:
        await link.ready(1, topic)
        (job,) = await link.take(1)
        running = await wire.job(job_id)
        assert (running.state, running.worker, running.epoch) == (jobs_pb2.STATE_RUNNING, "reader", 1)
        assert running.created_us <= running.claimed_us < running.lease_until_us == job.lease_until_us
        progress = jobs_pb2.Progress(done=2, total=5, message="pages")
        await link.beat(job, progress=[worker_pb2.JobProgress(id=job.id, epoch=job.epoch, progress=progress)])

        async def shown() -> bool:
            found = (await wire.job(job_id)).progress
            return (found.done, found.total, found.message) == (2, 5, "pages")

        await until_async(shown, "the progress is shown")
        await link.complete(job, results=[b"result"])
    done = await wire.job(job_id)
    assert (done.state, done.result, done.payload) == (jobs_pb2.STATE_COMPLETED, b"result", b"body")
    assert done.finished_us >= done.claimed_us
    assert (done.lease_until_us, done.tenant, done.topic) == (0, "alpha", topic)
    missing = await wire.refused("GetJob", producer_pb2.GetJobRequest(id=new_id()))
    assert (missing.status, missing.code) == (grpc.StatusCode.NOT_FOUND, "not_found")


# ---------------------------------------------------------------------- what the SDK adds


@pytest.mark.req("W19", "W22", "W28")
async def test_handlers_run_side_by_side_and_one_that_raises_fails_its_job_only(
    server: ServerProcess, topic: str
) -> None:
    hg = Headgate(server.address, token=ALPHA)
    at_once, most = Counter[str](), Counter[str]()
    everybody = asyncio.Barrier(4)

    async def handle(number: int, *, job: Job) -> int:
        at_once["now"] += 1
        most["now"] = max(most["now"], at_once["now"])
        try:
            if number == 3:
                if job.attempt >= job.max_attempts:
                    raise ZeroDivisionError("given up early")
                raise AssertionError("not the last attempt")
            if number < 33:
                await everybody.wait()  # fails unless four run at a time
            return number
        finally:
            at_once["now"] -= 1

    task = hg.register(topic, handle, max_attempts=1)
    async with asyncio.timeout(60), hg:
        worker = hg.worker(concurrency=4, prefetch=28)  # 4 slots, batches of 8 and more: the same handler
        running = asyncio.create_task(worker.run())
        handles = await task.submit_many([(number,) for number in range(33)])
        results = await asyncio.gather(*(handle.result(60) for handle in handles), return_exceptions=True)
        assert [result for number, result in enumerate(results) if number != 3] == [*range(3), *range(4, 33)]
        assert isinstance(results[3], JobDead)
        assert "given up early" in str(results[3])
        assert most["now"] == 4
        assert worker.connected
        worker.stop()
        await running
    assert worker.receipts["applied"] == 33


@pytest.mark.req("W23")
async def test_sigterm_finishes_what_ends_within_the_grace_and_gives_back_the_rest(
    server: ServerProcess, wire: Wire, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(
        "import asyncio\n"
        "from headgate import Headgate\n"
        "hg = Headgate()\n"
        "@hg.job('sleeps')\n"
        "async def sleeps(seconds: float) -> str:\n"
        "    print('started', seconds, flush=True)\n"
        "    await asyncio.sleep(seconds)\n"
        "    return 'rested'\n"
    )
    environ = {**clean_environ(), "HEADGATE_URL": server.address, "HEADGATE_TOKEN": ALPHA}
    worker = spawn("worker", HEADGATE, "worker", "app:hg", "--grace", "2.5", "--concurrency", "2", environ=environ)
    short, long = await wire.submit_many("sleeps", [b'{"seconds": 0.7}', b'{"seconds": 60}'])
    waits = await wire.submit("sleeps", b'{"seconds": 0}')
    await asyncio.to_thread(worker.saw, "^started", times=2)
    assert await asyncio.to_thread(worker.terminate) == 0
    done, given_back, untouched = [await wire.job(job_id) for job_id in (short, long, waits)]
    assert (done.state, done.result) == (jobs_pb2.STATE_COMPLETED, b'"rested"')
    assert (given_back.state, given_back.attempt) == (jobs_pb2.STATE_PENDING, 0)
    assert [event.kind for event in given_back.events] == ["abandoned"]
    assert (untouched.state, untouched.epoch) in ((jobs_pb2.STATE_PENDING, 0), (jobs_pb2.STATE_COMPLETED, 1))


@pytest.mark.req("W24")
async def test_a_worker_survives_the_restart_of_its_server_by_itself(serve: Serve, topic: str) -> None:
    first = await asyncio.to_thread(serve, "--lease", "5")
    hg = Headgate(first.address)
    started, let_go, runs = asyncio.Event(), asyncio.Event(), Counter[UUID]()

    async def handle(*, job: Job) -> str:
        runs[job.id] += 1
        if len(runs) == 3:
            started.set()
        await let_go.wait()
        return "done"

    task = hg.register(topic, handle)
    async with asyncio.timeout(60), hg:
        worker = hg.worker(concurrency=4)
        running = asyncio.create_task(worker.run())
        before = [await task.submit() for _ in range(3)]
        await asyncio.wait_for(started.wait(), 60)
        first.kill()
        let_go.set()  # they end while there is nobody to tell
        second = await asyncio.to_thread(serve, "--lease", "5", port=first.port)
        after = await task.submit()
        assert [await handle.result(60) for handle in (*before, after)] == ["done"] * 4
        assert set(runs.values()) == {1}
        worker.stop()
        await running
    assert second.exit_code is None
