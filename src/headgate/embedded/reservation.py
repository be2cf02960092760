"""One `headgate dev` per data folder: a lock that ends with its process, and what its holder wrote about itself.

Other users of the folder (tests, `headgate migrate`) share the server and do not ask for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headgate.domain.errors import DataFolderInUse
from headgate.embedded.layout import Folder
from headgate.embedded.locks import FileLock

_NOTE_MAX: Final = 200


class Reservation:
    """A held reservation; what is noted here is shown to a second one that is refused."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock
        self.note("")

    def note(self, text: str) -> None:
        """Say more about this process than its id, for example the address it serves on."""
        line = f"pid {os.getpid()}{', ' if text else ''}{text}"[:_NOTE_MAX].encode()
        os.ftruncate(self._lock.fileno(), 0)
        os.pwrite(self._lock.fileno(), line, 0)


@contextmanager
def reserved(data: Path) -> Iterator[Reservation]:
    """Reserve a data folder until the end of the block, or of the process. Raises DataFolderInUse."""
    folder = Folder.prepare(data)
    with FileLock(folder.start_lock), FileLock(folder.dev_lock) as lock:  # the first marks the folder as ours
        if not lock.try_exclusive():
            holder = folder.dev_lock.read_text(errors="replace").strip()
            raise DataFolderInUse(str(folder.home), holder=holder or "just started")
        yield Reservation(lock)
