"""Sessions and calls that report jobs they were never given: what it costs the server, and what it costs others.

A server in this process, with raw gRPC clients. What is counted are statements by connection, rows and turns.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import grpc.aio
import pytest

from headgate.dispatch.session import UNKNOWN_MOST
from headgate.dispatch.session import WorkerSession as ServerSession
from headgate.dispatch.turns import CALL_ROWS
from headgate.server import Server, ServerOptions
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.dispatch_waits import settle_down, soon
from tests.support.waiting import until_async
from tests.support.wire import Delivered, Wire, WorkerSession, completed, held, new_id

GREEDY, NEIGHBOUR, SECOND = (f"a-token-for-the-{name}" for name in ("greedy", "neighbour", "second"))
TOKENS = {GREEDY: {"tenant": "greedy"}, NEIGHBOUR: {"tenant": "neighbour"}, SECOND: {"tenant": "neighbour"}}
UNKNOWN, DUPLICATE = jobs_pb2.RECEIPT_UNKNOWN, jobs_pb2.RECEIPT_DUPLICATE
LANES = ("leases", "heartbeats", "settle", "unmatched")
TRUE_EPOCHS = True


class Watched:
    """A server, and the statements that it sends on some of its connections."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._sent: Counter[str] = Counter()

    async def watch(self) -> None:
        for lane in LANES:
            async with self.server.store.lane(lane).use() as db:
                db.add_query_logger(lambda record, lane=lane: self._sent.update([lane] * ("headgate." in record.query)))

    async def sent(self) -> dict[str, int]:
        """Statements since it was asked last, by connection."""
        await settle_down()
        sent, self._sent = dict(self._sent), Counter()
        return sent

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def session(self, worker_id: str) -> ServerSession:
        (found,) = [session for session in self.server.sessions if session.worker_id == worker_id]
        return found


@pytest.fixture
async def watched(database: str, tmp_path: Path) -> AsyncIterator[Watched]:
    thresholds = gc.get_threshold()
    tokens = tmp_path / "tokens.json"
    tokens.touch(mode=0o600)
    tokens.write_text(json.dumps(TOKENS))
    options = ServerOptions(database_url=database, port=0, tokens_file=tokens, grace=timedelta(0), name="one")
    server = Server(options)
    await server.start()
    try:
        watched = Watched(server)
        await watched.watch()
        await watched.sent()
        yield watched
    finally:
        await server.stop(drain=False)
        gc.unfreeze()
        gc.set_threshold(*thresholds)


@pytest.fixture
async def greedy(watched: Watched) -> AsyncIterator[Wire]:
    async with Wire(watched.address, token=GREEDY) as wire:
        yield wire


@pytest.fixture
async def neighbour(watched: Watched) -> AsyncIterator[Wire]:
    async with Wire(watched.address, token=NEIGHBOUR) as wire:
        yield wire


def invented(count: int) -> worker_pb2.Held:
    return worker_pb2.Held(ids=[os.urandom(16) for _ in range(count)], epochs=[1] * count)


async def given(wire: Wire, session: WorkerSession, count: int, topic: str = "mail") -> list[Delivered]:
    await wire.submit_many(topic, [b""] * count)
    await session.ready(count, topic)
    return await session.take(count)


# ---------------------------------------------------------------------- beats


async def test_ids_that_a_session_was_never_given_are_lost_and_cost_no_statement_and_no_memory(
    watched: Watched, greedy: Wire
) -> None:
    async with greedy.worker("invents") as session:
        (job,) = await given(greedy, session, 1)
        await watched.sent()
        wrong = invented(UNKNOWN_MOST // 2)
        wish = worker_pb2.Extension(id=wrong.ids[0], epoch=1, lease_seconds=86_400)
        word = worker_pb2.JobProgress(id=wrong.ids[1], epoch=1, progress=jobs_pb2.Progress(done=1))
        stale = worker_pb2.JobProgress(id=job.id, epoch=job.epoch - 1, progress=jobs_pb2.Progress(done=1))
        wrong.MergeFrom(held(job))
        await session.send(
            worker_pb2.WorkerFrame(beat=worker_pb2.Beat(held=wrong, extensions=[wish], progress=[word, stale]))
        )
        await session.until(lambda: session.beats, "the beat was answered")
        assert [one for one, _ in session.lost] == list(wrong.ids[:-1])
        await watched.server.renewer.run_once()
        await watched.server.progress.run_once()
        assert await watched.sent() == {}
        assert list(watched.session("invents").held) == [UUID(bytes=job.id)]
        assert await session.complete(job) == {}


async def test_a_session_that_reports_mostly_unknown_ids_is_ended_and_may_come_back(
    watched: Watched, greedy: Wire
) -> None:
    async with greedy.worker("invents") as session:
        (job,) = await given(greedy, session, 1)
        await watched.sent()
        await session.send(worker_pb2.WorkerFrame(beat=worker_pb2.Beat(held=invented(20_000))))
        ended = await session.ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.ABORTED, "unknown_jobs")
        assert "reported 19999 jobs that it was not given" in ended.details
        assert "declare in hello" in ended.details
        assert await watched.sent() == {}
    async with greedy.worker("invents", held=held(job), resumed=True) as session:
        assert session.ack is not None
        assert not session.ack.lost.ids
        assert await session.complete(job) == {}


