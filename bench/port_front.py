"""What a proxy in front of two listeners would cost: a loopback stream, direct and through a proxy in the same loop.

    python -m bench.port_front

The proxy does what one port for gRPC and HTTP would need: look at the first bytes of a connection, then copy both
directions. Prints a row for each (ADR 36).
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from typing import cast

FRAME, FRAMES, SMALL, TRIPS, ROUNDS = 65_536, 2_000, 100, 3_000, 5


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Front(asyncio.Protocol):
    """Chooses a listener by the first bytes, then copies."""

    def __init__(self, *, http2: int, http1: int) -> None:
        self.http2, self.http1, self.early = http2, http1, bytearray()
        self.inner: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.outer = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.inner is not None:
            self.inner.write(data)
            return
        first = not self.early
        self.early += data
        if first:
            self.opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        outer = self.outer

        class Back(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                outer.write(data)

        port = self.http2 if self.early.startswith(b"PRI ") else self.http1
        inner, _ = await asyncio.get_running_loop().create_connection(Back, "127.0.0.1", port)
        self.inner = inner
        inner.write(bytes(self.early))


async def measured(port: int) -> tuple[float, float, float]:
    """MiB/s each way, processor seconds per MiB of this whole process, and the median round trip in microseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4 * FRAME)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = b"PRI " + bytes(FRAME - 4)
    writer.write(frame)
    await reader.readexactly(FRAME)
    began, used = time.perf_counter(), time.process_time()
    for _ in range(FRAMES):
        writer.write(frame)
        await reader.readexactly(FRAME)
    mib = FRAMES * FRAME / 2**20
    rate, cost = mib / (time.perf_counter() - began), (time.process_time() - used) / mib
    trips = []
    for _ in range(TRIPS):
        at = time.perf_counter()
        writer.write(frame[:SMALL])
        await reader.readexactly(SMALL)
        trips.append(time.perf_counter() - at)
    writer.close()
    return rate, cost, statistics.median(trips) * 1e6


async def main() -> None:
    """Measure both in turns."""
    loop = asyncio.get_running_loop()
    inner = await loop.create_server(Echo, "127.0.0.1", 0)
    inside = inner.sockets[0].getsockname()[1]
    front = await loop.create_server(lambda: Front(http2=inside, http1=inside), "127.0.0.1", 0)
    ports = {"direct": inside, "through a proxy": front.sockets[0].getsockname()[1]}
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ports}
    for _ in range(ROUNDS):
        for name, port in ports.items():
            rows[name].append(await measured(port))
    for name, found in rows.items():
        rate, cost, trip = (statistics.median(one) for one in zip(*found, strict=True))
        print(f"{name:16} {rate:7.0f} MiB/s   {cost * 1e3:5.2f} ms of processor per MiB   {trip:5.0f} µs")


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
