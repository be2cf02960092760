"""Tests of a user that must type-check in strict mode."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import pytest

from headgate import Headgate, Job, JobHandle, Worker, this_job
from headgate.testing import AttachedApp, Box, BoxJob, Drained, LocalServer, Run, fake_job, run_inline, run_job

hg = Headgate()


@hg.job("double")
async def double(n: int, *, job: Job = this_job) -> int:
    return n * 2


@pytest.fixture
def box() -> Iterator[Box]:
    with hg.testing(now=datetime(2026, 1, 1, tzinfo=UTC)) as box:
        yield box


@pytest.fixture
def attached(headgate_server: LocalServer) -> Iterator[AttachedApp]:
    with headgate_server.attach(hg) as attached:
        yield attached


async def test_in_memory(box: Box) -> None:
    handle = await double.submit(3)
    assert_type(handle, JobHandle[int])
    drained = await box.drain()
    assert_type(drained, Drained)
    assert_type(drained.runs, tuple[Run, ...])
    assert_type(drained.runs[0].next_at, datetime | None)
    assert_type(drained.results, list[Any])
    assert_type(await handle.result(), int)
    assert_type(box.of(double), list[BoxJob])
    assert_type(box.job(handle).state, str)
    for until in (0, 1.5, timedelta(hours=1), box.now):
        await box.drain(until=until)
    await box.drain(until=handle)
    await box.drain(until=box.job(handle))
    await box.drain(until=lambda: len(box.submitted) > 3)
    box.advance(timedelta(days=1))
    box.complete(handle, {"any": "JSON"})
    box.fail(handle.id, "no paper", permanent=True)


async def test_a_handler() -> None:
    assert_type(await run_inline(double, 3), int)
    assert_type(await run_job(double, fake_job(b'{"n": 3}')), int)


async def test_on_a_server(attached: AttachedApp) -> None:
    async with attached.worker(concurrency=2) as worker:
        assert_type(worker, Worker)
    await attached.drain(timeout=10, concurrency=1)
    Headgate(attached.url, token=attached.token)