async def test_ids_that_were_declared_and_are_not_its_own_are_excused_in_one_beat_only(greedy: Wire) -> None:
    """A worker may have made them up: else a hello of 100,000 would permit beats of as many, for seconds."""
    wrong = invented(UNKNOWN_MOST + 500)
    async with greedy.worker("declares", held=wrong) as session:
        assert session.ack is not None
        assert len(session.ack.lost.ids) == len(wrong.ids)
        await session.send(worker_pb2.WorkerFrame(beat=worker_pb2.Beat(held=wrong)))
        await session.until(lambda: session.beats, "the beat was answered")
        await session.send(worker_pb2.WorkerFrame(beat=worker_pb2.Beat(held=wrong)))
        assert (await session.ended()).code == "unknown_jobs"


async def test_a_few_unknown_ids_a_beat_end_a_session_in_time(greedy: Wire) -> None:
    async with greedy.worker() as session:
        jobs = await given(greedy, session, 100)
        for beats in range(1, 1 + UNKNOWN_MOST // 150):
            await session.send(_beat(held(*jobs), invented(150)))  # three in five
            await session.until(lambda beats=beats: session.beats >= beats, "the beat was answered")
        await session.send(_beat(held(*jobs), invented(150)))
        assert (await session.ended()).code == "unknown_jobs"


async def test_a_worker_may_list_what_it_has_reported_while_the_receipts_are_on_their_way(greedy: Wire) -> None:
    """A beat is made before the receipts have arrived: it names thousands of jobs that are settled by then."""
    async with greedy.worker() as session:
        jobs = await given(greedy, session, 3 * UNKNOWN_MOST)
        for _ in range(3):
            assert await session.complete(*jobs) == {}
            await session.beat(*jobs)
            await session.beat(*jobs)
            jobs = await given(greedy, session, 2 * UNKNOWN_MOST)
        await session.beat(*jobs)
        assert session.over is None


async def test_what_a_worker_declares_is_asked_beside_the_renewals_and_only_what_is_its_own_is_kept(
    watched: Watched, greedy: Wire
) -> None:
    async with greedy.worker("first") as session:
        (job,) = await given(greedy, session, 1)
    await watched.sent()
    declared = invented(4_500)
    declared.MergeFrom(held(job))
    async with greedy.worker("second", held=declared) as session:
        assert session.ack is not None
        assert list(session.ack.lost.ids) == list(declared.ids[:-1])
        assert list(watched.session("second").held) == [UUID(bytes=job.id)]
        assert await watched.sent() == {"heartbeats": 3}
        await session.beat(job)
        assert await session.complete(job) == {}


# ---------------------------------------------------------------------- outcomes


async def test_outcomes_of_jobs_never_given_do_not_share_the_way_of_those_that_were(
    watched: Watched, greedy: Wire, neighbour: Wire
) -> None:
    """Their connection hangs, and what four sessions have sent waits: a neighbour's rounds go on, their own too."""
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(greedy.worker()) for _ in range(4)]
        mine = await stack.enter_async_context(neighbour.worker())
        honest = await stack.enter_async_context(greedy.worker())
        async with watched.server.store.lane("unmatched").use():
            await watched.sent()
            for seq in range(1_001, 1_021):
                for session in sessions:
                    wrong = invented(2_000)
                    outcomes = worker_pb2.Outcomes(seq=seq, ids=wrong.ids, epochs=wrong.epochs)
                    await session.send(worker_pb2.WorkerFrame(outcomes=outcomes))
            for wire, session in ((neighbour, mine), (greedy, honest)):
                for _ in range(5):
                    (job,) = await given(wire, session, 1)
                    assert await session.complete(job) == {}
            errors = [await session.error() for session in sessions]
            assert {error.code for error in errors} == {"overloaded"}
            assert all(error.retry_after_ms for error in errors)
            waiting = watched.server.unmatched_outcomes.writer.waiting_rows
            assert waiting <= 10_000  # half of that queue, whatever the number of sessions
            assert (await watched.sent()).get("unmatched") is None


