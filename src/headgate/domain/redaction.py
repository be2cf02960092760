"""Masking: values of keys that look secret are not shown in payloads, results and errors. Stored data is not changed.

Every surface that shows these to people, or sends them elsewhere, uses these rules: the command line, webhooks, the
dashboard, and log lines of servers and workers (log_redaction.py). Clients that read a job by the API get it as it is:
it is theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

from headgate.domain.envelope import described, description, is_encrypted
from headgate.domain.errors import InvalidInput

MASK: Final = "•••"
DEPTH_MAX: Final = 200
"""What is nested deeper is masked as a whole: looking into it would exceed the stack of Python."""
DEFAULT_NAMES: Final = (
    *("password", "passwd", "passphrase", "secret", "token", "authorization", "cookie", "credentials"),
    *("api_key", "access_key", "private_key", "secret_key", "card_number", "cvv", "iban", "ssn"),
)
_NOTHING: Final = object()
_IGNORED: Final = str.maketrans("", "", "-_ ")
_SEPARATOR: Final = re.compile("[-_ ]+")
_URL_PASSWORD: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,100}:)[^\s/@]{1,200}@", re.IGNORECASE)
# In quotes; a scheme and its credentials; anything else up to a blank or a closing bracket.
_VALUE: Final = r'"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'|(?:Bearer|Basic) +[^\s,;\"']+|[^\s,;&\"')\]}]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """The names of secret keys: a key that ends with one of them is masked. Case, `-` and `_` do not count."""

    names: tuple[str, ...] = DEFAULT_NAMES

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        """These names, in addition to the default ones; `none` alone masks nothing."""
        return cls(names=()) if list(names) == ["none"] else cls(names=(*DEFAULT_NAMES, *names))

    def masked(self, value: object) -> object:
        """A copy of a JSON value with the values of secret keys replaced, at any depth."""
        return _masked(value, tuple(map(_plain, self.names)))

    def masked_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers of a job with the values of secret names replaced, and what their texts have as name and value."""
        names = tuple(map(_plain, self.names))
        return {name: MASK if _is_secret(name, names) else self.masked_text(value) for name, value in headers.items()}

    def shown(self, body: bytes) -> object:
        """A payload or a result as a JSON value, masked; as text if it is not JSON; None if it is empty.

        One that is encrypted is shown by its key and size.
        """
        if not body:
            return None
        if is_encrypted(body):
            return description(body)
        try:
            value: object = json.loads(body)
        except (ValueError, RecursionError):
            return self.masked_text(body.decode(errors="replace"))
        return self.masked(value)

    def masked_text(self, text: str) -> str:
        """An error or a traceback with what follows secret names replaced: `password=…`, `"token": "…"`.

        Passwords of URLs are masked as well, and encrypted texts are named. It finds what is written as a name and a
        value, no more than that.
        """
        text = described(text)
        if not self.names or not text:
            return text
        text = _URL_PASSWORD.sub(rf"\g<1>{MASK}@", text)
        return _assignment(self.names).sub(rf"\g<1>{MASK}", text)


def restored(edited: object, stored: object, path: str = "", depth: int = 0) -> object:
    """A JSON value that was edited in its masked form, with each mask replaced by the stored value at its place.

    Raises InvalidInput for a mask at a place where nothing is stored: what it stands for is not known there.
    """
    if depth > DEPTH_MAX:
        raise InvalidInput("payload", f"is nested deeper than {DEPTH_MAX} levels")
    if isinstance(edited, dict):
        known: dict[object, object] = stored if isinstance(stored, dict) else {}
        return {
            key: restored(inner, known.get(key, _NOTHING), f"{path}.{key}", depth + 1) for key, inner in edited.items()
        }
    if isinstance(edited, list):
        items: list[object] = stored if isinstance(stored, list) else []
        return [
            restored(inner, items[index] if index < len(items) else _NOTHING, f"{path}[{index}]", depth + 1)
            for index, inner in enumerate(edited)
        ]
    if edited != MASK:
        return edited
    if stored is _NOTHING:
        raise InvalidInput(
            "payload", f"{path.lstrip('.')} is {MASK}, and nothing is stored there", hint="type its value, or remove it"
        )
    return stored


def _masked(value: object, names: tuple[str, ...], depth: int = 0) -> object:
    if not isinstance(value, dict | list):
        return value
    if depth == DEPTH_MAX:
        return MASK
    if isinstance(value, list):
        return [_masked(inner, names, depth + 1) for inner in value]
    return {key: MASK if _is_secret(key, names) else _masked(inner, names, depth + 1) for key, inner in value.items()}


def _is_secret(key: object, names: Iterable[str]) -> bool:
    plain = _plain(str(key))
    return any(plain.endswith(name) for name in names)


def _plain(name: str) -> str:
    return name.lower().translate(_IGNORED)


@lru_cache(maxsize=8)
def _assignment(names: tuple[str, ...]) -> re.Pattern[str]:
    """A name that ends with one of these, then `=` or `:`, then a value. Bounded, so that no text takes long."""
    secret = "|".join("[-_ ]?".join(map(re.escape, _SEPARATOR.split(name))) for name in names)
    key = rf"""(?<![\w-])[\w-]{{0,64}}?(?:{secret})["']?\s{{0,3}}[=:]\s{{0,3}}"""
    return re.compile(f"({key})(?:{_VALUE})", re.IGNORECASE)
