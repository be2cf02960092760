"""Dead letters and operations as operators meet them: real servers, an SDK worker, the command line."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import shlex
import subprocess
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import grpc
import pytest

from headgate import Headgate, RetryPolicy
from headgate.cli import main
from headgate.domain.backoff import jitter_of
from headgate.domain.errors import NotFound
from headgate.domain.filters import InvalidFilter
from headgate.sdk.errors import Forbidden, ServerError, SubmitRefused
from headgate.wire import jobs_pb2
from tests.e2e.conftest import Serve
from tests.support.database import Server
from tests.support.server import HEADGATE, ServerProcess, clean_environ
from tests.support.waiting import until_async
from tests.support.wire import Wire, served

ALPHA, BETA, MAIL, READS = (f"a-token-for-{name}-only" for name in ("alpha", "beta", "mail", "reads"))
ALL = ["submit", "work", "read", "operate"]
TOKENS: dict[str, dict[str, object]] = {
    ALPHA: {"tenant": "alpha", "scopes": ALL, "name": "ana"},
    BETA: {"tenant": "beta", "name": "ben", "scopes": ALL},
    MAIL: {"tenant": "alpha", "name": "mia", "scopes": ALL, "topics": ["mail"]},
    READS: {"tenant": "alpha", "scopes": ["read"]},
}
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    """One server for the module, with tokens of two tenants; and the URL of its database."""
    folder = tmp_path_factory.mktemp("operations")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens)) as both:
        yield both


@pytest.fixture
def server(running: tuple[ServerProcess, str]) -> ServerProcess:
    return running[0]


@asynccontextmanager
async def working(hg: Headgate) -> AsyncIterator[str]:
    """A worker of the client's tasks for as long as the block lasts; gives its name."""
    name = f"w-{uuid4().hex[:8]}"
    worker = hg.worker(concurrency=8, worker_id=name)
    task = asyncio.create_task(worker.run())
    try:
        yield name
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ended(hg: Headgate, *ids: UUID) -> None:
    async def all_over() -> bool:
        return all([(await hg.get(job_id)).finished for job_id in ids])

    await until_async(all_over, "the jobs have ended")


@pytest.mark.req("O25", "R4")
async def test_every_attempts_error_is_kept_grouped_and_can_be_redriven(server: ServerProcess) -> None:
    """From the exception in a handler to the history, the group, and the run that succeeds after the redrive."""
    topic = f"bank-{uuid4().hex[:8]}"
    broken = True
    async with Headgate(server.address, token=ALPHA) as hg, Wire(server.address, token=ALPHA) as wire:

        @hg.job(topic, max_attempts=2, retry=RetryPolicy.fixed(timedelta(milliseconds=10)))
        async def pay(n: int, pad: str = "") -> int:
            if broken:
                raise TimeoutError(f"no answer from '{n}' in {n} s {pad}")
            return n

        async with working(hg) as worker:
            handles = [await pay.submit(n) for n in range(3)]
            loud = await pay.submit(9, "x" * 200_000)
            await ended(hg, *(handle.id for handle in (*handles, loud)))
            job = await wire.job(handles[0].id.bytes)
            assert [(event.kind, event.attempt) for event in job.events] == [("failed", 1), ("failed", 2)]
            for event in job.events:
                assert (event.error_type, event.error_message) == ("TimeoutError", "no answer from '0' in 0 s ")
                assert "in pay" in event.error_trace
                assert "raise TimeoutError" in event.error_trace
                assert event.worker == worker
                assert 0 < event.claimed_us <= event.at_us
            assert [event.state for event in job.events] == [jobs_pb2.STATE_RETRYING, jobs_pb2.STATE_DEAD]
            # A megabyte of error is cut, not refused: the attempt's outcome counts more than its text.
            (first, _) = (await wire.job(loud.id.bytes)).events
            assert len(first.error_message) <= 8_192
            assert len(first.error_trace) <= 65_536

            seen = await hg.admin.dead.groups(f"{topic[:-1]}*")
            assert [(group.topic, group.count) for group in seen.groups] == [(topic, 3), (topic, 1)]
            group = seen.groups[0]
            assert group.title.startswith("TimeoutError: no answer from '…' in # s")
            assert (seen.exact, group.sample_id in {h.id for h in (*handles, loud)}) == (True, True)
            preview = await hg.admin.bulk.preview("redrive", f"topic:{topic} error_group:{group.group}")
            assert (preview.total, preview.eligible, preview.exact) == (group.count, group.count, True)
            assert len(preview.sample) == group.count
            broken = False
            started = await hg.admin.dead.redrive(topic, group=group.group, reason="the bank is back")
            over = await hg.admin.bulk.wait(started.id, timeout=60)
            assert (over.state, over.changed, over.who) == ("done", group.count, "ana")
            assert await handles[1].result(60) == 1
            history = (await wire.job(handles[1].id.bytes)).events
            assert [(event.kind, event.actor, event.reason) for event in history][-1:] == [
                ("redriven", "ana", "the bank is back")
            ]


