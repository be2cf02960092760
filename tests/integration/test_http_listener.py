"""The HTTP listener with real sockets: what a peer may cost, TLS, and how it ends. No route here asks the database."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import trustme

from headgate.api.http.app import new_app
from headgate.api.http.listener import HttpListener
from headgate.api.tls import Tls
from headgate.api.use_cases import UseCases
from headgate.control.auth import AllowAll, TokenValidator
from headgate.control.failed_logins import FailedLogins
from headgate.control.metrics import MetricsPage
from headgate.control.rate_limits import RateLimits
from headgate.domain import limits
from headgate.domain.errors import NotFound
from headgate.domain.identity import Identity, TokenRevoked
from headgate.ops.port import listening_sockets
from tests.support.waiting import until_async

WAIT = 60
SHORT = timedelta(milliseconds=200)
GET = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n"


class Refusing:
    """Use cases of which none finds anything."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def one(self, *_: object, **__: object) -> object:
        raise self._error


class Revoked(AllowAll):
    """A token that is valid when the request begins, and not any more when its body is there."""

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        del uses
        raise TokenRevoked(f"the token of {identity.subject} is not valid any more")


def cases(error: Exception | None = None, validator: TokenValidator | None = None) -> UseCases:
    nothing: Any = Refusing(error or NotFound("anything", "here"))
    known: dict[str, Any] = {
        "validator": validator or AllowAll(),
        "metrics": MetricsPage(nothing, is_open=False),
        "failed_logins": FailedLogins(),
        "rates": RateLimits(),
        "draining": asyncio.Event(),
        "instance": "one",
        "version": "0",
    }
    return UseCases(**{one.name: known.get(one.name, nothing) for one in fields(UseCases)})


