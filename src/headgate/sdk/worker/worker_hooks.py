"""Hooks at the start and the end of a worker, called on its event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headgate.sdk.hooks import WorkerHook, name_of

if TYPE_CHECKING:
    from headgate.sdk.worker.worker import Worker

log = logging.getLogger("headgate.worker")

WORKER_HOOK_SECONDS: Final = 10.0
"""How long all hooks of one kind may take together. A plain function that blocks the event loop is not stopped."""


async def call_worker_hooks(kind: str, functions: Sequence[WorkerHook], worker: Worker) -> None:
    """Call them in order; one that raises or takes too long is logged, and the worker continues."""
    deadline = asyncio.get_running_loop().time() + WORKER_HOOK_SECONDS
    for function in functions:
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                made = function(worker)
                if inspect.isawaitable(made):
                    await made
        except Exception:  # whatever a hook raises, the worker continues
            if limit.expired():
                log.error(
                    'hook_failed hook=%s function=%s seconds=%g error="it did not end in time"',
                    *(kind, name_of(function), WORKER_HOOK_SECONDS),
                )
            else:
                log.exception("hook_failed hook=%s function=%s", kind, name_of(function))
