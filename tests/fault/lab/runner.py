"""Runs one scenario, or the mix, from the first process to the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from tests.fault.lab.checker import Report
from tests.fault.lab.checker.coverage import not_reached
from tests.fault.lab.logs import troubles
from tests.fault.lab.scenarios import Scenario
from tests.fault.lab.world import DRAIN, NotRunHere, World

PASSED, VIOLATED, FAILED, NOT_RUN = "passed", "VIOLATED", "FAILED", "not run"
WAITS, ELSEWHERE = "waits", "elsewhere"
KEPT: Final = Path("build/faults")


@dataclass(slots=True, kw_only=True)
class Result:
    """How a run ended, and where its history lies if it did not end well."""

    name: str
    title: str
    verdict: str
    seconds: float
    note: str = ""
    report: Report | None = None
    folder: Path | None = None
    troubles: tuple[str, ...] = ()
    """What is not expected in the logs of servers and workers."""
    coverage: Mapping[str, int] = field(default_factory=dict)
    """How often each fact that must be met sometimes was met."""

    @property
    def good(self) -> bool:
        """False also for a fault that could not be brought about: nothing is known about it."""
        return self.verdict not in (VIOLATED, FAILED, NOT_RUN)

    @property
    def reason(self) -> str:
        """The last line of its note: what broke, what it waits for, where it is tested."""
        return (self.note.strip().splitlines() or [""])[-1]


def without_a_world(chosen: Scenario) -> Result | None:
    """The result of one that is not run here at all, and why; None for all others."""
    if chosen.waits_for:
        verdict, note = WAITS, f"for {chosen.waits_for}"
    elif chosen.elsewhere:
        verdict, note = ELSEWHERE, chosen.elsewhere
    else:
        return None
    return Result(name=chosen.number, title=chosen.title, verdict=verdict, seconds=0.0, note=note)


async def run_scenario(chosen: Scenario, *, seed: int, keep: bool = False, long: bool = False) -> Result:
    """One scenario: load, fault, heal, drain, check."""
    if (known := without_a_world(chosen)) is not None:
        return known
    result = await run(
        chosen.number,
        chosen.act,
        seed=seed,
        world={**chosen.world, **(chosen.long_world if long else {}), "long": long},
        warm_up=chosen.warm_up,
        drain=chosen.drain,
        leave_out=chosen.leave_out,
        logs=chosen.logs,
        must_meet=chosen.must_meet,
        within=chosen.deadline(long=long),
        keep=keep,
    )
    result.title = chosen.title
    if chosen.expect_red and result.report is not None:
        missing = [name for name in chosen.expect_red if name not in result.report.red]
        result.verdict = VIOLATED if missing else PASSED
        result.note = (
            f"must be red: {' '.join(missing)}" if missing else f"red as it must be: {' '.join(result.report.red)}"
        )
        if result.troubles and not missing:
            result.verdict, result.note = FAILED, f"in a log: {result.troubles[0]}"
    return result


async def run(
    name: str,
    act: Callable[[World], Awaitable[None]],
    *,
    seed: int,
    world: dict[str, Any],
    warm_up: float = 1.0,
    drain: timedelta = DRAIN,
    leave_out: tuple[str, ...] = (),
    logs: tuple[str, ...] = (),
    must_meet: tuple[str, ...] = (),
    within: timedelta = timedelta(minutes=4),
    keep: bool = False,
) -> Result:
    """Everything from the first process to the verdict, in at most `within`. The folder stays if it did not pass.

    A run passes when all invariants hold, no log has anything unexpected, and every fact in `must_meet` was met.
    """
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"headgate-lab-{name}-"))
    result = Result(name=name, title="", verdict=FAILED, seconds=0.0)
    try:
        async with asyncio.timeout(within.total_seconds()):
            async with World(folder, seed=seed, **world) as made:
                made.load.start()
                await asyncio.sleep(warm_up)
                await act(made)
                await made.heal()
                await made.drain(drain)
                result.report = await made.judge(leave_out=leave_out)
        result.coverage = result.report.coverage
        result.verdict = PASSED if result.report.passed else VIOLATED
        result.note = " ".join(result.report.red) or _measured(result.report)
        if result.report.passed and (missing := not_reached(result.coverage, must_meet)):
            result.verdict, result.note = FAILED, f"never met: {' '.join(missing)}"
    except NotRunHere as reason:
        result.verdict, result.note = NOT_RUN, str(reason)
    except TimeoutError:
        result.note = f"did not end within {within}"
    except Exception as error:  # noqa: BLE001 -- whatever a scenario raises is its verdict
        result.note = "".join(traceback.format_exception(error))
    except BaseException:  # asked to end: there is no verdict, and nothing to look at
        shutil.rmtree(folder, ignore_errors=True)
        raise
    result.seconds = time.monotonic() - began
    result.troubles = tuple(troubles(folder, allowed=logs))
    if result.troubles and result.verdict == PASSED:
        result.verdict, result.note = FAILED, f"in a log: {result.troubles[0]}"
    if result.good and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        result.folder = _kept(folder, name)
    return result


def _measured(report: Report) -> str:
    """What the scenario has timed."""
    return "; ".join(f"{one['what']}: {one['text']}" for one in report.events if one.kind == "measured")


def _kept(folder: Path, name: str) -> Path:
    with contextlib.suppress(OSError):
        place = KEPT / f"{name}-{time.strftime('%H%M%S')}"
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, place)
        return place
    return folder
