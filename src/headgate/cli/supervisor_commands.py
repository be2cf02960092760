"""The start message from the parent to each server process, as plain JSON; imports nothing of the server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path


def start_message(options: dict[str, object], *, number: int, log_options: Mapping[str, str]) -> dict[str, object]:
    """Return the message for the process with this number (from 1); the number is appended to a given name."""
    name = f"{options['name']}-{number}" if options["name"] else ""
    plain = {key: _plain(value) for key, value in options.items()}
    return {
        "number": number,
        **log_options,
        "options": plain | {"name": name, "shared_port": True, "process": number},
    }


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return value.total_seconds() if isinstance(value, timedelta) else value
