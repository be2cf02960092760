"""How much of the processor something took: what it costs on a machine that does nothing else, also on one that does.

Of several processes that work by turns it is the sum, and so at least the time that they need one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pids: Iterable[int]) -> float:
    """Seconds of the processor that these processes of this machine have used so far."""
    return sum(_of(pid) for pid in pids)


def _of(pid: int) -> float:
    # After the name, which may hold anything, the 12th and 13th fields: in user mode and in the system.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
