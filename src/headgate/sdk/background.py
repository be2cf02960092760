"""What a worker does once beside its jobs: it stores what its code declares, rules of topics first, then schedules.

In the background: a server that is not there yet does not keep the worker from starting, and what a token may not do
costs a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import uniform
from typing import TYPE_CHECKING, Final, TypeVar

from headgate.domain.errors import HeadgateError
from headgate.sdk import rules, schedules
from headgate.sdk.errors import RETRIED, Forbidden, NotAcknowledged, NotConnected, ServerError

if TYPE_CHECKING:
    from headgate.sdk.app import Headgate
    from headgate.sdk.worker import Worker

T = TypeVar("T")

log = logging.getLogger("headgate.worker")
LOOK_SECONDS: Final = 0.02


async def store_declared(app: Headgate, worker: Worker) -> None:
    """Store rules and schedules once the worker is connected. Never fails, and logs what it did."""
    # The server reports conflicts between workers that are connected. This flag is set by the I/O thread.
    while not worker.connected:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)
    try:
        rules.report(await once_reachable(lambda: app._declare(worker)))
    except HeadgateError as error:
        log.warning("rules_not_stored reason=%s", error)
    if not app._schedules:
        return
    try:
        schedules.report(await once_reachable(app.sync_schedules))
    except HeadgateError as error:
        text = f"{error} (storing schedules needs the scope operate)" if isinstance(error, Forbidden) else str(error)
        log.warning("schedules_not_stored reason=%s", text)


async def once_reachable(act: Callable[[], Awaitable[T]]) -> T:
    """Do it as soon as a server can be reached; raises what a retry cannot fix."""
    wait = 0.5
    while True:
        try:
            return await act()
        except HeadgateError as error:
            if not _passes(error):
                raise
            log.debug("declarations_wait error=%s", error)
        await asyncio.sleep(wait * uniform(0.5, 1.0))  # noqa: S311 - jitter
        wait = min(10.0, wait * 2)


def _passes(error: HeadgateError) -> bool:
    return isinstance(error, NotConnected | NotAcknowledged) or (
        isinstance(error, ServerError) and error.reported in RETRIED
    )
