"""An app whose jobs run in a box of `hg.testing()`, or by a worker of a real server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Protocol

from headgate import Headgate, JobHandle, JobInfo
from headgate.testing import AttachedApp, Box
from tests.support.waiting import until_async

HOUR = timedelta(hours=1)


class World(Protocol):
    """An app whose jobs run in a box, or by a worker of a real server."""

    app: Headgate

    async def drain(self) -> None:
        """Run until every job has ended."""

    async def reach(self, handle: JobHandle[Any], state: str) -> JobInfo:
        """Run what is due until the job is in this state."""
        ...

    async def let_pass(self, seconds: float) -> None:
        """Let time pass, and run nothing."""


class InBox:
    """In memory, by the clock of the box."""

    def __init__(self, app: Headgate, box: Box) -> None:
        self.app, self.box = app, box

    async def drain(self) -> None:
        await self.box.drain()

    async def reach(self, handle: JobHandle[Any], state: str) -> JobInfo:
        await self.box.drain(until=0)
        info = await handle.info()
        assert info.state == state
        return info

    async def let_pass(self, seconds: float) -> None:
        self.box.advance(seconds)


class OnServer:
    """By a worker, in real time."""

    def __init__(self, app: Headgate, attached: AttachedApp) -> None:
        self.app, self.attached = app, attached

    async def drain(self) -> None:
        await self.attached.drain(timeout=60, concurrency=4)

    async def reach(self, handle: JobHandle[Any], state: str) -> JobInfo:
        async def there() -> JobInfo | None:
            info = await handle.info()
            return info if info.state == state else None

        async with self.attached.worker(concurrency=1):
            found = await until_async(there, f"the job is {state}")
            assert found is not None
            return found

    async def let_pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
