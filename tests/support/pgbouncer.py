"""A real PgBouncer in transaction mode, which tests may pause, stop, kill and start again on the same port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import randrange
from types import TracebackType
from typing import Self

from tests.support.server import LoggedProcess, clean_environ

_FOLDERS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
_PORTS = (15_000, 32_000)
PROGRAM = shutil.which("pgbouncer", path=_FOLDERS)


def free_port() -> int:
    """A port no one has now, and that the kernel gives to no one who asks for any: who is down finds it free again."""
    for _ in range(1_000):
        port = randrange(*_PORTS)  # not the first that is free: others on this machine look for one too
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no free port in {_PORTS}")


class PgBouncer:
    """One of them, with a configuration that makes it listen on `port` of the loopback; it listens when this returns.

    As root it runs under `account`, for like PostgreSQL it refuses to be root. The folder is given to that account.
    """

    def __init__(self, config: str, *, port: int, folder: Path, account: pwd.struct_passwd, program: str) -> None:
        self.port, self._folder = port, folder
        self._config = folder / "pgbouncer.ini"
        self._config.write_text(config)
        as_account = []
        if os.geteuid() == 0:
            as_account = ["-u", account.pw_name]
            for path in (folder, self._config):
                shutil.chown(path, account.pw_uid, account.pw_gid)
        self._command = [program, *as_account, str(self._config)]
        self.process = self._started()

    def start(self) -> None:
        """Start it again; it takes connections when this returns."""
        self.process = self._started()

    def _started(self) -> LoggedProcess:
        process = LoggedProcess("pgbouncer", self._command, folder=self._folder, environ=clean_environ())
        try:
            process.listens(self.port)
        except BaseException:
            process.kill()
            raise
        return process

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """As its service does: it ends when the transactions that run have ended, and is started again."""
        self.process.signal(signal.SIGINT)
        self.process.wait(within=timedelta(seconds=30))
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.signal(signal.SIGCONT)
        self.kill()


def config_of(dsn_host: str, dsn_port: str, *, user: str, port: int, sessions: int, socket_dir: Path | str = "") -> str:
    """Everyone may come, as `user`, to a PostgreSQL on a local socket; with `socket_dir` on a local socket as well."""
    return f"""[databases]
* = host={dsn_host} port={dsn_port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir = {socket_dir}
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
"""
