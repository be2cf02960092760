"""The box of `hg.testing()`: what it adds to the contract with the server (tests/e2e/testing_contract)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate import (
    Fail,
    Failure,
    Headgate,
    InvalidInput,
    Job,
    JobDead,
    Nack,
    NotFound,
    PayloadError,
    ResultTimeout,
    RetryPolicy,
    Snooze,
    Unique,
    this_job,
)
from headgate.testing import Box, NotDrained, OutsideBox

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Headgate:
    return Headgate("127.0.0.1:1")


# --- the clock -------------------------------------------------------------------------------------------------------


async def test_the_clock_moves_to_each_retry_and_to_nothing_else(app: Headgate) -> None:
    seen: list[tuple[int, float]] = []

    @app.job("flaky", max_attempts=4, retry=RetryPolicy.explicit(timedelta(seconds=5), timedelta(hours=2)))
    async def flaky(*, job: Job = this_job) -> str:
        seen.append((job.attempt, (box.now - START).total_seconds()))
        if job.attempt < 4:
            raise ValueError("no")
        return "at last"

    with app.testing(now=START) as box:
        handle = await flaky.submit()
        drained = await box.drain()
        assert seen == [(1, 0), (2, 5), (3, 7205), (4, 14405)]
        assert box.now == START + timedelta(seconds=14405)
        assert await handle.result() == "at last"
        assert [run.outcome for run in drained.runs] == ["failed", "failed", "failed", "completed"]
        assert drained.runs[0].next_at == START + timedelta(seconds=5)
        assert drained.runs[-1].next_at is None
        assert isinstance(drained.runs[0].error, ValueError)
        assert [run.state for run in drained.runs] == ["retrying", "retrying", "retrying", "completed"]


async def test_drain_until_a_time_runs_what_is_due_by_then_and_leaves_the_clock_there(app: Headgate) -> None:
    @app.job("later")
    async def later(n: int) -> int:
        return n

    with app.testing(now=START) as box:
        for minutes in (0, 5, 10, 60):
            await later.with_options(delay=timedelta(minutes=minutes)).submit(minutes)
        assert (await box.drain(until=0)).results == [0]
        assert (await box.drain(until=timedelta(minutes=7))).results == [5]
        assert box.now == START + timedelta(minutes=7)
        assert (await box.drain(until=START + timedelta(minutes=10))).results == [10]
        box.advance(timedelta(hours=1))
        assert [job.state for job in box.of(later)] == ["completed", "completed", "completed", "pending"]
        assert (await box.drain(until=0.5)).results == [60]


async def test_drain_until_a_job_or_a_condition_stops_there(app: Headgate) -> None:
    ran: list[int] = []

    @app.job("count")
    async def count(n: int) -> int:
        ran.append(n)
        return n

    with app.testing() as box:
        handles = [await count.submit(n) for n in range(6)]
        await box.drain(until=handles[1])
        assert ran == [0, 1]
        await box.drain(until=lambda: len(ran) == 4)
        assert ran == [0, 1, 2, 3]
        with pytest.raises(NotDrained, match="nothing is left to run, and until"):
            await box.drain(until=lambda: False)
        assert ran == [0, 1, 2, 3, 4, 5]
        elsewhere = await app.submit("elsewhere", {})
        with pytest.raises(NotDrained, match='of topic "elsewhere" is pending, and this app has no handler for it'):
            await box.drain(until=elsewhere)


@pytest.mark.parametrize("until", [True, "soon", datetime(2026, 1, 1)])  # noqa: DTZ001 - refused
async def test_an_until_that_is_none_is_refused(app: Headgate, until: Any) -> None:
    with app.testing() as box, pytest.raises(InvalidInput, match="until: must"):
        await box.drain(until=until)


async def test_a_job_that_snoozes_without_end_does_not_hang_the_test(
    app: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.sdk.testing.box.DRAIN_MAX", 100)

    @app.job("poll")
    async def poll() -> None:
        raise Snooze(60)

    with app.testing() as box:
        await poll.submit()
        assert len((await box.drain(until=timedelta(minutes=10))).runs) == 11
        assert len((await box.drain(until=timedelta(minutes=100))).runs) == 100
        with pytest.raises(RuntimeError, match="100 attempts were made"):
            await box.drain()


async def test_a_batch_that_is_never_sealed_expires(app: Headgate) -> None:
    @app.job("done")
    async def done() -> None:
        raise AssertionError

    with app.testing(now=START) as box:
        batch = await app.batch(on_done=done.bind()).open()
        callback = (await batch.status()).callback_id
        assert callback is not None
        with pytest.raises(NotDrained, match=f"batch {batch.id} is not sealed; call"):
            await app.wait_result(callback)
        await box.drain()
        status = await batch.status()
        assert (status.expired, status.callback_state) == (True, "cancelled")
        assert box.now == START + timedelta(days=1)


async def test_the_clock_waits_for_no_job_of_another_app_and_for_no_batch_without_a_callback(app: Headgate) -> None:
    with app.testing(now=START) as box:
        await app.submit("render", delay=60)
        await app.batch().open()
        await box.drain()
        assert box.now == START


async def test_a_batch_that_has_expired_cannot_be_sealed_after_all(app: Headgate) -> None:
    @app.job("done")
    async def done() -> None: ...

    with app.testing(now=START) as box:
        batch = await app.batch(on_done=done.bind()).open()
        box.advance(86_400)
        await batch.seal()
        assert (await batch.status()).expired


async def test_an_idempotency_key_is_free_from_the_end_of_its_window_on(app: Headgate) -> None:
    @app.job("mail")
    async def mail() -> None: ...

    once = mail.with_options(key="a", key_window=timedelta(hours=1))
    with app.testing(now=START) as box:
        first = await once.submit()
        box.advance(timedelta(minutes=59, seconds=59))
        assert (await once.submit()).id == first.id
        assert (await first.info()).key == "a"
        box.advance(1)
        assert (await first.info()).key == ""
        assert (await once.submit()).id != first.id


async def test_a_debounced_job_runs_at_the_latest_so_long_after_its_first_submit(app: Headgate) -> None:
    @app.job("index")
    async def index() -> None: ...

    late = Unique(key="a", on_conflict="reschedule", debounce_max=timedelta(minutes=10))
    with app.testing(now=START) as box:
        first = await index.with_options(unique=late, delay=300).submit()
        box.advance(240)
        await index.with_options(unique=late, delay=300).submit()
        assert box.job(first).run_at == START + timedelta(minutes=9)
        box.advance(240)
        await index.with_options(unique=late, delay=300).submit()
        assert box.job(first).run_at == START + timedelta(minutes=10)


async def test_a_replaced_job_begins_with_all_its_attempts_and_a_running_one_is_left_as_it_is(app: Headgate) -> None:
    newest = Unique(key="a", on_conflict="replace")

    @app.job("index", max_attempts=3, retry=RetryPolicy.explicit(timedelta(hours=1)))
    async def index(text: str) -> str:
        if text == "replaces itself":
            await index.with_options(unique=newest).submit("too late")
            return text
        raise ValueError(text)

    with app.testing(now=START) as box:
        handle = await index.with_options(unique=newest).submit("old")
        await box.drain(until=0)
        assert (box.job(handle).attempt, box.job(handle).state) == (1, "retrying")
        await index.with_options(unique=newest).submit("replaces itself")
        assert box.job(handle).attempt == 0
        await box.drain(until=0)
        assert await handle.result() == "replaces itself"
        assert len(box.submitted) == 1


async def test_a_deadline_that_has_come_is_over_and_a_redrive_after_it_has_none(app: Headgate) -> None:
    @app.job("mail", max_attempts=1)
    async def mail() -> None: ...

    with app.testing(now=START) as box:
        handle = await mail.with_options(deadline=timedelta(seconds=60)).submit()
        box.advance(60)
        await box.drain()
        assert box.job(handle).state == "dead"
        await app.admin.jobs.redrive(handle.id)
        await box.drain()
        assert box.job(handle).state == "completed"


async def test_a_replaced_job_runs_by_its_new_priority_and_no_longer_by_the_old_one(app: Headgate) -> None:
    @app.job("index")
    async def index(text: str) -> str:
        return text

    newest = Unique(key="a", on_conflict="replace")
    with app.testing(now=START) as box:
        await index.with_options(unique=newest, priority=9).submit("replaced")
        await index.with_options(priority=5).submit("between")
        await index.with_options(unique=newest, priority=1).submit("last")
        assert (await box.drain()).results == ["between", "last"]


async def test_a_redriven_job_has_no_result_until_it_has_run_again(app: Headgate) -> None:
    @app.job("mail")
    async def mail(*, job: Job = this_job) -> str:
        job.progress(1, 2, "pages")
        return "sent"

    with app.testing(now=START) as box:
        handle = await mail.submit()
        await box.drain()
        await app.admin.jobs.redrive(handle.id)
        assert (box.job(handle).state, box.job(handle).result, box.job(handle).progress) == ("pending", None, None)
        await box.drain()
        assert box.job(handle).result == "sent"


async def test_the_first_submit_of_an_edited_job_sent_again_is_no_conflict(app: Headgate) -> None:
    @app.job("mail")
    async def mail(text: str) -> str:
        return text

    with app.testing(now=START) as box:
        handle = await mail.submit("wrong")
        await box.drain()
        await app.admin.jobs.redrive(handle.id, payload={"text": "right"})
        assert (await mail.with_options(id=handle.id).submit("wrong")).id == handle.id
        await box.drain()
        assert box.job(handle).result == "right"


async def test_of_a_long_error_the_beginning_is_kept(app: Headgate) -> None:
    @app.job("mail", max_attempts=1)
    async def mail() -> None:
        raise ValueError("x" * 2_000)

    with app.testing(now=START) as box:
        handle = await mail.submit()
        await box.drain()
        assert box.job(handle).last_error == ("ValueError: " + "x" * 2_000)[:1_000]


async def test_a_redrive_is_refused_while_another_job_has_the_unique_key(app: Headgate) -> None:
    @app.job("index")
    async def index() -> None: ...

    once = index.with_options(unique="a")
    with app.testing(now=START) as box:
        first = await once.submit()
        await box.drain()
        await once.submit()
        (change,) = await app.admin.jobs.redrive(first.id)
        assert (change.changed, change.code) == (False, "unique_taken")
        assert box.job(first).state == "completed"


async def test_the_clock_does_not_go_back_with_an_until_in_the_past(app: Headgate) -> None:
    with app.testing(now=START) as box:
        await box.drain(until=START - timedelta(hours=1))
        assert box.now == START


async def test_a_drain_can_follow_one_that_failed(app: Headgate) -> None:
    @app.job("mail")
    async def mail() -> None: ...

    with app.testing(now=START) as box:
        await mail.submit()
        with pytest.raises(NotDrained):
            await box.drain(until=lambda: False)
        assert (await box.drain()).runs == ()


async def test_a_drain_that_is_cancelled_stops_the_handlers_that_it_runs(app: Headgate) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @app.job("mail")
    async def mail() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with app.testing(now=START) as box:
        await mail.submit()
        draining = asyncio.create_task(box.drain())
        await asyncio.wait_for(began.wait(), 10)
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert stopped.is_set()


# --- failures --------------------------------------------------------------------------------------------------------


async def test_one_failing_handler_does_not_end_the_drain(app: Headgate, caplog: pytest.LogCaptureFixture) -> None:
    @app.job("work", max_attempts=1)
    async def work(n: int) -> int:
        if n == 1:
            raise KeyError("one")
        return n

    with app.testing() as box:
        handles = [await work.submit(n) for n in range(3)]
        drained = await box.drain()
        assert drained.results == [0, 2]
        (failed,) = drained.failed
        assert (failed.job.id, failed.message, failed.state) == (handles[1].id, "KeyError: 'one'", "dead")
        with pytest.raises(ExceptionGroup, match="1 attempts failed, of work") as group:
            drained.raise_for_errors()
        assert isinstance(group.value.exceptions[0], KeyError)
        with pytest.raises(JobDead, match="KeyError"):
            await handles[1].result()
    (record,) = caplog.records
    assert (record.message.partition(" ")[0], record.levelname, record.name) == ("job_dead", "ERROR", "headgate.worker")
    assert record.exc_text is not None
    assert 'raise KeyError("one")' in record.exc_text


async def test_errors_of_a_drain_are_those_of_attempts_that_failed_whatever_ended_them(app: Headgate) -> None:
    attempts: list[int] = []

    @app.job("patient")
    async def patient(*, job: Job = this_job) -> None:
        attempts.append(job.attempt)
        if len(attempts) == 1:
            raise Snooze(1)
        if len(attempts) == 2:
            raise Nack(1, "busy")

    @app.job("late", max_attempts=1)
    async def late() -> None: ...

    with app.testing(now=START) as box:
        await patient.submit()
        drained = await box.drain()
        assert [run.outcome for run in drained.runs] == ["snooze", "nack", "completed"]
        assert drained.failed == []
        drained.raise_for_errors()
        await late.with_options(deadline=1).submit()
        box.advance(2)
        drained = await box.drain()
        with pytest.raises(ExceptionGroup, match="1 attempts failed, of late") as errors:
            drained.raise_for_errors()
        assert [str(one) for one in errors.value.exceptions] == [drained.failed[0].message]
        assert "deadline" in drained.failed[0].message


async def test_middleware_and_hooks_of_the_app_run_as_in_a_worker(
    app: Headgate, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    @app.middleware
    def around(job: Job) -> Iterator[None]:
        seen.append(f"before {job.topic}")
        yield
        seen.append("after")  # not reached when the handler raises

    @app.on_failure
    def failed(failure: Failure) -> None:
        seen.append(f"failed {failure.message} {failure.exception!r}")
        raise RuntimeError("a hook that fails changes nothing")

    @app.on_dead
    async def dead(failure: Failure) -> None:
        await asyncio.sleep(0)
        seen.append(f"dead after {failure.job.attempt}")

    @app.job("work", max_attempts=2)
    def work(n: int) -> int:
        if n:
            raise ValueError("no")
        return n

    with app.testing() as box:
        for n in (0, 1):
            await work.submit(n)
            await box.drain()
    failure = ["before work", "failed no ValueError('no')"]
    assert seen == ["before work", "after", *failure, *failure, "dead after 2"]
    assert [record.message.partition(" ")[0] for record in caplog.records] == [
        *("job_failed", "hook_failed", "job_dead", "hook_failed")
    ]


async def test_a_result_of_another_type_than_declared_is_found_by_its_reader(app: Headgate) -> None:
    @app.job("liar")
    async def liar() -> int:
        return "three"  # type: ignore[return-value]

    with app.testing() as box:
        handle = await liar.submit()
        drained = await box.drain()
        assert drained.runs[0].state == "completed"
        with pytest.raises(PayloadError, match="result"):
            await handle.result()
        with pytest.raises(PayloadError, match="result"):
            drained.results  # noqa: B018


@pytest.mark.parametrize("plain", [False, True])
async def test_an_interrupt_and_an_outcome_of_pytest_end_the_drain(app: Headgate, plain: bool) -> None:
    async def stop() -> None:
        raise KeyboardInterrupt

    def fail() -> None:
        pytest.fail("from a handler")

    task = app.register("stop", fail if plain else stop)
    with app.testing() as box:
        await task.submit()
        with pytest.raises(pytest.fail.Exception if plain else KeyboardInterrupt):
            await box.drain()
        assert (await box.drain(until=0)).runs == ()  # and the box can be used again


async def test_a_plain_handler_is_asked_to_stop_by_its_time_limit(app: Headgate) -> None:
    @app.job("slow", time_limit=0.02, max_attempts=1)
    def slow(*, job: Job = this_job) -> None:
        assert job.cancelled.wait(30)
        job.raise_if_cancelled()

    with app.testing() as box:
        handle = await slow.submit()
        await box.drain()
        assert (await handle.info()).last_error.startswith("TimeLimitExceeded: ")


async def test_a_plain_handler_that_does_not_stop_in_time_has_failed_whatever_it_returns(
    app: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.sdk.testing.attempts.UNWIND_SECONDS", 0.0)

    @app.job("slow", time_limit=0.01, max_attempts=1)
    def slow(*, job: Job = this_job) -> str:
        job.cancelled.wait(30)
        threading.Event().wait(0.02)
        return "too late"

    with app.testing() as box:
        handle = await slow.submit()
        await box.drain()
        assert (await handle.info()).state == "dead"


# --- nothing leaves the box ------------------------------------------------------------------------------------------


async def test_what_needs_a_server_raises_at_once(app: Headgate) -> None:
    @app.job("a")
    async def a() -> None: ...

    with app.testing():
        for call in (
            app.admin.status(),
            app.admin.pause(topic="a"),
            app.sync_schedules(),
            a.schedule("nightly", cron="0 0 * * *"),
            app.work(),
            app.admin.jobs.discard((await a.submit()).id),
        ):
            with pytest.raises(OutsideBox, match="needs a server, and the box has none"):
                await call
        with pytest.raises(OutsideBox):
            app._connection._opened()
        await app.close()  # harmless: an app under test closes its client at its end
    assert not app._connection._closed


async def test_a_result_that_no_job_produces_raises_at_once(app: Headgate) -> None:
    @app.job("a")
    async def a() -> int:
        return 1

    @app.job("plain", max_attempts=1)
    def plain() -> int:
        return app.sync.submit(a).result()

    with app.testing() as box:
        handle = await a.submit()
        with pytest.raises(NotDrained, match=r'of topic "a" is pending; call `await box.drain\(\)` first'):
            await handle.result()
        with pytest.raises(NotDrained):
            app.sync.result(handle.id)
        blocked = await plain.submit()
        await box.drain()
        assert await handle.result() == 1
        assert app.sync.result(handle.id) == 1
        with pytest.raises(JobDead, match="a plain handler cannot wait for another job in the box"):
            await blocked.result()
        with pytest.raises(NotFound):
            await app.get("0190a3b2-7c4d-7abc-8def-0123456789ab")


async def test_a_handler_that_waits_for_what_never_ends_gets_a_timeout(app: Headgate) -> None:
    errors: list[BaseException] = []

    @app.job("root", max_attempts=1)
    async def root() -> None:
        other = await app.submit("elsewhere", {})
        try:
            await other.result(timeout=5)
        except (ResultTimeout, NotDrained) as error:
            errors.append(error)

    with app.testing(now=START) as box:
        await root.submit()
        await box.drain()
        assert box.now == START + timedelta(seconds=5)
        await root.submit()
        await box.drain(until=1)  # the drain ends before the wait does
    assert [type(error) for error in errors] == [ResultTimeout, NotDrained]


async def test_a_handler_cannot_drain(app: Headgate) -> None:
    @app.job("a", max_attempts=1)
    async def a() -> None:
        await box.drain()

    with app.testing() as box:
        await a.submit()
        (run,) = (await box.drain()).runs
        assert "drain() runs already" in run.message


# --- jobs of others, threads -----------------------------------------------------------------------------------------


async def test_jobs_of_other_apps_stay_until_the_test_settles_them(app: Headgate) -> None:
    @app.job("after")
    async def after() -> str:
        return "ran"

    with app.testing() as box:
        first, second = await app.submit("render", {"page": 1}), await app.submit("render", {"page": 2}, max_attempts=2)
        child = await after.with_options(depends_on=[first]).submit()
        assert (await box.drain()).runs == ()
        assert [job.state for job in box.submitted] == ["pending", "pending", "blocked"]
        box.complete(first, {"pdf": "a"})
        assert await first.result() == {"pdf": "a"}
        assert (await box.drain()).results == ["ran"]
        assert box.job(child).result == "ran"
        box.fail(second, "out of paper")
        assert (box.job(second.id).state, box.job(second).last_error) == ("retrying", "out of paper")
        box.advance(60)
        box.fail(second, "on fire", permanent=True)
        with pytest.raises(JobDead, match="on fire"):
            await second.result()


async def test_a_job_that_came_before_its_handler_is_run_once_there_is_one(app: Headgate) -> None:
    with app.testing(now=START) as box:
        await app.submit("render", {})
        await box.drain()

        @app.job("render")
        async def render() -> str:
            return "ran"

        assert (await box.drain()).results == ["ran"]


async def test_jobs_submitted_by_other_threads_are_kept_too(app: Headgate) -> None:
    @app.job("a")
    def a(n: int) -> int:
        return n

    def submit_some() -> None:
        for n in range(50):
            app.sync.submit(a, n)

    with app.testing() as box:
        threads = [threading.Thread(target=submit_some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join, 30)
        assert len((await box.drain()).results) == 200


async def test_a_handler_may_wait_in_a_thread_of_its_own(app: Headgate) -> None:
    @app.job("leaf")
    async def leaf() -> int:
        return 7

    @app.job("root")
    async def root() -> int:
        return await asyncio.to_thread(lambda: app.sync.submit(leaf).result())

    with app.testing() as box:
        handle = await root.submit()
        await asyncio.wait_for(box.drain(), 30)
        assert await handle.result() == 7


async def test_what_a_handler_declares_counts_for_every_submit(app: Headgate) -> None:
    @app.job("strict", max_attempts=2, retry=RetryPolicy.fixed(timedelta(hours=3)))
    async def strict() -> None:
        raise Fail("no")

    with app.testing(now=START) as box:
        handle = await app.submit("strict", {})
        await box.drain()
        info = await handle.info()
        assert (info.state, info.attempt, box.now) == ("dead", 2, START + timedelta(hours=3))


async def test_progress_and_arguments_can_be_looked_at(app: Headgate) -> None:
    @app.job("long")
    async def long(pages: int, *, job: Job = this_job) -> None:
        job.progress(pages, 10, "pages")
        job.extend(60)

    with app.testing() as box:
        handle = await long.submit(3)
        await box.drain()
        assert (await handle.info()).progress == box.job(handle).progress == (3, 10, "pages")
        assert repr(box.job(handle)).endswith("of long, completed, attempt 1 of 20>")
        assert {box.job(handle)} == {box.job(handle.id)}


async def test_a_box_leaves_the_client_as_it_was(app: Headgate) -> None:
    before = app._connection.addresses
    with app.testing():
        pass
    with pytest.raises(AssertionError), app.testing():
        raise AssertionError
    with app.testing() as second:
        assert isinstance(second, Box)
        assert second.submitted == []
    assert app._connection.addresses == before
    assert app._connection.box is None


def test_a_clock_without_a_zone_is_refused(app: Headgate) -> None:
    with pytest.raises(InvalidInput, match="now: must have a time zone"):
        app.testing(now=datetime(2026, 1, 1))  # noqa: DTZ001 - refused


async def test_a_replacing_submit_with_a_priority_of_0_has_it_whatever_the_handler_declares(app: Headgate) -> None:
    @app.job("index", priority=5)
    async def index() -> None: ...

    replace = Unique(key="a", on_conflict="replace")
    with app.testing(now=START) as box:
        handle = await index.with_options(unique="a", priority=7).submit()
        for options, priority in (({"priority": 0}, 0), ({}, 5)):
            await index.with_options(unique=replace, **options).submit()  # type: ignore[arg-type]
            assert box.job(handle).priority == priority
