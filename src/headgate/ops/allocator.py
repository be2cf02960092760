"""The C allocator of a server process: freed memory is used again by all of its threads."""

from __future__ import annotations

import ctypes
import os
from typing import Final

ARENAS_MAX: Final = 2
"""One for the event loop, one for the polling thread of gRPC."""
_M_ARENA_MAX: Final = -8


def limit_arenas() -> None:
    """Let threads share the arenas of glibc; call it before they start. MALLOC_ARENA_MAX in the environment wins.

    By default, glibc makes up to eight arenas per core, and memory that is free in one is not used by the others: after
    large requests a server kept 30 MiB more, and took new memory for the next ones (ADR 25). Other C libraries have no
    arenas, and nothing is done.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, ARENAS_MAX)
