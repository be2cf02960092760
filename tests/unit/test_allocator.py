"""Arenas of glibc, counted in a process of their own: the option cannot be taken back."""

from __future__ import annotations

import os
import subprocess
import sys

from headgate.ops.allocator import ARENAS_MAX

THREADS = 6
PROGRAM = f"""
import ctypes, sys, threading
from headgate.ops.allocator import limit_arenas
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
if sys.argv[1] == "limited":
    limit_arenas()
together = threading.Barrier({THREADS})
def allocate():
    libc.malloc(10_000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


def arenas(how: str, **variables: str) -> int:
    """How many arenas a process has whose threads have all allocated."""
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | variables
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env=environment, capture_output=True, text=True, check=True
    )
    return made.stderr.count("Arena ")


def test_threads_share_the_arenas() -> None:
    assert arenas("unlimited") > ARENAS_MAX
    assert arenas("limited") == ARENAS_MAX


def test_the_number_in_the_environment_wins() -> None:
    assert arenas("limited", MALLOC_ARENA_MAX="4") == 4
