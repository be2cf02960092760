"""Tokens that are narrowed or removed while their holders are connected: a real server that reads its file again."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest

from headgate import Forbidden, Headgate, HeadgateError, Job, Unauthenticated
from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import Ended, Stream, Wire, held, new_id, served

ALL = "a-token-for-all-of-it"
ENDED = 20
"""Seconds for a busy machine. That it takes two looks, one a second, is shown in tests/unit/test_revocation.py."""


class Tokens:
    """The server's file of tokens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, dict[str, Any]] = {}
        self.set(ALL)

    def set(self, token: str, *, as_digest: bool = False, **entry: Any) -> None:
        self._forget(token)
        self._entries[hashed(token) if as_digest else token] = {"tenant": "alpha", **entry}
        self._write()

    def remove(self, token: str) -> None:
        self._forget(token)
        self._write()

    def expire(self, token: str) -> None:
        """In a moment."""
        soon = datetime.now(UTC) + timedelta(seconds=1)
        self.set(token, **{**self._entries[token], "expires": soon.isoformat()})

    def remove_file(self) -> None:
        self._path.unlink()

    def restore(self) -> None:
        self._write()

    def damage(self) -> None:
        self._path.write_text("{")

    def _forget(self, token: str) -> None:
        for name in (token, hashed(token)):
            self._entries.pop(name, None)

    def _write(self) -> None:
        """In one step: a server may look at any moment."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._entries))
        new.chmod(0o600)
        new.replace(self._path)


def hashed(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture(scope="module")
def the_server(
    postgres: Server, template: str, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder, path = tmp_path_factory.mktemp("token-changes"), str(tokens._path)
    with served(postgres, template, folder, "--lease", "10", "--tokens", path, dev=False) as (server, _):
        yield server


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    """All topics, all the time."""
    async with Wire(server.address, token=ALL) as wire:
        yield wire


@pytest.fixture
async def mine(server: ServerProcess, tokens: Tokens) -> AsyncIterator[Wire]:
    """A token of the test's own, known to the server, without limits."""
    async with Wire(server.address, token=f"a-token-{uuid4()}") as mine:
        await known(mine, tokens)
        yield mine


async def known(mine: Wire, tokens: Tokens, *, as_digest: bool = False, **entry: Any) -> None:
    """Give it these rights, and wait until the server has read them."""
    probe = f"a-token-{uuid4()}"
    tokens.set(mine.token, as_digest=as_digest, **entry)
    tokens.set(probe)
    request = producer_pb2.GetJobRequest(id=uuid4().bytes)
    asking = copy(mine)
    asking.token = probe

    async def is_known() -> bool:
        return (await asking.refused("GetJob", request)).code != "unauthenticated"

    await until_async(is_known, "the server knows the new token", within=timedelta(seconds=ENDED))


def claim(*topics: str, wait_ms: int = 1) -> worker_pb2.ClaimRequest:
    return worker_pb2.ClaimRequest(worker_id=f"claims-{uuid4()}", topics=topics, wait_ms=wait_ms)


async def claims(mine: Wire, topic: str) -> asyncio.Task[Ended]:
    """A call that waits for jobs of a topic that has none, and has reached the server."""
    await mine.call("Claim", claim(topic))
    claiming = asyncio.create_task(mine.refused("Claim", claim(topic, wait_ms=ENDED * 1000)))
    await asyncio.sleep(0)
    await mine.call("Claim", claim(topic))  # after it on the same connection
    return claiming


async def revoked(stream: Stream, words: str) -> None:
    ended = await stream.ended(within=ENDED)
    assert (ended.status, ended.code) == (grpc.StatusCode.UNAUTHENTICATED, "token_revoked")
    assert words in ended.details


async def reply_to(producer: Any, topic: str, seq: int) -> producer_pb2.ProducerReply:
    await producer.send(producer_pb2.ProducerFrame(seq=seq, jobs=[producer_pb2.NewJob(topic=topic)]))
    return await producer.until(lambda: producer.replies.get(seq), f"frame {seq} was answered")  # type: ignore[no-any-return]


