"""Run a command whose output goes through a pipe that can be closed: see `LogPipe`. Started by its path."""

from __future__ import annotations

import os
import sys
import time


def _through_pipe(flag: str, command: list[str]) -> None:
    """Be the command; a child copies what it prints until the flag's file exists."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        os.set_blocking(reading, False)
        while not os.path.exists(flag):
            try:
                data = os.read(reading, 65536)
            except BlockingIOError:
                time.sleep(0.02)
                continue
            if not data:
                break
            os.write(1, data)
        os._exit(0)
    os.close(reading)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.execvp(command[0], command)  # noqa: S606 - that is what it is for


if __name__ == "__main__":
    _through_pipe(sys.argv[1], sys.argv[2:])
