"""Metrics of several processes on one port: whichever a scrape reaches answers for all of them.

The kernel chooses the process, so a scraper cannot. Each process listens on a socket in a folder that only this user
can enter, made by the parent. The process that is scraped asks all others for their samples; one that does not answer
in time is reported as down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from headgate.ops import metric_names as names
from headgate.ops.metrics import Samples

log = logging.getLogger("headgate.metrics")
ANSWER_SECONDS: Final = 2.0
_KIND: Final = dict[str, list[tuple[str, dict[str, str], float]]]


class Siblings:
    """The socket of one process, and the way to the others."""

    def __init__(self, folder: Path, *, process: int, processes: int, samples: Callable[[str | None], Samples]) -> None:
        self._folder, self._process, self._processes, self._samples = folder, process, processes, samples
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; a socket that a killed process has left is replaced."""
        path = self._path(self._process)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._answer, str(path))

    async def stop(self) -> None:
        """Close the socket."""
        if self._server is not None:
            self._server.close()
            self._path(self._process).unlink(missing_ok=True)

    async def others(self, tenant: str | None = None) -> list[Samples]:
        """The samples of all other processes; `tenant`: with its topics only."""
        numbers = [number for number in range(1, self._processes + 1) if number != self._process]
        return list(await asyncio.gather(*(self._ask(number, tenant) for number in numbers)))

    async def _ask(self, number: int, tenant: str | None) -> Samples:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(str(self._path(number)))
                try:
                    writer.write(msgspec.json.encode(tenant) + b"\n")
                    return msgspec.json.decode(await reader.read(), type=_KIND)
                finally:
                    writer.close()
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            log.warning("process_not_scraped process=%d error=%s", number, str(error) or "timeout")
            return {names.UP.name: [(names.UP.shown_name, {"process": str(number)}, 0.0)]}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                tenant = msgspec.json.decode(await reader.readline(), type=str | None)
                writer.write(msgspec.json.encode(self._samples(tenant)))
                await writer.drain()
        except (OSError, TimeoutError, msgspec.MsgspecError):
            pass  # the asker has left
        finally:
            writer.close()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.sock"