async def test_a_token_that_loses_a_topic_gets_no_more_of_it_and_continues_with_the_others(
    server: ServerProcess, wire: Wire, mine: Wire, tokens: Tokens
) -> None:
    kept, lost, never = (f"{word}-{uuid4()}" for word in ("kept", "lost", "never"))
    await known(mine, tokens, topics=[kept, lost])
    job_of_lost = await wire.submit(lost, b"held")
    worker_id = f"worker-{uuid4()}"
    async with (
        mine.worker(worker_id) as ends,
        mine.stream_jobs(f"streams-{uuid4()}", kept, max_in_flight=1) as ends_too,
        wire.worker() as stays,
    ):
        await ends.ready(1, never, lost)
        (job,) = await ends.take(1)
        assert job.id == job_of_lost
        claiming = await claims(mine, kept)
        await known(mine, tokens, topics=[kept])
        await revoked(ends, "has changed")
        await revoked(ends_too, "has changed")
        assert (await asyncio.wait_for(claiming, ENDED)).code == "token_revoked"
        # Nothing of that topic from here on, in no way; the other continues.
        assert (await mine.refused("Claim", claim(lost))).code == "permission_denied"
        ways: list[dict[str, Any]] = [{}, {"id": new_id()}, {"id": new_id(), "new_id": True}, {"priority": 1}]
        for way in ways:
            new = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=lost, payload=b"x", **way))
            assert (await mine.refused("Submit", new)).code == "permission_denied"
        assert (await mine.refused("GetJob", producer_pb2.GetJobRequest(id=job.id))).code == "not_found"
        more, other = await wire.submit(lost), await wire.submit(kept)
        async with mine.worker(worker_id, held=held(job), resumed=True) as again:
            await again.ready(5, lost, kept)
            (given,) = await again.take(1)
            assert (given.id, given.topic) == (other, kept)
            # Also what it was given while it was permitted to: it can neither keep it nor say what became of it.
            assert again.ack is not None
            assert list(again.ack.lost.ids) == [job.id]
            receipts = await again.complete(given, job)
            assert {place: one.code for place, one in receipts.items()} == {1: jobs_pb2.RECEIPT_UNKNOWN}
            await again.beat()
            assert not again.jobs
        async with mine.worker() as refused:
            await refused.ready(1, lost)
            assert (await refused.ended()).code == "permission_denied"
        await stays.ready(1, lost)
        (theirs,) = await stays.take(1)
        assert theirs.id == more
        await stays.complete(theirs)


async def test_a_restricted_token_is_enough_for_an_sdk_producer_and_worker(
    server: ServerProcess, wire: Wire, mine: Wire, tokens: Tokens
) -> None:
    mail, pay = f"mail-{uuid4()}", f"pay-{uuid4()}"
    await known(mine, tokens, topics=[mail], scopes=["submit", "work", "read"])
    theirs = await wire.submit(pay, b"of another topic")
    async with Headgate(server.address, token=mine.token) as hg:

        @hg.job(mail)
        async def handle(job: Job) -> str:
            return job.payload.decode().upper()

        @hg.job(pay)
        async def never(_: Job) -> None:
            raise AssertionError(pay)

        worker = hg.worker(concurrency=2)
        working = asyncio.create_task(worker.run())
        handles = await hg.submit_many(mail, [b"a", b"b", b"c"])
        assert [await one.result(timeout=ENDED) for one in handles] == ["A", "B", "C"]
        with pytest.raises(HeadgateError, match=pay) as refused:
            await hg.submit(pay, b"x")
        assert isinstance(refused.value, Forbidden) or getattr(refused.value, "reported", "") == "permission_denied"
        worker.stop()
        await asyncio.wait_for(working, ENDED)
    (waiting,) = (await wire.call("Claim", claim(pay, wait_ms=ENDED * 1000))).jobs
    assert (waiting.id, waiting.attempt) == (theirs, 1)


async def test_who_waits_for_a_result_must_still_be_permitted_to_read_it(
    wire: Wire, mine: Wire, tokens: Tokens
) -> None:
    topic = f"topic-{uuid4()}"
    job_id = await wire.submit(topic)
    request = producer_pb2.WaitResultRequest(id=job_id, wait_ms=60_000)
    waiting = asyncio.create_task(mine.refused("WaitResult", request))
    async with wire.worker() as session:
        await session.ready(1, topic)
        (job,) = await session.take(1)
        await known(mine, tokens, topics=["other"])
        ended: Ended = await asyncio.wait_for(waiting, ENDED)
        assert ended.code == "not_found", "it ends when the right does, not when the job does"
        await session.complete(job, results=[b"secret"])


