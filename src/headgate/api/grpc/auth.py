"""The token of a call: metadata `authorization: Bearer TOKEN`."""

from __future__ import annotations

from collections.abc import Iterable


def token_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The bearer token, or an empty text."""
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            return value[7:].strip()
    return ""
