"""Schedules as users meet them: a real server, the SDK, the command line, and code that declares them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headgate import Headgate, InvalidInput, Job, NotFound
from headgate.cli import main
from headgate.domain.errors import AlreadyExists, HeadgateError, VersionConflict
from headgate.domain.ids import JobId
from headgate.domain.timestamps import unix_us
from headgate.sdk.errors import Forbidden
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.waiting import until, until_async
from tests.support.wire import Wire, served

OWNER, OTHER, READER, MAIL, WORKER = (
    f"a-token-of-the-{name}" for name in ("owner", "other", "reader", "mailer", "worker")
)
ALL = ["submit", "work", "read", "operate"]
TOKENS: dict[str, dict[str, object]] = {
    OWNER: {"tenant": "alpha", "name": "olga", "scopes": ALL},
    OTHER: {"tenant": "beta", "name": "otto", "scopes": ALL},
    READER: {"tenant": "alpha", "scopes": ["read"]},
    MAIL: {"tenant": "alpha", "name": "mia", "scopes": ALL, "topics": ["mail"]},
    WORKER: {"tenant": "alpha", "scopes": ["work", "submit"]},
}


@pytest.fixture(scope="module")
def server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("schedules")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens)) as (process, _):
        yield process


@pytest.fixture
async def hg(server: ServerProcess) -> Any:
    async with Headgate(server.address, token=OWNER) as client:
        yield client


async def test_a_schedule_from_python_runs_and_its_jobs_know_it(hg: Headgate) -> None:
    schedules = hg.admin.schedules
    made = await schedules.put("tick", "ticks", {"n": 1}, every=1, priority="high", tags=["t"], catch_up=5)
    assert (made.version, made.state, made.when, made.priority) == (1, "active", "every 1s", 10)
    assert made.catch_up == "all up to 5"

    async def some() -> bool:
        return len(await schedules.jobs("tick")) >= 2

    await until_async(some, "two jobs were made")
    runs = await schedules.jobs("tick")
    assert all((run.occurrence.microsecond, run.triggered, run.state) == (0, False, "pending") for run in runs)
    info = await hg.get(runs[0].job_id, payload=True)
    assert (info.schedule, info.occurrence, info.payload) == ("tick", runs[0].occurrence, b'{"n":1}')
    # In time: the row is there within a second of the moment (and on an idle machine within milliseconds); of any, for
    # a machine may hold its breath at one of them.
    delays = [(await hg.get(run.job_id)).created_at - run.occurrence for run in runs]
    assert min(delays) < timedelta(seconds=1)
    paused = await schedules.pause("tick", reason="enough")
    assert (paused.state, paused.reason, paused.paused_by != "") == ("paused", "enough", True)
    await schedules.delete("tick")
    with pytest.raises(NotFound, match='no schedule "tick"'):
        await schedules.get("tick")
    assert (await hg.get(runs[0].job_id)).schedule == ""


async def test_versions_triggers_and_previews_over_the_wire(hg: Headgate) -> None:
    schedules = hg.admin.schedules
    first = await schedules.put("report", "reports", cron="30 2 * * *", zone="Europe/Zurich", version=0)
    with pytest.raises(AlreadyExists):
        await schedules.put("report", "reports", cron="0 3 * * *", version=0)
    assert await schedules.put("report", "reports", cron="30 2 * * *", zone="Europe/Zurich") == first
    second = await schedules.put("report", "reports", cron="0 3 * * *", zone="Europe/Zurich", overlap="skip", version=1)
    assert (second.version, second.overlap) == (2, "skip")
    with pytest.raises(VersionConflict, match="has version 2, not 1"):
        await schedules.put("report", "reports", cron="0 4 * * *", version=1)
    with pytest.raises(VersionConflict):
        await schedules.delete("report", version=1)
    job = await schedules.trigger("report", request_id="01890000-0000-7000-8000-000000000000", reason="month end")
    assert await schedules.trigger("report", request_id="01890000-0000-7000-8000-000000000000") == job
    assert await schedules.trigger("report") != job
    assert [run.triggered for run in await schedules.jobs("report")] == [True, True]
    upcoming = await schedules.next("report", 3)
    assert len(upcoming) == 3
    assert {(at.hour, at.minute, str(at.tzinfo)) for at in upcoming} == {(3, 0, "Europe/Zurich")}
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)
    gap = await schedules.preview(2, cron="30 2 * * *", zone="Europe/Zurich", start=start)
    assert [at.isoformat() for at in gap] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    rare = await schedules.preview(1000, cron="0 */24 29 2 */7")  # costly to find, so a hundred years at most
    assert [at.year for at in rare[:3]] == [2032, 2060, 2088]
    assert len(rare) <= 4
    assert [info.name for info in await schedules.list()] == ["report"]
    await schedules.delete("report")


async def test_once_is_once(hg: Headgate) -> None:
    schedules = hg.admin.schedules
    await schedules.put("soon", "once", after=0.2)
    await schedules.put("then", "once", at=datetime.now(UTC) + timedelta(seconds=5))

    async def ended() -> bool:
        return all([(await schedules.get(name)).state == "ended" for name in ("soon", "then")])

    await until_async(ended, "both have run")
    for name in ("soon", "then"):
        assert len(await schedules.jobs(name)) == 1
        assert await schedules.next(name) == []
        await schedules.delete(name)


async def test_what_cannot_be_is_refused_before_and_by_the_server(hg: Headgate) -> None:
    put = hg.admin.schedules.put
    for options, words in (
        ({"cron": "0 0 30 2 *"}, "never fires"),
        ({"cron": "* * *"}, "5 fields"),
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": "0 0 * * *", "zone": "Mars/Olympus"}, "zone"),
        ({"every": 0.5}, "every"),
        ({"every": 60, "at": datetime.now(UTC)}, "one of cron, every, at, after"),
        ({}, "one of cron, every, at, after"),
        ({"at": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"every": 60, "overlap": "maybe"}, "overlap"),
        ({"every": 60, "catch_up": "some"}, "catch_up"),
        ({"every": 60, "catch_up": 1000}, "catch_up"),
        ({"every": 60, "ends_at": datetime(2020, 1, 1, tzinfo=UTC)}, "never fires"),
        ({"at": datetime(2099, 1, 1, tzinfo=UTC)}, "5 years"),
    ):
        with pytest.raises(InvalidInput, match=words):
            await put("bad", "t", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="name"):
        await put("no such name!", "t", every=60)
    assert await hg.admin.schedules.list() == []


async def refusal(kind: type[HeadgateError], call: Awaitable[object], name: str) -> str:
    """What a call that is refused says, without the name that it was about."""
    with pytest.raises(kind) as caught:
        await call
    return str(caught.value).replace(name, "NAME")


async def test_tenants_scopes_and_topics_are_kept(hg: Headgate, server: ServerProcess) -> None:
    await hg.admin.schedules.put("secret", "payroll", every=3600)
    await hg.admin.schedules.put("letters", "mail", every=3600)
    async with Headgate(server.address, token=OTHER) as other:
        assert await other.admin.schedules.list() == []
        with pytest.raises(NotFound):
            await other.admin.schedules.get("secret")
        with pytest.raises(NotFound):
            await other.admin.schedules.trigger("secret")
    async with Headgate(server.address, token=READER) as reader:
        assert len(await reader.admin.schedules.list()) == 2
        for call in (
            reader.admin.schedules.pause("secret"),
            reader.admin.schedules.trigger("secret"),
            reader.admin.schedules.delete("secret"),
            reader.admin.schedules.put("mine", "mail", every=60),
        ):
            with pytest.raises(Forbidden):
                await call
    async with Headgate(server.address, token=MAIL) as mailer:
        assert [info.name for info in await mailer.admin.schedules.list()] == ["letters"]
        await mailer.admin.schedules.pause("letters")
        schedules = mailer.admin.schedules
        for verb in (schedules.get, schedules.trigger, schedules.jobs, schedules.pause, schedules.delete):
            said = [await refusal(NotFound, verb(name), name) for name in ("secret", "nobody-has-it")]
            assert said[0] == said[1]
        with pytest.raises(Forbidden):
            await schedules.put("mail/new", "payroll", every=60)
        # A name that is not theirs to choose: nothing tells whether it is taken.
        said = [await refusal(Forbidden, schedules.put(name, "mail", every=60), name) for name in ("secret", "free")]
        assert said[0] == said[1]
        # What is theirs they may change, whatever it is called; what is new is named after their topic.
        await schedules.put("letters", "mail", every=1800)
        await schedules.put("mail/nightly", "mail", every=3600)
        await hg.admin.schedules.put("mail/pay", "payroll", every=3600)
        with pytest.raises(NotFound):
            await schedules.put("mail/pay", "mail", every=3600)
        assert (await hg.admin.schedules.get("mail/pay")).topic == "payroll"
    for name in ("secret", "letters", "mail/nightly", "mail/pay"):
        await hg.admin.schedules.delete(name)


# ---------------------------------------------------------------------- declared in code


def application(address: str, token: str = OWNER, *, minutes: int = 5) -> tuple[Headgate, list[str]]:
    hg, ran = Headgate(address, token=token), list[str]()

    @hg.every(seconds=1, name="beat", arguments={"word": "tick"})
    @hg.cron("0 7 * * 1-5", zone="Europe/Zurich", name="report", overlap="skip", arguments={"word": "morning"})
    @hg.job("said", priority=5)
    async def say(word: str) -> None:
        ran.append(word)

    if minutes:

        @hg.every(minutes=minutes)
        @hg.job("swept")
        async def sweep() -> None:
            ran.append("swept")

    return hg, ran


@pytest.mark.req("W20")
async def test_a_handler_sees_the_schedule_the_occurrence_and_the_deadline_of_its_job(
    hg: Headgate, server: ServerProcess
) -> None:
    schedules = hg.admin.schedules
    seen: dict[str, Any] = {}
    await schedules.put("seen-each-second", "seen", every=1, headers={"trace": "abc"}, overlap="skip")
    deadline = datetime.now(UTC) + timedelta(hours=1)
    handle = await hg.submit("seen", b"plain", headers={"trace": "def"}, deadline=deadline)
    assert (await hg.get(handle.id)).deadline == deadline

    async def made() -> bool:
        return len(await schedules.jobs("seen-each-second")) > 0

    await until_async(made, "a job was made")
    await schedules.pause("seen-each-second")
    await schedules.trigger("seen-each-second")
    runs = {run.job_id: run for run in await schedules.jobs("seen-each-second")}
    assert len(runs) == 2
    info = await hg.get(next(iter(runs)))
    assert (info.headers, info.schedule) == ({"trace": "abc"}, "seen-each-second")  # nothing of ours among them
    async with Wire(server.address, token=OWNER) as wire:  # a script, first: what it takes goes back
        claim = worker_pb2.ClaimRequest(worker_id="script", topics=["seen"], count=3, wait_ms=30_000)
        told = list((await wire.call("Claim", claim)).jobs)
        for job in told:
            run = runs.get(JobId(UUID(bytes=job.id)))
            assert job.schedule == ("" if run is None else "seen-each-second")
            assert job.occurrence_us == (0 if run is None else unix_us(run.occurrence))
            assert dict(job.headers) == {"trace": "def" if run is None else "abc"}
            assert job.deadline_us == (unix_us(deadline) if run is None else 0)
        outcomes = [jobs_pb2.Outcome(id=job.id, epoch=job.epoch, abandon=jobs_pb2.Abandon()) for job in told]
        await wire.call("ReportOutcome", worker_pb2.ReportOutcomeRequest(worker_id="script", outcomes=outcomes))
    app = Headgate(server.address, token=OWNER)

    def look(job: Job) -> None:
        seen[job.id] = (job.schedule, job.occurrence, job.deadline, dict(job.headers))

    app.register("seen", look)
    worker = app.worker(concurrency=2)
    working = asyncio.create_task(worker.run())

    async def all_seen() -> bool:
        return len(seen) == 3

    await until_async(all_seen, "three jobs have run")
    worker.stop()
    await working
    await app.close()
    expected = {job: ("seen-each-second", run.occurrence, None, {"trace": "abc"}) for job, run in runs.items()}
    (plain,) = seen.keys() - runs.keys()
    assert seen == expected | {plain: (None, None, deadline, {"trace": "def"})}
    await schedules.delete("seen-each-second")


@pytest.mark.req("H10")
async def test_a_worker_stores_what_the_code_declares_and_runs_it(hg: Headgate, server: ServerProcess) -> None:
    schedules = hg.admin.schedules
    app, ran = application(server.address)
    worker = app.worker(concurrency=2)
    working = asyncio.create_task(worker.run())

    async def said() -> bool:
        return "tick" in ran

    await until_async(said, "a scheduled job has run")
    worker.stop()
    await working
    found = {info.name: info for info in await schedules.list()}
    assert list(found) == ["beat", "report", "swept"]
    assert (found["report"].when, found["report"].overlap) == ("0 7 * * 1-5 Europe/Zurich", "skip")
    assert (found["report"].priority, found["report"].payload) == (None, b'{"word":"morning"}')
    # The same again writes nothing; what changed is written; what is gone is reported, and deleted on request only.
    extra = await app.tasks["said"].schedule("extra", arguments={"word": "x"}, every=60, options={"overlap": "replace"})
    assert (extra.overlap, extra.payload, extra.priority) == ("replace", b'{"word":"x"}', None)
    await schedules.delete("extra")
    report = await app.sync_schedules()
    assert (report.changed, set(report.unchanged), report.removed) == ((), set(found), ())
    assert {info.name: info.version for info in await schedules.list()} == dict.fromkeys(found, 1)
    await app.close()
    changed, _ = application(server.address, minutes=6)
    assert (await changed.sync_schedules()).changed == ("swept",)
    await changed.close()
    fewer, _ = application(server.address, minutes=0)
    report = await fewer.sync_schedules()
    assert (report.removed, report.deleted) == (("swept",), ())
    assert (await fewer.sync_schedules(prune=True)).deleted == ("swept",)
    await fewer.close()
    assert [info.name for info in await schedules.list()] == ["beat", "report"]
    for name in ("beat", "report"):
        await schedules.delete(name)


async def test_a_worker_whose_token_may_not_store_schedules_works_anyway(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    app, ran = application(server.address, WORKER)
    worker = app.worker(concurrency=2)
    working = asyncio.create_task(worker.run())
    await app.tasks["said"].submit("by hand")

    async def done() -> bool:
        return ran == ["by hand"] and "schedules_not_stored" in caplog.text

    await until_async(done, "the job has run and the warning was given")
    assert "scope operate" in caplog.text
    with pytest.raises(Forbidden):
        await app.tasks["said"].schedule("mine", arguments={"word": "x"}, every=60)
    worker.stop()
    await working
    await app.close()


def test_declaring_it_wrongly_fails_when_the_module_is_loaded() -> None:
    hg = Headgate("127.0.0.1:1")
    with pytest.raises(InvalidInput, match="swap the two decorators"):
        hg.every(minutes=1)(lambda: None)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="never fires"):
        hg.cron("0 0 31 4 *")

    @hg.every(minutes=1)
    @hg.job("a")
    def a() -> None: ...

    with pytest.raises(InvalidInput, match="declared already"):
        hg.every(minutes=2)(a)

    @hg.job("b")
    def b(x: int) -> None: ...

    with pytest.raises(InvalidInput, match="x"):
        hg.every(minutes=2)(b)


# ---------------------------------------------------------------------- the command line


class Shell:
    """The command as scripts meet it: what it prints, and its exit code. In this process, which saves a second each."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *arguments: str, code: int = 0) -> str:
        found = main(["schedule", *arguments])
        said = self._capsys.readouterr()
        assert found == code, said
        return said.out if code == 0 else said.err


