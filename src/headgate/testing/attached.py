"""An app attached to a real server for one test: its client leads there, as a tenant that nothing else uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self, Unpack

from headgate.sdk import Headgate, JobInfo, Worker, WorkerOptions
from headgate.sdk.addresses import Trust, addresses_of
from headgate.sdk.connection import Target
from headgate.sdk.errors import NotDrained

_LIVE: Final = "state:pending,running,scheduled,retrying,blocked"
_LOOK_SECONDS: Final = 0.02
_CLOSE_SECONDS: Final = 10.0


class AttachedApp:
    """`with server.attach(hg) as attached:` within the block, everything that `hg` does goes to the server.

    Jobs of other tests are in other tenants: they are neither seen nor run here.
    """

    def __init__(self, app: Headgate, *, url: str, tenant: str) -> None:
        self.app, self.url, self.tenant = app, url, tenant
        self._before: Target | None = None

    @property
    def token(self) -> str:
        """The token of the tenant, for further clients: `Headgate(attached.url, token=attached.token)`."""
        return self.tenant

    def __enter__(self) -> Self:
        if self._before is not None:
            raise RuntimeError("this app is attached already; call server.attach(hg) for each `with` block")
        addresses = addresses_of(self.url, Trust())
        target = Target(addresses=addresses, token=self.token, tenant=self.tenant)
        self._before = self.app._connection.swap(target)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self.app._connection
        try:
            closing = connection.start_close(flush=0.0)
            if closing is not None:
                closing.result(_CLOSE_SECONDS)
        finally:
            if self._before is not None:
                connection.swap(self._before)

    @asynccontextmanager
    async def worker(self, **options: Unpack[WorkerOptions]) -> AsyncIterator[Worker]:
        """Run a worker of the app on this event loop during the block; at its end, running jobs finish first."""
        async with self._running(**options) as (worker, _):
            yield worker

    @asynccontextmanager
    async def _running(self, **options: Unpack[WorkerOptions]) -> AsyncIterator[tuple[Worker, asyncio.Task[None]]]:
        worker = self.app.worker(**options)
        running = asyncio.create_task(worker.run(), name="worker of a test")
        try:
            yield worker, running
        finally:
            worker.stop()
            await running

    async def drain(self, *, timeout: float = 30.0, **options: Unpack[WorkerOptions]) -> None:  # noqa: ASYNC109
        """Run a worker until every job of the tenant has ended, or raise NotDrained after `timeout` seconds.

        Delays and retries take their real time. If the worker fails, its error is raised at once.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        live = self.app.admin.jobs_matching(_LIVE)
        async with self._running(**options) as (_, running):
            while True:
                page = await live.page(limit=5)
                if not page.jobs and not page.cursor:
                    return
                if loop.time() > end:
                    left = "; ".join(map(self._described, page.jobs))
                    raise NotDrained(f"jobs are left after {timeout:g} s: {left}")
                await asyncio.wait([running], timeout=_LOOK_SECONDS)
                if running.done():
                    await running
                    raise NotDrained("the worker has stopped, and jobs are left")

    def _described(self, job: JobInfo) -> str:
        text = f'job {job.id} of topic "{job.topic}" is {job.state}'
        return text if job.topic in self.app.tasks else f"{text}, and this app has no handler for it"
