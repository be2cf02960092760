"""Unique keys, dependencies and batches through the wire, the SDK and the command line, against a real server."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest

from headgate import (
    Bound,
    Forbidden,
    Headgate,
    InvalidInput,
    JobCancelled,
    NotFound,
    SubmitRefused,
    SyncHeadgate,
    Unique,
)
from headgate.sdk.ids import new_id_maker
from headgate.sdk.options import Prepared
from headgate.store.connect import connect
from headgate.wire import producer_pb2
from tests.e2e.conftest import Serve
from tests.support.shell import Shell
from tests.support.wire import Wire, completed

PAGE = Path(__file__).parents[2] / "docs/howto/unique-and-dependent-jobs.md"
new_id = new_id_maker().next_id


async def test_the_examples_of_the_howto_run_as_printed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.to_thread(serve)
    monkeypatch.setenv("HEADGATE_URL", server.address)
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(examples) >= 7
    names: dict[str, Any] = {"__name__": "howto"}
    working: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(60):
            for example in examples:
                code = compile(example, PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                running = eval(code, names)  # noqa: S307 - our own page
                if running is not None:
                    await running
                if working is None:
                    working = asyncio.create_task(names["hg"].work())
    finally:
        if working is not None:
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        if "hg" in names:
            await names["hg"].close()


def test_the_command_line_submits_unique_and_dependent_jobs(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve().address
    monkeypatch.setenv("HEADGATE_URL", address)
    headgate = Shell(capsys)

    async def a_batch() -> str:
        async with Headgate(address) as hg, hg.batch("import") as batch:
            await batch.submit_to("mail", {"n": 1})
        return str(batch.id)

    first, again = (headgate("submit", "mail", "--unique", "u", "--delay", "1h") for _ in range(2))
    assert first.out == again.out != ""
    parent = first.out.strip()
    child = headgate("submit", "mail", "--depends-on", parent, "--on-parent-failure", "block").out.strip()
    assert f"parents   1   waits for {parent}" in headgate("job", "get", child).out
    missing = headgate("submit", "mail", "--depends-on", str(new_id()))
    assert missing.code != 0
    assert 'no parent job "' in missing.err
    assert "--unique: is required" in headgate("submit", "mail", "--on-conflict", "replace").err
    one = headgate("submit", "mail", '{"n": 1}', "--key", "k", "--key-window", "1h")
    two = headgate("submit", "mail", '{"n": 2}', "--key", "k")
    assert two.code != 0
    assert one.out.strip() in two.err  # the conflict names the first job
    batch = asyncio.run(a_batch())
    assert headgate("batch", "get", batch).out.startswith("import  sealed   1 jobs\n")
    assert json.loads(headgate("batch", "seal", batch, "--output", "json").out)["counts"] == {"pending": 1}
    nothing = headgate("batch", "get", str(new_id()))
    assert nothing.code != 0
    assert nothing.err.startswith('error: no batch "')


async def test_what_cannot_be_linked_is_refused_with_its_reason(serve: Serve) -> None:
    server = await asyncio.to_thread(serve)
    async with Headgate(server.address) as hg:
        unknown = new_id()
        with pytest.raises(SubmitRefused, match=f'no parent job "{unknown}"') as caught:
            await hg.submit("mail", depends_on=[unknown])
        assert caught.value.reported == "not_found"
        own = new_id()
        with pytest.raises(SubmitRefused, match="cannot wait for itself") as caught:
            await hg.submit("mail", id=own, depends_on=[own])
        assert caught.value.reported == "dependency_cycle"
        batch = await hg.batch().open()
        await batch.seal()
        with pytest.raises(SubmitRefused, match="is sealed and takes no more jobs") as caught:
            await batch.submit_to("mail")
        assert caught.value.reported == "batch_sealed"
        with pytest.raises(NotFound, match="no batch"):
            await hg.batch_status(new_id())
        with pytest.raises(InvalidInput, match="on_done: must be a task with its arguments"):
            hg.batch(on_done="report")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="needs: must be one of succeeded, ended"):
            hg.batch(needs="luck")
        for options, says in (
            ({"depends_on": "abc"}, "depends_on: must be a list"),
            ({"depends_on": ["abc"]}, r"depends_on\[0\]: must be a UUID"),
            ({"needs": "ended"}, "depends_on: names no job"),
            ({"depends_on": [unknown], "needs": "x"}, "needs: must be one of"),
            ({"depends_on": [unknown], "on_parent_failure": "x"}, "on_parent_failure: must be one of"),
            ({"unique": ""}, "unique: must have 1 to 255"),
            ({"unique": 3}, "unique: must be a str"),
            ({"batch": "x"}, "batch: must be a UUID"),
        ):
            with pytest.raises(InvalidInput, match=says):
                await hg.submit("mail", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="unique: names a single job"):
            await hg.submit_many("mail", [1, 2], unique=Unique(key="k"))
        job = await hg.submit("mail", unique="k", delay=60)
        assert (await job.info()).unique_key == "k"


async def test_a_chain_in_one_atomic_submit_runs_in_order_and_a_cycle_makes_nothing(serve: Serve) -> None:
    server = await asyncio.to_thread(serve)
    a, b, c = (new_id().bytes for _ in range(3))

    def chain(*pairs: tuple[bytes, list[bytes]]) -> producer_pb2.SubmitBatchRequest:
        jobs = [producer_pb2.NewJob(id=one, topic="mail", depends_on=parents) for one, parents in pairs]
        return producer_pb2.SubmitBatchRequest(jobs=jobs, atomic=True)

    async with Wire(server.address) as wire, wire.worker() as session:
        refused = await wire.refused("SubmitBatch", chain((a, [b]), (b, [a]), (c, [])))
        assert (refused.status, refused.code) == (grpc.StatusCode.FAILED_PRECONDITION, "dependency_cycle")
        missing = await wire.refused("SubmitBatch", chain((a, []), (b, [c])))
        assert (missing.status, missing.code) == (grpc.StatusCode.NOT_FOUND, "not_found")
        gone = await wire.refused("GetJob", producer_pb2.GetJobRequest(id=a))
        assert gone.status is grpc.StatusCode.NOT_FOUND  # nothing of it was written
        await wire.call("SubmitBatch", chain((c, [a, b]), (b, [a]), (a, [])))
        assert [parent.met for parent in (await wire.job(c)).parents] == ["waiting", "waiting"]
        assert (await wire.job(a)).child_count == 2
        await session.ready(3, "mail")
        for expected in (a, b, c):
            (job,) = await session.take(1)
            assert job.id == expected
            await session.report(completed(job))
        key = "order-7"
        first = await wire.submit("mail", b"one", key=key)
        jobs = [producer_pb2.NewJob(topic="mail"), producer_pb2.NewJob(topic="mail", payload=b"two", key=key)]
        conflict = await wire.refused("SubmitBatch", producer_pb2.SubmitBatchRequest(jobs=jobs, atomic=True))
        assert (conflict.status, conflict.code) == (grpc.StatusCode.ALREADY_EXISTS, "conflict")
        assert f"job {UUID(bytes=first)} was submitted before" in conflict.details
        history = (await wire.job(c)).events
        assert [event.kind for event in history] == ["blocked", "unblocked"]


async def test_tenants_neither_wait_for_nor_see_each_others_batches(serve: Serve, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    everything = ["submit", "work", "read"]
    tokens.write_text(
        json.dumps(
            {
                "a" * 32: {"tenant": "acme", "scopes": everything},
                "b" * 32: {"tenant": "other", "scopes": everything},
                "c" * 32: {"tenant": "acme", "scopes": everything, "topics": ["mail"]},
            }
        )
    )
    server = await asyncio.to_thread(serve, "--tokens", str(tokens))
    async with (
        Headgate(server.address, token="a" * 32) as mine,
        Headgate(server.address, token="b" * 32) as theirs,
        Headgate(server.address, token="c" * 32) as limited,
    ):
        job = await mine.submit("mail")
        with pytest.raises(SubmitRefused, match="no parent job"):
            await theirs.submit("mail", depends_on=[job])
        async with mine.batch(on_done=Bound("reports", b"", Prepared({}))) as batch:
            await batch.submit_to("mail")
        for stranger in (theirs, limited):  # of another tenant; not permitted the callback's topic
            with pytest.raises(NotFound):
                await stranger.batch_status(batch.id)
            with pytest.raises(NotFound):
                await stranger.seal_batch(batch.id)
        with pytest.raises(Forbidden):
            await limited.batch(on_done=Bound("reports", b"", Prepared({}))).open()
        assert (await mine.batch_status(batch.id)).total == 1


async def test_the_tick_finds_what_no_flush_of_this_instance_noted(serve: Serve, database: str) -> None:
    server = await asyncio.to_thread(serve)
    async with Headgate(server.address) as hg:
        parent = await hg.submit("mail", delay=3600)
        child = await hg.submit("mail", depends_on=[parent])
        db = await connect(database, application_name="another")
        try:
            await db.execute(
                "SELECT headgate.cancel_v1(tenant_no, ARRAY[id], 'ann', 'wrong') FROM headgate.jobs WHERE id = $1",
                parent.id,
            )
        finally:
            await db.close()
        with pytest.raises(JobCancelled):
            await child.result(timeout=60)


async def test_a_batch_whose_block_fails_stays_open(serve: Serve) -> None:
    server = await asyncio.to_thread(serve)
    async with Headgate(server.address) as hg:
        batch = hg.batch("half", on_done=Bound("mail", b"", Prepared({})))

        async def half() -> None:
            async with batch:
                await batch.submit_to("mail")
                raise RuntimeError("the source is broken")

        with pytest.raises(RuntimeError, match="the source is broken"):
            await half()
        status = await batch.status()
        assert (status.sealed, status.total, status.callback_state) == (False, 1, "blocked")
        assert (await hg.seal_batch(batch.id)).sealed


def test_code_without_a_loop_has_batches_too(serve: Serve) -> None:
    server = serve()
    with SyncHeadgate(server.address) as hg:
        jobs = [Bound("mail", str(n).encode(), Prepared({})) for n in range(3)]
        batch = hg.submit_batch(jobs, name="three", on_done=Bound("done", b"", Prepared({})))
        status = hg.batch_status(batch)
        assert (status.sealed, status.total, status.counts) == (True, 3, {"pending": 3})
        assert status.callback_state == "blocked"
