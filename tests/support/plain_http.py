"""Plain HTTP/1.1 over real sockets: requests as any client sends them, and streams of server-sent events."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

WITHIN = 60.0


class Answer(NamedTuple):
    """A status, and the body as JSON."""

    status: int
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """A client of one server."""

    url: str
    token: str = ""

    @property
    def peer(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def post(self, path: str, body: object) -> Answer:
        return await asyncio.to_thread(self._call, "POST", path, json.dumps(body))

    async def put(self, path: str, body: object) -> Answer:
        return await asyncio.to_thread(self._call, "PUT", path, json.dumps(body))

    async def get(self, path: str) -> Answer:
        return await asyncio.to_thread(self._call, "GET", path, None)

    def _call(self, method: str, path: str, body: str | None) -> Answer:
        connection = http.client.HTTPConnection(*self.peer, timeout=WITHIN)
        try:
            connection.request(method, path, body, self.headers() | {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return Answer(answer.status, json.loads(text) if text else None)
        finally:
            connection.close()

    def begun(self, path: str, body: object, *, receive_bytes: int = 0) -> socket.socket:
        """A request that was sent; nothing of its answer is read."""
        opened = socket.socket()
        if receive_bytes:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        opened.settimeout(WITHIN)
        opened.connect(self.peer)
        raw = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", f"Host: {self.peer[0]}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers().items()]
        opened.sendall("\r\n".join([*lines, f"Content-Length: {len(raw)}", "", ""]).encode() + raw)
        return opened

    @asynccontextmanager
    async def events(self, query: str = "", *, last: str = "") -> AsyncIterator[Events]:
        """An open stream of events."""
        reader, writer = await asyncio.open_connection(*self.peer)
        try:
            more = self.headers() | ({"Last-Event-ID": last} if last else {})
            lines = [f"GET /v1/events{query} HTTP/1.1", f"Host: {self.peer[0]}", "Accept: text/event-stream"]
            writer.write("\r\n".join([*lines, *(f"{name}: {one}" for name, one in more.items()), "", ""]).encode())
            async with asyncio.timeout(WITHIN):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            yield Events(reader, head)
        finally:
            writer.close()


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    data: Any
    id: str


class Events:
    """Reads the chunks of a stream, and the events in them."""

    def __init__(self, reader: asyncio.StreamReader, head: str) -> None:
        self._reader, self.head = reader, head
        self._text = ""
        self.last = ""

    @property
    def status(self) -> int:
        return int(self.head.split(" ", 2)[1])

    async def next(self, *, within: float = WITHIN) -> Event:
        """The next event; comments and ids without an event are passed over, but the ids are kept."""
        async with asyncio.timeout(within):
            while True:
                while "\n\n" not in self._text:
                    self._text += await self._chunk()
                block, _, self._text = self._text.partition("\n\n")
                fields = _fields(block)
                self.last = fields.get("id", self.last)
                if "event" in fields:
                    return Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))

    async def ended(self) -> bool:
        """Whether the stream ends, with nothing more in it."""
        async with asyncio.timeout(WITHIN):
            return not self._text and await self._chunk() == ""

    async def _chunk(self) -> str:
        size = int((await self._reader.readline()).strip() or b"0", 16)
        text = (await self._reader.readexactly(size)).decode()
        await self._reader.readline()
        return text


def _fields(block: str) -> Mapping[str, str]:
    lines = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
    return {name: value for name, _, value in lines}
