"""The fault proxy, with real sockets and a real PostgreSQL: what it does to a link is what it says."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from headgate import Headgate
from tests.fault.history import submit
from tests.fault.lab.pgwire import StatementWatch
from tests.fault.lab.proxy import FaultProxy
from tests.fault.lab.proxy_connections import CLIENT, SERVER
from tests.fault.lab.proxy_control import Control
from tests.support.server import ServerProcess
from tests.support.waiting import until

LONG = 10.0


class Echo:
    """Says back what it hears; notes it, and how each connection ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard = bytearray()
        self.ends: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        with closing(peer):
            try:
                while data := peer.recv(65536):
                    self.heard += data
                    peer.sendall(data)
                self.ends.append("end")
            except OSError as error:
                self.ends.append(type(error).__name__)

    def close(self) -> None:
        with suppress(OSError):  # twice
            self._listener.shutdown(socket.SHUT_RDWR)  # or it would listen on while the thread waits in accept
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port, seed=7) as proxy:
        yield proxy


def connected(proxy: FaultProxy) -> socket.socket:
    client = socket.create_connection((proxy.host, proxy.port), timeout=LONG)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def said(client: socket.socket, number: int) -> bytes:
    got = bytearray()
    while len(got) < number:
        data = client.recv(number - len(got))
        if not data:
            break
        got += data
    return bytes(got)


def nothing_comes(client: socket.socket, seconds: float = 0.2) -> bool:
    client.settimeout(seconds)
    try:
        return client.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        client.settimeout(LONG)


# ---------------------------------------------------------------------- bytes


def test_a_good_link_passes_everything_and_both_ends(proxy: FaultProxy, echo: Echo) -> None:
    data = bytes(range(256)) * 4096
    with closing(connected(proxy)) as client:
        threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
        assert said(client, len(data)) == data
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    until(lambda: echo.ends == ["end"], "the server saw the end")
    until(lambda: proxy.open == 0, "the proxy has closed it")
    assert proxy.passed(SERVER) == proxy.passed(CLIENT) == len(data)


def test_latency_is_added_in_each_direction_and_keeps_the_order(proxy: FaultProxy) -> None:
    proxy.worsen(latency=0.1, jitter=0.05)
    with closing(connected(proxy)) as client:
        began = time.monotonic()
        for number in range(20):
            client.sendall(bytes([number]))
        assert said(client, 20) == bytes(range(20))
        assert time.monotonic() - began >= 0.1


def test_bandwidth_bounds_how_much_passes(proxy: FaultProxy) -> None:
    proxy.worsen(toward=SERVER, bandwidth=100_000)
    with closing(connected(proxy)) as client:
        began = time.monotonic()
        client.sendall(b"x" * 50_000)
        said(client, 50_000)
        assert time.monotonic() - began >= 0.4


def test_slices_are_what_the_server_reads(proxy: FaultProxy, echo: Echo) -> None:
    proxy.worsen(toward=CLIENT, slice=10)
    with closing(connected(proxy)) as client:
        client.sendall(b"x" * 10_000)  # a second of slices
        assert len(client.recv(20_000)) < 10_000  # some may meet in the kernel
        said(client, 1)


def test_what_is_held_in_one_direction_arrives_when_it_heals(proxy: FaultProxy, echo: Echo) -> None:
    proxy.hold(toward=CLIENT)
    with closing(connected(proxy)) as client:
        client.sendall(b"question")
        until(lambda: bytes(echo.heard) == b"question", "the other direction is open")
        assert nothing_comes(client)
        proxy.heal()
        assert said(client, 8) == b"question"


def test_bytes_held_on_their_way_to_the_server_do_not_arrive(proxy: FaultProxy, echo: Echo) -> None:
    proxy.hold(toward=SERVER)
    with closing(connected(proxy)) as client:
        client.sendall(b"question")
        assert nothing_comes(client)
        assert not echo.heard
        proxy.heal()
        assert said(client, 8) == b"question"


def test_what_is_swallowed_is_lost_and_its_connection_is_reset_by_healing(proxy: FaultProxy, echo: Echo) -> None:
    with closing(connected(proxy)) as client, closing(connected(proxy)) as innocent:
        client.sendall(b"before")
        assert said(client, 6) == b"before"
        innocent.sendall(b"x")
        assert said(innocent, 1) == b"x"
        proxy.swallow(toward=CLIENT)
        client.sendall(b"lost")
        until(lambda: bytes(echo.heard).endswith(b"lost"), "the server has heard it")
        assert nothing_comes(client)
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        innocent.sendall(b"y")
        assert said(innocent, 1) == b"y"


