"""TLS on the real port, with certificates made on the fly: who is let in, and what everyone else is notified."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme

from headgate import Headgate, InvalidInput, NotConnected
from headgate.domain.errors import InvalidSetting
from headgate.server import Server, ServerOptions
from tests.support.fake_server import on_io


class Files:
    """A private authority, a server's certificate for loopback, and a client's."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.cert, self.key = self.issue("server", "localhost", "127.0.0.1")
        self.client_cert, self.client_key = self.issue("client", "worker.example")

    def issue(self, name: str, *hosts: str) -> tuple[Path, Path]:
        made = self.authority.issue_cert(*hosts)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        key.chmod(0o600)
        return cert, key


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "tls")


@asynccontextmanager
async def serving(database: str, **options: Path | None) -> AsyncIterator[str]:
    """The real server, in this process: on the SDK's own loop, since grpc.aio takes one loop per process."""
    server = Server(ServerOptions(database_url=database, port=0, dev=True, unsafe=True, **options))  # type: ignore[arg-type]
    await on_io(server.start())
    try:
        yield f"localhost:{server.port}"
    finally:
        await on_io(server.stop(drain=False))


async def submits(url: str | Sequence[str], timeout: float = 10, **trust: Path) -> bool:
    async with Headgate(url, **trust) as hg:  # type: ignore[arg-type]
        handle = await hg.submit("mail", {"to": "a"}, timeout=timeout)
        return (await handle.info()).topic == "mail"


async def told(url: str, words: str, **trust: Path) -> bool:
    """Whether a client that is not let in is notified this; a busy machine may need more than one handshake's time."""
    said: list[str] = []
    while not said or words not in said[-1]:
        assert len(said) < 20, said
        with pytest.raises(NotConnected) as caught:
            await submits(url, timeout=0.5 * (1 + len(said)), **trust)
        said.append(str(caught.value))
    return True


@pytest.mark.req("O28")
async def test_a_client_with_the_authority_connects_and_others_get_an_error_with_a_hint(
    database: str, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Files(tmp_path / "other")
    async with serving(database, tls_cert=files.cert, tls_key=files.key) as address:
        assert await submits(f"https://{address}", ca=files.ca)
        assert await told(address, "if it serves TLS, write https://")
        assert await told(f"https://{address}", "pass ca=..., or set HEADGATE_CA", ca=other.ca)
        monkeypatch.setenv("HEADGATE_CA", str(files.ca))
        assert await submits(f"https://{address}")
        # A renewed certificate is taken up without a restart; this one is for someone else.
        files.issue("server", "elsewhere.example")
        assert await told(f"https://{address}", "its certificate is for another name")


async def test_tls_to_a_plain_port_gets_a_clear_error(database: str, files: Files) -> None:
    async with serving(database) as address:
        assert await told(f"https://{address}", "write the address without https://", ca=files.ca)


async def test_a_server_may_ask_clients_for_their_certificate(database: str, files: Files, tmp_path: Path) -> None:
    other = Files(tmp_path / "other")
    async with serving(database, tls_cert=files.cert, tls_key=files.key, tls_client_ca=files.ca) as address:
        url = f"https://{address}"
        assert await submits(url, ca=files.ca, certificate=files.client_cert, key=files.client_key)
        assert await told(url, "pass certificate=... and key=...", ca=files.ca)
        assert await told(url, "in the TLS handshake", ca=files.ca, certificate=other.client_cert, key=other.client_key)


class Peer:
    """A connection with a client certificate, and one stream on it."""

    def __init__(self, address: str, server: Files, client: Files) -> None:
        identity = client.client_key.read_bytes(), client.client_cert.read_bytes()
        self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(server.ca.read_bytes(), *identity))
        self._stream = self._channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", wait_for_ready=True, timeout=60)

    async def is_watching(self) -> bool:
        return bool(await asyncio.to_thread(next, self._stream))

    @property
    def is_open(self) -> bool:
        return bool(self._stream.is_active())

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        return await asyncio.to_thread(lambda: (self._stream.code(), self._stream.details()))

    async def calls(self) -> grpc.StatusCode:
        """The answer to one more call on the connection."""
        call = self._channel.unary_unary("/grpc.health.v1.Health/Check").future(b"", timeout=10)
        return await asyncio.to_thread(call.code)

    def close(self) -> None:
        self._channel.close()


@pytest.mark.req("W5")
async def test_a_removed_authority_ends_open_streams_within_five_seconds_and_refuses_calls_of_the_connection(
    database: str, files: Files, tmp_path: Path
) -> None:
    other = Files(tmp_path / "other")
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(files.ca.read_bytes() + other.ca.read_bytes())
    async with serving(database, tls_cert=files.cert, tls_key=files.key, tls_client_ca=bundle) as address:
        kept, cut = Peer(address, files, files), Peer(address, files, other)
        try:
            assert await kept.is_watching()
            assert await cut.is_watching()
            assert await cut.calls() == grpc.StatusCode.OK
            bundle.write_bytes(files.ca.read_bytes())
            began = time.monotonic()
            code, said = await cut.ended()
            assert time.monotonic() - began < 5
            assert code == grpc.StatusCode.UNAUTHENTICATED
            assert "not signed by an authority that the server trusts now" in said
            assert await cut.calls() == grpc.StatusCode.UNAUTHENTICATED, "its connection is still open"
            assert kept.is_open
            assert await kept.calls() == grpc.StatusCode.OK
        finally:
            kept.close()
            cut.close()


async def test_files_that_make_no_server_are_refused_before_the_port_is_open(database: str, files: Files) -> None:
    for options, says in (
        ({"tls_cert": files.cert}, "given together"),
        ({"tls_client_ca": files.ca}, "requires a server certificate"),
        ({"tls_cert": files.cert, "tls_key": files.client_key}, "cannot be used"),
        ({"tls_cert": files.folder / "none", "tls_key": files.key}, "cannot be used"),
    ):
        with pytest.raises(InvalidSetting, match=says):
            async with serving(database, **options):
                pass


def test_a_client_checks_its_files_when_it_is_made(files: Files, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    for options, says in (
        ({"ca": tmp_path / "none"}, "cannot be read"),
        ({"ca": tmp_path / "text"}, "not in PEM format"),
        ({"certificate": files.client_cert}, "needed together"),
    ):
        with pytest.raises(InvalidInput, match=says):
            Headgate("https://queue", **options)
    with pytest.raises(InvalidInput, match="no address is by TLS"):
        Headgate("queue", ca=files.ca)
