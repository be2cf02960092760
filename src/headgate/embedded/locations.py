"""The location of the embedded cluster, and the settings that change it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headgate.domain.errors import EmbeddedPostgresError

_PROJECT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", "manage.py", "requirements.txt", ".git", ".hg")


def database_url(environ: Mapping[str, str] | None = None) -> str | None:
    """Return HEADGATE_DATABASE_URL if it is set: it replaces the embedded server."""
    environ = os.environ if environ is None else environ
    return environ.get("HEADGATE_DATABASE_URL", "").strip() or None


def whole_path(path: Path) -> Path:
    """Return the absolute path; `~` and `~user` are expanded, and must name an existing home folder."""
    try:
        return path.expanduser().absolute()
    except RuntimeError as problem:
        raise EmbeddedPostgresError(
            f"{path} starts with the home folder of an unknown user; use an absolute path"
        ) from problem


def default_data_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return HEADGATE_DATA, else `.headgate/postgres` of the current project, else the data home of the user."""
    environ = os.environ if environ is None else environ
    if named := environ.get("HEADGATE_DATA"):
        return whole_path(Path(named))
    here = Path.cwd()
    if any((here / mark).exists() for mark in _PROJECT_MARKS):
        return here / ".headgate" / "postgres"
    data_home = environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data_home):  # the XDG specification says to ignore a relative one
        return Path(data_home) / "headgate" / "postgres"
    try:
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError as problem:
        raise EmbeddedPostgresError(
            "no default data folder: this is not a project folder, and neither XDG_DATA_HOME nor HOME is set; "
            "set HEADGATE_DATA to a folder"
        ) from problem
    return home / ".local" / "share" / "headgate" / "postgres"
