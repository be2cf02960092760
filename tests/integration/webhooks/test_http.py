"""Requests to receivers: only to addresses that were checked, bounded in size and time. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import trustme

from headgate.domain.egress import EgressRules
from headgate.domain.errors import InvalidInput
from headgate.ops import webhook_http
from headgate.ops.webhook_http import RESOLVER_THREADS, RESPONSE_MAX_BYTES, Resolver, WebhookHttp

DEV = EgressRules.of(dev=True)
STRICT = EgressRules.of(plain_http=True, ports="1-65535")
Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """What it was sent, as it came."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=1"


@asynccontextmanager
async def receiving(reply: bytes | Reply, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A server on loopback that reads a request with its body and replies."""
    receiver = Receiver()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            receiver.requests.append(head + await reader.readexactly(length))
            if isinstance(reply, bytes):
                writer.write(reply)
            else:
                await reply(writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


def _answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def test_a_request_arrives_as_it_was_made_and_its_answer_is_kept() -> None:
    async with receiving(_answer("200 OK", body=b"thanks")) as receiver:
        sent = await WebhookHttp(DEV).post(receiver.url, [("webhook-id", "msg_1")], b'{"a":1}')
    assert (sent.status, sent.response, sent.error) == (200, "thanks", "")
    (request,) = receiver.requests
    assert request.startswith(b"POST /hook?a=1 HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{receiver.port}\r\n".encode() in request.lower()
    assert b"webhook-id: msg_1\r\n" in request.lower()
    assert b"content-type: application/json\r\n" in request.lower()
    assert request.endswith(b'\r\n\r\n{"a":1}')


# ---------------------------------------------------------------------- which address


async def test_an_address_is_checked_again_when_a_request_is_sent() -> None:
    """A name that was public when the endpoint was stored resolves to loopback now: nothing is sent."""
    answers = [["93.184.215.14"], ["127.0.0.1"]]

    async def rebinding(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("hook.example", receiver.port)
        return answers.pop(0)

    async with receiving(_answer("200 OK")) as receiver:
        http = WebhookHttp(STRICT, resolve=rebinding)
        url = f"http://hook.example:{receiver.port}/"
        await http.check(url)
        sent = await http.post(url, [], b"{}")
        assert "127.0.0.1 is not a public address (loopback)" in sent.error
        assert (sent.status, receiver.requests, answers) == (None, [], [])


async def test_a_name_is_resolved_once_for_a_request_and_the_checked_address_is_used() -> None:
    asked: list[str] = []

    async def resolver(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        # The second answer would lead elsewhere: to nobody.
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    async with receiving(_answer("204 No Content")) as receiver:
        sent = await WebhookHttp(DEV, resolve=resolver).post(f"http://hook.example:{receiver.port}/", [], b"{}")
    assert (sent.status, asked) == (204, ["hook.example"])
    assert f"host: hook.example:{receiver.port}\r\n".encode() in receiver.requests[0].lower()


async def test_an_address_that_is_not_public_is_refused_when_an_endpoint_is_stored() -> None:
    async def private(host: str, port: int) -> Sequence[str]:
        del port
        if host == "nowhere.example":
            raise OSError("Name or service not known")
        return ["10.0.0.1", "::1"]

    http = WebhookHttp(STRICT, resolve=private)
    for url, says in (
        ("http://intranet.example/", "10.0.0.1 is not a public address (private)"),
        ("http://127.0.0.1:8080/", "loopback"),
        ("http://[::ffff:10.0.0.1]/", "IPv4-mapped"),
        ("http://169.254.169.254/latest/meta-data", "cloud metadata"),
        ("http://nowhere.example/", "does not resolve"),
        ("ftp://hook.example/", "must begin with"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await http.check(url)
        assert says in str(refused.value), url


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
async def test_a_redirect_to_loopback_is_not_followed(status: str) -> None:
    async with receiving(_answer("200 OK")) as inner:
        async with receiving(_answer(status, f"location: {inner.url}")) as outer:
            sent = await WebhookHttp(DEV).post(outer.url, [], b"{}")
        assert sent.status == int(status[:3])
        assert "redirects are not followed" in sent.error
        assert inner.requests == []


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving(_answer("200 OK")) as proxy, receiving(_answer("200 OK")) as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await WebhookHttp(DEV).post(receiver.url, [], b"{}")).status == 200
    assert (len(proxy.requests), len(receiver.requests)) == (0, 1)


# ---------------------------------------------------------------------- TLS


async def test_the_certificate_must_be_for_the_name_of_the_url() -> None:
    async def loopback(host: str, port: int) -> Sequence[str]:
        del host, port
        return ["127.0.0.1"]

    authority = trustme.CA()
    theirs, ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("hook.example").configure_cert(theirs)
    authority.configure_trust(ours)
    async with receiving(_answer("200 OK"), tls=theirs) as receiver:
        trusting = WebhookHttp(DEV, resolve=loopback, trust=ours)
        assert (await trusting.post(f"https://hook.example:{receiver.port}/", [], b"{}")).status == 200
        wrong = await trusting.post(f"https://other.example:{receiver.port}/", [], b"{}")
        unknown = await WebhookHttp(DEV, resolve=loopback).post(f"https://hook.example:{receiver.port}/", [], b"{}")
        for sent in (wrong, unknown):
            assert (sent.status, "the certificate is not valid" in sent.error) == (None, True), sent
        assert len(receiver.requests) == 1


# ---------------------------------------------------------------------- bounds


async def test_no_more_of_an_answer_is_read_than_its_bound() -> None:
    written = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            written += 65_536

    async with receiving(endless) as receiver:
        sent = await WebhookHttp(DEV).post(receiver.url, [], b"{}")
    assert (sent.status, len(sent.response)) == (200, 1_000)
    assert written < 100 * RESPONSE_MAX_BYTES, "socket buffers, and no more"


async def test_a_slow_receiver_is_given_up_in_time() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" * 1_000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)

    async with receiving(drip) as receiver:
        sent = await WebhookHttp(DEV, total_seconds=0.2).post(receiver.url, [], b"{}")
    assert (sent.status, sent.error) == (None, "no complete answer within 0.2 s")
    assert webhook_http.TOTAL_SECONDS <= 10


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n" + b"x-header: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    ],
    ids=["nothing", "another protocol", "cut off", "huge headers", "bad length"],
)
async def test_an_answer_that_is_none_is_a_failure_and_no_error_of_ours(reply: bytes) -> None:
    async with receiving(reply) as receiver:
        sent = await WebhookHttp(DEV).post(receiver.url, [], b"{}")
    assert sent.status is None
    assert sent.error


async def test_a_refused_connection_is_a_failure() -> None:
    async with receiving(b"") as receiver:
        pass
    sent = await WebhookHttp(DEV).post(receiver.url, [], b"{}")
    assert sent.status is None
    assert re.fullmatch(r"127\.0\.0\.1 refused a connection to port \d+", sent.error)


async def test_retry_after_is_read() -> None:
    async with receiving(_answer("503 Service Unavailable", "Retry-After: 90")) as receiver:
        sent = await WebhookHttp(DEV).post(receiver.url, [], b"{}")
    assert (sent.status, sent.retry_after) == (503, timedelta(seconds=90))


async def test_what_cannot_be_stored_of_an_answer_is_replaced() -> None:
    async with receiving(_answer("500 Oops", body=b"\x00\xff bad")) as receiver:
        sent = await WebhookHttp(DEV).post(receiver.url, [], b"{}")
    assert sent.response == "\ufffd\ufffd bad"


async def test_a_name_that_is_not_answered_occupies_one_thread_and_delays_no_other_name() -> None:
    answered, looked_up = threading.Event(), list[tuple[str, str]]()

    def lookup(host: str, port: int) -> list[str]:
        looked_up.append((host, threading.current_thread().name))
        if host == "dead.example":
            answered.wait(60)
            raise OSError("no name server")
        return ["127.0.0.1"]

    resolve = Resolver(lookup)
    try:
        for _ in range(2 * RESOLVER_THREADS):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await resolve("dead.example", 443)
        assert await asyncio.wait_for(resolve("alive.example", 443), 30) == ["127.0.0.1"]
        assert [host for host, _ in looked_up] == ["dead.example", "alive.example"]
        assert all(thread.startswith("webhook-dns") for _, thread in looked_up)
    finally:
        answered.set()
    with pytest.raises(OSError, match="no name server"):
        await asyncio.wait_for(resolve("dead.example", 443), 30)
