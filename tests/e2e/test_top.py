"""`headgate top` against a real server: by Textual's pilot, and once in a real terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Input

from headgate import Headgate
from headgate.cli.top import app as top
from headgate.cli.top import texts
from headgate.cli.top.app import TopApp
from headgate.cli.top.pages import Page, Row
from headgate.cli.top.places import Place, View
from headgate.cli.top.reading import Snapshot
from headgate.domain.redaction import Redaction
from headgate.sdk.connection import Connection
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.database import Server
from tests.support.server import HEADGATE, ServerProcess, clean_environ
from tests.support.top_screen import rows_of
from tests.support.waiting import until_async
from tests.support.wire import Wire, failed, served

FAST = timedelta(milliseconds=200)
SLOW = timedelta(hours=1)
FAILING = "ListFailing"


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    with served(postgres, template, tmp_path_factory.mktemp("top")) as found:
        yield found


@pytest.fixture
async def hg(server: ServerProcess) -> AsyncIterator[Headgate]:
    async with Headgate(server.address) as client:
        yield client


class Seen:
    """The application under test, and what a user would do."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def shows(self, *patterns: str) -> str:
        """Wait until the screen shows all of these."""
        text = ""

        async def shown() -> bool:
            nonlocal text
            await self.pilot.pause()
            text = rows_of(self.app)
            return all(re.search(pattern, text, re.MULTILINE) for pattern in patterns)

        try:
            await until_async(shown, f"the screen shows {patterns}")
        except AssertionError as error:
            error.add_note(text)
            raise
        return text

    async def is_read(self) -> None:
        """Wait until the server has answered for the current place."""

        async def read() -> bool:
            return self.app.snapshot is not None and self.app.snapshot.place == self.app.place

        await until_async(read, "the list is read")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Replace what is in the focused input."""
        focused = self.app.focused
        assert isinstance(focused, Input)
        focused.value = text
        await self.pilot.press("enter")

    async def select(self, text: str) -> None:
        """Move the cursor to the row that has this text."""

        async def found() -> bool:
            await self.pilot.pause()
            table = self.app.query_one(DataTable)
            for at in range(table.row_count):
                if any(text in str(cell) for cell in table.get_row_at(at)):
                    table.move_cursor(row=at)
                    return True
            return False

        await until_async(found, f"a row has {text}")


@asynccontextmanager
async def opened(
    hg: Headgate, server: ServerProcess, *, interval: timedelta = FAST, read_only: bool = False
) -> AsyncIterator[Seen]:
    app = TopApp(hg, server=server.address, redaction=Redaction.of([]), interval=interval, read_only=read_only)
    async with app.run_test(size=(220, 40)) as pilot:
        seen = Seen(app, pilot)
        await seen.shows("db ok")
        yield seen


async def dead_job(server: ServerProcess, topic: str, error: str, *, log: str = "") -> str:
    """A job whose only attempt has failed, and has logged a line."""
    async with Headgate(server.address) as hg, Wire(server.address) as wire, wire.worker() as session:
        handle = await hg.submit(topic, {"order": 4711}, max_attempts=1)
        await session.ready(1, topic)
        (job,) = await session.take(1)
        if log:
            line = jobs_pb2.LogLine(seq=1, level=jobs_pb2.LOG_LEVEL_ERROR, logger="shop", text=log)
            lines = worker_pb2.JobLines(id=job.id, epoch=job.epoch, lines=[line])
            await session.send(worker_pb2.WorkerFrame(logs=[lines]))
        await session.report(failed(job, error))
        return str(handle.id)


async def test_the_first_screen_says_where_one_is_and_how_it_is(
    hg: Headgate, server: ServerProcess, topic: str
) -> None:
    await hg.submit_many(topic, [{}] * 3)
    async with opened(hg, server) as seen:
        text = await seen.shows(rf"{topic}\s+no worker\s+3\s+0\s+0\s+0\s+0\s+0")
    lines = text.splitlines()
    assert re.match(
        rf" headgate top · default @ {server.address} · db ok · 1 instance · lag \S+ · every 200ms · \? help$", lines[0]
    )
    assert re.match(
        r" PENDING [1-9]\S*   RUNNING \d+   RETRYING \d+   SCHEDULED \d+   BLOCKED \d+   DEAD \d+ ", lines[1]
    )
    assert re.search(r"DONE/s [\d.]+ [▁▂▃▄▅▆▇█]+$", lines[1])
    assert lines[2].startswith(" [1]Topics  2 Jobs  3 Workers  4 Schedules  5 Dead letters  6 Operations")
    assert lines[-1].strip().startswith("Enter jobs   p pause/resume   / filter   : command   ? help   q quit")


async def test_the_first_drawing_of_a_table_cuts_no_name(hg: Headgate, server: ServerProcess) -> None:
    name = "a topic with a name that is longer than its heading"
    async with opened(hg, server, interval=SLOW) as seen:
        await seen.is_read()
        seen.app._show_rows(Page())
        seen.app._show_rows(Page(headings=("TOPIC",), rows=(Row(key=name, cells=(Text(name),), item=None),)))
        # Before Textual is idle, which is when it would measure what was added.
        assert "".join(segment.text for segment in seen.app.query_one(DataTable).render_line(1)).strip() == name


async def test_one_goes_from_a_topic_to_its_jobs_to_one_job_to_its_events_and_back(
    hg: Headgate, server: ServerProcess, topic: str
) -> None:
    said = "the log [red]says[/red] \x1b[2J\x07so password=hunter2"
    job = await dead_job(server, topic, "the bank [red]did not[/red] answer\x1b[2J", log=said)
    async with opened(hg, server) as seen:
        await seen.select(topic)
        await seen.press("enter")
        # What users write is shown as it is: neither markup nor a code of the terminal.
        await seen.shows(
            rf"\[2\]Jobs.* / topic:{topic}", rf"dead +{topic} +1/1 .*bank \[red\]did not\[/red\] answer\\x1b\[2J"
        )
        await seen.press("enter")
        await seen.shows(rf"> Job {job}", r"attempt 1 of 1", r'"order": 4711', r"did not")
        await seen.press("l")
        await seen.shows(rf"> Log {job}", r"ERROR +shop +the log \[red\]says\[/red\] \\x07so password=•••")
        await seen.press("e")
        await seen.shows(rf"> Events {job}", r"failed +dead +1 ", r"\[red\]did not")
        await seen.press("escape", "escape")
        await seen.shows(rf"> Job {job}", r'"order": 4711')
        await seen.press("escape", "escape")
        await seen.shows(r"\[1\]Topics", rf"{topic}")
        for key, view in zip("23456", list(View)[1:6], strict=True):
            await seen.press(key)
            await seen.shows(rf"\[{key}\]{view}")


async def test_a_filter_is_of_the_one_language_and_a_mistake_says_where(
    hg: Headgate, server: ServerProcess, topic: str
) -> None:
    other = f"other-{uuid4()}"
    await hg.submit(topic, {})
    await hg.submit(other, {})
    async with opened(hg, server) as seen:
        await seen.press("2", "slash")
        await seen.type("state:failed")
        await seen.shows(r"filter: at character 7: 'failed' is no state; did you mean \"dead\"\?")
        await seen.type(f"state:pending topic:{topic}")
        text = await seen.shows(rf"/ state:pending topic:{topic}", rf"pending +{topic}")
        assert other not in text
        await seen.press("1", "slash")
        await seen.type(other[:12])
        text = await seen.shows(rf"/ {other[:12]}", rf"^ {other} ")
        assert topic not in text
        await seen.press("colon")
        await seen.type("jbos")
        await seen.shows(r"command: there is no 'jbos'; did you mean \"jobs\"\?")
        await seen.type(f"jobs topic:{topic} state:dead")
        await seen.shows(r"no jobs match")
        await seen.press("colon")
        await seen.type("interval 5s")
        await seen.shows("reads every 5s", "· every 5s ·")
        await seen.press("question_mark")
        await seen.shows("p         pause or resume a topic")
        await seen.press("escape", "colon")
        await seen.type("quit")
    assert seen.app.return_code == 0


async def test_a_topic_is_paused_and_resumed_with_a_reason_after_a_confirmation(
    hg: Headgate, server: ServerProcess, topic: str
) -> None:
    await hg.submit(topic, {})
    async with opened(hg, server) as seen:
        await seen.select(topic)
        await seen.press("p")
        await seen.shows(rf"Pause topic {topic}\?")
        await seen.press("escape")
        assert not (await hg.admin.status()).paused
        await seen.press("p")
        await seen.shows(rf"Pause topic {topic}\?")
        await seen.type("bank outage")
        await seen.shows(rf"topic {topic} is paused", rf"{topic} +paused")
        (pause,) = (await hg.admin.status()).paused
        assert (pause.target, pause.reason) == (f"topic {topic}", "bank outage")
        await seen.press("p")
        await seen.shows(rf"Resume topic {topic}\?")
        await seen.press("enter")
        await seen.shows(rf"topic {topic} is resumed", rf"{topic} +no worker")
    assert not (await hg.admin.status()).paused


@pytest.mark.parametrize("reason", ["quit", "jobs"])
async def test_the_reason_of_an_action_is_not_taken_for_a_command(
    hg: Headgate, server: ServerProcess, topic: str, reason: str
) -> None:
    await hg.submit(topic, {})
    async with opened(hg, server) as seen:
        await seen.select(topic)
        await seen.press("p")
        await seen.shows(rf"Pause topic {topic}\?")
        await seen.type(reason)
        await seen.shows(rf"topic {topic} is paused", rf"{topic} +paused")
        (pause,) = (await hg.admin.status()).paused
        await hg.admin.resume(topic=topic)
        assert (pause.reason, seen.app.place.view, seen.app.is_running) == (reason, View.TOPICS, True)


async def test_jobs_are_redriven_and_cancelled_and_a_group_of_dead_letters_as_an_operation(
    hg: Headgate, server: ServerProcess, topic: str
) -> None:
    job = await dead_job(server, topic, "no answer")
    async with opened(hg, server) as seen:
        await seen.press("colon")
        await seen.type(f"jobs topic:{topic}")
        await seen.select(job)
        await seen.press("r")
        await seen.shows(rf"Redrive job {job}\?")
        await seen.type("the bank is back")
        await seen.shows(rf"job {job} is due again", rf"pending +{topic}")
        await seen.press("c")
        await seen.shows(rf"Cancel job {job}\?")
        await seen.press("enter")
        await seen.shows(rf"job {job} is cancelled", rf"cancelled +{topic}")
        assert [event.reason for event in await hg.admin.jobs.events(job) if event.kind == "redriven"] == [
            "the bank is back"
        ]
        again = await dead_job(server, topic, "no answer")
        await seen.press("5")
        await seen.select(topic)
        await seen.press("r")
        await seen.shows(rf"Redrive 1 dead letter of {topic}\?")
        await seen.press("enter")
        await seen.shows("operation .* redrives them; 6 shows it")
        await seen.press("6")
        await seen.shows(rf"redrive +done .*1 of 1 .*topic:{topic}")
        assert (await hg.get(again)).state == "pending"


async def test_a_worker_is_asked_to_stop_with_a_reason_after_a_confirmation(
    hg: Headgate, server: ServerProcess, topic: str
) -> None:
    async with Wire(server.address) as wire, wire.worker(f"w-{topic}") as session, opened(hg, server) as seen:
        await session.ready(1, topic)
        await seen.press("3")
        await seen.select(f"w-{topic}")
        await seen.press("s")
        await seen.shows(rf"Stop worker w-{topic}\?")
        await seen.type("memory leak")
        await seen.shows(rf"worker w-{topic} is asked to stop", r"stopping")
        await session.until(lambda: any(one.HasField("stop") for one in session.frames), "it is asked to stop")
    entry = next(one for one in await hg.admin.audit() if one.verb == "stop_worker")
    assert (entry.target, entry.reason) == (f"worker w-{topic}", "memory leak")


async def test_a_read_only_view_changes_nothing(hg: Headgate, server: ServerProcess, topic: str) -> None:
    await hg.submit(topic, {})
    async with opened(hg, server, read_only=True) as seen:
        await seen.shows("· read-only ·")
        await seen.select(topic)
        await seen.press("p")
        await seen.shows("this view is read-only")
        assert "pause/resume" not in rows_of(seen.app)
        assert len(seen.app.screen_stack) == 1
    assert not (await hg.admin.status()).paused


async def test_what_fails_now_is_named(hg: Headgate, server: ServerProcess, topic: str) -> None:
    await dead_job(server, topic, "no answer in 15 s")
    async with opened(hg, server) as seen:
        await seen.shows(r"FAILING NOW .*\d+×  last \S+ ago")


async def test_each_interval_costs_at_most_one_small_set_of_calls(
    hg: Headgate, server: ServerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are counted, not seconds: the status, one list, and what fails at most every ten seconds."""
    await hg.submit(topic, {})
    calls: list[str] = []
    real = Connection.call

    async def counted(self: Connection, method: Any, *args: Any, **options: Any) -> Any:
        calls.append(method.path.rpartition("/")[2])
        return await real(self, method, *args, **options)

    monkeypatch.setattr(Connection, "call", counted)
    async with opened(hg, server, interval=SLOW) as seen:
        assert [one for one in calls if one != FAILING] == ["Status"]
        for key, expected in zip(
            "23456", ("ListJobs", "ListWorkers", "List", "ListDeadGroups", "ListBulk"), strict=True
        ):
            calls.clear()
            await seen.press(key)
            await seen.shows(rf"\[{key}\]")
            await seen.is_read()
            assert [one for one in calls if one != FAILING] == ["Status", expected]
            assert len(calls) <= 3
        calls.clear()
        headers = 0
        real_header = texts.header

        def header(heading: texts.Heading, *, now: float) -> Text:
            nonlocal headers
            headers += 1
            return real_header(heading, now=now)

        monkeypatch.setattr(texts, "header", header)

        async def drawn_again() -> bool:
            await seen.pilot.pause()
            return headers > 0

        await until_async(drawn_again, "the first line is drawn again, a second later")
    assert calls == [], "nothing is read before the interval is over"


