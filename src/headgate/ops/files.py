"""The limit on open files, and so on connections, of this process."""

from __future__ import annotations

from typing import Final

RESERVED: Final = 64
"""For database connections, logs and certificates: clients must not use them up."""
CONNECTIONS_MAX: Final = 100_000
CONNECTIONS_MIN: Final = 16


def connections_allowed() -> int:
    """Raise the limit on open files to its maximum, and return how many clients may connect at once."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return CONNECTIONS_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # macOS reports an unlimited value that it does not grant
            pass
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, soft - RESERVED))
