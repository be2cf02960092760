"""Connections of the fault proxy: their directions, how good they are, and how they are cut and reset."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from tests.fault.lab.pgwire import StatementWatch

Side = Literal["server", "client"]
SERVER: Final[Side] = "server"
CLIENT: Final[Side] = "client"
BOTH: Final = (SERVER, CLIENT)
When = Literal["before", "forwarded", "answered"]

CHUNK: Final = 64 * 1024
QUEUE_BYTES: Final = 1024 * 1024
"""What waits in one direction of one connection; past that the proxy stops reading, as a full network would."""
OVERLAP: Final = 512
"""Bytes of what passed before that a pattern may reach back into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How one direction is."""

    latency: float = 0.0  # seconds
    jitter: float = 0.0  # plus or minus, evenly
    bandwidth: float = 0.0  # bytes a second over all connections together; 0: as fast as it goes
    slice: int = 0  # bytes written at a time; 0: as they come
    holding: bool = False
    swallowing: bool = False
    cut_after: int = 0  # bytes of one connection in this direction after which it is reset; 0: never


GOOD: Final = Quality()


@dataclass(slots=True)
class Cut:
    """Reset a connection when something passes."""

    pattern: re.Pattern[str]
    toward: Side
    when: When
    statements: bool
    left: int
    struck: int = 0


@dataclass(slots=True)
class Piece:
    """What a client said at once; `at` seconds after its connection was made."""

    at: float
    data: bytes


@dataclass(slots=True, eq=False)
class Connection:
    """One client, and the connection to the server made for it."""

    number: int
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    began: float
    passed: dict[Side, int] = field(default_factory=lambda: {SERVER: 0, CLIENT: 0})
    lost: bool = False  # bytes of it were swallowed
    sealed: bool = False  # it ends with the first answer, which does not pass
    watch: StatementWatch = field(default_factory=StatementWatch)
    said: list[Piece] = field(default_factory=list)

    def reset(self) -> None:
        """RST both ways."""
        for writer in (self.client, self.server):
            reset_writer(writer)

    def hang_up(self) -> None:
        """RST to the client; the server reads what it was sent, and then the end."""
        reset_writer(self.client)
        with suppress(OSError, RuntimeError):
            self.server.close()


def reset_writer(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):  # lingering for no time makes the kernel send RST
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