async def test_a_session_that_sends_outcomes_of_unknown_jobs_has_its_receipts_and_is_ended(
    watched: Watched, greedy: Wire
) -> None:
    async with greedy.worker() as session:
        (job,) = await given(greedy, session, 1)
        await watched.sent()
        wrong = invented(UNKNOWN_MOST - 1)
        frame = worker_pb2.Outcomes(ids=[*wrong.ids, job.id], epochs=[*wrong.epochs, job.epoch])
        receipts = await session.report_all(frame)
        assert {receipt.code for receipt in receipts.values()} == {UNKNOWN}
        assert len(receipts) == len(wrong.ids)  # its own job's outcome, in the same frame, is applied
        assert (await greedy.job(job.id)).state == jobs_pb2.STATE_COMPLETED
        assert await watched.sent() == {"settle": 1, "unmatched": 1}
        again = await session.report(completed(job), *(completed(job._replace(id=new_id())) for _ in range(3)))
        assert {place: receipt.code for place, receipt in again.items()} == {
            0: DUPLICATE,
            1: UNKNOWN,
            2: UNKNOWN,
            3: UNKNOWN,
        }
        assert (await session.ended()).code == "unknown_jobs"


async def test_what_was_written_before_a_reconnect_is_a_duplicate_and_not_held_against_the_worker(
    greedy: Wire,
) -> None:
    async with greedy.worker("comes-back", incarnation=7) as session:
        jobs = await given(greedy, session, 2 * UNKNOWN_MOST)
        assert await session.complete(*jobs) == {}  # and let the receipts be lost
    async with greedy.worker("comes-back", held=held(*jobs), resumed=True, incarnation=7) as session:
        assert session.ack is not None
        assert len(session.ack.lost.ids) == len(jobs)
        receipts = await session.complete(*jobs)
        assert Counter(receipt.code for receipt in receipts.values()) == {DUPLICATE: len(jobs)}
        await session.beat(*jobs)
        assert session.over is None


async def test_calls_report_by_the_way_of_streams_only_what_a_stream_here_was_given(
    watched: Watched, neighbour: Wire
) -> None:
    async with neighbour.stream_jobs("plain", "mail", max_in_flight=2) as stream:
        await neighbour.submit_many("mail", [b"", b""])
        first, second = await stream.take(2)
        await watched.sent()
        report = worker_pb2.ReportOutcomeRequest(worker_id="plain", outcomes=[completed(first)])
        assert (await neighbour.call("ReportOutcome", report)).receipts[0].code == jobs_pb2.RECEIPT_APPLIED
        assert await watched.sent() == {"settle": 1}
        report = worker_pb2.ReportOutcomeRequest(outcomes=[completed(second), completed(first)])
        receipts = (await neighbour.call("ReportOutcome", report)).receipts
        assert [one.code for one in receipts] == [jobs_pb2.RECEIPT_APPLIED, DUPLICATE]
        assert await watched.sent() == {"unmatched": 1}
        assert not watched.session("plain").held  # the stream's place is free again


# ---------------------------------------------------------------------- heartbeats by call


async def test_a_flood_of_heartbeats_is_refused_with_a_hint_and_renewals_do_not_wait_for_it(
    watched: Watched, greedy: Wire, neighbour: Wire
) -> None:
    """The connection of such calls hangs, and hundreds wait for it: a neighbour's lease is renewed anyway."""
    async with neighbour.worker("beats") as session:
        (job,) = await given(neighbour, session, 1)
        beating = watched.session("beats")
        key = UUID(bytes=job.id)
        epoch, lease_ms, _, _ = beating.held[key]
        request = worker_pb2.HeartbeatRequest(worker_id="flood", held=invented(2_000))
        turns, renewer = watched.server.renewer.calls.turns, watched.server.renewer
        admitted = 50_000 // (2_000 + CALL_ROWS)
        order = _order_of_renewals(watched)
        async with watched.server.store.lane("heartbeats").use():
            flood = [asyncio.create_task(_fate(greedy, request)) for _ in range(300)]
            await soon(lambda: turns.refused == 300 - admitted, "all others are refused")
            await soon(lambda: sum(task.done() for task in flood) == turns.refused, "they are told")
            renewed = renewer.renewed
            beating.renew_later(key, epoch, lease_ms, 0.0)  # due
            await soon(lambda: renewer.renewed > renewed, "it is renewed")
            mine = asyncio.create_task(
                neighbour.call("Heartbeat", worker_pb2.HeartbeatRequest(worker_id="beats", held=held(job)))
            )
            await soon(lambda: len(turns._waiting) == 2, "its own call waits")
        assert not (await mine).lost.ids
        assert Counter(await asyncio.gather(*flood)) == {"overloaded": 300 - admitted, "lost 2000": admitted}
        # Behind the call that was being served and one more of the other tenant, not behind all that had come before.
        assert order.index(beating.tenant_no) <= 2


