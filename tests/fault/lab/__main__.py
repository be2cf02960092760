"""`python -m tests.fault.lab`: scenarios by number, or a seeded mix; exits with 1 if one did not pass.

All of them together must also have met every fact that is to be met sometimes, and none may have been left out because
this machine could not bring it about: what is missing for that is installed first (as root), or named.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from tests.fault.lab.apart import remember, run_all, table, together, write_verdict
from tests.fault.lab.checker import check
from tests.fault.lab.checker.coverage import IN_A_MINUTE, IN_ALL, not_reached
from tests.fault.lab.history import merged
from tests.fault.lab.mix import mix, setting
from tests.fault.lab.runner import ELSEWHERE, FAILED, NOT_RUN, WAITS, Result, run, run_scenario
from tests.fault.lab.scenarios import Scenario, all_scenarios
from tests.fault.lab.tools import MissingTools, install

A_MINUTE: Final = 60.0


def main() -> int:
    """Parse the command line and run what it names."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.lab")
    parser.add_argument("--only", default="", help="scenarios by number: F31,F32")
    parser.add_argument("--seconds", type=float, default=0, help="a random mix of faults for so long, by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="the scenarios, and what each checks")
    parser.add_argument("--long", action="store_true", help="faults that last as long as the catalogue says")
    parser.add_argument("--verdict", type=Path, help="write how the one scenario ended into this file")
    parser.add_argument("--check", type=Path, help="judge the history in this folder once more")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a run that passed, too")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of everyone's cleaning up
    if chosen.list:
        for one in all_scenarios().values():
            print(f"{one.number:5} {one.title:50} {' '.join(one.checks)}")
        return 0
    if chosen.check:
        scenario = all_scenarios().get(chosen.check.name.partition("-")[0])
        report = check(merged(chosen.check), leave_out=scenario.leave_out if scenario else ())
        print(report.text())
        return 0 if report.passed else 1
    if chosen.seconds:
        return asyncio.run(_mix(chosen.seconds, chosen.seed, keep=chosen.keep))
    known = all_scenarios()
    names = [name.strip() for name in chosen.only.split(",") if name.strip()] or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no {', '.join(unknown)}; see --list")
    _install()
    if len(names) == 1:
        result = asyncio.run(_scenario(known[names[0]], seed=chosen.seed, keep=chosen.keep, long=chosen.long))
        remember([result])
        if chosen.verdict:
            write_verdict(result, chosen.verdict)
        return 0 if result.good else 1
    options = [*(["--keep"] if chosen.keep else []), *(["--long"] if chosen.long else [])]
    results = run_all([known[name] for name in names], seed=chosen.seed, options=options, long=chosen.long)
    remember(results)
    print("\n" + table(results))
    missing = not_reached(together(results), IN_ALL) if len(results) == len(known) else []
    if missing:
        print(f"FAILED: in all of these runs together this was never met: {' '.join(missing)}")
    return 0 if all(result.good for result in results) and not missing else 1


def _install() -> None:
    """What cannot be installed is reported at once; the scenarios that need it are then not run, which is not green."""
    try:
        brought = install()
    except MissingTools as error:
        print(f"!!! {error}", flush=True)
    else:
        if brought:
            print(f"installed {' '.join(brought)}", flush=True)


async def _scenario(one: Scenario, *, seed: int, keep: bool, long: bool) -> Result:
    print(f"--- {one.number} {one.title} (seed {seed}{', long' if long else ''})", flush=True)
    result = await run_scenario(one, seed=seed, keep=keep, long=long)
    _show(result, f"python -m tests.fault.lab --only {one.number} --seed {seed}{' --long' if long else ''}")
    return result


async def _mix(seconds: float, seed: int, *, keep: bool) -> int:
    result = await run(
        "mix",
        lambda world: mix(world, seconds=seconds),
        seed=seed,
        world=setting(),
        must_meet=IN_A_MINUTE if seconds >= A_MINUTE else (),
        within=timedelta(seconds=2 * seconds + 240),
        keep=keep,
    )
    result.title = f"{seconds:g} s of random faults, seed {seed}"
    _show(result, f"python -m tests.fault.lab --seconds {seconds:g} --seed {seed}")
    return 0 if result.good else 1


def _show(result: Result, replay: str) -> None:
    if result.report is not None:
        print(result.report.text())
    for trouble in result.troubles:
        print(f"log: {trouble}")
    if result.verdict in (WAITS, ELSEWHERE):
        print(f"{result.name} is not run here, {result.verdict}: {result.note}")
        return
    if result.verdict == NOT_RUN:
        print(f"!!! {result.name} WAS NOT RUN: {result.note}")
    elif result.verdict == FAILED:
        print(f"{result.name} failed: {result.note}")
    print(f"{result.verdict} in {result.seconds:.1f} s; replay: {replay}")
    if result.folder is not None:
        print(f"history: {result.folder} (judge it again: python -m tests.fault.lab --check {result.folder})")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
