"""The operator's calls over real sockets: SDK and command line against `headgate serve`, restarts, refusals, docs."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import grpc
import pytest

from headgate import Forbidden, Headgate, JobCancelled, NotFound, Refused, RetryPolicy, SubmitRefused
from headgate.cli import main
from headgate.domain.retention import Removed
from headgate.sdk.admin.retention import RetentionAdmin
from headgate.store.connect import connect
from headgate.wire import admin_pb2 as pb
from headgate.wire import worker_pb2
from tests.e2e.conftest import Serve, Spawn
from tests.support.database import Server
from tests.support.server import HEADGATE, READY, ServerProcess, clean_environ
from tests.support.waiting import until_async
from tests.support.wire import Wire, completed, failed, served

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/operate.md").read_text()
ADMIN, OPERATES, READS, MAILS, SYSTEM = (
    f"a-token-that-{word}-only" for word in ("admins", "operates", "reads", "mails", "is-of-the-system")
)
ALL = ["submit", "work", "read", "operate"]
TOKENS: dict[str, dict[str, object]] = {
    ADMIN: {"tenant": "alpha", "scopes": [*ALL, "admin"], "name": "ada"},
    OPERATES: {"tenant": "alpha", "scopes": ALL, "name": "otto"},
    READS: {"tenant": "alpha", "scopes": ["read"], "name": "rita"},
    SYSTEM: {"scopes": ["system"], "name": "sys"},
    MAILS: {"tenant": "alpha", "scopes": ALL, "topics": ["mail"], "name": "mia"},
}
SCOPES: dict[str, dict[str, Any]] = {
    "everything": {"everything": True},
    "tenant": {"tenant": True},
    "topic": {"topic": "restarted"},
}


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    folder = tmp_path_factory.mktemp("operator")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens)) as both:
        yield both


@pytest.fixture
async def hg(server: ServerProcess) -> AsyncIterator[Headgate]:
    async with Headgate(server.address, token=OPERATES) as client:
        yield client


# ---------------------------------------------------------------------- from Python


@pytest.mark.req("Z2", "Z3", "Z16", "Z23")
async def test_a_paused_topic_keeps_its_worker_connected_and_a_resume_feeds_it_at_once(
    server: ServerProcess, hg: Headgate, topic: str
) -> None:
    async with Wire(server.address, token=OPERATES) as wire, wire.worker() as session:
        await session.ready(5, topic)
        job = await wire.submit(topic, b"1")
        await session.complete(*await session.take(1))
        paused = await hg.admin.pause(topic=topic, reason="full")
        assert (paused.target, paused.paused, paused.reason, paused.who) == (f"topic {topic}", True, "full", "otto")
        job = await wire.submit(topic, b"2")
        await session.beat()
        assert not session.jobs
        assert session.over is None
        assert (await hg.get(UUID(bytes=job))).state == "pending"
        status = await hg.admin.status()
        (found,) = [one for one in status.topics if one.topic == topic]
        assert (found.paused, found.counts["pending"]) == (True, 1)
        assert found.waiting_since is not None
        assert any(one.target == f"topic {topic}" and one.reason == "full" for one in status.paused)
        waits = []
        for _ in range(5):
            began = asyncio.get_running_loop().time()
            assert await hg.admin.resume(topic=topic)
            assert [one.id for one in await session.take(1)] == [job]
            waits.append(asyncio.get_running_loop().time() - began)
            await hg.admin.pause(topic=topic)
            job = await wire.submit(topic, b"3")
            await session.ready(1, topic)
        # By the tick alone, each would wait for the next one, a second after that which fed the last.
        assert median(waits) < 0.5, waits
        assert await hg.admin.resume(topic=topic)
        assert not await hg.admin.resume(topic=topic)


async def test_a_pause_with_an_end_is_over_by_itself(hg: Headgate, topic: str) -> None:
    await hg.submit(topic, b"x")
    until = datetime.now(UTC) + timedelta(seconds=5)  # over when the pause arrives, it would be refused
    assert (await hg.admin.pause(topic=topic, until=until)).until == until

    async def over() -> bool:
        return not (await hg.admin.status()).paused

    await until_async(over, "it has ended")
    with pytest.raises(SubmitRefused, match="until: is over already"):
        await hg.admin.pause(topic=topic, until=until)


@pytest.mark.req("O24")
async def test_a_handle_cancels_its_job(server: ServerProcess, hg: Headgate, topic: str) -> None:
    queued = await hg.submit(topic, b"x")
    assert await queued.cancel(reason="typo")
    with pytest.raises(JobCancelled):
        await queued.result(60)
    with pytest.raises(Refused, match="cancelled"):
        await queued.cancel()
    blocking = await asyncio.to_thread(hg.sync.submit_to, topic, b"x")
    assert await asyncio.to_thread(blocking.cancel, reason="typo")
    async with Wire(server.address, token=OPERATES) as wire, wire.worker() as session:
        await session.ready(1, topic)
        running = await hg.submit(topic, b"x")
        (job,) = await session.take(1)
        assert await running.cancel()
        await session.until(lambda: session.cancels == [(job.id, job.epoch)], "the worker is asked to stop")
        await session.report(completed(job))
        assert (await running.info()).finished


@pytest.mark.req("O25")
async def test_a_job_is_shown_with_attempts_times_errors_result_and_history(
    server: ServerProcess, hg: Headgate, topic: str
) -> None:
    """The lists are the filter's affair; this is the one job in full."""
    async with Wire(server.address, token=OPERATES) as wire, wire.worker("mailer") as session:
        await session.ready(2, topic)
        handle = await hg.submit(topic, b"body", retry=RetryPolicy.fixed(timedelta(milliseconds=10)))
        (first,) = await session.take(1)
        await session.report(failed(first, "no luck"))
        (second,) = await session.take(1)
        running = await hg.get(handle.id, payload=True)
        assert (running.state, running.attempt, running.worker) == ("running", 2, "mailer")
        assert (running.payload, running.last_error) == (b"body", "Oops: no luck")
        assert running.claimed_at is not None
        assert running.lease_until is not None
        await session.report(completed(second, b"7"))
        assert await handle.result(60) == 7
        done = await hg.get(handle.id, result=True)
        assert (done.state, done.attempt, done.raw_result, done.result(type=int)) == ("completed", 2, b"7", 7)
        assert done.finished_at is not None
        assert done.created_at <= running.claimed_at <= done.finished_at
        (event,) = await hg.admin.jobs.events(handle.id)
        assert (event.kind, event.state, event.attempt, event.worker) == ("failed", "retrying", 1, "mailer")
        assert (event.error_type, event.error_message) == ("Oops", "no luck")


