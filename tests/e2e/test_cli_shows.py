"""Commands that show something, against a real server: jobs with their attempts, workers with their jobs, batches."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from headgate import Headgate, Job, JobDead
from headgate.domain.backoff import RetryPolicy
from headgate.sdk.job import this_job
from tests.support.database import Server
from tests.support.server import HEADGATE, clean_environ
from tests.support.shell import Said, Shell
from tests.support.waiting import until_async
from tests.support.wire import Wire, served

TOKEN = "a-token-of-the-operator"
ENTRY = {"tenant": "shop", "name": "ana of operations", "scopes": ["admin"]}
SYSTEM = "a-token-without-a-tenant"
SYSTEM_ENTRY = {"name": "root", "scopes": ["system"]}


@pytest.fixture(scope="module")
def address(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("shows")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({TOKEN: ENTRY, SYSTEM: SYSTEM_ENTRY}))
    tokens.chmod(0o600)
    with served(postgres, template, folder, "--tokens", str(tokens), dev=False) as (server, _):
        yield server.address


@pytest.fixture
def run(address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HEADGATE_URL", address)
    monkeypatch.setenv("HEADGATE_TOKEN", TOKEN)
    return Shell(capsys)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


async def test_a_completed_job_shows_its_result_and_its_failed_attempt_as_history(
    run: Shell, address: str, topic: str
) -> None:
    async with Headgate(address, token=TOKEN) as hg:

        @hg.job(topic, max_attempts=3, retry=RetryPolicy.fixed(timedelta(milliseconds=1)))
        async def bill(order: int, api_key: str, *, job: Job = this_job) -> dict[str, Any]:
            if job.attempt == 1:
                raise TimeoutError("the bank did not answer")
            return {"invoice": order, "accessToken": "t-1"}

        handle = await bill.submit(4711, "sk-live-1")
        working = asyncio.create_task(hg.work(worker_id=f"w-{topic}"))
        assert await handle.result(60) == {"invoice": 4711, "accessToken": "t-1"}
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    short = str(handle.id)[:24]
    text = (await asyncio.to_thread(run, "job", "get", short)).out
    assert text.startswith(f"{topic}  completed   attempt 2 of 3   priority 0\n  id        {handle.id}\n")
    assert "\n  error " not in text
    assert '"order": 4711' in text
    assert '"invoice": 4711' in text
    assert "sk-live-1" not in text
    assert "t-1" not in text
    rows = [line.split() for line in text.splitlines() if re.match(r" +[12]  20", line)]
    assert [(row[0], row[-1] if row[0] == "2" else " ".join(row[-6:])) for row in rows] == [
        ("2", "-"),
        ("1", "TimeoutError: the bank did not answer"),
    ]
    assert "Traceback" not in text
    full = (await asyncio.to_thread(run, "job", "get", short, "--full")).out
    assert 'raise TimeoutError("the bank did not answer")' in full
    fields = json.loads((await asyncio.to_thread(run, "job", "get", short, "-o", "json")).out)
    assert (fields["state"], fields["result"]) == ("completed", {"invoice": 4711, "accessToken": "•••"})
    assert [(one["number"], one["outcome"]) for one in fields["attempts"]] == [(2, "completed"), (1, "failed")]
    (listed,) = json.loads(
        (await asyncio.to_thread(run, "job", "list", "--filter", f"id:{handle.id}", "-o", "json")).out
    )
    assert listed["id"] == str(handle.id)


async def test_workers_list_shows_what_runs_where(run: Shell, address: str, topic: str) -> None:
    async with Wire(address, token=TOKEN) as wire, wire.worker(f"w-{topic}") as session:
        (job,) = [str(UUID(bytes=raw)) for raw in await wire.submit_many(topic, [b"1"])]
        await session.ready(2, topic)
        await session.take(1)
        text = (await asyncio.to_thread(run, "workers", "list")).out
        (one,) = [
            one
            for one in json.loads((await asyncio.to_thread(run, "workers", "list", "-o", "json")).out)
            if one["worker"] == f"w-{topic}"
        ]
        names = (await asyncio.to_thread(run, "workers", "list", "-o", "name")).out.split()
    assert re.search(rf"^w-{topic} +{job} +{topic} +1  20\S+Z \(\w+( ago)?\)$", text, re.MULTILINE), text
    assert [(job_["id"], job_["topic"], job_["attempt"]) for job_ in one["running"]] == [(job, topic, 1)]
    assert f"w-{topic}" in names


async def test_status_shows_the_throughput_of_each_topic(run: Shell, address: str, topic: str) -> None:
    async with Wire(address, token=TOKEN) as wire:
        await wire.submit_many(topic, [b""] * 600)

        async def counted() -> dict[str, object] | None:
            found = json.loads((await asyncio.to_thread(run, "status", "-o", "json")).out)
            (mine,) = [one for one in found["topics"] if one["topic"] == topic] or [None]
            return mine if mine and sum(flow["submitted"] for flow in mine["flows"]) == 600 else None

        await until_async(counted, "the submits are counted")
        text = (await asyncio.to_thread(run, "status")).out
    (row,) = [line.split() for line in text.splitlines() if line.startswith(topic)]
    assert (row[1], row[2]) == ("active", "600")
    assert float(row[-3]) >= 4.9  # the 600 of the last 60 to 120 seconds
    assert "throughput: submitted " in text


async def test_the_first_digits_are_enough_for_batches_and_operations(run: Shell, address: str, topic: str) -> None:
    async with Headgate(address, token=TOKEN) as hg:
        batch = await hg.batch("import").open()
        started = await hg.admin.bulk.start("cancel", f"topic:{topic}", reason="test")
    listed = (await asyncio.to_thread(run, "batch", "list", "--open")).out.splitlines()
    assert listed[0].split()[:3] == ["ID", "STATE", "JOBS"]
    assert any(line.startswith(f"{batch.id}  open") and line.endswith("import") for line in listed)
    added = await asyncio.to_thread(run, "submit", topic, "{}", "--batch", str(batch.id)[:24], "--delay", "1h")
    assert added.code == 0, added.err
    sealed = await asyncio.to_thread(run, "batch", "seal", str(batch.id)[:24])
    assert sealed.out.startswith("import  sealed   1 jobs\n")
    child = await asyncio.to_thread(run, "submit", topic, "{}", "--depends-on", added.out.strip()[:24])
    assert f"waits for {added.out.strip()}" in (await asyncio.to_thread(run, "job", "get", child.out.strip())).out
    assert (await asyncio.to_thread(run, "bulk", "get", str(started.id)[:24], "-o", "name")).out == f"{started.id}\n"


async def test_digits_of_several_ids_are_refused_with_some_of_them_and_unknown_ones_are_not_found(
    run: Shell, address: str, topic: str
) -> None:
    ids = [str(UUID(f"01890001-0000-7000-8000-{number:012x}")) for number in range(7)]
    async with Headgate(address, token=TOKEN) as hg:
        for one in ids:
            await hg.submit(topic, id=one, delay=3600)
    several = await asyncio.to_thread(run, "job", "get", "01890001")
    assert (several.code, several.out) == (2, "")
    assert several.err == (
        f'error: id: several job ids begin with "01890001": {", ".join(ids[:5])}, …; give more digits\n'
    )
    assert (await asyncio.to_thread(run, "job", "cancel", ids[0], "01890001")).code == 2
    assert json.loads((await asyncio.to_thread(run, "job", "get", ids[0], "-o", "json")).out)["state"] == "scheduled"
    assert await asyncio.to_thread(run, "job", "get", "01890002") == (3, "", 'error: no job "01890002"\n')
    assert "its first 4 or more hexadecimal digits" in (await asyncio.to_thread(run, "job", "get", "018")).err


def test_a_topic_is_paused_by_its_name_alone_and_the_audit_log_names_the_token(run: Shell, topic: str) -> None:
    assert run("submit", topic, "{}").code == 0
    paused = run("pause", topic, "--reason", "bank outage")
    assert re.fullmatch(rf"topic {topic} since 20\S+Z \(\S+( ago)?\) by ana of operations: bank outage\n", paused.out)
    assert run("resume", topic).out == f"topic {topic} is resumed\n"
    assert run("resume", topic, "-o", "json").out == f'{{\n  "target": "topic {topic}",\n  "changed": false\n}}\n'
    entries = json.loads(run("audit", "--limit", "2", "-o", "json").out)
    assert [(one["actor"], one["verb"], one["target"]) for one in entries] == [
        ("ana of operations", "resume", f"topic {topic}"),
        ("ana of operations", "pause", f"topic {topic}"),
    ]


def test_the_audit_log_names_the_tenant_only_to_those_who_see_several(
    run: Shell, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("submit", topic, "{}").code == 0
    assert run("pause", topic).code == 0
    own = run("audit", "--limit", "1").out.splitlines()
    assert "TENANT" not in own[0]
    monkeypatch.setenv("HEADGATE_TOKEN", SYSTEM)
    heading, row, _ = run("audit", "--limit", "1").out.splitlines()
    assert heading.split()[:4] == ["NO", "TIME", "TENANT", "ACTOR"]
    assert row[heading.index("TENANT") :].startswith("shop ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("job", "list", "--filter", "topic:nowhere"), "no jobs match"),
        (("dead", "list", "nowhere"), "no dead letters"),
        (("schedule", "list"), "no schedules"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_empty_list_is_named_and_programs_get_an_empty_one(run: Shell, words: tuple[str, ...], says: str) -> None:
    assert run(*words) == (0, f"{says}\n", "")
    assert run(*words, "-o", "json") == (0, "[]\n", "")
    assert run(*words, "-o", "ndjson") == run(*words, "-o", "name") == (0, "", "")


def test_a_command_takes_its_server_and_token_as_options(
    run: Shell, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_URL")
    monkeypatch.delenv("HEADGATE_TOKEN")
    assert run("schedule", "list", "--url", address, "--token", TOKEN) == (0, "no schedules\n", "")
    refused = run("schedule", "list", "--url", address)
    says = f"error: {address} refused: {{}}; check HEADGATE_TOKEN\n"
    assert refused == (4, "", says.format("a token is required, and none was given"))
    wrong = run("schedule", "list", "--url", address, "--token", "wrong")
    assert wrong == (4, "", says.format("the token is not valid"))


def test_a_watched_job_is_one_line_of_json_for_each_change(run: Shell, topic: str) -> None:
    job = run("submit", topic, "{}").out.strip()
    assert run("job", "cancel", job).code == 0
    (line,) = run("job", "get", job, "--watch", "-o", "json").out.splitlines()
    assert json.loads(line)["state"] == "cancelled"


def test_a_submit_is_printed_for_programs_and_a_pause_by_its_topic(run: Shell, topic: str) -> None:
    done = json.loads(run("submit", topic, "{}", "--key", "k", "-o", "json").out)
    assert (done["created"], done["state"]) == (True, "pending")
    again = run("submit", topic, "{}", "--key", "k", "-o", "ndjson", "--wait", "50ms")
    assert again.code == 5
    assert json.loads(again.out) == {"id": done["id"], "created": False, "state": "pending"}
    assert f"headgate job get {done['id']}" in again.err
    assert run("submit", topic, "{}", "--key", "k", "-o", "name").out == f"{done['id']}\n"
    assert run("pause", topic, "-o", "name") == (0, f"{topic}\n", "")
    assert run("resume", topic, "-o", "name").out == f"{topic}\n"


def test_a_watched_status_is_drawn_on_a_terminal_in_colour_until_ctrl_c(run: Shell, address: str, topic: str) -> None:
    assert run("submit", topic, "{}").code == 0
    assert run("pause", topic).code == 0
    ours, theirs = pty.openpty()
    environ = {**clean_environ(), "HEADGATE_URL": address, "HEADGATE_TOKEN": TOKEN, "TERM": "xterm", "COLUMNS": "200"}
    environ.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [HEADGATE, "status", "--watch", "--interval", "200ms"], env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    screen = b""
    while screen.count(b"\x1b[H\x1b[2J") < 2:  # the timeout of the test ends a wait without end
        screen += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)  # as Ctrl-C does
    try:
        while os.read(ours, 4096):
            pass
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 130
    os.close(ours)
    assert b"\x1b[33mpaused\x1b[0m" in screen
    assert run("resume", topic).code == 0


async def test_no_surface_shows_a_secret_of_a_failed_job(
    run: Shell, address: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    canary = f"canary-{uuid4().hex}"
    async with Headgate(address, token=TOKEN) as hg:

        @hg.job(topic, max_attempts=1)
        async def log_in(user: str, password: str) -> None:
            raise PermissionError(f"401 for {user}: {{'password': '{password}'}}")

        working = asyncio.create_task(hg.work(worker_id=f"w-{topic}"))
        following = asyncio.create_task(
            asyncio.to_thread(run, "events", "--topic", topic, "--kind", "job.failed", "--limit", "1")
        )

        async def followed() -> bool:
            handle = await log_in.submit("ann", canary)
            with pytest.raises(JobDead, match=canary):  # who has submitted it gets its error as it is
                await handle.result(60)
            return following.done()

        await until_async(followed, "one of the events is shown")
        said = await following
        assert said.code == 0, said
        shown = [said.out]
        (job,) = (await hg.admin.jobs_matching(f"topic:{topic}").page(limit=1)).jobs
        commands = (
            ("job", "get", str(job.id), "--full"),
            ("job", "get", str(job.id), "-o", "json"),
            ("job", "list", "--filter", f"topic:{topic}"),
            ("job", "list", "--filter", f"topic:{topic}", "-o", "json"),
            ("dead", "list", topic),
            ("dead", "list", topic, "-o", "json"),
        )
        shown += [(await asyncio.to_thread(run, *command)).out for command in commands]
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert all("401 for ann" in text or "PermissionError" in text for text in shown), shown
    assert not [text for text in shown if canary in text]
    lines = [one for one in caplog.records if one.getMessage().startswith("job_dead")]
    assert lines, "the worker logs it"
    assert "401 for ann" in lines[0].getMessage()
    assert canary not in caplog.text


async def test_a_profile_is_checked_by_the_server_and_then_counts_for_all_commands(
    run: Shell, address: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HEADGATE_URL")
    monkeypatch.delenv("HEADGATE_TOKEN")

    async def login(token: str) -> Said:
        monkeypatch.setattr("sys.stdin", io.StringIO(token))
        return await asyncio.to_thread(run, "profile", "login", "prod", "--url", address)

    refused = await login("not-a-token")
    assert refused.code == 4
    assert "nothing was saved" in refused.err
    assert not (tmp_path / "headgate").exists()
    assert (await login(TOKEN)).out.startswith("profile prod is saved in ")
    jobs = tmp_path / "jobs.ndjson"
    jobs.write_text('{"n": 1}\n\n{"n": 2}\n')
    ids = (await asyncio.to_thread(run, "submit", topic, "--file", str(jobs), "-o", "name")).out.split()
    listed = await asyncio.to_thread(run, "job", "list", "--filter", f"topic:{topic}", "--oldest", "-o", "name")
    assert listed.out.split() == ids
    assert len(ids) == 2
    found = json.loads((await asyncio.to_thread(run, "status", "-o", "json")).out)
    assert (found["tenant"], found["subject"]) == (ENTRY["tenant"], ENTRY["name"])