def test_a_reset_is_a_reset_for_both(proxy: FaultProxy, echo: Echo) -> None:
    with closing(connected(proxy)) as client:
        client.sendall(b"x")
        said(client, 1)
        assert proxy.reset() == 1
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    until(lambda: echo.ends == ["ConnectionResetError"], "the server saw it too")


def test_a_link_is_cut_after_so_many_bytes(proxy: FaultProxy, echo: Echo) -> None:
    proxy.worsen(toward=SERVER, cut_after=5)
    with closing(connected(proxy)) as client:
        client.sendall(b"123456789")
        until(lambda: len(echo.ends) == 1, "it is over")
        assert bytes(echo.heard) == b"12345"


@pytest.mark.parametrize(("when", "heard"), [("before", b"a"), ("forwarded", b"a--COMMIT")])
def test_a_link_is_cut_where_a_pattern_passes_across_two_pieces(
    proxy: FaultProxy, echo: Echo, when: str, heard: bytes
) -> None:
    with closing(connected(proxy)) as client:
        client.sendall(b"a")
        assert said(client, 1) == b"a"
        cut = proxy.cut("COMMIT", when=when)  # type: ignore[arg-type]
        if when == "forwarded":
            client.sendall(b"--COM")
            assert said(client, 5) == b"--COM"
            client.sendall(b"MIT--")
        else:
            client.sendall(b"--COMMIT--")
        until(lambda: len(echo.ends) == 1, "it is over")
        assert bytes(echo.heard) == heard
        assert cut.struck == 1
    with closing(connected(proxy)) as client:  # once was asked for
        client.sendall(b"COMMIT")
        assert said(client, 6) == b"COMMIT"


def test_the_answer_of_what_matched_never_passes(proxy: FaultProxy, echo: Echo) -> None:
    proxy.cut("COMMIT", when="answered")
    with closing(connected(proxy)) as client:
        client.sendall(b"COMMIT--")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    until(lambda: bytes(echo.heard) == b"COMMIT--", "it was heard")


def test_new_connections_are_refused_until_it_heals_and_old_ones_live(proxy: FaultProxy) -> None:
    with closing(connected(proxy)) as client:
        client.sendall(b"x")
        said(client, 1)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
        client.sendall(b"y")
        assert said(client, 1) == b"y"
        proxy.heal()
        with closing(connected(proxy)) as other:
            other.sendall(b"z")
            assert said(other, 1) == b"z"


def test_a_recorded_client_is_replayed(echo: Echo) -> None:
    with FaultProxy("127.0.0.1", echo.port, record=True) as proxy:
        with closing(connected(proxy)) as client:
            for word in (b"one ", b"two ", b"three"):
                client.sendall(word)
                said(client, len(word))
        assert proxy.replay(proxy.made[0], listen=2) == b"one two three"
    assert bytes(echo.heard) == b"one two three" * 2


def test_a_server_that_is_not_there_is_a_reset(echo: Echo) -> None:
    echo.close()
    with (
        FaultProxy("127.0.0.1", echo.port) as proxy,
        pytest.raises(ConnectionResetError),  # while it connects, or right afterwards
        closing(connected(proxy)) as client,
    ):
        client.recv(1)


def test_it_is_controlled_over_http(proxy: FaultProxy) -> None:
    with Control(proxy) as control:

        def ask(path: str, body: dict[str, object] | None = None) -> dict[str, object]:
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(f"http://{control.address}/{path}", data=data, timeout=LONG) as reply:
                answer: dict[str, object] = json.load(reply)
                return answer

        assert ask("")["open"] == 0
        answer = ask("worsen", {"latency": 0.25, "toward": "client"})
        assert answer["toward_client"]["latency"] == 0.25  # type: ignore[index]
        assert answer["toward_server"]["latency"] == 0.0  # type: ignore[index]
        ask("heal", {})
        assert proxy.quality(CLIENT).latency == 0.0
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask("worsen", {"speed": 3})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask("explode", {})


# ---------------------------------------------------------------------- PostgreSQL