async def test_a_read_begins_only_after_the_one_before_has_ended(
    hg: Headgate, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most = 0, 0
    real = Connection.call

    async def slow(self: Connection, method: Any, *args: Any, **options: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(0.3)  # longer than the interval
            return await real(self, method, *args, **options)
        finally:
            at_once -= 1

    monkeypatch.setattr(Connection, "call", slow)
    async with opened(hg, server) as seen:
        await seen.press("2", "3", "1")
        await seen.shows(r"\[1\]Topics", "db ok")
    assert most == 1


async def test_an_answer_that_comes_while_it_quits_is_not_shown(
    hg: Headgate, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textual removes what is on the screen before it ends the tasks of the application."""
    asked, empty = asyncio.Event(), asyncio.Event()
    async with opened(hg, server) as seen:
        answer, close_screens = seen.app.snapshot, seen.app._close_all

        async def late(place: Place) -> Snapshot | None:
            asked.set()
            await empty.wait()
            return answer

        async def close() -> None:
            await close_screens()
            empty.set()
            for _ in range(10):
                await asyncio.sleep(0)

        monkeypatch.setattr(seen.app._reader, "read", late)
        monkeypatch.setattr(seen.app, "_close_all", close)
        async with asyncio.timeout(60):
            await asked.wait()
    assert seen.app._exception is None


async def test_an_absent_server_is_named_and_its_return_is_seen(
    postgres: Server, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "AWAY_SECONDS", 0.3)
    with served(postgres, template, tmp_path) as (server, database):
        async with Headgate(server.address) as hg, opened(hg, server) as seen:
            await hg.submit("mail", {})
            await seen.shows(r"mail +no worker +1")
            await asyncio.to_thread(server.kill)
            await seen.shows(rf"{server.address} does not answer, for \S+; trying again", r"mail +no worker +1")
            again = await asyncio.to_thread(ServerProcess, database, folder=tmp_path, port=server.port)
            with again:
                await hg.submit("mail", {})
                await seen.shows("· db ok ·", r"mail +no worker +2")


class Terminal:
    """A pseudo terminal with a process in it."""

    def __init__(self, *command: str | Path, environ: dict[str, str]) -> None:
        self._primary, secondary = pty.openpty()
        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            env={**clean_environ(), "TERM": "xterm-256color", "PYTHONUTF8": "1", **environ},
            start_new_session=True,
        )
        os.close(secondary)
        self.text = ""

    def shows(self, pattern: str, *, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text[-3000:]
            ready, _, _ = select.select([self._primary], [], [], 0.2)
            if ready:
                try:
                    self.text += os.read(self._primary, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert re.search(pattern, self.text), self.text[-3000:]

    def press(self, keys: str) -> None:
        os.write(self._primary, keys.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        os.close(self._primary)


async def test_in_a_real_terminal_it_draws_obeys_keys_and_leaves_it_clean(
    hg: Headgate, server: ServerProcess, topic: str
) -> None:
    await hg.submit(topic, {})
    terminal = Terminal(
        HEADGATE, "top", "--url", server.address, "--interval", "200ms", environ={"NO_COLOR": "1", "LANG": "C.UTF-8"}
    )
    try:
        await asyncio.to_thread(terminal.shows, "headgate top")
        await asyncio.to_thread(terminal.shows, "db ok")
        await asyncio.to_thread(terminal.shows, topic)
        terminal.press("2")
        await asyncio.to_thread(terminal.shows, r"\[2\]Jobs")
        colours = {found for found in re.findall(r"\x1b\[([\d;]*)m", terminal.text) if re.search(r"(3|4)8;2;", found)}
        grey = {
            found
            for found in colours
            for red, green, blue in re.findall(r"8;2;(\d+);(\d+);(\d+)", found)
            if red == green == blue
        }
        assert colours == grey, "NO_COLOR"
        terminal.press("q")
        # Back to the screen before. Read first: what it writes to a terminal that nothing reads, it waits for.
        await asyncio.to_thread(terminal.shows, re.escape("\x1b[?1049l"))
        assert await asyncio.to_thread(terminal.process.wait, 60) == 0
    finally:
        terminal.close()
    assert "Traceback" not in terminal.text
