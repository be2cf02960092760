"""How many workers a process should send on, so that all processes of a port have about the same number.

The kernel deals new connections out by a hash and knows nothing of those that exist. So chance makes some processes
fuller than others, and one that was started again has none at all, until workers connect anew. When one has far more or
far less than its share, all who are above theirs ask the surplus to come again; the hash then throws once more for each
of them. That is repeated until all are near their share.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

TOLERANCE: Final = 0.5
SPARED: Final = 2
"""Half a share and two links more or less are chance, and not worth a move."""


def surplus(links: Mapping[int, int]) -> dict[int, int]:
    """How many links each process should let go, by its number; who is not named keeps all of its own."""
    if not links:
        return {}
    share = sum(links.values()) / len(links)
    chance = share * TOLERANCE + SPARED
    if all(abs(count - share) <= chance for count in links.values()):
        return {}
    return {process: count - ceil(share) for process, count in links.items() if count > ceil(share)}
