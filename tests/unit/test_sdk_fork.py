"""Clients and real forks: made before and used after is the way of preloading servers; used before is refused."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_server import fake_server

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
]

PRELUDE = """
import asyncio, os, signal, sys, traceback
from headgate import ForkedProcess, Headgate

hg = Headgate()

@hg.job("resize")
def resize(n: int) -> int:
    return n

def say(word):
    os.write(1, f"{word}\\n".encode())  # in one piece, whichever process writes beside it

def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a hang is a failure, not a wait
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid

def all_well(*pids):
    for pid in pids:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == 0, code
"""

PRELOADED = (
    PRELUDE
    + """
worker = hg.worker(concurrency=1)
def serve():
    say(hg.sync.submit(resize, os.getpid()).id)
    asyncio.run(submit_async())
async def submit_async():
    async with hg:
        say((await resize.submit(1)).id)
all_well(in_child(serve), in_child(serve))
say(hg.sync.submit(resize, 0).id)  # the parent is none the worse
hg.sync.close()
os._exit(0)  # how an interpreter ends is not what is tested here
"""
)

USED_BEFORE = (
    PRELUDE
    + """
hg.sync.submit(resize, 1)
def refused():
    for client in (hg, Headgate()):
        try:
            client.sync.submit(resize, 2) if client is hg else client.sync.submit_to("resize", {"n": 2})
        except ForkedProcess as error:
            assert "first use a client after the fork" in str(error)
        else:
            raise AssertionError("it was not refused")
        try:
            asyncio.run(client.worker().run() if client is hg else client.get("0198c0de-0000-7000-8000-000000000000"))
        except ForkedProcess:
            say("refused")
    client.sync.close()
all_well(in_child(refused))
hg.sync.submit(resize, 3)
hg.sync.close()
os._exit(0)
"""
)


async def run(code: str, address: str, folder: Path) -> list[str]:
    script = folder / "app.py"
    script.write_text(code)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, script],
        env={**os.environ, "HEADGATE_URL": address},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


async def test_a_client_made_before_a_fork_works_in_every_child_and_in_the_parent(tmp_path: Path) -> None:
    async with fake_server() as server:
        printed = await run(PRELOADED, server.address, tmp_path)
        assert len(set(printed)) == 5
        assert len(server.producers) == 3  # a stream for each process
        assert {raw for stream in server.producers for raw in stream.ids()} == {
            bytes.fromhex(one.replace("-", "")) for one in printed
        }


async def test_a_client_used_before_a_fork_is_refused_in_the_child_and_works_in_the_parent(tmp_path: Path) -> None:
    async with fake_server() as server:
        assert await run(USED_BEFORE, server.address, tmp_path) == ["refused", "refused"]
        assert sum(len(stream.ids()) for stream in server.producers) == 2
