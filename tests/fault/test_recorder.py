"""The recorder: what was noted survives a kill, and many files make one history."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fault.lab.history import Recorder, merged
from tests.support.waiting import until
from tests.support.workers import ROOT

PROGRAM = """
import sys
from pathlib import Path
from tests.fault.lab.history import Recorder
recorder = Recorder(Path(sys.argv[1]), "victim")
for n in range(50_000):  # it is killed long before
    recorder.note("tick", n=n)
"""


def test_lines_noted_before_a_kill_are_all_there(tmp_path: Path) -> None:
    victim = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, env={**os.environ})
    try:
        until(lambda: sum(file.stat().st_size for file in tmp_path.iterdir()) > 20_000, "it has noted something")
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait(10)
    events = merged(tmp_path)
    assert [event["n"] for event in events] == list(range(len(events)))


def test_files_are_merged_by_time_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    first, second = Recorder(tmp_path, "one"), Recorder(tmp_path, "two")
    op = first.invoke("submit", topic="mail")
    second.note("assign", job="a")
    first.end(op, "ok", job="a")
    again = Recorder(tmp_path, "one")  # a process that was started again: another file, the same name
    again.note("proc", what="start")
    with second.path.open("ab") as file:
        file.write(b'{"t": 1, "w": 1, "p"')
    events = merged(tmp_path)
    assert [event.kind for event in events] == ["invoke", "assign", "ok", "proc"]
    assert events[0]["op"] == events[2]["op"] == op
    assert {event.proc for event in events} == {"one", "two"}
    assert again.path != first.path


def test_a_line_costs_microseconds(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "one")
    began = time.process_time()
    for _ in range(2_000):
        recorder.note("assign", jobs=[["a" * 32, 1, 1, 12, "fast"]], lease_until=1)
    assert time.process_time() - began < 2  # of the processor: a thousand a second, on the slowest of machines