@pytest.mark.req("O18", "R3")
async def test_every_retry_policy_is_kept_from_sdk_to_due_time(server: ServerProcess) -> None:
    """The wait after the first and second failure is the policy's own to the millisecond, jitter and cap included."""
    topic = f"retry-{uuid4().hex[:8]}"
    ms = timedelta(milliseconds=1)
    policies = [
        RetryPolicy.quadratic(5 * ms),
        RetryPolicy.fixed(7 * ms),
        RetryPolicy.linear(6 * ms),
        RetryPolicy.exponential(9 * ms, cap=15 * ms),
        RetryPolicy.exponential_equal_jitter(20 * ms),
        RetryPolicy.exponential_full_jitter(20 * ms),
        RetryPolicy.explicit(3 * ms, 11 * ms),
    ]
    async with Headgate(server.address, token=ALPHA) as hg, Wire(server.address, token=ALPHA) as wire:

        @hg.job(topic, max_attempts=3)
        async def fail() -> None:
            raise ValueError("no")

        handles = [await fail.submit(options={"retry": policy}) for policy in policies]  # type: ignore[call-arg]
        async with working(hg):
            await ended(hg, *(handle.id for handle in handles))
        for policy, handle in zip(policies, handles, strict=True):
            events = (await wire.job(handle.id.bytes)).events
            assert [event.attempt for event in events] == [1, 2, 3]
            waits = [(event.run_at_us - event.at_us) / 1000 for event in events[:2]]
            assert waits == [policy.delay_ms(attempt, jitter=jitter_of(handle.id, attempt)) for attempt in (1, 2)], (
                policy
            )
            assert events[2].run_at_us == 0


async def test_tokens_reach_their_tenant_their_topics_and_their_scope(server: ServerProcess) -> None:
    async with (
        Headgate(server.address, token=ALPHA) as alpha,
        Headgate(server.address, token=BETA) as beta,
        Headgate(server.address, token=MAIL) as mail,
        Headgate(server.address, token=READS) as reads,
    ):
        tag = uuid4().hex[:8]
        for topic in ("mail", "sms"):
            await alpha.submit(topic, b"x", tags=[tag])
        assert [job.topic async for job in alpha.admin.jobs_matching(f"tag:{tag}")] == ["sms", "mail"]
        upwards = alpha.admin.jobs_matching(f"tag:{tag}", oldest_first=True)
        assert [job.topic async for job in upwards] == ["mail", "sms"]
        assert [job.topic async for job in mail.admin.jobs_matching(f"tag:{tag}")] == ["mail"]
        assert [job async for job in beta.admin.jobs_matching(f"tag:{tag}")] == []
        assert (await reads.admin.jobs_matching(f"tag:{tag}").count()).by_state == {"pending": 2}
        with pytest.raises(Forbidden, match="none of the topics sms"):
            await mail.admin.jobs_matching("topic:sms").page()
        with pytest.raises(Forbidden, match="operate"):
            await reads.admin.bulk.start("cancel", f"tag:{tag}")
        started = await alpha.admin.bulk.start("cancel", f"tag:{tag} topic:sms", reason="enough")
        again = await alpha.admin.bulk.start("cancel", f"tag:{tag} topic:sms", reason="enough", id=started.id)
        assert again.id == started.id
        with pytest.raises(ServerError, match="exists with another plan"):
            await alpha.admin.bulk.start("cancel", f"tag:{tag}", id=started.id)
        for other in (beta, mail):
            with pytest.raises(NotFound, match="operation"):
                await other.admin.bulk.get(started.id)
            with pytest.raises(NotFound):
                await other.admin.bulk.cancel(started.id)
        over = await reads.admin.bulk.wait(started.id, timeout=60)
        assert (over.state, over.changed, over.filter.startswith("state:")) == ("done", 1, True)
        assert started.id in [one.id for one in await alpha.admin.bulk.list()]
        assert await beta.admin.bulk.list() == []
        with pytest.raises(InvalidFilter, match='did you mean "topic"'):
            alpha.admin.jobs_matching("queue:mail")
        with pytest.raises(SubmitRefused, match="redrive changes none of them"):
            await alpha.admin.bulk.preview("redrive", "state:pending")
        page = await alpha.admin.jobs_matching("topic:*").page(limit=1)
        assert len(page.jobs) == 1
        assert page.cursor


