"""A module has one duty: one that is longer than 500 lines is divided."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src/headgate"
LINES_MAX: Final = 500


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {
        file.relative_to(SOURCE).as_posix(): len(file.read_text().splitlines())
        for file in SOURCE.rglob("*.py")
        if SOURCE / "wire" not in file.parents  # generated
    }
    assert len(lengths) > 400
    assert {name: length for name, length in lengths.items() if length > LINES_MAX} == {}