class Peer:
    """A client that sends bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def answer(self) -> tuple[int, bytes, bytes]:
        """The status, the headers and the body of the next answer."""
        async with asyncio.timeout(WAIT):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split()[1]), head.lower(), await self._reader.readexactly(length)

    async def ended(self) -> bytes:
        """What comes before the server closes, which is a reset if it had not read everything."""
        try:
            async with asyncio.timeout(WAIT):
                return await self._reader.read()
        except ConnectionResetError:
            return b""


Connect = Callable[[], Awaitable[Peer]]


@asynccontextmanager
async def listening(
    *,
    connections: int = 100,
    tls: Tls | None = None,
    context: ssl.SSLContext | None = None,
    error: Exception | None = None,
    validator: TokenValidator | None = None,
) -> AsyncIterator[tuple[HttpListener, Connect]]:
    listener = HttpListener(new_app(cases(error, validator), dev=False), tls=tls, connections=connections)
    port = await listener.start(listening_sockets("127.0.0.1", 0, shared=False))
    peers: list[Peer] = []

    async def connect() -> Peer:
        name = None if context is None else "localhost"
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)))
        return peers[-1]

    try:
        yield listener, connect
    finally:
        for peer in peers:
            peer.writer.close()
        await asyncio.wait_for(listener.stop(0), WAIT)
        for peer in peers:
            with suppress(OSError):
                await peer.writer.wait_closed()


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize("before", [b"", GET], ids=["new connection", "used connection"])
async def test_headers_that_do_not_end_are_cut(before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_HEADERS_WITHIN", SHORT)
    async with listening() as (_, connect):
        peer = await connect()
        if before:
            peer.send(before)
            assert (await peer.answer())[0] == 200
        peer.send(b"GET /health/live HTTP/1.1\r\nx: ")
        status, headers, body = await peer.answer()
        assert (status, b"request_timeout" in body, b"connection: close" in headers) == (408, True, True)
        assert await peer.ended() == b""


async def test_a_byte_now_and_then_does_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_HEADERS_WITHIN", SHORT)
    async with listening() as (listener, connect):
        peer = await connect()
        peer.send(b"GET /health/live HTTP/1.1\r\nx: ")

        async def cut() -> bool:
            peer.send(b"a")
            return not listener._state.connections

        await until_async(cut, "the connection is cut")


async def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_HEADERS_WITHIN", SHORT)
    monkeypatch.setattr(limits, "HTTP_IDLE", timedelta(seconds=1))
    async with listening() as (_, connect):
        silent = await connect()
        assert b"408" in await silent.ended()
        used = await connect()
        used.send(GET)
        assert (await used.answer())[0] == 200
        assert await used.ended() == b"", "idle after a request: closed without a word"


async def test_a_body_that_does_not_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_WITHIN", SHORT)
    async with listening() as (_, connect):
        peer = await connect()
        peer.send(POST + b'{"topic"')
        status, headers, body = await peer.answer()
        assert (status, b"request_timeout" in body, b"connection: close" in headers) == (408, True, True)
        assert await peer.ended() == b""


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 20_000,
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    ],
    ids=["large headers", "no HTTP", "bad header", "two lengths"],
)
async def test_what_is_not_http_or_too_large_is_a_problem(raw: bytes) -> None:
    async with listening() as (_, connect):
        peer = await connect()
        peer.send(raw)
        status, headers, body = await peer.answer()
        assert (status, b"application/problem+json" in headers, b"invalid_input" in body) == (400, True, True)
        assert await peer.ended() == b""


async def test_headers_and_queries_are_bounded_also_when_they_arrive_at_once() -> None:
    async with listening() as (_, connect):
        peer = await connect()
        peer.send(b"GET /?" + b"a" * 10_000 + b" HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 10_000 + b"\r\n\r\n")
        status, _, body = await peer.answer()
        assert (status, b"too_large" in body, b'"limit":16384' in body) == (413, True, True)


async def test_connections_are_bounded() -> None:
    async with listening(connections=2) as (_, connect):
        one, two = await connect(), await connect()
        for peer in (one, two):
            peer.send(GET)
            assert (await peer.answer())[0] == 200
        three = await connect()
        status, headers, body = await three.answer()
        assert (status, b"retry-after: 1" in headers, b"overloaded" in body) == (429, True, True)
        assert await three.ended() == b""
        one.writer.close()

        async def let_in() -> bool:
            peer = await connect()
            peer.send(GET)
            return (await peer.answer())[0] == 200

        await until_async(let_in, "there is room again")


async def test_an_answer_that_is_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_UNREAD", SHORT)
    async with listening() as (listener, connect):
        peer = await connect()
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        cast("asyncio.ReadTransport", peer.writer.transport).pause_reading()
        asked = b"GET /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"

        async def cut() -> bool:
            with suppress(OSError):
                peer.send(asked * 10)
            return not listener._state.connections

        await until_async(cut, "the connection is cut")


async def test_a_peer_that_reads_slowly_is_cut_only_when_it_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_UNREAD", timedelta(milliseconds=1))
    transport = Mock(spec=asyncio.Transport)
    transport.get_extra_info.return_value = None
    transport.is_closing.return_value = False
    transport.get_write_buffer_size.side_effect = [90, 80, 80, 70, 70, 70]  # at each start of the timer, and each end
    connection = HttpListener(new_app(cases(), dev=False), tls=None, connections=1)._connection()
    connection.connection_made(transport)
    connection.pause_writing()

    async def cut() -> bool:
        return bool(transport.abort.called)

    try:
        await until_async(cut, "the connection is cut")
        assert transport.get_write_buffer_size.call_count == 6
    finally:
        connection.connection_lost(None)


async def test_a_refused_body_is_not_asked_for() -> None:
    """Expect: 100-continue: the answer comes instead of the question, and the connection ends."""
    async with listening() as (_, connect):
        peer = await connect()
        head = POST.replace(b"length: 15", b"length: 3000000").replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
        peer.send(head)
        status, headers, body = await peer.answer()
        assert (status, b"connection: close" in headers, b"too_large" in body) == (413, True, True)


async def test_a_token_that_was_revoked_while_the_body_arrived_is_refused() -> None:
    async with listening(validator=Revoked()) as (_, connect):
        peer = await connect()
        peer.send(POST + b'{"topic": "ab"}')
        status, _, body = await peer.answer()
        assert (status, b"token_revoked" in body) == (401, True)


async def test_a_bug_is_logged_with_the_id_of_its_request_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(error=RuntimeError("secret")) as (_, connect):
        peer = await connect()
        peer.send(POST.replace(b"host: localhost", b"host: localhost\r\nx-request-id: abc") + b'{"topic": "ab"}')
        status, headers, body = await peer.answer()
    assert (status, b"x-request-id: abc" in headers, b'"request_id":"abc"' in body) == (500, True, True)
    assert b"secret" not in body
    assert b"RuntimeError" not in body
    (record,) = (one for one in caplog.records if one.name == "headgate.http")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "secret"


# ---------------------------------------------------------------------- the end


async def test_a_drain_ends_idle_connections_and_lets_running_requests_finish() -> None:
    async with listening() as (listener, connect):
        idle, busy = await connect(), await connect()
        idle.send(GET)
        assert (await idle.answer())[0] == 200
        busy.send(POST + b'{"topic"')
        await until_async(_running(listener), "the request has begun")
        stopping = asyncio.create_task(listener.stop(WAIT))
        assert await idle.ended() == b""
        with pytest.raises(ConnectionRefusedError):
            await connect()
        assert not stopping.done()
        busy.send(b': "ab"}')
        assert (await busy.answer())[0] == 404, "the answer of the use case"
        assert await busy.ended() == b""
        await asyncio.wait_for(stopping, WAIT)


async def test_a_drain_cuts_what_has_not_ended_when_the_grace_is_over() -> None:
    async with listening() as (listener, connect):
        busy = await connect()
        busy.send(POST + b'{"topic"')
        await until_async(_running(listener), "the request has begun")
        await asyncio.wait_for(listener.stop(0.1), WAIT)
        with suppress(ConnectionResetError):
            assert await busy.ended() == b""
        assert not listener._state.tasks


def _running(listener: HttpListener) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return bool(listener._state.tasks)

    return found


# ---------------------------------------------------------------------- TLS

CLOSING = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


class Files:
    """A certificate of an authority for localhost, and a client's."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.tls = Tls(certificate=folder / "cert.pem", key=folder / "key.pem", client_ca=folder / "ca.pem")
        self.authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        self.issue()

    def issue(self) -> None:
        made = self.authority.issue_cert("localhost")
        made.private_key_pem.write_to_path(str(self.tls.key))
        made.cert_chain_pems[0].write_to_path(str(self.tls.certificate))

    def client(self, *, known: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if known:
            self.authority.issue_cert("worker.example").configure_cert(context)
        return context


async def test_a_client_certificate_is_required_and_a_new_server_certificate_is_used_at_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with listening(tls=files.tls, context=files.client()) as (listener, connect):
        first = await connect()
        first.send(GET)
        assert (await first.answer())[0] == 200
        files.issue()
        second = await connect()
        serials = [peer.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"] for peer in (first, second)]
        assert serials[0] != serials[1]
        port = listener._servers[0].sockets[0].getsockname()[1]
        assert await refused(port, files.client(known=False))


async def refused(port: int, context: ssl.SSLContext, *, name: str = "localhost") -> bool:
    """Whether a handshake fails; with TLS 1.3 the client learns it when it reads."""
    context.check_hostname = name == "localhost"  # for which the certificate is
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.write(CLOSING)
        return not await asyncio.wait_for(reader.read(), WAIT)
    except (ssl.SSLError, ConnectionError):
        return True


async def test_an_authority_that_is_removed_is_trusted_no_more_without_a_restart(tmp_path: Path) -> None:
    files, other = Files(tmp_path), trustme.CA()
    context = files.client()
    async with listening(tls=files.tls, context=context) as (listener, connect):
        open_one = await connect()
        open_one.send(GET)
        assert (await open_one.answer())[0] == 200
        port = listener._servers[0].sockets[0].getsockname()[1]
        other.cert_pem.write_to_path(str(files.tls.client_ca))
        # Within a second or so, and without a new connection.
        assert await open_one.ended() == b"", "its connection ends"
        assert await refused(port, context), "by name, and with the session of before"
        assert await refused(port, files.client(), name="127.0.0.1"), "a client that names no host"
        trusted = files.client(known=False)
        other.issue_cert("worker.example").configure_cert(trusted)
        assert not await refused(port, trusted)
