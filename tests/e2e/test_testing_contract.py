"""The box of `hg.testing()` agrees with a real server: each scenario runs against both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, Protocol

import pytest

from headgate import (
    Abandon,
    Fail,
    Headgate,
    Job,
    JobCancelled,
    JobDead,
    JobHandle,
    JobInfo,
    Nack,
    Refused,
    RetryPolicy,
    Snooze,
    SubmitConflict,
    SubmitRefused,
    Unique,
    this_job,
)
from headgate.testing import AttachedApp, Box, LocalServer
from tests.support.database import Server
from tests.support.waiting import until_async

SOON = RetryPolicy.fixed(timedelta(milliseconds=10))
HOUR = timedelta(hours=1)


class World(Protocol):
    """An app whose jobs run in a box, or by a worker of a real server."""

    app: Headgate

    async def drain(self) -> None:
        """Run until every job has ended."""

    async def reach(self, handle: JobHandle[Any], state: str) -> JobInfo:
        """Run what is due until the job is in this state."""
        ...

    async def let_pass(self, seconds: float) -> None:
        """Let time pass, and run nothing."""


class InBox:
    """In memory, by the clock of the box."""

    def __init__(self, app: Headgate, box: Box) -> None:
        self.app, self.box = app, box

    async def drain(self) -> None:
        await self.box.drain()

    async def reach(self, handle: JobHandle[Any], state: str) -> JobInfo:
        await self.box.drain(until=0)
        info = await handle.info()
        assert info.state == state
        return info

    async def let_pass(self, seconds: float) -> None:
        self.box.advance(seconds)


class OnServer:
    """By a worker, in real time."""

    def __init__(self, app: Headgate, attached: AttachedApp) -> None:
        self.app, self.attached = app, attached

    async def drain(self) -> None:
        await self.attached.drain(timeout=60, concurrency=4)

    async def reach(self, handle: JobHandle[Any], state: str) -> JobInfo:
        async def there() -> JobInfo | None:
            info = await handle.info()
            return info if info.state == state else None

        async with self.attached.worker(concurrency=1):
            found = await until_async(there, f"the job is {state}")
            assert found is not None
            return found

    async def let_pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture(scope="module")
def the_server(postgres: Server, template: str) -> Iterator[LocalServer]:
    name = postgres.create(template=template)
    with LocalServer(postgres.dsn_of(name)) as server:
        yield server
    postgres.drop(name)


@pytest.fixture(params=["box", "server"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    app = Headgate("127.0.0.1:1")
    if request.param == "box":
        with app.testing() as box:
            yield InBox(app, box)
    else:
        server: LocalServer = request.getfixturevalue("the_server")
        with server.attach(app) as attached:
            yield OnServer(app, attached)


# --- results, order, delays ------------------------------------------------------------------------------------------


async def test_a_result_is_there_after_the_run(world: World) -> None:
    @world.app.job("add")
    async def add(a: int, b: int) -> int:
        return a + b

    handle = await add.submit(2, b=3)
    assert (await handle.info()).state == "pending"
    await world.drain()
    assert await handle.result() == 5
    info = await world.app.get(handle.id, payload=True, result=True)
    assert (info.state, info.attempt, info.result, info.payload) == ("completed", 1, b"5", b'{"a":2,"b":3}')
    assert (info.finished, info.last_error) == (True, "")


async def test_plain_handlers_and_what_they_submit_run_too(world: World) -> None:
    @world.app.job("child")
    def child(n: int) -> int:
        return n * 10

    @world.app.job("parent")
    def parent(n: int) -> list[str]:
        return [str(world.app.sync.submit(child, i).id) for i in range(n)]

    handle = await parent.submit(3)
    await world.drain()
    children = await handle.result()
    assert [await world.app.wait_result(one) for one in children] == [0, 10, 20]


async def test_a_handler_may_wait_for_the_result_of_another_job(world: World) -> None:
    @world.app.job("leaf", retry=SOON)
    async def leaf(n: int, *, job: Job = this_job) -> int:
        if job.attempt == 1:
            raise ValueError("once")
        return n

    @world.app.job("root")
    async def root() -> int:
        handles = [await leaf.submit(n) for n in (1, 2, 3)]
        return sum(await asyncio.gather(*(handle.result() for handle in handles)))

    handle = await root.submit()
    await world.drain()
    assert await handle.result() == 6


async def test_the_higher_priority_runs_first_and_equal_ones_in_order(world: World) -> None:
    ran: list[str] = []

    @world.app.job("note")
    async def note(name: str) -> None:
        ran.append(name)

    for name, priority in (("low", "bulk"), ("a", 0), ("b", 0), ("high", "high")):
        await note.with_options(priority=priority).submit(name)
    last = await note.with_options(priority=-20).submit("last")
    assert (await world.reach(last, "completed")).priority == -20
    assert ran == ["high", "a", "b", "low", "last"]
    ran.clear()
    older, newer = world.app.batch().id, world.app.batch().id  # ids grow with the time
    await note.with_options(id=newer).submit("first")
    await world.reach(await note.with_options(id=older).submit("second"), "completed")
    assert ran == ["first", "second"]  # by submit, not by id


async def test_a_delayed_job_is_scheduled_and_runs_later(world: World) -> None:
    @world.app.job("later")
    async def later() -> str:
        return "ran"

    much, little = await later.with_options(delay=HOUR).submit(), await later.with_options(delay=0.2).submit()
    before = await much.info()
    assert before.state == "scheduled"
    assert before.run_at is not None
    assert before.run_at - before.created_at == HOUR
    assert await much.cancel()
    await world.drain()
    after = await little.info()
    assert after.claimed_at is not None
    assert after.claimed_at - after.created_at >= timedelta(milliseconds=200)
    assert await little.result() == "ran"


# --- attempts --------------------------------------------------------------------------------------------------------


async def test_a_failed_attempt_is_retried_by_its_policy(world: World) -> None:
    @world.app.job("flaky", retry=RetryPolicy.fixed(HOUR))
    async def flaky(*, job: Job = this_job) -> None:
        raise ValueError(f"attempt {job.attempt}")

    handle = await flaky.submit()
    info = await world.reach(handle, "retrying")
    assert info.run_at is not None
    assert info.claimed_at is not None
    assert HOUR <= info.run_at - info.claimed_at < HOUR + timedelta(minutes=1)
    assert (info.attempt, info.last_error) == (1, "ValueError: attempt 1")


async def test_retries_end_with_a_success_or_dead(world: World) -> None:
    @world.app.job("flaky", retry=SOON, max_attempts=3)
    async def flaky(good: int, *, job: Job = this_job) -> int:
        if job.attempt < good:
            raise ValueError(f"attempt {job.attempt}")
        return job.attempt

    well, badly = await flaky.submit(3), await flaky.submit(4)
    await world.drain()
    assert await well.result() == 3
    assert (await well.info()).last_error == "ValueError: attempt 2"
    with pytest.raises(JobDead, match="ValueError: attempt 3"):
        await badly.result()
    info = await badly.info()
    assert (info.state, info.attempt, info.max_attempts) == ("dead", 3, 3)


async def test_a_permanent_failure_leaves_no_further_attempts(world: World) -> None:
    @world.app.job("final")
    def final() -> None:
        raise Fail("no such user", permanent=True)

    handle = await final.submit()
    await world.drain()
    info = await handle.info()
    assert (info.state, info.attempt, info.last_error) == ("dead", 1, "Fail: no such user")


async def test_nack_costs_an_attempt_snooze_and_abandon_do_not(world: World) -> None:
    seen: dict[str, list[int]] = {"nack": [], "snooze": [], "abandon": []}
    verdicts = {"nack": Nack(0.01, "later"), "snooze": Snooze(0.01), "abandon": Abandon()}

    @world.app.job("again", max_attempts=5)
    async def again(how: str, *, job: Job = this_job) -> int:
        seen[how].append(job.attempt)
        if len(seen[how]) < 3:
            raise verdicts[how]
        return job.attempt

    handles = {how: await again.submit(how) for how in seen}
    await world.drain()
    assert seen == {"nack": [1, 2, 3], "snooze": [1, 1, 1], "abandon": [1, 1, 1]}
    assert {how: await handle.result() for how, handle in handles.items()} == {"nack": 3, "snooze": 1, "abandon": 1}
    assert (await handles["nack"].info()).last_error == "later"


async def test_nack_and_snooze_name_the_next_time(world: World) -> None:
    @world.app.job("wait")
    async def wait(how: str) -> None:
        raise Nack(HOUR, "busy") if how == "nack" else Snooze(HOUR)

    for how, state, attempt in (("nack", "retrying", 1), ("snooze", "scheduled", 0)):
        info = await world.reach(await wait.submit(how), state)
        assert info.run_at is not None
        assert info.claimed_at is not None
        assert HOUR <= info.run_at - info.claimed_at < HOUR + timedelta(minutes=1)
        assert info.attempt == attempt


async def test_arguments_that_do_not_fit_fail_the_attempt(world: World) -> None:
    @world.app.job("typed")
    async def typed(n: int) -> int:
        return n

    handle = await world.app.submit("typed", {"n": "three"}, max_attempts=1)
    await world.drain()
    with pytest.raises(JobDead, match=r"typed\.n"):
        await handle.result()


async def test_a_time_limit_fails_the_attempt(world: World) -> None:
    @world.app.job("slow", time_limit=0.05, max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(60)

    handle = await slow.submit()
    await world.drain()
    info = await handle.info()
    assert (info.state, info.attempt) == ("dead", 1)
    assert info.last_error == "TimeLimitExceeded: the handler of slow ran longer than its time limit of 0.05 s"


async def test_a_job_is_not_started_after_its_deadline(world: World) -> None:
    ran: list[str] = []

    @world.app.job("urgent")
    async def urgent() -> None:
        ran.append("ran")

    handle = await urgent.with_options(deadline=0.05).submit()
    await world.let_pass(0.1)
    await world.drain()
    info = await handle.info()
    assert (info.state, info.attempt, ran) == ("dead", 1, [])
    assert info.last_error.startswith("deadline_exceeded: the deadline of the job, ")


# --- unique keys and idempotency keys --------------------------------------------------------------------------------


async def test_an_idempotency_key_names_one_submission(world: World) -> None:
    @world.app.job("pay")
    async def pay(amount: int) -> int:
        return amount

    once = pay.with_options(key="order-1")
    first, again = await once.submit(5), await once.submit(5)
    assert (again.id, first.created, again.created) == (first.id, True, False)
    with pytest.raises(SubmitConflict) as conflict:
        await once.submit(6)
    assert conflict.value.first == first.id
    await world.drain()
    assert (await once.submit(5)).id == first.id  # also when it has ended


async def test_a_unique_key_has_one_live_job(world: World) -> None:
    @world.app.job("sync")
    async def sync(n: int) -> int:
        return n

    once = sync.with_options(unique="customer-7")
    first, second = await once.submit(1), await once.with_options(delay=HOUR, priority=5).submit(2)
    assert (second.id, second.created) == (first.id, False)
    info = await first.info()
    assert (info.state, info.priority) == ("pending", 0)  # kept as it was
    await world.drain()
    assert await first.result() == 1
    third = await once.submit(3)
    assert third.created
    assert third.id != first.id
    assert (await third.info()).unique_key == "customer-7"


async def test_a_unique_submit_may_replace_or_reschedule_the_live_job(world: World) -> None:
    @world.app.job("index")
    async def index(what: str) -> str:
        return what

    first = await index.with_options(unique="a", delay=3600).submit("old")
    replaced = await index.with_options(unique=Unique(key="a", on_conflict="replace"), priority=5).submit("new")
    assert replaced.id == first.id
    info = await first.info()
    assert (info.state, info.priority) == ("pending", 5)
    other = await index.with_options(unique="b").submit("kept")
    debounced = Unique(key="b", on_conflict="reschedule", debounce_max=timedelta(seconds=10))
    await index.with_options(unique=debounced, delay=3600).submit("ignored")
    moved = await other.info()
    assert moved.state == "scheduled"
    assert moved.run_at is not None
    assert moved.run_at - moved.created_at == timedelta(seconds=10)
    assert (await world.reach(first, "completed")).attempt == 1
    assert await first.result() == "new"
    assert await other.cancel()


# --- dependencies and batches ----------------------------------------------------------------------------------------


def make_steps(app: Headgate) -> tuple[Any, list[str]]:
    """A task that notes its runs, and fails for good if its name begins with "bad"."""
    ran: list[str] = []

    @app.job("step")
    async def step(name: str) -> str:
        ran.append(name)
        if name.startswith("bad"):
            raise Fail(name, permanent=True)
        return name

    return step, ran


async def test_a_job_waits_until_its_parents_have_succeeded(world: World) -> None:
    step, ran = make_steps(world.app)
    first = await step.submit("first")
    second = await step.with_options(depends_on=[first], priority=10).submit("second")
    third = await step.with_options(depends_on=[first, second.id], priority=20).submit("third")
    info = await third.info()
    assert (info.state, info.parent_count, {one.met for one in info.parents}) == ("blocked", 2, {"waiting"})
    await world.drain()
    assert ran == ["first", "second", "third"]
    assert {one.met for one in (await third.info()).parents} == {"fulfilled"}
    late = await step.with_options(depends_on=[first]).submit("late")  # its parent has ended before
    await world.drain()
    assert await late.result() == "late"


async def test_what_a_failed_parent_does_to_its_children(world: World) -> None:
    step, ran = make_steps(world.app)
    bad = await step.submit("bad")
    after = {"depends_on": [bad]}
    cancelled = await step.with_options(**after).submit("needs success")
    grandchild = await step.with_options(depends_on=[cancelled]).submit("grandchild")
    ended = await step.with_options(needs="ended", **after).submit("needs an end")
    ignored = await step.with_options(on_parent_failure="ignore", **after).submit("ignores it")
    await world.drain()
    assert sorted(ran) == ["bad", "ignores it", "needs an end"]
    for one in (cancelled, grandchild):
        with pytest.raises(JobCancelled):
            await one.result()
    (parent,) = (await cancelled.info()).parents
    assert (parent.id, parent.met) == (bad.id, "dead")
    assert await ended.result() == "needs an end"
    assert await ignored.result() == "ignores it"


async def test_a_blocked_child_waits_for_the_redrive_of_its_parent(world: World) -> None:
    fails = [True]

    @world.app.job("parent")
    async def parent() -> str:
        if fails.pop():
            raise Fail("not yet", permanent=True)
        return "parent"

    @world.app.job("child")
    async def child() -> str:
        return "child"

    first = await parent.submit()
    waiting = await child.with_options(depends_on=[first], on_parent_failure="block").submit()
    await world.reach(first, "dead")
    assert (await waiting.info()).state == "blocked"
    fails.append(False)
    (change,) = await world.app.admin.jobs.redrive(first.id)
    assert (change.changed, change.state) == (True, "pending")
    await world.drain()
    assert await waiting.result() == "child"
    assert (await first.info()).attempt == 1


async def test_an_unknown_parent_and_a_sealed_batch_are_refused(world: World) -> None:
    step, _ = make_steps(world.app)
    unknown = world.app.batch().id
    with pytest.raises(SubmitRefused, match="no parent job") as refused:
        await step.with_options(depends_on=[unknown]).submit("a")
    assert refused.value.reported == "not_found"
    with pytest.raises(SubmitRefused, match="no batch"):
        await step.with_options(batch=unknown).submit("a")
    async with world.app.batch() as batch:
        pass
    with pytest.raises(SubmitRefused, match="is sealed"):
        await batch.submit(step, "too late")


async def test_the_callback_of_a_batch_runs_when_all_members_have_ended(world: World) -> None:
    step, ran = make_steps(world.app)
    async with world.app.batch("import", on_done=step.bind("done", options={"priority": 20})) as batch:
        await batch.submit(step, "a")
        await batch.submit_many(step, [("bad",), ("b",)])
        assert (await batch.status()).callback_state == "blocked"
    await world.drain()
    assert sorted(ran[:3]) == ["a", "b", "bad"]
    assert ran[3:] == ["done"]
    status = await world.app.batch_status(batch.id)
    assert (status.total, status.sealed, status.counts) == (3, True, {"completed": 2, "dead": 1})
    assert status.callback_state == "completed"
    assert await world.app.wait_result(status.callback_id) == "done"


async def test_a_callback_that_needs_success_is_cancelled_by_a_dead_member(world: World) -> None:
    step, ran = make_steps(world.app)
    async with world.app.batch(on_done=step.bind("done"), needs="succeeded") as batch:
        await batch.submit(step, "bad")
    await world.drain()
    assert ran == ["bad"]
    assert (await batch.status()).callback_state == "cancelled"


async def test_a_batch_without_members_completes_when_it_is_sealed(world: World) -> None:
    step, ran = make_steps(world.app)
    batch = await world.app.submit_batch([], on_done=step.bind("done"))
    await world.drain()
    assert (ran, (await batch.status()).total) == (["done"], 0)


# --- cancel and redrive ----------------------------------------------------------------------------------------------


async def test_a_queued_job_is_cancelled_at_once(world: World) -> None:
    step, ran = make_steps(world.app)
    handle = await step.with_options(delay=3600).submit("never")
    assert await handle.cancel()
    with pytest.raises(JobCancelled):
        await handle.result()
    with pytest.raises(Refused, match="is cancelled: cannot cancel it"):
        await handle.cancel()
    await world.drain()
    assert (ran, (await handle.info()).attempt) == ([], 0)


async def test_a_running_job_is_asked_to_end(world: World) -> None:
    @world.app.job("long")
    async def long(*, job: Job = this_job) -> None:
        handle = world.app.handle(job.id)
        assert await handle.cancel()
        await job.cancelled.wait_async()
        assert not await handle.cancel()  # requested before
        job.raise_if_cancelled()

    handle = await long.submit()
    await world.drain()
    info = await handle.info()
    assert (info.state, info.cancel_requested) == ("cancelled", True)
    assert info.last_error == "Cancelled: the job was cancelled on request"


async def test_a_redriven_job_has_all_its_attempts_again(world: World) -> None:
    step, ran = make_steps(world.app)
    handle = await step.submit("bad")
    await world.drain()
    (change,) = await world.app.admin.jobs.redrive(handle.id, payload={"name": "good"})
    change.raise_for_error()
    await world.drain()
    assert ran == ["bad", "good"]
    assert await handle.result() == "good"
    assert (await handle.info()).attempt == 1
