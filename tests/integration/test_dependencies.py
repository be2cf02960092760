"""Jobs that wait for jobs, against a real PostgreSQL: who is freed, cancelled or refused, and every race in between."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from headgate.domain.dependencies import Unique
from headgate.domain.errors import DependencyCycle, HeadgateError, NotFound, TooLarge
from headgate.domain.ids import JobId
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Outcome
from headgate.domain.states import EventKind, State, SubmitReceipt
from headgate.store import dependencies, reads, verbs
from headgate.store.connect import Connection
from headgate.store.flush import fill
from headgate.store.partitions import ensure_partitions
from headgate.store.submit import submit
from tests.support.queue import Clock, Queue, new_id
from tests.support.store_calls import drop_expired

DIES = Failed(error=ErrorInfo(type="ValueError", message="boom"), permanent=True)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def free(queue: Queue) -> list[UUID]:
    """Decide everything that was noted, cascades included."""
    freed: list[UUID] = []
    more = True
    while more:
        found, more = await dependencies.unblock_ready(queue.db)
        freed += [job_id for _, _, job_id in found]
    return freed


async def state(queue: Queue, job_id: UUID) -> State:
    return (await reads.get(queue.db, await queue.tenant_no(), job_id)).state


async def run(queue: Queue, *ids: UUID, outcome: Outcome | None = None) -> None:
    """Claim everything there is and end these."""
    claimed = await queue.claim(1000)
    epochs = dict(zip(claimed.ids, claimed.epochs, strict=True))
    await queue.settle(*((job_id, epochs[job_id], outcome or Completed()) for job_id in ids))


async def refused(queue: Queue, *jobs: Submission) -> list[HeadgateError | None]:
    flush = await fill(queue.db, queue.names, jobs)
    answers = await submit(queue.db, flush)
    return [answers[place].error if place in answers else None for place in range(len(flush))]


async def test_a_job_waits_until_all_it_depends_on_have_succeeded(queue: Queue) -> None:
    parents = await queue.add(3)
    (child,) = await queue.add(1, depends_on=parents)
    assert await state(queue, child) is State.BLOCKED
    await run(queue, *parents[:2])
    assert await free(queue) == []
    assert await state(queue, child) is State.BLOCKED
    await queue.settle((parents[2], 1, Completed()))
    assert await free(queue) == [child]
    assert (await queue.claim()).ids == (child,)
    history = await reads.events(queue.db, await queue.tenant_no(), child)
    assert [(event.kind, event.state, event.reason) for event in history] == [
        (EventKind.BLOCKED, State.BLOCKED, "waits for 3 other jobs"),
        (EventKind.UNBLOCKED, State.PENDING, "all it waited for has been done"),
    ]
    counts = (await reads.counts(queue.db, await queue.tenant_no()))[(await queue.topic()).no]
    assert counts == {State.COMPLETED: 3, State.RUNNING: 1}


@pytest.mark.parametrize(
    ("needs", "policy", "ending", "becomes"),
    [
        ("succeeded", "cancel", "completed", State.PENDING),
        ("succeeded", "cancel", "dead", State.CANCELLED),
        ("succeeded", "cancel", "cancelled", State.CANCELLED),
        ("succeeded", "ignore", "dead", State.PENDING),
        ("succeeded", "ignore", "cancelled", State.PENDING),
        ("succeeded", "block", "dead", State.BLOCKED),
        ("succeeded", "block", "cancelled", State.BLOCKED),
        ("ended", "cancel", "completed", State.PENDING),
        ("ended", "cancel", "dead", State.PENDING),
        ("ended", "cancel", "cancelled", State.PENDING),
    ],
)
@pytest.mark.parametrize("before", [False, True], ids=["parent ends later", "parent ended before"])
async def test_what_a_parents_end_means_for_its_child(
    queue: Queue, needs: str, policy: str, ending: str, becomes: State, before: bool
) -> None:
    (parent,) = await queue.add(topic="parents")
    tenant = await queue.tenant_no()

    async def end() -> None:
        if ending == "cancelled":
            await verbs.cancel(queue.db, tenant, [parent])
        else:
            await queue.claim(1, "parents")
            await queue.settle((parent, 1, Completed() if ending == "completed" else DIES))

    if before:
        await end()
    (child,) = await queue.add(1, depends_on=[parent], needs=needs, on_parent_failure=policy)
    if not before:
        assert await free(queue) == []
        await end()
    await free(queue)
    assert await state(queue, child) is becomes
    if becomes is State.CANCELLED:
        last = (await reads.events(queue.db, tenant, child))[-1]
        assert (last.kind, last.reason) == (EventKind.CANCELLED, f"it waited for {parent}, which is {ending}")


async def test_who_waits_on_runs_once_the_parent_was_redriven_and_succeeds(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    tenant = await queue.tenant_no()
    (early,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, DIES))
    (late,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")  # it is dead already
    assert await free(queue) == []
    await verbs.redrive(queue.db, tenant, [parent])
    await queue.claim(1, "parents")
    await queue.settle((parent, 2, Completed()))
    assert set(await free(queue)) == {early, late}


async def test_the_first_child_of_a_dead_parent_runs_once_that_was_redriven_and_succeeds(queue: Queue) -> None:
    """It had no children when it died: that it has one now is noted on the dead job, and comes back with it."""
    (parent,) = await queue.add(1, "parents")
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, DIES))
    (child,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")
    assert await free(queue) == []
    await verbs.redrive(queue.db, await queue.tenant_no(), [parent])
    await queue.claim(1, "parents")
    await queue.settle((parent, 2, Completed()))
    assert await free(queue) == [child]


async def test_a_child_of_a_dead_and_of_a_live_parent_is_cancelled_at_once(queue: Queue) -> None:
    (dead,) = await queue.add(1, "parents")
    await queue.claim(1, "parents")
    await queue.settle((dead, 1, DIES))
    (live,) = await queue.add(1, "parents")
    (child,) = await queue.add(1, depends_on=[dead, live])
    assert await free(queue) == []
    assert await state(queue, child) is State.CANCELLED


async def test_a_discarded_parent_leaves_no_child_waiting_forever(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    (child,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")
    tenant = await queue.tenant_no()
    await verbs.cancel(queue.db, tenant, [parent])
    await free(queue)
    assert await state(queue, child) is State.BLOCKED
    await verbs.discard(queue.db, tenant, [parent])
    await free(queue)
    assert await state(queue, child) is State.CANCELLED


async def test_a_dropped_day_leaves_no_rows_and_no_waiting_children(queue: Queue) -> None:
    clock, tenant = await Clock.install(queue.db), await queue.tenant_no()
    dead, fine = await queue.add(2, topic="parents")
    (done,) = await queue.add(1, depends_on=[fine], unique=Unique(key="k"))
    (child,) = await queue.add(1, depends_on=[dead, fine], on_parent_failure="block")
    await queue.claim(2, "parents")
    await queue.settle((dead, 1, DIES), (fine, 1, Completed()))
    assert await free(queue) == [done]
    await run(queue, done)
    await clock.advance(days=40)
    await ensure_partitions(queue.db)
    assert await drop_expired(queue.db, keep=timedelta(days=2))
    await free(queue)
    assert await state(queue, child) is State.CANCELLED
    assert (await reads.events(queue.db, tenant, child))[-1].reason == f"it waited for {dead}, which is gone"
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.unique_jobs") == 0
    assert await queue.db.fetch("SELECT child_id, parent_id FROM headgate.job_dependencies") == [(child, dead)]


async def test_a_cancelled_parent_cancels_down_the_line(queue: Queue) -> None:
    (first,) = await queue.add()
    line = [first]
    for _ in range(5):
        line += await queue.add(1, depends_on=[line[-1]])
    await verbs.cancel(queue.db, await queue.tenant_no(), [first], who="ann", reason="wrong file")
    await free(queue)
    assert {await state(queue, job_id) for job_id in line} == {State.CANCELLED}


async def test_the_end_of_a_parent_with_very_many_children_is_worked_off_in_parts(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    children: list[JobId] = []
    for _ in range(3):
        children += await queue.add(2_000, depends_on=[parent])
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, Completed()))
    # The flush has noted one end, not six thousand children.
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.dependency_checks") == 1
    assert sorted(await free(queue)) == sorted(children)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.dependency_checks") == 0


async def test_each_child_of_a_parent_with_very_many_is_in_one_part(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    children = await queue.add(3, depends_on=[parent])
    await queue.db.execute(  # as ended_v1 does for a parent with thousands of children
        "INSERT INTO headgate.dependency_checks (tenant_no, parent_id, state) VALUES ($1, $2, 5 /* completed */)",
        await queue.tenant_no(),
        parent,
    )
    freed: list[UUID] = []
    more = False
    for _ in range(7):  # a part for each child and one that is empty, and a check of each child
        found, more = await dependencies.unblock_ready(queue.db, limit=1)
        freed += [job_id for _, _, job_id in found]
    assert (sorted(freed), more) == (sorted(children), False)


async def test_a_child_with_a_limit_key_that_falls_due_at_this_very_moment_is_claimable(queue: Queue) -> None:
    await Clock.install(queue.db)  # which stands still
    (parent,) = await queue.add(topic="parents")
    (child,) = await queue.add(1, depends_on=[parent], limit_key="customer")
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, Completed()))
    assert await free(queue) == [child]
    assert (await queue.claim()).ids == (child,)


async def test_a_freed_job_keeps_its_delay_its_place_and_its_priority(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    (older,) = await queue.add(1, depends_on=[parent])
    (later,) = await queue.add(1, depends_on=[parent], delay=timedelta(hours=1))
    (urgent,) = await queue.add(1, depends_on=[parent], priority=9)
    (younger,) = await queue.add()
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, Completed()))
    assert set(await free(queue)) == {older, urgent}
    assert await state(queue, later) is State.SCHEDULED
    assert (await queue.claim()).ids == (urgent, older, younger)


async def test_a_cancelled_child_stays_cancelled_and_a_redriven_one_waits_no_more(queue: Queue) -> None:
    (parent,) = await queue.add(topic="parents")
    (child,) = await queue.add(1, depends_on=[parent])
    tenant = await queue.tenant_no()
    await verbs.cancel(queue.db, tenant, [child])
    await verbs.redrive(queue.db, tenant, [child])
    assert await state(queue, child) is State.PENDING
    await queue.claim(1, "parents")
    await queue.settle((parent, 1, Completed()))
    assert await free(queue) == []
    assert await state(queue, child) is State.PENDING


async def test_a_repeated_submit_of_a_waiting_job_is_the_same_job(queue: Queue) -> None:
    parents = await queue.add(2)
    job = queue.job(depends_on=parents, id=new_id())
    await queue.submit(job)
    (again,) = await queue.submit(job)
    assert (again.id, again.receipt) == (job.id, SubmitReceipt.DUPLICATE)
    await run(queue, *parents)
    assert await free(queue) == [job.id]
    claimed = await queue.claim()
    await queue.settle((job.id, claimed.epochs[0], Completed()))
    (again,) = await queue.submit(job)  # finished by now
    assert (again.id, again.receipt) == (job.id, SubmitReceipt.DUPLICATE)
    assert await state(queue, job.id) is State.COMPLETED


async def test_a_keyed_duplicate_leaves_no_links_behind(queue: Queue) -> None:
    (parent,) = await queue.add()
    (first,) = await queue.submit(queue.job(key="once"))
    (second,) = await queue.submit(queue.job(key="once", depends_on=[parent], unique=None))
    assert (second.id, second.receipt) == (first.id, SubmitReceipt.DUPLICATE)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_dependencies") == 0


# ---------------------------------------------------------------- refused


async def test_unknown_and_foreign_parents_are_refused_alike(queue: Queue) -> None:
    stranger = Queue(queue.db, tenant="other")
    (foreign,) = await stranger.add()
    unknown = new_id()
    one, two, fine = await refused(
        queue, queue.job(depends_on=[unknown]), queue.job(depends_on=[foreign]), queue.job(tags=["fine"])
    )
    assert isinstance(one, NotFound)
    assert isinstance(two, NotFound)
    assert (str(one), str(two)) == (f'no parent job "{unknown}"', f'no parent job "{foreign}"')
    assert fine is None
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_dependencies") == 0


async def test_jobs_that_wait_for_each_other_are_refused(queue: Queue) -> None:
    a, b, c, outside = (new_id() for _ in range(4))
    answers = await refused(
        queue,
        queue.job(id=a, depends_on=[b]),
        queue.job(id=b, depends_on=[c]),
        queue.job(id=c, depends_on=[a]),
        queue.job(id=outside, tags=["fine"]),
    )
    assert [type(answer) for answer in answers] == [DependencyCycle] * 3 + [type(None)]
    with pytest.raises(DependencyCycle, match="cannot wait for itself"):
        queue.job(id=a, depends_on=[a])


async def test_parents_and_children_may_come_in_one_flush_in_any_order(queue: Queue) -> None:
    a, b, c = (new_id() for _ in range(3))
    assert (
        await refused(queue, queue.job(id=c, depends_on=[b, a]), queue.job(id=b, depends_on=[a]), queue.job(id=a))
        == [None] * 3
    )
    for job_id in (a, b, c):
        claimed = await queue.claim()
        assert claimed.ids == (job_id,)
        await queue.settle((job_id, 1, Completed()))
        await free(queue)


async def test_too_many_parents_are_refused_with_the_way_out(queue: Queue) -> None:
    with pytest.raises(TooLarge, match=r"depends_on: 1001 jobs .* limit of 1000 jobs; submit them as a batch"):
        queue.job(depends_on=[new_id() for _ in range(1001)])
