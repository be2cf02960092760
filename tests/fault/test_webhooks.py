"""Webhooks when processes die: every event arrives, under one id, wherever a sender was killed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.domain.failpoints import SITES
from headgate.store.connect import Connection
from headgate.store.database import Database
from tests.fault.history import client, submit
from tests.fault.lab.armed import EXIT_CODE
from tests.support.ports import lasting_port
from tests.support.server import LoggedProcess, ServerProcess, clean_environ
from tests.support.waiting import until
from tests.support.webhooks import SECRET, Hooks

SENDING = sorted(site for site in SITES if site.startswith("webhook"))
LAPSE = "UPDATE headgate.webhook_deliveries SET next_at = headgate.clock_v1() WHERE next_at IS NOT NULL"
SEED = "1"


class Receiver:
    """A receiver process that can be killed and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.notebook = folder, lasting_port(), folder / "received"
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self.secret = SECRET
        self.process: LoggedProcess | None = None

    def start(self) -> None:
        command = (sys.executable, "-m", "tests.support.webhook_receiver", str(self.port), self.secret, self.notebook)
        self.process = LoggedProcess("receiver", command, folder=self.folder, environ=_environ())
        self.process.saw("^ready$")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def received(self) -> list[dict[str, object]]:
        """All requests with a valid signature that it has noted, in order."""
        return [json.loads(line) for line in self.notebook.read_text().splitlines()] if self.notebook.exists() else []

    def jobs(self) -> set[str]:
        return {one["data"]["job_id"] for one in self.received()}  # type: ignore[index]


def _environ() -> dict[str, str]:
    return {**clean_environ(), "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(tmp_path)
    made.start()
    yield made
    made.kill()


def _deliver(database: str, folder: Path, plan: str = "") -> int:
    """Run a sender until it has nothing to do, or dies as planned; its exit code."""
    armed = ("-m", "tests.fault.lab.armed", plan, SEED) if plan else ()
    command = (sys.executable, *armed, "-m", "tests.support.webhook_process", database)
    with LoggedProcess("sender", command, folder=folder, environ=_environ()) as sender:
        return sender.wait()


async def test_an_event_arrives_under_one_id_wherever_its_sender_is_killed(
    db: Connection, database: str, receiver: Receiver, tmp_path: Path
) -> None:
    store = Database(database, unsafe=True)
    hooks = Hooks(db, store)
    await hooks.create(url=receiver.url)
    for site in SENDING:
        (job_id,) = await hooks.complete()
        assert await asyncio.to_thread(_deliver, database, tmp_path, f"{site}=exit@once") == EXIT_CODE, site
        await db.execute(LAPSE)  # as if half a minute had gone by
        assert await asyncio.to_thread(_deliver, database, tmp_path) == 0
        ids = [one["id"] for one in receiver.received() if one["data"]["job_id"] == str(job_id)]  # type: ignore[index]
        # Killed before the result was recorded, it is sent twice.
        assert len(ids) == (2 if site in ("webhook.after_send", "webhook_record.before_commit") else 1), site
        assert len(set(ids)) == 1, site
    assert await db.fetchval("SELECT count(*) FROM headgate.webhook_deliveries WHERE state <> 2") == 0
    await store.close()


async def test_events_survive_the_death_of_server_and_receiver(
    db: Connection, database: str, receiver: Receiver, tmp_path: Path
) -> None:
    """Jobs end while the receiver is dead; the server is killed while it tries; both come back."""
    with ServerProcess(database, folder=tmp_path) as server:
        async with client([server]) as hg:
            made = await hg.admin.webhooks.create(receiver.url, ["job.cancelled"])
            receiver.kill()
            receiver.secret = made.secret
            ids = await submit(hg, "nobody", [b"1", b"2", b"3"])
            await hg.admin.jobs.cancel(ids)
        await asyncio.to_thread(server.saw, "webhook_attempt_failed")
        server.kill()
        assert receiver.jobs() == set()
        receiver.start()
        await db.execute(LAPSE)
        with ServerProcess(database, folder=tmp_path, port=server.port):
            wanted = set(map(str, ids))
            await asyncio.to_thread(until, lambda: receiver.jobs() >= wanted, "every event has arrived")
    by_job: dict[object, set[object]] = {}
    for one in receiver.received():
        by_job.setdefault(one["data"]["job_id"], set()).add(one["id"])  # type: ignore[index]
    assert all(len(names) == 1 for names in by_job.values())
