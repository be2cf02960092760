"""The embedded server without starting one: its command, its binaries, its folder and its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.domain.errors import EmbeddedPostgresError
from headgate.embedded import binaries, database_url
from headgate.embedded.binaries import Binaries, find_binaries
from headgate.embedded.launch import Launch
from headgate.embedded.layout import Folder, _claim


def installed(major: int, where: str = "/opt") -> Binaries:
    return Binaries(bin_dir=Path(where, str(major)), major=major, version=f"{major}.1", source="test")


def test_settings_of_the_caller_replace_defaults_and_never_the_address() -> None:
    settings = {"shared_buffers": "16MB", "work_mem": "8MB"}
    launch = Launch(folder=Folder(Path("/data")), settings=settings, tcp=False, binaries=None)
    _, *command = launch._command(installed(18), Path("/run/socket"), 5433)
    given = dict(part.split("=", 1) for part in command if part != "-c")
    assert (given["shared_buffers"], given["work_mem"]) == ("16MB", "8MB")
    assert (given["fsync"], given["synchronous_commit"], given["full_page_writes"]) == ("on", "on", "on")
    assert (given["port"], given["unix_socket_directories"], given["listen_addresses"]) == ("5433", "/run/socket", "")


def test_binaries_of_one_major_version_are_found_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {Path("/opt/18"): installed(18), Path("/opt/16"): installed(16)}
    monkeypatch.setattr(binaries, "_candidates", lambda environ, tried: [(path, "test") for path in found])
    monkeypatch.setattr(binaries, "inspect", lambda path, source: found[path])
    assert find_binaries({}).major == 18
    assert find_binaries({}, major=16).major == 16
    with pytest.raises(EmbeddedPostgresError, match=r"no usable binaries of PostgreSQL 17 found.*not 17"):
        find_binaries({}, major=17)


def test_a_folder_of_binaries_that_is_named_is_the_only_one_that_is_tried(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError) as refused:
        find_binaries({"HEADGATE_POSTGRES_BIN": str(tmp_path), "PATH": os.environ["PATH"]})
    assert f"HEADGATE_POSTGRES_BIN: no postgres and no initdb in {tmp_path}" in str(refused.value)
    assert "wheel" not in str(refused.value)


@pytest.mark.parametrize(("version", "accepted"), [("13.22", False), ("14.0", True), ("18.1", True)])
def test_the_oldest_version_is_14(tmp_path: Path, version: str, *, accepted: bool) -> None:
    for name in ("postgres", "initdb"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (tmp_path / name).chmod(0o755)
    if accepted:
        assert binaries.inspect(tmp_path, source="test").version == version
    else:
        with pytest.raises(EmbeddedPostgresError, match=f"is PostgreSQL {version}, older than 14"):
            binaries.inspect(tmp_path, source="test")


def test_a_socket_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    assert _claim(path, os.geteuid(), None)
    assert path.stat().st_mode & 0o777 == 0o700
    (path / ".s.PGSQL.5432").touch()
    assert _claim(path, os.geteuid(), None)
    assert not list(path.iterdir()), "what a crash has left"
    assert not _claim(path, os.geteuid() + 1, None), "it is another user's"
    path.chmod(0o710)
    assert not _claim(path, os.geteuid(), None)


def test_a_log_of_more_than_ten_megabytes_is_set_aside_and_only_new_lines_are_quoted(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert (folder.log_size(), folder.log_since(0)) == (0, "")
    with folder.log.open("wb") as log:
        log.truncate(10 << 20)
    folder.rotate_log()
    assert folder.log.exists()
    with folder.log.open("ab") as log:
        log.write(b"\n")
    folder.rotate_log()
    assert not folder.log.exists()
    assert (tmp_path / "postgres.log.1").stat().st_size == (10 << 20) + 1
    folder.log.write_text("of an earlier start\n")
    before = folder.log_size()
    with folder.log.open("a") as lines:
        lines.write("".join(f"line {n}\n" for n in range(20)))
    assert folder.log_since(before).splitlines() == [f"line {n}" for n in range(8, 20)]


def test_a_database_url_of_blanks_is_none() -> None:
    assert database_url({"HEADGATE_DATABASE_URL": " \n"}) is None
    assert database_url({"HEADGATE_DATABASE_URL": " postgresql://db "}) == "postgresql://db"


def test_a_folder_with_hidden_files_alone_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / ".gitkeep").touch()
    assert Folder.prepare(tmp_path).home == tmp_path


def test_a_data_folder_can_be_listed_by_its_owner_alone(tmp_path: Path) -> None:
    assert Folder.prepare(tmp_path / "data").home.stat().st_mode & 0o066 == 0


def test_the_data_folder_of_a_project_stays_out_of_version_control(tmp_path: Path) -> None:
    Folder.prepare(tmp_path / ".headgate" / "postgres")
    assert (tmp_path / ".headgate" / ".gitignore").read_text() == "*\n"
    Folder.prepare(tmp_path / "elsewhere" / "postgres")
    assert not (tmp_path / "elsewhere" / ".gitignore").exists()
