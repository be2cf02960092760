"""Masking: values of keys that look secret are not shown in payloads and results. Stored data is not changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

MASK: Final = "•••"
DEFAULT_NAMES: Final = (
    *("password", "passwd", "passphrase", "secret", "token", "authorization", "cookie", "credentials"),
    *("api_key", "access_key", "private_key", "secret_key", "card_number", "cvv", "iban", "ssn"),
)
_IGNORED: Final = str.maketrans("", "", "-_ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """The names of secret keys: a key that ends with one of them is masked. Case, `-` and `_` do not count."""

    names: tuple[str, ...] = DEFAULT_NAMES

    @classmethod
    def parse(cls, text: str) -> Self:
        """Names separated by commas, in addition to the default ones; `none` masks nothing."""
        names = [name.strip() for name in text.split(",") if name.strip()]
        return cls(names=()) if names == ["none"] else cls(names=(*DEFAULT_NAMES, *names))

    def masked(self, value: object) -> object:
        """A copy of a JSON value with the values of secret keys replaced, at any depth."""
        return _masked(value, tuple(map(_plain, self.names)))


def _masked(value: object, names: tuple[str, ...]) -> object:
    if isinstance(value, dict):
        return {key: MASK if _is_secret(key, names) else _masked(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, names) for inner in value]
    return value


def _is_secret(key: object, names: Iterable[str]) -> bool:
    plain = _plain(str(key))
    return any(plain.endswith(name) for name in names)


def _plain(name: str) -> str:
    return name.lower().translate(_IGNORED)
