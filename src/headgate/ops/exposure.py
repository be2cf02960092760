"""What others may see of a server: files with secrets, and ports that are reachable without encryption."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from headgate.domain.errors import InvalidSetting


def is_loopback(host: str) -> bool:
    """Whether every address that `host` stands for is reachable from this machine only.

    By address: a name such as 127.example.org may stand for any. What cannot be resolved counts as reachable.
    """
    if not host:
        return False  # all addresses
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
    """Raise InvalidSetting for a port that others can reach and listen in on, unless that is asked for."""
    if tls or insecure or is_loopback(host):
        return
    raise InvalidSetting(
        "--host",
        f"{host} is reachable from outside, and without TLS everyone on the way can read tokens and jobs",
        hint="pass --tls-cert and --tls-key; or --insecure where the network is trusted or a proxy does TLS",
    )


def exposure_of(path: Path) -> tuple[str, str] | None:
    """What is wrong with the permissions of a file that holds secrets, and the command that mends it; None: nothing.

    As PostgreSQL does it for its key: only the owner, except that a file of root's may be readable by a group.
    That is how Kubernetes and packages hand secrets to a process that is not root.
    """
    if os.name == "nt":  # permissions are not in the mode there
        return None
    status = path.stat()
    of_root = status.st_uid == 0 and os.geteuid() != 0
    refused = stat.S_IRWXO | (stat.S_IWGRP | stat.S_IXGRP if of_root else stat.S_IRWXG)
    if not status.st_mode & refused:
        return None
    problem = f"{path} is open to others than its owner (mode {status.st_mode & 0o777:04o})"
    return problem, f"chmod {'640' if of_root else '600'} {shlex.quote(str(path))}"


def check_private(path: Path | None, *, setting: str) -> None:
    """Raise InvalidSetting for a file with secrets that others may read or write."""
    try:
        exposed = exposure_of(path) if path is not None else None
    except OSError:
        return  # not there, or not ours to look at: opening it says so
    if exposed is not None:
        raise InvalidSetting(setting, exposed[0], hint=f"run: {exposed[1]}")
