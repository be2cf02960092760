"""The values of all settings: flag before variable before profile before file before default, each with its origin.

The file is the one of `--config`, else of HEADGATE_CONFIG, else headgate.toml in the current folder. It is checked as a
whole, whichever command reads it; of the variables, those that the command uses.

A profile is the one of `--profile`, else of HEADGATE_PROFILE, else the one that `headgate profile use` has chosen. One
that a flag names counts before variables, as any flag. A profile counts as a whole or not at all: a token is never
sent to a server that it was not saved for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.domain.errors import InvalidInput, InvalidSetting, not_both
from headgate.domain.redaction import MASK, Redaction
from headgate.domain.units import duration, size
from headgate.domain.validation import check_text, shown
from headgate.ops.profiles import FIELDS as PROFILE_FIELDS
from headgate.ops.profiles import profiles_file, read_profiles
from headgate.ops.setting import Kind, Setting
from headgate.ops.settings import BY_NAME, BY_VARIABLE, SETTINGS, default_file

if TYPE_CHECKING:
    from headgate.ops.config_file import FileValue

_URL_SCHEMES: Final = ("postgresql://", "postgres://")
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")
_TEXT_MAX: Final = 4_000
# Kubernetes sets these for a service named headgate: HEADGATE_SERVICE_HOST, HEADGATE_PORT_7070_TCP_ADDR, …
_OF_KUBERNETES: Final = re.compile(
    r"HEADGATE(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_KUBERNETES_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.*")
_USER_OF_URL: Final = re.compile(r"//.*@")  # up to the last @: a password may have one that is not encoded
_PASSWORD_OF_URL: Final = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)


class Origin(IntEnum):
    """Where a value comes from; a higher one wins."""

    DEFAULT = 0
    FILE = 1
    PROFILE = 2
    ENVIRONMENT = 3
    FLAG = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The value of a setting.

    `where` is `--lease`, `HEADGATE_LEASE`, `profile prod`, `headgate.toml:12` or `default`.
    """

    setting: Setting
    value: object
    origin: Origin
    where: str

    @property
    def text(self) -> str:
        """The value for people: a secret is masked, an address has no user and password."""
        if self.value is None or self.value == ():
            return "-" if not self.setting.default_note else f"({self.setting.default_note})"
        text = self.setting.text_of(self.value)
        if not self.setting.secret:
            return text or f"({self.setting.default_note})"
        if self.setting.kind is not Kind.DATABASE:
            return MASK
        return _PASSWORD_OF_URL.sub(rf"\1{MASK}", _USER_OF_URL.sub("//…@", text))


class Configuration:
    """All values of one process, by the names of their settings."""

    def __init__(self, values: Mapping[str, Value], *, file: Path | None) -> None:
        self.values, self.file = values, file

    def __getitem__(self, name: str) -> object:
        return self.values[name].value

    def text(self, name: str) -> str:
        """A text; "" if there is none."""
        value = self[name]
        return "" if value is None else str(value)

    def integer(self, name: str) -> int:
        """A whole number that has a default."""
        value = self[name]
        assert isinstance(value, int)  # noqa: S101 - by the table of settings
        return value

    def switch(self, name: str) -> bool:
        """Whether a switch is on."""
        return self[name] is True

    def span(self, name: str) -> timedelta:
        """A duration that has a default."""
        value = self[name]
        assert isinstance(value, timedelta)  # noqa: S101 - as above
        return value

    def names(self, name: str) -> list[str]:
        """A list of names."""
        value = self[name]
        return list(value) if isinstance(value, tuple) else []

    def path(self, name: str) -> Path | None:
        """A path, if there is one."""
        value = self[name]
        return value if isinstance(value, Path) else None

    @property
    def data(self) -> Path | None:
        """The folder of the embedded PostgreSQL, if one is named."""
        found = self.path("data")
        return None if found is None else found.absolute()

    @property
    def database_url(self) -> str | None:
        """The database of servers."""
        return self.text("database_url") or None

    @property
    def direct_database_url(self) -> str | None:
        """The same database without a pooler.

        None if the other URL comes from a stronger origin: `--database-url` must not migrate the database of a file.
        """
        if self.values["direct_database_url"].origin < self.values["database_url"].origin:
            return None
        return self.text("direct_database_url") or None

    @property
    def url_for_migrations(self) -> str | None:
        """The direct URL if there is one: some migrations do not work through a pooler."""
        return self.direct_database_url or self.database_url

    @property
    def redaction(self) -> Redaction:
        """The keys whose values are masked."""
        return Redaction.of(self.names("redact"))

    def located(self, error: InvalidInput) -> InvalidInput:
        """An error about a setting, named by its flag, with the place that the value is from: its line, its variable.

        Values that only a server can judge are refused after they were read: networks, rates, files.
        """
        flag, _, part = error.field.partition(".")
        found = next((one for one in self.values.values() if one.setting.flag == flag), None)
        if found is None or found.origin not in (Origin.FILE, Origin.ENVIRONMENT):
            return error
        name = f"{found.where}: {found.setting.path}" if found.origin is Origin.FILE else found.where
        return InvalidSetting(f"{name}.{part}" if part else name, error.problem, hint=error.hint)

    def server_options(self) -> dict[str, object]:
        """The fields of ServerOptions that settings decide, without the database."""
        found = {
            one.option or one.name: self[one.name]
            for one in SETTINGS
            if one.section == "server" and one.served and one.in_file
        }
        return found | {
            "pooler": self.switch("pooler"),
            "unsafe": self.switch("unsafe"),
            "notifications": not self.switch("poll_only"),
            "redact": tuple(self.names("redact")),
        }

    def client_environment(self) -> dict[str, str]:
        """What the SDK would find in its variables, for an application that a command loads."""
        names = [one.name for one in SETTINGS if one.section == "client" and one.in_file]
        found = {BY_NAME[name].variable: self.text(name) for name in names if self.text(name)}
        if secret := self.names("redact"):
            found[BY_NAME["redact"].variable] = ",".join(secret)
        return found


