"""Get a ready server on a data folder: join the running one, or launch one under a guardian."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headgate.domain.errors import EmbeddedPostgresError
from headgate.embedded import guardian
from headgate.embedded.binaries import Binaries, find_binaries
from headgate.embedded.initdb import initialise, server_environment
from headgate.embedded.layout import Folder
from headgate.embedded.locks import FileLock
from headgate.embedded.postmaster import Postmaster, live_postmaster, pid_file_of_other_process, server_version
from headgate.embedded.privileges import Account, blocking_folder, reachable_binaries

Mode = Literal["smart", "fast", "immediate"]

_SIGNALS: Mapping[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,  # waits until all clients have disconnected
    "fast": signal.SIGINT,  # disconnects clients, then writes a checkpoint
    "immediate": signal.SIGQUIT,  # like a crash: the next start runs recovery
}
_DEFAULTS: Mapping[str, str] = {
    # Explicit although they are the defaults: an acknowledged job must survive a power failure here too.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_connections": "100",
    "max_wal_size": "2GB",
    "autovacuum_naptime": "10s",  # a queue makes dead rows all the time; a minute is too long for its hot tables
    "cluster_name": "headgate",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",  # _wait_until_ready reads the log
    "logging_collector": "off",
}
_UNIX_PORT = 5432
_TEMPORARY = ("pre-existing shared memory block", "could not create any TCP/IP sockets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a ready server."""

    port: int
    socket_dir: Path
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to get a ready server on a folder; the caller holds the start lock and a share of the users' lock."""

    folder: Folder
    settings: Mapping[str, str]
    tcp: bool
    binaries: Binaries | None

    def join_or_launch(self, *, until: float, port: int | None = None) -> Endpoint:
        reason = ""  # why the last attempt failed that was repeated: the one that time ends has none of its own
        while True:
            try:
                if (endpoint := self._attempt(until=until, port=port)) is not None:
                    return endpoint
            except _EndedEarly as ended:
                reason = str(ended)
                if not ended.temporary:
                    raise EmbeddedPostgresError(reason) from None
            except EmbeddedPostgresError as error:
                if reason and time.monotonic() >= until:
                    raise EmbeddedPostgresError(reason) from error
                raise
            # A guardian without a server, or a stopping server, exits soon.
            if time.monotonic() >= until:
                if reason:
                    raise EmbeddedPostgresError(reason)
                raise EmbeddedPostgresError(
                    f"{self.folder.home} is locked by a guardian whose server is not visible here: "
                    "is the folder in use by another container? Stop that one, or choose another "
                    "folder with HEADGATE_DATA"
                )
            time.sleep(0.01)

    def _attempt(self, *, until: float, port: int | None) -> Endpoint | None:
        """Join or launch once; None when the folder is between two servers."""
        with FileLock(self.folder.guardian_lock) as lock:
            unguarded = lock.try_exclusive()
            server = live_postmaster(self.folder.pgdata)
            if server is None:
                return self._launch(lock, until=until, port=port) if unguarded else None
            if server.status == "stopping":
                return None
            if unguarded:  # its guardian was killed: start another, or the server would outlive its users
                self._start_guardian(lock, _adoption(self.folder, server, lock))
        return self._joined(until=until)

    def _joined(self, *, until: float) -> Endpoint:
        try:
            endpoint = _wait_until_ready(self.folder, until=until, log_from=self.folder.log_size())
        except _EndedEarly as ended:
            # It died between our check and our login, perhaps by an earlier SIGKILL: launch another.
            ended.temporary = True
            raise
        server = live_postmaster(self.folder.pgdata)
        if self.tcp and (server is None or not server.tcp):
            raise EmbeddedPostgresError(
                f"the server of {self.folder.home} runs without TCP; stop its other users, then start it with TCP"
            )
        return endpoint

    def _launch(self, lock: FileLock, *, until: float, port: int | None) -> Endpoint:
        folder = self.folder
        account = folder.account()
        binaries = reachable_binaries(self._matching_binaries(), account)
        by_handle = _needs_handle(folder, account)
        if folder.data_major() is None:
            initialise(folder, binaries, account, by_handle=by_handle, time_limit=max(until - time.monotonic(), 1))
        if pid_file_of_other_process(folder.pgdata):
            (folder.pgdata / "postmaster.pid").unlink(missing_ok=True)
        folder.rotate_log()
        log_from = folder.log_size()
        socket_dir = folder.socket_dir(account)
        chosen = port or (_free_port() if self.tcp else _UNIX_PORT)
        self._start_guardian(
            lock,
            {
                "pgdata": str(folder.pgdata),
                "users_lock": str(folder.users_lock),
                "guardian_fd": lock.fileno(),
                "socket_dir": str(socket_dir),
                "log": str(folder.log),
                "adopt": 0,
                "argv": self._command(binaries, socket_dir, chosen),
                "env": server_environment(),
                "account": None if account is None else {"uid": account.uid, "gid": account.gid},
                "by_handle": by_handle,
            },
        )
        return _wait_until_ready(folder, until=until, log_from=log_from)

    def _matching_binaries(self) -> Binaries:
        made_by = self.folder.data_major()
        found = self.binaries or find_binaries()
        if made_by is None or made_by == found.major:
            return found
        try:
            hint = f"set HEADGATE_POSTGRES_BIN={find_binaries(major=made_by).bin_dir}"
        except EmbeddedPostgresError:
            hint = f"set HEADGATE_POSTGRES_BIN to the bin folder of a PostgreSQL {made_by}"
        raise EmbeddedPostgresError(
            f"{self.folder.home} was created by PostgreSQL {made_by}, but the binaries found are {found.major} "
            f"({found.source}, {found.bin_dir}): {hint}; or dump with {made_by} and reload with {found.major}; "
            "or delete the folder with all its jobs"
        )

    def _command(self, binaries: Binaries, socket_dir: Path, port: int) -> list[str]:
        settings = {
            **_DEFAULTS,
            **self.settings,
            "port": str(port),
            "unix_socket_directories": str(socket_dir),
            "listen_addresses": "127.0.0.1" if self.tcp else "",
        }
        return [str(binaries.postgres), *(part for k, v in settings.items() for part in ("-c", f"{k}={v}"))]

    def _start_guardian(self, lock: FileLock, request: guardian.Request) -> None:
        """Start the guardian and pass it the locked descriptor, so that its lock is held at all times."""
        try:
            done = subprocess.run(
                # By path and isolated: no site-packages, no PYTHON* variables of the caller.
                [sys.executable, "-I", "-S", guardian.__file__],
                input=json.dumps(request).encode(),
                capture_output=True,
                pass_fds=[lock.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal must not stop the database
                cwd="/",
                timeout=30,
                check=False,
            )
            answer: dict[str, object] = json.loads(done.stdout or b"{}")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise EmbeddedPostgresError(f"cannot start the guardian of {self.folder.home}: {error}") from error
        finally:
            lock.close()  # from here on the lock shows that the guardian is alive, so only the guardian may hold it
        if "pid" not in answer:
            problem = answer.get("error") or done.stderr.decode(errors="replace")[-1000:]
            raise EmbeddedPostgresError(f"cannot launch the server of {self.folder.home}: {problem}")


def _adoption(folder: Folder, server: Postmaster, lock: FileLock) -> guardian.Request:
    return {
        "pgdata": str(folder.pgdata),
        "users_lock": str(folder.users_lock),
        "guardian_fd": lock.fileno(),
        "socket_dir": str(server.socket_dir or ""),
        "log": str(folder.log),
        "adopt": server.pid,
        "argv": [],
        "env": {},
        "account": None,
        "by_handle": False,
    }


class _EndedEarly(Exception):
    """The server exited before it was ready; `temporary` if a retry can succeed.

    For example, another process took its port, or the last backends of a killed server still hold the shared memory.
    """

    def __init__(self, text: str, *, temporary: bool) -> None:
        super().__init__(text)
        self.temporary = temporary


def _needs_handle(folder: Folder, account: Account | None) -> bool:
    if account is None or (closed := blocking_folder(folder.home, account)) is None:
        return False
    if not Path("/proc/self/fd").is_dir():
        raise EmbeddedPostgresError(
            f"{account.name} cannot access {closed}, and the server runs as {account.name} since PostgreSQL "
            "refuses to run as root; set HEADGATE_DATA to a folder it can access"
        )
    return True


def _wait_until_ready(folder: Folder, *, until: float, log_from: int) -> Endpoint:
    pause = 0.005
    with FileLock(folder.guardian_lock) as lock:
        while True:
            server = live_postmaster(folder.pgdata)
            if server is not None and server.status in ("ready", "standby") and server.port and server.socket_dir:
                version = server_version(server.socket_dir, server.port)
                if version is not None:
                    return Endpoint(port=server.port, socket_dir=server.socket_dir, version=version)
            gone = server is None and lock.try_exclusive()  # no server and no guardian: the start failed
            if gone or time.monotonic() >= until:
                log_text = folder.log_since(log_from) or "(empty: it may have been killed)"
                ending = f"its log {folder.log} ends with:\n{log_text}"
                if gone:
                    temporary = any(text in log_text for text in _TEMPORARY)
                    raise _EndedEarly(f"the server of {folder.home} did not start; {ending}", temporary=temporary)
                raise EmbeddedPostgresError(f"the server of {folder.home} was not ready in time; {ending}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)


def shut_down(folder: Folder, mode: Mode, *, until: float) -> None:
    """Stop the server, and also one whose start was not waited for and that is seen only now."""
    signalled: set[int] = set()

    def signal_new(server: Postmaster) -> None:
        if server.pid in signalled:
            return
        signalled.add(server.pid)
        try:
            os.kill(server.pid, _SIGNALS[mode])
        except ProcessLookupError:
            pass
        except PermissionError as problem:
            raise EmbeddedPostgresError(
                f"not allowed to stop process {server.pid}, the server of {folder.home}"
            ) from problem

    wait_until_gone(folder, until=until, on_live=signal_new)


def wait_until_gone(folder: Folder, *, until: float, on_live: Callable[[Postmaster], None] = lambda _: None) -> None:
    """Wait until neither a server nor its guardian is left; `on_live` is called as long as there is a server."""
    with FileLock(folder.guardian_lock) as lock:
        while (server := live_postmaster(folder.pgdata)) is not None or not lock.try_exclusive():
            if server is not None:
                on_live(server)
            if time.monotonic() >= until:
                raise EmbeddedPostgresError(
                    f"the server of {folder.home} is still stopping: clients may still be connected; "
                    f"see {folder.log}, or stop it with mode immediate"
                )
            time.sleep(0.005)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
