"""The browser of `make browser`: Debian's chromium, installed if it is missing and this is root on Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")
ADVICE = (
    "As root on Debian: apt-get install chromium. "
    "Elsewhere install Chrome or Chromium, and set HEADGATE_CHROMIUM to its path."
)


def found() -> str | None:
    """The path of a chromium, or None. HEADGATE_CHROMIUM names another one."""
    named = os.environ.get("HEADGATE_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def main() -> None:
    """Install it if need be; ends with what to do if that is not possible."""
    path = found()
    if path is not None:
        if shutil.which(path) is None:
            sys.exit(f"HEADGATE_CHROMIUM names {path}, which is not a program that can be run")
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        sys.exit(f"make browser needs chromium, and there is none. {ADVICE}")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([apt, "update", "-q"], check=False, env=environ)  # one source that is away need not matter
    install = [apt, "install", "-q", "-y", "--no-install-recommends", "chromium"]
    if code := subprocess.run(install, check=False, env=environ).returncode:
        sys.exit(f"apt-get could not install chromium (exit code {code}, see above). {ADVICE}")
    if not found():
        sys.exit("apt-get has installed chromium, and it is not on PATH; set HEADGATE_CHROMIUM to its path")


if __name__ == "__main__":
    main()
