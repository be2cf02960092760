"""A TCP proxy that makes a link bad: slow, narrow, silent, one-sided, broken at a chosen byte or statement.

    with FaultProxy("127.0.0.1", server.port) as proxy:
        hg = Headgate(proxy.address)
        proxy.worsen(latency=0.5, jitter=0.4)          # both ways; toward=SERVER or CLIENT for one
        proxy.hold(toward=CLIENT)                      # a partition: bytes wait, and arrive when it heals
        proxy.swallow(toward=CLIENT)                   # bytes are lost: such a connection is reset when it heals
        proxy.reset()                                  # RST on every connection
        proxy.cut(rb"SELECT .* headgate\\.submit_v1", when="answered", statements=True)
        proxy.refuse()                                 # no one listens any more
        proxy.heal()

It knows nothing of what passes through, but for the statements of a PostgreSQL client when a cut asks for them. It runs
on an event loop in a thread of its own; every method may be called from any thread and returns when it is in force.
`python -m tests.fault.lab.proxy_control` is the same as a process, controlled over HTTP.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.fault.lab.proxy_connections import (
    BOTH,
    CHUNK,
    CLIENT,
    GOOD,
    OVERLAP,
    QUEUE_BYTES,
    SERVER,
    Connection,
    Cut,
    Piece,
    Quality,
    Side,
    When,
    reset_writer,
)

T = TypeVar("T")


class FaultProxy:
    """See the module."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        unix: str | None = None,
        listen_host: str = "127.0.0.1",
        listen_port: int = 0,
        seed: int = 0,
        record: bool = False,
    ) -> None:
        """`unix` is the path of the server's socket, if it has no address. `record` keeps what clients say."""
        self._target = (host, port)
        self._unix = unix
        self._luck = random.Random(seed)
        self._record = record
        self._quality: dict[Side, Quality] = {SERVER: GOOD, CLIENT: GOOD}
        self._free_at: dict[Side, float] = {SERVER: 0.0, CLIENT: 0.0}
        self._cuts: list[Cut] = []
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._listener: asyncio.Server | None = None
        self._listen = (listen_host, listen_port)
        self.made: list[Connection] = []
        """All connections so far, in their order."""
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._thread.start()
        try:
            self._wait(self._start_listening())
        except BaseException:
            self._end_loop()
            raise

    # ------------------------------------------------------------------ where it is, what passed

    @property
    def host(self) -> str:
        return self._listen[0]

    @property
    def port(self) -> int:
        return self._listen[1]

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"{self._listen[0]}:{self._listen[1]}"

    @property
    def open(self) -> int:
        """How many connections there are now."""
        return len(self._open)

    @property
    def struck(self) -> int:
        """How many connections the cuts have ended so far."""
        return sum(cut.struck for cut in self._cuts)

    def passed(self, toward: Side) -> int:
        """Bytes of all connections so far."""
        return sum(connection.passed[toward] for connection in tuple(self.made))

    def quality(self, toward: Side) -> Quality:
        """How that direction is now."""
        return self._quality[toward]

    # ------------------------------------------------------------------ faults

    def worsen(
        self,
        *,
        toward: Side | None = None,
        latency: float | None = None,
        jitter: float | None = None,
        bandwidth: float | None = None,
        slice: int | None = None,  # noqa: A002 - the word for it
        cut_after: int | None = None,
    ) -> None:
        """Change what is given, in one direction or both."""
        wishes = (
            ("latency", latency),
            ("jitter", jitter),
            ("bandwidth", bandwidth),
            ("slice", slice),
            ("cut_after", cut_after),
        )
        self._change(toward, **{name: value for name, value in wishes if value is not None})

    def hold(self, *, toward: Side | None = None) -> None:
        """Nothing passes any more, and no one is notified; what was sent arrives when it heals. New connections too."""
        self._change(toward, holding=True)

    def swallow(self, *, toward: Side | None = None) -> None:
        """What is sent from now on is lost. A connection that lost something is reset when it heals."""
        self._change(toward, swallowing=True)

    def refuse(self) -> None:
        """No one listens any more: new connections are refused; those there are stay."""

        async def stop() -> None:
            self._refusing = True
            if self._listener is not None:
                self._listener.close()
                self._listener = None

        self._wait(stop())

    def reset(self) -> int:
        """RST on every connection, both ways; says on how many."""

        async def reset() -> int:
            ended = tuple(self._open)
            for connection in ended:
                connection.reset()
            return len(ended)

        return self._wait(reset())

    def hang_up(self) -> int:
        """FIN on every connection, both ways; says on how many."""

        async def hang_up() -> int:
            ended = tuple(self._open)
            for connection in ended:
                for writer in (connection.client, connection.server):
                    writer.close()
            return len(ended)

        return self._wait(hang_up())

    def cut(
        self,
        pattern: str,
        *,
        toward: Side = SERVER,
        when: When = "answered",
        statements: bool = False,
        times: int = 1,
    ) -> Cut:
        """End a connection when `pattern` passes, so many times; only what passes from now on counts.

        `before`: it is not passed on. `forwarded`: it is, and then the link breaks at once. `answered`: the link breaks
        when the answer comes, which does not pass: what was asked for has surely happened. `statements`: the pattern is
        looked for in the SQL of a PostgreSQL client, whose statement is passed on completely; else in the bytes.
        """
        cut = Cut(re.compile(pattern, re.DOTALL), toward, when, statements, times)

        async def add() -> None:
            self._cuts.append(cut)

        self._wait(add())
        return cut

    def heal(self) -> None:
        """Everything is good again, new connections are let in, cuts that were not used up are forgotten.

        Connections that lost bytes are reset: their two ends would not understand each other any more.
        """

        async def heal() -> None:
            self._quality = {SERVER: GOOD, CLIENT: GOOD}
            self._free_at = {SERVER: 0.0, CLIENT: 0.0}
            for cut in self._cuts:
                cut.left = 0
            for connection in tuple(self._open):
                if connection.lost:
                    connection.reset()
            self._changed.set()
            if self._refusing:
                self._refusing = False
                await self._start_listening()

        self._wait(heal())

    def replay(self, connection: Connection, *, hurry: float = 10.0, listen: float = 1.0) -> bytes:
        """Say to the server, on a new connection, what a recorded client said; gives what the server answered.

        In the same rhythm, so many times faster. Then listen for so many seconds without sending.
        """

        async def replay() -> bytes:
            reader, writer = await self._connect()
            heard = bytearray()

            async def hear() -> None:
                while data := await reader.read(CHUNK):
                    heard.extend(data)

            hearing = asyncio.create_task(hear())
            try:
                before = 0.0
                for piece in connection.said:
                    await asyncio.sleep((piece.at - before) / hurry)
                    before = piece.at
                    writer.write(piece.data)
                    await writer.drain()
                await asyncio.wait((hearing,), timeout=listen)
            except OSError:
                pass  # the server has hung up: what it said counts
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
                writer.close()
            return bytes(heard)

        return self._wait(replay(), seconds=60)

    def close(self) -> None:
        """End everything. Harmless when repeated."""
        if not self._loop.is_closed():
            self._wait(self._close())
            self._end_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ on the loop

    def _wait(self, work: Coroutine[Any, Any, T], *, seconds: float = 20) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _change(self, toward: Side | None, **changes: Any) -> None:
        async def change() -> None:
            for side in BOTH if toward is None else (toward,):
                self._quality[side] = replace(self._quality[side], **changes)
            self._changed.set()

        self._wait(change())

    async def _start_listening(self) -> None:
        self._listener = await asyncio.start_server(self._accept, *self._listen, limit=CHUNK)
        self._listen = self._listener.sockets[0].getsockname()[:2]

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._unix is not None:
            return await asyncio.open_unix_connection(self._unix, limit=CHUNK)
        return await asyncio.open_connection(*self._target, limit=CHUNK)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            from_server, to_server = await self._connect()
        except OSError:
            reset_writer(writer)
            return
        connection = Connection(len(self.made) + 1, writer, to_server, time.monotonic())
        self.made.append(connection)
        self._open.add(connection)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_Pump(self, connection, SERVER, reader, to_server).run())
                tasks.create_task(_Pump(self, connection, CLIENT, from_server, writer).run())
        except* (OSError, EOFError):
            connection.reset()
        except* asyncio.CancelledError:
            connection.reset()
        finally:
            self._open.discard(connection)
            for one in (writer, to_server):
                with suppress(OSError, RuntimeError):
                    one.close()