def read_configuration(
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    folder: Path,
    names: Collection[str] | None = None,
) -> Configuration:
    """Read the settings with these names, or all; raises InvalidInput for a flag, InvalidSetting for anything else.

    A flag that is None, and an empty variable, count as not given. What has no name in `names` has its default.
    """
    file = _file(flags, environ, folder)
    from_file = {} if file is None else _all_of_file(file)
    values = {
        one.name: Value(setting=one, value=one.default, origin=Origin.DEFAULT, where="default") for one in SETTINGS
    }
    chosen = BY_NAME if names is None else names
    profile = _of_profile(flags, environ) if "profile" in chosen else {}
    by_flag = any(one.origin is Origin.FLAG for one in profile.values())
    for name in chosen:
        setting = BY_NAME[name]
        found = _of_flag(setting, flags)
        if profile and name in PROFILE_FIELDS:
            if not by_flag:
                found = found or _of_variable(setting, environ)
            found = found or profile.get(name)
        else:
            found = found or profile.get(name) or _of_variable(setting, environ) or from_file.get(name)
        values[name] = found or values[name]
    return Configuration(values, file=file)


def unknown_variables(environ: Mapping[str, str]) -> list[InvalidSetting]:
    """An error for each variable that looks like a setting and is none, with the nearest name."""
    found = []
    for name in sorted(environ):
        if name.startswith("HEADGATE_") and name not in BY_VARIABLE and not _is_of_kubernetes(name, environ[name]):
            near = get_close_matches(name, BY_VARIABLE, n=1)
            hint = f"did you mean {near[0]}?" if near else "`headgate config show` lists the known ones"
            found.append(InvalidSetting(name, "is not a known setting", hint=hint))
    return found


def _is_of_kubernetes(name: str, text: str) -> bool:
    """HEADGATE_WORKERS_PORT is one with an address as its value; with a number it is a setting that is misspelt."""
    if name.endswith("_PORT") and _KUBERNETES_ADDRESS.fullmatch(text.strip()):
        return True
    return _OF_KUBERNETES.fullmatch(name) is not None


def _file(flags: Mapping[str, object], environ: Mapping[str, str], folder: Path) -> Path | None:
    setting = BY_NAME["config"]
    given = _of_flag(setting, flags) or _of_variable(setting, environ)
    if given is None:
        return default_file(folder)
    assert isinstance(given.value, Path)  # noqa: S101 - its kind
    return given.value


def _of_profile(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Value]:
    """The values of the profile that counts, and its name; empty if none does.

    An address that is given otherwise is not that of the profile, and its token not the one for it.
    """
    setting, address = BY_NAME["profile"], BY_NAME["url"]
    given = _of_flag(setting, flags) or _of_variable(setting, environ)
    by_flag = given is not None and given.origin is Origin.FLAG
    if _of_flag(address, flags) is not None:
        if by_flag:
            raise not_both(setting.flag, "--url")
        return {}
    if not by_flag and _of_variable(address, environ) is not None:
        return {}
    file = profiles_file(environ)
    known = read_profiles(file)
    name = known.current if given is None else str(given.value)
    if not name:
        return {}
    if name not in known.profiles:
        near = get_close_matches(name, known.profiles, n=1)
        hint = f"did you mean {near[0]}?" if near else f"create it: headgate profile login {name} --url HOST:PORT"
        error = InvalidInput if by_flag else InvalidSetting
        raise error(setting.flag if by_flag else setting.variable, f"there is no profile {shown(name)}", hint=hint)
    origin, where = (Origin.FLAG if by_flag else Origin.PROFILE), f"profile {name}"
    found = {
        field: _as_setting(BY_NAME[field], text, field=f"{file}: {where}: {field}")
        for field in PROFILE_FIELDS
        if (text := getattr(known.profiles[name], field))
    }
    values = {
        field: Value(setting=BY_NAME[field], value=value, origin=origin, where=where) for field, value in found.items()
    }
    chosen = given or Value(setting=setting, value=name, origin=Origin.PROFILE, where=f"{file}")
    return {**values, setting.name: chosen}


