"""What can be done to a process: stop it, freeze it, take its memory, its descriptors, its clock or its log away."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from tests.fault.lab.inject import CannotInject, Injection, need, run

CGROUPS: Final = Path("/sys/fs/cgroup")
_numbers = count(1)


def tree(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split() if int(child) not in found]
    return found


def state_of(pid: int) -> str:
    """Its letter in /proc: R, S, D, T (stopped), Z; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Stopped(Injection):
    """SIGSTOP to a process and its descendants, until `heal`."""

    def __init__(self, pid: int) -> None:
        self._pids: list[int] = []
        # Parents first: a stopped one makes no more children. Again, for those it made meanwhile.
        while fresh := [one for one in tree(pid) if one not in self._pids]:
            for one in fresh:
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGSTOP)
            self._pids += fresh

    def heal(self) -> None:
        pids, self._pids = self._pids, []
        for one in reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


# ---------------------------------------------------------------------- cgroups


class Group(Injection):
    """A control group of our own, below the one we are in; its members go back where we are when it heals."""

    def __init__(self, controller: str) -> None:
        """`freezer` or `memory`. By version 1 if there is such a hierarchy, else by version 2."""
        self.v1 = (CGROUPS / controller / "cgroup.procs").exists()
        base = CGROUPS / controller if self.v1 else next(_v2_roots(), None)
        if base is None:
            raise CannotInject(f"no cgroup hierarchy with {controller} is mounted")
        self._home = base / _own_group(controller if self.v1 else "").lstrip("/")
        if not self.v1 and controller != "freezer":  # every v2 group can be frozen
            usable = (self._home / "cgroup.controllers").read_text().split()
            enabled = (self._home / "cgroup.subtree_control").read_text().split()
            if controller not in usable or controller not in enabled:
                raise CannotInject(f"the controller {controller} is not delegated to {self._home}")
        self.path = self._home / f"headgate-lab-{os.getpid()}-{next(_numbers)}"
        try:
            self.path.mkdir()
        except OSError as error:
            raise CannotInject(f"no right to make a group in {self._home}: {error.strerror}") from error
        self._gone = False

    def write(self, name: str, value: str) -> None:
        """Set one of its files; CannotInject when the kernel refuses."""
        try:
            (self.path / name).write_text(value)
        except OSError as error:
            raise CannotInject(f"{self.path / name}: {error.strerror}") from error

    def add(self, pids: Iterable[int]) -> None:
        """Put processes into it."""
        for pid in pids:
            self.write("cgroup.procs", str(pid))

    def heal(self) -> None:
        if self._gone:
            return
        self._gone = True
        for pid in (self.path / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (self._home / "cgroup.procs").write_text(pid)
        until = time.monotonic() + 5
        while True:
            try:
                self.path.rmdir()
                return
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:  # the dead leave it with some delay
                    raise
                time.sleep(0.02)


class Freezer(Group):
    """Freezes processes where they are, without a signal they could see: as a machine that sleeps."""

    def __init__(self, pids: Iterable[int]) -> None:
        super().__init__("freezer")
        try:
            self.add(pids)
        except BaseException:
            self.heal()
            raise

    def freeze(self) -> None:
        """Returns when all of them stand still."""
        self._set(frozen=True)

    def thaw(self) -> None:
        """They go on."""
        self._set(frozen=False)

    def heal(self) -> None:
        if not self._gone:
            self.thaw()
        super().heal()

    def _set(self, *, frozen: bool) -> None:
        if self.v1:
            self.write("freezer.state", "FROZEN" if frozen else "THAWED")
        else:
            self.write("cgroup.freeze", "1" if frozen else "0")
        until = time.monotonic() + 10
        while self._is_frozen() != frozen:
            if time.monotonic() > until:
                raise CannotInject(f"{self.path} did not {'freeze' if frozen else 'thaw'}")
            time.sleep(0.005)

    def _is_frozen(self) -> bool:
        if self.v1:
            return (self.path / "freezer.state").read_text().strip() == "FROZEN"
        return "frozen 1" in (self.path / "cgroup.events").read_text()


class MemoryLimit(Group):
    """Lets processes have so many bytes together; the kernel kills one that takes more (OOM)."""

    def __init__(self, limit: int) -> None:
        super().__init__("memory")
        try:
            self.limit(limit)
            with suppress(CannotInject):  # or it would swap instead
                self.write("memory.swappiness" if self.v1 else "memory.swap.max", "0")
        except BaseException:
            self.heal()
            raise

    def limit(self, most: int) -> None:
        """From now on so many bytes; not less than what is in use and cannot be given back."""
        self.write("memory.limit_in_bytes" if self.v1 else "memory.max", str(most))

    def tighten(self, *, slack: int) -> None:
        """What its members have now, and so many bytes more."""
        used = int((self.path / ("memory.usage_in_bytes" if self.v1 else "memory.current")).read_text())
        self.limit(used + slack)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Put before a command, starts it inside: what it allocates from its first byte on counts."""
        return ("/bin/sh", "-c", f'echo $$ > "{self.path}/cgroup.procs" && exec "$@"', "sh")

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed for it."""
        text = (self.path / ("memory.oom_control" if self.v1 else "memory.events")).read_text()
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def _own_group(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    raise CannotInject(f"this process is in no group of {controller or 'cgroup version 2'}")


def _v2_roots() -> Iterator[Path]:
    for root in (CGROUPS, CGROUPS / "unified"):
        if (root / "cgroup.controllers").exists():
            yield root


# ---------------------------------------------------------------------- descriptors


class FewDescriptors(Injection):
    """A process may have at most so many files and sockets open; what it has stays."""

    def __init__(self, pid: int, most: int) -> None:
        self._pid = pid
        try:
            self._before: tuple[int, int] | None = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, self._before[1]))
        except PermissionError as error:
            raise CannotInject(f"no right to limit process {pid}: {error}") from error

    @staticmethod
    def open_now(pid: int) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{pid}/fd"))

    def heal(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            with suppress(ProcessLookupError):
                resource.prlimit(self._pid, resource.RLIMIT_NOFILE, before)


# ---------------------------------------------------------------------- clocks


class FalseClock(Injection):
    """The wall clock of processes started with `environ`: shifted, also while they run. Monotonic clocks stay true.

    By a preloaded library of our own, compiled at its first use: only for dynamically linked programs.
    """

    def __init__(self, folder: Path, *, offset: float = 0.0) -> None:
        """`folder` must be readable for the account that is started with it."""
        library = _false_clock()
        self._file = folder / f"clock-{os.getpid()}-{next(_numbers)}"
        self._file.write_bytes(b"\0" * 8)
        self._file.chmod(0o644)
        self.set(offset)
        self.environ = {"LD_PRELOAD": str(library), "LAB_CLOCK_FILE": str(self._file)}

    @property
    def prefix(self) -> tuple[str, ...]:
        """Put before a command, the same as `environ`."""
        return ("/usr/bin/env", *(f"{name}={value}" for name, value in self.environ.items()))

    def set(self, offset: float) -> None:
        """Shift by so many seconds; in force when this returns."""
        with self._file.open("r+b", buffering=0) as file:  # in place: it is mapped into memory
            file.write(int(offset * 1e9).to_bytes(8, sys.byteorder, signed=True))

    def heal(self) -> None:
        self.set(0.0)


def _false_clock() -> Path:
    """The compiled library, readable for all. Made once for a version of its source."""
    need("cc")
    source = Path(__file__).with_name("false_clock.c")
    stamp = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    made = Path(tempfile.gettempdir()) / f"headgate-lab-clock-{os.getuid()}-{stamp}.so"
    if not made.exists():
        fresh = made.with_suffix(f".{os.getpid()}")
        run(["cc", "-shared", "-fPIC", "-O2", "-o", str(fresh), str(source), "-ldl", "-lpthread"])
        fresh.chmod(0o755)
        fresh.rename(made)
    return made


# ---------------------------------------------------------------------- the log


class LogPipe(Injection):
    """A command's output goes through a pipe to its old place, until `close`: then no one reads it any more.

    `prefix` is put before the command, which keeps its process id.
    """

    def __init__(self, folder: Path) -> None:
        self._flag = folder / f"close-log-{os.getpid()}-{next(_numbers)}"
        self.prefix = (sys.executable, "-I", "-S", str(Path(__file__).with_name("log_pipe.py")), str(self._flag))

    def close(self) -> None:
        """The reader goes away; writers get EPIPE. There is no way back but a new start."""
        self._flag.touch()

    def heal(self) -> None:
        self._flag.unlink(missing_ok=True)  # a new start has a reader again