async def test_a_call_names_no_more_than_its_limit(neighbour: Wire) -> None:
    refused = await neighbour.refused("Heartbeat", worker_pb2.HeartbeatRequest(held=invented(2_001)))
    assert refused.code == "too_large"
    assert "2001 jobs is over the limit of 2000" in refused.details


@pytest.mark.parametrize("within_its_limits", [False, True])
async def test_nothing_of_a_refused_request_waits_for_the_collector(
    watched: Watched, neighbour: Wire, within_its_limits: bool
) -> None:
    """Or a thousand refused calls, each with thousands of ids, are in memory until it comes."""
    async with Wire(watched.address, token=SECOND) as second, neighbour.worker("taken"):
        gc.collect()
        gc.disable()
        try:
            count = 2_000 if within_its_limits else 2_001
            seconds = 0 if not within_its_limits else 90_000  # a lease that is too long
            request = worker_pb2.HeartbeatRequest(worker_id="taken", held=invented(count), lease_seconds=seconds)
            assert (await neighbour.refused("Heartbeat", request)).code in ("too_large", "invalid_input")
            session = second.session()
            await session.send(worker_pb2.WorkerFrame(hello=worker_pb2.Hello(worker_id="taken", held=invented(2_000))))
            assert (await session.ended()).code == "worker_id_taken"
            await settle_down()
            kinds = (worker_pb2.HeartbeatRequest, worker_pb2.WorkerFrame)
            left = [one for one in gc.get_objects() if isinstance(one, kinds) and one is not request]
            assert not left
        finally:
            gc.enable()


async def test_a_heartbeat_of_another_credential_does_not_keep_a_worker_alive(
    watched: Watched, neighbour: Wire
) -> None:
    async with Wire(watched.address, token=SECOND) as second, neighbour.worker("named") as session:
        await session.send(_beat())
        await session.until(lambda: session.beats, "the beat was answered")  # all that it has sent was received
        named = watched.session("named")
        before = named.last_seen
        await second.call("Heartbeat", worker_pb2.HeartbeatRequest(worker_id="named"))
        assert named.last_seen == before
        await neighbour.call("Heartbeat", worker_pb2.HeartbeatRequest(worker_id="named"))
        assert named.last_seen > before


async def test_progress_by_call_is_noted_for_what_the_call_holds(watched: Watched, neighbour: Wire) -> None:
    await neighbour.submit("mail")
    claim = worker_pb2.ClaimRequest(worker_id="script", topics=["mail"], wait_ms=30_000)
    (job,) = (await neighbour.call("Claim", claim)).jobs
    words = [_word(job.id, job.epoch, 3), _word(os.urandom(16), 1, 4)]
    request = worker_pb2.HeartbeatRequest(worker_id="script", held=held(job), progress=words)
    request.held.MergeFrom(worker_pb2.Held(ids=[words[1].id], epochs=[1]))
    assert list((await neighbour.call("Heartbeat", request)).lost.ids) == [words[1].id]

    async def noted() -> bool:
        return bool((await neighbour.job(job.id)).progress.done == 3)

    await until_async(noted, "the progress is noted")


def _beat(*listed: worker_pb2.Held) -> worker_pb2.WorkerFrame:
    beat = worker_pb2.Beat()
    for one in listed:
        beat.held.MergeFrom(one)
    return worker_pb2.WorkerFrame(beat=beat)


def _word(job_id: bytes, epoch: int, done: int) -> worker_pb2.JobProgress:
    return worker_pb2.JobProgress(id=job_id, epoch=epoch, progress=jobs_pb2.Progress(done=done))


def _order_of_renewals(watched: Watched) -> list[int]:
    """The tenants of the renewals for calls, in the order in which they are sent to the database from now on."""
    store, order = watched.server.store, list[int]()
    renew = store.renew

    async def noted(asked: Any, *, for_call: bool = False, declared: bool = False) -> Any:
        if for_call:
            order.extend(tenant_no for tenant_no, _ in asked)
        return await renew(asked, for_call=for_call, declared=declared)

    store.renew = noted  # type: ignore[assignment, method-assign]
    return order


async def _fate(wire: Wire, request: Any) -> str:
    try:
        answer = await wire.call("Heartbeat", request)
    except grpc.aio.AioRpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        assert int(str(trailers["headgate-retry-after-ms"])) > 0
        return str(trailers["headgate-code"])
    return f"lost {len(answer.lost.ids)}"
