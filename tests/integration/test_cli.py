"""The real `headgate` command as a process of its own: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

import asyncpg
import pytest

from headgate import embedded
from headgate.cli import main
from headgate.domain.release import version
from tests.support import forks
from tests.support.database import Server, temporary_folder
from tests.support.forks import HEADGATE
from tests.support.ports import deaf_port

MIGRATED = re.compile(r"^0001\s+base\s+new\s", re.MULTILINE)
APPLIED = re.compile(r"^0001\s+base\s+applied\s", re.MULTILINE)
PENDING = re.compile(r"^0001\s+base\s+pending\s+-$", re.MULTILINE)


class Shell:
    """Runs headgate in an empty folder, with nothing of ours in the environment but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        self.environ = {**kept, "HEADGATE_DATA": str(folder / "postgres"), "NO_COLOR": "1", "COLUMNS": "80"}

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return forks.headgate(*arguments, environ={**self.environ, **environ}, folder=self.folder)

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [HEADGATE, *arguments],
            env={**self.environ, **environ},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def shell() -> Iterator[Shell]:
    folder = temporary_folder()
    yield Shell(folder)
    shutil.rmtree(folder, ignore_errors=True)


Here: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"


@pytest.fixture
def here(shell: Shell, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """The same in this process, for what needs none of its own: a start takes half a second."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        for name in os.environ.keys() - shell.environ.keys():
            monkeypatch.delenv(name)
        for name, value in shell.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(shell.folder)
        code = main(arguments)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run


def one_line_of_error(answer: subprocess.CompletedProcess[str], code: int) -> str:
    assert answer.returncode == code, answer
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.count("\n") == 1
    assert "Traceback" not in answer.stderr
    return answer.stderr


# ---------------------------------------------------------------- usage


def test_it_tells_its_version(shell: Shell) -> None:
    answer = shell.run("--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, version())


@pytest.mark.parametrize("arguments", [[], ["--help"], ["migrate", "--help"], ["dev", "-h"]])
def test_it_shows_help(here: Here, arguments: list[str]) -> None:
    answer = here(*arguments)
    assert answer.returncode == 0
    assert "Usage: headgate" in answer.stdout
    if "migrate" in arguments:
        assert "change nothing" in answer.stdout
        assert "--no-plan" not in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["migrat"], 'unknown command "migrat"; did you mean "migrate"?'),
        (["frobnicate"], 'unknown command "frobnicate"'),
        (["migrate", "--plna"], "unknown option: --plna; did you mean --plan?"),
        (["migrate", "now"], 'unexpected "now" after "migrate"'),
        (["migrate", "--database-url"], "--database-url requires an argument"),
        (["migrate", "--database-url", "mysql://a:s3cret@h/x"], "not a PostgreSQL URL"),
        (["migrate", "--databaseurl=postgresql://a:s3cret@h/x"], "unknown option"),
        (["migrate", "postgresql://a:s3cret@h/x"], "postgresql://…@h/x"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(here: Here, arguments: list[str], text: str) -> None:
    error = one_line_of_error(here(*arguments), 2)
    assert text in error
    assert "s3cret" not in error


def test_a_setting_that_cannot_be_used_is_named_and_exit_78(shell: Shell) -> None:
    error = one_line_of_error(shell.run("migrate", HEADGATE_DATABASE_URL="mysql://a:s3cret@h/x"), 78)
    assert "HEADGATE_DATABASE_URL" in error
    assert "s3cret" not in error


# ---------------------------------------------------------------- migrate


def test_migrate_applies_then_has_nothing_to_do(shell: Shell, blank_database: str) -> None:
    first = shell.run("migrate", HEADGATE_DATABASE_URL=blank_database)
    assert first.returncode == 0, first
    assert first.stdout.splitlines()[0].split() == ["NUMBER", "NAME", "STATE", "DETAIL"]
    assert MIGRATED.search(first.stdout)
    assert "0001 base: applying" in first.stderr
    second = shell.run("migrate", HEADGATE_DATABASE_URL=blank_database)
    assert (second.returncode, second.stderr) == (0, "")
    assert APPLIED.search(second.stdout)
    assert "nothing to do" in second.stdout


def test_plan_changes_nothing(shell: Shell, blank_database: str) -> None:
    for _ in range(2):
        answer = shell.run("migrate", "--plan", "--database-url", blank_database)
        assert (answer.returncode, answer.stderr) == (0, "")
        assert PENDING.search(answer.stdout)


def test_the_option_wins_over_the_environment_and_the_direct_url_over_the_pooled_one(
    shell: Shell, blank_database: str, database: str
) -> None:
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    chosen = shell.run("migrate", "--plan", "--database-url", blank_database, HEADGATE_DATABASE_URL=nowhere)
    assert PENDING.search(chosen.stdout)
    direct = shell.run("migrate", "--plan", HEADGATE_DIRECT_DATABASE_URL=blank_database, HEADGATE_DATABASE_URL=database)
    assert PENDING.search(direct.stdout)


@pytest.mark.parametrize("command", ["migrate", "serve", "restore-fence"])
def test_a_forgotten_address_is_an_error_and_creates_no_database(shell: Shell, command: str) -> None:
    del shell.environ["HEADGATE_DATA"]
    error = one_line_of_error(shell.run(command), 78)
    assert error.startswith("error: HEADGATE_DATABASE_URL: is not set; set it, or pass --database-url")
    assert "--embedded" in error
    assert not (shell.folder / ".headgate").exists()


def test_restore_fence_prints_what_it_did_in_each_format(shell: Shell, database: str) -> None:
    given = ("restore-fence", "--database-url", database)
    done = shell.run(*given, "-o", "json")
    assert done.returncode == 0, done
    shown = json.loads(done.stdout)
    assert shown["database"].startswith('database "')
    assert (shown["jobs"], shown["instances"]) == (0, 0)
    assert "raised the epochs of 0 live jobs" in shell.run(*given).stdout
    assert shell.run(*given, "-o", "name").stdout == "", "nothing has a name"


def test_asked_to_it_migrates_the_embedded_database_and_stops_it_again(shell: Shell) -> None:
    answer = shell.run("migrate", "--embedded")
    assert answer.returncode == 0, answer
    assert MIGRATED.search(answer.stdout)
    assert "embedded PostgreSQL" in answer.stdout
    assert not list((shell.folder / "postgres").rglob("postmaster.pid"))


def test_a_server_that_is_not_there_is_exit_5_with_its_address(shell: Shell) -> None:
    with deaf_port() as port:
        url = f"postgresql://ann:s3cret@127.0.0.1:{port}/queue"
        error = one_line_of_error(shell.run("migrate", "--database-url", url), 5)
    assert f'database "queue" at 127.0.0.1:{port}' in error
    assert "s3cret" not in error


def change(server: Server, dsn: str, statement: str) -> None:
    async def work() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(statement)
        await connection.close()

    server.run(work())


FROM_THE_FUTURE = """
INSERT INTO headgate.migrations (number, name, checksum, applied_by, started_at, applied_at, seconds)
SELECT max(number) + 1, 'future', 'x', '99.0', now(), now(), 0 FROM headgate.migrations
"""


def test_a_schema_of_a_newer_release_is_exit_78(shell: Shell, postgres: Server, database: str) -> None:
    change(postgres, database, FROM_THE_FUTURE)
    error = one_line_of_error(shell.run("migrate", HEADGATE_DATABASE_URL=database), 78)
    assert re.search(r"the database is at migration \d+ \(applied by headgate 99\.0\).*upgrade headgate", error)
    planned = shell.run("migrate", "--plan", HEADGATE_DATABASE_URL=database)
    assert planned.returncode == 78
    assert "future" in planned.stdout
    assert "Traceback" not in planned.stderr


def test_an_edited_migration_is_exit_4(shell: Shell, postgres: Server, database: str) -> None:
    change(postgres, database, "UPDATE headgate.migrations SET checksum = 'x' WHERE number = 1")
    assert "0001_base.sql was changed after it was applied" in one_line_of_error(
        shell.run("migrate", HEADGATE_DATABASE_URL=database), 4
    )


def test_a_closed_pipe_ends_it_quietly(shell: Shell, database: str) -> None:
    command = f"'{HEADGATE}' migrate --plan | true"
    answer = subprocess.run(
        ["bash", "-c", command],  # noqa: S607 - a pipe needs a shell
        env={**shell.environ, "HEADGATE_DATABASE_URL": database},
        cwd=shell.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")


# ---------------------------------------------------------------- dev


def read_until(process: subprocess.Popen[str], start: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(start):
            return lines
    raise AssertionError((lines, process.stderr.read() if process.stderr else ""))


APP = """
from headgate import Headgate

hg = Headgate()


@hg.job("greet")
async def greet(name: str, times: int, polite: bool = True) -> str:
    return name * times
"""


@pytest.mark.parametrize(
    ("ending", "setting", "data"),
    [(signal.SIGINT, "", ".headgate/postgres"), (signal.SIGTERM, "elsewhere", "elsewhere")],
)
def test_dev_keeps_its_data_where_it_shows_and_stops_cleanly(
    shell: Shell, ending: signal.Signals, setting: str, data: str
) -> None:
    shell.environ["HEADGATE_DATA"] = setting
    (shell.folder / "app.py").write_text(APP)
    process = shell.start("dev", "--port", "0")
    try:
        text = "\n".join(read_until(process, "ready in "))
        assert text.startswith(
            f"headgate dev {version()}  (development mode: loopback only, no login, data in ./{data})"
        )
        assert (shell.folder / data / "pgdata").is_dir()
        assert "  try        headgate worker app:hg --reload\n" in text
        assert """ headgate submit greet '{"name": "example", "times": 1}' --wait 30s\n""" in text
        assert "(embedded)   fsync on, synchronous_commit on" in text
        assert re.search(r"ready in \d+(\.\d)?s", text)
        url = re.search(r"HEADGATE_DATABASE_URL='(postgresql://[^']+)'", text)
        assert url is not None
        assert f"psql '{url[1]}'" in text or f"psql' '{url[1]}'" in text
        assert APPLIED.search(shell.run("migrate", HEADGATE_DATABASE_URL=url[1]).stdout)
        address = re.search(r"grpc +(\S+)", text)
        assert address is not None
        refused = one_line_of_error(shell.run("dev", "--port", "0"), 4)
        assert f"uses the data folder {shell.folder / data} (pid {process.pid}, serving on {address[1]})" in refused
        process.send_signal(ending)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "stopping\nstopped\n")
        assert "error" not in errors
        assert not list((shell.folder / data).rglob("postmaster.pid"))
    finally:
        process.kill()
        process.communicate()


def test_dev_that_is_interrupted_while_it_starts_does_not_serve(shell: Shell) -> None:
    process = shell.start("dev", "--port", "0")
    try:
        assert process.stderr is not None
        while "0001 base: applying" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "stopping\nstopped\n")
        assert "ready" not in errors
        assert not list(shell.folder.rglob("postmaster.pid"))
    finally:
        process.kill()
        process.communicate()


def test_dev_uses_a_given_database_and_never_shows_its_password(shell: Shell, blank_database: str) -> None:
    parts = urlsplit(blank_database)
    password = parts.password or "s3cret"  # the embedded server asks for none on its socket
    url = parts._replace(netloc=f"{parts.username}:{password}@{parts.netloc.rpartition('@')[2]}").geturl()
    process = shell.start("dev", "--port", "0", HEADGATE_DATABASE_URL=url)
    try:
        text = "\n".join(read_until(process, "ready in "))
        assert f'database "{unquote(parts.path[1:])}"' in text
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert password not in text + output + errors
        assert not (shell.folder / "postgres").exists()
    finally:
        process.kill()
        process.communicate()


def test_dev_on_a_busy_port_creates_no_cluster_and_prints_one_line(shell: Shell) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        error = one_line_of_error(shell.run("dev", "--port", str(port)), 78)
    assert f"cannot listen on 127.0.0.1:{port}" in error
    assert not list(shell.folder.rglob("pgdata"))


def test_dev_refuses_a_database_that_can_lose_jobs_unless_forced(shell: Shell) -> None:
    settings = {"fsync": "off", "shared_buffers": "16MB"}
    with embedded.start(shell.folder / "other", settings=settings) as cluster:
        error = one_line_of_error(shell.run("dev", "--port", "0", HEADGATE_DATABASE_URL=cluster.dsn()), 78)
        assert "fsync is off" in error
        assert "--unsafe" in error
        process = shell.start("dev", "--port", "0", "--unsafe", HEADGATE_DATABASE_URL=cluster.dsn())
        try:
            assert "warning    fsync is off" in "\n".join(read_until(process, "ready in "))
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
