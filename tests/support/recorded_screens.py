"""The recorded terminal screens of docs/screens: the first steps and the demo, run with real processes.

`python -m tests.support.recorded_screens` records those that show something that is no longer printed. Ids, times and
counts differ at each run, so tests compare the `shape` of a screen: its text without them.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.database import temporary_folder
from tests.support.ports import lasting_port
from tests.support.server import HEADGATE, LoggedProcess, clean_environ

ROOT: Final = Path(__file__).parents[2]
FIRST_STEPS: Final = ROOT / "docs/screens/first-steps.txt"
DEMO: Final = ROOT / "docs/screens/demo.txt"
SECONDS_MAX: Final = 150
_VARIABLE: Final = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\d{4}-\d\d-\d\d([T ][\d:.,]+Z?)?", "TIME"),
    (r"(?<=/hg-)[0-9a-f]+|(?<=-)[0-9a-f]{8}\b|(?<=headgate-demo-)\w+", "NAME"),
    (r"\d[\d,.]*( ?(ms|s|m|h)\b)?", "N"),
    (r"[ \t]+", " "),  # columns are as wide as what they show
)
# Printed at some runs of the demo and not at others: by the second, and by what the producer notices of a kill. Bars
# differ in their lengths and notes.
_SOMETIMES: Final = re.compile(
    r"submitted and acknowledged|producer: |PostgreSQL does not answer|^(order|account|report|card| report N) .* of N"
)


def shape(screen: str) -> list[str]:
    """The lines that every run prints, without what differs between runs."""
    for pattern, name in _VARIABLE:
        screen = re.sub(pattern, name, screen)
    return [line for line in screen.splitlines() if not _SOMETIMES.search(line)]


@contextmanager
def _folder() -> Iterator[Path]:
    """With a short path, and open for the account that PostgreSQL runs under."""
    made = temporary_folder()
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def first_steps() -> str:
    """Make an app, start a server and a worker, submit, look: what a terminal shows."""
    lines: list[str] = []
    port, http_port = lasting_port(), lasting_port()
    with _folder() as home:
        here = home / "hello"
        environ = {
            **clean_environ(),
            "HOME": str(home),
            "PATH": f"{HEADGATE.parent}:/usr/bin:/bin",
            "HEADGATE_URL": f"127.0.0.1:{port}",
            "HEADGATE_PORT": str(port),
            "HEADGATE_HTTP_PORT": str(http_port),
        }

        def run(command: str, folder: Path = here) -> None:
            done = subprocess.run(
                shlex.split(command),
                cwd=folder,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
            lines.extend((f"$ {command}", *done.stdout.splitlines()))

        run("headgate init hello", home)
        lines.extend(("$ cd hello", "$ headgate dev &"))
        with LoggedProcess("dev", [HEADGATE, "dev"], folder=here, environ=environ) as dev:
            dev.saw(r"^ready in .*\n")
            lines.extend(_printed(dev))
            run("headgate dev --port 7080")
            lines.append("$ headgate worker app:hg &")
            with LoggedProcess("worker", [HEADGATE, "worker", "app:hg"], folder=here, environ=environ) as worker:
                worker.saw(r"schedules_stored .*\n")
                run("python app.py")
                worker.saw(r"job_nacked .*\n")
                lines.extend(_printed(worker))
                run("""headgate submit greet '{"name": "Eve"}' --wait 30s""")
                run("headgate status")
                worker.terminate()
            dev.terminate()
    text = "\n".join(lines) + "\n"
    text = text.replace(f"   export HEADGATE_URL=127.0.0.1:{port}", "")  # not printed for the default port
    text = re.sub(rf"(?<=[:=]){port}\b", "7070", text)
    text = re.sub(rf"(?<=[:=]){http_port}\b", "7071", text)
    text = re.sub(r"'?/\S*/psql'?", "psql", text)  # beside the embedded server, if none is installed
    return _without_this_machine(text.replace(str(home), "/home/ada"))


def demo() -> str:
    """What `make demo` shows."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    return _without_this_machine(f"$ make demo\n{done.stdout}")


def _printed(process: LoggedProcess) -> list[str]:
    """Without the run of a schedule at a full minute, and without warnings about a slow machine."""
    lines = process.text().splitlines()
    return [line for line in lines if "clean up" not in line and (" WARNING " not in line or " dev_mode " in line)]


def _without_this_machine(text: str) -> str:
    return text.replace(socket.gethostname(), "vm")


def main() -> None:
    """Record the screens that show something else than the programs."""
    for path, screen in ((FIRST_STEPS, first_steps()), (DEMO, demo())):
        if shape(path.read_text()) != shape(screen):
            path.write_text(screen)
            sys.stdout.write(f"recorded {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
