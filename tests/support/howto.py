"""The how-to pages: the program of a page, and what it says that a command prints."""

from __future__ import annotations

import re
from pathlib import Path

HOWTO = Path(__file__).parents[2] / "docs/howto"


def program(page: str) -> str:
    """All Python of a page, in order."""
    text = (HOWTO / page).read_text()
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


def printed(page: str, command: str) -> str:
    """What the page says a command prints."""
    text = (HOWTO / page).read_text()
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]