def _message(kind: str, body: bytes) -> bytes:
    return kind.encode() + (len(body) + 4).to_bytes(4) + body


def test_statements_are_found_in_pieces_of_any_size() -> None:
    startup = (12).to_bytes(4) + (196608).to_bytes(4) + b"u\0x\0"
    stream = (8).to_bytes(4) + (80877103).to_bytes(4) + startup
    stream += _message("P", b"s1\0SELECT 1\0\0\0") + _message("S", b"")
    first = stream + _message("B", b"\0s1\0\0\0") + _message("E", b"\0\0\0\0\0") + _message("S", b"")
    second = first + _message("Q", b"COMMIT\0")
    for size in (1, 7, 1000):
        watch, found = StatementWatch(), []
        for start in range(0, len(second), size):
            found += [(start + end, text) for end, text in watch.feed(second[start : start + size])]
        assert found == [(len(first), "SELECT 1"), (len(second), "COMMIT")]


@pytest.fixture
def pg_proxy(database: str) -> Iterator[tuple[FaultProxy, str]]:
    """A proxy in front of the tests' PostgreSQL, which has a unix socket only; and the URL that leads through it."""
    parts = urlsplit(database)
    folder = parse_qs(parts.query)["host"][0]
    port = parse_qs(parts.query).get("port", ["5432"])[0]
    user = parts.username or parse_qs(parts.query).get("user", ["postgres"])[0]
    with FaultProxy(unix=f"{folder}/.s.PGSQL.{port}") as proxy:
        yield proxy, f"postgresql://{user}@{proxy.address}{parts.path}?sslmode=disable"


@pytest.fixture
async def through(pg_proxy: tuple[FaultProxy, str]) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    db = await asyncpg.connect(pg_proxy[1], timeout=LONG)
    yield db
    db.terminate()


@pytest.mark.parametrize("when", ["before", "answered"])
async def test_a_statement_that_commits_itself_is_cut_before_or_after_its_commit(
    pg_proxy: tuple[FaultProxy, str], through: asyncpg.Connection[asyncpg.Record], database: str, when: str
) -> None:
    proxy, _ = pg_proxy
    await through.execute("CREATE TABLE public.noted (n int)")
    await through.fetch("INSERT INTO public.noted VALUES ($1)", 1)
    cut = proxy.cut("INSERT INTO public.noted", statements=True, when=when)  # type: ignore[arg-type]
    with pytest.raises((OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        await asyncio.wait_for(through.fetch("INSERT INTO public.noted VALUES ($1)", 2), LONG)
    assert cut.struck == 1
    db = await asyncpg.connect(database)
    rows = [row[0] for row in await db.fetch("SELECT n FROM public.noted ORDER BY n")]
    await db.close()
    assert rows == ([1] if when == "before" else [1, 2])


async def test_a_transaction_is_cut_right_after_its_commit(
    pg_proxy: tuple[FaultProxy, str], through: asyncpg.Connection[asyncpg.Record], database: str
) -> None:
    proxy, _ = pg_proxy
    await through.execute("CREATE TABLE public.noted (n int)")
    proxy.cut("^COMMIT", statements=True)
    with pytest.raises((OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        async with through.transaction():
            await through.fetch("INSERT INTO public.noted VALUES ($1)", 2)
    db = await asyncpg.connect(database)
    assert await db.fetchval("SELECT count(*) FROM public.noted") == 1
    await db.close()


@pytest.mark.req("F35", "I10")
async def test_a_server_that_did_not_get_the_answer_of_its_commit_submits_once(
    pg_proxy: tuple[FaultProxy, str], database: str, tmp_path: Path
) -> None:
    proxy, dsn = pg_proxy
    with ServerProcess(dsn, folder=tmp_path) as server, FaultProxy("127.0.0.1", server.port) as front:
        async with Headgate(front.address) as hg:
            await submit(hg, "first", [b"1"])
            cut = proxy.cut(r"headgate\.submit_v1", statements=True, times=2)
            ids = await submit(hg, "first", [b"2", b"3"])
            assert cut.struck == 2
        assert server.seen("submits_delayed.*may have been committed")
    db = await asyncpg.connect(database)
    rows = {row[0] for row in await db.fetch("SELECT id FROM headgate.jobs")}
    await db.close()
    assert len(rows) == 3
    assert set(ids) < rows
