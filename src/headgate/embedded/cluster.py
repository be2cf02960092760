"""Start, join and stop one embedded server; the theory page of the package describes the actors."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import quote

from headgate.domain.errors import EmbeddedPostgresError
from headgate.embedded.binaries import Binaries
from headgate.embedded.initdb import SUPERUSER
from headgate.embedded.launch import Endpoint, Launch, Mode, shut_down, wait_until_gone
from headgate.embedded.layout import Folder
from headgate.embedded.locations import default_data_dir, whole_path
from headgate.embedded.locks import FileLock
from headgate.embedded.postmaster import live_postmaster

_OURS = frozenset({"port", "listen_addresses", "unix_socket_directories", "data_directory", "external_pid_file"})
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class Cluster:
    """One user of a running server: the server runs while it has users.

    Created by `start`. Without `stop`, the use ends with the process, and the guardian then stops the server.
    """

    def __init__(self, folder: Folder, users: FileLock, launch: Launch, endpoint: Endpoint) -> None:
        self._folder, self._users, self._launch, self._endpoint = folder, users, launch, endpoint
        self._owner_pid = os.getpid()

    @property
    def data(self) -> Path:
        return self._folder.home

    @property
    def port(self) -> int:
        """The TCP port if TCP is on; otherwise the number in the name of the socket."""
        return self._endpoint.port

    @property
    def socket_dir(self) -> Path:
        return self._endpoint.socket_dir

    @property
    def version(self) -> str:
        """The version the server reports, such as `18.4`."""
        return self._endpoint.version

    @property
    def log(self) -> Path:
        return self._folder.log

    @property
    def pid(self) -> int | None:
        """The current server process: a new one after a restart, None if the server is down."""
        server = live_postmaster(self._folder.pgdata)
        return None if server is None else server.pid

    def dsn(self, database: str = "postgres", *, role: str = SUPERUSER) -> str:
        """Return a URL for asyncpg, psql or libpq; with TCP on, over TCP and with the password.

        Only the superuser has a password. On the socket, which is in a private folder, every role can log in.
        """
        name = quote(database, safe="")
        if role != SUPERUSER:
            return f"postgresql://{role}@/{name}?host={quote(str(self.socket_dir), safe='/')}&port={self.port}"
        if self._launch.tcp:
            password = quote(self._folder.password.read_text(), safe="")
            return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{self.port}/{name}"
        return f"postgresql://{SUPERUSER}@/{name}?host={quote(str(self.socket_dir), safe='/')}&port={self.port}"

    def stop(self, mode: Mode = "fast", *, wait: timedelta = timedelta(seconds=60)) -> None:
        """End the use of the server; the last user stops it, and returns when it has exited.

        With other users, the server keeps running. A second call does nothing.
        """
        if self._users.fileno() < 0:
            return
        if os.getpid() != self._owner_pid:  # a forked copy shares the lock with its parent: only close the descriptor
            self._users.close()
            return
        until = time.monotonic() + wait.total_seconds()
        try:
            if not self._users.is_current():
                # The folder was removed or replaced. Only the guardian knows our server, and stops it as soon as the
                # lock is released.
                return
            with FileLock(self._folder.start_lock) as start_lock:
                # If another process holds the start lock for long, releasing ours is enough: the guardian stops the
                # server.
                if not start_lock.exclusive(until=until):
                    return
                if self._users.try_exclusive():
                    shut_down(self._folder, mode, until=until)
                elif not self._users.try_shared():
                    # Neither exclusive nor shared: the guardian holds the lock and is stopping the server.
                    wait_until_gone(self._folder, until=until)
        finally:
            self._users.close()

    def restart(self, mode: Mode = "fast", *, wait: timedelta = timedelta(seconds=60)) -> None:
        """Stop the server and start it again with the same DSN, also after a crash; other users lose connections."""
        if self._users.fileno() < 0:
            raise EmbeddedPostgresError(f"this cluster in {self.data} was stopped; call start again")
        if not self._users.is_current():
            raise EmbeddedPostgresError(f"{self.data} was removed while its server was running; call start again")
        until = time.monotonic() + wait.total_seconds()
        with FileLock(self._folder.start_lock) as start_lock:
            if not start_lock.exclusive(until=until):
                raise EmbeddedPostgresError(f"another process has been starting {self.data} for {wait}; try again")
            shut_down(self._folder, mode, until=until)
            self._endpoint = self._launch.join_or_launch(until=until, port=self._endpoint.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def is_created(data: Path | None = None) -> bool:
    """Whether the data folder has a cluster. Changes nothing."""
    return Folder(whole_path(default_data_dir() if data is None else data)).pgdata.exists()


def start(
    data: Path | None = None,
    *,
    settings: Mapping[str, str] = _NO_SETTINGS,
    tcp: bool = False,
    binaries: Binaries | None = None,
    wait: timedelta = timedelta(seconds=30),
) -> Cluster:
    """Start the server of a data folder, or join the one that runs there; return when it accepts connections.

    `settings` are PostgreSQL settings by name and override the defaults; when joining, those of the launcher stay in
    force. Blocks: call it in a thread from a coroutine.
    """
    if refused := sorted(name for name in settings if name.lower() in _OURS):
        raise EmbeddedPostgresError(f"settings {', '.join(refused)} are set by the embedded server; remove them")
    until = time.monotonic() + wait.total_seconds()
    folder = Folder.prepare(default_data_dir() if data is None else data)
    launch = Launch(folder=folder, settings=dict(settings), tcp=tcp, binaries=binaries)
    try:
        with FileLock(folder.start_lock) as start_lock:
            if not start_lock.exclusive(until=until):
                raise EmbeddedPostgresError(f"another process has been starting {folder.home} for {wait}; try again")
            if not start_lock.is_current():
                raise EmbeddedPostgresError(f"{folder.home} was removed while it was being started; try again")
            users = FileLock(folder.users_lock)
            try:
                # A guardian that is stopping the server holds this lock until the server has exited.
                if not users.shared(until=until):
                    raise EmbeddedPostgresError(f"the server of {folder.home} has been stopping for {wait}; try again")
                return Cluster(folder, users, launch, launch.join_or_launch(until=until))
            except BaseException:
                users.close()  # if a server was launched, its guardian now stops it
                raise
    except OSError as problem:  # no space, no permission, a file system without owners or locks
        raise EmbeddedPostgresError(
            f"cannot run the embedded PostgreSQL in {folder.home}: {problem}; choose another folder with HEADGATE_DATA"
        ) from problem
