"""Dramatiq on Redis."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":  # its worker processes import this file, and learn from the environment where they are
    os.environ |= {"PEER_URL": sys.argv[2], "PEER_TALLY": sys.argv[3]}
    # Read by the library when it is imported.
    os.environ["dramatiq_queue_prefetch"] = os.environ["PREFETCH"]

import dramatiq
import kit
from dramatiq.brokers.redis import RedisBroker

PROCESSES = os.environ["PROCESSES"]
THREADS = os.environ["CONCURRENCY"]

dramatiq.set_broker(RedisBroker(url=os.environ["PEER_URL"]))
tally = kit.Tally(Path(os.environ["PEER_TALLY"]))


@dramatiq.actor(queue_name=kit.QUEUE)
def nothing(body: str) -> None:
    tally.began(body)


class Producer(kit.BlockingProducer):
    """Dramatiq has no call for many jobs: one message each."""

    def push_now(self, body: str) -> None:
        nothing.send(body)


if __name__ == "__main__":
    kit.Program(Producer).produce()
    folder = str(Path(__file__).parent)
    os.execv(
        sys.executable,
        [
            sys.executable,
            "-m",
            "dramatiq",
            "dramatiq_program",
            "--processes",
            PROCESSES,
            "--threads",
            THREADS,
            "--queues",
            kit.QUEUE,
            "--path",
            folder,
            "--skip-logging",
        ],
    )
