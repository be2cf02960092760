"""The settings of an instance as people may see them, and the versions of what it runs on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from headgate.domain.system import MASKED
from headgate.domain.units import duration_text
from headgate.ops.settings import SETTINGS
from headgate.server.options import ServerOptions

LIBRARIES: Final = ("asyncpg", "grpcio", "litestar", "jinja2", "uvicorn")
_SECRET: Final = frozenset(one.option or one.name for one in SETTINGS if one.secret)


def settings_of(options: ServerOptions) -> dict[str, str]:
    """By name, in the order of ServerOptions. A secret that is set is masked."""
    return {one.name: _text(one.name, getattr(options, one.name)) for one in fields(options)}


def versions_of(options: ServerOptions) -> Mapping[str, str]:
    """Of Headgate, Python, the system and the libraries that decide most."""
    found = {"headgate": options.version, "python": platform.python_version(), "system": _system()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # the REST API is not installed
            continue
    return found


def _system() -> str:
    """Not `platform.platform()`, which runs a process to learn more of the processor."""
    return f"{platform.system()}-{platform.release()}-{platform.machine()}"


def _text(name: str, value: object) -> str:
    if value is None or value == () or value == "":
        return ""
    if name in _SECRET:
        return MASKED
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)
