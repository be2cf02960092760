"""Hooks of the application: around a handler, after failures, at the start and the end of a worker."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate import Failure, Headgate, InvalidInput, Job, JobFields, Nack, Worker
from headgate.domain.ids import id_from_bytes
from headgate.sdk.background_calls import BackgroundCalls
from headgate.sdk.hooks import Hooks
from headgate.sdk.testing import fake_job
from headgate.sdk.worker import attempt_log, worker_hooks
from headgate.sdk.worker.attempt_log import AttemptLog, Settled
from headgate.sdk.worker.execution import attempt_async, attempt_sync
from headgate.sdk.worker.middleware import names_of
from headgate.wire import jobs_pb2
from tests.support.fake_server import fake_server, until
from tests.support.worker_protocol import Driver, make_protocol, raw_ids
from tests.unit.sdk_working import working
from tests.unit.test_sdk_worker_log import AT, answer, explode


def app_with(*middleware: Any) -> Headgate:
    app = Headgate("127.0.0.1:1")
    for one in middleware:
        app.middleware(one)
    return app


async def outcomes(app: Headgate, body: Any) -> list[Any]:
    """What the same body comes to as an async and as a plain handler."""

    async def run(job: Job) -> Any:
        return body(job)

    def run_plain(job: Job) -> Any:
        return body(job)

    chain = app._hooks.middleware
    loop_task, thread_task = app.register("a", run), app.register("b", run_plain)
    return [
        await attempt_async(loop_task, fake_job(), None, chain),
        attempt_sync(thread_task, fake_job(), chain),
    ]


async def test_middleware_runs_around_async_and_plain_handlers_in_the_order_of_registration() -> None:
    seen: list[str] = []

    def middleware(name: str) -> Any:
        def around(job: Job) -> Iterator[None]:
            seen.append(f"{name} before {job.topic}")
            result = yield
            seen.append(f"{name} after {result}")

        return around

    app = app_with(middleware("outer"), middleware("inner"))

    def body(job: Job) -> int:
        seen.append("handler")
        return 7

    assert await outcomes(app, body) == [b"7", b"7"]
    once = ["outer before test", "inner before test", "handler", "inner after 7", "outer after 7"]
    assert seen == once * 2


async def test_async_middleware_runs_around_async_handlers() -> None:
    seen: list[str] = []

    async def around(job: Job) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        try:
            yield
        except ValueError as error:
            await asyncio.sleep(0)
            seen.append(str(error))
            raise

    async def handler(job: Job) -> None:
        explode("ada")

    app = app_with(around)
    one: Any = await attempt_async(app.register("a", handler), fake_job(), None, app._hooks.middleware)
    assert one.failed.type == "ValueError"
    assert seen == ["no such user: ada"]


async def test_middleware_that_forgets_to_raise_again_does_not_turn_a_failure_into_a_success() -> None:
    seen: list[BaseException] = []

    def forgetful(job: Job) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(error)

    for one in await outcomes(app_with(forgetful), lambda job: explode("ada")):
        assert (one.failed.type, one.failed.message) == ("ValueError", "no such user: ada")
    assert len(seen) == 2


def before(job: Job) -> Iterator[None]:
    raise RuntimeError("broken before")
    yield


def after(job: Job) -> Iterator[None]:
    try:
        yield
    finally:
        raise RuntimeError("broken after")


def never(job: Job) -> Iterator[None]:
    if job is None:
        yield


def twice(job: Job) -> Iterator[None]:
    try:
        yield
    finally:
        yield


def exits_before(job: Job) -> Iterator[None]:
    sys.exit(3)
    yield


def exits_after(job: Job) -> Iterator[None]:
    try:
        yield
    finally:
        sys.exit(3)


@pytest.mark.parametrize("broken", [before, after, never, twice, exits_before, exits_after])
async def test_middleware_that_raises_is_logged_and_changes_nothing(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_with(broken)
    assert await outcomes(app, lambda job: 7) == [b"7", b"7"]
    assert [one.getMessage().split(" ")[:3] for one in caplog.records] == [
        ["hook_failed", "hook=middleware", f"function={broken.__name__}"]
    ] * 2
    failing = app_with(broken)
    for one in await outcomes(failing, lambda job: explode("ada")):
        assert one.failed.message == "no such user: ada"


async def test_any_exception_of_a_handler_passes_middleware_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    def around(job: Job) -> Iterator[None]:
        yield

    for error in (StopIteration(3), SystemExit(3), KeyboardInterrupt(), RuntimeError("x")):

        def body(job: Job, error: BaseException = error) -> None:
            raise error

        *_, plain = await outcomes(app_with(around), body)
        assert plain.failed.type == type(error).__name__
        assert "raise error" in plain.failed.traceback
    assert not caplog.records


async def test_middleware_may_decide_the_outcome_by_a_verdict() -> None:
    def not_now(job: Job) -> Iterator[None]:
        try:
            yield
        except ValueError:
            raise Nack(60, "the service is down") from None

    for one in await outcomes(app_with(not_now), lambda job: explode("ada")):
        assert (one.nack.delay_ms, one.nack.reason) == (60_000, "the service is down")

    def closed(job: Job) -> Iterator[None]:
        raise Nack(5, "maintenance")
        yield

    for one in await outcomes(app_with(closed), lambda job: pytest.fail("the handler ran")):
        assert one.nack.reason == "maintenance"


async def test_a_handler_that_is_cancelled_still_ends_its_middleware() -> None:
    ended: list[str] = []

    def around(job: Job) -> Iterator[None]:
        try:
            yield
        finally:
            ended.append("left")

    async with fake_server() as server:
        app = Headgate(server.address)
        begun = asyncio.Event()

        @app.job("wait")
        async def wait() -> None:
            begun.set()
            await asyncio.Event().wait()

        app.middleware(around)
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("wait", b"{}")
            await begun.wait()
            peer.say(cancel=peer.held(raw))
            await until(peer.others, "it has ended")
    assert peer.others()[0].failed.type == "Cancelled"
    assert ended == ["left"]


@pytest.mark.parametrize("wrong", [explode, 3, contextmanager(before)])
def test_middleware_that_is_no_generator_function_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="one yield"):
        Headgate("127.0.0.1:1").middleware(wrong)
    with pytest.raises(InvalidInput, match="must be a function"):
        Headgate("127.0.0.1:1").on_failure(3)  # type: ignore[type-var]


@pytest.mark.parametrize(("state", "dead"), [(jobs_pb2.STATE_RETRYING, False), (jobs_pb2.STATE_DEAD, True)])
async def test_failure_hooks_get_the_exception_and_what_follows_and_a_broken_one_stops_no_other(
    state: int, dead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, Failure]] = []
    async with fake_server() as server:
        server.answers_outcomes = False
        app = Headgate(server.address)
        app.register("mail", lambda job: explode("ada"))

        @app.on_failure
        def broken(failure: Failure) -> None:
            raise RuntimeError("broken hook")

        @app.on_failure
        async def failed(failure: Failure) -> None:
            await asyncio.sleep(0)
            seen.append(("failed", failure))

        app.on_dead(lambda failure: seen.append(("dead", failure)))
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("mail", b"", attempt=2)
            await answer(server, peer, state, run_at_us=AT)
            await until(lambda: len(seen) == 1 + dead, "the hooks are called")
            # The worker continues: its next job runs, and its failure is reported too.
            peer.deliver("mail", b"")
            await until(lambda: len(seen) > 1 + dead, "the next failure is seen")
    assert [kind for kind, _ in seen[: 1 + dead]] == ["failed", "dead"][: 1 + dead]
    failure = seen[0][1]
    assert isinstance(failure.exception, ValueError)
    assert (failure.job.id.bytes, failure.job.attempt, failure.type) == (raw, 2, "ValueError")
    assert (failure.message, failure.dead) == ("no such user: ada", dead)
    assert (failure.retry_at is None) == dead
    assert 'explode("ada")' in failure.traceback
    assert "hook_failed hook=on_failure function=" in caplog.text
    assert "broken hook" in caplog.text


async def test_log_lines_of_failure_hooks_have_the_fields_of_the_job() -> None:
    found: list[tuple[str, object, object]] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.getMessage(), vars(record)["job_id"], vars(record)["attempt"]))

    collect = Collect()
    collect.addFilter(JobFields())
    own = logging.getLogger("tests.hooks")
    own.addHandler(collect)
    async with fake_server() as server:
        server.answers_outcomes = False
        app = Headgate(server.address)
        app.register("mail", lambda job: explode("ada"))
        app.on_failure(lambda failure: own.warning("plain"))

        @app.on_dead
        async def dead(failure: Failure) -> None:
            own.warning("async")

        try:
            async with working(app, server) as (_, peer):
                (raw,) = peer.deliver("mail", b"", attempt=2)
                await answer(server, peer, jobs_pb2.STATE_DEAD, run_at_us=AT)
                await until(lambda: len(found) == 2, "both hooks have logged")
        finally:
            own.removeHandler(collect)
    job_id = str(id_from_bytes(raw))
    assert found == [("plain", job_id, 2), ("async", job_id, 2)]


async def test_an_async_hook_that_does_not_end_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_log, "HOOK_SECONDS", 0.05)
    called: list[Failure] = []
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("mail", lambda job: explode("ada"))

        @app.on_failure
        async def endless(failure: Failure) -> None:
            await asyncio.Event().wait()

        app.on_failure(called.append)
        async with working(app, server) as (_, peer):
            peer.deliver("mail", b"")
            await until(lambda: called, "the next hook is called")
    assert "it did not end in time" in caplog.text


async def test_start_and_stop_hooks_are_called_with_the_worker_and_broken_ones_harm_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_hooks, "WORKER_HOOK_SECONDS", 0.2)
    seen: list[tuple[str, str, bool]] = []
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("mail", lambda job: seen.append(("handler", "", True)))

        @app.on_start
        def broken(worker: Worker) -> None:
            raise RuntimeError("broken start")

        @app.on_start
        async def started(worker: Worker) -> None:
            seen.append(("start", worker.worker_id, bool(server.workers)))

        @app.on_stop
        async def stopped(worker: Worker) -> None:
            seen.append(("stop", worker.worker_id, worker.connected))

        @app.on_stop
        async def endless(worker: Worker) -> None:
            await asyncio.Event().wait()

        async with working(app, server, worker_id="w-1") as (_, peer):
            peer.deliver("mail", b"")
            await until(peer.completed, "the handler ran")
    assert seen == [("start", "w-1", False), ("handler", "", True), ("stop", "w-1", False)]
    assert "broken start" in caplog.text
    assert "it did not end in time" in caplog.text


async def test_async_middleware_beside_plain_handlers_is_named_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="headgate.worker")

    async def session(job: Job) -> AsyncIterator[None]:
        pytest.fail("it ran around a plain handler")
        yield

    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("mail", lambda job: None)
        app.middleware(session)
        async with working(app, server) as (_, peer):
            peer.deliver("mail", b"")
            await until(peer.completed, "the handler ran")
    assert "it runs around async handlers only" in caplog.text


async def call_failure_hooks(*functions: Any) -> None:
    """Have a worker's log of attempts call these hooks after two failed attempts."""
    hooks = Hooks()
    hooks.on_failure.extend(functions)
    driver = Driver(make_protocol())
    driver.connect()
    outcome = jobs_pb2.Outcome(failed=jobs_pb2.Failed(type="ValueError", message="no such user"))
    attempts = AttemptLog(hooks, asyncio.get_running_loop(), BackgroundCalls("headgate-test"))
    attempts.put([Settled(job, outcome, None) for job in driver.deliver(*raw_ids(2))])
    await attempts.close()


