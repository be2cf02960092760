"""A job that dies reaches its dead-letter topic exactly once, wherever the server is killed meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path

import asyncpg

from headgate import Headgate
from headgate.wire import jobs_pb2, worker_pb2
from tests.fault.lab.armed import EXIT_CODE
from tests.support.database import Server
from tests.support.ports import lasting_port
from tests.support.server import READY, LoggedProcess, clean_environ
from tests.support.wire import Wire, failed

COUNT = """
SELECT count(*) FROM headgate.jobs j JOIN headgate.topics t ON t.topic_no = j.topic_no WHERE t.name = 'lost'"""


class Armed(LoggedProcess):
    """`headgate serve --dev` with a plan of failpoints, ready."""

    def __init__(self, dsn: str, plan: str, folder: Path, port: int) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.fault.lab.armed",
            plan,
            "1",
            "--",
            "serve",
            "--dev",
            "--port",
            str(port),
        ]
        root = str(Path(__file__).parents[2])
        environ = {**clean_environ(), "HEADGATE_DATABASE_URL": dsn, "PYTHONPATH": root}
        super().__init__("armed-serve", command, folder=folder, environ=environ)
        self.saw(READY)
        self.address = f"127.0.0.1:{port}"


async def copies(dsn: str) -> int:
    db = await asyncpg.connect(dsn)
    try:
        return int(await db.fetchval(COUNT))
    finally:
        await db.close()


async def test_a_server_that_is_killed_before_and_after_the_commit_leaves_one_copy(
    postgres: Server, template: str, tmp_path: Path
) -> None:
    name = postgres.create(template=template)
    dsn, port = postgres.dsn_of(name), lasting_port()
    outcome: jobs_pb2.Outcome | None = None
    try:
        for plan, dies, expected in (
            ("settle.before_commit=exit@once", True, 0),
            ("settle.after_commit=exit@once", True, 1),
            ("", False, 1),
        ):
            with Armed(dsn, plan, tmp_path, port) as server:
                async with Wire(server.address) as wire:
                    if outcome is None:
                        async with Headgate(server.address) as hg:
                            await hg.admin.topics.apply("mail", dead_letter_topic="lost")
                        await wire.submit("mail", b"body", max_attempts=1)
                        claim = worker_pb2.ClaimRequest(worker_id="w", topics=["mail"], wait_ms=20_000)
                        outcome = failed((await wire.call("Claim", claim)).jobs[0])
                    report = worker_pb2.ReportOutcomeRequest(worker_id="w", outcomes=[outcome])
                    if dies:
                        await wire.refused("ReportOutcome", report)
                        assert server.wait() == EXIT_CODE
                    else:
                        (receipt,) = (await wire.call("ReportOutcome", report)).receipts
                        assert receipt.code == jobs_pb2.RECEIPT_DUPLICATE
            assert await copies(dsn) == expected, plan
    finally:
        postgres.drop(name)
