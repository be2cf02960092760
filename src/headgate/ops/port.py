"""A port reserved for the processes of one server: the parent reserves it, each process listens on it.

With SO_REUSEPORT the kernel distributes new connections among all listeners of a port, by a hash of both ends. It would
include an unrelated process of the same user, for example one that serves another database. So a reservation first
listens exclusively, which fails if the port is in use, and then holds the port with a socket that never listens: until
the processes are ready, clients are refused, and a second reservation fails.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

from headgate.domain.errors import InvalidSetting

_OTHER_FAMILY: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""This machine has no such address: "localhost" can resolve to ::1 where IPv6 is off."""


class ReservedPort:
    """A reservation until `close` or process exit; processes of the same user can listen with SO_REUSEPORT."""

    def __init__(self, host: str, port: int) -> None:
        self._sockets: list[socket.socket] = []
        self.number = port
        problem: OSError | None = None
        try:
            for family, _, _, _, address in _resolved(host, port):
                try:
                    self._sockets.append(_reserve(family, address[0], self.number))
                    self.number = self._sockets[-1].getsockname()[1]
                except OSError as error:
                    if error.errno not in _OTHER_FAMILY:
                        raise
                    problem = error
            if not self._sockets:
                raise problem or OSError(errno.EADDRNOTAVAIL, "no address")
        except OSError as error:
            self.close()
            raise InvalidSetting(
                "--port",
                f"cannot listen on {host}:{port} ({error.strerror})",
                hint="check whether it is in use",
            ) from error

    def close(self) -> None:
        """Release the port; existing listeners keep it."""
        for one in self._sockets:
            one.close()


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


def _bound(family: int, host: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise connections in TIME_WAIT from the previous run would block the port for a minute.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made
