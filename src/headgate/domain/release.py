"""Which release this is."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The installed release."""
    return metadata.version("headgate")
