"""The README's first handler, exactly as printed, against a real server and a real worker process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import Serve, Spawn

ROOT = Path(__file__).parents[2]


def test_the_first_handler_runs_as_printed(serve: Serve, spawn: Spawn, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(code) == 1
    (tmp_path / "app.py").write_text(code[0])
    server = serve()
    environ = {"HEADGATE_URL": server.address, "PYTHONPATH": str(tmp_path)}
    spawn("worker", sys.executable, "-m", "headgate.cli", "worker", "app:hg", environ=environ)
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        env={**environ, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = re.search(r"^\$ python app\.py\n(.*)$", text, flags=re.MULTILINE)
    assert printed is not None
    assert done.stdout.strip() == printed[1].strip()
