"""Procrastinate on psycopg's pool."""

from __future__ import annotations

import logging

import kit
from procrastinate import App, PsycopgConnector

logging.getLogger("procrastinate").setLevel(logging.ERROR)
CONCURRENCY = kit.setting("CONCURRENCY")


def application(url: str, *, began: kit.Tally | None = None, pool: int = 16) -> App:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=pool, max_size=pool))

    @app.task(name="nothing", queue=kit.QUEUE)
    async def nothing(body: str) -> None:
        assert began is not None
        began.began(body)

    return app


class Producer(kit.Producer):
    async def prepare(self) -> None:
        app = application(self.url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        self._app = application(self.url, pool=kit.setting("POOL"))
        await self._app.open_async().__aenter__()
        self._task = self._app.tasks["nothing"]

    async def push_many(self, bodies: list[str]) -> None:
        await self._task.batch_defer_async(*({"body": body} for body in bodies))

    async def push(self, body: str) -> None:
        await self._task.defer_async(body=body)

    async def close(self) -> None:
        await self._app.close_async()


async def work(program: kit.Program) -> None:
    app = application(program.url, began=program.tally)
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="always", fetch_job_polling_interval=0.5)


if __name__ == "__main__":
    program = kit.Program(Producer)
    program.produce()
    kit.run(work(program))
