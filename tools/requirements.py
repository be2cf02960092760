"""Print every numbered requirement with its proof: tests that passed, other numbers, a measured row, or "open".

The tests are read from the record that `make test` leaves in build/. A requirement that states a speed is shown by a
row of `make bench` or `make bench-long`: open unless the last run measured every row and all hold; one that also has
tests needs both. A fault (F) that `make faults` has scenarios for is shown by their last verdicts, all of which must be
"passed"; tests of its parts are listed beside them and replace none. Those of `make failover` are open, as it leaves no
record. What has none of these is open.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from bench import long
from bench.table import AIMED, BOUNDS, BROKEN, HELD
from tests.fault.lab.runner import PASSED
from tests.fault.lab.scenarios import all_scenarios

RECORD = Path("build/requirements.json")
MEASURED = Path("bench/latest.json")
HELD_SNAPSHOT = Path("bench/latest-long.json")
FAULTS = Path("build/faults.json")
NOT_MEASURED = "not measured here"
LAST = {"D": 26, "P": 17, "Z": 25, "C": 16, "W": 30, "R": 7, "L": 4, "H": 10, "O": 29, "E": 10, "B": 8, "T": 43,
        "F": 60}  # fmt: skip
"""The series of requirements and the last number of each."""


def _series(letter: str, last: int) -> tuple[str, ...]:
    return tuple(f"{letter}{number}" for number in range(1, last + 1))


FOLLOWS = {
    "C15": _series("E", 10),
    "T1": _series("E", 10) + _series("B", 8),
    "T15": _series("P", 17),
    "T20": _series("Z", 24),
}
"""Requirements that say that a list of others is tested: they hold when each of those does."""
ROWS = {
    number: [bound.figure for bound in BOUNDS if number in bound.proves]
    for number in {number for bound in BOUNDS for number in bound.proves}
}
"""Requirements that state a speed, and the rows of `make bench` that measure it."""
FAILOVER = ("F43", "F44", "F45", "F46", "F47")
SCENARIOS = [number for number, one in all_scenarios().items() if number.startswith("F") and not one.elsewhere]
"""Of the fault laboratory; a variant of F31 is F31b."""
LONG, LONG_MINUTES = "T40", 10
"""Shown by `make bench-long`: claims under a snapshot that is held for as long."""


def main() -> int:
    try:
        proven: dict[str, list[str]] = json.loads(RECORD.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"error: there is no {RECORD}; run `make test` first", file=sys.stderr)
        return 1
    except ValueError:
        print(f"error: {RECORD} is damaged; run `make test` again", file=sys.stderr)
        return 1
    verdicts, faults = _verdicts(), _faults()
    open_numbers: list[str] = []
    for letter, last in LAST.items():
        for number in _series(letter, last):
            shown = _shown(number, proven, verdicts, faults)
            print(f"{number:<5}{shown[0]}")
            for more in shown[1:]:
                print(f"{'':<5}{more}")
            if shown[0].startswith("open"):
                open_numbers.append(number)
        print()
    total = sum(LAST.values())
    print(f"{total - len(open_numbers)} of {total} have a proof; open: {', '.join(open_numbers) or 'none'}")
    others = sorted(set(proven) - {number for letter, last in LAST.items() for number in _series(letter, last)})
    print(f"tests also carry marks of invariants and parts: {', '.join(others)}")
    return 0


def _shown(number: str, proven: dict[str, list[str]], verdicts: dict[str, str], faults: dict[str, str]) -> list[str]:
    """What shows it, one line each; the first begins with "open" if anything is missing."""
    tests = proven.get(number, [])
    if parts := FOLLOWS.get(number):
        missing = [part for part in parts if _shown(part, proven, verdicts, faults)[0].startswith("open")]
        told = f"follows from {parts[0]} to {parts[-1]}"
        return [f"open: {told}, of which {', '.join(missing)} are open"] if missing else [told]
    if number in FAILOVER:  # leaves no record: a test of a part of it is shown, and is not all of it
        return ["open: shown by `make failover`, which leaves no record", *tests]
    if variants := [name for name in SCENARIOS if re.fullmatch(f"{number}[a-z]?", name)]:
        shown = [f"make faults, {name}: {faults.get(name, 'not run here')}" for name in variants]
        missing = [line for name, line in zip(variants, shown, strict=True) if faults.get(name) != PASSED]
        return ["open: a scenario has not passed", *shown, *tests] if missing else [*shown, *tests]
    rows = _long() if number == LONG else [(row, verdicts.get(row, NOT_MEASURED)) for row in ROWS.get(number, ())]
    command = "make bench-long" if number == LONG else "make bench"
    shown = [*tests, *(f"{command}, {row}: {verdict}" for row, verdict in rows)]
    if any(verdict == BROKEN for _, verdict in rows):
        return ["open: the bound is missed", *shown]
    if any(verdict not in (HELD, AIMED) for _, verdict in rows):
        return ["open: not measured here", *shown]
    return shown or ["open"]


def _long() -> list[tuple[str, str]]:
    """The rows of the snapshot that was held, if it was held for long enough."""
    try:
        found = json.loads(HELD_SNAPSHOT.read_text(encoding="utf-8"))["held"]
        if len(found["minutes"]) < LONG_MINUTES:
            return [("held", f"{NOT_MEASURED}: {len(found['minutes'])} minutes, asked {LONG_MINUTES}")]
        return [(row.name, HELD if row.holds else BROKEN) for row in long.verdicts({"held": found})]
    except (FileNotFoundError, ValueError, KeyError):
        return [("held", NOT_MEASURED)]


def _faults() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(FAULTS.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _verdicts() -> dict[str, str]:
    try:
        found = json.loads(MEASURED.read_text(encoding="utf-8"))["verdicts"]
    except (FileNotFoundError, ValueError, KeyError):
        return {}
    return {figure: str(row["verdict"]) for figure, row in found.items()}


if __name__ == "__main__":
    sys.exit(main())
