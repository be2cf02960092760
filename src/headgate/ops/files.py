"""How many files, and so connections, this process may have open."""

from __future__ import annotations

from typing import Final

KEPT_BACK: Final = 64
"""For connections to the database (a few lanes, one to listen), logs, certificates: strangers must not use them up."""
MOST: Final = 100_000
LEAST: Final = 16


def connections_allowed() -> int:
    """How many peers may be connected at once. Raises the limit on open files as far as it goes; some are kept back."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # macOS calls a limit unlimited that it does not grant
            pass
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(LEAST, min(MOST, soft - KEPT_BACK))
