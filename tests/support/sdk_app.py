"""Handlers at the top of a module, as users have them, and a worker to be run as a process: python -m ... ADDRESS."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from headgate import Headgate, Job, Nack, this_job
from headgate.sdk.worker import forced_exit
from headgate.sdk.worker.process_child import Child
from headgate.sdk.worker.process_pipe import MESSAGE_MAX_BYTES
from headgate.testing import fake_job

hg = Headgate()


@hg.job("square", run_in="process")
def square(n: int, *, job: Job = this_job) -> dict[str, int]:
    if n < 0:
        raise Nack(delay=2, reason="negative")
    if n == 99:
        os._exit(3)
    return {"square": n * n, "pid": os.getpid(), "attempt": job.attempt}


def cube(n: int) -> int:
    return n**3


hg.register("cube", cube, run_in="process")


def whereabouts(n: int) -> tuple[int, int, str]:
    return n, os.getpid(), threading.current_thread().name


@hg.job("report", run_in="process", time_limit=60)
def report(path: str, *, job: Job = this_job) -> dict[str, object]:
    """Uses all that a Job offers, then waits for its cancellation."""
    job.progress(1, 3, "begun")
    job.extend(120)
    job.logger.warning("in process %d with %s", os.getpid(), job.headers.get("trace"))
    logging.getLogger("some.library").info("not shown at WARNING")
    told = job.cancelled.wait(timeout=20)
    Path(path).write_text(f"told {told}")
    return {"told": told, "flag": job.cancel_requested, "pid": os.getpid()}


@hg.job("deafen", run_in="process")
def deafen(path: str, ears: str, *, job: Job = this_job) -> str:
    """Computes forever; `ears` says what it makes of being interrupted."""
    job.progress(os.getpid())
    while True:
        try:
            time.sleep(30)
        except Exception:
            Path(path).write_text("interrupted")
            if ears != "deaf":
                raise


@hg.job("crash", run_in="process")
def crash(how: str) -> str:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "pool":  # a handler may have processes of its own
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return str(pool.apply(abs, (-3,)))
    raise SystemExit(how)


@hg.job("last-words", run_in="process")
def last_words(how: str, runs: str = "", *, job: Job = this_job) -> dict[str, int]:
    """Its result is out, or not, when its process dies; `runs` is a file with a mark for each run."""
    if runs:
        with Path(runs).open("a") as file:
            file.write("x")
    if how == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill":
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if how == "exit":
        threading.Timer(0.3, os._exit, (0,)).start()
    return {"pid": os.getpid(), "attempt": job.attempt}


class Trap:
    """Unpickled, it makes a file: its reader runs what it says."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(self._path),)


@hg.job("taken-over", run_in="process")
def taken_over(path: str, how: str) -> str:
    """Says to its parent what no child of ours would."""
    (child,) = [one for one in gc.get_objects() if isinstance(one, Child)]
    if how == "log":
        logging.getLogger("headgate.job").warning("odd %s", "\ud800", extra={"big": 2**70, "long": "x" * 10_000_000})
        return "said"
    if how == "pickle":
        child._pipe.connection.send(Trap(path))
    if how == "endless":
        child._pipe.connection.send_bytes(b"x" * (MESSAGE_MAX_BYTES + 1))
    if how == "unknown":
        child._pipe.connection.send_bytes(msgspec.msgpack.encode(["Exec", "rm"]))
    time.sleep(30)
    return "never"


_next_has_begun, _left_behind = threading.Event(), list[threading.Thread]()


@hg.job("left-behind", run_in="process")
def left_behind(*, first: bool, job: Job = this_job) -> None:
    """The first leaves a thread that speaks for it while the second runs in the same process."""

    def speak() -> None:
        _next_has_begun.wait(20)
        job.progress(777)
        job.extend(777)

    if first:
        _left_behind.append(threading.Thread(target=speak))
        _left_behind[0].start()
        return
    _next_has_begun.set()
    _left_behind[0].join()
    job.progress(2)
    job.extend(60)
    job.cancelled.wait(timeout=20)


@hg.job("limited-process", run_in="process", time_limit=0.3)
def limited_process(ears: str) -> None:
    deafen.function("/dev/null", ears, job=fake_job())


@hg.job("limited-async", time_limit=0.2)
async def limited_async(ears: str) -> str:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if ears == "late":
                return "just in time"
            if ears != "deaf":
                raise


@hg.job("limited-thread", time_limit=0.2)
def limited_thread(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return "late"


hg.register("unlimited-thread", limited_thread.function)


@hg.job("linger")
async def linger(job: Job) -> str:
    await job.cancelled.wait_async()
    job.raise_if_cancelled()
    return "never"


@hg.job("block")
async def block(seconds: float, *, job: Job = this_job) -> str:
    job.progress(0)  # the sign that it has begun
    time.sleep(seconds)
    return "woke"


@hg.job("quick")
async def quick() -> str:
    return "done"


if __name__ == "__main__":
    topics = sys.argv[2].split(",") if len(sys.argv) > 2 else ["linger", "block", "quick"]
    logging.basicConfig(level=logging.INFO)
    forced_exit.LEAVING_SECONDS = float(os.environ.get("LEAVING_SECONDS", "6"))  # type: ignore[misc]
    hg.run_worker(concurrency=2, grace=float(sys.argv[1]), cancel_grace=0.1, topics=topics)
