"""The injectors: each does what it says, heals, and says clearly when this machine cannot do it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

import asyncpg
import pytest

from tests.fault.lab.inject import CannotInject, need
from tests.fault.lab.inject.databases import HostileLock, LeakedConnections, PinnedXmin, ReadOnlyDatabase
from tests.fault.lab.inject.disks import SmallDisk
from tests.fault.lab.inject.networks import Island
from tests.fault.lab.inject.processes import (
    FalseClock,
    FewDescriptors,
    Freezer,
    LogPipe,
    MemoryLimit,
    Stopped,
    state_of,
    tree,
)
from tests.support.waiting import until

TICKER = "import time\nwhile True: print(time.time(), flush=True); time.sleep(0.02)"


def possible(make: type, *arguments: object, **named: object) -> object:
    """Inject, or skip loudly."""
    try:
        return make(*arguments, **named)
    except CannotInject as reason:
        pytest.skip(f"{make.__name__} IS NOT TESTED on this machine: {reason}")


def started(*command: str, stdout: IO[bytes] | int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL, start_new_session=True
    )


class Ticker:
    """A shell and its child, which writes a line every moment; and another one beside it, which no one touches."""

    def __init__(self, folder: Path) -> None:
        self._log, self._others = folder / "ticks", folder / "other-ticks"
        self._process, self._other = self._start(self._log), self._start(self._others)
        self.pid = self._process.pid

    def _start(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            process = started("/bin/sh", "-c", f'"{sys.executable}" -c "$0" & wait', TICKER, stdout=file)
        until(lambda: log.stat().st_size > 0, "it ticks")
        return process

    def stands_still(self) -> bool:
        """Whether it writes nothing while the other one writes some lines."""
        before, others = self._log.stat().st_size, self._others.stat().st_size
        until(lambda: self._others.stat().st_size > others + 100, "the other one ticks")
        return self._log.stat().st_size == before

    def goes_on(self) -> None:
        """Wait for its next line."""
        before = self._log.stat().st_size
        until(lambda: self._log.stat().st_size > before, "it ticks again")

    def end(self) -> None:
        for root in (self._process, self._other):
            for pid in tree(root.pid):
                os.kill(pid, signal.SIGKILL)
            root.wait(10)


@pytest.fixture
def ticker(tmp_path: Path) -> Iterator[Ticker]:
    made = Ticker(tmp_path)
    yield made
    made.end()


# ---------------------------------------------------------------------- processes


def test_a_whole_tree_is_stopped_and_continues(ticker: Ticker) -> None:
    assert len(tree(ticker.pid)) == 2
    with Stopped(ticker.pid):
        until(lambda: [state_of(pid) for pid in tree(ticker.pid)] == ["T", "T"], "both are stopped")
        assert ticker.stands_still()
    ticker.goes_on()


def test_a_tree_is_frozen_by_the_freezer_and_continues(ticker: Ticker) -> None:
    freezer = possible(Freezer, tree(ticker.pid))
    assert isinstance(freezer, Freezer)
    with freezer:
        freezer.freeze()
        assert ticker.stands_still()
        freezer.thaw()
        ticker.goes_on()
        freezer.freeze()
    ticker.goes_on()
    assert not freezer.path.exists()


def test_a_process_that_takes_too_much_memory_is_killed_by_the_kernel() -> None:
    limit = possible(MemoryLimit, 64 << 20)
    assert isinstance(limit, MemoryLimit)
    with limit:
        frugal = started(*limit.prefix, sys.executable, "-c", "x = bytearray(1 << 20)")
        assert frugal.wait(20) == 0
        greedy = started(*limit.prefix, sys.executable, "-c", "x = [bytearray(b'x' * (1 << 20)) for _ in range(500)]")
        assert greedy.wait(20) == -signal.SIGKILL
        assert limit.kills >= 1
    assert not limit.path.exists()


def test_a_process_with_few_descriptors_opens_no_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = """
import time
files = []
while True:
    try:
        open('/dev/null'); print('fine', flush=True)
    except OSError as error:
        print(error.errno, flush=True)
    time.sleep(0.02)
