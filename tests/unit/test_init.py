"""`headgate init`: the app it writes passes its own tests, and nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli.init import FILES, next_steps
from tests.support.server import clean_environ
from tests.support.shell import Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_the_app_passes_its_own_tests(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/e2e/test_readme.py runs its worker and its schedule."""
    monkeypatch.chdir(tmp_path)
    said = shell("init", "hello")
    assert (said.code, said.err) == (0, "")
    assert "cd hello && headgate worker app:hg --reload" in said.out
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".")
    tested = subprocess.run(
        command, cwd=tmp_path / "hello", env=clean_environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert "3 passed" in tested.stdout, tested.stdout


def test_it_overwrites_nothing(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text("mine")
    said = shell("init", str(tmp_path))
    assert (said.code, said.out) == (4, "")
    assert said.err.startswith(f"error: {tmp_path / 'test_app.py'} exists, and nothing was written")
    assert [path.name for path in tmp_path.iterdir()] == ["test_app.py"]
    assert (tmp_path / "test_app.py").read_text() == "mine"
    occupied = shell("init", str(tmp_path / "test_app.py" / "below"))
    assert (occupied.code, occupied.out) == (2, "")
    assert "DIR: cannot write to" in occupied.err


def test_a_link_that_leads_nowhere_and_a_file_that_appears_meanwhile_are_kept(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").symlink_to(tmp_path / "elsewhere.py")
    assert shell("init", str(tmp_path)).code == 4
    assert not (tmp_path / "elsewhere.py").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "app.py").write_text("mine")
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    assert shell("init", str(other)).code == 2
    assert (other / "app.py").read_text() == "mine"


def test_the_next_steps_begin_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert next_steps(Path("a b"))[3].startswith("  cd 'a b' && headgate worker ")
    for here in (Path(), tmp_path):
        assert next_steps(here)[3].startswith("  headgate worker ")


def test_every_file_of_the_app_is_in_the_package() -> None:
    starter = Path(sys.modules["headgate.cli"].__file__ or "").parent / "starter"
    assert sorted(path.name for path in starter.iterdir()) == sorted(f"{name}.txt" for name in FILES)
