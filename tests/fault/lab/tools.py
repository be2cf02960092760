"""Programs that the faults need beside this tree's own: installed by `make faults` when it runs as root, or named.

A fault that could not be brought about is not green: a run of all of them says at the start what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

PACKAGES: Final[Mapping[str, str]] = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "cc": "gcc libc6-dev",
    "mount": "mount",
}
"""By program, the Debian packages that bring it."""
SECONDS: Final = 300


class MissingTools(Exception):
    """What is missing, and how to get it."""


def missing() -> list[str]:
    """The programs that are not here."""
    return [program for program in PACKAGES if shutil.which(program) is None]


def install() -> list[str]:
    """Bring what is missing; gives the packages that were installed. Raises MissingTools when that cannot be done."""
    absent = missing()
    if not absent:
        return []
    packages = sorted({package for program in absent for package in PACKAGES[program].split()})
    words = f"the faults need {', '.join(absent)}: apt-get update && apt-get install -y {' '.join(packages)}"
    apt = shutil.which("apt-get")
    if os.geteuid() != 0:
        raise MissingTools(f"{words} (as root)")
    if apt is None:
        raise MissingTools(f"{words} (there is no apt-get here: install them by hand)")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run([apt, *command], env=quiet, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode and command[0] == "install":
            raise MissingTools(f"{words}; that failed: {done.stderr.strip()[-500:]}")
    if still := missing():
        raise MissingTools(f"{words}; after that {', '.join(still)} is still missing")
    return packages
