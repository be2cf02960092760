"""Hooks at the start and the end of a worker: async ones run on its event loop, plain ones in a thread."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headgate.sdk.background_calls import BackgroundCalls
from headgate.sdk.hooks import WorkerHook, name_of

if TYPE_CHECKING:
    from headgate.sdk.worker.worker import Worker

log = logging.getLogger("headgate.worker")

WORKER_HOOK_SECONDS: Final = 10.0
"""How long all hooks of one kind may take together. A plain function that takes longer is left behind in its thread."""


async def call_worker_hooks(kind: str, functions: Sequence[WorkerHook], worker: Worker) -> None:
    """Call them in order; one that raises or takes too long is logged, and the worker continues.

    A SystemExit is raised: by it a hook refuses to start the worker.
    """
    thread = BackgroundCalls(f"headgate-{kind}")
    deadline = asyncio.get_running_loop().time() + WORKER_HOOK_SECONDS
    for function in functions:
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                # On the loop, a plain function that blocks would keep signals from ending the worker.
                on_loop = inspect.iscoroutinefunction(function)
                made = function(worker) if on_loop else await asyncio.wrap_future(thread.submit(function, worker))
                if inspect.isawaitable(made):
                    await made
        except Exception:  # whatever a hook raises, the worker continues
            if limit.expired():
                thread.close(0)
                thread = BackgroundCalls(f"headgate-{kind}")
                log.error(
                    'hook_failed hook=%s function=%s seconds=%g error="it did not end in time"',
                    *(kind, name_of(function), WORKER_HOOK_SECONDS),
                )
            else:
                log.exception("hook_failed hook=%s function=%s", kind, name_of(function))
    thread.close(0)
