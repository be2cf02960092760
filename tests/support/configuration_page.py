"""The table of docs/reference/configuration.md, from the settings: `python -m tests.support.configuration_page`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headgate.ops.setting import Kind, Setting
from headgate.ops.settings import SETTINGS

PAGE: Final = Path(__file__).parents[2] / "docs/reference/configuration.md"
BEGIN, END = "<!-- settings -->", "<!-- end of settings -->"
CLIENT: Final = "all that call a server"


def table() -> str:
    """One table per section."""
    lines = []
    for section in dict.fromkeys(one.section for one in SETTINGS):
        lines += [f"### `[{section}]`" if section != "file" else "### The file itself", ""]
        lines += ["| key, variable, flag | kind | default | |", "|---|---|---|---|"]
        lines += [_row(one) for one in SETTINGS if one.section == section] + [""]
    return "\n".join(lines)


def _row(one: Setting) -> str:
    names = [f"`{one.file_key}`"] if one.in_file else []
    names += [f"`{one.variable}`"] if one.in_environment else []
    names += [f"`{one.flag}`"] if one.commands else []
    commands = ", ".join(CLIENT if name == "client" else f"`{name}`" for name in one.commands)
    kind = one.kind.value if one.kind is not Kind.CHOICE else " or ".join(f"`{choice}`" for choice in one.choices)
    bounds = f", {one.bounds_text}" if one.bounds_text and not one.choices else ""
    default = f"`{one.text_of(one.default)}`" if one.text_of(one.default) else one.default_note
    notes = [one.help.replace("|", "\\|")]
    notes += ["Secret: masked by `config show`."] if one.secret else []
    notes += [f"Flag of {commands}."] if commands else []
    return f"| {'<br>'.join(names)} | {kind}{bounds} | {default} | {' '.join(notes)} |"


def page(text: str) -> str:
    """The page with its tables written from the settings."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{table()}\n{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
