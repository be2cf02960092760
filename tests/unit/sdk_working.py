"""A worker at a scripted server, and a handler in the hands of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headgate import Headgate, Job, Worker
from tests.support.fake_server import FakeServer, WorkerPeer


@asynccontextmanager
async def working(app: Headgate, server: FakeServer, **options: Any) -> AsyncIterator[tuple[Worker, WorkerPeer]]:
    worker = app.worker(**{"concurrency": 4, "grace": 5, "cancel_grace": 0, **options})
    async with working_worker(worker, server) as peer:
        yield worker, peer


@asynccontextmanager
async def working_worker(worker: Worker, server: FakeServer) -> AsyncIterator[WorkerPeer]:
    running = asyncio.create_task(worker.run())
    try:
        yield await server.worker()
    finally:
        worker.stop()
        worker.stop()
        await running


class Gate:
    """A handler that waits until it is let go, and says that it has begun."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self.open = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        self.begun.append(job.id.bytes)
        try:
            await self.open.wait()
        finally:
            self.ended.append(job.id.bytes)