async def test_a_token_that_loses_a_scope_keeps_the_others(mine: Wire, tokens: Tokens) -> None:
    topic = f"topic-{uuid4()}"
    async with mine.worker() as ends, mine.producer() as producer:
        await ends.ready(1, topic)
        await known(mine, tokens, scopes=["submit", "read"])
        await revoked(ends, "has changed")
        assert (await mine.refused("Claim", claim(topic))).code == "permission_denied"
        reply = await reply_to(producer, topic, 1)
        assert not reply.HasField("error"), reply
        job = await mine.submit(topic)
        assert (await mine.job(job)).state == jobs_pb2.STATE_PENDING
        await known(mine, tokens, scopes=["work", "read"])
        ended = await producer.ended(within=ENDED)
        assert (ended.status, ended.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
        assert '"submit"' in ended.details
        async with mine.worker() as again:
            await again.ready(3, topic)
            assert len(await again.take(2)) == 2
            await again.beat()
            assert not again.jobs


async def test_a_producer_that_loses_a_topic_is_refused_frames_of_it_only(mine: Wire, tokens: Tokens) -> None:
    kept, lost = f"kept-{uuid4()}", f"lost-{uuid4()}"
    async with mine.producer() as producer:
        assert not (await reply_to(producer, lost, 1)).HasField("error")
        await known(mine, tokens, topics=[kept])
        refused = await reply_to(producer, lost, 2)
        assert "permission_denied" in str(refused)
        assert lost in str(refused)
        last = await reply_to(producer, kept, 3)
        assert "permission_denied" not in str(last)
        assert producer.over is None


async def test_a_removed_token_ends_and_one_in_a_damaged_file_stays(
    server: ServerProcess, mine: Wire, wire: Wire, tokens: Tokens
) -> None:
    topic = f"topic-{uuid4()}"
    async with mine.worker() as session, wire.worker() as stays:
        before = len(server.seen("tokens_unreadable"))
        tokens.damage()
        await asyncio.to_thread(server.saw, "tokens_unreadable", times=before + 2)
        await mine.submit(topic)
        await session.ready(1, topic)
        await session.complete(*await session.take(1))
        claiming = await claims(mine, topic)
        tokens.remove(mine.token)
        await revoked(session, "is not valid any more")
        assert (await asyncio.wait_for(claiming, ENDED)).code == "token_revoked"
        assert (await mine.refused("Claim", claim(topic))).code == "unauthenticated"
        await stays.beat()


@pytest.mark.parametrize("way", ["removed", "removed by its digest", "expired", "file removed"])
async def test_everything_open_ends_with_its_token_whatever_way_it_goes(
    server: ServerProcess, wire: Wire, mine: Wire, tokens: Tokens, way: str
) -> None:
    topic, other = f"topic-{uuid4()}", f"other-{uuid4()}"
    scopes = ["submit", "work", "read", "operate"]
    await known(mine, tokens, as_digest=way == "removed by its digest", scopes=scopes, name="mia")
    job_id, *_ = await wire.submit_many(other, [b""] * 50)
    async with (
        mine.worker() as session,
        mine.stream_jobs(f"streams-{uuid4()}", topic, max_in_flight=1) as jobs,
        mine.producer() as producer,
        Headgate(server.address, token=mine.token) as hg,
    ):
        await session.ready(1, topic)
        claiming = await claims(mine, topic)
        waiting = asyncio.create_task(
            mine.refused("WaitResult", producer_pb2.WaitResultRequest(id=job_id, wait_ms=60_000))
        )
        started = await hg.admin.bulk.start("reprioritise", f"topic:{other}", priority=7, per_second=1)
        gone = len(server.seen("tokens_gone"))
        try:
            match way:
                case "expired":
                    tokens.expire(mine.token)
                case "file removed":
                    tokens.remove_file()
                case _:
                    tokens.remove(mine.token)
            word = "has expired" if way == "expired" else "is not valid any more"
            for stream in (session, jobs, producer):
                await revoked(stream, word)
            for call in (claiming, waiting):
                assert (await asyncio.wait_for(call, ENDED)).code == "token_revoked"
            assert (await mine.refused("Claim", claim(topic))).code == "unauthenticated"
            assert len(server.seen("tokens_gone")) == gone + (way == "file removed")
            if way == "file removed":
                assert (await wire.refused("Claim", claim(topic))).code == "unauthenticated"
        finally:
            tokens.restore()
    async with Headgate(server.address, token=ALL) as again:
        # Known again at the next look, where the file was gone.
        async def over() -> bool:
            try:
                return (await again.admin.bulk.get(started.id)).state == "cancelled"
            except Unauthenticated:
                return False

        await until_async(over, "the operation was cancelled", within=timedelta(seconds=ENDED))
        assert (await again.admin.bulk.get(started.id)).changed < 50
        entries = [entry for entry in await again.admin.audit() if str(started.id) in entry.target]
    told = [(entry.actor, entry.verb) for entry in entries if word in entry.reason]
    assert told == [("headgate", "cancel_bulk")]
