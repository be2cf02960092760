"""Install the locked packages and this project into the environment of this interpreter, and show what is installed.

Called by every target of the Makefile before its first run, with the Python of `.venv`. Standard library only: nothing
is installed yet.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", "--no-color")
FOUND = re.compile(r"^(?:Collecting|Requirement already satisfied:) (?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;]+)")


class Screen:
    """One line that is replaced on a terminal; names one after the other elsewhere."""

    def __init__(self, total: int) -> None:
        self._total, self._count, self._column = total, 0, 0
        self._terminal = sys.stdout.isatty()

    def package(self, name: str) -> None:
        """The next package."""
        self._count += 1
        self._write(f"  {min(self._count, self._total)} of {self._total}: {name}", name)

    def step(self, text: str) -> None:
        """What is done after the packages were found."""
        if self._terminal:
            self._write(f"  {text}", text)

    def end(self) -> None:
        """Leave the screen on a new line."""
        sys.stdout.write("\r\x1b[K" if self._terminal else "\n")
        sys.stdout.flush()

    def _write(self, line: str, word: str) -> None:
        if self._terminal:
            sys.stdout.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
        else:
            separator = ("  " if not self._column else ", ") if self._column + len(word) < 100 else ",\n  "
            self._column = len(word) if "\n" in separator else self._column + len(word) + 2
            sys.stdout.write(separator + word)
        sys.stdout.flush()


def locked(text: str) -> int:
    """How many packages the lock has; some are for other platforms."""
    return len(re.findall(r"^[a-z0-9][a-z0-9._-]*==", text, flags=re.MULTILINE | re.IGNORECASE))


def install(screen: Screen, *arguments: str) -> None:
    """Run pip, and follow it; what it printed is shown if it fails."""
    command = [*PIP, *arguments]
    pip = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert pip.stdout is not None, "asked for above"
    printed: list[str] = []
    for line in pip.stdout:
        printed.append(line)
        if found := FOUND.match(line):
            screen.package(f"{found['name']} {found['version']}")
        elif line.startswith("Installing collected packages"):
            screen.step("unpacking")
    if pip.wait():
        screen.end()
        sys.exit("".join(printed[-30:]) + f"installing failed: {' '.join(command)}")


def main() -> None:
    """Install."""
    began = time.monotonic()
    count = locked(LOCK.read_text())
    print(
        f"Installing {count} packages with pinned hashes into {Path(sys.prefix).name}: gRPC, asyncpg, PostgreSQL\n"
        "(about 25 MB), and the tools of the tests. This is done once, and after changes of requirements.lock.",
        flush=True,
    )
    screen = Screen(count)
    install(screen, "--require-hashes", "-r", str(LOCK))
    screen.step("headgate from this folder")
    install(screen, "--no-deps", "--no-build-isolation", "-e", ".")
    screen.end()
    print(f"installed in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
