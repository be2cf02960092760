"""Every program of the documentation, for type checkers: README, how-to pages, and the files of `headgate init`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final

from headgate.cli.init import FILES, starter

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT: Final = re.compile(r"^from app import .*\n", re.MULTILINE)  # a page that has an app and its tests


def documented() -> dict[str, str]:
    """File name -> text; all Python of a page is one program."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs/howto").glob("*.md"))]
    programs = {page.stem.replace("-", "_").lower() + "_page.py": _program(page) for page in pages}
    return {name: text for name, text in programs.items() if text} | {name: starter(name) for name in FILES}


def write_documented(folder: Path) -> list[Path]:
    """Write each of them to a file of its own."""
    for name, text in documented().items():
        (folder / name).write_text(text)
    return sorted(folder.glob("*.py"))


def _program(page: Path) -> str:
    """All Python of a page; blocks that await are put into functions."""
    blocks = [IMPORT.sub("", block) for block in PYTHON.findall(page.read_text())]
    for number, block in enumerate(blocks):
        try:
            compile(block, page.name, "exec")
        except SyntaxError:  # 'await' outside function
            blocks[number] = f"async def block_{number}() -> None:\n" + textwrap.indent(block, "    ")
    return "\n\n".join(blocks)
