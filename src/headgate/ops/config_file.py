"""The configuration file: TOML, with the line of each value, so that an error can name it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from headgate.domain.errors import InvalidSetting
from headgate.ops.exposure import check_private
from headgate.ops.setting import Kind, Setting
from headgate.ops.settings import BY_NAME, SECTIONS

BYTES_MAX: Final = 1 << 20
_PART: Final = r"(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')"
_PATH: Final = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER: Final = re.compile(rf"\s*\[\[?\s*({_PATH})\s*\]")
_ASSIGNMENT: Final = re.compile(rf"\s*({_PATH})\s*=")
_PASSWORD: Final = re.compile(r"//[^/@\s]*:[^/@\s]+@|[?&](?:ssl)?password=", re.IGNORECASE)
_KINDS: Final = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "an array"}
_ALLOWED: Final[Mapping[Kind, tuple[type, ...]]] = {
    Kind.INTEGER: (int,),
    Kind.SWITCH: (bool,),
    Kind.DURATION: (str, int, float),
    Kind.SIZE: (str, int),
    Kind.NAMES: (str, list),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValue:
    """A value of the file as text, and where it is: `headgate.toml:12`."""

    text: str
    where: str


def read_file(path: Path) -> dict[str, FileValue]:
    """Read the values of a file by the names of their settings; raises InvalidSetting.

    A file with secrets that other users can read is refused as well.
    """
    found = parse_file(_text(path), source=str(path))
    if any(_is_secret(BY_NAME[name], value.text) for name, value in found.items()):
        check_private(path, setting="the configuration file has secrets, and")
    return found


def parse_file(text: str, *, source: str) -> dict[str, FileValue]:
    """Read the values of a text.

    Raises InvalidSetting, with the line, for what is not TOML, an unknown section or key, and a value of another type.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(source, f"is not TOML: {error}") from None
    except (RecursionError, ValueError) as error:  # nested too deeply; a number with too many digits
        raise InvalidSetting(source, f"is not TOML that can be read: {error}") from None
    lines = _lines(text)
    found: dict[str, FileValue] = {}
    for section, keys in document.items():
        where = f"{source}:{lines.get((section,), 1)}"
        if section not in SECTIONS:
            raise _unknown_section(section, keys, where)
        if not isinstance(keys, dict):
            raise InvalidSetting(where, f"{section} is not a section", hint=f"write [{section}]")
        for key, value in keys.items():
            where = f"{source}:{lines.get((section, key), 1)}"
            setting = SECTIONS[section].get(key)
            if setting is None:
                raise _unknown_key(section, key, where)
            found[setting.name] = FileValue(text=_plain(setting, value, where), where=where)
    return found


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > BYTES_MAX:
            raise InvalidSetting(str(path), f"is larger than {BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSetting(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSetting(str(path), f"is not UTF-8 at byte {error.start}") from None


def _is_secret(setting: Setting, text: str) -> bool:
    """Whether a value must not be read by others: an address is a secret only with a password."""
    return setting.secret and (setting.kind is not Kind.DATABASE or _PASSWORD.search(text) is not None)


def _plain(setting: Setting, value: object, where: str) -> str:
    allowed = _ALLOWED.get(setting.kind, (str,))
    if type(value) not in allowed:
        kind = _KINDS.get(type(value), "a table" if isinstance(value, dict) else "a time")
        raise InvalidSetting(
            where, f"{setting.path} must be {_expected(setting)}, got {kind}", hint=f"for example {_example(setting)}"
        )
    if isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise InvalidSetting(where, f"{setting.path} must be an array of texts")
        return ",".join(value)
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _expected(setting: Setting) -> str:
    match setting.kind:
        case Kind.INTEGER:
            return "a whole number"
        case Kind.SWITCH:
            return "true or false"
        case Kind.NAMES:
            return "an array of texts"
        case _:
            return "a text in quotes"


def _example(setting: Setting) -> str:
    samples = {
        Kind.INTEGER: "1",
        Kind.SWITCH: "true",
        Kind.DURATION: '"30s"',
        Kind.SIZE: '"256KiB"',
        Kind.NAMES: '["name"]',
    }
    sample = samples.get(setting.kind, '"…"')
    return f"{setting.file_key} = {sample}"


def _unknown_section(section: str, value: object, where: str) -> InvalidSetting:
    if isinstance(value, dict):
        near = get_close_matches(section, SECTIONS, n=1)
        hint = f"did you mean [{near[0]}]?" if near else f"known sections are {', '.join(SECTIONS)}"
        return InvalidSetting(where, f"[{section}] is not a known section", hint=hint)
    setting = _nearest_anywhere(section)
    hint = f"did you mean {setting.file_key} in [{setting.section}]?" if setting else "keys belong to a section"
    return InvalidSetting(where, f"{section} is outside of a section", hint=hint)


def _unknown_key(section: str, key: str, where: str) -> InvalidSetting:
    known = SECTIONS[section]
    near = get_close_matches(key, known, n=1)
    elsewhere = None if near else _nearest_anywhere(key)
    if near:
        hint = f"did you mean {near[0]}?"
    elif elsewhere is not None:
        hint = f"did you mean {elsewhere.file_key} in [{elsewhere.section}]?"
    else:
        hint = f"[{section}] has {', '.join(known)}"
    return InvalidSetting(where, f"{section}.{key} is not a known setting", hint=hint)


def _nearest_anywhere(key: str) -> Setting | None:
    names = {name: one for keys in SECTIONS.values() for one in keys.values() for name in (one.file_key, one.name)}
    near = get_close_matches(key, names, n=1)
    return names[near[0]] if near else None


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The first line of each table and key."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in _outside_of_long_texts(text):
        if header := _HEADER.match(line):
            table = _parts(header[1])
            names = table
        elif assignment := _ASSIGNMENT.match(line):
            names = (*table, *_parts(assignment[1]))
        else:
            continue
        for length in range(1, len(names) + 1):
            found.setdefault(names[:length], number)
    return found


def _outside_of_long_texts(text: str) -> Iterator[tuple[int, str]]:
    closing = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not closing:
            yield number, line
        for quote in ('"""', "'''"):
            if closing in ("", quote) and line.count(quote) % 2:
                closing = "" if closing else quote


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, path))
