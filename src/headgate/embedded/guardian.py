"""The guardian process: the parent of one server, which stops it when its last user has ended.

It runs as a script, by path and without site-packages, so it imports the standard library only. It reads one request as
JSON from standard input and writes one answer to standard output. From then on:

- it is the parent of the server, so it sees an exit at once, and no zombie process looks alive;
- it waits for the users' lock, which it gets only when every user has ended, normally or by SIGKILL;
- it holds the guardian's lock (inherited, already locked) until the server has exited and its socket folder is cleared.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TypedDict

_FAST, _IMMEDIATE = 60.0, 15.0
"""Seconds for a fast shutdown (its checkpoint writes all dirty pages), then for an immediate one."""


class Account(TypedDict):
    uid: int
    gid: int


class Request(TypedDict):
    """The request of the starter; `adopt` is the pid of a server whose guardian was killed, else 0."""

    pgdata: str
    users_lock: str
    guardian_fd: int
    socket_dir: str
    log: str
    adopt: int
    argv: list[str]
    env: dict[str, str]
    account: Account | None
    by_handle: bool


class Server:
    """A server to signal and to wait for, whether it is a child or was adopted."""

    def __init__(self, pid: int, send: Callable[[int], None], wait: Callable[[], object]) -> None:
        self.pid, self.send, self.wait = pid, send, wait


def above_standard(fd: int) -> int:
    """Move a descriptor out of the range 0 to 2, which a child process replaces when stdin is closed."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def data_argument(pgdata: str, *, by_handle: bool) -> tuple[str, list[int]]:
    """Return the value for `-D`, and the descriptors that the server must inherit for it.

    As root, the server's account may lack access to a parent of the data folder. An open descriptor needs none:
    /proc/self/fd/N leads to the folder, in the server and in all its children (verified with 15, 16 and 18).
    """
    if not by_handle:
        return pgdata, []
    handle = above_standard(os.open(pgdata, os.O_RDONLY | os.O_DIRECTORY))
    return f"/proc/self/fd/{handle}", [handle]


def launch(request: Request) -> Server:
    account = request["account"]
    where, handles = data_argument(request["pgdata"], by_handle=request["by_handle"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    child = subprocess.Popen(
        [*request["argv"], "-D", where],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env=request["env"],
        pass_fds=handles,
        start_new_session=True,
        user=account["uid"] if account else None,
        group=account["gid"] if account else None,
        extra_groups=[] if account else None,
    )
    for fd in [log, *handles]:
        os.close(fd)
    return Server(child.pid, child.send_signal, child.wait)


def adopt(pid: int) -> Server:
    if hasattr(os, "pidfd_open"):  # refers to the process itself, so a reused pid does no harm
        handle = os.pidfd_open(pid)
        return Server(pid, lambda sig: signal.pidfd_send_signal(handle, sig), lambda: select.select([handle], [], []))

    def wait() -> None:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                time.sleep(0.1)

    return Server(pid, lambda sig: os.kill(pid, sig), wait)


def stop(server: Server, gone: threading.Event) -> None:
    for sig, seconds in ((signal.SIGINT, _FAST), (signal.SIGQUIT, _IMMEDIATE), (signal.SIGKILL, _IMMEDIATE)):
        with contextlib.suppress(ProcessLookupError):
            server.send(sig)
        if gone.wait(seconds):
            return


def clear(socket_dir: str) -> None:
    """Remove the socket folder; after a crash it still contains the socket and its lock file."""
    with contextlib.suppress(OSError):
        for name in os.listdir(socket_dir):
            if name.startswith(".s.PGSQL."):
                os.unlink(os.path.join(socket_dir, name))
        os.rmdir(socket_dir)


def main() -> None:
    request: Request = json.load(sys.stdin)
    if os.fork():  # the starter reaps this process; the guardian is adopted by init and outlives the starter
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    try:
        users = os.open(request["users_lock"], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        server = adopt(request["adopt"]) if request["adopt"] else launch(request)
    except (OSError, subprocess.SubprocessError) as problem:
        clear(request["socket_dir"])
        answer(error=str(problem))
        os._exit(1)
    gone = threading.Event()

    def when_users_are_gone() -> None:
        # Blocks while the server has users; then new users wait until the stop is complete.
        fcntl.flock(users, fcntl.LOCK_EX)
        stop(server, gone)

    def on_term(_signal: int, _frame: object) -> None:
        threading.Thread(target=stop, args=(server, gone), daemon=True).start()

    signal.signal(signal.SIGTERM, on_term)  # the machine is shutting down: stop before SIGKILL comes
    threading.Thread(target=when_users_are_gone, daemon=True).start()
    answer(pid=server.pid)
    server.wait()
    gone.set()
    clear(request["socket_dir"])
    os.close(request["guardian_fd"])  # before the users' lock: the next holder of that lock must find this one released
    os._exit(0)


def answer(**fields: object) -> None:
    with contextlib.suppress(OSError):  # a killed starter does not matter: its lock is released too
        os.write(1, json.dumps(fields).encode())
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


if __name__ == "__main__":
    main()
