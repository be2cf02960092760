"""Several processes behind one port: started together, watched, started again when they die, stopped together.

The parent does no work of its own. It starts fresh interpreters (gRPC does not survive a fork), and each of them is an
instance as if it had been started alone: own number, leases, connections. The two talk over the child's standard
streams, a line of JSON each way:

    parent -> child   its orders; `go` when all are prepared; `send_on` some workers to the others
    child -> parent   `prepared` before it listens, `ready` when it does, or `failed` with what is wrong; its `links`

Nobody listens before all are prepared: the kernel deals connections out to those who listen, so the first to do so
would get every worker that waits for the server to come back.

- A child that dies, however it does, is started again after a wait that grows while it keeps dying.
- The parent dies, even by SIGKILL: its end of the pipe closes, and the children stop as after SIGTERM (`child.py`).
- Workers that gather at one process are asked to connect anew (`balance`).
- A stop goes to all of them at once. Who is not gone in time is killed. Only the parent may force an end: a service
  manager signals the whole group, so that children get SIGTERM from it and from us, and that is not a second wish.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import uniform
from typing import Final

from headgate.domain.errors import InvalidSetting
from headgate.ops.balance import surplus

log = logging.getLogger("headgate.processes")

MOST: Final = 256
FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 30.0
STEADY_SECONDS: Final = 30.0
"""A child that lived so long had no trouble starting: when it dies, the waits begin anew."""
KILL_SECONDS: Final = 30.0
"""How long after the grace for workers a child may take to end: it bounds each of its steps itself, and needs less."""

BALANCE_SECONDS: Final = 5.0
"""Between two looks at who has how many links: longer than a move takes, with the count that follows it."""


class StartFailed(Exception):
    """A process could not start, so none serves; `code` is the exit code that it asks for."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def check_processes(number: int) -> int:
    """How many there may be; raises InvalidSetting."""
    if not 1 <= number <= MOST:
        raise InvalidSetting("--processes", f"is {number}", hint=f"give 1 to {MOST}, about one for each processor")
    if number > 1 and not sys.platform.startswith("linux"):
        raise InvalidSetting(
            "--processes",
            "needs Linux: elsewhere the kernel does not deal out connections",
            hint="run several servers on ports of their own, and give clients all addresses",
        )
    return number


class _Child:
    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.prepared = self.ready = False
        self.links = 0
        self.failure: StartFailed | None = None

    def say(self, word: str, **more: int) -> None:
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError, RuntimeError):  # it just died; whoever waits for its end will know
                self.process.stdin.write(json.dumps({"word": word} | more).encode() + b"\n")

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class ProcessSupervisor:
    """The parent's side. `orders` gives what the child with a number, from 1 on, is to do, at each of its starts."""

    def __init__(
        self, command: Sequence[str], orders: Callable[[int], Mapping[str, object]], *, number: int, grace: float
    ) -> None:
        self._command, self._orders, self._grace = command, orders, grace
        self._children = [_Child(n + 1) for n in range(number)]
        self._supervisors: list[asyncio.Task[None]] = []
        self._opened = False  # all were prepared once: from now on a child need not wait for the others
        self._ready = asyncio.Event()
        self._failed = asyncio.Event()
        self._stopping = asyncio.Event()

    async def start(self, stop: asyncio.Event) -> None:
        """Return when all are ready, or `stop` is set; raises StartFailed, with none left, when one cannot start."""
        for child in self._children:
            self._supervisors.append(asyncio.create_task(self._keep(child), name=f"process {child.number}"))
        await _first(self._ready, self._failed, stop)
        if self._failed.is_set():
            await self.stop()
            raise next(child.failure for child in self._children if child.failure is not None)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep them alive until `stop`."""
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), BALANCE_SECONDS)
                break
            self._balance()

    def _balance(self) -> None:
        ready = {child.number: child for child in self._children if child.ready}
        for number, surplus_links in surplus({number: child.links for number, child in ready.items()}).items():
            log.info("workers_sent_on process=%d links=%d of=%d", number, surplus_links, ready[number].links)
            ready[number].say("send_on", number=surplus_links)

    async def stop(self) -> bool:
        """End all of them in order; False if one had to be killed. Returns when all are gone."""
        self._stopping.set()
        for child in self._children:
            child.send(signal.SIGTERM)
        _, late = await asyncio.wait(self._supervisors, timeout=self._grace + KILL_SECONDS)
        if late:
            log.error("processes_killed pids=%s reason=not gone %.0f s after the grace", self._alive(), KILL_SECONDS)
            self.kill()
            await asyncio.wait(self._supervisors)
        return not late

    def kill(self) -> None:
        """End all of them at once."""
        for child in self._children:
            child.send(signal.SIGKILL)

    def _alive(self) -> list[int]:
        return [one.process.pid for one in self._children if one.process and one.process.returncode is None]

    # ------------------------------------------------------------------ one child

    async def _keep(self, child: _Child) -> None:
        wait = FIRST_WAIT
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                code = await self._life(child)
            except OSError as error:  # no memory or no number left for another process: that passes
                code = None
                child.failure = StartFailed(f"process {child.number} cannot be started: {error}", 1)
            if self._stopping.is_set():
                break
            if not self._ready.is_set():  # with the first start nobody depends on us yet: say what is wrong, and end
                child.failure = child.failure or StartFailed(f"process {child.number} ended while it started", 1)
                self._failed.set()
                break
            if time.monotonic() - began > STEADY_SECONDS:
                wait = FIRST_WAIT
            pause = wait * uniform(0.75, 1.25)  # noqa: S311 - jitter: all may have died of one cause
            why = child.failure or "none"
            log.error("process_ended process=%d exit=%s restart_in=%.1f error=%s", child.number, code, pause, why)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            wait = min(LONGEST_WAIT, wait * 2)

    async def _life(self, child: _Child) -> int:
        """From start to end; its exit code, negative when a signal ended it."""
        child.prepared = child.ready = False
        child.links, child.failure = 0, None
        # A session of its own: a Ctrl-C in a terminal is for the parent, who tells them.
        child.process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - we asked for them
        log.info("process_started process=%d pid=%d", child.number, process.pid)
        process.stdin.write(json.dumps(dict(self._orders(child.number))).encode() + b"\n")
        if self._stopping.is_set():  # a stop that came while it was being started knew nothing of it
            child.send(signal.SIGTERM)
        try:
            while line := await process.stdout.readline():
                self._heard(child, line)
            return await process.wait()
        finally:
            child.ready = False
            process.stdin.close()

    def _heard(self, child: _Child, line: bytes) -> None:
        said = json.loads(line)
        match said["word"]:
            case "prepared":
                child.prepared = True
                if self._opened:
                    child.say("go")
                elif all(other.prepared for other in self._children):
                    self._opened = True
                    for other in self._children:
                        other.say("go")
            case "ready":
                child.ready = True
                if all(other.ready for other in self._children):
                    self._ready.set()
            case "links":
                child.links = said["number"]
            case "failed":
                child.failure = StartFailed(said["text"], said["code"])


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
