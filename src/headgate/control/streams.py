"""An open stream of a client: its items, its place among others of its kind, and its end with its credential."""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import ExitStack
from typing import Final, Generic, Self, TypeVar

from headgate.control.revocation import OpenCall
from headgate.domain.errors import HeadgateError

Item = TypeVar("Item")
END_WITHIN: Final = 2.0
"""How long a client has for what waits for it when its credential has changed."""


class OpenStream(Generic[Item]):
    """Keeps its place until it is closed, or dropped."""

    def __init__(self, items: AsyncGenerator[Item, None], call: OpenCall, place: ExitStack) -> None:
        self._items, self._call = items, call
        self._leave = weakref.finalize(self, place.close)  # it may be dropped before its first item
        self._leave.atexit = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        return await anext(self._items)

    async def aclose(self) -> None:
        """Close it; does nothing the second time."""
        try:
            await self._items.aclose()
        finally:
            self._leave()

    async def overdue(self) -> None:
        """Returns when its credential has changed, but its client reads nothing, so the stream cannot end by itself."""
        while True:
            await self._call.changed.wait()
            await asyncio.sleep(END_WITHIN)
            if self._call.changed.is_set():
                return


class SharedReader(ABC):
    """One reader for all streams of its kind on this instance; `len` is how many there are. It reads only for some."""

    def __init__(self, *, every: float) -> None:
        self.every, self.reads = every, 0
        self._some, self._stopped = asyncio.Event(), asyncio.Event()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    async def run_once(self) -> int:
        """Read once for all streams."""

    @abstractmethod
    def delayed(self, error: HeadgateError) -> None:
        """A read failed; it is tried again."""

    def idle(self) -> None:  # noqa: B027 - most have nothing to do
        """There are no streams now."""

    async def run(self) -> None:
        """Read every `every` seconds while there are streams, until `stop`."""
        while not self._stopped.is_set():
            if not len(self):
                self.idle()
                self._some.clear()
                await self._some.wait()
                continue
            try:
                await self.run_once()
            except HeadgateError as error:
                self.delayed(error)
            await any_set((self._stopped,), self.every)

    def wake(self) -> None:
        """There is a stream."""
        self._some.set()

    def stop(self) -> None:
        """Read no more."""
        self._stopped.set()
        self._some.set()


async def any_set(events: Iterable[asyncio.Event], seconds: float) -> bool:
    """Wait for one of these events; says whether any of them came in time."""
    waits = [asyncio.create_task(event.wait(), name="stream") for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
    return bool(done)
