"""Log lines of a server that stops: what it waits for, how long, and what a second signal does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("headgate.server")

EVERY_SECONDS: Final = 5.0


async def log_drain(remaining: Callable[[], tuple[int, int]], *, grace: float) -> None:
    """Log at once and every few seconds how many workers and jobs are waited for; runs until it is cancelled."""
    ends = time.monotonic() + grace
    while True:
        workers, jobs = remaining()
        if not workers:
            return
        log.info(
            'draining workers=%d jobs=%d seconds_left=%.0f effect="workers finish their jobs and reconnect elsewhere" '
            'hint="a second signal exits at once"',
            *(workers, jobs, max(0.0, ends - time.monotonic())),
        )
        await asyncio.sleep(EVERY_SECONDS)


def log_second_signal() -> None:
    """Log what a second signal does."""
    log.warning(
        'second_signal effect="the server exits at once; workers reconnect and keep their jobs while the leases last"'
    )