async def test_what_is_no_message_and_no_id_is_answered_by_a_sentence(server: ServerProcess) -> None:
    async with Wire(server.address, token=ALPHA) as wire:
        for method, raw, words in (
            ("GetBulk", b"\x0a\x03abc", "has 3 bytes"),
            ("StartBulk", b"\xff\xff", "cannot be read as headgate.v1.StartBulkRequest"),
            ("ListJobs", b"\x0a\x07queue:x", 'did you mean "topic"'),
            ("PreviewBulk", b"", "verb: must be one of"),
        ):
            call = wire.channel.unary_unary(f"/headgate.v1.BulkService/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(raw, timeout=10, metadata=wire.metadata)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert words in (caught.value.details() or "")


# --- the command line -------------------------------------------------------------------------------------------------


class Shell:
    """The command line under a token of its own: in this process, which is quick, or on a terminal of its own."""

    def __init__(self, server: ServerProcess, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.environ = {**clean_environ(), "HEADGATE_URL": server.address, "HEADGATE_TOKEN": ALPHA, "NO_COLOR": "1"}
        for name in ("HEADGATE_URL", "HEADGATE_TOKEN"):
            monkeypatch.setenv(name, self.environ[name])

    async def run(self, *arguments: str, code: int = 0) -> str:
        """What it printed, or what it complained of."""
        out, complaint = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(complaint):
            answer = await asyncio.to_thread(main, arguments)
        assert answer == code, (out.getvalue(), complaint.getvalue())
        return complaint.getvalue() if code else out.getvalue()

    def answer(self, *arguments: str, says: bytes) -> tuple[int, str]:
        """On a terminal, with someone at the keyboard; the exit code and what stood on the screen."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [HEADGATE, *arguments], env=self.environ, cwd=self.folder, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.write(ours, says)
        screen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            screen += part
        os.close(ours)
        return process.wait(30), screen.decode()


async def test_the_command_line_looks_asks_and_tells(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"cli-{uuid4().hex[:8]}"
    shell = Shell(server, tmp_path, monkeypatch)
    run = shell.run
    monkeypatch.setattr("sys.stdin", io.StringIO())  # no one is there to be asked
    async with Headgate(server.address, token=ALPHA) as hg:

        @hg.job(topic, max_attempts=1)
        async def fail(n: int) -> None:
            raise ValueError(f"no {n}")

        handles = [await fail.submit(n) for n in range(3)]
        async with working(hg):
            await ended(hg, *(handle.id for handle in handles))
        newest = str(handles[-1].id)
        listed = (await run("job", "list", "--filter", f"topic:{topic}", "--limit", "2")).splitlines()
        assert listed[0].split() == ["ID", "TOPIC", "STATE", "PRIORITY", "ATTEMPT", "CREATED", "WORKER", "ERROR"]
        assert listed[1].split()[:3] == [newest, topic, "dead"]
        assert listed[-1].startswith("more: --cursor ")
        rest = await run("job", "list", "--filter", f"topic:{topic}", "-o", "name", "--cursor", listed[-1].split()[-1])
        assert rest.split() == [str(handles[0].id)]
        (line,) = (await run("job", "list", "--filter", f"id:{newest}", "-o", "ndjson")).splitlines()
        assert (json.loads(line)["id"], json.loads(line)["state"]) == (newest, "dead")
        assert (await run("job", "list", "--filter", f"topic:{topic} state:dead", "--count")).strip() == "3"
        assert 'did you mean "state"?' in await run("job", "list", "--filter", "stat:dead", code=2)
        assert await run("job", "list", "--filter", "topic:none") == "no jobs match\n"

        groups = (await run("dead", "list", topic)).splitlines()
        assert groups[0].split() == ["GROUP", "TOPIC", "COUNT", "FIRST", "LAST", "ERROR"]
        group = groups[1].split()[0]
        assert groups[1].endswith("ValueError: no #")
        assert "--yes: is required" in await run("dead", "redrive", topic, code=2)
        assert "pass a topic" in await run("dead", "discard", code=2)
        dry = await run("dead", "redrive", topic, "--group", group, "--dry-run")
        assert dry.splitlines()[0] == f"3 jobs match state:dead topic:{topic} error_group:{group}."
        assert newest in dry
        names = await run("dead", "redrive", topic, "--group", group, "--dry-run", "-o", "name")
        assert (len(names.splitlines()), newest in names.splitlines()) == (3, True)
        assert await run("bulk", "start", "redrive", "--filter", "topic:absent", "--yes", "-o", "name") == ""
        code, screen = await asyncio.to_thread(shell.answer, "dead", "redrive", topic, says=b"n\n")
        assert (code, "Continue? [y/N]" in screen, "nothing was changed" in screen) == (4, True, True)
        code, screen = await asyncio.to_thread(
            shell.answer, "bulk", "start", "redrive", "--filter", f"topic:{topic} error:no", says=b"y\n"
        )
        assert code == 0, screen
        assert "3 done  0 skipped  0 errors  done" in screen
        # They wait now; from here on no one works on them.
        plain = (
            await run("bulk", "start", "reprioritise", "--filter", f"topic:{topic}", "--priority", "urgent", "--yes")
        ).splitlines()
        assert "100%  3 done" in plain[-1]
        operation = plain[-1].split()[1]
        assert {job.priority async for job in hg.admin.jobs_matching(f"topic:{topic}")} == {20}
        shown = await run("bulk", "get", operation)
        assert "verb      reprioritise\n" in shown
        assert f"filter    state:pending,scheduled,retrying,blocked topic:{topic}\n" in shown
        assert "by ana" in shown
        assert json.loads(await run("bulk", "get", operation, "-o", "json"))["changed"] == 3
        assert "100%" in await run("bulk", "watch", operation)
        assert operation in await run("bulk", "list")
        assert "done" in await run("bulk", "cancel", operation)  # over already: harmless
        assert "no operation" in await run("bulk", "get", "01890000-0000-7000-8000-000000000000", code=3)
        assert "applies to completed, dead, cancelled" in await run(
            "bulk", "start", "redrive", "--filter", "state:pending", "--yes", code=2
        )
        detached = (
            await run("bulk", "start", "cancel", "--filter", f"topic:{topic}", "--yes", "--detach", "-o", "name")
        ).strip()
        assert (await hg.admin.bulk.wait(detached, timeout=60)).changed == 3
        assert "no jobs match" in await run("bulk", "start", "cancel", "--filter", f"topic:{topic}", "--yes")


async def test_the_page_about_dead_letters_works_as_printed(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs/howto/dead-letters.md").read_text()
    shell = Shell(server, tmp_path, monkeypatch)
    for line in re.findall(r"^\$ headgate (.*)$", text, flags=re.MULTILINE):
        await shell.run(*shlex.split(line))
    (code,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    program = f"async def example():\n{textwrap.indent(code, '    ')}"
    names: dict[str, Any] = {"Headgate": Headgate}
    exec(program, names)  # noqa: S102 - our own page
    with redirect_stdout(io.StringIO()) as printed:
        await names["example"]()
    assert "done" in printed.getvalue()


# --- servers that die -------------------------------------------------------------------------------------------------

FILL = """
INSERT INTO headgate.archive (id, created_at, run_at, finished_at, tenant_no, topic_no, priority, attempt, max_attempts,
                              epoch, policy_no, state, flags, last_error, payload)
SELECT encode(substring(int8send(1700000000000 + n) FROM 3) || '\\x70008000000000000001'::bytea, 'hex')::uuid, now(),
       now(), now(), $1, $2, 0, 1, 20, 1, 1, 6, 0, 'E: boom', 'x'
  FROM generate_series(1, 3000) AS n"""


async def test_an_operation_outlives_the_server_that_ran_it(serve: Serve, database: str) -> None:
    """kill -9 of the server in the middle, then of the next: a third finishes, and each job was changed once."""
    first = await asyncio.to_thread(serve)
    db = await asyncpg.connect(database)
    async with Headgate(first.address) as hg:
        await hg.submit("mail", b"x")
    tenant_no, topic_no = await db.fetchrow("SELECT tenant_no, topic_no FROM headgate.topics WHERE name = 'mail'")
    await db.execute(FILL, tenant_no, topic_no)
    async with Headgate(first.address) as hg:
        started = await hg.admin.bulk.start("redrive", "state:dead", per_second=1_500)
    server = first
    for least in (500, 1_500):
        await until_async(
            lambda least=least: db.fetchval("SELECT changed >= $1 FROM headgate.bulk_operations", least),
            "a part is done",
        )
        server.kill()
        server = await asyncio.to_thread(serve)
    async with Headgate(server.address) as hg:
        over = await hg.admin.bulk.wait(started.id, timeout=60)
    assert (over.state, over.matched, over.changed, over.skipped, over.errors) == ("done", 3_000, 3_000, 0, 0)
    rows = await db.fetch("SELECT job_id FROM headgate.job_events WHERE kind = 8")
    assert set(Counter(row[0] for row in rows).values()) == {1}
    assert len(rows) == 3_000
    by = await db.fetchval(
        "SELECT count(DISTINCT instance_no) FROM headgate.bulk_operations WHERE instance_no IS NOT NULL"
    )
    assert by == 1
    await db.close()
