"""`python -m tests.catalogue`: the rows, what covers each, and what it waits for."""

from __future__ import annotations

import sys

from tests.catalogue.test_coverage import lines


def main() -> None:
    sys.stdout.write("\n".join(lines()) + "\n")


main()
