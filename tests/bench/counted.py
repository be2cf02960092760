"""A Headgate process that counts the Python calls it makes, and says the sum for every line on its standard input.

    python -m tests.bench.counted serve --dev --port 0      the server, in its event loop's thread
    python -m tests.bench.counted sdk ADDRESS               a producer and a worker, in all threads

Counted are calls of Python functions (a coroutine resumed is one) and of built-in ones: work that a busy neighbour
does not change, unlike time. The sums are two: all of them, and those of our own functions, which are few for a frame,
so that they tell if something is done job by job. At the end of its input the process is gone, and outlives no test.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from types import FrameType

import headgate
from headgate import Headgate, Job

TOPIC = "counted"
OURS = os.path.dirname(headgate.__file__)


class Calls:
    """Counts from `start` on, in the thread that called it and in those begun later."""

    def __init__(self) -> None:
        self.every = self.own = 0

    def __str__(self) -> str:
        return f"{self.every} {self.own}"

    def start(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "c_call":  # not exact between threads, and near enough
            self.every += 1
        elif event == "call":
            self.every += 1
            self.own += frame.f_code.co_filename.startswith(OURS)


def serve(calls: Calls, *arguments: str) -> None:
    """`headgate serve`; a thread of its own, which is not counted, answers."""
    from headgate.cli import main

    def answer() -> None:
        for _ in sys.stdin:
            print(calls, flush=True)  # noqa: T201
        os._exit(0)

    threading.Thread(target=answer, daemon=True).start()
    calls.start()
    sys.exit(main(["serve", *arguments]))


async def sdk(calls: Calls, address: str) -> None:
    """For a line `produce N` or `work N`, do that and say how many calls there were so far."""
    calls.start()
    handled, wanted = 0, 0
    enough = asyncio.Event()
    hg = Headgate(address)

    @hg.job(TOPIC)
    async def nothing(job: Job) -> None:
        nonlocal handled
        del job
        handled += 1
        if handled == wanted:
            enough.set()

    while words := (await asyncio.to_thread(sys.stdin.readline)).split():
        count = int(words[1])
        if words[0] == "produce":
            await hg.submit_many(TOPIC, [b"x" * 100] * count)
        else:
            handled, wanted = 0, count
            enough.clear()
            worker = hg.worker(concurrency=500, prefetch=500)
            running = asyncio.create_task(worker.run())
            await asyncio.wait((running, asyncio.create_task(enough.wait())), return_when=asyncio.FIRST_COMPLETED)
            worker.stop()
            await running
        print(calls, flush=True)  # noqa: T201
    os._exit(0)


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "serve":
        serve(Calls(), *rest)
    else:
        asyncio.run(sdk(Calls(), *rest))
