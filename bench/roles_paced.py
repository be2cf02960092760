"""Roles of the paced lane: a producer that keeps to a timetable, and a worker that reads it.

Open loop: each job carries the moment at which it was meant to be submitted, whether or not the producer, the server or
a full queue let it be in time. So every job that was due in a stall pays for it, not one alone: no coordinated
omission.
"""

from __future__ import annotations

import asyncio
import struct
import time
from array import array

from bench.figures import percentile
from bench.roles import tell, wait_for_go, work_until
from bench.stack import TOPIC
from headgate import Headgate, Job

MOMENT = struct.Struct("<d")
PADDING = b"x" * (100 - MOMENT.size)
STEP_SECONDS = 0.001
WARM_UP_SECONDS = 1.0
"""Jobs meant for the first second are handled, and not counted."""


async def produce_paced(addresses: str, per_second: int, milliseconds: int) -> None:
    """Submit what is due every millisecond, and wait for none of it."""
    hg = Headgate(addresses)
    await hg.submit("warm-up", b"")
    count, sent, late = per_second * milliseconds // 1000, 0, array("d")
    cpu = wait_for_go()
    started = time.monotonic() + 0.01
    async with asyncio.TaskGroup() as sends:
        while sent < count:
            now = time.monotonic()
            due = min(count, int((now - started) * per_second) + 1)
            if due > sent:
                late.append(now - started - sent / per_second)
                bodies = [MOMENT.pack(started + number / per_second) + PADDING for number in range(sent, due)]
                sends.create_task(hg.submit_many(TOPIC, bodies))
                sent = due
            await asyncio.sleep(STEP_SECONDS)
    tell(cpu, started=started, ended=time.monotonic(), count=count, late_p99_ms=percentile(late, 0.99) * 1000)
    await hg.close()


async def work_timed(addresses: str, count: int, concurrency: int, prefetch: int) -> None:
    """Note for each job when it was due, and when its handler ended."""
    hg = Headgate(addresses)
    due, ended = array("d"), array("d")

    @hg.job(TOPIC)
    async def note(job: Job) -> None:
        due.append(MOMENT.unpack_from(job.payload)[0])
        ended.append(time.monotonic())

    def found() -> dict[str, float]:
        begin = min(due) + WARM_UP_SECONDS
        waits = [(end - start) * 1000 for start, end in zip(due, ended, strict=True) if start >= begin]
        return {
            "handled": len(due),
            "counted": len(waits),
            "p50_ms": percentile(waits, 0.5),
            "p99_ms": percentile(waits, 0.99),
            "max_ms": max(waits),
        }

    await work_until([hg], [hg.worker(concurrency=concurrency, prefetch=prefetch)], count, found=found)
