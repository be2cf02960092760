"""The parent of several processes, with children that do nothing but misbehave."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.ops import supervisor
from headgate.ops.supervisor import ProcessSupervisor, StartFailed
from tests.support.waiting import until_async

# Sends the messages of `headgate.ops.child`; its start message says how it misbehaves.
CHILD = """
import json, os, signal, sys, time
start = json.loads(sys.stdin.readline())
def send(**message):
    os.write(1, json.dumps(message).encode() + b"\\n")
def note(word):
    with open(start["notes"], "a") as notes:
        notes.write(f"{start['number']} {os.getpid()} {word}\\n")
signal.signal(signal.SIGTERM, signal.SIG_IGN if start["how"] == "deaf" else signal.SIG_DFL)
note("begun")
if start["how"] == "refuses":
    send(type="failed", text="it is raining", code=78)
    sys.exit(78)
send(type="prepared")
json.loads(sys.stdin.readline())
note("ready")
send(type="ready")
if start["how"] == "short-lived":
    while not os.path.exists(start["notes"] + ".die"):
        time.sleep(0.01)
    sys.exit(3)
if start["sessions"]:
    send(type="sessions", count=start["sessions"])
for line in sys.stdin:
    note(line.strip())
"""


class Supervised:
    """Three of them, and what they have noted."""

    def __init__(self, folder: Path, how: str, *, sessions: int = 0, command: str = sys.executable) -> None:
        script = folder / "child.py"
        script.write_text(CHILD)
        self.notes, self.how, self.stop = folder / "notes", how, asyncio.Event()
        self.sessions, self.next_of_first = sessions, list[str]()
        """Of the first one: the sessions it reports, and how it misbehaves when it is started the next times."""

        def start_message(number: int) -> dict[str, object]:
            many = self.sessions if number == 1 else 0
            how = self.next_of_first.pop(0) if number == 1 and self.next_of_first else self.how
            return {"number": number, "how": how, "notes": str(self.notes), "sessions": many}

        self.supervisor = ProcessSupervisor([command, str(script)], start_message, number=3, grace=0)

    def noted(self, word: str) -> list[tuple[int, int]]:
        """Number and pid of those who noted this."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        found = [line.split(" ", 2) for line in lines]
        return [(int(number), int(pid)) for number, pid, said in found if said == word]

    async def begun(self, number: int, *, process: int | None = None) -> None:
        async def enough() -> bool:
            return sum(process in (None, who) for who, _ in self.noted("begun")) >= number

        await until_async(enough, f"{number} have begun")


@asynccontextmanager
async def started(supervised: Supervised) -> AsyncIterator[asyncio.Task[None]]:
    await supervised.supervisor.start(supervised.stop)
    running = asyncio.create_task(supervised.supervisor.run(supervised.stop))
    try:
        yield running
    finally:
        supervised.stop.set()
        await running
        assert await supervised.supervisor.stop(), "none had to be killed"
        for _, pid in supervised.noted("begun"):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def test_they_begin_together_and_end_together(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "well")
    async with started(supervised):
        order = [line.split()[2] for line in supervised.notes.read_text().splitlines()]
        assert order == ["begun"] * 3 + ["ready"] * 3
    assert len(supervised.noted("begun")) == 3


async def test_one_that_cannot_start_ends_all_with_its_message_and_its_code(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "refuses")
    with pytest.raises(StartFailed, match="it is raining") as caught:
        await supervised.supervisor.start(supervised.stop)
    assert caught.value.code == 78


async def test_a_program_that_cannot_be_run_is_no_silence(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "well", command=str(tmp_path / "missing"))
    with pytest.raises(StartFailed, match="cannot be started"):
        await supervised.supervisor.start(supervised.stop)


async def test_who_keeps_dying_is_started_after_waits_that_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.1)
    supervised = Supervised(tmp_path, "short-lived")
    with caplog.at_level(logging.ERROR):
        async with started(supervised):
            (tmp_path / "notes.die").touch()
            await supervised.begun(5, process=1)
    waits = [float(found[1]) for found in re.finditer(r"process_ended process=1 exit=3 restart_in=(\S+)", caplog.text)]
    assert waits[-1] > 2 * waits[0]


async def test_who_does_not_hear_is_killed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "KILL_SECONDS", 0.2)
    supervised = Supervised(tmp_path, "deaf")
    await supervised.supervisor.start(supervised.stop)
    assert await supervised.supervisor.stop() is False
    for _, pid in supervised.noted("begun"):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_one_that_is_killed_is_replaced_and_the_others_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.01)
    supervised = Supervised(tmp_path, "well")
    async with started(supervised):
        victim = dict(supervised.noted("begun"))[2]
        os.kill(victim, signal.SIGKILL)
        await supervised.begun(4)
        assert sorted(number for number, _ in supervised.noted("begun")) == [1, 2, 2, 3]


async def test_a_process_with_all_the_sessions_is_asked_to_move_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "BALANCE_SECONDS", 0.05)
    supervised = Supervised(tmp_path, "well", sessions=30)
    async with started(supervised):

        async def asked() -> bool:
            return bool(supervised.noted('{"type": "move_sessions", "count": 20}'))

        await until_async(asked, "the first one is asked")
    assert {number for number, _ in supervised.noted('{"type": "move_sessions", "count": 20}')} == {1}


def kill_first(supervised: Supervised) -> None:
    os.kill([pid for number, pid in supervised.noted("begun") if number == 1][-1], signal.SIGKILL)


@pytest.mark.parametrize("delay", [0.01, 600.0], ids=["started-again", "dead"])
async def test_sessions_of_a_process_that_has_died_are_not_moved_any_more(
    delay: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", delay)
    caplog.set_level(logging.INFO)
    supervised = Supervised(tmp_path, "well", sessions=30)
    async with started(supervised):

        async def asked() -> bool:
            supervised.supervisor._balance()
            return "sessions_moved process=1 count=20 of=30" in caplog.text

        await until_async(asked, "its sessions are known")
        supervised.sessions = 0
        kill_first(supervised)

        async def is_over() -> bool:
            return "process_ended process=1" in caplog.text and (delay > 1 or len(supervised.noted("ready")) == 4)

        await until_async(is_over, "it is dead, or there again")
        caplog.clear()
        supervised.supervisor._balance()
        assert "sessions_moved" not in caplog.text


async def test_the_reason_of_a_failed_start_is_not_that_of_a_later_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.01)
    supervised = Supervised(tmp_path, "well")
    async with started(supervised):
        supervised.next_of_first = ["refuses"]
        for starts in (5, 6):  # three at first; one that refuses and one that does not; one more
            kill_first(supervised)
            await supervised.begun(starts)
    ends = re.findall(r"process_ended process=1 exit=(\S+) restart_in=\S+ error=(.*)", caplog.text)
    assert ends == [("-9", "none"), ("78", "it is raining"), ("-9", "none")]


async def test_a_stop_that_comes_while_a_process_is_being_started_ends_it(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "well")
    parent = supervised.supervisor
    parent._stopping.set()
    try:
        async with asyncio.timeout(30):
            assert await parent._run_child(parent._children[0]) == -signal.SIGTERM
    finally:
        parent.kill()
