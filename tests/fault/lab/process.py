"""The laboratory's processes: servers and recording workers that keep their names and addresses over restarts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from tests.support.server import READY, LoggedProcess, clean_environ
from tests.support.workers import CONNECTED

ROOT: Final = Path(__file__).parents[3]
"""The tree this laboratory was started from: a mutant's copy runs its own code, not what is installed."""
START: Final = timedelta(seconds=40)
CONCURRENCY: Final = 8
"""Slots of a worker."""


def environ(**more: str) -> dict[str, str]:
    """For children: this tree's code, none of our own settings."""
    return {**clean_environ(), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONUNBUFFERED": "1", **more}


class LabServer(LoggedProcess):
    """`headgate serve`, or the same with failpoints armed; ready when the constructor returns."""

    def __init__(
        self,
        name: str,
        dsn: str,
        *,
        folder: Path,
        tokens: Path,
        lease: float,
        port: int = 0,
        args: Sequence[str] = (),
        armed: str = "",
        seed: int = 1,
        variables: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        within: timedelta = START,
    ) -> None:
        """`armed` is a plan for `tests.fault.lab.armed`; `prefix` is put before the command (prlimit, faketime …)."""
        launcher = ["-m", "tests.fault.lab.armed", armed, str(seed), "--"] if armed else ["-m", "headgate.cli"]
        super().__init__(
            name,
            [
                *prefix, sys.executable, *launcher,
                "serve", *(() if "--http-port" in args else ("--no-http",)), "--port", str(port), "--tokens", tokens,
                "--lease", str(lease), "--name", name,
                *args,
            ],
            folder=folder,
            environ=environ(HEADGATE_DATABASE_URL=dsn, **(variables or {})),
        )  # fmt: skip
        try:
            ready = self.saw(READY, within=within)
        except BaseException:
            self.kill()
            raise
        self.port = int(ready["port"])


class LabWorker(LoggedProcess):
    """`tests.fault.lab.worker`; connected when the constructor returns, unless `wait` is off."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        *,
        folder: Path,
        token: str,
        concurrency: int = CONCURRENCY,
        prefetch: int = -1,
        topics: Sequence[str] = (),
        grace: float = 5,
        armed: str = "",
        seed: int = 1,
        variables: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        wait: bool = True,
    ) -> None:
        launcher = ["-m", "tests.fault.lab.armed", armed, str(seed)] if armed else []
        super().__init__(
            name,
            [
                *prefix, sys.executable, *launcher, "-m", "tests.fault.lab.worker", ",".join(addresses), folder,
                "--name", name, "--concurrency", str(concurrency), "--prefetch", str(prefetch), "--grace", str(grace),
                "--topics", ",".join(topics),
            ],
            folder=folder,
            environ=environ(HEADGATE_TOKEN=token, **(variables or {})),
        )  # fmt: skip
        if wait:
            try:
                self.saw(CONNECTED, within=START)
            except BaseException:
                self.kill()
                raise
