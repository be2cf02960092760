"""Who calls, by the token of the call: metadata `authorization: Bearer TOKEN`, on calls and streams alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

from headgate.control.auth import TokenValidator
from headgate.domain.identity import Identity, Scope

CALLER: Final[ContextVar[Identity]] = ContextVar("caller")
"""Set by the guard for the task of a call, and hence for all tasks which that one starts."""


RECEIVING: Final[ContextVar[asyncio.Semaphore]] = ContextVar("receiving")
"""Turns of the caller's tenant to receive a request, set by the guard too."""


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
