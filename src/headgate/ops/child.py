"""The child's side of `supervisor`: the start message, the signal to listen, and an exit when the parent has ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

END_SECONDS: Final = 60.0
"""How long after the grace period a child without a parent may run; it bounds each of its steps, and needs less."""


class Parent:
    """The connection to the parent. Created first: reads the start message, then watches the pipe in a thread.

    A thread, since it must work when the event loop hangs: nothing else would end such a child.
    """

    def __init__(self) -> None:
        # Not sys.stdin: a thread that waits in its buffer lock makes the interpreter abort at exit.
        # The parent sends nothing else before our first message.
        line = b""
        while not line.endswith(b"\n"):
            if not (part := os.read(0, 65_536)):
                os._exit(1)  # the parent has ended
            line += part
        self.start_message: dict[str, object] = json.loads(line)
        self._pipe = os.dup(1)
        os.set_blocking(self._pipe, False)  # a parent that hangs must not block its children
        os.dup2(2, 1)  # printed text goes to the log; the pipe carries messages only
        self._listen: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, *, grace: float, on_move: Callable[[int], object]) -> None:
        """Start to read messages from the parent. Call on the event loop, after signal handlers are installed.

        `on_move` is called on the loop with the number of worker sessions to move to other processes.
        """
        self._loop, self._listen, self._on_move = asyncio.get_running_loop(), asyncio.Event(), on_move
        threading.Thread(target=self._read, args=(grace,), name="parent", daemon=True).start()

    async def wait_to_listen(self, stop: asyncio.Event) -> bool:
        """Report `prepared` and wait for `listen`; False if `stop` is set first."""
        assert self._listen is not None  # noqa: S101 - watch() comes first
        self._send({"type": "prepared"})
        waits = [asyncio.create_task(self._listen.wait()), asyncio.create_task(stop.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        return not stop.is_set()

    def ready(self) -> None:
        """Report that the port is open."""
        self._send({"type": "ready"})

    def report_sessions(self, count: int) -> None:
        """Report the number of connected workers."""
        self._send({"type": "sessions", "count": count})

    def failed(self, text: str, code: int) -> None:
        """Report why the start failed; the parent prints it once."""
        self._send({"type": "failed", "text": text, "code": code})

    def _send(self, message: dict[str, object]) -> None:
        # The parent has ended: the reader ends this process. Or it does not read: the message can be dropped.
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._pipe, json.dumps(message).encode() + b"\n")

    def _read(self, grace: float) -> None:
        assert self._loop is not None and self._listen is not None  # noqa: S101, PT018 - set by watch()
        unread = b""
        while part := os.read(0, 4096):
            *lines, unread = (unread + part).split(b"\n")
            for message in map(json.loads, lines):
                match message["type"]:
                    case "listen":
                        self._loop.call_soon_threadsafe(self._listen.set)
                    case "move_sessions":
                        self._loop.call_soon_threadsafe(self._on_move, message["count"])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace + END_SECONDS)
        os._exit(1)