async def test_every_verb_is_in_the_jobs_history_in_order_with_its_reason(hg: Headgate, topic: str) -> None:
    job = await hg.submit(topic, {"n": 1}, delay=3600)
    await hg.admin.jobs.reprioritise(job.id, "high", reason="one")
    await hg.admin.jobs.move(job.id, f"{topic}.b", reason="two")
    await hg.admin.jobs.cancel(job.id, reason="three")
    (change,) = await hg.admin.jobs.redrive(job.id, payload={"n": 2}, delay=60, reason="four")
    assert (change.changed, change.state) == (True, "scheduled")
    info = await hg.get(job.id, payload=True)
    assert (info.topic, info.priority, json.loads(info.payload)) == (f"{topic}.b", 10, {"n": 2})
    history = await hg.admin.jobs.events(job.id)
    assert [(one.kind, one.actor, one.reason) for one in history] == [
        ("reprioritised", "otto", "one"),
        ("moved", "otto", "two"),
        ("cancelled", "otto", "three"),
        ("redriven", "otto", "four"),
    ]
    assert history == sorted(history, key=lambda one: one.at)
    (missing,) = await hg.admin.jobs.cancel("01890000-0000-7000-8000-000000000000")
    assert (missing.changed, missing.state, missing.code) == (False, "", "not_found")
    with pytest.raises(NotFound):
        missing.raise_for_error()


