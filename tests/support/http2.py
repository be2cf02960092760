"""HTTP/2 manually: frames that no library would send."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0x7, 0x8, 0xB
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 0x3, 0x4
WINDOW = 65_535
"""Of a connection and of each of its streams, until the server says otherwise."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    body: bytes

    @property
    def error(self) -> int:
        """The code of a RST_STREAM or a GOAWAY."""
        return int.from_bytes(self.body[:4] if self.kind == RST_STREAM else self.body[4:8])

    @property
    def settings(self) -> dict[int, int]:
        return dict(struct.iter_unpack(">HI", self.body))


class Http2:
    """One connection. It answers nothing by itself, but for the server's settings."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = b""
        self._authority = f"{host}:{port}"
        self._next = 1
        self.over = False
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, *frames: bytes) -> None:
        """Write frames; a connection that the server has closed is not an error here."""
        try:
            self._socket.sendall(b"".join(frames))
        except OSError:
            self.over = True

    def opening(self, path: str, **headers: str) -> tuple[int, bytes]:
        """The number of a new stream, and the frame that opens it."""
        stream, self._next = self._next, self._next + 2
        return stream, opening(stream, path, self._authority, headers)

    def frames(self, *, within: float) -> Iterator[Frame]:
        """What comes, until nothing has for so long, or the connection is closed."""
        deadline = time.monotonic() + within
        while not self.over and (left := deadline - time.monotonic()) > 0:
            while len(self._read) >= 9:
                size = int.from_bytes(self._read[:3])
                if len(self._read) < 9 + size:
                    break
                kind, flags, stream = self._read[3], self._read[4], int.from_bytes(self._read[5:9]) & 0x7FFFFFFF
                body, self._read = self._read[9 : 9 + size], self._read[9 + size :]
                if kind == SETTINGS and not flags & ACK:
                    self.send(frame(SETTINGS, ACK, 0, b""))
                yield Frame(kind, flags, stream, body)
            self._socket.settimeout(max(0.01, left))
            try:
                more = self._socket.recv(65_536)
            except TimeoutError:
                return
            except OSError:
                more = b""
            self.over = not more
            self._read += more


def opening(stream: int, path: str, authority: str, headers: Mapping[str, str]) -> bytes:
    """The frame that begins a gRPC call; `_` in the name of a header stands for `-`."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return frame(HEADERS, END_HEADERS, stream, b"".join(_literal(*field) for field in fields.items()))


def data(stream: int, message: bytes = b"", *, last: bool = True) -> bytes:
    """A gRPC message as a frame."""
    body = b"\0" + len(message).to_bytes(4) + message
    return frame(DATA, END_STREAM if last else 0, stream, body)


def part(stream: int, body: bytes) -> bytes:
    """Bytes of a stream that continues."""
    return frame(DATA, 0, stream, body)


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4))


def ping() -> bytes:
    return frame(PING, 0, 0, b"8 bytes!")


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """One HTTP/2 frame."""
    return len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body


def _literal(name: str, value: str) -> bytes:
    """A header field, never indexed and never compressed."""
    return b"\x10" + b"".join(_sized(text.encode("latin-1")) for text in (name, value))


def _sized(raw: bytes) -> bytes:
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    size, rest = b"\x7f", len(raw) - 127
    while rest >= 128:
        size, rest = size + bytes([rest % 128 + 128]), rest // 128
    return size + bytes([rest]) + raw
