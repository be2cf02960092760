"""File locks that end with their holder: the kernel releases a flock when its process ends, even by SIGKILL."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.embedded.guardian import above_standard


class FileLock:
    """One open file description of a lock file; instances exclude each other, also inside one process.

    The descriptor is close-on-exec, so a started program does not keep the lock. A forked child without an exec does
    keep it, and counts as a holder until it ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = above_standard(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))

    def try_exclusive(self) -> bool:
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        return self._try(fcntl.LOCK_SH)

    def exclusive(self, *, until: float) -> bool:
        """Lock exclusively, waiting until the monotonic time `until`; return whether it succeeded."""
        return self._poll(fcntl.LOCK_EX, until)

    def shared(self, *, until: float) -> bool:
        return self._poll(fcntl.LOCK_SH, until)

    def is_current(self) -> bool:
        """Return whether the path is still the locked file: false after its folder was removed or recreated."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Release the lock and close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _poll(self, kind: int, until: float) -> bool:
        # flock has no timeout, and alarm signals belong to the application: so poll, quickly at first.
        pause = 0.002
        while not self._try(kind):
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True
