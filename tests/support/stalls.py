"""How long this machine stalled while a test ran: a virtual one may lose seconds to its neighbours."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

EVERY_SECONDS = 0.05


class Stalls:
    """Watches from a thread: `with Stalls() as stalls: …`, then `stalls.longest` in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        at = time.monotonic()
        while not self._over.wait(EVERY_SECONDS):
            now = time.monotonic()
            self.longest = max(self.longest, now - at - EVERY_SECONDS)
            at = now