async def test_a_real_worker_can_be_seen_and_made_quiet(server: ServerProcess, hg: Headgate, topic: str) -> None:
    async with Wire(server.address, token=OPERATES) as wire, wire.worker("mailer-7") as session:
        await session.ready(2, topic)

        async def seen() -> bool:
            return any(one.worker == "mailer-7" and one.credit == 2 for one in await hg.admin.workers.list())

        await until_async(seen, "it is listed")
        await hg.admin.workers.quiet("mailer-7", reason="leaks", duration=60)
        await wire.submit(topic, b"x")
        await session.beat()
        assert not session.jobs
        (found,) = [one for one in await hg.admin.workers.list() if one.worker == "mailer-7"]
        assert (found.quiet, found.topics, found.credit) == (True, (topic,), 2)
        assert await hg.admin.workers.resume("mailer-7")
        assert len(await session.take(1)) == 1


async def test_a_stop_reaches_the_stream_of_a_worker_and_no_stream_that_comes_later(
    server: ServerProcess, hg: Headgate, topic: str
) -> None:
    async with Wire(server.address, token=OPERATES) as wire:
        async with wire.worker("mailer-8", incarnation=8) as session:
            await session.ready(2, topic)
            with pytest.raises(NotFound, match="mailer-9"):
                await hg.admin.workers.stop("mailer-9")
            assert (await hg.admin.workers.stop("mailer-8", reason="leaks")).sessions == 1
            await session.until(lambda: any(one.HasField("stop") for one in session.frames), "it is asked to stop")
            (stop,) = (one.stop for one in session.frames if one.HasField("stop"))
            assert (stop.by, stop.reason) == ("otto", "leaks")
            (found,) = [one for one in await hg.admin.workers.list() if one.worker == "mailer-8"]
            assert found.stop is not None
            assert (found.state, found.stop.by, found.stop.reason) == ("stopping", "otto", "leaks")
            await wire.submit(topic, b"x")
            await session.beat()
            assert not session.jobs, "also a worker that ignores it gets no more jobs"
        async with wire.worker("mailer-8", incarnation=9) as session:
            await session.ready(1, topic)
            assert len(await session.take(1)) == 1
            assert not any(one.HasField("stop") for one in session.frames)
        async with wire.worker("mailer-8", incarnation=8, connected_ms=600_000) as session:
            await session.until(lambda: any(one.HasField("stop") for one in session.frames), "it is asked again")


async def test_a_worker_by_single_calls_or_a_plain_stream_is_refused(
    server: ServerProcess, hg: Headgate, topic: str
) -> None:
    async with Wire(server.address, token=OPERATES) as wire:
        await wire.call("Claim", worker_pb2.ClaimRequest(worker_id="caller-1", topics=[topic]))
        with pytest.raises(Refused, match="send SIGTERM to its process, or make it quiet"):
            await hg.admin.workers.stop("caller-1")
        async with wire.stream_jobs("plain-1", topic, max_in_flight=1):

            async def seen() -> bool:
                return any(one.worker == "plain-1" for one in await hg.admin.workers.list())

            await until_async(seen, "it is listed")
            with pytest.raises(Refused, match="has no stream on which it can be asked"):
                await hg.admin.workers.stop("plain-1")


async def test_what_a_token_does_not_permit_is_refused_by_name(server: ServerProcess, hg: Headgate, topic: str) -> None:
    other = await hg.submit(topic, b"x")
    await hg.submit("mail", b"x", delay=3600)
    with pytest.raises(Forbidden, match='"system"'):
        await hg.admin.pause(everything=True)
    async with Headgate(server.address, token=ADMIN) as admin:  # of one tenant
        with pytest.raises(Forbidden, match='"system"'):
            await admin.admin.pause(everything=True)
    async with Headgate(server.address, token=READS) as reader:
        assert (await reader.admin.status()).topics
        assert await reader.admin.workers.list() is not None
        with pytest.raises(Forbidden, match='"operate"'):
            await reader.admin.pause(topic=topic)
    async with Headgate(server.address, token=MAILS) as limited:
        assert [one.topic for one in (await limited.admin.status()).topics] == ["mail"]
        with pytest.raises(Forbidden, match=topic):
            await limited.admin.pause(topic=topic)
        with pytest.raises(Forbidden, match="all topics"):
            await limited.admin.pause(tenant=True)
        with pytest.raises(NotFound):
            await limited.admin.jobs.events(other.id)
        with pytest.raises(NotFound):
            await limited.get(other.id)
    async with Headgate(server.address, token=SYSTEM) as admin:
        await admin.admin.pause(everything=True, reason="short")
        await admin.admin.resume(everything=True)
        newest = (await admin.admin.audit(limit=2))[::-1]
        assert [(one.verb, one.target, one.actor, one.everything) for one in newest] == [
            ("pause", "everything", "sys", True),
            ("resume", "everything", "sys", True),
        ]
    with pytest.raises(NotFound, match='no topic "mial"'):
        await hg.admin.pause(topic="mial")


