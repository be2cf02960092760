"""The embedded server against real binaries, processes and kills: starts, stops, crashes, and folders in use."""

from __future__ import annotations

import os
import signal
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
    User,
    ask,
    copied,
    end,
    gone,
    introduced,
    on_made_data,
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
    cluster.stop()  # a second call does nothing
    with pytest.raises(EmbeddedPostgresError, match="call start again"):
        cluster.restart()


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
    guardian = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guardian, signal.SIGKILL)
    until(lambda: gone(guardian), "the guardian is dead")
    second = begin()
    assert second.pid == pid
    first.stop()
    assert not gone(pid)
    second.stop()
    until(lambda: gone(pid), "the server has ended")


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
    first.stop()
    until(lambda: gone(pid), "the server without a folder is gone")
    assert second.pid is not None
