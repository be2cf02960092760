"""The caller of a method, by its token: metadata `authorization: Bearer TOKEN`, for calls and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

from headgate.control.auth import TokenValidator
from headgate.control.permissions import Rule
from headgate.domain import limits
from headgate.domain.identity import Identity
from headgate.domain.request_ids import HEADER, is_request_id

CALLER: Final[ContextVar[Identity]] = ContextVar("caller")
"""Set by the guard for the task of a call, and inherited by the tasks that it starts."""


@dataclass(slots=True)
class Turns:
    """Bounds the first messages of one credential that are received at once; silent streams do not stop calls."""

    calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.REQUESTS_AT_ONCE))
    hellos: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.HELLOS_AT_ONCE))

    @property
    def exhausted(self) -> bool:
        """Whether a request would have to wait."""
        return self.calls.locked() or self.hellos.locked()


@dataclass(slots=True)  # frozen would take three times as long to make, for every call
class Admission:
    """The rule and validator that admitted a call."""

    validator: TokenValidator
    rule: Rule
    turns: Turns

    def renew(self) -> None:
        """Check again when the request has arrived, which can be long after the headers; raises if refused now."""
        identity = self.validator.recheck(CALLER.get())
        self.rule.admit(identity)
        CALLER.set(identity)


ADMISSION: Final[ContextVar[Admission]] = ContextVar("admission")
"""Set by the guard as well."""


def token_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The bearer token, or an empty string."""
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            return value[7:].strip()
    return ""


def request_id_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The id that the client has given the call, or a new one."""
    for name, value in metadata or ():
        if name == HEADER and is_request_id(value):
            return str(value)
    return token_hex(8)


def caller() -> Identity:
    """The caller of the current method. The guard has checked the scopes that the method requires."""
    return CALLER.get()