async def test_a_request_without_a_target_pauses_nothing(server: ServerProcess, hg: Headgate) -> None:
    channel = grpc.aio.insecure_channel(server.address)
    pause = channel.unary_unary(
        "/headgate.v1.AdminService/Pause",
        request_serializer=pb.PauseRequest.SerializeToString,
        response_deserializer=pb.PauseResponse.FromString,
    )
    for target in (pb.Target(), pb.Target(everything=False), pb.Target(tenant=False)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pause(pb.PauseRequest(target=target), metadata=(("authorization", f"Bearer {ADMIN}"),), timeout=60)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await channel.close()
    assert (await hg.admin.status()).paused == ()


# ---------------------------------------------------------------------- restarts and boot


@pytest.mark.req("Z8", "Z14")
async def test_a_pause_of_each_target_survives_a_restart(serve: Serve) -> None:
    server = await asyncio.to_thread(serve)
    for number, (name, target) in enumerate(SCOPES.items()):
        async with Headgate(server.address) as hg:
            await hg.submit("restarted", b"x")
            await hg.admin.pause(**target, reason=name)
        server.kill()
        server = await asyncio.to_thread(serve, port=server.port)
        async with Headgate(server.address) as hg, Wire(server.address) as wire, wire.worker() as session:
            await session.ready(5, "restarted")
            await session.beat()
            assert not session.jobs, f"{name} is paused"
            status = await hg.admin.status()
            assert [(one.reason, one.paused) for one in status.paused] == [(name, True)]
            assert await hg.admin.resume(**target)
            assert len(await session.take(1)) == 1, f"the first of {number + 1}"


@pytest.mark.req("T23", "Z14")
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("DELETE FROM headgate.dispatch_control", "the row for everything is missing"),
        ("ALTER TABLE headgate.dispatch_control RENAME TO lost", "dispatch_control"),
    ],
    ids=["missing", "unreadable"],
)
async def test_a_server_that_cannot_know_what_is_paused_does_not_start(
    database: str, spawn: Spawn, harm: str, words: str
) -> None:
    rows = await connect(database, application_name="headgate test")
    await rows.execute(harm)
    await rows.close()
    environ = {**clean_environ(), "HEADGATE_DATABASE_URL": database}
    process = spawn("headgate-serve", HEADGATE, "serve", "--dev", "--port", "0", environ=environ)
    assert await asyncio.to_thread(process.wait) != 0
    assert words in process.text()
    assert not process.seen(READY), "no worker was ever accepted"


# ---------------------------------------------------------------------- the command line and the manual


