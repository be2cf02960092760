"""Deadlines from submit to end: a real server, a real worker, the command line."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headgate import Headgate, InvalidInput
from headgate.cli import main
from tests.e2e.conftest import Serve
from tests.support.waiting import until_async


async def test_a_job_with_a_deadline_runs_in_time_is_stopped_at_it_or_is_never_started(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    begun: list[bytes] = []
    app = Headgate(server.address)

    @app.job("nap")
    async def nap(ends: bool) -> str:
        begun.append(b"")
        if not ends:
            await asyncio.Event().wait()
        return "rested"

    async with Headgate(server.address) as hg:
        missed = await hg.submit("nap", {"ends": True}, deadline=0.001)
        at_its_time = await hg.get(missed.id)
        assert at_its_time.deadline == at_its_time.created_at + timedelta(milliseconds=1)  # by one clock

        async def passed() -> bool:  # by the database's clock: a later submit is later than the deadline
            later = await hg.submit("elsewhere")
            return at_its_time.deadline is not None and (await hg.get(later.id)).created_at > at_its_time.deadline

        await until_async(passed, "the deadline has passed")
        in_time = await hg.submit("nap", {"ends": True}, deadline=3600)
        cut = await hg.submit("nap", {"ends": False}, deadline=2)
        worker = app.worker(concurrency=2)
        working = asyncio.create_task(worker.run())
        assert await in_time.result(60) == "rested"

        async def both_dead() -> bool:
            return {(await hg.get(one.id)).state for one in (missed, cut)} == {"dead"}

        await until_async(both_dead, "both have ended")
        worker.stop()
        await working
        errors = [(await hg.get(one.id)).last_error for one in (missed, cut)]
        assert "it was not started" in errors[0]
        assert all("deadline" in error for error in errors)
        assert (await hg.get(cut.id)).attempt == 1  # not tried again
        assert len(begun) <= 2
    await app.close()

    def run(*words: str) -> str:
        assert main([*words, "--url", server.address]) == 0
        return capsys.readouterr().out.strip()

    job_id = await asyncio.to_thread(run, "submit", "elsewhere", "--deadline", "1h")
    assert "  deadline  " in await asyncio.to_thread(run, "job", "get", job_id)
    with pytest.raises(InvalidInput, match="deadline"):
        await Headgate(server.address).submit("nap", {"ends": True}, deadline=1, delay=2)
