"""The tenant next door: `python -m tests.hostile.neighbour ADDRESSES TOKEN`.

It submits a job, waits for its result, and does so again, from a few tasks at once. It prints a JSON line for each
round: when it ended, its milliseconds, and its error if it had one. `hold N SECONDS` on standard input makes it submit
N jobs that take so long under a lease of a few seconds; when they have ended, it prints how many of them needed more
than one attempt. `stop` ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop

from headgate import Headgate, Job

TASKS, PAUSE_SECONDS = 4, 0.02
LEASE_SECONDS = 6
ROUND_SECONDS = 10.0
QUICK, LONG = "quick", "long"


def tell(**line: object) -> None:
    print(json.dumps({"at": time.monotonic(), **line}), flush=True)


async def main(addresses: str, token: str) -> None:
    """Until it is asked to stop."""
    hg = Headgate(addresses, token=token)
    stop = asyncio.Event()
    holding: set[asyncio.Task[None]] = set()

    @hg.job(QUICK)
    async def quick(job: Job) -> bytes:
        return job.payload

    @hg.job(LONG)
    async def long(job: Job) -> None:
        tell(started=1)
        await asyncio.sleep(float(job.payload))

    async def rounds() -> None:
        while not stop.is_set():
            began = time.monotonic()
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    handle = await hg.submit(QUICK, b"x")
                    await handle.result()
            except Exception as error:  # noqa: BLE001 - whatever it is, the neighbour has noticed
                tell(ms=1000 * (time.monotonic() - began), error=f"{type(error).__name__}: {error}"[:200])
            else:
                tell(ms=1000 * (time.monotonic() - began))
            await asyncio.sleep(PAUSE_SECONDS)

    async def hold(number: int, seconds: float) -> None:
        try:
            handles = await hg.submit_many(LONG, [f"{seconds}".encode()] * number)
            for handle in handles:
                await handle.result(timeout=seconds + 60)
            lost = sum([(await handle.info()).attempt != 1 for handle in handles])
        except Exception as error:  # noqa: BLE001 - as above
            tell(held=number, lost=number, error=f"{type(error).__name__}: {error}"[:200])
        else:
            tell(held=number, lost=lost)

    def listen() -> None:
        told = os.read(sys.stdin.fileno(), 4096).decode()
        for line in told.splitlines() or ["stop"]:
            word, *rest = line.split()
            if word == "hold":
                task = asyncio.ensure_future(hold(int(rest[0]), float(rest[1])))
                holding.add(task)
                task.add_done_callback(holding.discard)
            else:
                asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
                stop.set()

    worker = hg.worker(concurrency=100, lease=LEASE_SECONDS)
    working = asyncio.create_task(worker.run())
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), listen)
    print("ready", flush=True)
    await asyncio.gather(*(rounds() for _ in range(TASKS)))
    for task in tuple(holding):
        task.cancel()
    worker.stop()
    await working
    await hg.close()
    tell(ended=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
