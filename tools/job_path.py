"""Print the functions and files that one job passes, from `submit` to its archive row and its result at the caller.

    python -m tools.job_path [DATABASE_URL]      without one, on an embedded PostgreSQL in a temporary folder

One process runs a real server, a producer and a worker over real sockets. The worker waits, the producer submits a job,
and asks for its result once the job is in the archive; that is done many times, one job after the other, after some
that are not counted. The next one is submitted when the server has looked for more jobs and waits for it. So the count
does not depend on how busy the machine is.

The rule. A function is on the path if most of the jobs run a line of it between the submit and the result, in any
thread. It is counted once, however often it runs. Counted are functions, methods, properties, nested functions and
lambdas that are defined in src/headgate; not what is generated (wire/, the methods of data classes), comprehensions,
which are part of their function, and the handler itself. Left out are the calls of tasks that also call functions of
ours while the system is idle (ticks, renewals, health and so on): they run whether there is a job or not; and the
claimer's look for more jobs after this one.

Of these, *steps* are the functions that call another function on the path: they pass the job on. The others, marked
with a dot, only check, look up or convert something.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import headgate
from headgate import Headgate, embedded
from headgate.server import Server, ServerOptions
from headgate.store.connect import Connection, connect
from headgate.store.migrate import migrate

OURS: Final = Path(headgate.__file__).parent
WARM_UP, JOBS = 20, 41
IDLE_SECONDS: Final = 3.0
"""Longer than the second between two ticks, presence reports and so on."""
ARCHIVED: Final = "SELECT EXISTS (SELECT FROM headgate.archive WHERE id = $1)"
CLAIMER: Final = "claims"
"""The task that looks for more jobs."""
Function = tuple[str, str]
"""The file, relative to src/headgate, and the qualified name."""
Call = tuple[str, Function, Function | None]
"""The task, the function, and its caller."""
Trace = Callable[[FrameType, str, object], Any]


class Calls:
    """Calls of functions of ours while it records: the task, the function, and the one of ours that called it."""

    def __init__(self) -> None:
        self._ours: dict[CodeType, Function | None] = {}
        self._found: set[Call] | None = None

    @contextmanager
    def recorded(self) -> Iterator[set[Call]]:
        """Record; the set is complete at the end."""
        found = self._found = set()
        try:
            yield found
        finally:
            self._found = None

    def trace(self, frame: FrameType, event: str, _argument: object) -> Trace | None:
        """For sys.settrace and threading.settrace; follows the frames of our functions."""
        found = self._found  # another thread may end the recording at any time
        if found is None or (function := self._function(frame.f_code)) is None:
            return None
        # A line is run: a coroutine that is only resumed because what it awaits continues has none.
        if event == "line":
            caller = frame.f_back
            while caller is not None and self._function(caller.f_code) is None:
                caller = caller.f_back
            found.add((_task_name(), function, caller and self._function(caller.f_code)))
        return self.trace

    def _function(self, code: CodeType) -> Function | None:
        if code not in self._ours:
            self._ours[code] = _function_of(code)
        return self._ours[code]


def _function_of(code: CodeType) -> Function | None:
    """Its name if it counts."""
    path = Path(code.co_filename)
    if not path.is_relative_to(OURS) or path.is_relative_to(OURS / "wire"):
        return None
    if code.co_name.startswith("<") and code.co_name != "<lambda>":  # a comprehension or the body of a module
        return None
    return str(path.relative_to(OURS)), code.co_qualname


def _task_name() -> str:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return threading.current_thread().name
    return "" if task is None else task.get_name()


async def path_of_a_job(database_url: str, db: Connection) -> tuple[set[Function], set[Function]]:
    """The functions on the path, and those of them that are steps."""
    calls = Calls()
    threading.settrace(calls.trace)
    sys.settrace(calls.trace)
    server = Server(ServerOptions(database_url=database_url, port=0, dev=True, grace=timedelta(0)))
    await server.start()
    async with Headgate(f"127.0.0.1:{server.port}") as hg:

        @hg.job("path")
        async def echo(text: str) -> str:
            return text

        async def one_job() -> None:
            job = await echo.submit("x")
            async with asyncio.timeout(30):
                while not await db.fetchval(ARCHIVED, job.id):  # noqa: ASYNC110 - it waits for a row
                    await asyncio.sleep(0.001)
            assert await job.result(timeout=30) == "x"

        async def until_idle() -> None:
            async with asyncio.timeout(30):
                while any(demand.busy for demand in server.demands):  # noqa: ASYNC110 - it waits for the state of the server
                    await asyncio.sleep(0.001)

        # Two slots: with one, a claim is full or not by what the worker reads ahead, and that follows the load.
        worker = hg.worker(concurrency=2)
        working = asyncio.create_task(worker.run(), name="worker")
        try:
            for _ in range(WARM_UP):
                await one_job()
                await until_idle()
            with calls.recorded() as idle:
                await asyncio.sleep(IDLE_SECONDS)
            background = {task for task, _, _ in idle if task} | {CLAIMER}
            counts: Counter[Function] = Counter()
            callers: set[tuple[Function, Function | None]] = set()
            for _ in range(JOBS):
                await until_idle()
                with calls.recorded() as found:
                    await one_job()
                calls_of_job = {(function, caller) for task, function, caller in found if task not in background}
                counts.update({function for function, _ in calls_of_job})
                callers |= calls_of_job
        finally:
            worker.stop()
            await working
    sys.settrace(None)
    threading.settrace(None)
    await server.stop(drain=False)
    path = {function for function, count in counts.items() if count > JOBS // 2}
    return path, {caller for function, caller in callers if function in path and caller in path and caller != function}


async def _run(database_url: str) -> None:
    db = await connect(database_url, application_name="headgate job path")
    try:
        await migrate(db)
        path, steps = await path_of_a_job(database_url, db)
    finally:
        await db.close()
    files = Counter(file for file, _ in path)
    for file, count in sorted(files.items()):
        print(f"{file}: {count}")
        for name in sorted(name for one, name in path if one == file):
            print(f"    {'' if (file, name) in steps else '. '}{name}")
    print(
        f"{len(path)} functions in {len(files)} files; {len(steps)} steps in {len({file for file, _ in steps})} files"
    )


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(_run(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder, embedded.start(Path(folder) / "postgres") as cluster:
        asyncio.run(_run(cluster.dsn()))


if __name__ == "__main__":
    os.environ.pop("HEADGATE_TOKEN", None)
    main()
