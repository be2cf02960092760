"""API keys, JWTs and rate limits against a real server that gets no notifications."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from headgate import Headgate, Overloaded
from headgate.cli import main
from headgate.domain.api_keys import id_of_key
from headgate.domain.jwt_issuers import parse_issuers
from headgate.domain.rate_limits import parse_rates
from headgate.sdk.admin.keys import KeysAdmin
from headgate.store.connect import connect
from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.support.database import Server
from tests.support.howto import HOWTO, program
from tests.support.howto import printed as printed_on
from tests.support.jwts import AUDIENCE, ISSUER, claims, key_set, new_key, signed
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import Stream, Wire, served

WITHIN = 5.0
"""The promise, in seconds."""
ISSUED = new_key("one")


@dataclass(frozen=True)
class Running:
    server: ServerProcess
    dsn: str


@dataclass(frozen=True)
class Admin:
    """A client with a key of the scope admin."""

    keys: KeysAdmin
    token: str


@pytest.fixture(scope="module")
def running(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys.json").write_bytes(key_set(ISSUED))
    issuer = {"issuer": ISSUER, "audience": AUDIENCE, "algorithms": ["ES256"], "keys_file": "keys.json", "skew": "0s"}
    (folder / "issuers.json").write_text(json.dumps({"issuers": [issuer]}))
    args = ("--poll-only", "--http-port", "0", "--jwt-issuers", str(folder / "issuers.json"))
    with served(postgres, template, folder, *args, dev=False) as (server, dsn):
        yield Running(server, dsn)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; returns what it printed as JSON."""

    def run(*line: str, exit_code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*line, "-o", "json"]) == exit_code
        out, err = capsys.readouterr()
        return json.loads(out) if exit_code == 0 else err

    return run


@pytest.fixture
async def admin(running: Running, printed: Any) -> AsyncIterator[Admin]:
    """Its key was created in the database, without a token."""
    line = ("key", "create", f"admin {uuid4()}", "--scopes", "admin", "--tenant", "acme", "--database-url", running.dsn)
    made = await asyncio.to_thread(printed, *line)
    async with Headgate(running.server.address, token=made["key"]) as hg:
        yield Admin(hg.admin.keys, made["key"])


@asynccontextmanager
async def opened(running: Running, token: str) -> AsyncIterator[tuple[Wire, tuple[Stream, Stream]]]:
    """A worker session and a stream of a producer, both in use."""
    topic = f"mail-{uuid4()}"
    async with (
        Wire(running.server.address, token=token) as wire,
        wire.worker() as session,
        wire.producer() as producer,
    ):
        await session.ready(1, topic)
        await producer.send(producer_pb2.ProducerFrame(seq=1, jobs=[producer_pb2.NewJob(topic=topic)]))
        await producer.until(lambda: producer.replies.get(1), "the frame is answered")
        (job,) = await session.take(1)
        await session.complete(job)
        yield wire, (session, producer)


async def ends(streams: tuple[Stream, Stream], since: float, codes: tuple[str, str] = ("token_revoked",) * 2) -> None:
    """Both end, within the promise."""
    ended = [await stream.ended(within=4 * WITHIN) for stream in streams]
    took = time.monotonic() - since
    assert tuple(one.code for one in ended) == codes
    assert took < WITHIN


async def accepted(wire: Wire) -> bool:
    """Whether its token is valid, and permits to read."""
    return (await wire.refused("GetJob", producer_pb2.GetJobRequest(id=uuid4().bytes))).code == "not_found"


@pytest.mark.req("W5")
async def test_revoking_a_key_ends_its_streams_within_five_seconds(running: Running, admin: Admin) -> None:
    info, key = await admin.keys.create(f"worker {uuid4()}", scopes=["work", "submit", "read"], topics=["mail*"])
    async with opened(running, key) as (wire, streams):
        assert await accepted(wire)
        began = time.monotonic()
        await admin.keys.revoke(info.id, reason="test")
        await ends(streams, began)
        assert not await accepted(wire)


