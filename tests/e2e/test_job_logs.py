"""The log of a job, from a real worker to the command line: while it runs, by attempt, from every kind of slot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from headgate import Headgate
from headgate.sdk.admin import LogLine
from tests.e2e.conftest import Serve, Spawn
from tests.support.server import clean_environ
from tests.support.waiting import until_async

APP = """
import asyncio, logging
from datetime import timedelta
from pathlib import Path
from headgate import Headgate, Job, RetryPolicy

hg = Headgate()
log = logging.getLogger("shop")


@hg.job("on-loop", max_attempts=2, retry=RetryPolicy.fixed(timedelta(seconds=0.05)))
async def on_loop(job: Job, gate: str) -> None:
    log.info("attempt %d, password=hunter2", job.attempt)
    if job.attempt == 1:
        await asyncio.to_thread(Path(gate).read_bytes)
        log.error("\\x1b[31mit broke\\x1b[0m \\x07")
        raise ValueError("once")
    for n in range(300):
        log.info("line %d", n)


@hg.job("in-process", run_in="process")
def in_process() -> None:
    log.debug("not taken")
    log.warning("in a process")
"""


@pytest.fixture
def environ(serve: Serve, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "logs_app.py").write_text(APP)
    return {**clean_environ(), "HEADGATE_URL": serve().address, "PYTHONPATH": str(tmp_path)}


async def test_what_handlers_log_is_read_while_they_run_and_afterwards(
    spawn: Spawn, environ: dict[str, str], tmp_path: Path
) -> None:
    def headgate(*words: str) -> str:
        command = [sys.executable, "-m", "headgate.cli", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = (sys.executable, "-m", "headgate.cli", "worker", "logs_app:hg")
    worker = spawn("worker", *command, environ=environ | {"HEADGATE_WORKER_JOB_LOGS": "INFO"})
    gate = tmp_path / "gate"
    os.mkfifo(gate)  # to read it waits until it is written
    async with Headgate(environ["HEADGATE_URL"]) as hg:
        logs = hg.admin.jobs.logs
        one = (await hg.submit("on-loop", {"gate": str(gate)})).id
        two = (await hg.submit("in-process", {})).id

        async def said(job_id: UUID) -> list[LogLine]:
            return (await logs(job_id)).lines

        # While it runs.
        (first,) = await until_async(lambda: said(one), "the first line is there")
        assert (first.attempt, first.level, first.logger) == (1, "info", "shop")
        assert first.text == "attempt 1, password=•••"
        follow = (sys.executable, "-m", "headgate.cli", "job", "logs", str(one), "--follow")
        following = spawn("follow", *follow, environ=environ)
        following.saw(r"attempt 1, password=•••")
        await asyncio.to_thread(gate.write_bytes, b"")
        following.saw(r"2  INFO +shop +line 299")
        assert following.wait() == 0  # the job has ended
        assert following.text().count("LOGGER") == 1
        # Afterwards: both attempts, the first and the newest lines of each.
        assert [line.text for line in (await logs(one, attempt=1)).lines] == [first.text, "it broke \x07"]
        second = (await logs(one, attempt=2)).lines
        assert len(second) == 200
        assert second[0].text == "attempt 2, password=•••"
        assert second[-1].text == "line 299"
        assert sum(line.left_out for line in second) == 101
        (line,) = await until_async(lambda: said(two), "the line of the process is there")
        assert (line.level, line.text) == ("warning", "in a process")
    shown = headgate("job", "logs", str(one))
    assert "… 101 lines were left out" in shown
    assert "it broke \\x07" in shown  # no control character reaches the terminal
    assert f"next: headgate job logs {one}" in headgate("job", "get", str(one))
    assert worker.terminate() == 0
