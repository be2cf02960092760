"""The child's side of `processes`: its orders, the word to begin, and an end when its parent is gone."""

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
"""How long after the grace a child without parent may take; it bounds each of its steps itself, and needs less."""


class Parent:
    """Made once, before anything else happens: reads the orders, and watches the pipe in a thread of its own.

    A thread, because it must work when the event loop does not: nobody else would end a child that hangs.
    """

    def __init__(self) -> None:
        # Not sys.stdin: a thread that waits in its buffer's lock makes the interpreter abort at its end.
        # Nothing else comes until we have answered.
        line = b""
        while not line.endswith(b"\n"):
            if not (part := os.read(0, 65_536)):
                os._exit(1)  # the parent is gone already
            line += part
        self.orders: dict[str, object] = json.loads(line)
        self._say = os.dup(1)
        os.set_blocking(self._say, False)  # a parent that hangs must not make its children hang
        os.dup2(2, 1)  # what anybody prints belongs to the log; the pipe is for our own words
        self._go: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, *, grace: float, on_send_on: Callable[[int], object]) -> None:
        """Begin to listen to it. On the event loop; signals must have their handlers by now.

        `on_send_on` is called there with how many workers are to go to other processes.
        """
        self._loop, self._go, self._on_send_on = asyncio.get_running_loop(), asyncio.Event(), on_send_on
        threading.Thread(target=self._listen, args=(grace,), name="parent", daemon=True).start()

    async def go(self, stop: asyncio.Event) -> bool:
        """Say that we are prepared, and wait for the word to begin; False if `stop` came first."""
        assert self._go is not None  # noqa: S101 - watch() comes first
        self._tell({"word": "prepared"})
        waits = [asyncio.create_task(self._go.wait()), asyncio.create_task(stop.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        return not stop.is_set()

    def ready(self) -> None:
        """Say that we listen."""
        self._tell({"word": "ready"})

    def has_links(self, number: int) -> None:
        """Say how many workers are connected here."""
        self._tell({"word": "links", "number": number})

    def failed(self, text: str, code: int) -> None:
        """Say why we cannot start, for the parent to say it once."""
        self._tell({"word": "failed", "text": text, "code": code})

    def _tell(self, word: dict[str, object]) -> None:
        # The parent is gone: the watch ends us. Or it does not read: what we say can wait for the next time.
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._say, json.dumps(word).encode() + b"\n")

    def _listen(self, grace: float) -> None:
        assert self._loop is not None and self._go is not None  # noqa: S101, PT018 - set by watch()
        unread = b""
        while part := os.read(0, 4096):
            *lines, unread = (unread + part).split(b"\n")
            for said in map(json.loads, lines):
                match said["word"]:
                    case "go":
                        self._loop.call_soon_threadsafe(self._go.set)
                    case "send_on":
                        self._loop.call_soon_threadsafe(self._on_send_on, said["number"])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace + END_SECONDS)
        os._exit(1)
