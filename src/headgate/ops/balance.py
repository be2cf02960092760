"""How many worker sessions a process should move away, so that all processes on a port have about the same number.

The kernel distributes new connections by a hash and ignores existing ones. So some processes get more sessions than
others by chance, and a restarted process has none until workers reconnect. When a process has far more or far fewer
than its share, every process above its share asks the surplus to reconnect, and the hash distributes them again. This
repeats until all processes are near their share.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

TOLERANCE: Final = 0.5
SPARED: Final = 2
"""Half a share plus two sessions is within chance, and not worth a move."""


def surplus(sessions: Mapping[int, int]) -> dict[int, int]:
    """Return how many sessions each process should move away, by process number; absent processes keep all."""
    if not sessions:
        return {}
    share = sum(sessions.values()) / len(sessions)
    tolerated = share * TOLERANCE + SPARED
    if all(abs(count - share) <= tolerated for count in sessions.values()):
        return {}
    return {process: count - ceil(share) for process, count in sessions.items() if count > ceil(share)}
