"""Who calls, by the token of the call: metadata `authorization: Bearer TOKEN`, on calls and streams alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from headgate.control.auth import TokenValidator
from headgate.control.permissions import Rule
from headgate.domain import limits
from headgate.domain.identity import Identity, Scope

CALLER: Final[ContextVar[Identity]] = ContextVar("caller")
"""Set by the guard for the task of a call, and so for all tasks that it starts."""


@dataclass(slots=True)
class Turns:
    """How many first messages of one credential are received at once. Silent streams do not stop calls."""

    calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.REQUESTS_AT_ONCE))
    hellos: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.HELLOS_AT_ONCE))


@dataclass(slots=True)  # frozen would take three times as long to make, for every call
class Admission:
    """What a call was let in by."""

    validator: TokenValidator
    rule: Rule
    turns: Turns

    def renew(self) -> None:
        """Ask again when the request has come, which may be long after the headers; raises if it may not any more."""
        identity = self.validator.recheck(CALLER.get())
        self.rule.admit(identity)
        CALLER.set(identity)


ADMISSION: Final[ContextVar[Admission]] = ContextVar("admission")
"""Set by the guard too."""


def token_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The bearer token, or an empty text."""
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            return value[7:].strip()
    return ""


def caller() -> Identity:
    """Whose call this is. The guard has checked what its method needs."""
    return CALLER.get()


def recheck(validator: TokenValidator, identity: Identity, scope: Scope) -> Identity:
    """The rights which the same token has now; raises where it has lost the scope, or is not valid any more."""
    known = validator.recheck(identity)
    known.require(scope)
    return known
