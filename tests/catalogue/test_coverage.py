"""No row is forgotten: each has cases or tests that exist, or says what it waits for."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.catalogue.rows import CASES, ROWS, Row
from tests.catalogue.table import Case

ROOT = Path(__file__).parents[2]
SURFACES = ("grpc", "sdk", "cli")
LAST = 91


def _cases(row: Row) -> list[Case]:
    return [case for case in CASES if row.first <= case.row <= row.last]


def lines() -> list[str]:
    """The table for people."""
    head = f"{'row':>6}  {'grpc':>4} {'sdk':>4} {'cli':>4} {'tests':>5}  {'waits for':<12}  where: what"
    found = [head]
    for row in ROWS:
        counts = Counter(surface for case in _cases(row) for surface in SURFACES if getattr(case, surface) is not None)
        number = str(row.first) if row.first == row.last else f"{row.first}-{row.last}"
        cells = " ".join(f"{counts[surface] or '':>4}" for surface in SURFACES)
        found.append(f"{number:>6}  {cells} {len(row.tests) or '':>5}  {row.waits or '':<12}  {row.where}: {row.given}")
    covered = sum(row.last - row.first + 1 for row in ROWS if _cases(row) or row.tests)
    partly = sum(row.last - row.first + 1 for row in ROWS if row.waits and (_cases(row) or row.tests))
    found.append(
        f"{covered} of {LAST} rows are covered ({partly} of them wait for a part), {LAST - covered} wait; "
        f"{len(CASES)} cases"
    )
    return found


def test_the_rows_are_all_there_in_order() -> None:
    assert ROWS[0].first == 1
    assert ROWS[-1].last == LAST
    assert all(one.last + 1 == two.first for one, two in pairwise(ROWS))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.first}-{row.last}")
def test_a_row_is_covered_or_says_what_it_waits_for(row: Row) -> None:
    assert _cases(row) or row.tests or row.waits is not None
    for name in row.tests:
        path, _, test = name.partition("::")
        text = (ROOT / path).read_text()
        assert not test or re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), name


def test_every_case_has_a_surface_and_a_name_of_its_own() -> None:
    names = Counter((case.row, case.name) for case in CASES)
    assert not [name for name, count in names.items() if count > 1]
    for case in CASES:
        assert any(getattr(case, surface) is not None for surface in SURFACES), case
        assert 1 <= case.row <= LAST


def test_the_table_can_be_shown() -> None:
    assert len(lines()) == len(ROWS) + 2
