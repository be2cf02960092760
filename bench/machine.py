"""What a figure was measured on: without this a figure says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from headgate.store.connect import Connection

SETTINGS = (
    "server_version",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
)
DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
PACKAGES = ("headgate", "asyncpg", "grpcio", "protobuf", "uvloop", "msgspec")


async def describe(db: Connection) -> dict[str, object]:
    """The machine, the versions and the settings in effect. Raises if a commit would not be durable."""
    postgres = {name: await db.fetchval("SELECT current_setting($1)", name) for name in SETTINGS}
    assert postgres | DURABLE == postgres, f"figures without {DURABLE} are none: {postgres}"
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "load_at_start": round(os.getloadavg()[0], 2),
        "os": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": _commit(),
        "postgres": postgres,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Of the tree that is measured; empty where there is no git."""
    try:
        words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
