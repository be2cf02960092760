"""Ports of the loopback for tests: one that stays ours while its server is restarted, and one where no one listens.

A port that the system picks is anybody's as soon as its server is gone, and be it as the near end of some connection;
a server that comes back to it then cannot listen. So servers get ports from below the range that the system picks from.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path

_FIRST, _PORTS = 20_000, 10_000
_places = count(os.getpid() * 97)  # where to look first: runs side by side do not try the same ones in turn


@cache
def _taken() -> int:
    """A file of which each run locks the bytes of its ports; the system lets go of them when the run ends."""
    name = Path(tempfile.gettempdir(), f"headgate-test-ports-{os.getuid()}")
    return os.open(name, os.O_CREAT | os.O_RDWR, 0o600)


def lasting_port() -> int:
    """A free port that no other test run takes before this process ends."""
    for _ in range(_PORTS):
        port = _FIRST + next(_places) % _PORTS
        with suppress(OSError), socket.socket() as probe:  # another run's, or someone else's
            fcntl.lockf(_taken(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"none of the ports from {_FIRST} to {_FIRST + _PORTS - 1} is free")


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port that refuses connections, and that no one else can listen on meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
