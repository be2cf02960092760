"""What makes a run red besides its invariants: logs, faults that could not be brought about, tools that are missing."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from pathlib import Path
from textwrap import indent

import pytest

from tests.fault.lab import runner, tools
from tests.fault.lab.logs import troubles
from tests.fault.lab.runner import ELSEWHERE, FAILED, NOT_RUN, PASSED, VIOLATED, WAITS, Result
from tests.fault.lab.scenarios import Scenario
from tests.fault.lab.tools import MissingTools
from tests.fault.lab.world import NotRunHere

TRACEBACK = """2026-11-16 02:53:31,101 INFO headgate.server ready instance=s1 no=1 port=7000
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    handle.when()
AttributeError: 'uvloop.loop.Handle' object has no attribute 'when'
"""
FAILED_JOB = "2026-11-16 02:53:31,101 WARNING headgate.worker job_failed topic=a\n"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("s1-1.log", TRACEBACK, ["s1-1.log: 1 × traceback, AttributeError: 'uvloop.loop.Handle' object has no"]),
        ("w2-3.log", TRACEBACK * 2, ["w2-3.log: 2 × traceback, AttributeError"]),
        ("s1-1.log", indent(TRACEBACK, "  "), ["s1-1.log: 1 × traceback, AttributeError"]),  # as our own log writes it
        (
            "s1-1.log",
            "2026-11-16 02:53:31,101 ERROR headgate.limits limits_corrected counters=3",
            ["1 × headgate.limits"],
        ),
        ("s1-1.log", "2026-11-16 02:53:31,101 CRITICAL headgate service_died service=tick", ["service_died"]),
        ("w1-1.log", "2026-11-16 02:53:31,101 ERROR headgate.worker did_not_stop handlers=2", []),
        ("s1-1.log", "2026-11-16 02:53:31,101 WARNING headgate.dispatch claim_failed error=ERROR", []),
        ("w1-1.log", FAILED_JOB + TRACEBACK.partition("\n")[2], []),  # of a handler
        ("w1-1.log", FAILED_JOB + TRACEBACK, ["traceback, AttributeError"]),
        ("postgres.log", TRACEBACK, []),  # not ours
    ],
)
def test_a_log_with_unexpected_lines_is_reported(tmp_path: Path, name: str, text: str, told: list[str]) -> None:
    (tmp_path / name).write_text(text)
    found = list(troubles(tmp_path))
    assert len(found) == len(told)
    assert all(part in line for part, line in zip(told, found, strict=True))


def test_a_scenario_may_expect_an_error(tmp_path: Path) -> None:
    (tmp_path / "s1-1.log").write_text("2026-11-16 02:53:31,101 ERROR headgate.ops process_ended process=2 exit=-9")
    assert list(troubles(tmp_path))
    assert not list(troubles(tmp_path, allowed=["process_ended process=2"]))


def test_only_what_was_run_or_is_not_to_be_run_here_is_good() -> None:
    def good(verdict: str) -> bool:
        return Result(name="F1", title="", verdict=verdict, seconds=0).good

    assert [good(verdict) for verdict in (PASSED, WAITS, ELSEWHERE)] == [True] * 3
    assert [good(verdict) for verdict in (VIOLATED, FAILED, NOT_RUN)] == [False] * 3


async def test_a_fault_that_could_not_be_brought_about_is_not_green(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nowhere:
        def __init__(self, *_: object, **__: object) -> None:
            raise NotRunHere("not installed: nft")

    async def act(_: object) -> None:
        raise AssertionError("there is no world")

    monkeypatch.setattr(runner, "World", Nowhere)
    chosen = Scenario(number="F33", title="cut", act=act, within=timedelta(seconds=5))
    result = await runner.run_scenario(chosen, seed=1)
    assert (result.verdict, result.note, result.good) == (NOT_RUN, "not installed: nft", False)


# ---------------------------------------------------------------------- tools


def answering(monkeypatch: pytest.MonkeyPatch, *, root: bool, apt: bool = True, brings: bool = True) -> list[list[str]]:
    """A machine without nft; gives the commands that were run."""
    there, asked = {"ip", "tc", "cc", "mount"} | ({"apt-get"} if apt else set()), []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[1:])
        if "install" in command and brings:
            there.add("nft")
        return subprocess.CompletedProcess(command, 0 if brings else 100, "", "E: no such package")

    monkeypatch.setattr(
        "tests.fault.lab.tools.shutil.which", lambda name: f"/usr/bin/{name}" if name in there else None
    )
    monkeypatch.setattr("tests.fault.lab.tools.subprocess.run", run)
    monkeypatch.setattr("tests.fault.lab.tools.os.geteuid", lambda: 0 if root else 1000)
    return asked


def test_what_is_missing_is_installed_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, root=True)
    assert tools.install() == ["nftables"]
    assert asked == [["update"], ["install", "-y", "--no-install-recommends", "nftables"]]
    assert tools.install() == []


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"root": False}, "need nft: apt-get update && apt-get install -y nftables .as root."),
        ({"root": True, "apt": False}, "install them by hand"),
        ({"root": True, "brings": False}, "that failed: E: no such package"),
    ],
)
def test_a_fault_that_cannot_be_installed_is_reported(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, bool], words: str
) -> None:
    answering(monkeypatch, **machine)
    with pytest.raises(MissingTools, match=words):
        tools.install()
