"""Celery on Redis."""

from __future__ import annotations

import os
import sys

import kit
from celery import Celery

PREFETCH = kit.setting("PREFETCH")
EXECUTION = os.environ["EXECUTION"]
PROCESSES = kit.setting("CONCURRENCY")

program: kit.Program
app = Celery("celery_program")
app.conf.update(
    task_ignore_result=True,
    task_default_queue=kit.QUEUE,
    worker_prefetch_multiplier=PREFETCH,  # the documentation's advice for many short tasks is 50 to 150
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_store_errors_even_if_ignored=False,
)


@app.task(name="nothing")
def nothing(body: str) -> None:
    program.tally.began(body)


class Producer(kit.BlockingProducer):
    """Celery has no call for many jobs: one message each, through one kept producer."""

    async def open(self) -> None:
        app.conf.broker_url = self.url
        app.conf.broker_pool_limit = self.tasks

    def push_many_now(self, bodies: list[str]) -> None:
        with app.producer_pool.acquire(block=True) as producer:
            for body in bodies:
                nothing.apply_async((body,), producer=producer)

    def push_now(self, body: str) -> None:
        nothing.delay(body)


if __name__ == "__main__":
    sys.modules["celery_program"] = sys.modules["__main__"]
    program = kit.Program(Producer)
    program.produce()
    app.conf.broker_url = program.url
    app.worker_main(
        [
            "worker",
            f"--pool={EXECUTION}",
            f"--concurrency={PROCESSES}",
            "--loglevel=ERROR",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "-O",
            "default",
        ]
    )
