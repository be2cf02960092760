"""The how-to pages about handlers, exactly as printed: each page is one program, and prints what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import Serve
from tests.support.howto import printed, program
from tests.support.server import clean_environ

PAGES = ("retries", "results", "arguments", "encryption")
# The page runs `headgate worker app:hg &`; a worker in the same process takes a second less, for each page.
DRIVER = """
import asyncio, importlib, sys


async def play(page):
    worker = page.hg.worker()
    running = asyncio.create_task(worker.run())
    await page.main()
    worker.stop()
    await running


for name in sys.argv[1:]:
    print("---", flush=True)
    asyncio.run(play(importlib.import_module(name)))
"""


def test_the_pages_run_as_printed(serve: Serve, tmp_path: Path) -> None:
    for name in PAGES:
        (tmp_path / f"{name}.py").write_text(program(f"{name}.md"))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *PAGES],
        cwd=tmp_path,
        env={**clean_environ(), "HEADGATE_URL": serve().address, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.split("---\n")[1:]
    assert dict(zip(PAGES, said, strict=True)) == {name: printed(f"{name}.md", "python app.py") for name in PAGES}
