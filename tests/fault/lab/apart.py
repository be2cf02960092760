"""Many scenarios in one go, each in a process of its own: one that fails, hangs or dies keeps no other from running."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.fault.lab.runner import ELSEWHERE, FAILED, NOT_RUN, PASSED, VIOLATED, WAITS, Result, without_a_world
from tests.fault.lab.scenarios import Scenario

TO_BEGIN_AND_END: Final = 60.0
"""Seconds beyond a scenario's own deadline, for its imports and for ending what it started."""
TO_CLEAN_UP: Final = 45.0
VERDICTS: Final = Path("build/faults.json")


def run_all(chosen: Iterable[Scenario], *, seed: int, options: Sequence[str] = (), long: bool = False) -> list[Result]:
    """Run them one after the other, whatever becomes of each; `options` are handed on to `tests.fault.lab`."""
    results: list[Result] = []
    for one in chosen:
        result = without_a_world(one)
        if result is None:
            result = _run(one, ["--only", one.number, "--seed", str(seed), *options], long=long)
        results.append(result)
    return results


def _run(one: Scenario, arguments: Sequence[str], *, long: bool) -> Result:
    began = time.monotonic()
    deadline = one.deadline(long=long).total_seconds() + TO_BEGIN_AND_END
    with tempfile.TemporaryDirectory(prefix="headgate-verdict-") as folder:
        verdict = Path(folder) / "verdict.json"
        command = [sys.executable, "-m", "tests.fault.lab", *arguments, "--verdict", str(verdict)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        note = ""
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            note = f"did not even end {TO_BEGIN_AND_END:.0f} s after its deadline"
        finally:
            _end(process)
        result = Result(name=one.number, title=one.title, verdict=FAILED, seconds=0.0)
        if verdict.exists():
            found = json.loads(verdict.read_text())
            result.verdict, result.note = found["verdict"], found["note"]
            result.coverage = found["coverage"]
        else:
            result.note = note or f"ended with {process.returncode} and without a verdict"
    result.seconds = time.monotonic() - began
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """By way of its own cleaning up, if it still runs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(TO_CLEAN_UP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write_verdict(result: Result, file: Path) -> None:
    """For the process that has started this one."""
    told = {"verdict": result.verdict, "note": result.note, "coverage": dict(result.coverage)}
    file.write_text(json.dumps(told))


def remember(results: Iterable[Result]) -> None:
    """Note how each ended, for `make requirements`; what was not run now keeps its last verdict."""
    try:
        known = json.loads(VERDICTS.read_text())
    except (FileNotFoundError, ValueError):
        known = {}
    known.update({one.name: f"{one.verdict}{f' {one.reason}' if one.verdict == ELSEWHERE else ''}" for one in results})
    VERDICTS.parent.mkdir(parents=True, exist_ok=True)
    VERDICTS.write_text(json.dumps(known, indent=1, sort_keys=True))


def together(results: Iterable[Result]) -> Counter[str]:
    """How often each fact was met, in all of them."""
    found: Counter[str] = Counter()
    for one in results:
        found.update(one.coverage)
    return found


def table(results: Sequence[Result]) -> str:
    """A line for each, and a last one with the sums."""
    lines = [f"{'fault':6} {'verdict':9} {'seconds':>7}  what"]
    for one in results:
        note = one.reason
        seconds = f"{one.seconds:7.1f}" if one.seconds else f"{'':7}"
        lines.append(f"{one.name:6} {one.verdict:9} {seconds}  {one.title}{f': {note}' if note else ''}")

    def those(*verdicts: str) -> str:
        found = [one.name for one in results if one.verdict in verdicts]
        return f"{len(found)} ({' '.join(found)})" if found else "0"

    lines.append(
        f"passed {sum(one.verdict == PASSED for one in results)}, FAILED {those(FAILED, VIOLATED)}, "
        f"NOT RUN on this machine {those(NOT_RUN)}, waiting {those(WAITS)}, tested elsewhere {those(ELSEWHERE)}; "
        f"{sum(one.seconds for one in results):.0f} s"
    )
    return "\n".join(lines)
