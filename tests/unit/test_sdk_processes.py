"""Handlers in other processes, and a whole worker process under signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate import Encryption, Headgate
from headgate.sdk.addresses import addresses_of
from headgate.sdk.connection import Connection
from headgate.sdk.encryption import Purpose
from headgate.sdk.worker import Worker
from headgate.sdk.worker.process_child import LOG_TEXT_MAX_BYTES
from tests.support import sdk_app
from tests.support.fake_server import fake_server, until
from tests.unit.sdk_working import working


@contextmanager
def worker_process(address: str, *, grace: float) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-m", "tests.support.sdk_app", str(grace)],
        env={**os.environ, "HEADGATE_URL": address},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_cpu_handlers_run_in_other_processes_and_a_dead_one_fails_only_its_job() -> None:
    async with fake_server() as server:
        tasks = {topic: sdk_app.hg.tasks[topic] for topic in ("square", "cube")}
        worker = Worker(Connection(addresses_of(server.address), token=""), tasks, concurrency=4, processes=1)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        (one,) = peer.deliver("square", b'{"n":7}', attempt=3)
        (two,) = peer.deliver("cube", b'{"n":3}')
        (three,) = peer.deliver("square", b'{"n":-1}')
        await until(lambda: len(peer.completed()) == 2 and peer.others(), "all are done")
        result = json.loads(peer.completed()[one])
        assert (result["square"], result["attempt"]) == (49, 3)
        assert result["pid"] != os.getpid()
        assert peer.completed()[two] == b"27"
        assert (peer.others()[0].id, peer.others()[0].nack.reason) == (three, "negative")
        peer.deliver("square", b'{"n":99}')
        await until(lambda: len(peer.others()) == 2, "the dead process is reported")
        assert peer.others()[1].failed.type == "ProcessDied"
        (again,) = peer.deliver("square", b'{"n":2}')
        await until(lambda: again in peer.completed(), "a new process works")
        worker.stop()
        await running


async def test_a_registered_function_in_a_process_has_the_encryption_and_the_rules_of_its_task() -> None:
    """Its module has the function alone: nothing there says with which keys, or how it was registered."""
    keys = Encryption({"k": Encryption.new_key()}, write="k", accept_plain=False)
    async with fake_server() as server:
        app = Headgate(server.address, encryption=keys)
        app.register("cube", sdk_app.cube, run_in="process", bad_payload="retry")
        async with working(app, server, concurrency=1, processes=1) as (_, peer):
            (good,) = peer.deliver("cube", keys.seal(b'{"n":3}', Purpose.PAYLOAD))
            (bad,) = peer.deliver("cube", keys.seal(b'{"n":"three"}', Purpose.PAYLOAD))
            (plain,) = peer.deliver("cube", b'{"n":4}')
            await until(lambda: len(peer.completed()) + len(peer.others()) == 3, "all have ended")
            assert peer.completed()[good] != b"27"
            assert keys.open_result(peer.completed()[good], good) == b"27"
            failed = {one.id: one.failed for one in peer.others()}
            assert (failed[bad].type, failed[bad].permanent) == ("PayloadError", False)
            assert failed[bad].message.startswith("encrypted:")
            assert "Expected `int`" in keys.open_text(failed[bad].message, bad)
            assert (failed[plain].type, failed[plain].permanent) == ("DecryptionFailed", True)


@pytest.mark.parametrize("how", ["pickle", "endless", "unknown"])
async def test_a_child_that_was_taken_over_cannot_make_its_worker_run_anything(tmp_path: Path, how: str) -> None:
    """What it says is data of a few known kinds, or the end of it."""
    trap = tmp_path / "sprung"
    async with fake_server() as server:
        tasks = {topic: sdk_app.hg.tasks[topic] for topic in ("taken-over", "square")}
        worker = Worker(Connection(addresses_of(server.address), token=""), tasks, concurrency=4, processes=1)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        peer.deliver("taken-over", json.dumps({"path": str(trap), "how": how}).encode())
        await until(lambda: peer.others(), "the job has ended")
        assert peer.others()[0].failed.type == "ProcessDied"
        assert not trap.exists()
        (again,) = peer.deliver("square", b'{"n":2}')
        await until(lambda: again in peer.completed(), "a new process works")
        worker.stop()
        await running


async def test_odd_log_records_of_a_child_arrive_cut_and_mended(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_server() as server:
        tasks = {"taken-over": sdk_app.hg.tasks["taken-over"]}
        worker = Worker(Connection(addresses_of(server.address), token=""), tasks, concurrency=4, processes=1)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        (one,) = peer.deliver("taken-over", b'{"path":"","how":"log"}')
        await until(lambda: one in peer.completed(), "it has said all")
        (record,) = [record for record in caplog.records if record.name == "headgate.job"]
        assert record.getMessage() == "odd \ufffd"
        assert vars(record)["big"] == str(2**70)
        assert 0 < len(vars(record)["long"]) <= LOG_TEXT_MAX_BYTES
        worker.stop()
        await running


@pytest.mark.req("W23", "K9")
async def test_sigterm_returns_what_does_not_finish_and_ends_with_0() -> None:
    async with fake_server() as server:
        with worker_process(server.address, grace=0.2) as process:
            peer = await server.worker()
            (raw,) = peer.deliver("linger", b"")
            (done,) = peer.deliver("quick", b"{}")
            await until(lambda: done in peer.completed(), "the other is done")
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate, timeout=60)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors, errors
            assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [(raw, "abandon")]


@pytest.mark.req("W23")
async def test_a_second_signal_does_not_wait_for_handlers() -> None:
    async with fake_server() as server:
        with worker_process(server.address, grace=60) as process:
            peer = await server.worker()
            (raw,) = peer.deliver("linger", b"")
            (done,) = peer.deliver("quick", b"{}")
            await until(lambda: done in peer.completed(), "the other is done")
            credit = peer.credit
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            _, errors = await asyncio.to_thread(process.communicate, timeout=60)
            assert process.returncode == 0, errors
            assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [(raw, "abandon")]
            assert peer.credit == credit


async def test_a_signal_is_handled_while_a_handler_blocks_the_loop() -> None:
    async with fake_server() as server:
        with worker_process(server.address, grace=20) as process:
            peer = await server.worker()
            one, two = peer.deliver("block", b'{"seconds":1.0}', b'{"seconds":1.0}')
            await until(lambda: any(beat.progress for beat in peer.frames("beat")), "one blocks the loop")
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate, timeout=60)
            assert process.returncode == 0, errors
            # Each is finished or returned; none is lost, and none is both.
            told = [*peer.completed(), *(other.id for other in peer.others())]
            assert sorted(told) == sorted([one, two])


async def test_a_script_that_forgets_to_close_ends_cleanly() -> None:
    async with fake_server() as server:
        code = (
            "from headgate import SyncHeadgate\n"
            f"client = SyncHeadgate({server.address!r})\n"
            "print(client.submit_to('t', {'a': 1}).created)\n"
        )
        script = [sys.executable, "-X", "dev", "-c", code]
        done = await asyncio.to_thread(subprocess.run, script, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
        # In development mode event loops tell of every callback over 100 ms.
        assert [line for line in done.stderr.splitlines() if not line.startswith("Executing ")] == []
