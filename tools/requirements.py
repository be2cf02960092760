"""Print requirement number -> tests that passed, from the record that `make test` leaves in build/."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path

RECORD = Path("build/requirements.json")


def main() -> int:
    try:
        proven: dict[str, list[str]] = json.loads(RECORD.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"error: there is no {RECORD}; run `make test` first", file=sys.stderr)
        return 1
    except ValueError:
        print(f"error: {RECORD} is damaged; run `make test` again", file=sys.stderr)
        return 1
    numbers = sorted(proven, key=lambda number: (number[0], int(number[1:])))
    for letter, group in groupby(numbers, key=lambda number: number[0]):
        members = list(group)
        print(f"{letter}: {len(members)} proven by {_distinct(proven, members)} tests")
        for number in members:
            first, *rest = proven[number]
            print(f"{number:<5}{len(proven[number]):>4}  {first}")
            for test in rest:
                print(f"{'':<11}{test}")
        print()
    print(f"{len(numbers)} requirements proven by {_distinct(proven, numbers)} tests")
    return 0


def _distinct(proven: dict[str, list[str]], numbers: list[str]) -> int:
    return len({test for number in numbers for test in proven[number]})


if __name__ == "__main__":
    sys.exit(main())
