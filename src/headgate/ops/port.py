"""A port reserved for the processes of one server: the parent reserves it, each process listens on it.

With SO_REUSEPORT the kernel distributes new connections among all listeners of a port, by a hash of both ends. It would
include an unrelated process of the same user, for example one that serves another database. So a reservation first
listens exclusively, which fails if the port is in use, and then holds the port with a socket that never listens: until
the processes are ready, clients are refused, and a second reservation fails.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from headgate.domain.errors import InvalidSetting

_OTHER_FAMILY: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""This machine has no such address: "localhost" can resolve to ::1 where IPv6 is off."""


def listening_sockets(host: str, port: int, *, shared: bool, setting: str = "--http-port") -> list[socket.socket]:
    """Sockets bound to every address of a host, on one port; 0 picks a free one. Raises InvalidSetting.

    `shared`: other processes of the same user listen on the port, too.
    """
    return _on_every_address(host, port, partial(_bound, shared=shared), setting=setting)


class ReservedPort:
    """A reservation until `close` or process exit; processes of the same user can listen with SO_REUSEPORT."""

    def __init__(self, host: str, port: int, *, setting: str = "--port") -> None:
        self._sockets = _on_every_address(host, port, _reserve, setting=setting)
        self.number: int = self._sockets[0].getsockname()[1]

    def close(self) -> None:
        """Release the port; existing listeners keep it."""
        for one in self._sockets:
            one.close()


def _on_every_address(
    host: str, port: int, bind: Callable[[int, str, int], socket.socket], *, setting: str
) -> list[socket.socket]:
    opened: list[socket.socket] = []
    problem: OSError | None = None
    number = port
    try:
        for family, _, _, _, address in _resolved(host, port):
            try:
                opened.append(bind(family, address[0], number))
                number = opened[-1].getsockname()[1]
            except OSError as error:
                if error.errno not in _OTHER_FAMILY:
                    raise
                problem = error
        if not opened:
            raise problem or OSError(errno.EADDRNOTAVAIL, "no address")
    except OSError as error:
        for one in opened:
            one.close()
        raise InvalidSetting(
            setting, f"cannot listen on {host}:{port} ({error.strerror})", hint="check whether it is in use"
        ) from error
    return opened


def _resolved(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, kind, protocol, name, (str(at[0]), port)) for family, kind, protocol, name, at in found]


def _reserve(family: int, host: str, port: int) -> socket.socket:
    with _bound(family, host, port) as exclusive:
        # Fails if there is another listener, or a reservation, which is bound without SO_REUSEADDR.
        exclusive.listen(1)
        number = exclusive.getsockname()[1]
    held = _bound(family, host, number)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return held


def _bound(family: int, host: str, port: int, *, shared: bool = False) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise connections in TIME_WAIT from the previous run would block the port for a minute.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made
