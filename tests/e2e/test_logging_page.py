"""The page on logging and errors, exactly as printed, with a stand-in for Sentry; and the formats of real processes."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Spawn
from tests.support.database import Server
from tests.support.howto import printed, program
from tests.support.server import LoggedProcess, ServerProcess, clean_environ
from tests.support.waiting import until
from tests.support.wire import served

PAGE = "logging-and-errors.md"
NOT_LOGGED = re.compile(r"headgate \S+ ready on")
"""What a server prints when it is ready."""


def without_times(text: str) -> list[list[str]]:
    """The words of each line but its first one, which is a time."""
    return [line.split()[1:] for line in text.splitlines()]


@contextmanager
def sentry() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A stand-in for the remote side: takes envelopes; gives its address and the events it got."""
    events: list[dict[str, Any]] = []

    class Intake(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            lines = (gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body).split(b"\n")
            found = [json.loads(line) for line in lines if line]
            events.extend(one for one in found if "exception" in one)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Intake)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://key@127.0.0.1:{server.server_port}/1", events
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def the_server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for the module, whose log is JSON."""
    with served(postgres, template, tmp_path_factory.mktemp("logging"), "--log-format", "json") as (server, _):
        yield server


def test_the_page_on_logging_runs_as_printed(server: ServerProcess, spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(program(PAGE))
    with sentry() as (dsn, events):
        environ = {**clean_environ(), "HEADGATE_URL": server.address, "PYTHONPATH": str(tmp_path), "SENTRY_DSN": dsn}
        headgate = (sys.executable, "-m", "headgate.cli")
        worker = spawn("worker", *headgate, "worker", "app:hg", "--job-logs", "INFO", environ=environ)
        command = [sys.executable, "app.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == printed(PAGE, "python app.py").splitlines()

        # The worker's own lines.
        started = worker.saw(r"worker_started version=\S+ worker=\S+ server=\S+ topics=charge concurrency=32 ")
        assert started is not None
        worker.saw(r"INFO shop\.payments worker \S+ starts")
        failed = worker.saw(
            r"WARNING headgate\.worker job_failed topic=charge job_id=(\S+) attempt=1/2 "
            r'error="ValueError: the amount is negative" retry_at=\d{4}-\S+Z seconds=\S+\n'
            r"  Traceback .*\n"
            rf'    File "{tmp_path}/app\.py", line \d+, in charge\n'
            r'      raise ValueError\("the amount is negative"\)\n'
            r"  ValueError: the amount is negative\n"
        )
        worker.saw(rf"ERROR headgate\.worker job_dead topic=charge job_id={failed[1]} attempt=2/2 ")
        # The log of the job.
        shown = subprocess.run(
            [*headgate, "job", "logs", failed[1]], env=environ, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        assert without_times(shown) == without_times(printed(PAGE, "headgate job logs $JOB"))
        # Those of the application, with the fields of the job.
        worker.saw(rf"INFO shop\.payments charging -1 job_id={failed[1]} topic=charge attempt=1\n")
        worker.saw(r"INFO shop\.payments failed attempt=1/2 retry_at=\d{4}")
        worker.saw(r"ERROR shop\.payments dead: charge the amount is negative")

        until(lambda: len(events) >= 2, "Sentry has both failures")
        assert worker.terminate() == 0
        worker.saw(r"INFO shop\.payments worker \S+ has ended")
    # The logger of the application is not ignored: its `dead:` line has no exception, and is not counted here.
    assert [event["level"] for event in events] == ["warning", "error"]
    for number, event in enumerate(events, start=1):
        assert event["tags"]["topic"] == "charge"
        assert (event["contexts"]["job"]["id"], event["contexts"]["job"]["attempt"]) == (failed[1], number)
        (error,) = event["exception"]["values"]
        assert (error["type"], error["value"]) == ("ValueError", "the amount is negative")
        assert error["stacktrace"]["frames"][-1]["function"] == "charge"


def test_every_line_of_server_and_worker_is_json_on_request_and_a_drain_says_what_it_waits_for(
    server: ServerProcess, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio, logging\n"
        "from headgate import Headgate\n"
        "hg = Headgate()\n"
        "@hg.job('slow')\n"
        "async def slow():\n"
        "    logging.getLogger('shop').warning('begun')\n"
        "    await asyncio.sleep(600)\n"
    )
    environ = {**clean_environ(), "HEADGATE_URL": server.address, "PYTHONPATH": str(tmp_path)}
    environ["HEADGATE_LOG_FORMAT"] = "json"
    command = (sys.executable, "-m", "headgate.cli")
    worker = spawn("worker", *command, "worker", "slow:hg", "--grace", "60", environ=environ)
    subprocess.run([*command, "submit", "slow"], env=environ, check=True, timeout=60, capture_output=True)
    worker.saw(r'"message":"begun","job_id":"[^"]+","topic":"slow","attempt":1\}')
    worker.signal(signal.SIGINT)
    worker.saw(r'"event":"draining","jobs":1,"topics":"slow: 1","longest_seconds":[\d.]+,"seconds_left":[\d.]+,')
    worker.signal(signal.SIGINT)
    worker.saw(r'"event":"stopping_at_once","jobs":1')
    assert worker.wait() == 0
    server.saw('"event":"session_ended"')
    for process in (server, worker):
        lines = [line for line in process.text().splitlines() if not NOT_LOGGED.match(line)]
        assert len(lines) >= 3
        assert all(json.loads(line).keys() >= {"time", "level", "logger"} for line in lines)


def test_ctrl_c_reaches_a_reloading_worker_once(tmp_path: Path) -> None:
    """A terminal signals the whole group. Twice would skip the drain."""
    (tmp_path / "app.py").write_text(
        "from headgate import Headgate\nhg = Headgate('127.0.0.1:1')\nhg.register('a', print)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "worker", "app:hg", "--reload"],
        cwd=tmp_path,
        env=clean_environ(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "worker_started" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    finally:
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
    assert process.returncode == 0, rest
    assert rest.count("stopping signal=SIGINT") == 1
    assert "stopping_at_once" not in rest


def test_a_terminal_that_is_closed_ends_a_reloading_worker_with_its_child(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from headgate import Headgate\nhg = Headgate('127.0.0.1:1')\nhg.register('a', print)\n"
    )
    command = (sys.executable, "-m", "headgate.cli", "worker", "app:hg", "--reload")
    with LoggedProcess("reloading", command, folder=tmp_path, environ=clean_environ()) as worker:
        child = int(worker.saw(r" worker_started .* worker=\S+-(\d+)-[0-9a-f]+ ")[1])
        try:
            worker.signal(signal.SIGHUP)
            assert worker.wait() == 0
            assert worker.seen(" worker_stopped ")
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
