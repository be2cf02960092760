"""The HTTP listener: uvicorn's HTTP/1.1 protocol in the server's own event loop, with bounds, TLS and a drain.

uvicorn's own server is not used: it takes over signals, wakes ten times a second when nothing happens, and ends with
the process. Its protocol is. What one peer may cost:

- connections: a fixed number; one more is answered 429 and closed;
- headers: 16 KiB, complete within 10 s, whether the connection is new or was used before;
- idle time between two requests: 75 s;
- an answer that the peer does not read: 30 s without progress, then the connection is cut;
- bodies: by the rule of the route (request.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

import h11
import msgspec
from litestar.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from headgate.api.errors import RequestTimeout
from headgate.api.http.edge import Edge
from headgate.api.http.problems import MEDIA_TYPE, headers_of, problem_of, status_of
from headgate.api.tls import ChangedFiles, Tls
from headgate.domain import limits
from headgate.domain.errors import HeadgateError, InvalidInput, Overloaded

log = logging.getLogger("headgate.http")
BACKLOG: Final = 2_048
OVER_LIMIT_AGAIN_MS: Final = 1_000
FILES_SECONDS: Final = 1.0
# What the protocol logs about invalid requests is written by strangers, as often as they like.
_SILENT: Final = logging.Logger("uvicorn", level=logging.CRITICAL + 1)


class HttpListener:
    """An application on its port: the REST API of one instance, with the dashboard beside it."""

    def __init__(self, app: ASGIApp, *, tls: Tls | None, connections: int) -> None:
        self._tls, self._connections = tls, connections
        self._files = None if tls is None else ChangedFiles(tls)
        self._context: ssl.SSLContext | None = None if tls is None else tls.context()  # for new connections
        self._config = Config(
            Edge(app),
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=limits.HTTP_HEADERS_MAX_BYTES,
            timeout_keep_alive=int(limits.HTTP_IDLE.total_seconds()),
        )
        self._config.load()
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._watching: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def start(self, sockets: Sequence[socket.socket]) -> int:
        """Listen on these sockets; returns their port."""
        loop = asyncio.get_running_loop()
        secured: dict[str, Any] = {}
        if self._context is not None:
            within = limits.HTTP_HEADERS_WITHIN.total_seconds()
            # The port has one context for good. Of that which is used instead, none of the old authorities is left.
            self._context.sni_callback = self._use_current
            secured = {"ssl": self._context, "ssl_handshake_timeout": within, "ssl_shutdown_timeout": within}
            self._watching = loop.create_task(self._watch_files(), name="watch TLS files")
        for one in sockets:
            self._servers.append(await loop.create_server(self._connection, sock=one, backlog=BACKLOG, **secured))
        port: int = sockets[0].getsockname()[1]
        return port

    async def stop(self, grace: float) -> None:
        """Accept no more, close idle connections, and wait for running requests up to the grace; then cut them."""
        if self._watching is not None:
            self._watching.cancel()
        for server in self._servers:
            server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        self._ended.clear()
        if self._state.connections:
            try:
                async with asyncio.timeout(grace):
                    await self._ended.wait()
            except TimeoutError:
                if self._state.tasks:
                    log.warning("requests_cut count=%d grace=%g", len(self._state.tasks), grace)
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        tasks = tuple(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _connection(self) -> asyncio.Protocol:
        """A protocol for a new connection; called before its handshake."""
        self._renew_context()
        return _Connection(self._config, self._state, most=self._connections, on_last=self._ended.set)

    def _use_current(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str, used: ssl.SSLContext) -> None:
        if self._context is not None and used is not self._context:
            connection.context = self._context

    def _renew_context(self) -> None:
        """Use files that have changed. With client certificates, open connections end after their request.

        Their clients connect again, by the authorities that are trusted now.
        """
        if self._tls is None or self._files is None or not self._files.changed():
            return
        self._context = self._tls.context()
        if self._tls.client_ca is not None:
            for connection in tuple(self._state.connections):
                connection.shutdown()

    async def _watch_files(self) -> None:
        """So that a removed authority ends connections also while no new one comes."""
        while True:
            await asyncio.sleep(FILES_SECONDS)
            self._renew_context()


class _Connection(H11Protocol):
    """One connection. A timer runs while headers are incomplete, another while the peer does not read."""

    def __init__(self, config: Config, state: ServerState, *, most: int, on_last: Callable[[], None]) -> None:
        super().__init__(config, state, app_state={})
        self.logger, self.access_log = _SILENT, False
        self._most, self._on_last = most, on_last
        self._headers_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0  # in the buffer when that timer was started

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._refuse(Overloaded("too many connections are open", retry_after_ms=OVER_LIMIT_AGAIN_MS))
            return
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)
        if not self.connections:
            self._on_last()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._watch_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _watch_unread(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(limits.HTTP_UNREAD.total_seconds(), self._unread)

    def _unread(self) -> None:
        """Cut a peer that has read nothing since the timer was started. One that is slow has further time."""
        self._unread_timer = None
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._watch_unread()
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP, or has headers that are too large."""
        del msg
        problem = f"is not valid HTTP/1.1, or its headers have more than {limits.HTTP_HEADERS_MAX_BYTES} bytes"
        self._refuse(InvalidInput("request", problem))

    def _watch_headers(self) -> None:
        """Run the timer from the first byte of a request, or the opening, until its headers are complete."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        running = cycle is not None and not cycle.response_complete
        if running or self.transport.is_closing():
            if self._headers_timer is not None:
                self._headers_timer.cancel()
                self._headers_timer = None
        elif self._headers_timer is None and (cycle is None or self.conn.trailing_data[0]):
            within = limits.HTTP_HEADERS_WITHIN.total_seconds()
            self._headers_timer = self.loop.call_later(within, self._late)

    def _late(self) -> None:
        self._headers_timer = None
        self._refuse(RequestTimeout(limits.HTTP_HEADERS_WITHIN))

    def _refuse(self, error: HeadgateError) -> None:
        """Answer without a route, and close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(problem_of(error))
            headers = [
                ("content-type", MEDIA_TYPE),
                ("content-length", str(len(body))),
                ("connection", "close"),
                *headers_of(error).items(),
            ]
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
            self.transport.write(f"HTTP/1.1 {status_of(error)} \r\n{lines}\r\n".encode() + body)
        self.transport.close()

    def _stop_timers(self) -> None:
        for timer in (self._headers_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._headers_timer = self._unread_timer = None