class _Pump:
    """Carries one direction of one connection."""

    def __init__(
        self,
        proxy: FaultProxy,
        connection: Connection,
        toward: Side,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy, self._connection, self._toward = proxy, connection, toward
        self._reader, self._writer = reader, writer
        self._queue: deque[tuple[float, bytes]] = deque()  # when it may go on, and what; empty bytes: the end
        self._queued = 0
        self._last_due = 0.0
        self._tail = ""  # of what passed, for patterns that lie across two pieces
        self._more, self._room = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Until this direction ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            tasks.create_task(self._write())

    async def _read(self) -> None:
        while True:
            data = await self._reader.read(CHUNK)
            now = time.monotonic()
            if data and self._toward == SERVER and self._proxy._record:
                self._connection.said.append(Piece(now - self._connection.began, data))
            quality = self._proxy._quality[self._toward]
            delay = quality.latency + quality.jitter * self._proxy._luck.uniform(-1, 1)
            self._last_due = max(self._last_due, now + max(0.0, delay))  # jitter must not change the order
            self._queue.append((self._last_due, data))
            self._queued += len(data)
            self._more.set()
            if not data:
                return
            while self._queued > QUEUE_BYTES:
                self._room.clear()
                await self._room.wait()

    async def _write(self) -> None:
        while True:
            while not self._queue:
                self._more.clear()
                await self._more.wait()
            due, data = self._queue.popleft()
            self._queued -= len(data)
            self._room.set()
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            await self._flowing()
            if not data:
                with suppress(OSError, RuntimeError):
                    self._writer.write_eof()
                return
            await self._pass(data)

    async def _flowing(self) -> None:
        """Wait while this direction holds everything back."""
        proxy = self._proxy
        while proxy._quality[self._toward].holding:
            proxy._changed.clear()
            await proxy._changed.wait()

    async def _pass(self, data: bytes) -> None:
        if self._proxy._quality[self._toward].swallowing:
            self._connection.lost = True
            return
        if self._connection.sealed and self._toward == CLIENT:
            self._connection.hang_up()
            raise ConnectionResetError("the answer was cut off")
        place, cut = self._found(data)
        if cut is None:
            await self._send(data)
            return
        cut.left -= 1
        cut.struck += 1
        if cut.when == "before":
            self._connection.reset()
            raise ConnectionResetError("cut before it was passed on")
        if cut.when == "answered":
            self._connection.sealed = True  # before it is sent: the answer may be quick
        await self._send(data[:place])
        if cut.when == "forwarded":
            self._connection.hang_up()
            raise ConnectionResetError("cut after it was passed on")
        await self._send(data[place:])

    def _found(self, data: bytes) -> tuple[int, Cut | None]:
        """How many bytes to pass on, and the cut that strikes in them."""
        statements = self._connection.watch.feed(data) if self._toward == SERVER else []
        text = self._tail + data.decode("latin-1")
        before, self._tail = len(self._tail), text[-OVERLAP:]
        for cut in self._proxy._cuts:
            if cut.left <= 0 or cut.toward != self._toward:
                continue
            if cut.statements:
                for end, statement in statements:
                    if cut.pattern.search(statement):
                        return end, cut
            else:
                for match in cut.pattern.finditer(text):
                    if match.end() > before:  # else it was there before, and struck then, or was not yet looked for
                        return match.end() - before, cut
        return 0, None

    async def _send(self, data: bytes) -> None:
        place = 0
        while place < len(data):
            quality = self._proxy._quality[self._toward]
            size = quality.slice or len(data)
            if quality.bandwidth:
                size = min(size, max(1, int(quality.bandwidth / 20)))
            piece = data[place : place + size]
            place += len(piece)
            if quality.bandwidth:
                await self._queue_for_the_wire(len(piece) / quality.bandwidth)
                await self._flowing()
            passed = self._connection.passed
            if quality.cut_after and passed[self._toward] + len(piece) >= quality.cut_after:
                piece = piece[: max(0, quality.cut_after - passed[self._toward])]
                self._writer.write(piece)
                passed[self._toward] += len(piece)
                with suppress(OSError):
                    await self._writer.drain()
                self._connection.hang_up()
                raise ConnectionResetError("cut after so many bytes")
            self._writer.write(piece)
            passed[self._toward] += len(piece)
            await self._writer.drain()
            if quality.slice:
                await asyncio.sleep(0.001)  # or the kernel would join them again

    async def _queue_for_the_wire(self, seconds: float) -> None:
        free_at = self._proxy._free_at
        free_at[self._toward] = max(free_at[self._toward], time.monotonic()) + seconds
        await asyncio.sleep(free_at[self._toward] - time.monotonic())