@pytest.mark.req("W5")
async def test_a_change_by_another_server_ends_streams_within_five_seconds_without_notifications(
    running: Running, admin: Admin
) -> None:
    """All that this server can see of it is the row."""
    info, key = await admin.keys.create(f"narrowed {uuid4()}", scopes=["work", "submit"])
    connection = await connect(running.dsn, application_name="headgate test")
    try:
        async with opened(running, key) as (_, streams):
            began = time.monotonic()
            await connection.execute("UPDATE headgate.api_keys SET scopes = '{work}' WHERE id = $1", info.id)
            await ends(streams, began, ("token_revoked", "permission_denied"))
    finally:
        await connection.close()


async def test_rotating_a_key_lets_the_old_secret_live_and_now_ends_what_it_has_open(
    running: Running, admin: Admin, printed: Any
) -> None:
    name, access = f"rotated {uuid4()}", ("--url", running.server.address, "--token", admin.token)
    made = await asyncio.to_thread(printed, "key", "create", name, "--scopes", "work,submit,read", *access)
    async with opened(running, made["key"]) as (old, streams):
        first = await asyncio.to_thread(printed, "key", "rotate", name, *access)
        assert first["old_until"] is not None
        async with Wire(running.server.address, token=first["key"]) as new:
            await until_async(lambda: accepted(new), "the new secret is known", within=timedelta(seconds=20))
            assert await accepted(old)
            began = time.monotonic()
            await asyncio.to_thread(printed, "key", "rotate", f"hg_{made['id']}", "--now", *access)
            await ends(streams, began)
            assert not await accepted(old)


@pytest.mark.req("W5")
async def test_a_stream_ends_within_five_seconds_of_the_expiry_of_its_jwt(running: Running) -> None:
    expires = int(time.time()) + 4
    async with opened(running, signed(ISSUED, claims(exp=expires))) as (wire, streams):
        assert await accepted(wire)
        await ends(streams, time.monotonic() + expires - time.time())


async def test_a_key_is_listed_with_its_rights_and_never_with_its_secret(
    running: Running, admin: Admin, printed: Any
) -> None:
    info, key = await admin.keys.create(
        f"listed {uuid4()}",
        scopes=["read"],
        topics=["orders.*"],
        rates={"read": "50/1s"},
        expires_in=timedelta(days=1),
    )
    assert info == await admin.keys.get(f"hg_{info.id}")
    assert info in await admin.keys.list()
    assert (info.scopes, info.topics, info.rates) == (("read",), ("orders.*",), {"read": "50/1s"})
    access = ("--url", running.server.address, "--token", admin.token)
    listed = await asyncio.to_thread(printed, "key", "list", *access)
    assert info.id in [one["id"] for one in listed]
    secret = key.rpartition("_")[2]
    assert secret not in json.dumps(listed)
    revoked = await asyncio.to_thread(printed, "key", "revoke", info.name, *access)
    assert revoked["state"] == "revoked"
    text = running.server.text()
    assert f"key_created key={info.id}" in text
    assert secret not in text


async def test_an_unknown_key_and_no_token_are_refused_alike_and_wrong_names_are_not_found(
    running: Running, admin: Admin, printed: Any
) -> None:
    async with Wire(running.server.address, token="hg_nobody00_" + "x" * 40) as wire:
        refused = await wire.refused("GetJob", producer_pb2.GetJobRequest(id=uuid4().bytes))
    assert (refused.code, refused.details) == ("unauthenticated", "the token is not valid")
    access = ("--url", running.server.address, "--token", admin.token)
    error = await asyncio.to_thread(printed, "key", "revoke", "no such name", *access, exit_code=3)
    assert 'no key "no such name"' in error


# ---------------------------------------------------------------------- rate limits