def exit_in_a_hook(failure: object) -> None:
    sys.exit(3)


async def exit_in_an_async_hook(failure: object) -> None:
    sys.exit(3)


@pytest.mark.parametrize("broken", [exit_in_a_hook, exit_in_an_async_hook])
async def test_a_failure_hook_that_calls_sys_exit_is_logged_and_stops_no_other(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Failure] = []
    await call_failure_hooks(broken, called.append)
    assert len(called) == 2
    assert caplog.text.count(f"hook_failed hook=on_failure function={broken.__name__}") == 2


@pytest.mark.parametrize("broken", [exit_in_a_hook, exit_in_an_async_hook])
async def test_a_hook_that_calls_sys_exit_does_not_end_the_drain_of_a_box(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_with()
    task = app.register("mail", lambda: explode("ada"), max_attempts=1)
    app.on_failure(broken)
    with app.testing() as box:
        await task.submit()
        await box.drain()
    assert f"hook_failed hook=on_failure function={broken.__name__}" in caplog.text


async def test_a_plain_hook_that_does_not_end_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_log, "HOOK_SECONDS", 0.05)
    called: list[Failure] = []
    released = threading.Event()

    def endless(failure: Failure) -> None:
        released.wait(60)

    try:
        await call_failure_hooks(endless, called.append)
    finally:
        released.set()
    assert len(called) == 2
    assert caplog.text.count("it did not end in time") == 2