"""
    with log.open("wb") as file:
        process = started(sys.executable, "-c", code, stdout=file)
    try:
        until(lambda: "fine" in log.read_text(), "it opens files")
        with FewDescriptors(process.pid, FewDescriptors.open_now(process.pid)):
            until(lambda: "24" in log.read_text().splitlines()[-1:], "it gets EMFILE")
        until(lambda: log.read_text().splitlines()[-1] == "fine", "it opens files again")
    finally:
        process.kill()
        process.wait(10)


def test_a_process_with_a_skewed_clock_uses_it_and_follows_its_changes(tmp_path: Path) -> None:
    clock = possible(FalseClock, tmp_path, offset=3600)
    assert isinstance(clock, FalseClock)
    log = tmp_path / "log"
    code = "import time\nwhile True: print(time.time(), time.monotonic(), flush=True); time.sleep(0.02)"
    with log.open("wb") as file:
        process = started(*clock.prefix, sys.executable, "-c", code, stdout=file)
    try:

        def ahead() -> float:
            lines = log.read_text().splitlines()
            return float(lines[-2].split()[0]) - time.time() if len(lines) > 2 else 0.0

        until(lambda: abs(ahead() - 3600) < 60, "it is an hour ahead")
        shown = float(log.read_text().splitlines()[0].split()[1])
        assert abs(shown - time.monotonic()) < 60
        clock.set(-86400)
        until(lambda: abs(ahead() + 86400) < 60, "it is a day behind")
        clock.heal()
        until(lambda: abs(ahead()) < 60, "it is right again")
    finally:
        process.kill()
        process.wait(10)


def test_a_log_pipe_is_closed_under_its_writer(tmp_path: Path) -> None:
    pipe = LogPipe(tmp_path)
    log, note = tmp_path / "log", tmp_path / "note"
    code = f"""
import sys, time
while True:
    try:
        sys.stdout.write('line\\n'); sys.stdout.flush()
    except BrokenPipeError:
        open({str(note)!r}, 'w').write('broken')
    time.sleep(0.02)
