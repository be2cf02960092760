"""What a figure was measured on: without this a figure says nothing."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from headgate.store.connect import Connection

SETTINGS = ("server_version", "fsync", "full_page_writes", "synchronous_commit", "shared_buffers", "max_wal_size")


async def describe(db: Connection) -> dict[str, object]:
    """The machine, the versions and the settings in effect."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "load_at_start": round(os.getloadavg()[0], 2),
        "os": platform.platform(),
        "python": platform.python_version(),
        "headgate": version("headgate"),
        "asyncpg": version("asyncpg"),
        "postgres": {name: await db.fetchval("SELECT current_setting($1)", name) for name in SETTINGS},
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
