"""A raw HTTP/2 client of many streams that does what no gRPC library would.

Flow control is obeyed: a client that breaks it is cut off by any HTTP/2 library, which would test that library.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

from tests.support.http2 import (
    ACK,
    DATA,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    opening,
    reset,
)

SETTING_WINDOW, SETTING_FRAME = 4, 5
WINDOW, FRAME = 65_535, 16_384
SECONDS_TO_CONNECT = 5.0


class Closed(Exception):
    """The server has ended the connection."""


class RawConnection:
    """One HTTP/2 connection. `run` reads until the server closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self._reader, self._writer, self._authority = reader, writer, authority
        self._next = 1
        self._stream_window = WINDOW  # of new streams, by the server's settings
        self._frame = FRAME
        self._window = WINDOW  # of the connection
        self._windows: dict[int, int] = {}  # of open streams
        self._changed = asyncio.Event()
        self.closed = False
        self.ended_streams = 0

    @classmethod
    async def open(cls, address: str) -> RawConnection:
        """Connect and send the preface."""
        host, port = address.rsplit(":", 1)
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), SECONDS_TO_CONNECT)
        made = cls(reader, writer, address)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
        await writer.drain()
        return made

    async def run(self) -> None:
        """Answer the server's settings and pings, and follow its windows, until the end."""
        try:
            while True:
                head = await self._reader.readexactly(9)
                kind, flags = head[3], head[4]
                stream = int.from_bytes(head[5:9]) & 0x7FFFFFFF
                self._take(kind, flags, stream, await self._reader.readexactly(int.from_bytes(head[:3])))
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            self.closed = True
            self._changed.set()

    def begin(self, path: str, token: str = "") -> int:
        """Send the headers of a gRPC call; its stream."""
        if self.closed:
            raise Closed
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._stream_window
        secret = {"authorization": f"Bearer {token}"} if token else {}
        self._writer.write(opening(stream, path, self._authority, secret))
        return stream

    def reset(self, stream: int) -> None:
        """Cancel a call."""
        self._windows.pop(stream, None)
        self._writer.write(reset(stream))

    async def send(self, stream: int, body: bytes, *, seconds: float) -> int:
        """Send as much of `body` as the windows let through in that time; how many bytes that was."""
        sent = 0
        try:
            async with asyncio.timeout(seconds):
                while sent < len(body) and not self.closed and stream in self._windows:
                    size = min(self._window, self._windows[stream], self._frame, len(body) - sent)
                    if size <= 0:
                        self._changed.clear()
                        await self._changed.wait()
                        continue
                    self._writer.write(frame(DATA, 0, stream, body[sent : sent + size]))
                    sent += size
                    self._window -= size
                    self._windows[stream] -= size
                    await self._writer.drain()
        except (TimeoutError, OSError):
            pass
        return sent

    async def until_ended(self, streams: int, *, seconds: float) -> None:
        """Return when the server has ended so many streams, or the connection, or after that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.closed and self.ended_streams < streams:
                    self._changed.clear()
                    await self._changed.wait()

    async def flush(self) -> None:
        """Wait until the socket has taken what was written."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise Closed from error

    def close(self) -> None:
        self.closed = True
        self._writer.close()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for place in range(0, len(body) - 5, 6):
                name, value = struct.unpack_from(">HI", body, place)
                if name == SETTING_WINDOW:
                    change = value - self._stream_window
                    self._stream_window = value
                    self._windows = {one: window + change for one, window in self._windows.items()}
                elif name == SETTING_FRAME:
                    self._frame = value
            self._writer.write(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._writer.write(frame(PING, ACK, 0, body))
        elif kind == WINDOW_UPDATE:
            (more,) = struct.unpack(">I", body)
            if stream == 0:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
        elif kind == DATA and body:
            self._writer.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(body))))
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended_streams += self._windows.pop(stream, None) is not None
        self._changed.set()


def message(size: int) -> bytes:
    """The beginning of a gRPC message that says it has `size` bytes."""
    return b"\0" + struct.pack(">I", size)