@pytest.mark.req("W28")
async def test_a_rate_limit_sees_one_worker_per_stream_and_not_its_claims(running: Running, admin: Admin) -> None:
    _, key = await admin.keys.create(f"one stream {uuid4()}", scopes=["work", "submit"], rates={"work": "1/1d"})
    topic = f"mail-{uuid4()}"
    async with Wire(running.server.address, token=key) as wire, wire.worker() as session:
        for _ in range(5):  # each with a request for a job, an outcome and a heartbeat
            await wire.submit(topic)
            await session.ready(1, topic)
            (job,) = await session.take(1)
            await session.beat()
            await session.complete(job)
        second = wire.session()
        ended = await second.ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited")
        await second.close()
        refused = await wire.refused("Claim", worker_pb2.ClaimRequest(worker_id="w", topics=[topic]))
        assert refused.code == "rate_limited"
        outcome = jobs_pb2.Outcome(id=job.id, epoch=job.epoch, completed=jobs_pb2.Completed())
        await wire.call("ReportOutcome", worker_pb2.ReportOutcomeRequest(outcomes=[outcome]))  # never refused


async def test_jobs_count_in_calls_and_frames_and_a_refusal_says_when_to_come_back(
    running: Running, admin: Admin
) -> None:
    _, key = await admin.keys.create(f"ten {uuid4()}", scopes=["submit"], rates={"submit": "10/1h"})
    topic = f"mail-{uuid4()}"

    def frame(seq: int, count: int) -> producer_pb2.ProducerFrame:
        return producer_pb2.ProducerFrame(seq=seq, jobs=[producer_pb2.NewJob(topic=topic) for _ in range(count)])

    async with Wire(running.server.address, token=key) as wire, wire.producer() as producer:
        for seq, count in ((1, 4), (2, 6), (3, 1)):
            await producer.send(frame(seq, count))
            await producer.until(lambda seq=seq: producer.replies.get(seq), "the frame is answered")
        assert not producer.replies[1].HasField("error")
        assert not producer.replies[2].HasField("error")
        error = producer.replies[3].error
        assert error.code == "rate_limited"
        assert 300_000 < error.retry_after_ms <= 360_000
        call = wire.channel.unary_unary("/headgate.v1.ProducerService/SubmitBatch")
        request = producer_pb2.SubmitBatchRequest(jobs=[producer_pb2.NewJob(topic=topic)] * 10)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request.SerializeToString(), metadata=wire.metadata, timeout=20)
        trailers = dict(refused.value.trailing_metadata() or ())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailers["headgate-code"] == "rate_limited"
        assert 3_300_000 < int(trailers["headgate-retry-after-ms"]) <= 3_600_000
        assert b"google.rpc.RetryInfo" in trailers["grpc-status-details-bin"]


async def test_the_sdk_waits_as_told_and_every_job_is_stored_once(running: Running, admin: Admin) -> None:
    _, key = await admin.keys.create(
        f"sdk {uuid4()}", scopes=["submit", "read"], rates={"submit": "100/1s:20", "read": "4/1s:1"}
    )
    topic = f"mail-{uuid4()}"
    async with Headgate(running.server.address, token=key) as hg:
        began, ids = time.monotonic(), set()
        for _ in range(2):  # the second hundred has to wait until the first is paid for
            ids |= {one.id for one in await asyncio.gather(*(hg.submit(topic, number) for number in range(100)))}
        assert time.monotonic() - began > 0.5
        for _ in range(3):  # calls wait, too
            assert (len(ids), (await hg.admin.jobs_matching(f"topic:{topic}").count()).total) == (200, 200)
        await hg.submit_many(topic, range(1_000))  # ten seconds pass before anything else is accepted
        with pytest.raises(Overloaded) as refused:
            await hg.submit(topic, 0, when_busy="raise")
        assert refused.value.retry_after > 0


