"""What users test their own code with: run in place, keep submits, drain."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headgate import Headgate, Job, JobOptions, Nack, PayloadError, this_job
from headgate.testing import ReportRecorder, fake_job, run_inline, run_job


def make_app() -> Headgate:
    app = Headgate("127.0.0.1:1")

    @app.job("greet")
    async def greet(name: str, *, job: Job = this_job) -> str:
        await job.progress(1, 1)
        if not name:
            raise Nack(delay=3, reason="who?")
        return f"hello {name}"

    @app.job("fan")
    def fan(names: list[str]) -> int:
        for name in names:
            app.sync.submit(app.tasks["greet"], name)
        return len(names)

    return app


async def test_a_handler_runs_in_place_and_what_it_raises_comes_out() -> None:
    app = make_app()
    assert await run_inline(app.tasks["greet"], "Ann") == "hello Ann"
    with pytest.raises(Nack, match="who"):
        await run_inline(app.tasks["greet"], "")
    with pytest.raises(PayloadError):
        await run_inline(app.tasks["greet"], 3)


async def test_a_job_of_ones_own_can_be_looked_at_afterwards() -> None:
    app, notes = make_app(), ReportRecorder()
    deadline = datetime(2026, 3, 1, 12, tzinfo=UTC)
    job = fake_job(b'{"name":"Ann"}', attempt=4, headers={"a": "b"}, deadline=deadline, recorder=notes)
    assert await run_job(app.tasks["greet"], job) == "hello Ann"
    assert notes.progress == [(1, 1, "")]
    assert (job.attempt, job.headers, job.deadline) == (4, {"a": "b"}, deadline)
    assert fake_job().deadline is None


async def test_submits_are_kept_and_drained_with_what_they_submit() -> None:
    app = make_app()
    with app.testing() as box:
        handle = await app.tasks["fan"].with_options(priority=3).submit(["Ann", "Bob"])
        (first,) = box.submitted
        assert (first.id, first.topic, first.arguments) == (handle.id, "fan", {"names": ["Ann", "Bob"]})
        assert first.options == JobOptions(priority=3)
        assert (await box.drain()).results == [2, "hello Ann", "hello Bob"]
        assert [job.arguments for job in box.of("greet")] == [{"name": "Ann"}, {"name": "Bob"}]
        assert (await box.drain()).runs == ()
        with pytest.raises(RuntimeError, match="in use"), app.testing():
            pass
    assert app._connection.box is None


def test_using_the_job_stand_in_outside_of_a_worker_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="run_inline"):
        this_job.raise_if_cancelled()
    assert repr(this_job) == "this_job"


async def test_a_batch_in_a_test_runs_its_callback_last() -> None:
    app = make_app()
    with app.testing() as box:
        async with app.batch("people", on_done=app.tasks["greet"].bind("all")) as batch:
            await batch.submit(app.tasks["greet"], "Ann")
            await batch.submit_many(app.tasks["greet"], [("Bob",)])
        assert (await box.drain()).results == ["hello Ann", "hello Bob", "hello all"]
