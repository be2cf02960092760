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

        def start_message(number: int) -> dict[str, object]:
            many = sessions if number == 1 else 0
            return {"number": number, "how": self.how, "notes": str(self.notes), "sessions": many}

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
        await supervised.supervisor.stop()
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
