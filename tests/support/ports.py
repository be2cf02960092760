"""Ports of the loopback for tests: one that stays ours while its server is restarted, and one where nobody listens.

A port that the system picks is anybody's as soon as its server is gone, and be it as the near end of some connection;
a server that comes back to it then cannot listen. So servers get ports from below the range that the system picks from.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

_FIRST, _PORTS = 20_000, 10_000
_places = count(os.getpid() * 97)  # where to look first: runs side by side do not try the same ones in turn
_locks: deque[int] = deque()
_KEPT = 100  # those before have had their test: a descriptor for each server of a run would be too many


def lasting_port() -> int:
    """A free port that no other test run takes as long as its test lasts."""
    folder = Path(tempfile.gettempdir(), f"headgate-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for _ in range(_PORTS):
        port = _FIRST + next(_places) % _PORTS
        lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:  # another run's, or somebody else's
            os.close(lock)
            continue
        _locks.append(lock)
        if len(_locks) > _KEPT:
            os.close(_locks.popleft())
        return port
    raise AssertionError(f"none of the ports from {_FIRST} to {_FIRST + _PORTS - 1} is free")


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else can listen on meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
