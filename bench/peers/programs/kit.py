"""What every measured program in Python shares: its roles, its clock and its count of handled jobs.

A program runs in the virtual environment of the library it measures, so this file and its neighbours import nothing of
Headgate's: `python PROGRAM ROLE URL TALLY …`. A producer says `ready`, waits for a line, and ends with one JSON line; a
worker runs until it is killed and leaves its count in a file of the folder TALLY (bench/peers/processes.py reads it).
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path

BODY = "x" * 100
"""Of every job; a paced one carries the time it was submitted instead, to the same length."""
QUEUE = "bench"
_RECORD = struct.Struct("<qqq")  # handled, when the first began, when the last began


def setting(name: str, otherwise: int | None = None) -> int:
    """A setting of bench/peers/catalog.py; `otherwise` is for what a library has no setting of."""
    found = os.environ.get(name, otherwise)
    if found is None:
        raise SystemExit(f"{name} must be set to a number")
    return int(found)


class Tally:
    """How many jobs began in this process, where the measuring process can see it at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # several of the libraries run handlers in threads
        self._pid = 0
        self._count = self._first = 0

    def began(self, body: str) -> None:
        """To be called by every handler, first thing."""
        now = time.monotonic_ns()
        with self._lock:
            if self._pid != os.getpid():  # also after a fork: every process has a file of its own
                self._open(now)
            self._count += 1
            _RECORD.pack_into(self._seen, 0, self._count, self._first, now)
            if body[0] != "x":
                self._waits.write(f"{now - int(body)}\n")

    def close(self) -> None:
        """Only tests do; a worker is killed."""
        self._seen.close()
        self._waits.close()

    def _open(self, now: int) -> None:
        self._pid, self._count, self._first = os.getpid(), 0, now
        path = self._folder / f"{self._pid}.tally"
        path.write_bytes(bytes(_RECORD.size))
        with path.open("r+b") as file:
            self._seen = mmap.mmap(file.fileno(), _RECORD.size)
        self._waits = (self._folder / f"{self._pid}.waits").open("w", buffering=1)


class Producer:
    """How one library takes jobs; subclasses fill in what it offers."""

    tasks = 64
    """From how many tasks (or threads, see `BlockingProducer`) single jobs are submitted at once."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def prepare(self) -> None:
        """Make the tables and queues the library needs."""

    async def open(self) -> None:
        """Connect."""

    async def push_many(self, bodies: list[str]) -> None:
        """By the fastest documented way to enqueue many."""
        raise NotImplementedError

    async def push(self, body: str) -> None:
        """One job, returning when the store has it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect."""

    async def bulk(self, count: int, deadline: float) -> int:
        """Chunk after chunk, or some chunks at once; how many were sent before the deadline."""
        chunk, parallel = setting("CHUNK", 1_000), setting("PARALLEL", 1)
        sent = 0

        async def some() -> None:
            nonlocal sent
            while sent < count and time.monotonic() < deadline:
                size = min(chunk, count - sent)
                sent += size
                await self.push_many([BODY] * size)

        await asyncio.gather(*(some() for _ in range(parallel)))
        return sent

    async def single(self, count: int, deadline: float) -> int:
        """One call per job, from several tasks at once."""
        sent = 0

        async def some() -> None:
            nonlocal sent
            while sent < count and time.monotonic() < deadline:
                sent += 1
                await self.push(BODY)

        await asyncio.gather(*(some() for _ in range(self.tasks)))
        return sent


class BlockingProducer(Producer):
    """Of a library without asyncio: single jobs come from threads."""

    tasks = 4

    def push_many_now(self, bodies: list[str]) -> None:
        """By the fastest documented way to enqueue many."""
        for body in bodies:
            self.push_now(body)

    def push_now(self, body: str) -> None:
        """One job, returning when the store has it."""
        raise NotImplementedError

    async def push_many(self, bodies: list[str]) -> None:
        self.push_many_now(bodies)

    async def push(self, body: str) -> None:
        self.push_now(body)

    async def single(self, count: int, deadline: float) -> int:
        left = iter(range(count))
        sent: list[int] = []

        def some() -> None:
            mine = 0
            while time.monotonic() < deadline and next(left, None) is not None:
                self.push_now(BODY)
                mine += 1
            sent.append(mine)

        threads = [threading.Thread(target=some) for _ in range(self.tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        return sum(sent)


class Program:
    """One library: its producer, and its worker as a function that runs until it is killed."""

    def __init__(self, producer: type[Producer]) -> None:
        self._producer = producer
        self.role, self.url, folder, *self._rest = sys.argv[1:]
        self.tally = Tally(Path(folder))

    def produce(self) -> None:
        """Play a producer's role, if that is what was asked for."""
        if self.role == "work":
            return
        run(self._play())
        sys.exit()

    async def _play(self) -> None:
        producer = self._producer(self.url)
        if self.role == "prepare":
            await producer.prepare()
            return
        await producer.open()
        count, number = int(self._rest[0]), float(self._rest[1])
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        started = time.monotonic()
        if self.role == "paced":
            sent = await self._paced(producer, count, number)
        else:
            send = producer.bulk if self.role == "bulk" else producer.single
            sent = await send(count, started + number)
        print(json.dumps({"started": started, "ended": time.monotonic(), "sent": sent}), flush=True)
        await producer.close()

    async def _paced(self, producer: Producer, count: int, apart: float) -> int:
        for _ in range(count):
            await producer.push(str(time.monotonic_ns()).rjust(100))
            await asyncio.sleep(apart)
        return count


def run(main: Coroutine[object, object, None]) -> None:
    """On uvloop where the library's environment has it."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
