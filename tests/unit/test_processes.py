"""The start message of the parent of several processes, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import warnings
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgate.cli.serve_many import start_message
from headgate.cli.serve_process import options_of
from headgate.domain.errors import InvalidSetting
from headgate.ops import child, supervisor
from headgate.ops.balance import surplus
from headgate.ops.child import END_SECONDS, Parent
from headgate.ops.port import ReservedPort, listening_sockets
from headgate.ops.supervisor import (
    FIRST_DELAY,
    LONGEST_DELAY,
    PROCESSES_MAX,
    STEADY_SECONDS,
    ProcessSupervisor,
    check_processes,
)
from headgate.server import ServerOptions

LOG_OPTIONS = {"log_level": "INFO", "log_format": "json"}


@pytest.mark.parametrize("number", [0, -1, PROCESSES_MAX + 1])
def test_a_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(InvalidSetting, match=f"--processes: is {number}"):
        check_processes(number)


@pytest.mark.parametrize("number", [1, 2, PROCESSES_MAX])
def test_others_are_taken(number: int) -> None:
    assert check_processes(number) == number


def test_several_are_refused_where_the_kernel_does_not_distribute_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert check_processes(1) == 1
    with pytest.raises(InvalidSetting, match="Linux"):
        check_processes(2)


def test_the_start_message_carries_every_option_through_plain_json() -> None:
    options: dict[str, object] = {
        "database_url": "postgresql://a:b@c/d",
        "direct_database_url": None,
        "host": "::1",
        "port": 7071,
        "tls_cert": Path("/a/b.pem"),
        "tokens_file": None,
        "insecure": True,
        "lease": timedelta(seconds=2.5),
        "grace": timedelta(seconds=90),
        "dev": True,
        "name": "box",
        "version": "1.2.3",
    }
    message = json.loads(json.dumps(start_message(options, number=2, log_options=LOG_OPTIONS)))
    assert options_of(message) == ServerOptions(**{**options, "name": "box-2", "shared_port": True, "process": 2})  # type: ignore[arg-type]
    assert (message["number"], message["log_level"], message["log_format"]) == (2, "INFO", "json")


def test_without_a_name_each_process_has_that_of_its_own_pid() -> None:
    message = start_message({"database_url": "postgresql://c/d", "name": ""}, number=1, log_options=LOG_OPTIONS)
    assert options_of(message).name == ""


def test_a_reserved_port_refuses_clients_and_other_reservations_but_not_shared_listeners() -> None:
    reserved = ReservedPort("127.0.0.1", 0)
    where = ("127.0.0.1", reserved.number)
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(where, timeout=5)
        with pytest.raises(InvalidSetting, match="cannot listen on"):
            ReservedPort(*where)
        with socket.create_server(where, reuse_port=True), socket.create_server(where, reuse_port=True):
            socket.create_connection(where, timeout=5).close()
            with pytest.raises(InvalidSetting, match="cannot listen on"):
                ReservedPort(*where)
    finally:
        reserved.close()
    ReservedPort(*where).close()  # connections in TIME_WAIT do not keep it


def test_a_name_for_several_addresses_gets_one_number() -> None:
    reserved = ReservedPort("localhost", 0)
    try:
        assert reserved.number > 0
        with pytest.raises(InvalidSetting):
            ReservedPort("127.0.0.1", reserved.number)
    finally:
        reserved.close()


def test_every_address_of_a_name_gets_the_same_number_or_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["127.0.0.1", "127.0.0.2"]
    kind = (socket.SOCK_STREAM, 6, "")
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, *kind, (host, 0)) for host in addresses]
    )
    both = listening_sockets("both", 0, shared=False)
    ((_, number), (_, other)) = (one.getsockname() for one in both)
    assert number == other
    with socket.socket() as holder, warnings.catch_warnings():
        warnings.simplefilter("error")  # a socket that is left open
        for one in both:
            one.close()
        holder.bind(("127.0.0.2", number))
        holder.listen()
        with pytest.raises(InvalidSetting, match=f"cannot listen on both:{number}"):
            listening_sockets("both", number, shared=False)
        addresses.pop()
        for one in listening_sockets("both", number, shared=False):
            one.close()
        addresses.append("127.0.0.3")
        reserved = ReservedPort("both", number)
        with pytest.raises(InvalidSetting):
            ReservedPort("both", number)
        reserved.close()
        ReservedPort("both", number).close()


def test_a_reservation_is_refused_by_the_name_of_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(InvalidSetting, match="--http-port: "):
        ReservedPort("127.0.0.1", other.getsockname()[1], setting="--http-port")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_all_addresses_of_one_family_leave_the_other_family_free() -> None:
    (six,) = listening_sockets("::", 0, shared=False)
    number = six.getsockname()[1]
    six.listen()
    (four,) = listening_sockets("0.0.0.0", number, shared=False)  # noqa: S104 -- for an instant
    for one in (six, four):
        one.close()


def test_an_address_that_is_not_ours_or_no_address_is_refused() -> None:
    for host in ("192.0.2.1", "no such host"):
        with pytest.raises(InvalidSetting, match="--port"):
            ReservedPort(host, 0)


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        ({}, {}),
        ({1: 0, 2: 0}, {}),
        ({1: 2, 2: 0}, {}),  # chance, and too few to matter
        ({1: 30, 2: 34}, {}),
        ({1: 24, 2: 0}, {1: 12}),
        ({1: 12, 2: 11, 3: 0}, {1: 4, 2: 3}),
        ({1: 40, 2: 44, 3: 0, 4: 40}, {1: 9, 2: 13, 4: 9}),  # one was started again
        ({1: 90, 2: 0, 3: 0}, {1: 60}),
        ({1: 100}, {}),
    ],
)
def test_sessions_are_moved_when_one_has_far_more_or_less_than_its_share(
    sessions: dict[int, int], expected: dict[int, int]
) -> None:
    assert surplus(sessions) == expected


def test_moving_sessions_comes_to_an_end() -> None:
    chance = random.Random(1)
    for processes in (2, 3, 4, 8):
        sessions = dict.fromkeys(range(1, processes + 1), 0) | {1: 200}
        for _ in range(20):
            moves = surplus(sessions)
            if not moves:
                break
            for number, moved in moves.items():
                sessions[number] -= moved
                for _ in range(moved):
                    sessions[chance.randint(1, processes)] += 1
        else:
            raise AssertionError(f"{processes} processes: {sessions} after many rounds")
        assert sum(sessions.values()) == 200


# --- what the parent does when children die, and what a child reads from its parent


async def test_waits_before_a_restart_grow_to_half_a_minute_and_begin_again_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = ProcessSupervisor(["true"], lambda _: {}, number=1, grace=0)
    parent._ready.set()
    now, pauses = 0.0, list[float]()

    async def dies(_: object) -> int:
        nonlocal now
        now += STEADY_SECONDS + 0.001 if len(pauses) == 10 else 0.1
        return 1

    async def paused(waiting: Coroutine[object, object, object], seconds: float) -> None:
        waiting.close()
        pauses.append(seconds)
        if len(pauses) == 11:
            parent._stopping.set()
        raise TimeoutError

    monkeypatch.setattr(parent, "_run_child", dies)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(supervisor, "asyncio", SimpleNamespace(wait_for=paused))
    await parent._supervise(parent._children[0])
    expected = [min(LONGEST_DELAY, FIRST_DELAY * 2**n) for n in range(10)] + [FIRST_DELAY]
    assert pauses == [pytest.approx(delay, rel=0.25) for delay in expected]


async def test_a_child_reads_messages_that_arrive_in_parts_and_ends_when_its_parent_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [
        b'{"type": "lis',
        b'ten"}\n{"type": "move_sessions", "count": 3}\n{"type"',
        b': "move_sessions", "count": 4}\n',
        b"",
    ]
    done: list[object] = []
    system = SimpleNamespace(
        read=lambda fd, most: parts.pop(0),
        kill=lambda pid, number: done.append(number),
        getpid=lambda: 1,
        _exit=lambda code: done.append(code),
    )
    monkeypatch.setattr(child, "os", system)
    monkeypatch.setattr(child, "time", SimpleNamespace(sleep=done.append))
    moved: list[int] = []
    parent = Parent.__new__(Parent)
    parent._loop, parent._listen, parent._on_move = asyncio.get_running_loop(), asyncio.Event(), moved.append
    parent._read(7.0)
    await asyncio.wait_for(parent._listen.wait(), 10)
    await asyncio.sleep(0)
    assert moved == [3, 4]
    assert done == [signal.SIGTERM, 7.0 + END_SECONDS, 1], "it must end even if its event loop hangs"
