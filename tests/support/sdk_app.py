"""Handlers at the top of a module, as users have them, and a worker to be run as a process: python -m ... ADDRESS."""

from __future__ import annotations

import os
import sys
import time

from headgate import Headgate, Job, Nack, this_job

hg = Headgate()


@hg.job("square", run_in="process")
def square(n: int, *, job: Job = this_job) -> dict[str, int]:
    if n < 0:
        raise Nack(delay=2, reason="negative")
    if n == 99:
        os._exit(3)
    return {"square": n * n, "pid": os.getpid(), "attempt": job.attempt}


def cube(n: int) -> int:
    return n**3


hg.register("cube", cube, run_in="process")


@hg.job("linger")
async def linger(job: Job) -> str:
    await job.cancelled.wait_async()
    job.raise_if_cancelled()
    return "never"


@hg.job("block")
async def block(seconds: float, *, job: Job = this_job) -> str:
    job.progress(0)  # the sign that it has begun
    time.sleep(seconds)
    return "woke"


@hg.job("quick")
async def quick() -> str:
    return "done"


if __name__ == "__main__":
    hg.run_worker(concurrency=2, grace=float(sys.argv[1]), topics=["linger", "block", "quick"])
