"""The log lines of a handler carry the fields of its job: on the loop, in threads, in processes, and in structlog."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from typing import Any
from uuid import UUID

import pytest

from headgate import Failure, Headgate, JobFields, Worker
from headgate.sdk.addresses import addresses_of
from headgate.sdk.connection import Connection
from headgate.sdk.hooks import Hooks
from headgate.wire import jobs_pb2
from tests.support import logging_app
from tests.support.fake_server import FakeServer, WorkerPeer, fake_server, until
from tests.unit.sdk_working import working, working_worker
from tests.unit.test_sdk_worker_log import AT, answer, record


class Listening(logging.Handler):
    """A handler of the application, with the filter."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(JobFields())
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def listening():  # type: ignore[no-untyped-def]
    handler, log = Listening(), logging.getLogger("app.mail")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


def worker_of(server: FakeServer, *topics: str, hooks: Hooks | None = None) -> Worker:
    tasks = {topic: logging_app.hg.tasks[topic] for topic in topics}
    hooks = hooks or logging_app.hg._hooks
    return Worker(Connection(addresses_of(server.address), token=""), tasks, hooks, concurrency=1, processes=1, grace=5)


async def results(peer: WorkerPeer, topic: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Run jobs one after the other; gives id and result of each."""
    found = []
    for _ in range(count):
        (raw,) = peer.deliver(topic, b"{}")
        await until(lambda raw=raw: raw in peer.completed() or peer.others(), "it ran")
        found.append((str(UUID(bytes=raw)), json.loads(peer.completed()[raw])))
    return found


@pytest.mark.parametrize(
    ("topic", "lines"),
    [
        ("on-loop", {"on the loop", "in a thread of it", "in a task of it"}),
        ("in-thread", {"in a thread"}),
        ("in-process", {"in a process"}),
    ],
)
async def test_every_line_of_a_handler_and_its_middleware_carries_the_fields_of_its_job(
    topic: str, lines: set[str], listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)  # of the root: a child process logs what its parent does
    logging_app.around.clear()
    async with fake_server() as server, working_worker(worker_of(server, topic), server) as peer:
        ran = await results(peer, topic, 2)
        wanted = lines | {f"before {topic}", f"after {topic}"}
        await until(lambda: len(listening.records) == 2 * len(wanted), "all lines are in")
    for job_id, result in ran:
        mine = [one for one in listening.records if one.job_id == job_id]  # type: ignore[attr-defined]
        assert {one.getMessage() for one in mine} == wanted
        assert {(one.topic, one.attempt) for one in mine} == {(topic, 1)}  # type: ignore[attr-defined]
        assert result["bound"] == {"job_id": job_id, "topic": topic, "attempt": 1}
        assert job_id in result["around"]  # the middleware ran where the handler did
        assert (result["pid"] == os.getpid()) == (topic != "in-process")


def test_outside_of_a_job_the_fields_are_empty_and_fields_of_the_application_stay() -> None:
    plain, own = logging.makeLogRecord({}), logging.makeLogRecord({"topic": "politics"})
    assert JobFields().filter(plain)
    assert JobFields().filter(own)
    assert (plain.job_id, plain.topic, plain.attempt) == ("", "", 0)  # type: ignore[attr-defined]
    assert own.topic == "politics"  # type: ignore[attr-defined]


async def test_bound_fields_do_not_make_a_slot_start_again_for_each_job() -> None:
    """A slot whose context was changed by a handler ends; our own fields are no such change."""
    tasks: list[asyncio.Task[Any] | None] = []
    async with fake_server() as server:
        app = Headgate(server.address)

        @app.job("mail")
        async def mail() -> None:
            tasks.append(asyncio.current_task())

        async with working(app, server, concurrency=1) as (_, peer):
            peer.deliver("mail", *[b"{}"] * 20)
            await until(lambda: len(peer.completed()) == 20, "all are done")
    assert len(tasks) == 20
    assert len(set(tasks)) == 1


async def test_a_failure_in_a_process_has_the_traceback_and_no_exception(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen: list[Failure] = []
    hooks = Hooks()
    hooks.on_failure.append(seen.append)
    async with fake_server() as server:
        server.answers_outcomes = False
        async with working_worker(worker_of(server, "in-process", hooks=hooks), server) as peer:
            peer.deliver("in-process", b'{"fail":true}')
            await answer(server, peer, jobs_pb2.STATE_RETRYING, run_at_us=AT)
            failed = await record(caplog, "job_failed")
            await until(lambda: seen, "the hook is called")
    assert 'error="ValueError: not in this process"' in failed.getMessage()
    assert re.findall(r'File "(.*?)"', str(failed.exc_text)) == [logging_app.__file__]
    assert seen[0].exception is None
    assert seen[0].traceback.strip() == failed.exc_text