def _of_flag(setting: Setting, flags: Mapping[str, object]) -> Value | None:
    given = flags.get(setting.name)
    if given is None:
        return None
    value = given if isinstance(given, bool) else parsed(setting, str(given), field=setting.flag)
    return Value(setting=setting, value=value, origin=Origin.FLAG, where=setting.flag)


def _of_variable(setting: Setting, environ: Mapping[str, str]) -> Value | None:
    text = environ.get(setting.variable, "").strip() if setting.in_environment else ""
    if not text or _is_of_kubernetes(setting.variable, text):
        return None
    value = _as_setting(setting, text, field=setting.variable)
    return Value(setting=setting, value=value, origin=Origin.ENVIRONMENT, where=setting.variable)


def _all_of_file(file: Path) -> dict[str, Value]:
    from headgate.ops.config_file import read_file  # here: most commands find no file, and start faster

    return {name: _of_file(BY_NAME[name], given, file.parent) for name, given in read_file(file).items()}


def _of_file(setting: Setting, given: FileValue, folder: Path) -> Value:
    value = _as_setting(setting, given.text, field=f"{given.where}: {setting.path}")
    if isinstance(value, Path):
        value = folder / value  # a file names others by their place beside it
    return Value(setting=setting, value=value, origin=Origin.FILE, where=given.where)


def _as_setting(setting: Setting, text: str, *, field: str) -> object:
    """As `parsed`; what is wrong with it is an error of the configuration, not of the command line."""
    try:
        return parsed(setting, text, field=field)
    except InvalidInput as error:
        raise InvalidSetting(field, error.problem, hint=error.hint) from None


def parsed(setting: Setting, text: str, *, field: str) -> object:
    """Parse a value, whichever source it is from; raises InvalidInput. No secret is in the error."""
    match setting.kind:
        case Kind.INTEGER:
            return _within(setting, _integer(setting, text, field=field), field=field)
        case Kind.SWITCH:
            return _switch(text, field=field)
        case Kind.DURATION:
            return _within(setting, duration(text, field=field), field=field)
        case Kind.SIZE:
            return _within(setting, size(text, field=field), field=field)
        case Kind.PATH:
            return _path(text, field=field)
        case Kind.CHOICE:
            return _choice(setting, text, field=field)
        case Kind.DATABASE:
            return _database(text, field=field)
        case Kind.NAMES:
            return tuple(name.strip() for name in text.split(",") if name.strip())
        case Kind.TEXT:
            low, high = (setting.low or 0), (setting.high or _TEXT_MAX)
            assert isinstance(low, int) and isinstance(high, int)  # noqa: S101, PT018 - characters
            return check_text(text, field=field, low=low, high=high)


def _integer(setting: Setting, text: str, *, field: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()) is None:
        bounds = f" from {setting.bounds_text}" if setting.bounds_text else ""
        raise InvalidInput(field, f"must be a whole number{bounds}, got {shown(text)}")
    return int(text)


def _within(setting: Setting, value: int | timedelta, *, field: str) -> int | timedelta:
    low, high = setting.low, setting.high
    if low is None or high is None or low <= value <= high:  # type: ignore[operator] # bounds have the type of the value
        return value
    number = "a whole number " if setting.kind is Kind.INTEGER else ""
    raise InvalidInput(field, f"must be {number}from {setting.bounds_text}, got {setting.text_of(value)}")


def _switch(text: str, *, field: str) -> bool:
    word = text.strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise InvalidInput(field, f"must be true or false, got {shown(text)}")
    return word in _TRUE


def _choice(setting: Setting, text: str, *, field: str) -> str:
    for choice in setting.choices:
        if choice.lower() == text.strip().lower():
            return choice
    *others, last = setting.choices
    raise InvalidInput(field, f"is not one of its values, got {shown(text)}", hint=f"use {', '.join(others)} or {last}")


def _path(text: str, *, field: str) -> Path:
    if "\0" in text:
        raise InvalidInput(field, "contains a NUL byte", hint="use an absolute path")
    try:
        return Path(text).expanduser()
    except RuntimeError as problem:
        raise InvalidInput(
            field, "starts with the home folder of an unknown user", hint="use an absolute path"
        ) from problem


def _database(text: str, *, field: str) -> str:
    if not text.startswith(_URL_SCHEMES):
        raise InvalidInput(
            field,
            "is not a PostgreSQL URL, which starts with postgresql://",
            hint="the value is not shown, since it may contain a password",
        )
    return text
