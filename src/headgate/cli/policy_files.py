"""Files of topic policies, in TOML or JSON: read for `headgate topic apply`, written by `headgate topic export`.

    [topics.mail]
    max_attempts = 5
    retry = "exponential:1s:10m"
    dead_letter_topic = "mail-dead"

Values are texts as `headgate topic set` accepts them, or numbers and truth values. `payload_schema` is a table, or a
text with JSON. `version` makes applying depend on the version that the file was written from.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from headgate.domain.errors import InvalidInput
from headgate.domain.topic_rules import NAMES
from headgate.domain.topic_values import document_value, setting_of
from headgate.domain.validation import check_topic, shown
from headgate.sdk.admin.topics import TopicInfo, TopicSettings

VERSION: Final = "version"


class InvalidPolicy(InvalidInput):
    """A file of policies cannot be applied; names the file, and where known the line, the topic and the field."""

    code = "invalid_policy"
    echo_max = 2_000  # it is the operator's own, and a path has to be seen whole


_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDocument:
    """What a file says about one topic."""

    topic: str
    settings: TopicSettings
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """A file as read. `where` names a place in it for errors: file, line, topic and field."""

    name: str
    text: str
    documents: Sequence[PolicyDocument]

    def where(self, topic: str, setting: str = "") -> str:
        """`policies.toml line 4, topics.mail.retry`."""
        line = line_of(self.text, topic, setting)
        path = f"topics.{topic}.{setting}" if setting else f"topics.{topic}"
        return f"{self.name}{f' line {line}' if line else ''}, {path}"


def read_policies(path: str) -> PolicyFile:
    """Read a file, or standard input (`-`); raises InvalidInput with the file, the line and the field."""
    name, text = _read(path)
    data = _parsed(name, text)
    unknown = [key for key in data if key != "topics"]
    topics = data.get("topics")
    if unknown or not isinstance(topics, dict):
        problem = f"has the unknown key {shown(unknown[0])}" if unknown else "has no topics"
        raise InvalidPolicy(name, problem, hint="write [topics.NAME] and below it the settings of the topic")
    read = PolicyFile(name=name, text=text, documents=())
    documents = [_document(read, topic, given) for topic, given in topics.items()]
    return PolicyFile(name=name, text=text, documents=documents)


def _document(file: PolicyFile, topic: str, given: object) -> PolicyDocument:
    try:
        check_topic(topic)
    except InvalidInput as error:
        raise InvalidPolicy(file.where(topic), error.problem, hint=error.hint) from None
    if not isinstance(given, dict):
        raise InvalidPolicy(file.where(topic), f"must be a table of settings, got {shown(given)}")
    version = given.get(VERSION)
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise InvalidPolicy(file.where(topic, VERSION), f"must be a whole number, got {shown(version)}")
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name == VERSION:
            continue
        where = file.where(topic, name)
        if name not in NAMES:
            close = get_close_matches(name.replace("-", "_"), NAMES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(NAMES)}"
            raise InvalidPolicy(where, "is no setting of a topic", hint=hint)
        try:
            settings[name] = setting_of(name, value, field=name)
        except InvalidInput as error:
            raise InvalidPolicy(where, error.problem, hint=error.hint) from None
    return PolicyDocument(
        topic=topic,
        settings=TopicSettings(**settings),  # type: ignore[typeddict-item]  # by name, checked above
        version=version,
    )


def _read(path: str) -> tuple[str, str]:
    if path in ("-", "@-"):
        name, body = "standard input", sys.stdin.buffer.read()
    else:
        name = path
        try:
            body = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a file name"
            raise InvalidPolicy(path, f"cannot be read: {reason}") from None
    try:
        return name, body.decode()
    except UnicodeDecodeError as error:
        raise InvalidPolicy(name, f"is not UTF-8 (byte {error.start})") from None


def _parsed(name: str, text: str) -> dict[str, Any]:
    try:
        if name.endswith(".json") or (not name.endswith(".toml") and text.lstrip().startswith("{")):
            data = json.loads(text)
        else:
            data = tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidPolicy(f"{name} line {error.lineno}", f"is not JSON (column {error.colno}: {error.msg})") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidPolicy(name, f"is not TOML ({error})") from None
    except (ValueError, RecursionError):
        raise InvalidPolicy(name, "cannot be read: nested too deeply, or a number too long") from None
    if not isinstance(data, dict):
        raise InvalidPolicy(name, f"must be an object with topics, got {shown(data)}")
    return data


def line_of(text: str, topic: str, setting: str = "") -> int:
    """The line of a setting, or of its topic; 0 if it is not found, as in a file that is written in another way."""
    key = re.escape(topic)
    header = re.compile(rf"""^\s*(\[topics\.["']?{key}["']?[\].]|"{key}"\s*:)""")
    other = re.compile(r"^\s*\[topics\.")
    wanted = re.compile(
        rf"""^\s*["']?{re.escape(setting)}["']?\s*[=:]|^\s*\[topics\.["']?{key}["']?\.{re.escape(setting)}\b"""
    )
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        if header.match(line):
            first = first or number
            if setting and wanted.match(line):
                return number
        elif first and other.match(line):
            break
        elif first and setting and wanted.match(line):
            return number
    return first


def operator_settings(info: TopicInfo) -> dict[str, object]:
    """What operators have set, by name, as a file has it."""
    return {
        name: document_value(name, getattr(info, name)) for name in NAMES if info.origins[name].origin == "operator"
    }


def effective_settings(info: TopicInfo) -> dict[str, object]:
    """All that is set or declared, by name, as a file has it."""
    return {name: document_value(name, getattr(info, name)) for name in NAMES if info.origins[name].origin != "default"}


def as_toml(documents: Mapping[str, Mapping[str, object]]) -> list[str]:
    """The lines of a file; a topic without settings is only named."""
    lines = ["# Apply with: headgate topic apply -f FILE"]
    for topic, settings in documents.items():
        lines += ["", f"[topics.{topic if _BARE_KEY.fullmatch(topic) else json.dumps(topic)}]"]
        lines += [f"{name} = {_toml_value(value)}" for name, value in settings.items()]
    return lines


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _basic(value)
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _basic(text) if "'''" in text or "\x7f" in text else f"'''\n{text}\n'''"


def _basic(text: str) -> str:
    """A basic string: JSON has the same escapes, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
