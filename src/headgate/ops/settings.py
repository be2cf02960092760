"""Settings from environment variables, read and checked once at start.

HEADGATE_DATABASE_URL          the PostgreSQL to use. Default: the embedded one in `headgate dev`, else none
HEADGATE_DIRECT_DATABASE_URL   the same database without a transaction pooler, for migrations and LISTEN
HEADGATE_DATA                  the folder of the embedded PostgreSQL. Default: .headgate/postgres in the current folder
HEADGATE_REDACT                names of keys whose values are masked where payloads and results are shown
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Self

from headgate.domain.errors import InvalidSetting
from headgate.domain.redaction import Redaction

_SCHEMES = ("postgresql://", "postgres://")
KNOWN = frozenset(
    {
        *("HEADGATE_DATABASE_URL", "HEADGATE_DIRECT_DATABASE_URL", "HEADGATE_DATA", "HEADGATE_POSTGRES_BIN"),
        *("HEADGATE_URL", "HEADGATE_TOKEN", "HEADGATE_TENANT", "HEADGATE_CA"),  # used by the SDK
        *("HEADGATE_CERT", "HEADGATE_KEY"),
        *("HEADGATE_LOG_LEVEL", "HEADGATE_LOG_FORMAT"),  # of `headgate worker`, `serve` and `dev`
        *("HEADGATE_REDACT", "HEADGATE_TRACEBACK", "HEADGATE_TEST_DATABASE_URL"),
    }
)
"""All variables that some part of Headgate reads."""
# Kubernetes sets these for a service named headgate: HEADGATE_SERVICE_HOST, HEADGATE_PORT_7070_TCP_ADDR, …
_OF_OTHERS = re.compile(r"HEADGATE(_[A-Z0-9]+)*_(SERVICE_(HOST|PORT)|PORT)(_.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process; an empty variable counts as unset."""

    database_url: str | None = None
    direct_database_url: str | None = None
    data: Path | None = None
    redaction: Redaction = field(default_factory=Redaction)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read and check the settings; raises InvalidSetting with the name of the variable, never its value.

        An unknown variable is refused: otherwise HEADGATE_DATABSE_URL would silently select the embedded database.
        """
        for error in unknown_settings(environ):
            raise error
        data = environ.get("HEADGATE_DATA", "").strip()
        return cls(
            database_url=_url(environ, "HEADGATE_DATABASE_URL"),
            direct_database_url=_url(environ, "HEADGATE_DIRECT_DATABASE_URL"),
            data=_folder(data, "HEADGATE_DATA") if data else None,
            redaction=redaction_of(environ),
        )

    def with_database(self, url: str | None) -> Self:
        """The settings with the database of a command line, which has no other address; None changes nothing."""
        if url is None:
            return self
        return replace(self, database_url=url, direct_database_url=None)

    @property
    def url_for_migrations(self) -> str | None:
        """The direct URL if there is one: some migrations do not work through a pooler."""
        return self.direct_database_url or self.database_url


def unknown_settings(environ: Mapping[str, str]) -> list[InvalidSetting]:
    """An error for each variable that looks like a setting and is none, with the nearest name."""
    found = []
    for name in sorted(environ):
        if name.startswith("HEADGATE_") and name not in KNOWN and not _OF_OTHERS.fullmatch(name):
            near = get_close_matches(name, KNOWN, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known settings are {', '.join(sorted(KNOWN))}"
            found.append(InvalidSetting(name, "is not a known setting", hint=hint))
    return found


def _folder(value: str, name: str) -> Path:
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError as problem:
        raise InvalidSetting(
            name, "starts with the home folder of an unknown user", hint="use an absolute path"
        ) from problem


def redaction_of(environ: Mapping[str, str]) -> Redaction:
    """What HEADGATE_REDACT says, for commands that need no other setting."""
    return Redaction.parse(environ.get("HEADGATE_REDACT", ""))


def _url(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name, "").strip()
    if value and not value.startswith(_SCHEMES):
        raise InvalidSetting(
            name, "does not start with postgresql://", hint="the value is not shown, since it may contain a password"
        )
    return value or None
