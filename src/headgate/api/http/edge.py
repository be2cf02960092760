"""What surrounds every request: its id, its path, headers of every response, and the last resort for errors.

Names of topics, schedules and workers can contain slashes, written `%2F` in a path. Litestar routes by the decoded path
and could not tell them from the separators, so they are replaced by SLASH here, and put back by the guard.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from secrets import token_hex
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from headgate.api.http.problems import MEDIA_TYPE, Unexpected, problem_of, status_of
from headgate.domain import limits
from headgate.domain.errors import HeadgateError, InvalidInput, TooLarge
from headgate.domain.log_fields import REQUEST_ID

log = logging.getLogger("headgate.http")

SLASH: Final = "\0"
"""In a decoded path: a slash of a name. A path with an encoded NUL is refused."""
HEAD: Final = "headgate.head"
"""In a scope: the client wants no body. The routes know no HEAD, so its method is GET there."""
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_UNREAD_MAX_BYTES: Final = 65_536
_UNREAD_SECONDS: Final = 1.0
"""What is read of a body that no route read, before the answer: else the connection is closed after it, and a client
that still sends can lose the answer."""


class Edge:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == ScopeType.HTTP:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope["headers"])
        REQUEST_ID.set(request_id)  # the task of the request ends with it
        began, head = time.perf_counter(), scope["method"] == "HEAD"
        method, raw_path = scope["method"], scope["raw_path"]
        body = _Body(receive, waits=any(name == b"expect" for name, _ in scope["headers"]))
        status = 0
        # A body with two ends: a proxy before us may take the other one, and see a second request in the rest.
        framed_twice = {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(name.lower(), value) for name, value in message.get("headers", ())]
                given = {name for name, _ in headers}
                headers += [
                    (b"date", formatdate(usegmt=True).encode()),
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
                if b"cache-control" not in given:
                    headers.append((b"cache-control", b"no-store"))
                if framed_twice or not await body.ended():
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        try:
            check_size(scope)
            if framed_twice:
                raise InvalidInput(
                    "Content-Length", "is given together with Transfer-Encoding", hint="send one of the two"
                )
            # A copy: uvicorn leaves the body of an answer out by the method of its own.
            inner: Any = {**scope, "method": "GET" if head else method, "path": routed_path(raw_path), HEAD: head}
            await self._app(inner, body.receive, answer)
        except HeadgateError as error:
            await _send_problem(error, answer)
        except Exception:
            log.exception("request_failed method=%s path=%s", method, raw_path.decode("ascii", "replace"))
            if status:
                raise  # the response has begun: the connection is closed
            await _send_problem(Unexpected(), answer)
        if log.isEnabledFor(logging.DEBUG):
            spent = (time.perf_counter() - began) * 1_000
            path = raw_path.decode("ascii", "replace")
            log.debug("request method=%s path=%s status=%d ms=%.1f", method, path, status, spent)


class Split:
    """Two applications behind one edge, chosen by the path."""

    def __init__(self, first: ASGIApp, second: ASGIApp, *, serves: Callable[[str], bool]) -> None:
        """`serves`: whether a path belongs to the first one."""
        self._first, self._second, self._serves = first, second, serves

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await (self._first if self._serves(scope["path"]) else self._second)(scope, receive, send)


class _Body:
    """The body of one request on its way to the route."""

    def __init__(self, receive: Receive, *, waits: bool) -> None:
        """`waits`: the client sends it only when it is asked for (Expect: 100-continue)."""
        self._receive, self._waits = receive, waits
        self._more = True

    async def receive(self) -> Any:
        self._waits = False
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._more = False
        return message

    async def ended(self) -> bool:
        """Whether all of it has arrived; a little that is left is dropped."""
        if self._waits:
            return False  # to read would be to ask for it
        dropped = 0
        try:
            async with asyncio.timeout(_UNREAD_SECONDS):
                while self._more and dropped <= _UNREAD_MAX_BYTES:
                    dropped += len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
        return not self._more


async def _send_problem(error: HeadgateError, send: Send) -> None:
    body = msgspec.json.encode(problem_of(error))
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status_of(error), "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def request_id_of(headers: Any) -> str:
    """The id that the client has given, if it can stand in a log line; else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return str(text)
    return token_hex(16)


def check_size(scope: HTTPScope) -> None:
    """Raise TooLarge: the protocol bounds only what has not arrived in one piece."""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > limits.HTTP_HEADERS_MAX_BYTES:
        raise TooLarge("headers", size=size, limit=limits.HTTP_HEADERS_MAX_BYTES, hint="send parameters in the body")


def routed_path(raw: bytes) -> str:
    """The path with all that is encoded decoded, except that an encoded slash is SLASH. Raises InvalidInput."""
    segments = [unquote(part) for part in raw.decode("ascii", "replace").split("/")]
    if any(SLASH in one for one in segments):
        raise InvalidInput("path", "contains an encoded NUL")
    return "/".join(one.replace("/", SLASH) for one in segments)
