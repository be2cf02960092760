"""The verbs of operators on jobs by id: rules, rights and what is written down."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.control.admin import JobAnswer
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.identity import PermissionDenied, Scope
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.states import State
from headgate.store import reads, verbs
from headgate.store.connect import Connection
from headgate.store.reads import JobStore
from tests.support.admin import ANA, OPERATOR, READER, Desk, someone
from tests.support.dispatch_waits import soon
from tests.support.dispatching import Instance, listening
from tests.support.epochs import claims, counted
from tests.support.queue import Clock, Queue, new_id
from tests.support.waiting import until_async

FATAL = Failed(error=ErrorInfo(type="ValueError", message="boom"), permanent=True)


def told(answers: list[JobAnswer]) -> list[tuple[bool, State | None, str]]:
    return [(one.changed, one.state, one.error.code if one.error else "") for one in answers]


async def finished(instance: Instance, count: int = 1, topic: str = "mail") -> list[UUID]:
    """Jobs that are dead."""
    ids = await instance.submit(count, topic)
    worker = await instance.worker(f"undertaker-{ids[0]}", topic, slots=count)
    await instance.claimer.run_once()
    for job_id in ids:
        await worker.report(job_id, 1, FATAL)
    worker.lose()
    return list(ids)


# ---------------------------------------------------------------------- cancel


@pytest.mark.req("O24")
async def test_a_queued_job_is_cancelled_at_once_and_waiting_callers_are_answered(stepped: Instance) -> None:
    desk = Desk(stepped)
    pending, timed = [*await stepped.submit(), *await stepped.submit(delay=timedelta(hours=1))]
    unknown = new_id()
    answers = await desk.verbs.cancel(OPERATOR, [pending, unknown, timed], reason="typo")
    assert told(answers) == [
        (True, State.CANCELLED, ""),
        (False, None, "not_found"),
        (True, State.CANCELLED, ""),
    ]
    assert [answer.id for answer in answers] == [pending, unknown, timed], "in the order asked"
    assert desk.endings.ids == [pending, timed]
    (event,) = (await stepped.job(pending)).events
    assert (event.kind.label, event.actor, event.reason) == ("cancelled", "ana", "typo")
    assert told(await desk.verbs.cancel(OPERATOR, [pending])) == [(False, State.CANCELLED, "wrong_state")]


@pytest.mark.req("O24")
async def test_a_running_job_is_cancelled_by_telling_its_worker_and_a_result_ignores_it_no_more(one: Instance) -> None:
    desk = Desk(one)
    (job,) = await one.submit()
    worker = await one.worker(slots=1)
    await worker.take()
    assert told(await desk.verbs.cancel(OPERATOR, [job], reason="stop")) == [(True, State.RUNNING, "")]
    word = await worker.hear()
    assert counted(word.cancel) == [(job, 1)], "at once, without waiting for a tick"
    assert told(await desk.verbs.cancel(OPERATOR, [job])) == [(False, State.RUNNING, "")], "asked for already"
    await worker.report(job, 1, FATAL)
    assert (await one.job(job)).state is State.CANCELLED


async def test_a_job_that_runs_on_another_instance_is_cancelled_by_a_notification(one: Instance, database: str) -> None:
    async with Instance(database, name="two") as two:
        two.start("notifications", two.store.listen(two.wakes.follow))
        await until_async(lambda: listening(one), "two listens")
        (job,) = await one.submit()
        worker = await two.worker(slots=1)
        await worker.take()
        await one.ticker.run_once()
        await Desk(one).verbs.cancel(OPERATOR, [job])
        word = await worker.hear()  # its tick is an hour away
        assert counted(word.cancel) == [(job, 1)]


# ---------------------------------------------------------------------- redrive and discard


async def test_a_redrive_starts_a_new_life_and_reports_what_it_cannot_do(stepped: Instance) -> None:
    desk = Desk(stepped)
    (dead,) = await finished(stepped)
    (queued,) = await stepped.submit()
    answers = await desk.verbs.redrive(OPERATOR, [queued, dead], reason="fixed")
    assert told(answers) == [(False, State.PENDING, "wrong_state"), (True, State.PENDING, "")]
    assert "completed, dead or cancelled" in str(answers[0].error)
    job = await stepped.job(dead)
    assert (job.attempt, claims(job.epoch)) == (0, 1)
    assert [event.kind.label for event in job.events] == ["failed", "redriven"]
    assert (job.events[1].actor, job.events[1].reason) == ("ana", "fixed")


async def test_one_job_can_be_redriven_with_another_body(stepped: Instance) -> None:
    desk = Desk(stepped)
    dead, other = await finished(stepped, 2)
    assert told(await desk.verbs.redrive(OPERATOR, [dead], payload=b"mended")) == [(True, State.PENDING, "")]
    found = await JobStore(stepped.store).job("acme", dead, payload=True, result=False, events=False)
    assert found.payload == b"mended"
    with pytest.raises(InvalidInput, match="payload: is for a single job"):
        await desk.verbs.redrive(OPERATOR, [dead, other], payload=b"mended")


async def test_a_redrive_limits_its_own_rate(stepped: Instance, db: Connection) -> None:
    dead = await finished(stepped, 10)
    clock = await Clock.install(db)
    answers = await Desk(stepped).verbs.redrive(OPERATOR, dead, delay=timedelta(seconds=5), per_second=4)
    assert told(answers) == [(True, State.SCHEDULED, "")] * 10
    due = [(await stepped.job(job_id)).run_at - clock.now for job_id in dead]
    assert due == [timedelta(seconds=5 + place / 4) for place in range(10)]
    due_counts = Counter(span // timedelta(seconds=1) for span in due)
    assert max(due_counts.values()) == 4
    for wrong in (-1, 0.0001, 1e9, float("nan")):
        with pytest.raises(InvalidInput, match="per_second"):
            await Desk(stepped).verbs.redrive(OPERATOR, dead, per_second=wrong)


async def test_the_first_of_a_spread_redrive_is_due_at_once(stepped: Instance) -> None:
    dead = await finished(stepped, 3)
    answers = await Desk(stepped).verbs.redrive(OPERATOR, dead, per_second=1)
    assert [answer.state for answer in answers] == [State.PENDING, State.SCHEDULED, State.SCHEDULED]
    counts = await reads_counts(stepped)
    assert counts == {State.PENDING: 1, State.SCHEDULED: 2}


async def reads_counts(instance: Instance) -> dict[State, int]:
    async with instance.store.lane("upkeep").use() as db:
        found = await reads.counts(db, await instance.store.tenant_no("acme"))
    (counts,) = found.values()
    return counts


async def test_only_dead_and_cancelled_jobs_are_discarded_and_the_history_tells_by_whom(
    stepped: Instance, db: Connection
) -> None:
    desk = Desk(stepped)
    (dead,) = await finished(stepped)
    (queued,) = await stepped.submit()
    assert told(await desk.verbs.discard(OPERATOR, [dead, queued], reason="noise")) == [
        (True, State.DEAD, ""),
        (False, State.PENDING, "wrong_state"),
    ]
    events = await reads.events(db, await stepped.store.tenant_no("acme"), dead)
    assert (events[-1].kind.label, events[-1].actor, events[-1].reason) == ("discarded", "ana", "noise")
    assert told(await desk.verbs.discard(OPERATOR, [dead])) == [(False, None, "not_found")]


# ---------------------------------------------------------------------- reprioritise and move


@pytest.mark.req("O10", "P16", "T19")
async def test_a_new_priority_counts_at_the_next_claim_here_even_below_the_watermark(stepped: Instance) -> None:
    desk = Desk(stepped)
    await stepped.submit(4)
    worker = await stepped.worker(slots=2)
    await stepped.claimer.run_once()
    first = await stepped.submit(2, priority=5)
    worker.ready(2)
    await stepped.claimer.run_once()  # the marks have moved on
    low = await stepped.submit(2, priority=-5)
    answers = await desk.verbs.reprioritise(OPERATOR, [low[1], first[0]], priority=9, reason="vip")
    assert told(answers) == [(True, State.PENDING, ""), (False, State.RUNNING, "wrong_state")]
    worker.ready(1)
    await stepped.claimer.run_once()
    assert low[1] in worker.session.held
    (event,) = (await stepped.job(low[1])).events
    assert (event.kind.label, event.actor, event.reason) == ("reprioritised", "ana", "vip")


async def test_another_instance_looks_from_the_head_after_a_new_priority(one: Instance, database: str) -> None:
    async with Instance(database, name="two") as two:
        await soon(lambda: two.ticker.ticks, "two has ticked")
        two.start("notifications", two.store.listen(two.wakes.follow))
        await until_async(lambda: listening(one), "two listens")
        await one.ticker.run_once()
        await one.submit(3)
        worker = await two.worker(slots=1)
        await worker.take()  # its mark is behind the first
        (late,) = await one.submit(priority=-5)
        await Desk(one).verbs.reprioritise(OPERATOR, [late], priority=50)
        await soon(lambda: any(demand.from_head for demand in two.demands.by_wanted.values()), "two was notified")
        worker.ready(1)
        assert list((await worker.take()).ids) == [late]


async def test_a_moved_job_keeps_priority_and_age_and_ranks_as_its_new_topic_ranks(
    stepped: Instance, db: Connection
) -> None:
    clock = await Clock.install(db)
    queue = Queue(db)
    await queue.topic("ageing")
    await db.execute("UPDATE headgate.topics SET ageing_step_us = 1000000 WHERE name = 'ageing'")
    await queue.names.refresh(db)
    await stepped.store.names.refresh(db)
    (old,) = await queue.add(priority=3)  # as old as if submitted three seconds before, on an ageing topic
    await clock.advance(seconds=2)
    (middle,) = await queue.add(1, "ageing", priority=4)  # two seconds before that
    (young,) = await queue.add(1, "ageing", priority=0)
    desk = Desk(stepped)
    assert told(await desk.verbs.move(OPERATOR, [old], topic="ageing", reason="wrong place")) == [
        (True, State.PENDING, "")
    ]
    job = await stepped.job(old)
    assert (job.topic, job.priority) == ("ageing", 3)
    assert (job.events[-1].kind.label, job.events[-1].actor, job.events[-1].reason) == ("moved", "ana", "wrong place")
    order = (await queue.claim(10, "ageing")).ids
    assert order == (old, middle, young)
    assert (await queue.claim(10, "mail")).ids == ()


@pytest.mark.parametrize("steps", [(None, None), (None, 1_000_000), (1_000_000, None), (1_000_000, 5_000_000)])
async def test_there_and_back_is_where_it_was(db: Connection, steps: tuple[int | None, int | None]) -> None:
    queue = Queue(db)
    for topic, step in zip(("here", "there"), steps, strict=True):
        await queue.topic(topic)
        await db.execute("UPDATE headgate.topics SET ageing_step_us = $2 WHERE name = $1", topic, step)
    await queue.names.refresh(db)
    ids = [*await queue.add(2, "here", priority=7), *await queue.add(1, "here", priority=-(2**31))]
    rank = "SELECT id, topic_no, rank_class, rank_at, priority FROM headgate.jobs ORDER BY id"
    before = await db.fetch(rank)
    tenant_no = await queue.tenant_no()
    for topic in ("there", "here"):
        done = await verbs.move(db, tenant_no, ids, topic_no=(await queue.topic(topic)).no)
        assert all(one.changed for one in done.values())
        by_submit = await queue.add(1, topic, priority=7)
        moved = await db.fetchrow("SELECT rank_class FROM headgate.jobs WHERE id = $1", ids[0])
        fresh = await db.fetchrow("SELECT rank_class FROM headgate.jobs WHERE id = $1", by_submit[0])
        assert moved == fresh, "ranked as one submitted there"
        await db.execute("DELETE FROM headgate.jobs WHERE id = $1", by_submit[0])
    assert await db.fetch(rank) == before


async def test_only_queued_jobs_move_and_counts_follow(stepped: Instance, db: Connection) -> None:
    desk = Desk(stepped)
    (dead,) = await finished(stepped)
    (running,) = await stepped.submit(priority=10)
    await stepped.worker("busy", slots=1)
    await stepped.claimer.run_once()
    (pending,) = await stepped.submit()
    (timed,) = await stepped.submit(delay=timedelta(hours=1))
    (keyed,) = await stepped.submit()
    (blocked,) = await stepped.submit()
    await db.execute("UPDATE headgate.jobs SET flags = flags | 4 WHERE id = $1", keyed)
    await db.execute("UPDATE headgate.jobs SET state = 4 WHERE id = $1", blocked)
    answers = await desk.verbs.move(OPERATOR, [dead, running, pending, timed, keyed, blocked], topic="new")
    assert told(answers) == [
        (False, State.DEAD, "wrong_state"),
        (False, State.RUNNING, "wrong_state"),
        (True, State.PENDING, ""),
        (True, State.SCHEDULED, ""),
        (False, State.PENDING, "refused"),
        (False, State.BLOCKED, "wrong_state"),
    ]
    status = await desk.verbs.status(READER)
    assert {topic.topic: topic.counts.get(State.SCHEDULED, 0) for topic in status.topics} == {"mail": 0, "new": 1}
    worker = await stepped.worker("newcomer", "new", slots=5)
    await stepped.claimer.run_once()
    assert set(worker.session.held) == {pending}


# ---------------------------------------------------------------------- rights and bounds


async def test_a_token_of_some_topics_does_not_learn_that_other_jobs_exist(stepped: Instance) -> None:
    (mail,) = await finished(stepped)
    (sms,) = await finished(stepped, topic="sms")
    limited = someone(Scope.OPERATE, topics=["sms"])
    desk = Desk(stepped)
    for verb in (desk.verbs.cancel, desk.verbs.discard, desk.verbs.redrive):
        (answer,) = await verb(limited, [mail])
        assert told([answer]) == [(False, None, "not_found")]
    assert told(await desk.verbs.redrive(limited, [mail, sms])) == [
        (False, None, "not_found"),
        (True, State.PENDING, ""),
    ]
    assert told(await desk.verbs.reprioritise(limited, [sms], priority=1)) == [(True, State.PENDING, "")]
    with pytest.raises(PermissionDenied, match="mail"):
        await desk.verbs.move(limited, [sms], topic="mail")


async def test_another_tenants_jobs_do_not_exist(stepped: Instance) -> None:
    (job,) = await stepped.submit()
    stranger = someone(Scope.ADMIN, tenant="other")
    verbs_ = Desk(stepped).verbs
    for answers in (
        await verbs_.cancel(stranger, [job]),
        await verbs_.redrive(stranger, [job]),
        await verbs_.discard(stranger, [job]),
        await verbs_.reprioritise(stranger, [job], priority=1),
        await verbs_.move(stranger, [job], topic="mail"),
    ):
        assert told(answers) == [(False, None, "not_found")]
    assert (await stepped.job(job)).state is State.PENDING


async def test_verbs_need_the_scope_and_a_bounded_list(stepped: Instance) -> None:
    verbs_ = Desk(stepped).verbs
    (job,) = await stepped.submit()
    for reader in (READER, someone(Scope.SUBMIT, Scope.WORK)):
        for call in (
            verbs_.cancel(reader, [job]),
            verbs_.redrive(reader, [job]),
            verbs_.discard(reader, [job]),
            verbs_.reprioritise(reader, [job], priority=1),
            verbs_.move(reader, [job], topic="mail"),
            verbs_.quiet(reader, "w"),
            verbs_.resume_worker(reader, "w"),
            verbs_.stop_worker(reader, "w"),
        ):
            with pytest.raises(PermissionDenied, match="operate"):
                await call
    with pytest.raises(TooLarge, match="1001 jobs is over the limit of 1000"):
        await verbs_.cancel(ANA, [new_id() for _ in range(1_001)])
    with pytest.raises(InvalidInput, match="twice"):
        await verbs_.cancel(ANA, [job, job])
    with pytest.raises(InvalidInput, match="ids: is empty"):
        await verbs_.cancel(ANA, [])
    with pytest.raises(InvalidInput, match="reason"):
        await verbs_.cancel(ANA, [job], reason="x" * 1_001)


async def test_completed_jobs_can_be_redriven_too(stepped: Instance) -> None:
    (job,) = await stepped.submit()
    worker = await stepped.worker(slots=1)
    await stepped.claimer.run_once()
    await worker.report(job, 1, Completed(result=b"x"))
    assert told(await Desk(stepped).verbs.redrive(OPERATOR, [job])) == [(True, State.PENDING, "")]

    async def there() -> bool:
        return (await stepped.job(job)).state is State.PENDING

    await until_async(there, "it is back")


# ---------------------------------------------------------------------- what a verb reads


@pytest.mark.parametrize("analysed", [True, False])
@pytest.mark.parametrize("plan", ["auto", "force_generic_plan"])
async def test_verbs_reach_their_jobs_by_key_whatever_the_backlog_and_the_statistics(
    db: Connection, analysed: bool, plan: str
) -> None:
    queue = Queue(db)
    if analysed:
        await db.execute("ANALYZE headgate.jobs")  # of an empty table, which every queue is now and then
    ids = (await queue.add(3_000))[1_000:1_100]
    target = await queue.topic("other")
    tenant_no = await queue.tenant_no()
    await db.execute(f"SET plan_cache_mode = {plan}")
    transaction = db.transaction()
    await transaction.start()
    assert len(await verbs.states(db, tenant_no, ids)) == 100
    assert len(await verbs.move(db, tenant_no, ids, topic_no=target.no)) == 100
    scans = dict(
        await db.fetch(
            "SELECT relname, pg_stat_get_xact_tuples_returned(oid) FROM pg_class"
            " WHERE relname IN ('jobs', 'jobs_claim_order', 'jobs_due', 'jobs_running')"
        )
    )
    await transaction.rollback()
    assert scans["jobs"] == 0, "never a scan of the table"
    assert {name: rows for name, rows in scans.items() if rows} == {}, "nor a walk along a partial index"
