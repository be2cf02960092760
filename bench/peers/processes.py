"""The peers' programs as processes that never outlive the lane, and the count of jobs their handlers began."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.peers.install import Installed

_RECORD = struct.Struct("<qqq")  # as programs/kit.py writes it


@dataclass(frozen=True, slots=True)
class Count:
    """Over all processes of a worker."""

    handled: int
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Sent:
    """What a producer did, on this machine's monotonic clock."""

    started: float
    ended: float
    count: int


class Programs:
    """All programs of one peer on one store: where they are, and where they count."""

    def __init__(self, installed: Installed, url: str, folder: Path, options: Mapping[str, object]) -> None:
        self._installed, self._url, self._folder = installed, url, folder
        self._environ = os.environ | {name: str(value) for name, value in options.items()}

    def prepare(self) -> None:
        """Let the library make its tables."""
        done = subprocess.run(
            [*self._installed.command, "prepare", self._url, str(self._folder)],
            capture_output=True,
            env=self._environ,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise RuntimeError(f"preparing its tables ended with {done.returncode}: {last[:300]}")

    def forget(self) -> None:
        """Count from nothing again; only while no worker runs."""
        for path in self._folder.iterdir():
            path.unlink()

    def count(self) -> Count:
        """What the workers have begun so far."""
        found = []
        for path in self._folder.glob("*.tally"):
            data = path.read_bytes()
            if len(data) == _RECORD.size and (one := _RECORD.unpack(data))[0]:
                found.append(one)
        if not found:
            return Count(0, 0.0, 0.0)
        handled, first, last = zip(*found, strict=True)
        return Count(sum(handled), min(first) / 1e9, max(last) / 1e9)

    def waits(self) -> dict[str, list[float]]:
        """From before the submit to the start of the handler, in milliseconds, of the paced jobs, by process."""
        return {
            path.name: [int(line) / 1e6 for line in path.read_text().split()] for path in self._folder.glob("*.waits")
        }

    @contextmanager
    def workers(self, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        """The library's workers; killed at the end, with everything they started."""
        started: list[subprocess.Popen[bytes]] = []
        try:
            with (self._folder.parent / "worker.log").open("ab") as log:
                while len(started) < count:
                    started.append(self._start("work", stdout=log, stderr=log))
            yield started
        finally:
            for process in started:
                _end(process)

    @contextmanager
    def producer(self, role: str, *numbers: float) -> Iterator[Producer]:
        """A producer that is connected and waits for `go`."""
        process = self._start(role, *map(str, numbers), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            yield Producer(process)
        finally:
            _end(process)

    def _start(self, role: str, *rest: str, **streams: int | IO[bytes]) -> subprocess.Popen[bytes]:
        command = [*self._installed.command, role, self._url, str(self._folder), *rest]
        # Of their own session, so that what a library forks can be ended with it.
        return subprocess.Popen(command, env=self._environ, start_new_session=True, **streams)  # type: ignore[call-overload,no-any-return]


@contextmanager
def held_still(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Stopped, with all they started, and let go again: so that a backlog can be made under a connected worker."""
    for process in processes:
        os.killpg(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGCONT)


class Producer:
    """One that said it is ready."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if line != b"ready\n":
            raise RuntimeError(f"the producer ended before it was ready (said {line!r})")

    def go(self, *, seconds: float) -> Sent:
        """Let it send; returns when it has."""
        out, _ = self._process.communicate(b"go\n", timeout=seconds)
        if self._process.returncode:
            raise RuntimeError(f"the producer ended with {self._process.returncode}")
        found = json.loads(out.splitlines()[-1])
        return Sent(found["started"], found["ended"], found["sent"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it with all it started: its jobs are counted and checked by now, and a slow farewell measures nothing."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
