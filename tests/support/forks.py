"""Servers, workers and commands of tests as forks of a process that has imported them.

A start of `headgate serve` spends most of a second of a processor on imports, another command half of one, and the
tests start some hundred processes. So one process for each kind of program imports what it needs, once, and forks on
request.

A fork is a process like any other: with a pid, a log and signals of its own, and with the environment that it is given.
It does not have a command line of its own, what a module reads from the environment at import is that of the first
process, and its interpreter is not taken down at the end. Programs that depend on any of these are started as users
start them (tests/support/server.py).

The forks end with their parent, and that ends when the test run does: then no one holds the other end of its socket.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Never

ROOT = Path(__file__).parents[2]
HEADGATE = Path(sys.executable).with_name("headgate")
START_SECONDS = 60
Kind = Literal["headgate", "worker"]
"""Any command line of `headgate`, or the program of tests.support.workers."""
_IMPORTED = {
    "headgate": (
        *("headgate.cli.serve", "headgate.cli.serve_process", "headgate.server"),
        # What a server imports when it opens its HTTP port.
        *("headgate.api.http.app", "headgate.api.http.edge", "headgate.api.http.listener", "headgate.web.app"),
        *("headgate.cli.bench", "headgate.cli.doctor", "headgate.cli.migrate", "headgate.cli.worker"),
    ),
    "worker": ("headgate.sdk.worker.worker", "tests.support.workers"),
}
_PR_SET_PDEATHSIG = 1


class Fork:
    """A process that was forked, with the calls of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, forget: Callable[[int], None]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forget = forget
        self._ended = threading.Event()

    def ended(self, code: int) -> None:
        self.returncode = code
        self._ended.set()
        self._forget(self.pid)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks, and a thread that listens to it."""

    def __init__(self, kind: Kind, environ: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forks", kind, str(theirs.fileno())],
                cwd=ROOT,
                env={**environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._socket, self._answers = ours, ours.makefile("rb")
        self._turn, self._changed = threading.Lock(), threading.Condition()
        self._forks: dict[int, Fork] = {}
        self._started: list[Fork] = []
        self._listener = threading.Thread(target=self._listen, name=f"forks of {kind}s", daemon=True)
        self._listener.start()
        atexit.register(self.close)

    def start(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        log: Path,
        environ: Mapping[str, str],
        errors: Path | None = None,
    ) -> Fork:
        """Fork, and run the program with these arguments in this folder; its output goes to the log.

        What it prints on standard error goes to `errors`, if that is given.
        """
        request = {
            "arguments": list(arguments),
            "folder": str(folder),
            "log": str(log),
            "errors": str(errors or log),
            "environ": dict(environ),
        }
        with self._turn, self._changed:
            self._send(request)
            if not self._changed.wait_for(lambda: self._started, START_SECONDS):
                raise AssertionError(f"no process was forked within {START_SECONDS} s")
            return self._started.pop()

    def close(self) -> None:
        """End it, and what it has forked."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait(10)
        self._listener.join(10)  # it reads until the other end is closed
        self._answers.close()
        self._socket.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(request).encode() + b"\n")

    def _forget(self, pid: int) -> None:
        """It is known to have ended: from now on its pid may be another process's."""
        self._forks.pop(pid, None)
        with suppress(OSError):
            self._send({"forget": pid})

    def _listen(self) -> None:
        for line in self._answers:
            answer = json.loads(line)
            with self._changed:
                if "started" in answer:
                    fork = self._forks[answer["started"]] = Fork(answer["started"], self._forget)
                    self._started.append(fork)
                    self._changed.notify_all()
                else:
                    self._forks[answer["ended"]].ended(answer["code"])


def headgate(
    *arguments: str, environ: Mapping[str, str], folder: Path = ROOT, seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run `headgate` with these arguments: its exit code, and what it printed."""
    with TemporaryDirectory() as scratch:
        output, errors = Path(scratch, "output"), Path(scratch, "errors")
        output.touch()
        errors.touch()
        command = [str(HEADGATE), *arguments]
        process = fork_server("headgate").start(command, folder=folder, log=output, errors=errors, environ=environ)
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())


@cache
def fork_server(kind: Kind) -> ForkServer:
    """The one of this test run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    return ForkServer(kind, kept)


# ---------------------------------------------------------------------- the program


class _Parent:
    """Forks on request, and reports the ends of its children."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._children: set[int] = set()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for pytest, and for the children
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno())

    def run(self) -> dict[str, Any] | None:
        """Returns a request in the child that is to fulfil it, and None in the parent at the end of the run."""
        waiting = b""
        while True:
            ready, _, _ = select.select([self._requests, self._woken], [], [])
            if self._woken in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._report_ended()
            if self._requests in ready:
                received = self._requests.recv(1 << 20)
                if not received:
                    return None  # the children get a SIGKILL when this process ends
                *lines, waiting = (waiting + received).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    if "forget" in request:
                        os.waitpid(request["forget"], 0)
                    elif self._is_child():
                        return dict(request)

    def _is_child(self) -> bool:
        pid = os.fork()
        if pid:
            self._children.add(pid)
            self._say({"started": pid})
            return False
        signal.set_wakeup_fd(-1)
        for end in (self._requests, self._waker, self._woken):
            end.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return True

    def _report_ended(self) -> None:
        for pid in list(self._children):
            # Not reaped before the test run knows of it: until then no other process gets its pid.
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._children.discard(pid)
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                self._say({"ended": pid, "code": code})

    def _say(self, answer: Mapping[str, int]) -> None:
        with suppress(OSError):
            self._requests.sendall(json.dumps(answer).encode() + b"\n")


def _become(request: Mapping[str, Any]) -> None:
    """In the child: take over folder, environment and output."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    for target, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        (2, request["errors"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    ):
        source = os.open(path, flags)
        os.dup2(source, target)
        os.close(source)
    sys.argv = request["arguments"]


def main() -> None:
    """Import, wait for requests, and in each child run the program."""
    kind, number = sys.argv[1], int(sys.argv[2])
    if kind == "headgate":
        from headgate.cli.grpc_settings import configure_grpc

        configure_grpc()  # before gRPC is imported, as the command does
    for name in _IMPORTED[kind]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is imported is not looked at again: its pages stay shared
    with socket.socket(fileno=number) as requests:
        request = _Parent(requests).run()
        if request is None:
            return
    _become(request)
    _end(_run(kind))


def _run(kind: str) -> int:
    try:
        if kind == "headgate":
            from headgate.cli import main as command

            return command()
        from tests.support import workers

        workers.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the outermost level, as in any program
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> Never:
    """End as an interpreter does, but leave the modules: to take them down copies all memory shared with the parent."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
