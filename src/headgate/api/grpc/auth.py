"""Who calls, by the token of the call: metadata `authorization: Bearer TOKEN`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from headgate.control.auth import TokenValidator
from headgate.domain.identity import Identity, Scope


def token_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The bearer token, or an empty text."""
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            return value[7:].strip()
    return ""


def caller(
    validator: TokenValidator, call: grpc.aio.ServicerContext[Any, Any], scope: Scope, *, token: str | None = None
) -> Identity:
    """Whose call it is; raises unless the token (of the metadata, or the given one) permits `scope`."""
    identity = validator.identify(token_in(call.invocation_metadata()) if token is None else token)
    identity.require(scope)
    return identity
