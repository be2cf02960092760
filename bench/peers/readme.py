"""The figures in README.md: some rows of the first table of docs/benchmarks.md, between two comments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

README = Path("README.md")
BLOCK: Final = re.compile(r"(?<=do not edit -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
# The lanes at the small size, which every peer has; the page has all of them.
ROWS: Final = ("| bulk submit, 20,", "| single submits, 20,", "| drain, 20,", "| cycle, 20,", "| idle pickup, p50")


def readme_with(verdicts: Iterable[str]) -> str:
    """README.md with the rows of today; `verdicts` are the lines of that section of the page."""
    lines = list(verdicts)
    head = lines.index("|---|---|---|---|")
    rows = [lines[head - 1], lines[head], *(line for line in lines if line.startswith(ROWS))]
    text = README.read_text()
    found, count = BLOCK.subn("\n" + "\n".join(rows) + "\n\n", text)
    if count != 1:
        raise ValueError(f"{README} has {count} blocks of figures; one is expected")
    return found
