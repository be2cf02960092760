"""Keys, unique keys, dependencies, batches, cancel and redrive: the same in a box and on a server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headgate import (
    Fail,
    Headgate,
    Job,
    JobCancelled,
    Refused,
    RetryPolicy,
    SubmitConflict,
    SubmitRefused,
    Unique,
    this_job,
)
from tests.e2e.testing_contract.worlds import HOUR, World

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
    with pytest.raises(SubmitConflict):  # the same id and body for another topic
        await world.app.submit("elsewhere", {"amount": 5}, id=first.id)
    await world.drain()
    assert (await once.submit(5)).id == first.id  # also when it has ended
    assert (await first.info()).key == "order-1"


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


async def test_a_unique_submit_that_is_sent_again_changes_nothing_more(world: World) -> None:
    @world.app.job("index")
    async def index(what: str) -> str:
        return what

    first = await index.with_options(unique="a", delay=3600).submit("old")
    replace = Unique(key="a", on_conflict="replace")
    lost = index.with_options(id=world.app.batch().id, unique=replace, delay=3600)  # its answer was lost
    assert (await lost.submit("new")).id == first.id
    await index.with_options(unique=replace).submit("newest")
    assert (await lost.submit("new")).id == first.id
    await world.reach(first, "completed")
    assert await first.result() == "newest"


async def test_a_unique_submit_leaves_a_blocked_job_blocked_and_moves_a_retry(world: World) -> None:
    @world.app.job("index", retry=RetryPolicy.fixed(HOUR))
    async def index(what: str) -> str:
        if what == "bad":
            raise ValueError(what)
        return what

    parent = await index.with_options(delay=3600).submit("parent")
    child = await index.with_options(unique="child", depends_on=[parent]).submit("child")
    await index.with_options(unique=Unique(key="child", on_conflict="replace")).submit("other")
    assert (await child.info()).state == "blocked"
    for conflict, state in (("reschedule", "retrying"), ("replace", "scheduled")):
        job = await index.with_options(unique=conflict).submit("bad")
        await world.reach(job, "retrying")
        unique = Unique(key=conflict, on_conflict=conflict)  # type: ignore[arg-type]
        await index.with_options(unique=unique, delay=7200).submit("good")
        assert (await job.info()).state == state
        assert await job.cancel()
    assert await parent.cancel()


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


async def test_a_parent_that_has_succeeded_once_has_succeeded(world: World) -> None:
    step, _ = make_steps(world.app)
    first, later = await step.submit("first"), await step.with_options(delay=3600).submit("later")
    child = await step.with_options(depends_on=[first, later]).submit("child")
    await world.reach(first, "completed")
    (change,) = await world.app.admin.jobs.redrive(first.id, payload={"name": "bad"})
    change.raise_for_error()
    await world.reach(first, "dead")
    assert (await child.info()).state == "blocked"
    assert await later.cancel()


async def test_an_unknown_parent_and_a_sealed_batch_are_refused(world: World) -> None:
    step, _ = make_steps(world.app)
    unknown = world.app.batch().id
    with pytest.raises(SubmitRefused, match="no parent job") as refused:
        await step.with_options(depends_on=[unknown]).submit("a")
    assert refused.value.reported == "not_found"
    known = await step.submit("known")
    with pytest.raises(SubmitRefused, match=f"no parent job .*{unknown}"):
        await step.with_options(depends_on=[known, unknown]).submit("a")
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
    info = await handle.info()
    assert (info.state, info.attempt, info.last_error) == ("pending", 0, "Fail: bad")
    assert (info.finished_at, info.claimed_at, info.worker) == (None, None, "")
    await world.drain()
    assert ran == ["bad", "good"]
    assert await handle.result() == "good"
    assert (await handle.info()).attempt == 1
