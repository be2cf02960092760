"""Who may do what. A validator turns a token into an identity; static tokens come from a file or the environment.

JWT and API keys will be further validators of the same small interface.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from headgate.domain.errors import InvalidInput, InvalidSetting
from headgate.domain.identity import Identity, Scope, Unauthenticated
from headgate.domain.validation import check_tenant, check_topic

WORKER_SCOPES = frozenset({Scope.WORK, Scope.READ, Scope.SUBMIT})


class TokenValidator(Protocol):
    """Turns a credential into an identity, or raises Unauthenticated."""

    def identify(self, token: str) -> Identity: ...


@dataclass(frozen=True, slots=True)
class OpenDoor:
    """Dev mode on loopback: everybody is the default tenant's administrator."""

    tenant: str = "default"

    def identify(self, token: str) -> Identity:
        return _administrator(self.tenant, token)


@lru_cache(maxsize=1024)  # asked for every frame
def _administrator(tenant: str, token: str) -> Identity:
    return Identity(tenant=tenant, subject="dev", scopes=frozenset(Scope), token=token)


class StaticTokens:
    """Tokens from configuration: {"TOKEN": {"tenant": …, "scopes": […], "topics": […]}}."""

    def __init__(self, tokens: Mapping[str, Identity]) -> None:
        self._tokens = dict(tokens)

    def identify(self, token: str) -> Identity:
        found = None
        given = token.encode()
        for known, identity in self._tokens.items():  # all of them, in constant time each: nothing is told by timing
            if hmac.compare_digest(known.encode(), given):
                found = identity
        if found is None:
            raise Unauthenticated
        return found


class TokenFile:
    """Static tokens in a file that is read again when it changes, so that a token can be revoked at run time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._tokens = StaticTokens({})
        try:
            self.refresh()
        except OSError as error:
            raise InvalidSetting("--tokens", f"{path} cannot be read ({error.strerror})") from error

    def identify(self, token: str) -> Identity:
        return self._tokens.identify(token)

    def refresh(self) -> bool:
        """Read the file if it changed; says whether it did. A file that cannot be read keeps the last known tokens."""
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return False
        try:
            text = self._path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidSetting(str(self._path), "is not UTF-8") from None
        self._tokens = StaticTokens(parse_tokens(text, source=str(self._path)))
        self._stamp = stamp
        return True


def parse_tokens(text: str, *, source: str) -> dict[str, Identity]:
    """Read the JSON form; raises InvalidSetting naming the entry, never the token."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise InvalidSetting(source, f"is not JSON: {error}") from None
    except RecursionError:
        raise InvalidSetting(source, "is not JSON of ours: it is nested too deep") from None
    if not isinstance(entries, dict):
        raise InvalidSetting(source, 'must be an object {"TOKEN": {"tenant": …, "scopes": […], "topics": […]}}')
    tokens: dict[str, Identity] = {}
    for number, (token, entry) in enumerate(entries.items(), 1):
        if len(token) < 16:
            raise InvalidSetting(source, f"token {number} has {len(token)} characters; it needs 16 or more")
        if not isinstance(entry, dict) or not {"tenant"} <= set(entry) <= {"tenant", "scopes", "topics", "subject"}:
            raise InvalidSetting(source, f"token {number} must have tenant, and may have scopes, topics and subject")
        try:
            tokens[token] = Identity(
                tenant=check_tenant(entry["tenant"]),
                subject=str(entry.get("subject", f"token {number}")),
                scopes=_scopes(entry.get("scopes"), source, number),
                topics=_topics(entry.get("topics")),
                token=token,
            )
        except InvalidSetting:
            raise
        except InvalidInput as error:
            raise InvalidSetting(source, f"token {number}: {error}") from None
    return tokens


def _scopes(value: object, source: str, number: int) -> frozenset[Scope]:
    if value is None:
        return WORKER_SCOPES
    try:
        return frozenset(Scope(str(one)) for one in _list(value))
    except ValueError:
        raise InvalidSetting(source, f"token {number}: knows no such scope; there are {', '.join(Scope)}") from None


def _topics(value: object) -> frozenset[str] | None:
    return None if value is None else frozenset(check_topic(topic) for topic in _list(value))


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]
