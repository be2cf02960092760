"""Every case that can be made over gRPC: the code and status that the documentation gives it, and a sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.catalogue.calls import ask, refused
from tests.catalogue.rows import CASES
from tests.catalogue.table import Case, World
from tests.support.wire import Wire

ERRORS = Path(__file__).parents[2] / "docs/reference/errors.md"
STATUS = {
    code: status
    for codes, status in re.findall(r"^\| (`[^|]+`) \| ([A-Z_]+) \|", ERRORS.read_text(), re.MULTILINE)
    for code in re.findall(r"`(\w+)`", codes)
}
ROWS = sorted({case.row for case in CASES if case.grpc is not None})
LONGEST = 500


@pytest.mark.parametrize("row", ROWS)
async def test_what_is_wrong_is_refused_by_name_and_nothing_is_written(row: int, wire: Wire, world: World) -> None:
    wrong = []
    for case in (one for one in CASES if one.row == row and one.grpc is not None):
        try:
            said = await _refusal(case, wire, world)
        except AssertionError as error:
            wrong.append(f"{case.name}: {error}")
            continue
        missing = [word for word in case.says if word not in said]
        if missing or len(said) > LONGEST or "\n" in said or "\x00" in said:
            wrong.append(f"{case.name}: said {said[:600]!r}, without {missing}")
    assert not wrong, "\n" + "\n".join(wrong)


async def _refusal(case: Case, wire: Wire, world: World) -> str:
    """The sentence that answers a case; fails unless its code, and the status of that, are as documented."""
    assert case.grpc is not None
    path, request = case.grpc(world)
    if case.receipt is not None:
        return _receipt(case, await ask(wire, path, request))
    ended = await refused(wire, path, request)
    assert (ended.code, ended.status.name) == (case.code, STATUS[case.code]), ended
    return ended.details


def _receipt(case: Case, answer: Any) -> str:
    (receipt,) = getattr(answer, "receipts", None) or [answer.receipt]
    assert receipt.code == case.receipt, receipt
    return str(receipt.error.message if hasattr(receipt, "error") else receipt.message)