"""
    with log.open("wb") as file:
        process = started(*pipe.prefix, sys.executable, "-c", code, stdout=file)
    try:
        until(lambda: "line" in log.read_text(), "it is read")
        pipe.close()
        until(note.exists, "the writer noticed")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(10)


# ---------------------------------------------------------------------- disks


def test_a_small_disk_fills_up_and_has_space_again() -> None:
    disk = possible(SmallDisk, 4 << 20)
    assert isinstance(disk, SmallDisk)
    with disk:
        (disk.path / "file").write_bytes(b"x" * 1000)
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "other").write_bytes(b"x" * 10_000)
        disk.free()
        (disk.path / "other").write_bytes(b"x" * 10_000)
        disk.fill(leave=1 << 20)
        assert 0 < disk.free_bytes <= 1 << 20
    assert not disk.path.exists()


# ---------------------------------------------------------------------- links

SERVER = """
import socket, sys
s = socket.create_server((sys.argv[1], 0)); print(s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    while data := c.recv(65536): c.sendall(data)
"""


@pytest.fixture(scope="module")
def island() -> Iterator[Island]:
    made = possible(Island)
    assert isinstance(made, Island)
    with made:
        yield made


@pytest.fixture
def echo(island: Island, tmp_path: Path) -> Iterator[int]:
    log = tmp_path / "port"
    with log.open("wb") as file:
        process = started(*island.prefix, sys.executable, "-c", SERVER, island.inside, stdout=file)
    until(lambda: log.read_text().endswith("\n"), "it listens")
    yield int(log.read_text())
    island.heal_link()
    process.kill()
    process.wait(10)


def connected(island: Island, port: int) -> socket.socket:
    return socket.create_connection((island.inside, port), timeout=10)


def answered(client: socket.socket, data: bytes, *, within: float = 10.0) -> bool:
    client.settimeout(within)
    threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
    left = len(data)
    try:
        while left:
            left -= len(client.recv(65536))
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("toward", [None, "inside", "outside"])
def test_a_cut_wire_is_silent_and_what_was_sent_arrives_when_it_heals(
    island: Island, echo: int, toward: str | None
) -> None:
    with closing(connected(island, echo)) as client:
        assert answered(client, b"x")
        island.drop(toward=toward)  # type: ignore[arg-type]
        assert not answered(client, b"y", within=0.4)
        island.heal_link()
        client.settimeout(10)
        assert client.recv(1) == b"y"


def test_a_lossy_wire_is_slower_and_loses_nothing(island: Island, echo: int) -> None:
    with closing(connected(island, echo)) as client:
        island.lose(percent=20)
        assert answered(client, b"x" * 200_000, within=60)


def test_a_narrow_wire_takes_its_time(island: Island, echo: int) -> None:
    with closing(connected(island, echo)) as client:
        island.narrow(kbit=400)
        began = time.monotonic()
        assert answered(client, b"x" * 30_000)
        assert time.monotonic() - began > 0.2


def test_a_port_alone_can_be_cut(island: Island, echo: int) -> None:
    with closing(connected(island, echo)) as client:
        island.drop(port=echo + 1 if echo < 65535 else echo - 1)
        assert answered(client, b"x")
        island.drop(port=echo)
        assert not answered(client, b"y", within=0.3)


# ---------------------------------------------------------------------- databases


async def test_rows_and_tables_are_held_against_others(database: str) -> None:
    db = await asyncpg.connect(database)
    await db.execute("CREATE TABLE public.held AS SELECT n FROM generate_series(1, 3) n")
    await db.execute("SET lock_timeout = '50ms'")
    async with HostileLock(database) as lock:
        assert await lock.rows("SELECT n FROM public.held WHERE n < $1", 3) == 2
        with pytest.raises(asyncpg.LockNotAvailableError):
            await db.execute("UPDATE public.held SET n = 0 WHERE n = 1")
        await db.execute("UPDATE public.held SET n = 0 WHERE n = 3")
        await lock.heal()
        await db.execute("UPDATE public.held SET n = 1 WHERE n = 1")
        await lock.table("public.held")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await db.fetch("SELECT n FROM public.held")
    assert len(await db.fetch("SELECT n FROM public.held")) == 3
    await db.close()


async def test_old_rows_are_pinned(database: str) -> None:
    db = await asyncpg.connect(database)
    async with PinnedXmin(database) as pin:
        oldest = await pin.pin()
        for _ in range(3):
            await db.execute("CREATE TABLE public.some (n int); DROP TABLE public.some")
        assert await db.fetchval("SELECT txid_current()") > oldest
        kept = "SELECT min(backend_xmin::text::bigint) FROM pg_stat_activity WHERE datname = current_database()"
        assert await db.fetchval(f"{kept} AND pid <> pg_backend_pid()") == oldest
    await db.close()


async def test_connections_are_leaked_and_given_back(database: str) -> None:
    db = await asyncpg.connect(database)
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1"
    async with LeakedConnections(database) as leak:
        assert await leak.leak(most=5) == 5
        assert await db.fetchval(mine, "headgate lab") == 5
    until_ = datetime.now(UTC) + timedelta(seconds=10)
    while await db.fetchval(mine, "headgate lab"):
        assert datetime.now(UTC) < until_
    await db.close()


async def test_a_database_is_read_only_until_it_heals(database: str) -> None:
    async with ReadOnlyDatabase(database) as fault:
        await fault.set()
        db = await asyncpg.connect(database)
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await db.execute("CREATE TABLE public.some (n int)")
        await db.close()
    db = await asyncpg.connect(database)
    await db.execute("CREATE TABLE public.some (n int)")
    await db.close()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(CannotInject, match="not installed: no-such-program"):
        need("sh", "no-such-program")
