"""Results, order, delays and attempts: the same in a box and on a server."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headgate import Abandon, Fail, Job, JobDead, Nack, RetryPolicy, Snooze, this_job
from tests.e2e.testing_contract.worlds import HOUR, World

SOON = RetryPolicy.fixed(timedelta(milliseconds=10))


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
    assert (info.state, info.attempt, info.result(), info.payload) == ("completed", 1, 5, b'{"a":2,"b":3}')
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
