"""Profiles: the servers of a user, each with its token, in one private file of the user's configuration folder.

A profile has no tenant: servers take it from the token.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from headgate.domain.errors import InvalidInput, InvalidSetting, NotFound
from headgate.domain.validation import shown
from headgate.ops.exposure import check_private

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A server and how to reach it; each field is the setting with its name."""

    url: str
    token: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""


FIELDS: Final = ("url", "token", "ca", "cert", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """All profiles of a user; `current` is the one that counts if none is named, "" for none."""

    profiles: Mapping[str, Profile] = field(default_factory=dict, hash=False)
    current: str = ""

    def get(self, name: str) -> Profile:
        """Return one profile; raises NotFound."""
        if name not in self.profiles:
            raise NotFound("profile", name)
        return self.profiles[name]

    def saved(self, name: str, profile: Profile) -> Profiles:
        """Add or replace a profile, and make it the current one."""
        return Profiles(profiles={**self.profiles, name: profile}, current=name)

    def using(self, name: str) -> Profiles:
        """Make a profile the current one, or none with ""; raises NotFound."""
        if name:
            self.get(name)
        return replace(self, current=name)

    def without(self, name: str) -> Profiles:
        """Remove a profile; raises NotFound."""
        self.get(name)
        left = {other: one for other, one in self.profiles.items() if other != name}
        return Profiles(profiles=left, current="" if self.current == name else self.current)


def check_name(name: str) -> str:
    """Return the name of a profile; raises InvalidInput."""
    if NAME.fullmatch(name) is None:
        raise InvalidInput(
            "profile",
            f"must be 1 to 64 letters, digits, dots, dashes or underscores, and begin with a letter or digit, "
            f"got {shown(name)}",
        )
    return name


def profiles_file(environ: Mapping[str, str]) -> Path | None:
    """Return where the profiles of this user are; None for a user without a home folder."""
    named = environ.get("APPDATA" if os.name == "nt" else "XDG_CONFIG_HOME", "")
    if named and Path(named).is_absolute():
        return Path(named, "headgate", "profiles.toml")
    home = environ.get("HOME") or ""
    if not home:
        try:
            home = str(Path.home())
        except RuntimeError:  # no HOME, and no entry in the list of users
            return None
    return Path(home, ".config", "headgate", "profiles.toml")


def read_profiles(path: Path | None) -> Profiles:
    """Read the profiles; none if there is no file.

    Raises InvalidSetting for a file that is not one of ours, and for one that other users can read.
    """
    try:
        body = b"" if path is None else path.read_bytes()[: BYTES_MAX + 1]
    except (FileNotFoundError, NotADirectoryError):
        return Profiles()
    except OSError as error:
        raise InvalidSetting(str(path), f"cannot be read: {error.strerror}") from None
    if path is None:
        return Profiles()
    check_private(path, setting="the file of profiles has tokens, and")
    if len(body) > BYTES_MAX:
        raise InvalidSetting(str(path), f"is larger than {BYTES_MAX:,} bytes; remove profiles that are not used")
    import tomllib  # here: most commands find no file, and start faster

    try:
        document = tomllib.loads(body.decode())
    except (ValueError, RecursionError) as error:  # among them: not TOML, not UTF-8
        raise InvalidSetting(str(path), f"is not TOML: {error}") from None
    found = document.get("profiles", {})
    if not isinstance(found, dict):
        raise InvalidSetting(str(path), "profiles must be a table")
    current = document.get("current", "")
    if not isinstance(current, str):
        raise InvalidSetting(str(path), "current must be the name of a profile")
    profiles = {name: _profile(name, fields, path) for name, fields in found.items()}
    return Profiles(profiles=profiles, current=current if current in profiles else "")


def _profile(name: str, fields: object, path: Path) -> Profile:
    if not isinstance(fields, dict) or not fields.keys() <= set(FIELDS) or not fields.get("url"):
        raise InvalidSetting(
            str(path), f"profile {shown(name)} must have a url, and of {', '.join(FIELDS[1:])} what it needs"
        )
    if not all(isinstance(value, str) for value in fields.values()):
        raise InvalidSetting(str(path), f"the values of profile {shown(name)} must be texts")
    return Profile(**fields)


def write_profiles(path: Path | None, profiles: Profiles) -> None:
    """Replace the file as a whole; only its owner can read it, from its first byte on."""
    if path is None:
        raise InvalidSetting("profiles", "have no place: the home folder of this user is not known", hint="set HOME")
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            beside.unlink()
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("\n".join(_lines(profiles)) + "\n")
        beside.replace(path)
    except OSError as error:
        raise InvalidSetting(str(path), f"cannot be written: {error.strerror}") from None


def _lines(profiles: Profiles) -> list[str]:
    lines = ["# Servers and their tokens. Written by `headgate profile`."]
    if profiles.current:
        lines.append(f"current = {_text(profiles.current)}")
    for name, profile in sorted(profiles.profiles.items()):
        lines += ["", f"[profiles.{_text(name)}]"]
        lines += [f"{key} = {_text(value)}" for key, value in asdict(profile).items() if value]
    return lines


def _text(value: str) -> str:
    """A basic string of TOML: JSON has the same escapes, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
