"""The how-to pages of the SDK, exactly as printed: each page is one program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import Serve, Spawn
from tests.support.howto import HOWTO, printed, program
from tests.support.server import clean_environ


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


def test_the_page_on_testing_is_an_app_with_tests_that_pass(database: str, tmp_path: Path) -> None:
    page = (HOWTO / "testing.md").read_text()
    (settings,) = re.findall(r"^```toml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    app, *tests = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "test_app.py").write_text("\n\n".join(tests))
    # The plugins by name: what else is installed here is not part of the page.
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "headgate.testing.plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins],
        cwd=tmp_path,
        env={
            **clean_environ(),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "HEADGATE_TEST_DATABASE_URL": database,
            "PYTHONPATH": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{page.count('def test_')} passed" in done.stdout
