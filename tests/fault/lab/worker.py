"""A worker that notes everything: what it was assigned, every handler's start and end, what it sent, what was answered.

`python -m tests.fault.lab.worker SERVERS FOLDER --name w1 …` is the program, started by `World`. What passes on its
stream is noted by `wire`, so nothing of the SDK is changed. A payload is a JSON object; `ms` is how long to take.

    fast        ends at once                          slow        sleeps `ms`
    flaky       fails while attempt <= `fails`        failing     always fails
    late        fails after `ms`, until its third attempt
    fatal       fails for good at once                poison      kills this process
    nacky       nacks its first epoch                 snoozy      snoozes its first epoch
    handback    abandons its first epoch              cancellable waits for a cancel, at most `ms`
    progress    tells how far it is                   thread      sleeps `ms` in a thread
    spin        blocks the event loop for `ms`        held        until the file `until` exists
    limited, rated, keyed, ordered, ranked, unique, scheduled, callback, bulk: as slow, but
    submitted in other ways

What a handler returns names job, epoch and process, so that a stored result tells which run it came from.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from headgate import Headgate, Job
from headgate.sdk import Abandon, Fail, Nack, Snooze, WorkerOptions
from tests.fault.lab import wire
from tests.fault.lab.history import Recorder
from tests.support.epochs import claims

AS_SLOW: Final = (
    "slow", "limited", "rated", "keyed", "ordered", "ranked", "unique", "scheduled", "callback", "batched",
    "bulk",
)  # fmt: skip
TOPICS: Final = (
    "fast", "flaky", "failing", "late", "fatal", "poison", "nacky", "snoozy", "handback", "cancellable", "progress",
    "thread", "spin", "held", *AS_SLOW,
)  # fmt: skip
_LOOK_SECONDS: Final = 0.02
Body = dict[str, Any]


class Handlers:
    """The topics, registered with a client; every run is noted at its start and its end, however it ends."""

    def __init__(self, hg: Headgate, recorder: Recorder) -> None:
        self._hg, self._recorder = hg, recorder
        for topic in AS_SLOW:
            self._add(topic, self._slow)
        for name in ("fast", "flaky", "failing", "late", "fatal", "poison", "nacky", "snoozy", "handback"):
            self._add(name, getattr(self, f"_{name}"))
        for name in ("cancellable", "progress", "spin", "held"):
            self._add(name, getattr(self, f"_{name}"))
        hg.register("thread", self._in_thread())

    def _add(self, topic: str, run: Callable[[Job, Body], Awaitable[None]]) -> None:
        async def handler(job: Job) -> str:
            self._started(job)
            how = "returned"
            try:
                await run(job, _body(job))
            except BaseException as error:
                how = type(error).__name__
                raise
            finally:
                self._ended(job, how)
            return self._result(job)

        self._hg.register(topic, handler)

    def _in_thread(self) -> Callable[[Job], str]:
        def thread(job: Job) -> str:
            self._started(job)
            time.sleep(_body(job).get("ms", 0) / 1000)
            self._ended(job, "returned")
            return self._result(job)

        return thread

    def _started(self, job: Job) -> None:
        self._recorder.note("handler_start", job=job.id.hex, epoch=job.epoch, attempt=job.attempt)

    def _ended(self, job: Job, how: str) -> None:
        self._recorder.note("handler_end", job=job.id.hex, epoch=job.epoch, how=how)

    def _result(self, job: Job) -> str:
        return f"{job.id.hex} {job.epoch} {self._recorder.proc}"

    # --- what they do ------------------------------------------------------------------------------------------------

    async def _fast(self, job: Job, body: Body) -> None:
        return

    async def _slow(self, job: Job, body: Body) -> None:
        await asyncio.sleep(body.get("ms", 10) / 1000)
        if job.attempt <= body.get("fails", 0):
            raise RuntimeError(f"attempt {job.attempt} fails")

    async def _flaky(self, job: Job, body: Body) -> None:
        if job.attempt <= body.get("fails", 1):
            raise RuntimeError(f"attempt {job.attempt} fails")

    async def _failing(self, job: Job, body: Body) -> None:
        raise RuntimeError("every attempt fails")

    async def _late(self, job: Job, body: Body) -> None:
        if job.attempt < 3:
            await asyncio.sleep(body.get("ms", 10) / 1000)
            raise RuntimeError(f"attempt {job.attempt} fails late")

    async def _fatal(self, job: Job, body: Body) -> None:
        raise Fail("no further attempts", permanent=True)

    async def _poison(self, job: Job, body: Body) -> None:
        self._recorder.note("poisoned", job=job.id.hex, epoch=job.epoch)
        os._exit(66)

    async def _nacky(self, job: Job, body: Body) -> None:
        if job.attempt == 1:
            raise Nack(body.get("ms", 100) / 1000, "not now")

    async def _snoozy(self, job: Job, body: Body) -> None:
        if claims(job.epoch) == 1:
            raise Snooze(body.get("ms", 100) / 1000)

    async def _handback(self, job: Job, body: Body) -> None:
        if claims(job.epoch) == 1:
            raise Abandon

    async def _cancellable(self, job: Job, body: Body) -> None:
        try:
            await asyncio.wait_for(job.cancelled.wait_async(), body.get("ms", 500) / 1000)
        except TimeoutError:
            return
        job.raise_if_cancelled()

    async def _progress(self, job: Job, body: Body) -> None:
        for step in range(1, 4):
            await job.progress(step, 3, f"step {step}")
            await asyncio.sleep(body.get("ms", 30) / 3000)

    async def _spin(self, job: Job, body: Body) -> None:
        time.sleep(body.get("ms", 100) / 1000)

    async def _held(self, job: Job, body: Body) -> None:
        while not os.path.exists(body["until"]):
            await asyncio.sleep(_LOOK_SECONDS)


def _body(job: Job) -> Body:
    return json.loads(job.payload) if job.payload else {}


def main() -> None:
    """Parse the command line and work until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prefetch", type=int, default=-1)
    parser.add_argument("--grace", type=float, default=5)
    parser.add_argument("--topics", default="")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    recorder = Recorder(chosen.folder, chosen.name)
    recorder.note("proc", what="start", pid=os.getpid())
    wire.record(recorder)
    hg = Headgate(chosen.servers)  # HEADGATE_TOKEN says whose worker this is
    Handlers(hg, recorder)
    options: WorkerOptions = {
        "concurrency": chosen.concurrency,
        "grace": chosen.grace,
        "cancel_grace": 1.0,
        "topics": chosen.topics.split(",") if chosen.topics else list(TOPICS),
        "worker_id": f"{recorder.path.name.split('.history')[0]}-{os.getpid()}",
    }
    if chosen.prefetch >= 0:
        options["prefetch"] = chosen.prefetch
    hg.run_worker(**options)
    recorder.note("proc", what="exit")


if __name__ == "__main__":
    main()
