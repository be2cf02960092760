"""Browsers that misbehave: pages that are opened and never read."""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.parse
from pathlib import Path
from typing import Final

from headgate.control.live import STREAMS_PER_CREDENTIAL
from headgate.web.csrf import FIELD, token_of
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import RED, completed, eventually, submit

READERS: Final = 200
GROWTH_MB: Final = 64.0
"""What 200 connections and their answers may take, however long they are not read."""
_COOKIE: Final = re.compile(r"^set-cookie: ([^;\r\n]+)", re.MULTILINE | re.IGNORECASE)


class Browser:
    """Requests to one server, each over a connection of its own, with the cookies of a login."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = str(parts.hostname), int(parts.port or 0)
        self._cookies: dict[str, str] = {}

    async def open(self, method: str, path: str, body: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request, and read nothing."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        origin = f"{self._host}:{self._port}"
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: {origin}",
            f"origin: http://{origin}",
            f"cookie: {'; '.join(f'{name}={value}' for name, value in self._cookies.items())}",
            "content-type: application/x-www-form-urlencoded",
            f"content-length: {len(body)}",
        ]
        writer.write("\r\n".join([*lines, "", body]).encode())
        await writer.drain()
        return reader, writer

    async def head(self, method: str, path: str, body: str = "") -> str:
        """The status and the headers of an answer; its cookies are kept."""
        reader, writer = await self.open(method, path, body)
        try:
            found = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode()
        finally:
            writer.close()
        self._cookies |= dict(one.partition("=")[::2] for one in _COOKIE.findall(found))
        return found

    async def log_in(self, token: str) -> None:
        """Begin a session."""
        await self.head("GET", "/ui/login")
        visitor = next(value for name, value in self._cookies.items() if "visitor" in name)
        form = urllib.parse.urlencode({FIELD: token_of(visitor), "token": token})
        answer = await self.head("POST", "/ui/login", form)
        assert " 303 " in answer.split("\r\n")[0], answer


def _memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@scenario(
    "F59", "200 stuck dashboard SSE readers", checks=("I13",), world={"servers": 1, "server_args": ("--http-port", "0")}
)
async def pages_are_not_read(world: World) -> None:
    """A credential has 20 streams at most, the others are refused at once; the load runs, and memory does not grow."""
    server = world.servers["s1"]
    browser = Browser(str(server.saw(r"REST API on (?P<url>\S+)")["url"]))
    await browser.log_in(world.tokens[RED])
    before = _memory_mb(server.pid)
    async with contextlib.AsyncExitStack() as stack, world.faulty("readers that do not read"):
        opened = []
        for _ in range(READERS):
            reader, writer = await browser.open("GET", "/ui/live")
            stack.callback(writer.close)
            opened.append(reader)
        heads = [(await asyncio.wait_for(one.readuntil(b"\r\n"), 30)).decode().split()[1] for one in opened]
        assert heads.count("200") == STREAMS_PER_CREDENTIAL, f"{heads.count('200')} streams of one credential"
        assert set(heads) <= {"200", "429", "503"}, set(heads)
        await asyncio.sleep(world.lasting(5, 300))
        await completed(world, await submit(world, "fast", 50))
        grown = _memory_mb(server.pid) - before
        world.measured("memory", f"{grown:+.1f} MB with {READERS} readers")
        assert grown < GROWTH_MB, f"the server has grown by {grown:.0f} MB"

    async def free_again() -> bool:
        return " 200 " in (await browser.head("GET", "/ui/live")).split("\r\n")[0]

    await eventually(free_again, "a page can be opened again", within=30)
