"""`headgate worker app.module:hg`: runs the jobs registered on a Headgate object, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headgate.cli.values import level_of
from headgate.domain.errors import InvalidInput
from headgate.ops import logs
from headgate.sdk import Headgate, WorkerOptions


def worker_command(
    app: str,
    *,
    concurrency: int = 32,
    topics: str = "",
    grace: float = 30,
    worker_id: str = "",
    reload: bool = False,
    log_level: str = "INFO",
) -> None:
    """Run a worker.

    Parameters
    ----------
    app
        Where the Headgate object is: `package.module:name`.
    concurrency
        How many jobs may run at once.
    topics
        Only these, separated by commas; all registered ones when left out.
    grace
        Seconds that running handlers get to finish after SIGTERM.
    worker_id
        The name of this process; one is made up when left out.
    reload
        Development: start anew when a Python file below the current folder changes.
    """
    if reload:
        _watch([argument for argument in sys.argv[1:] if argument != "--reload"])
        return
    logs.configure(level_of(log_level))
    options: WorkerOptions = {"concurrency": concurrency, "grace": grace}
    if topics:
        options["topics"] = [topic.strip() for topic in topics.split(",")]
    if worker_id:
        options["worker_id"] = worker_id
    load(app).run_worker(**options)


def load(app: str) -> Headgate:
    """Import `package.module:name`, with the current folder on the path as `python -m` has it."""
    module_name, _, name = app.partition(":")
    if not module_name or not name:
        raise InvalidInput("app", f'"{app}" does not say where to look', hint="write package.module:name")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise InvalidInput(
                "app", f'there is no module "{module_name}" here', hint="start it in your project"
            ) from None
        raise
    found = getattr(module, name, None)
    if not isinstance(found, Headgate):
        kinds = [key for key, value in vars(module).items() if isinstance(value, Headgate)]
        hint = f"did you mean {module_name}:{kinds[0]}?" if kinds else "make one: hg = Headgate()"
        raise InvalidInput("app", f'"{name}" in {module_name} is not a Headgate object', hint=hint)
    return found


def _watch(arguments: list[str]) -> None:
    """Keep a worker process running, and replace it when the code changes. It drains first, so no attempt is spent."""
    while True:
        child = subprocess.Popen([sys.executable, "-m", "headgate.cli", *arguments])
        before = _stamps()
        try:
            while child.poll() is None and _stamps() == before:
                time.sleep(0.5)
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.wait()
            return
        if child.poll() is not None:
            while _stamps() == before:  # it ended by itself: wait for the next change, as after a syntax error
                time.sleep(0.5)
        else:
            print("headgate worker: code changed, starting anew", file=sys.stderr, flush=True)
            child.terminate()
            child.wait()


def _stamps() -> dict[str, int]:
    stamps: dict[str, int] = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [
            name for name in folders if not name.startswith((".", "__")) and name not in ("node_modules", "build")
        ]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    stamps[path] = os.stat(path).st_mtime_ns
                except OSError:
                    continue
    return stamps
