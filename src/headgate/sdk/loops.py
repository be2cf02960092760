"""The event loops that are ours to choose: of the I/O thread, and of `run_worker`."""

from __future__ import annotations

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where there is one.

    It is faster, and its wake-up from another thread does not give up the GIL: handlers that finish in a row are sent
    as one frame.
    """
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