@pytest.fixture
def shell(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.setenv("HEADGATE_URL", server.address)
    monkeypatch.setenv("HEADGATE_TOKEN", OWNER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Shell(capsys)


def test_the_command_line_does_it_all(shell: Shell) -> None:
    text = shell.run("put", "nightly", "reports", '{"a":1}', "--cron", "30 2 * * *", "--zone", "Europe/Zurich")
    assert "nightly  active   version 1" in text
    assert "30 2 * * * Europe/Zurich" in text
    head, *first = shell.run("next", "nightly", "--count", "2").splitlines()
    assert (head.split(), len(first)) == (["LOCAL", "TIME", "UTC"], 2)
    assert re.search(r" 02:30:00 CES?T +20\S+:30:00Z \(in ", first[0])
    assert "version 2" in shell.run("pause", "nightly", "--reason", "holidays")
    assert json.loads(shell.run("get", "nightly", "--output", "json"))["reason"] == "holidays"
    assert shell.run("list").splitlines()[1].split()[:3] == ["nightly", "reports", "paused"]
    job = UUID(shell.run("run", "nightly").strip())
    assert f"{job}  triggered" in shell.run("get", "nightly")
    assert "active" in shell.run("resume", "nightly")
    assert "not 1" in shell.run("put", "nightly", "reports", "--every", "1h", "--version", "1", code=4)
    assert "never fires" in shell.run("next", "--cron", "0 0 30 2 *", code=2)
    assert len(json.loads(shell.run("next", "--every", "5m", "--output", "json"))) == 5
    assert "deleted" in shell.run("delete", "nightly")
    assert "nightly" in shell.run("get", "nightly", code=3)


def test_a_schedule_that_waits_for_a_full_topic_shows_it(shell: Shell) -> None:
    assert main(["topic", "set", "narrow", "--max-backlog", "0"]) == 0
    assert "when full wait" in shell.run("put", "waits", "narrow", "--after", "0s")

    def shown(words: str) -> str:
        text = shell.run("get", "waits")
        return text if words in text else ""

    text = until(lambda: shown("waits     since"), "the schedule waits")
    assert ": the backlog of narrow is full" in text
    told = json.loads(shell.run("get", "waits", "--output", "json"))
    assert (told["when_full"], told["full_since"] is None, told["skipped"]) == ("wait", False, 0)
    assert main(["topic", "set", "narrow", "--max-backlog", "none"]) == 0
    until(lambda: shown("1 made, 0 skipped"), "the occurrence was fired")
    assert "when full skip" in shell.run("put", "skips", "narrow", "--every", "1h", "--when-full", "skip")
    assert "when_full" in shell.run("put", "skips", "narrow", "--every", "1h", "--when-full", "later", code=2)
    for name in ("waits", "skips"):
        shell.run("delete", name)


def test_the_command_line_syncs_an_application(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from headgate import Headgate\n"
        "hg = Headgate()\n"
        "@hg.cron('@daily', zone='Asia/Tokyo')\n"
        "@hg.job('stock')\n"
        "def count() -> None: ...\n"
    )
    assert shell.run("sync", "shop:hg", "--source", "shop") == "stored  stock\n"
    (tmp_path / "again.py").write_text((tmp_path / "shop.py").read_text())
    assert shell.run("sync", "again:hg", "--source", "shop") == "unchanged  stock\n"
    (tmp_path / "empty.py").write_text("from headgate import Headgate\nhg = Headgate()\n")
    (tmp_path / "third.py").write_text((tmp_path / "shop.py").read_text())
    shown = shell.run("sync", "third:hg", "--source", "shop", "-o", "json")
    assert json.loads(shown) == [{"name": "stock", "change": "unchanged"}]
    assert "no longer declared  stock" in shell.run("sync", "empty:hg", "--source", "shop")
    (tmp_path / "void.py").write_text((tmp_path / "empty.py").read_text())
    assert shell.run("sync", "void:hg", "--source", "shop", "--prune") == "deleted  stock\n"


def test_a_program_neither_names_nor_prunes_the_schedules_of_another_one(shell: Shell, tmp_path: Path) -> None:
    text = "from headgate import Headgate\nhg = Headgate({})\n@hg.every(hours=1)\n@hg.job('{}')\ndef f() -> None: ...\n"
    for module, app, topic in (
        ("mails", "", "send"),
        ("bills", "", "print"),
        ("sums", "app='bills'", "sum"),
        ("pruned", "app='bills'", "sum"),
    ):
        (tmp_path / f"{module}.py").write_text(text.format(app, topic))
    assert shell.run("sync", "mails:hg") == "stored  send\n"
    assert shell.run("sync", "bills:hg") == "stored  print\n"
    assert shell.run("list", "--source", "mails", "-o", "name") == "send\n"
    assert "no longer declared  print" in shell.run("sync", "sums:hg")  # the name that is given counts
    assert shell.run("sync", "pruned:hg", "--prune") == "unchanged  sum\ndeleted  print\n"
    assert shell.run("list", "-o", "name") == "send\nsum\n"
    for name in ("send", "sum"):
        shell.run("delete", name)


# ---------------------------------------------------------------------- the documentation

HOWTO = Path(__file__).parents[2] / "docs/howto/schedules.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", HOWTO.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_howto_run(shell: Shell) -> None:
    declared, at_run_time = blocks("python")
    names: dict[str, Any] = {}
    exec(declared, names)  # noqa: S102 - our own page
    body = "".join(f"    {line}\n" for line in at_run_time.splitlines())
    exec(f"async def example():\n{body}", names)  # noqa: S102

    async def use() -> None:
        async with names["hg"] as hg:
            report = await hg.sync_schedules()
            assert set(report.changed) == {"morning-report", "sweep-inbox"}
            await names["example"]()
            for info in await hg.admin.schedules.list():
                await hg.admin.schedules.delete(info.name)

    asyncio.run(use())
    (commands,) = blocks("console")
    for line in commands.splitlines():
        command, noun, *rest = shlex.split(line)
        assert (command, noun) == ("headgate", "schedule")
        assert shell.run(*rest)
