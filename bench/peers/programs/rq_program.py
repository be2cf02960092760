"""RQ on Redis: `SimpleWorker`, which does not fork for every job, and `enqueue_many` in one pipeline."""

from __future__ import annotations

import logging
import sys

import kit
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer


class Producer(kit.BlockingProducer):
    async def open(self) -> None:
        self._queue = Queue(kit.QUEUE, connection=Redis.from_url(self.url), serializer=JSONSerializer)

    def push_many_now(self, bodies: list[str]) -> None:
        self._queue.enqueue_many(
            [Queue.prepare_data("rq_program.nothing", args=(body,), result_ttl=0) for body in bodies]
        )

    def push_now(self, body: str) -> None:
        self._queue.enqueue("rq_program.nothing", body, result_ttl=0)


def nothing(body: str) -> None:
    program.tally.began(body)


if __name__ == "__main__":
    sys.modules["rq_program"] = sys.modules["__main__"]  # the worker imports the job's function by its name
    program = kit.Program(Producer)
    program.produce()
    logging.disable(logging.WARNING)
    connection = Redis.from_url(program.url)
    worker = SimpleWorker(
        [Queue(kit.QUEUE, connection=connection, serializer=JSONSerializer)],
        connection=connection,
        serializer=JSONSerializer,
    )
    worker.log_result_lifespan = False
    worker.work(logging_level="ERROR")
