"""HTTP endpoints outside of Headgate that misbehave: receivers of webhooks, and an issuer that publishes its keys."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trustme

from tests.support.webhook_receiver import verified

GIGABYTE: Final = 1 << 30
_PIECE: Final = b"x" * 65_536
Handler = Callable[[str, Mapping[str, str], bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[int]:
    """A server on loopback: one request per connection; gives its port."""

    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ending = asyncio.create_task(closed.wait())
        answering = asyncio.create_task(respond(reader, writer))
        await asyncio.wait((ending, answering), return_when=asyncio.FIRST_COMPLETED)
        for task in (ending, answering):
            task.cancel()
        await asyncio.gather(ending, answering, return_exceptions=True)
        writer.close()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            await handler(lines[0].split(" ")[1], headers, body, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # a client that has given up

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        closed.set()
        server.close()


def answer(writer: asyncio.StreamWriter, status: str, *headers: str, body: bytes = b"") -> None:
    """Write an answer."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)


class Receivers:
    """Receivers of webhooks, by path: `/good` notes what it gets, all others are hostile."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()  # bytes of answers
        self.ids: dict[str, set[str]] = defaultdict(set)  # of good requests: the ids under which a job came
        self.times: Counter[str] = Counter()  # how often a job came
        self.secret = ""
        self.forged = 0
        self.port = self.tls_port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve, in plain text and with a certificate that no one trusts."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
        async with serving(self._handle) as self.port, serving(self._handle, tls=tls) as self.tls_port:
            yield

    def url(self, path: str) -> str:
        """Of one of them."""
        return f"https://127.0.0.1:{self.tls_port}/" if path == "/tls" else f"http://127.0.0.1:{self.port}{path}"

    async def _handle(self, path: str, headers: Mapping[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        self.requests[path] += 1
        match path:
            case "/good":
                if not verified(self.secret, headers, body):
                    self.forged += 1
                    answer(writer, "401 Unauthorized")
                    return
                job = json.loads(body)["data"].get("job_id", "")
                self.ids[job].add(headers["webhook-id"])
                self.times[job] += 1
                answer(writer, "204 No Content")
            case "/500":
                answer(writer, "500 Internal Server Error", body=b"down")
            case "/hang":
                await asyncio.sleep(3600)
            case "/huge":
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {GIGABYTE}\r\n\r\n".encode())
                for _ in range(GIGABYTE // len(_PIECE)):
                    writer.write(_PIECE)
                    await writer.drain()
                    self.sent[path] += len(_PIECE)
            case "/loop":
                answer(writer, "302 Found", f"location: http://127.0.0.1:{self.port}/loop-again")
            case _:
                answer(writer, "302 Found", f"location: http://127.0.0.1:{self.port}/loop")


class KeyServer:
    """An issuer that publishes a set of keys, or does not."""

    def __init__(self) -> None:
        self.requests = 0
        self.mode = "good"  # good, garbage, slow
        self.keys = b""
        self.port = 0
        self._up: Any = None

    async def start(self) -> None:
        """Serve; at the same port as before."""
        self._up = serving(self._handle, port=self.port)
        self.port = await self._up.__aenter__()

    async def stop(self) -> None:
        """Refuse connections."""
        if self._up is not None:
            await self._up.__aexit__(None, None, None)
            self._up = None

    @property
    def url(self) -> str:
        """Where the keys are."""
        return f"http://127.0.0.1:{self.port}/keys.json"

    def issuers(self, folder: Path, *, issuer: str, audience: str) -> Path:
        """The file that `--jwt-issuers` reads."""
        entry = {"issuer": issuer, "audience": audience, "algorithms": ["ES256"], "jwks_url": self.url}
        path = folder / "issuers.json"
        path.write_text(json.dumps({"issuers": [entry]}))
        path.chmod(0o600)
        return path

    async def _handle(self, path: str, headers: Mapping[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        del path, headers, body
        self.requests += 1
        if self.mode == "slow":
            await asyncio.sleep(30)
            return
        answer(writer, "200 OK", body=b"<html>maintenance</html>" if self.mode == "garbage" else self.keys)