async def test_a_plain_hook_at_the_start_that_blocks_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_hooks, "WORKER_HOOK_SECONDS", 0.05)
    released = threading.Event()
    waited: list[bool] = []

    def block(worker: Worker) -> None:
        waited.append(released.wait(30))

    app = app_with()
    app.register("mail", explode)
    try:
        await worker_hooks.call_worker_hooks("on_start", [block], app.worker())
        assert not waited
    finally:
        released.set()
    assert "hook_failed hook=on_start" in caplog.text
    assert "it did not end in time" in caplog.text


@pytest.mark.parametrize("refuse", [exit_in_a_hook, exit_in_an_async_hook])
async def test_a_hook_refuses_the_start_by_sys_exit(refuse: Any) -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("mail", explode)
        app.on_start(refuse)
        with pytest.raises(SystemExit) as left:
            await app.worker().run()
        assert left.value.code == 3
        assert not server.workers


class Counting:
    def around(self, job: Job) -> Iterator[None]:
        yield


def test_middleware_that_a_process_cannot_find_by_its_name_is_left_out_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    partial = functools.partial(before)
    found = names_of([Counting().around, partial, before, lambda job: iter(())])
    assert found == ((__name__, "before"),)
    skipped = [one.getMessage().split(" ")[:2] for one in caplog.records]
    assert skipped[:2] == [
        ["middleware_skipped", "function=Counting.around"],
        ["middleware_skipped", "function=partial"],
    ]
    assert len(skipped) == 3
