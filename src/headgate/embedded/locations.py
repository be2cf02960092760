"""The location of the embedded cluster, and the settings that change it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headgate.domain.errors import EmbeddedPostgresError


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
    """Return HEADGATE_DATA, else `.headgate/postgres` of the current folder."""
    environ = os.environ if environ is None else environ
    if named := environ.get("HEADGATE_DATA"):
        return whole_path(Path(named))
    return Path.cwd() / ".headgate" / "postgres"
