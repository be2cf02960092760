"""The how-to pages of the SDK, exactly as printed: each page is one program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import Serve, Spawn
from tests.support.server import clean_environ

HOWTO = Path(__file__).parents[2] / "docs/howto"


def program(page: str) -> str:
    """All Python of a page, in order."""
    text = (HOWTO / page).read_text()
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


def printed(page: str, command: str) -> str:
    """What the page says a command prints."""
    text = (HOWTO / page).read_text()
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_page_on_workers_runs_as_printed(serve: Serve, spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(program("workers.md"))
    environ = {**clean_environ(), "HEADGATE_URL": serve().address, "PYTHONPATH": str(tmp_path)}
    worker = spawn("worker", sys.executable, "-m", "headgate.cli", "worker", "app:hg", environ=environ)
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed("workers.md", "python app.py")
    worker.saw(r"headgate\.job\.follow following for 0\.1 s")
    assert worker.terminate() == 0


def test_the_page_on_connecting_runs_as_printed(serve: Serve, spawn: Spawn, tmp_path: Path) -> None:
    # The page dials a server by TLS; here a plain one stands in for it.
    code = program("connecting.md").replace('Headgate("https://queue.example:7070", ca="ca.pem")', "Headgate()")
    (tmp_path / "app.py").write_text(code)
    (tmp_path / "main.py").write_text(
        "import app\nif __name__ == '__main__':\n"
        "    print(app.from_a_view(3))\n"
        "    handle = app.hg.sync.submit(app.resize, 1)\n"
        "    print(app.hg.sync.wait(app.hg.get(handle.id)).topic)\n"
    )
    environ = {**clean_environ(), "HEADGATE_URL": serve().address, "PYTHONPATH": str(tmp_path)}
    spawn("worker", sys.executable, "-m", "headgate.cli", "worker", "app:hg", environ=environ)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["600", "resize"]


def test_the_page_on_testing_is_a_test_file_that_passes(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(program("testing.md"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_app.py"],
        cwd=tmp_path,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
