"""The pages on submitting in a transaction, exactly as printed, with a real server and a real worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import Serve, Spawn
from tests.support.howto import printed, program
from tests.support.server import clean_environ

REQUESTS = """
import time
from fastapi.testclient import TestClient
from app import app

with TestClient(app) as client:
    refused = client.post("/orders", json={"email": "x@invalid"})
    print(refused.status_code)
    placed = client.post("/orders", json={"email": "a@example.com"})
    print(placed.status_code)
    until = time.monotonic() + 60
    while (state := client.get(f"/jobs/{placed.json()['job']}").json())["state"] != "completed":
        assert time.monotonic() < until, state
        time.sleep(0.01)
    print(state["result"])
    print(client.get("/jobs/01890a5d-ac96-774b-bcce-b302099a8057").status_code)
"""


def run_page(serve: Serve, spawn: Spawn, database: str, folder: Path, page: str, script: str) -> str:
    """What a script prints, with the page as app.py, a server and a worker."""
    (folder / "app.py").write_text(program(page))
    environ = {
        **clean_environ(),
        "HEADGATE_URL": serve().address,
        "DATABASE_URL": database,
        "APP_DATABASE_URL": database.replace("postgresql://", "postgresql+asyncpg://"),
        "PYTHONPATH": str(folder),
    }
    spawn("worker", sys.executable, "-m", "headgate.cli", "worker", "app:hg", environ=environ)
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_on_transactions_runs_as_printed(serve: Serve, spawn: Spawn, database: str, tmp_path: Path) -> None:
    page = "transactional-submit.md"
    assert run_page(serve, spawn, database, tmp_path, page, "app.py") == printed(page, "python app.py")


def test_the_page_on_fastapi_runs_as_printed(serve: Serve, spawn: Spawn, database: str, tmp_path: Path) -> None:
    (tmp_path / "requests.py").write_text(REQUESTS)
    told = run_page(serve, spawn, database, tmp_path, "fastapi.md", "requests.py")
    assert told.splitlines() == ["422", "201", "receipt sent to a@example.com", "404"]
