"""The cookies of the dashboard. None of them can be read by a script, and no other site can make the browser send one.

__Host-headgate     the secret of a browser session, over TLS; `headgate_session` over plain HTTP, where browsers
                    refuse names with that prefix
headgate_visitor    a random text from which the token of a form is derived before there is a session; over TLS
                    `__Host-headgate_visitor`
headgate_ui         choices of this browser: theme, keyboard, times, density
headgate_flash      a message for the next page
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal
from urllib.parse import parse_qsl, urlencode

from litestar.datastructures import Cookie

SECURE_SESSION: Final = "__Host-headgate"
PLAIN_SESSION: Final = "headgate_session"
SECURE_VISITOR: Final = "__Host-headgate_visitor"
PLAIN_VISITOR: Final = "headgate_visitor"
PREFERENCES: Final = "headgate_ui"
FLASH: Final = "headgate_flash"
FLASH_MAX_CHARS: Final = 1_000
_YEAR: Final = timedelta(days=365)

Level = Literal["ok", "error", "info"]

CHOICES: Final = {
    "theme": ("system", "light", "dark"),
    "keys": ("on", "off"),
    "times": ("relative", "local", "utc"),
    "density": ("comfortable", "compact"),
    "live": ("live", "5", "30", "off"),
}
"""What can be chosen; the first one is the default."""


def session_cookie(secret: str, *, secure: bool, life: timedelta) -> Cookie:
    """The cookie of a new session; with an empty secret, one that removes it."""
    seconds = int(life.total_seconds()) if secret else 0
    return _cookie(SECURE_SESSION if secure else PLAIN_SESSION, secret, seconds=seconds, secure=secure)


def visitor_cookie(value: str, *, secure: bool) -> Cookie:
    """The cookie of a browser without a session; it ends with the browser."""
    return _cookie(SECURE_VISITOR if secure else PLAIN_VISITOR, value, seconds=None, secure=secure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What this browser has chosen."""

    theme: str = "system"
    keys: str = "on"
    times: str = "relative"
    density: str = "comfortable"
    live: str = "live"

    @classmethod
    def of(cls, cookie: str) -> Preferences:
        """The choices in a cookie; what is not known is left out."""
        given = dict(parse_qsl(cookie[:500]))
        return cls(**{name: given[name] for name, values in CHOICES.items() if given.get(name) in values})

    def cookie(self, *, secure: bool) -> Cookie:
        """The cookie that keeps them."""
        chosen = {name: getattr(self, name) for name in CHOICES}
        return _cookie(PREFERENCES, urlencode(chosen), seconds=int(_YEAR.total_seconds()), secure=secure)


@dataclass(frozen=True, slots=True)
class Undo:
    """The action that takes a change back: an address of the dashboard, and the fields of its form."""

    action: str
    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: object) -> Undo | None:
        """What `plain` made; None for anything else. A cookie can be forged, so the address is one of ours, or none."""
        if not isinstance(plain, dict) or not isinstance(action := plain.get("action"), str):
            return None
        values = plain.get("values")
        if not action.startswith("/ui/") or not isinstance(values, dict):
            return None
        return cls(action, {str(name): str(value) for name, value in values.items()})

    def plain(self) -> dict[str, object]:
        """As JSON has it."""
        return {"action": self.action, "values": dict(self.values)}


@dataclass(frozen=True, slots=True)
class Flash:
    """A message that the next page shows."""

    text: str
    level: Level = "ok"
    undo: Undo | None = None

    @classmethod
    def of(cls, cookie: str) -> Flash | None:
        """The message in a cookie; None if there is none."""
        try:
            level, text, undo = json.loads(base64.urlsafe_b64decode(cookie.encode()))
        except (ValueError, TypeError, binascii.Error):
            return None
        if not isinstance(text, str) or level not in ("ok", "error", "info"):
            return None
        return cls(text[:FLASH_MAX_CHARS], level, Undo.of(undo))

    def cookie(self, *, secure: bool) -> Cookie:
        """The cookie that carries it."""
        content = json.dumps([self.level, self.text[:FLASH_MAX_CHARS], self.undo and self.undo.plain()]).encode()
        return _cookie(FLASH, base64.urlsafe_b64encode(content).decode(), seconds=60, secure=secure)


def forgotten(name: str, *, secure: bool) -> Cookie:
    """A cookie that removes the one of that name."""
    return _cookie(name, "", seconds=0, secure=secure)


def _cookie(name: str, value: str, *, seconds: int | None, secure: bool) -> Cookie:
    return Cookie(key=name, value=value, path="/", max_age=seconds, httponly=True, secure=secure, samesite="strict")
