"""The process that stands between a server and its users: parent of the one, survivor of the others.

It is run as a script, by path and without site-packages, so it may import nothing but the standard library. Its
orders come as one JSON object on standard input; its answer is one on standard output; then it is on its own:

- it is the server's parent, so an exit is seen at once and never leaves a zombie that looks alive;
- it waits for the users' lock, which it gets only when every user has left, gently or by SIGKILL;
- it holds the guardian's lock (inherited, already taken) until the server is gone and its socket folder is cleared.
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
"""Seconds granted to a fast shutdown (its checkpoint writes all dirty pages), then to an immediate one."""


class Account(TypedDict):
    uid: int
    gid: int


class Orders(TypedDict):
    """What the starter asks for; `adopt` is the pid of a server whose own guardian was killed, else 0."""

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
    """The server as something to signal and to wait for, whether it is our child or was adopted."""

    def __init__(self, pid: int, send: Callable[[int], None], wait: Callable[[], object]) -> None:
        self.pid, self.send, self.wait = pid, send, wait


def above_standard(fd: int) -> int:
    """Move a descriptor out of 0 to 2: in a process with stdin closed, it would be replaced in any child."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def data_argument(pgdata: str, *, by_handle: bool) -> tuple[str, list[int]]:
    """Return the value for `-D`, and the descriptors that must be inherited for it to mean something.

    As root, the way to the data folder may be closed to the server's account. A folder that is already open needs no
    way: /proc/self/fd/N leads straight to it, in the server and in all its children (verified with 15, 16 and 18).
    """
    if not by_handle:
        return pgdata, []
    handle = above_standard(os.open(pgdata, os.O_RDONLY | os.O_DIRECTORY))
    return f"/proc/self/fd/{handle}", [handle]


def launch(orders: Orders) -> Server:
    account = orders["account"]
    where, handles = data_argument(orders["pgdata"], by_handle=orders["by_handle"])
    log = os.open(orders["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    child = subprocess.Popen(
        [*orders["argv"], "-D", where],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env=orders["env"],
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
    if hasattr(os, "pidfd_open"):  # holds on to the process itself, so its number cannot be reused under us
        handle = os.pidfd_open(pid)
        return Server(pid, lambda sig: signal.pidfd_send_signal(handle, sig), lambda: select.select([handle], [], []))

    def wait() -> None:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                time.sleep(0.1)

    return Server(pid, lambda sig: os.kill(pid, sig), wait)


def stop(server: Server, gone: threading.Event) -> None:
    for sig, patience in ((signal.SIGINT, _FAST), (signal.SIGQUIT, _IMMEDIATE), (signal.SIGKILL, _IMMEDIATE)):
        with contextlib.suppress(ProcessLookupError):
            server.send(sig)
        if gone.wait(patience):
            return


def clear(socket_dir: str) -> None:
    """Remove the socket folder; after a crash its socket and lock file are still in it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(socket_dir):
            if name.startswith(".s.PGSQL."):
                os.unlink(os.path.join(socket_dir, name))
        os.rmdir(socket_dir)


def main() -> None:
    orders: Orders = json.load(sys.stdin)
    if os.fork():  # the starter reaps this one; the guardian proper belongs to init and outlives the starter
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    try:
        users = os.open(orders["users_lock"], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        server = adopt(orders["adopt"]) if orders["adopt"] else launch(orders)
    except (OSError, subprocess.SubprocessError) as problem:
        clear(orders["socket_dir"])
        answer(error=str(problem))
        os._exit(1)
    gone = threading.Event()

    def when_users_are_gone() -> None:
        # Blocks for as long as anyone uses the server, and keeps newcomers waiting until the stop is complete.
        fcntl.flock(users, fcntl.LOCK_EX)
        stop(server, gone)

    def on_term(_signal: int, _frame: object) -> None:
        threading.Thread(target=stop, args=(server, gone), daemon=True).start()

    signal.signal(signal.SIGTERM, on_term)  # the machine is shutting down: do not leave it to a later SIGKILL
    threading.Thread(target=when_users_are_gone, daemon=True).start()
    answer(pid=server.pid)
    server.wait()
    gone.set()
    clear(orders["socket_dir"])
    os.close(orders["guardian_fd"])  # before the users' lock: whoever gets that one must find this one free
    os._exit(0)


def answer(**fields: object) -> None:
    with contextlib.suppress(OSError):  # a starter that was killed meanwhile does not matter: its lock is gone too
        os.write(1, json.dumps(fields).encode())
    quiet = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(quiet, fd)


if __name__ == "__main__":
    main()
