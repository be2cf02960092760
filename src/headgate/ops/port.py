"""A port that several processes listen on together, and nobody else: reserved here, opened by each of them.

With SO_REUSEPORT the kernel deals new connections out to all listeners of a port, by a hash of both ends. It would deal
them out to a stranger's process of the same user as well, one that serves another database, say. So whoever reserves a
port first proves that nobody else has it (as a plain listener, which tolerates no other), and then holds it with a
socket that never listens: while its processes are not ready, clients are refused, and a second reservation fails.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

from headgate.domain.errors import InvalidSetting

_OTHER_FAMILY: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""This machine has no such address, as "localhost" may name ::1 where IPv6 is off."""


class ReservedPort:
    """Held until `close` or the end of the process; processes of the same user may listen with SO_REUSEPORT."""

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
                "--port", f"{host}:{port} cannot be listened on ({error.strerror})", hint="is it in use?"
            ) from error

    def close(self) -> None:
        """Let go of it; those who listen go on."""
        for one in self._sockets:
            one.close()


def _resolved(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, kind, protocol, name, (str(at[0]), port)) for family, kind, protocol, name, at in found]


def _reserve(family: int, host: str, port: int) -> socket.socket:
    with _bound(family, host, port) as exclusive:
        # Fails beside any other listener, and beside a reservation, which is bound without SO_REUSEADDR.
        exclusive.listen(1)
        number = exclusive.getsockname()[1]
    held = _bound(family, host, number)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return held


def _bound(family: int, host: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Or connections of the last run, still in TIME_WAIT, would keep the port for a minute.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made
