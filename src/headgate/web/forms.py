"""The fields of a form that was sent. Each reader names the field and what it has to be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, overload
from urllib.parse import parse_qsl

from headgate.domain import units
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.timestamps import from_unix_us
from headgate.domain.validation import shown

FIELDS_MAX: Final = 2_000
_ON: Final = frozenset({"1", "on", "true", "yes"})


class Form:
    """Fields by name, in the order in which they were sent."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    @classmethod
    def parse(cls, body: bytes) -> Form:
        """A form of the type application/x-www-form-urlencoded. Raises InvalidInput."""
        text = body.decode("ascii", "replace")
        try:
            fields = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
        except UnicodeDecodeError:
            raise InvalidInput("form", "is not encoded as application/x-www-form-urlencoded in UTF-8") from None
        except ValueError:
            raise TooLarge("form", size=text.count("&") + 1, limit=FIELDS_MAX, unit="fields") from None
        # Browsers send line breaks of a text area as CR LF; what people type has LF.
        return cls([(name, value.replace("\r\n", "\n")) for name, value in fields])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fields)

    def __contains__(self, name: str) -> bool:
        return any(name == one for one, _ in self._fields)

    def text(self, name: str, default: str = "") -> str:
        """The value without surrounding space; the default if it is not there."""
        return self.raw(name, default).strip()

    def raw(self, name: str, default: str = "") -> str:
        """The value as it was typed."""
        return next((value for one, value in self._fields if one == name), default)

    def required(self, name: str) -> str:
        """The value, which must not be empty."""
        found = self.text(name)
        if not found:
            raise InvalidInput(name, "is missing", hint="fill it in")
        return found

    def many(self, name: str) -> list[str]:
        """All values of a field that can be there more than once."""
        return [value.strip() for one, value in self._fields if one == name and value.strip()]

    def integer(self, name: str) -> int | None:
        """A whole number; None if the field is empty."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise InvalidInput(name, f'"{text}" is not a whole number', hint="use digits only") from None

    @overload
    def duration(self, name: str) -> timedelta | None: ...
    @overload
    def duration(self, name: str, default: timedelta) -> timedelta: ...
    def duration(self, name: str, default: timedelta | None = None) -> timedelta | None:
        """A duration such as `30m`; the default if the field is empty."""
        text = self.text(name)
        return units.duration(text, field=name) if text else default

    def time(self, name: str) -> datetime | None:
        """A time of an input of the type datetime-local; None if the field is empty."""
        text = self.text(name)
        return utc_time(text, field=name) if text else None

    def moment(self, name: str) -> datetime | None:
        """A time that a page of ours has put into a hidden field, as microseconds; None if it is empty."""
        microseconds = self.integer(name)
        if not microseconds:
            return None
        try:
            return from_unix_us(microseconds)
        except OverflowError:
            raise InvalidInput(name, "is out of range (must be before 9999-12-31)", hint="reload the page") from None

    def flag(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.text(name).lower() in _ON


def utc_time(text: str, *, field: str, hint: str = "use 2026-12-24T18:00, in UTC") -> datetime:
    """A time. One without a zone, as browsers send it, is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(field, f"is not a time, got {shown(text)}", hint=hint) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