def called(server: ServerProcess, method: str, path: str, token: str, body: Any = None) -> tuple[int, Any, Any]:
    """Status, headers and JSON of one request."""
    request = urllib.request.Request(  # noqa: S310 - of our own server
        f"{server.http_url}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            return answer.status, answer.headers, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, json.load(error)


async def test_keys_and_rate_limits_are_the_same_over_http(running: Running, admin: Admin) -> None:
    def call(method: str, path: str, token: str, body: Any = None) -> Any:
        return asyncio.to_thread(called, running.server, method, path, token, body)

    new = {"name": f"rest {uuid4()}", "scopes": ["read", "submit"], "rates": {"read": "1/1h", "submit": "2/1h"}}
    status, _, made = await call("POST", "/v1/keys", admin.token, new)
    assert (status, made["info"]["name"]) == (201, new["name"])
    path, key = f"/v1/keys/hg_{made['info']['id']}", made["key"]
    assert (await call("GET", path, admin.token))[::2] == (200, made["info"])
    assert (await call("GET", "/v1/topics", key))[0] == 200
    status, headers, problem = await call("GET", "/v1/topics", key)
    assert (status, problem["code"]) == (429, "rate_limited")
    assert 3_000 < int(headers["Retry-After"]) <= 3_600
    jobs = {"jobs": [{"topic": f"mail-{uuid4()}"}] * 2}
    assert (await call("POST", "/v1/jobs/batch", key, jobs))[0] < 300
    for refused, body in (("/v1/jobs/batch", jobs), ("/v1/jobs", jobs["jobs"][0])):
        status, headers, problem = await call("POST", refused, key, body)
        assert (status, problem["code"]) == (429, "rate_limited")
        assert 1_500 < int(headers["Retry-After"]) <= 3_600
    status, _, rotated = await call("POST", f"{path}/rotate", admin.token, {})
    assert (status, rotated["key"] != key) == (200, True)
    status, _, ended = await call("POST", f"{path}/revoke", admin.token, {"reason": "test"})
    assert (status, ended["state"]) == (200, "revoked")
    assert (await call("POST", "/v1/keys", key, new))[0] in (401, 403)


async def test_the_limits_of_a_server_count_for_each_credential_over_all_transports_together(
    serve: Callable[..., ServerProcess], topic: str
) -> None:
    server = serve("--rates", "submit=2/1h,read=2/1h,work=1/1h", "--http-port", "0")
    get = producer_pb2.GetJobRequest(id=uuid4().bytes)
    submit = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=topic))
    claim = worker_pb2.ClaimRequest(worker_id="w", topics=[topic])
    async with Wire(server.address) as wire:
        for method, request, path, body in (
            ("Submit", submit, "/v1/jobs", {"topic": topic}),
            ("GetJob", get, "/v1/topics", None),
        ):
            await wire.submit(topic) if method == "Submit" else await wire.refused(method, request)
            status, _, _ = await asyncio.to_thread(called, server, "POST" if body else "GET", path, "", body)
            assert status < 300
            assert (await wire.refused(method, request)).code == "rate_limited"
            status, _, problem = await asyncio.to_thread(called, server, "POST" if body else "GET", path, "", body)
            assert (status, problem["code"]) == (429, "rate_limited")
        async with wire.producer() as producer:
            await producer.send(producer_pb2.ProducerFrame(seq=1, jobs=[submit.job]))
            assert (await producer.reply(1)).error.code == "rate_limited"
        await wire.call("Claim", claim)
        assert (await wire.refused("Claim", claim)).code == "rate_limited"


# ---------------------------------------------------------------------- the page


async def test_the_page_on_keys_runs_as_printed(
    running: Running, admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_URL", running.server.address)
    monkeypatch.setenv("HEADGATE_TOKEN", admin.token)
    page = (HOWTO / "keys.md").read_text()
    await asyncio.to_thread(exec, program("keys.md"), {"__name__": "keys"})
    assert capsys.readouterr().out == printed_on("keys.md", "python keys.py")
    commands = re.findall(r"^\$ headgate (key .*)$", page, flags=re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        line = shlex.split(command.replace("$HEADGATE_DATABASE_URL", running.dsn))
        assert await asyncio.to_thread(main, line) == 0, command
        out = capsys.readouterr().out
        if line[2:3] == ["ops"]:
            shown = printed_on("keys.md", f"headgate {command}")
            assert out.splitlines()[1:] == shown.splitlines()[1:]
            assert id_of_key(out.splitlines()[0]) is not None is not id_of_key(shown.splitlines()[0])
    (issuers,) = re.findall(r"^```json\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert parse_issuers(issuers, source="issuers.json")[0].algorithms == ("RS256",)
    for rates in re.findall(r"--rates (\S+)", page):
        assert parse_rates(rates, field="--rates") is not None
