"""Checks of what other users and machines can read: files with secrets, and remote ports without encryption."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from headgate.domain.errors import InvalidSetting


def is_loopback(host: str) -> bool:
    """Return whether every address of `host` is reachable from this machine only.

    By address, since a name such as 127.example.org can resolve to any. A name that does not resolve counts as remote.
    """
    if not host:
        return False  # empty: all addresses
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_loopback_address(str(address[0])) for *_, address in found)


def _is_loopback_address(text: str) -> bool:
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def check_encrypted(host: str, *, tls: bool, insecure: bool) -> None:
    """Raise InvalidSetting for a remote port without encryption, unless `insecure` is set."""
    if tls or insecure or is_loopback(host):
        return
    raise InvalidSetting(
        "--host",
        f"{host} is reachable from other machines, and without TLS the network can read tokens and jobs",
        hint="pass --tls-cert and --tls-key; or --insecure on a trusted network or behind a proxy that does TLS",
    )


def exposure_of(path: Path) -> tuple[str, str] | None:
    """Return the problem with the permissions of a secret file and the command that fixes it; None if there is none.

    The rule of PostgreSQL for its key: only the owner has access, but a file of root may be readable by a group, which
    is how Kubernetes and packages pass secrets to an unprivileged process.
    """
    if os.name == "nt":  # the mode has no permissions there
        return None
    status = path.stat()
    of_root = status.st_uid == 0 and os.geteuid() != 0
    refused = stat.S_IRWXO | (stat.S_IWGRP | stat.S_IXGRP if of_root else stat.S_IRWXG)
    if not status.st_mode & refused:
        return None
    problem = f"{path} is accessible to users other than its owner (mode {status.st_mode & 0o777:04o})"
    return problem, f"chmod {'640' if of_root else '600'} {shlex.quote(str(path))}"


def check_private(path: Path | None, *, setting: str) -> None:
    """Raise InvalidSetting for a secret file that other users can read or write."""
    try:
        exposed = exposure_of(path) if path is not None else None
    except OSError:
        return  # missing or not accessible: opening it reports that
    if exposed is not None:
        raise InvalidSetting(setting, exposed[0], hint=f"run: {exposed[1]}")


def exposed_text(path: Path | None) -> str:
    """What others can do with a file, and the command that prevents it; "" for one that is private, and for none."""
    exposed = None if path is None else exposure_of(path)
    return "" if exposed is None else f"{exposed[0]}; run: {exposed[1]}"
