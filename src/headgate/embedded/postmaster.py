"""The state of a server as seen from outside: its postmaster.pid, its process, its answer on the socket."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmaster:
    """A live server process, as described by its postmaster.pid."""

    pid: int
    port: int | None
    socket_dir: Path | None
    """None early in a start: the file is written line by line."""
    tcp: bool
    status: str
    """`starting`, `ready`, `stopping`, `standby`; empty while starting."""


def live_postmaster(pgdata: Path) -> Postmaster | None:
    """Return the server that runs on `pgdata`, or None if there is none or its pid file is stale."""
    try:
        lines = (pgdata / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    if not lines or not lines[0].strip().isdecimal():
        return None
    lines += [""] * (8 - len(lines))
    pid = int(lines[0])
    if not _is_server(pid, pgdata):
        return None
    port, socket_dir, address, status = (lines[i].strip() for i in (3, 4, 5, 7))
    return Postmaster(
        pid=pid,
        port=int(port) if port.isdecimal() else None,
        socket_dir=Path(socket_dir) if socket_dir else None,
        tcp=bool(address),
        status=status,
    )


def pid_file_of_other_process(pgdata: Path) -> bool:
    """Return whether postmaster.pid names a live process that is not the server of this folder.

    PostgreSQL then refuses to start, since it checks only that the pid is alive. Pids are soon reused after a reboot or
    in a new container, so this is common.
    """
    try:
        first = (pgdata / "postmaster.pid").read_text(errors="replace").split("\n", 1)[0].strip()
    except FileNotFoundError:
        return False
    return first.isdecimal() and _alive(int(first)) and not _is_server(int(first), pgdata)


def server_version(socket_dir: Path, port: int) -> str | None:
    """Log in over the socket and return the version the server reports, or None if it does not accept connections yet.

    Reading up to the first `ready for query` proves more than an open socket: recovery is over and a backend runs.
    """
    body = struct.pack("!i", 196608) + b"user\0headgate\0database\0postgres\0application_name\0headgate start\0\0"
    version: str | None = None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(socket_dir / f".s.PGSQL.{port}"))
            connection.sendall(struct.pack("!i", len(body) + 4) + body)
            with connection.makefile("rb") as replies:
                while header := replies.read(5):
                    kind, length = struct.unpack("!ci", header)
                    payload = replies.read(length - 4)
                    if kind == b"E":
                        return None
                    if kind == b"S" and payload.startswith(b"server_version\0"):
                        version = payload.split(b"\0")[1].decode()
                    if kind == b"Z":
                        connection.sendall(b"X\0\0\0\4")
                        return version
        except (OSError, struct.error):
            return None
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OverflowError:
        return False
    return True


def _is_server(pid: int, pgdata: Path) -> bool:
    if pid <= 1 or not _alive(pid):
        return False
    if Path("/proc/self/stat").exists():
        return _is_server_by_proc(pid, pgdata)
    shown = subprocess.run(
        ["ps", "-p", str(pid), "-o", "stat=,comm="],  # noqa: S607 - a POSIX tool, found by PATH
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return "postgres" in shown and not shown.startswith("Z")


def _is_server_by_proc(pid: int, pgdata: Path) -> bool:
    process = Path(f"/proc/{pid}")
    try:
        if process.stat().st_uid != pgdata.stat().st_uid:
            return False
        name, _, rest = (process / "stat").read_text(errors="replace").rpartition(")")
        if rest.split()[0] in "ZX" or "postgres" not in name.partition("(")[2]:
            return False
    except OSError:
        return False
    try:
        # The working directory of a postmaster is its data folder, whatever path it was started with: this identifies
        # the server, also when another program has reused its pid.
        return os.path.samestat(os.stat(process / "cwd"), pgdata.stat())
    except PermissionError:
        return True  # /proc is restricted here; owner and name match
    except OSError:
        return False
