"""One HTTP request to an address that a caller has chosen: resolved once, checked, and connected to as checked.

    resolve  →  check every address (domain/egress.py)  →  connect to a checked address  →  send, read a bounded answer

The name is not resolved a second time, so that a resolver that answers differently (DNS rebinding) gains nothing; TLS
is verified against the name of the URL. Redirects are not followed: a receiver answers itself. Proxies that the
environment names are not used, since a proxy would connect to what was not checked.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final, TypeAlias

import h11

from headgate.domain.egress import Address, EgressRules, Target, literal_address
from headgate.domain.errors import InvalidInput
from headgate.domain.validation import clean_text
from headgate.domain.webhooks import RESPONSE_KEPT_CHARS, Sent, retry_after_of

CONNECT_SECONDS: Final = 5.0
TOTAL_SECONDS: Final = 10.0
"""From the name to the end of the answer: a receiver stores the event and answers, and does its work afterwards."""
RESPONSE_MAX_BYTES: Final = 65_536
"""More of a body is not read; its status still counts."""
HEADER_MAX_BYTES: Final = 16_384
ERROR_MAX_CHARS: Final = 500

RESOLVER_THREADS: Final = 16

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name; raises OSError."""


def system_lookup(host: str, port: int) -> list[str]:
    """By the resolver of the system; blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Resolver:
    """Looks names up in threads of its own.

    A lookup cannot be cancelled: where a name server does not answer, it keeps its thread for long after the request
    has timed out. The threads of the event loop are few, and connections to the database need them. Requests to one
    host wait for the same lookup, so a host without name server occupies one thread.
    """

    def __init__(self, lookup: Callable[[str, int], list[str]] = system_lookup) -> None:
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="webhook-dns")  # started when needed
        self._under_way: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def __call__(self, host: str, port: int) -> list[str]:
        """The addresses of a host name; raises OSError."""
        key = (host, port)
        found = self._under_way.get(key)
        if found is None:
            found = asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, host, port)
            self._under_way[key] = found
            found.add_done_callback(lambda ended: self._ended(key, ended))
        await asyncio.wait((found,))  # a caller that times out leaves the lookup to the others
        return found.result()

    def _ended(self, key: tuple[str, int], found: asyncio.Future[list[str]]) -> None:
        del self._under_way[key]
        if not found.cancelled():
            found.exception()  # perhaps no caller waits for it any more


class WebhookHttp:
    """Posts to URLs within the rules of the operator."""

    def __init__(
        self,
        rules: EgressRules,
        *,
        resolve: Resolve | None = None,
        trust: ssl.SSLContext | None = None,
        total_seconds: float = TOTAL_SECONDS,
    ) -> None:
        """`trust`: the authorities; by default those of the system, or of the variable SSL_CERT_FILE."""
        self._rules, self._resolve, self._total = rules, resolve or Resolver(), total_seconds
        self._trust = trust

    async def check(self, url: str) -> None:
        """Raise InvalidInput unless a request to the URL would be permitted now."""
        target = self._rules.target(url)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._addresses(target)
        except TimeoutError:
            raise InvalidInput("url", f"{target.host} was not resolved within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise InvalidInput("url", f"{target.host} does not resolve ({error.strerror or error})") from None

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Sent:
        """Send one request and return what became of it. Raises nothing that a receiver or a network can cause."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._total):
                status, answered, text = await self._post(self._rules.target(url), headers, body)
        except TimeoutError:
            return _failed(f"no complete answer within {self._total:g} s", began)
        except InvalidInput as error:
            return _failed(str(error), began)
        except ssl.SSLCertVerificationError as error:
            return _failed(f"the certificate is not valid: {error.verify_message}", began)
        except (OSError, h11.RemoteProtocolError) as error:
            return _failed(getattr(error, "strerror", None) or str(error) or type(error).__name__, began)
        problem = "" if 200 <= status < 300 else f"status {status}"
        if 300 <= status < 400:
            problem += "; redirects are not followed: change the URL of the endpoint"
        retry_after = answered.get("retry-after", "")
        return Sent(
            status=status,
            response=text,
            error=problem,
            duration_ms=_since(began),
            retry_after=retry_after_of(retry_after, now=datetime.now(UTC)) if retry_after else None,
        )

    async def _addresses(self, target: Target) -> list[Address]:
        literal = literal_address(target.host)
        found = [str(literal)] if literal is not None else await self._resolve(target.host, target.port)
        return self._rules.permitted(target.host, found)

    async def _post(
        self, target: Target, headers: Sequence[tuple[str, str]], body: bytes
    ) -> tuple[int, dict[str, str], str]:
        reader, writer = await self._connect(target)
        try:
            connection = h11.Connection(our_role=h11.CLIENT, max_incomplete_event_size=HEADER_MAX_BYTES)
            request = h11.Request(
                method="POST",
                target=target.path,
                headers=[
                    ("host", target.authority),
                    ("content-type", "application/json"),
                    ("content-length", str(len(body))),
                    ("user-agent", "headgate-webhooks"),
                    ("connection", "close"),
                    *headers,
                ],
            )
            for event in (request, h11.Data(data=body), h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
            await writer.drain()
            return await _answer(connection, reader)
        finally:
            writer.transport.abort()  # at once: a receiver that reads nothing must not delay us

    async def _connect(self, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to one of the checked addresses; the next one is tried if the first does not answer."""
        addresses = await self._addresses(target)
        error: OSError = OSError(f"{target.host} has no address")
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(
                        str(address),  # a literal: nothing is resolved again
                        target.port,
                        limit=RESPONSE_MAX_BYTES,
                        ssl=self._tls() if target.tls else None,
                        server_hostname=target.host if target.tls else None,
                    )
            except TimeoutError:
                error = OSError(f"{address} did not accept a connection within {CONNECT_SECONDS:g} s")
                continue
            except ssl.SSLError:
                raise
            except ConnectionRefusedError:  # whose own text is "Connect call failed ('127.0.0.1', 65000)"
                error = OSError(f"{address} refused a connection to port {target.port}")
                continue
            except OSError as failed:
                error = failed
                continue
            return reader, writer
        raise error

    def _tls(self) -> ssl.SSLContext:
        if self._trust is None:  # at the first use: reading the authorities takes some 10 ms
            self._trust = ssl.create_default_context()
        return self._trust


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], str]:
    """Status, headers and the beginning of the body."""
    status, headers, body = 0, dict[str, str](), bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(8_192))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
        # EndOfMessage, or the connection was closed: h11 raises if that was too early.
        if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed) or len(body) >= RESPONSE_MAX_BYTES:
            text = bytes(body[: 4 * RESPONSE_KEPT_CHARS]).decode("utf-8", "replace")
            return status, headers, clean_text(text, RESPONSE_KEPT_CHARS)


def _failed(error: str, began: float) -> Sent:
    return Sent(error=clean_text(error, ERROR_MAX_CHARS), duration_ms=_since(began))


def _since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
