"""Real processes for tests: `headgate serve` and whatever talks to it. Each writes a log, and none outlives the run.

    with ServerProcess(database_url, folder=tmp_path) as server:   # ready when this returns
        channel = grpc.aio.insecure_channel(server.address)

Everything here blocks, for some tenths of a second at a start. In a test whose own tasks must run meanwhile, use
`await asyncio.to_thread(serve)`.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import forks
from tests.support.forks import HEADGATE as HEADGATE
from tests.support.ports import lasting_port
from tests.support.waiting import TIME_LIMIT, until

FAULT = "Traceback|ERROR|CRITICAL"
REST = r"^REST API on (?P<url>\S+)$"
READY = r"^headgate \S+ ready on (?P<host>\S+):(?P<port>\d+)$"
SHOWN_BYTES = 20_000
# Blocks until the run that started it ends, however it ends (a timeout leaves by os._exit, without any teardown): then
# no one holds the other end of its standard input any more.
_REAPER = 'read -r _; kill -KILL "$1" 2>/dev/null'


class LoggedProcess:
    """A child whose output goes to a file. It is killed at the latest when the test run is gone."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        folder: Path,
        environ: Mapping[str, str],
        fork: forks.Kind | None = None,
    ) -> None:
        """`fork`: not by running the command, but as a fork of a process that has imported its program."""
        self.name = name
        self.log = _unused(folder, name)
        self._process: subprocess.Popen[bytes] | forks.Fork
        self._reaper: subprocess.Popen[bytes] | None = None
        arguments = [str(part) for part in command]
        if fork is not None:
            if arguments[1] == "-m":
                arguments = arguments[2:]  # as a program sees them
            self.log.touch()
            self._process = forks.fork_server(fork).start(arguments, folder=folder, log=self.log, environ=environ)
            return
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                arguments,
                env=dict(environ),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._reaper = subprocess.Popen(
                ["/bin/sh", "-c", _REAPER, "sh", str(self.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for pytest; this one must see it through
            )
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        code = self._process.poll()
        if code is not None:
            self._dismiss_reaper()  # at once: the pid it would kill may be a stranger's from now on
        return code

    def text(self) -> str:
        """All it has printed, on either stream."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def seen(self, pattern: str) -> list[re.Match[str]]:
        """The matches of `pattern` so far; ^ and $ are the ends of a line."""
        return list(re.finditer(pattern, self.text(), re.MULTILINE))

    @contextmanager
    def logging_no_fault(self) -> Iterator[None]:
        """Fails if it logs an error or a traceback meanwhile."""
        faults = len(self.seen(FAULT))
        yield
        assert len(self.seen(FAULT)) == faults, self.shown()

    def saw(self, pattern: str, *, times: int = 1, within: timedelta = TIME_LIMIT) -> re.Match[str]:
        """Wait until it has printed `pattern` so many times. Fails with its log when it does not, or when it ends."""

        def found() -> re.Match[str] | None:
            ended = self.exit_code  # before reading: what it printed last counts
            matches = self.seen(pattern)
            if len(matches) >= times:
                return matches[times - 1]
            assert ended is None, f"{self.name} ended with {ended} before it printed {pattern!r}\n{self.shown()}"
            return None

        try:
            match = until(found, f"{self.name} printed {pattern!r}", within=within)
        except AssertionError as error:
            if "in vain" in str(error):
                error.add_note(self.shown())
            raise
        assert match is not None
        return match

    def listens(self, port: int, *, within: timedelta = TIME_LIMIT) -> None:
        """Wait until it takes connections on this port of the loopback. Fails with its log when it ends before."""

        def answers() -> bool:
            assert self.exit_code is None, self.shown()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
            return False

        until(answers, f"{self.name} listens", within=within)

    def kill(self) -> None:
        """SIGKILL: no farewell, no flush. Returns when it is gone."""
        self._dismiss_reaper()
        self._process.kill()
        self._process.wait(10)

    def terminate(self, *, within: timedelta = TIME_LIMIT) -> int:
        """SIGTERM; returns the exit code. Fails, having killed it, when it does not end in time."""
        self.signal(signal.SIGTERM)
        return self.wait(within=within)

    def wait(self, *, within: timedelta = TIME_LIMIT) -> int:
        """Its exit code, once it has ended. Fails, having killed it, when it does not end in time."""
        try:
            until(lambda: self.exit_code is not None, f"{self.name} has ended", within=within)
        except AssertionError as error:
            self.kill()
            error.add_note(self.shown())
            raise
        code = self.exit_code
        assert code is not None
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP and SIGCONT."""
        self._process.send_signal(number)

    def shown(self) -> str:
        """Its log for a failure report: the end of it, when it is long."""
        text = self.text()
        left_out = f"… {len(text) - SHOWN_BYTES} characters left out …\n" if len(text) > SHOWN_BYTES else ""
        return f"--- {self.name} (pid {self.pid}, {self.log}) ---\n{left_out}{text[-SHOWN_BYTES:]}"

    def _dismiss_reaper(self) -> None:
        if self._reaper is not None and self._reaper.returncode is None:
            self._reaper.kill()
            self._reaper.wait(10)
            if self._reaper.stdin is not None:
                self._reaper.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class ServerProcess(LoggedProcess):
    """`headgate serve`, with --dev unless set otherwise, on a migrated database, ready when the constructor returns.

    Port 0 is any free one; give the port of one that is gone to take its place. `args` are further arguments; the REST
    API is served, at `http_url`, if they have --http-port.
    """

    def __init__(
        self,
        dsn: str,
        *,
        folder: Path,
        port: int = 0,
        args: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
        within: timedelta = TIME_LIMIT,
        dev: bool = True,
    ) -> None:
        line = list(args)
        served = "--http-port" in line
        # What depends on the command line or the environment of a process, is started as users do.
        as_users_do = environ is not None or "--processes" in line
        for option, value in pairwise(line):
            if option in ("--tokens", "--tls-key"):  # files with secrets; others may not read them
                (folder / value).chmod(0o600)
        super().__init__(
            "headgate-serve",
            [
                HEADGATE,
                "serve",
                *(["--dev"] if dev else []),
                *("--port", str(port or lasting_port())),
                *([] if served or "--no-http" in line else ["--no-http"]),
                *line,
            ],
            folder=folder,
            environ={**clean_environ(), "HEADGATE_DATABASE_URL": dsn, **(environ or {})},
            fork=None if as_users_do else "headgate",
        )
        try:
            ready = self.saw(READY, within=within)
        except BaseException:
            self.kill()
            raise
        self.host, self.port = ready["host"], int(ready["port"])
        self.http_url = self.saw(REST)["url"] if served else ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def clean_environ() -> dict[str, str]:
    """The environment without what would change a test: our own settings, and proxies between two loopback peers."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADGATE_") and not name.lower().endswith("_proxy")
    }


def _unused(folder: Path, name: str) -> Path:
    return next(path for number in count(1) if not (path := folder / f"{name}-{number}.log").exists())
