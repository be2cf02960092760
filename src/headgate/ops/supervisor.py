"""Several server processes on one port: start them together, restart those that die, stop them together.

The parent serves nothing. It starts new interpreters (gRPC does not survive a fork); each child is a full instance with
its own number, leases and connections. Parent and child exchange JSON lines over the child's standard streams:

    parent -> child   the start message; `listen` when all are prepared; `move_sessions` to the other processes
    child -> parent   `prepared` before it listens, `ready` when it does, or `failed` with the reason; its `sessions`

No child listens before all are prepared: the kernel distributes connections among the listeners, so the first listener
would get every worker that waits for the server.

- A child that dies is restarted after a delay that grows while it keeps dying.
- The parent dies, even by SIGKILL: its end of the pipe closes, and the children stop as after SIGTERM (`child.py`).
- Workers that gather at one process are asked to reconnect (`balance`).
- A stop goes to all children at once; one that does not exit in time is killed. Only the parent can force an exit: a
  service manager signals the whole group, so a child gets SIGTERM twice, and that is not a second request.
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

PROCESSES_MAX: Final = 256
FIRST_DELAY: Final = 0.2
LONGEST_DELAY: Final = 30.0
STEADY_SECONDS: Final = 30.0
"""A child that ran this long started without trouble: when it dies, the delays start again from the first."""
KILL_SECONDS: Final = 30.0
"""How long after the grace period a child may take to exit; it bounds each of its steps, and needs less."""

BALANCE_SECONDS: Final = 5.0
"""Time between two balance checks: longer than a move and the count that follows it."""


class StartFailed(Exception):
    """A process could not start, so none serves; `code` is its exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def check_processes(number: int) -> int:
    """Return the number of processes if it is valid; raises InvalidSetting."""
    if not 1 <= number <= PROCESSES_MAX:
        raise InvalidSetting("--processes", f"is {number}", hint=f"use 1 to {PROCESSES_MAX}, about one per processor")
    if number > 1 and not sys.platform.startswith("linux"):
        raise InvalidSetting(
            "--processes",
            "needs Linux: other kernels do not distribute connections",
            hint="run several servers, each on its own port, and pass all addresses to clients",
        )
    return number


class _Child:
    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.prepared = self.ready = False
        self.sessions = 0
        self.failure: StartFailed | None = None

    def send(self, message: str, **fields: int) -> None:
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError, RuntimeError):  # it has just died, which `_run_child` notices
                self.process.stdin.write(json.dumps({"type": message} | fields).encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class ProcessSupervisor:
    """The parent's side. `start_message` returns the message for the child with a number (from 1), at each start."""

    def __init__(
        self, command: Sequence[str], start_message: Callable[[int], Mapping[str, object]], *, number: int, grace: float
    ) -> None:
        self._command, self._start_message, self._grace = command, start_message, grace
        self._children = [_Child(n + 1) for n in range(number)]
        self._supervisors: list[asyncio.Task[None]] = []
        self._opened = False  # all were prepared once; from then on a child does not wait for the others
        self._ready = asyncio.Event()
        self._failed = asyncio.Event()
        self._stopping = asyncio.Event()

    async def start(self, stop: asyncio.Event) -> None:
        """Return when all are ready, or `stop` is set; if one cannot start, stop all and raise StartFailed."""
        for child in self._children:
            self._supervisors.append(asyncio.create_task(self._supervise(child), name=f"process {child.number}"))
        await _first(self._ready, self._failed, stop)
        if self._failed.is_set():
            await self.stop()
            raise next(child.failure for child in self._children if child.failure is not None)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the children running and balanced until `stop`."""
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), BALANCE_SECONDS)
                break
            self._balance()

    def _balance(self) -> None:
        ready = {child.number: child for child in self._children if child.ready}
        for number, count in surplus({number: child.sessions for number, child in ready.items()}).items():
            log.info("sessions_moved process=%d count=%d of=%d", number, count, ready[number].sessions)
            ready[number].send("move_sessions", count=count)

    async def stop(self) -> bool:
        """Stop all children and return when they have exited; False if one had to be killed."""
        self._stopping.set()
        for child in self._children:
            child.signal(signal.SIGTERM)
        _, late = await asyncio.wait(self._supervisors, timeout=self._grace + KILL_SECONDS)
        if late:
            log.error("processes_killed pids=%s seconds_after_grace=%.0f", self._alive(), KILL_SECONDS)
            self.kill()
            await asyncio.wait(self._supervisors)
        return not late

    def kill(self) -> None:
        """Kill all children."""
        for child in self._children:
            child.signal(signal.SIGKILL)

    def _alive(self) -> list[int]:
        return [one.process.pid for one in self._children if one.process and one.process.returncode is None]

    # ------------------------------------------------------------------ one child

    async def _supervise(self, child: _Child) -> None:
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                code = await self._run_child(child)
            except OSError as error:  # out of memory or process ids: temporary
                code = None
                child.failure = StartFailed(f"process {child.number} cannot be started: {error}", 1)
            if self._stopping.is_set():
                break
            if not self._ready.is_set():  # first start: nothing depends on us yet, so report and end
                child.failure = child.failure or StartFailed(f"process {child.number} exited during its start", 1)
                self._failed.set()
                break
            if time.monotonic() - began > STEADY_SECONDS:
                delay = FIRST_DELAY
            pause = delay * uniform(0.75, 1.25)  # noqa: S311 - jitter: all may have died of one cause
            why = child.failure or "none"
            log.error("process_ended process=%d exit=%s restart_in=%.1f error=%s", child.number, code, pause, why)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            delay = min(LONGEST_DELAY, delay * 2)

    async def _run_child(self, child: _Child) -> int:
        """Start a child and return its exit code, negative if a signal ended it."""
        child.prepared = child.ready = False
        child.sessions, child.failure = 0, None
        # Its own session: Ctrl-C in a terminal goes to the parent only, which then stops the children.
        child.process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - we asked for them
        log.info("process_started process=%d pid=%d", child.number, process.pid)
        process.stdin.write(json.dumps(dict(self._start_message(child.number))).encode() + b"\n")
        if self._stopping.is_set():  # a stop during the start did not reach this child
            child.signal(signal.SIGTERM)
        try:
            while line := await process.stdout.readline():
                self._on_message(child, line)
            return await process.wait()
        finally:
            child.ready = False
            process.stdin.close()

    def _on_message(self, child: _Child, line: bytes) -> None:
        message = json.loads(line)
        match message["type"]:
            case "prepared":
                child.prepared = True
                if self._opened:
                    child.send("listen")
                elif all(other.prepared for other in self._children):
                    self._opened = True
                    for other in self._children:
                        other.send("listen")
            case "ready":
                child.ready = True
                if all(other.ready for other in self._children):
                    self._ready.set()
            case "sessions":
                child.sessions = message["count"]
            case "failed":
                child.failure = StartFailed(message["text"], message["code"])


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
