"""What a setting is: its name, kind, default, bounds and help text. `settings.py` lists them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import StrEnum

from headgate.domain.units import duration_text, size_text


class Kind(StrEnum):
    """What a value is, and how it is written."""

    TEXT = "text"
    INTEGER = "number"
    SWITCH = "switch"
    DURATION = "duration"
    SIZE = "size"
    PATH = "path"
    CHOICE = "choice"
    DATABASE = "database URL"
    NAMES = "names"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is the value itself; `default_note` describes one that is computed."""

    kind: Kind
    name: str
    help: str
    commands: tuple[str, ...] = ()
    """Commands that have the flag. Empty: there is no flag."""
    _: KW_ONLY
    section: str = ""
    default: object = None
    default_note: str = ""
    low: int | timedelta | None = None
    """Lowest value; of a text, the lowest number of characters."""
    high: int | timedelta | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    key: str = ""
    """Key in the file, if it is not the name."""
    flag_name: str = ""
    in_file: bool = True
    in_environment: bool = True
    option: str = ""
    """Field of ServerOptions, if it has another name."""
    served: bool = True
    """False for a setting of the section `server` that is no field of ServerOptions."""

    @property
    def flag(self) -> str:
        """The command-line option."""
        return "--" + (self.flag_name or self.name).replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "HEADGATE_" + self.name.upper()

    @property
    def file_key(self) -> str:
        """The key within its section: the name, without the section where it begins with it."""
        return self.key or self.name.removeprefix(f"{self.section}_")

    @property
    def path(self) -> str:
        """The key with its section, as errors and tables show it."""
        return f"{self.section}.{self.file_key}"

    def text_of(self, value: object) -> str:
        """A value as it would be written in the file, without quotes; "" for none."""
        match value:
            case None:
                return ""
            case bool():
                return "true" if value else "false"
            case timedelta():
                return duration_text(value)
            case int() if self.kind is Kind.SIZE:
                return size_text(value)
            case tuple():
                return ", ".join(map(str, value))
            case _:
                return str(value)

    @property
    def default_text(self) -> str:
        """The default for people."""
        return self.default_note or self.text_of(self.default)

    @property
    def bounds_text(self) -> str:
        """The bounds for people; "" if there are none."""
        if self.choices:
            return ", ".join(self.choices)
        if self.low is None and self.high is None:
            return ""
        unit = " characters" if self.kind is Kind.TEXT else ""
        return f"{self.text_of(self.low)} to {self.text_of(self.high)}{unit}"