def headgate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """One command in this process: starting one of its own takes most of a second."""
    code = main(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def shell(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", server.address)
    monkeypatch.setenv("HEADGATE_TOKEN", OPERATES)


@pytest.mark.usefixtures("shell")
async def test_one_worker_is_shown_with_what_it_runs(
    server: ServerProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Wire(server.address, token=OPERATES) as wire, wire.worker("mailer-8") as session:
        await session.ready(2, topic)
        await wire.submit(topic, b"x")
        assert len(await session.take(1)) == 1

        def shown() -> tuple[int, str]:
            code, out, _ = headgate(capsys, "workers", "get", "mailer-8")
            return code, out

        deadline = asyncio.get_running_loop().time() + 30
        while True:
            code, out = await asyncio.to_thread(shown)
            if code == 0 and topic in out.partition("WORKER")[2]:
                break
            assert asyncio.get_running_loop().time() < deadline, out
        for part in ("mailer-8  busy", "stream    open since", "heartbeat", "holds     1 job, accepts", topic):
            assert part in out, part
        code, out, error = await asyncio.to_thread(headgate, capsys, "workers", "get", "nobody")
        assert (code, out) == (3, "")
        assert 'no connected worker "nobody"' in error


@pytest.mark.usefixtures("shell")
def test_a_resume_that_names_a_pause_ends_no_later_one(capsys: pytest.CaptureFixture[str], topic: str) -> None:
    """The command and the SDK call gRPC."""
    assert headgate(capsys, "submit", topic, "{}", "--delay", "1h")[0] == 0
    first, second = (
        json.loads(headgate(capsys, "pause", topic, "--reason", why, "-o", "json")[1])["since"] for why in "ab"
    )
    code, _, error = headgate(capsys, "resume", topic, "--since", first)
    assert code == 4, error
    assert "was paused again" in error
    assert 'with the reason "b"' in error
    assert headgate(capsys, "resume", topic, "--since", second)[:2] == (0, f"topic {topic} is resumed\n")
    assert headgate(capsys, "schedule", "put", topic, "--topic", topic, "--every", "1h")[0] == 0
    first, second = (
        json.loads(headgate(capsys, "schedule", "pause", topic, "-o", "json")[1])["paused_at"] for _ in "ab"
    )
    code, _, error = headgate(capsys, "schedule", "resume", topic, "--since", first)
    assert code == 4, error
    assert "was paused again" in error
    assert headgate(capsys, "schedule", "resume", topic, "--since", second)[0] == 0
    for value, words in (("0s", "is over already"), ("9999999d", "before 9999-12-31"), ("9" * 18 + "d", "range")):
        code, _, error = headgate(capsys, "pause", topic, "--until", value)
        assert code != 0
        assert "until" in error
        assert words in error


@pytest.mark.usefixtures("shell")
def test_the_commands_print_what_programs_can_read_and_exit_with_a_reason(
    capsys: pytest.CaptureFixture[str], topic: str
) -> None:
    code, job, _ = headgate(capsys, "submit", topic, "{}", "--priority", "high", "--delay", "1h")
    job = job.strip()
    assert code == 0
    code, out, _ = headgate(capsys, "pause", "--topic", topic, "--reason", "full", "--output", "json")
    assert (code, json.loads(out)["reason"], json.loads(out)["target"]) == (0, "full", f"topic {topic}")
    code, out, _ = headgate(capsys, "status", "--output", "json")
    (shown,) = [one for one in json.loads(out)["topics"] if one["topic"] == topic]
    assert (shown["paused"], shown["counts"]) == (True, {"scheduled": 1})
    code, out, _ = headgate(capsys, "resume", "--topic", topic)
    assert (code, out) == (0, f"topic {topic} is resumed\n")
    code, out, _ = headgate(capsys, "job", "reprioritise", job, "--priority", "bulk", "--output", "json")
    assert [one["changed"] for one in json.loads(out)] == [True]
    code, out, _ = headgate(capsys, "job", "get", job, "--output", "json")
    assert json.loads(out)["priority"] == -10
    code, out, error = headgate(capsys, "job", "discard", job)
    assert (code, out) == (4, "")
    assert "only dead or cancelled jobs" in error
    code, _, error = headgate(capsys, "job", "cancel", "01890000-0000-7000-8000-000000000000")
    assert (code, error) == (3, 'error: no job "01890000-0000-7000-8000-000000000000"\n')
    for wrong in (["pause"], ["pause", "--tenant", "--topic", topic], ["pause", "--tenant", "--until", "soon"]):
        code, out, error = headgate(capsys, *wrong)
        assert (code, out) == (2, ""), error
    code, _, error = headgate(capsys, "workers", "stop", "nobody", "--yes")
    assert (code, error) == (3, 'error: no connected worker "nobody"\n')
    code, _, error = headgate(capsys, "workers", "stop", "nobody")
    assert (code, "--yes" in error) == (2, True), "without a terminal it cannot ask"
    code, _, error = headgate(capsys, "pause", "--topic", "mial")
    assert (code, error) == (3, 'error: no topic "mial"\n')


@pytest.mark.usefixtures("shell")
def test_the_manuals_commands_run_as_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", ADMIN)
    monkeypatch.chdir(tmp_path)  # one of them writes a file
    variables: dict[str, str] = {}
    ran = set[str]()
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            assigned = re.fullmatch(r"(\w+)=\$\((.*)\)", line)
            words = shlex.split(assigned[2] if assigned else line)
            assert words.pop(0) == "headgate", line
            words = [variables.get(word[1:], word) if word.startswith("$") else word for word in words]
            code, out, error = headgate(capsys, *words)
            assert code == 0, f"{line}: {error}"
            ran.add(words[0] if words[0] not in ("job", "workers") else " ".join(words[:2]))
            if assigned:
                variables[assigned[1]] = out.strip()
    assert {"pause", "resume", "status", "audit", "workers list", "workers quiet", "workers resume"} <= ran
    assert {f"job {verb}" for verb in ("cancel", "redrive", "discard", "reprioritise", "move", "events")} <= ran


@pytest.mark.usefixtures("shell")
def test_the_page_on_retention_runs_as_printed_and_needs_the_scope_system(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/retention.md").read_text()
    for command in ("set", "run"):
        code, _, error = headgate(capsys, "retention", command, *(["--dead", "9d"] if command == "set" else []))
        assert (code != 0, '"system"' in error) == (True, True)
    try:
        printed = []
        for block in re.findall(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                monkeypatch.setenv("HEADGATE_TOKEN", SYSTEM if "retention" in line else ADMIN)
                code, out, error = headgate(capsys, *shlex.split(line)[1:])
                assert code == 0, f"{line}: {error}"
                printed.append(out)
        monkeypatch.setenv("HEADGATE_TOKEN", SYSTEM)
        assert printed[0].startswith("kept: completed 7d, dead 30d, cancelled 7d, audit 365d; finished jobs")
        assert "nothing is due for removal" in printed[0]
        assert printed[1] == "kept: completed 3d, dead 60d, cancelled 7d, audit 365d\n"
        assert re.fullmatch(r"removed 0 jobs one by one, 0 day partitions, \d+ other rows\n", printed[2])
        assert re.search(r"^  keep-completed +1d +set by ada$", printed[3], flags=re.MULTILINE)
        assert re.search(r"^  keep-dead +90d +set by ada$", printed[3], flags=re.MULTILINE)
        assert re.search(r"^  keep-completed +none ", printed[4], flags=re.MULTILINE)
        assert re.search(r"^  keep-dead +90d +set by ada$", printed[4], flags=re.MULTILINE)
        with monkeypatch.context() as patch:
            patch.setattr(RetentionAdmin, "run_pass", AsyncMock(return_value=Removed(other=1, more=True, blocked=True)))
            code, out, _ = headgate(capsys, "retention", "run")
            assert code == 0
            assert out.splitlines() == [
                "removed 0 jobs one by one, 0 day partitions, 1 other rows",
                "other transactions lock the rest; servers remove it later: nothing is due for removal",
            ]
        code, out, _ = headgate(capsys, "status")
        assert "kept: completed 3d, dead 60d" in out
        code, out, _ = headgate(capsys, "retention", "show", "--output", "json")
        told = json.loads(out)
        assert (told["rules"]["dead"], told["days_waiting"]) == (60 * 86_400, 0)
        for wrong, says in (
            (["retention", "set"], "nothing to change"),
            (["retention", "set", "--dead", "23h"], "--dead: must be from 1d to 3650d, got 23h"),
            (["retention", "set", "--audit", "soon"], "--audit: is not a duration"),
            (["topic", "set", "mail", "--keep-dead", "4000d"], "--keep-dead: must be from 1d to 3650d, got 4000d"),
        ):
            code, _, error = headgate(capsys, *wrong)
            assert (code, says in error) == (2, True), error
    finally:
        headgate(capsys, "retention", "set", "--completed", "7d", "--dead", "30d")


def test_the_manuals_program_runs_as_printed(server: ServerProcess, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "operate.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "operate.py"],
        cwd=tmp_path,
        env={**clean_environ(), "HEADGATE_URL": server.address, "HEADGATE_TOKEN": OPERATES},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['topic mail']",
        "True scheduled",
        "reprioritised otto she called",
        "cancelled otto never mind",
    ]
