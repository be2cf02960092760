"""The processes of the demo: PostgreSQL, a server and two workers. Each can be killed and started again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from headgate import embedded
from headgate.store.connect import connect
from headgate.store.migrate import migrate
from headgate.store.roles import OWNER, RUNTIME, prepare_embedded

ROOT: Final = Path(__file__).parents[2]
HEADGATE: Final = (sys.executable, "-m", "headgate.cli")
START_SECONDS: Final = 30.0
LEASE_SECONDS: Final = 5
GRACE_SECONDS: Final = 2
"""How long a worker has to reconnect after its connection was lost (10 s by default); then its jobs run again."""
RUNS: Final = """
CREATE SCHEMA demo;
CREATE TABLE demo.runs (job_id uuid NOT NULL, attempt int NOT NULL, pid int NOT NULL,
                        at timestamptz NOT NULL DEFAULT now())"""


class Stage:
    """Everything runs in a temporary folder, and ends with `close`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-demo-"))
        self._cluster: embedded.Cluster | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        self.address = ""
        self.dashboard = ""

    # --- PostgreSQL --------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> embedded.Cluster:
        """The embedded PostgreSQL, once it has been started."""
        assert self._cluster is not None, "start_postgres comes first"
        return self._cluster

    @property
    def dsn(self) -> str:
        """The database, as its owner."""
        return self.cluster.dsn(role=OWNER)

    def start_postgres(self) -> str:
        """Start it; returns its version."""
        self._cluster = embedded.start(self.folder / "postgres")
        return self._cluster.version

    async def prepare(self) -> None:
        """Migrate the database, and make the table of the handlers."""
        await prepare_embedded(self.cluster.dsn())
        db = await connect(self.dsn, application_name="headgate demo")
        try:
            await migrate(db)
            await db.execute(RUNS)
        finally:
            await db.close()
        self._environ |= {"HEADGATE_DATABASE_URL": self.cluster.dsn(role=RUNTIME), "DEMO_DATABASE_URL": self.dsn}

    def kill_postgres(self) -> int:
        """SIGKILL to the server process; returns its process id."""
        pid = self.cluster.pid
        assert pid is not None, "PostgreSQL runs"
        os.kill(pid, signal.SIGKILL)
        return pid

    def restart_postgres(self) -> None:
        """Start it again; it recovers from its write-ahead log first."""
        self.cluster.restart()

    # --- server ------------------------------------------------------------------------------------------------------

    def start_server(self) -> int:
        """Start it, on the same ports as before, and wait until it is ready; returns its process id."""
        port = self.address.rpartition(":")[2] or str(free_port())
        http_port = self.dashboard.rpartition(":")[2] or str(free_port())
        spans = ("--lease", str(LEASE_SECONDS), "--reconnect-grace", str(GRACE_SECONDS), "--grace", "3")
        log = self.folder / "server.log"
        before = log.stat().st_size if log.exists() else 0
        self._server = self._start(log, "serve", "--dev", "--port", port, "--http-port", http_port, *spans)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._server.poll() is None:
            for line in log.read_bytes()[before:].decode(errors="replace").splitlines():
                if line.startswith("dashboard on "):
                    self.dashboard = line.rpartition(" ")[2]
                if line.startswith("headgate ") and " ready on " in line:
                    self.address = line.rpartition(" ")[2]
                    return self._server.pid
            time.sleep(0.02)
        raise SystemExit(f"the server did not start:\n{log.read_text()[-2000:]}")

    def kill_server(self) -> int:
        """SIGKILL; returns its process id."""
        assert self._server is not None, "the server runs"
        return _kill(self._server)

    # --- workers -----------------------------------------------------------------------------------------------------

    def start_worker(self, number: int) -> int:
        """Start a worker; returns its process id."""
        environ = {"HEADGATE_URL": self.address}
        log = self.folder / f"worker-{number}.log"
        self._workers[number] = self._start(log, "worker", "examples.demo.jobs:hg", "--concurrency", "24", **environ)
        return self._workers[number].pid

    def kill_worker(self, number: int) -> int:
        """SIGKILL; returns its process id."""
        return _kill(self._workers[number])

    # --- all of it ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End what still runs, the newest first, and remove the folder."""
        processes = [*self._workers.values(), *([self._server] if self._server is not None else [])]
        for process in processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    _kill(process)
        if self._cluster is not None:
            self._cluster.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, log: Path, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*HEADGATE, *command],
                cwd=ROOT,
                env={**self._environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for the demo, which then ends them in order
            )


def free_port() -> int:
    """A port that the system gives to no one else while the server is down: below the range it picks from."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise SystemExit("no port between 20000 and 30000 is free")


def _kill(process: subprocess.Popen[bytes]) -> int:
    process.kill()
    process.wait()
    return process.pid
