"""The embedded server against real binaries, processes and kills: starts, stops, crashes, and folders in use."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from headgate.domain.errors import EmbeddedPostgresError
from headgate.embedded import (
    Cluster,
    find_binaries,
    start,
)
from headgate.embedded.locks import FileLock
from tests.integration.embedded.clusters import (
    COUNT,
    KEEP,
    SMALL,
    User,
    ask,
    copied,
    end,
    gone,
    introduced,
    on_made_data,
    parent_of,
    remove,
    running_pid,
    spawned,
    with_proc,
)
from tests.support.waiting import until


async def test_a_first_start_makes_a_database_that_answers(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    assert await ask(cluster.dsn(), "SELECT current_user::text") == "headgate"
    assert await ask(cluster.dsn(), "SHOW server_version") == cluster.version
    assert await ask(cluster.dsn(), "SHOW server_encoding") == "UTF8"
    assert await ask(cluster.dsn(), "SHOW data_checksums") == "on"
    for secret in ("password", "postgres.log"):
        assert (cluster.data / secret).stat().st_mode & 0o777 == 0o600
    await ask(cluster.dsn(), 'CREATE DATABASE "odd name/?&"')
    assert await ask(cluster.dsn("odd name/?&"), "SELECT current_database()::text") == "odd name/?&"


async def test_nothing_that_protects_acknowledged_work_is_switched_off(data: Path) -> None:
    with start(data) as cluster:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            assert await ask(cluster.dsn(), f"SHOW {setting}") == "on"


@on_made_data
async def test_a_restart_keeps_the_data_and_the_address(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    await ask(cluster.dsn(), *KEEP)
    before, first = cluster.dsn(), cluster.pid
    cluster.restart()
    assert (cluster.dsn(), cluster.pid == first) == (before, False)
    assert await ask(before, COUNT) == 1000
    cluster.stop()
    again = begin()
    assert again.dsn() == before
    assert await ask(before, COUNT) == 1000


@on_made_data
def test_ctrl_c_in_the_terminal_does_not_reach_the_server(begin: Callable[..., Cluster]) -> None:
    pid = running_pid(begin())
    assert os.getsid(pid) != os.getsid(0)
    assert os.getpgid(pid) != os.getpgid(0)


@on_made_data
def test_stop_leaves_no_process_and_no_socket(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    pid = running_pid(cluster)
    cluster.stop()
    assert gone(pid)
    assert cluster.pid is None
    assert not cluster.socket_dir.exists()
    with FileLock(cluster.data / "guardian.lock") as lock:
        assert lock.try_exclusive(), "its guardian has ended, too"
    cluster.stop()  # a second call does nothing
    with pytest.raises(EmbeddedPostgresError, match="call start again"):
        cluster.restart()


# Its child, a copy made by fork without an exec, stops the cluster.
FORKED = """
import json, os, sys
from pathlib import Path
from headgate.embedded import start
cluster = start(Path(sys.argv[1]), settings=json.loads(sys.argv[2]))
before = cluster.pid
if (child := os.fork()) == 0:
    cluster.stop()
    os._exit(0)
