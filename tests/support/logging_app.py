"""Handlers of each kind that log and say what they know of their job, with middleware, at the top of a module."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from headgate import Headgate, Job

structlog: Any = importlib.import_module("structlog")  # not by a statement: type checkers need not have it
hg = Headgate()
log = logging.getLogger("app.mail")
around: list[str] = []


@hg.middleware
def noted(job: Job) -> Iterator[None]:
    log.info("before %s", job.topic)
    around.append(str(job.id))
    yield
    log.info("after %s", job.topic)


def known() -> dict[str, Any]:
    """What log lines are bound to here, and in which process."""
    return {"bound": structlog.contextvars.get_contextvars(), "pid": os.getpid(), "around": list(around)}


@hg.job("on-loop")
async def on_loop() -> dict[str, Any]:
    log.info("on the loop")
    await asyncio.gather(asyncio.to_thread(log.info, "in a thread of it"), said("in a task of it"))
    return known()


async def said(text: str) -> None:
    log.info(text)


@hg.job("in-thread")
def in_thread() -> dict[str, Any]:
    log.info("in a thread")
    return known()


@hg.job("in-process", run_in="process")
def in_process(fail: bool = False) -> dict[str, Any]:
    log.info("in a process")
    if fail:
        raise ValueError("not in this process")
    return known()