os.waitpid(child, 0)
print(json.dumps([before, cluster.pid]))
cluster.stop()
"""


def test_a_forked_copy_that_stops_leaves_the_server_to_its_parent(data: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(data), json.dumps(SMALL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    before, after = json.loads(done.stdout)
    assert before is not None
    assert after == before
    assert gone(before), "its parent was the last user"


@on_made_data
async def test_the_server_goes_away_when_its_owner_is_killed(
    user: Callable[[], User], begin: Callable[..., Cluster]
) -> None:
    owner = user()
    await ask(owner.dsn, *KEEP)
    owner.process.kill()
    until(lambda: gone(owner.server_pid), "the server has followed its killed owner")
    assert await ask(begin().dsn(), COUNT) == 1000


@on_made_data
async def test_a_start_right_after_the_owner_was_killed_gets_a_server(
    user: Callable[[], User], begin: Callable[..., Cluster]
) -> None:
    owner = user()
    await ask(owner.dsn, *KEEP)
    owner.process.kill()  # no waiting: joins the old server or waits out its stop, whichever comes first
    cluster = begin()
    assert await ask(cluster.dsn(), COUNT) == 1000
    assert not gone(running_pid(cluster))


@on_made_data
async def test_a_killed_server_recovers_all_committed_work(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    await ask(cluster.dsn(), *KEEP)
    os.kill(running_pid(cluster), signal.SIGKILL)
    cluster.restart()
    assert await ask(cluster.dsn(), COUNT) == 1000
    os.kill(running_pid(cluster), signal.SIGKILL)  # and once more, through a fresh start
    other = begin()
    assert await ask(other.dsn(), COUNT) == 1000


@on_made_data
def test_a_restart_on_a_port_that_another_program_has_taken_ends_in_time_and_quotes_the_server(
    begin: Callable[..., Cluster],
) -> None:
    cluster = begin(tcp=True)
    os.kill(running_pid(cluster), signal.SIGKILL)
    until(lambda: not cluster.socket_dir.exists(), "the guardian has removed the socket of the killed server")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", cluster.port))
        other.listen()
        with pytest.raises(EmbeddedPostgresError, match="could not create any TCP/IP sockets"):
            cluster.restart(wait=timedelta(seconds=1))
    before = cluster.dsn()
    cluster.restart()
    assert cluster.dsn() == before


async def test_a_reused_pid_in_a_stale_pid_file_does_not_block_the_start(
    data: Path, begin: Callable[..., Cluster]
) -> None:
    cluster = begin()
    await ask(cluster.dsn(), *KEEP)
    os.kill(running_pid(cluster), signal.SIGKILL)
    until(lambda: cluster.pid is None, "the server is dead")
    pid_file = data / "pgdata" / "postmaster.pid"
    _, rest = pid_file.read_text().split("\n", 1)
    pid_file.write_text(f"{os.getppid()}\n{rest}")
    cluster.restart()
    assert await ask(cluster.dsn(), COUNT) == 1000


@on_made_data
def test_a_shared_server_lives_until_its_last_user_leaves(
    user: Callable[[], User], begin: Callable[..., Cluster]
) -> None:
    first, second = user(), user()
    third = begin()
    assert first.server_pid == second.server_pid == third.pid
    first.leave()
    assert not gone(second.server_pid)
    second.process.kill()
    second.process.wait(30)
    third.restart()  # still ours alone to command
    pid = running_pid(third)
    third.stop()
    assert gone(pid)


def test_four_first_starts_at_once_make_one_database(fresh: Path) -> None:
    processes = [spawned(fresh) for _ in range(4)]
    try:
        users = [introduced(process) for process in processes]
        assert len({user.server_pid for user in users}) == 1
        assert (fresh / "postgres.log").read_text().count("ready to accept connections") == 1
        assert not list(fresh.glob("pgdata.draft-*"))
        for user in users:
            user.leave()
        assert gone(users[0].server_pid)
    finally:
        for process in processes:
            end(process)


@with_proc
@on_made_data
def test_a_server_whose_guardian_was_killed_gets_a_new_one(begin: Callable[..., Cluster]) -> None:
    first = begin()
    pid = running_pid(first)
    guardian = parent_of(pid)
    os.kill(guardian, signal.SIGKILL)
    until(lambda: gone(guardian), "the guardian is dead")
    second = begin()
    assert second.pid == pid
    first.stop()
    assert not gone(pid)
    second.stop()
    until(lambda: gone(pid), "the server has ended")


@with_proc
@on_made_data
async def test_a_guardian_that_is_asked_to_end_stops_its_server_before(begin: Callable[..., Cluster]) -> None:
    """As on a machine that shuts down, with users that are still there."""
    cluster = begin()
    pid = running_pid(cluster)
    os.kill(parent_of(pid), signal.SIGTERM)
    until(lambda: gone(pid), "the server has ended")
    until(lambda: not cluster.socket_dir.exists(), "its socket is removed")
    assert "database system is shut down" in cluster.log.read_text().splitlines()[-1]
    cluster.restart()
    assert await ask(cluster.dsn(), "SELECT 1") == 1


def test_a_start_waits_while_another_holds_the_folder_elsewhere(data: Path, begin: Callable[..., Cluster]) -> None:
    """A guardian in another container: its lock is seen from here, its server is not."""
    begin().stop()
    with FileLock(data / "guardian.lock") as elsewhere:
        assert elsewhere.try_exclusive()
        with pytest.raises(EmbeddedPostgresError, match="another container"):
            begin(wait=timedelta(seconds=0.2))


def test_data_of_another_major_version_is_refused_with_an_explanation(
    data: Path, begin: Callable[..., Cluster]
) -> None:
    begin().stop()
    (data / "pgdata" / "PG_VERSION").write_text("11\n")
    found = find_binaries()
    with pytest.raises(EmbeddedPostgresError) as refusal:
        begin()
    assert f"was created by PostgreSQL 11, but the binaries found are {found.major}" in str(refusal.value)
    assert "HEADGATE_POSTGRES_BIN" in str(refusal.value)
    assert str(data) in str(refusal.value)


def test_a_half_made_init_is_thrown_away(fresh: Path, begin: Callable[..., Cluster]) -> None:
    def killed_halfway() -> bool:
        remove(fresh)
        process = spawned(fresh)
        try:
            until(lambda: list(fresh.glob("pgdata*")), "initdb is at work")
        finally:
            end(process)
        return not (fresh / "pgdata").exists()  # on a busy machine the kill may come too late: then once more

    until(killed_halfway, "an init was killed halfway")
    (fresh / "password").write_text("of one that was killed a moment later")
    begin()
    assert not list(fresh.glob("pgdata.draft-*"))


async def test_a_copied_folder_runs_beside_its_original(data: Path, begin: Callable[..., Cluster]) -> None:
    original = begin()
    await ask(original.dsn(), *KEEP)
    original.stop()
    copy = data.with_name("copy")
    copied(data, copy)
    again, twin = begin(), begin(copy)
    assert again.dsn() != twin.dsn()
    await ask(again.dsn(), "DELETE FROM kept")
    assert await ask(twin.dsn(), COUNT) == 1000


def test_a_folder_removed_under_its_server_can_be_created_again_at_once(
    data: Path, begin: Callable[..., Cluster]
) -> None:
    first = begin()
    pid = running_pid(first)
    remove(data)
    second = begin()
    assert second.pid not in (None, pid)
    with pytest.raises(EmbeddedPostgresError, match="was removed while its server was running; call start again"):
        first.restart()
    first.stop()
    until(lambda: gone(pid), "the server without a folder is gone")
    assert second.pid is not None
