"""Pauses: what status shows of them, when they end, and which tokens may pause what."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headgate.domain.errors import InvalidInput, NotFound, VersionConflict
from headgate.domain.identity import PermissionDenied, Scope
from headgate.domain.states import State
from headgate.domain.views import Target, TargetKind
from headgate.store import control
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from tests.integration.test_pause import of
from tests.support.admin import ANA, EVERYTHING, MAIL, OPERATOR, READER, TARGETS, TENANT, Desk, someone
from tests.support.dispatch_waits import settle_down, soon
from tests.support.dispatch_workers import completing, waiting_for
from tests.support.dispatching import Instance
from tests.support.queue import Clock
from tests.support.waiting import until_async

OTTO = someone(Scope.OPERATE)


async def locked(store: DispatchStore) -> bool:
    """Whether a session of this database waits for a lock."""
    async with store.lane("upkeep").use() as db:
        waits: bool = await db.fetchval(
            "SELECT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datname = current_database()"
            " AND a.wait_event_type = 'Lock' AND a.query LIKE '%resume_v1%')"
        )
        return waits


@pytest.mark.req("Z18", "Z19", "Z23", "Z25")
@TARGETS
async def test_status_tells_reason_author_and_when_it_was_last_paused(
    stepped: Instance, db: Connection, target: Target
) -> None:
    clock = await Clock.install(db)
    desk = Desk(stepped)
    await stepped.submit(1)
    first = clock.now
    await desk.pause(target, "the mail server is full")
    paused = of(await desk.verbs.status(READER), target)
    assert (paused.paused, paused.reason, paused.who, paused.since) == (True, "the mail server is full", "ana", first)
    await clock.advance(minutes=1)
    await desk.pause(target, "still full")  # overwrites the reason and stamps again
    again = of(await desk.verbs.status(READER), target)
    assert (again.reason, again.since) == ("still full", clock.now)
    second = clock.now
    await clock.advance(minutes=1)
    assert await desk.resume(target)
    running = of(await desk.verbs.status(READER), target)
    assert (running.paused, running.reason, running.who, running.since) == (False, "", "", second)
    assert not await desk.resume(target), "harmless when it runs already"
    assert of(await desk.verbs.status(READER), target) == running
    entries = (await desk.verbs.audit(READER)).entries
    assert [(one.verb, one.target, one.actor, one.reason) for one in entries] == [
        ("resume", str(target), "ana", ""),
        ("pause", str(target), "ana", "still full"),
        ("pause", str(target), "ana", "the mail server is full"),
    ]
    assert {entry.everything for entry in entries} == {target is EVERYTHING}


@pytest.mark.req("O12")
async def test_status_counts_jobs_by_topic_and_tells_how_long_the_oldest_waits(
    stepped: Instance, db: Connection
) -> None:
    clock = await Clock.install(db)
    desk = Desk(stepped)
    await stepped.submit(2, priority=-10)
    oldest = clock.now
    await clock.advance(minutes=1)
    await stepped.submit(3, priority=10)
    await stepped.submit(1, "sms", delay=timedelta(hours=1))
    await stepped.worker(slots=1)
    await stepped.claimer.run_once()
    await desk.pause(MAIL)
    status = await desk.verbs.status(READER)
    mail, sms = status.topics
    assert (mail.topic, mail.paused, dict(mail.counts)) == ("mail", True, {State.PENDING: 4, State.RUNNING: 1})
    assert mail.waiting_since == oldest, "not the next in line, which is younger"
    assert (sms.topic, sms.paused, dict(sms.counts)) == ("sms", False, {State.SCHEDULED: 1})
    assert sms.waiting_since is None
    assert status.now == clock.now


async def test_the_oldest_is_found_without_reading_the_backlog(stepped: Instance, db: Connection) -> None:
    await stepped.submit(3_000)
    await db.execute("ANALYZE headgate.jobs")
    (mail,) = await stepped.topic_nos("mail")
    async with db.transaction():
        await db.fetch("SELECT topic_no, since FROM headgate.oldest_pending_v1($1)", [mail])
        reads = await db.fetchval("SELECT pg_stat_get_xact_tuples_fetched('headgate.jobs'::regclass)")
    assert reads <= 4


async def test_a_pause_with_an_end_resumes_by_itself_to_the_moment_and_never_before(one: Instance) -> None:
    """The tick is an hour away: the instance wakes for the end of the pause, and gate, claim and status agree."""
    desk = Desk(one)
    (job,) = await one.submit(delay=timedelta(hours=1))
    async with one.store.lane("upkeep").use() as db:
        end = await db.fetchval("SELECT headgate.clock_v1()") + timedelta(seconds=2)
    paused = await desk.verbs.pause(ANA, MAIL, until=end)
    assert paused.until == end
    worker = await one.worker(slots=1, handler=completing())
    (job,) = await one.submit()
    status = await desk.verbs.status(READER)
    assert of(status, MAIL).paused or status.now >= end
    await soon(lambda: worker.tracker.runs, "it runs")
    claimed = (await one.job(job)).claimed_at
    assert end <= claimed <= end + timedelta(seconds=60), "the hour of the tick was not waited for"
    assert not of(await desk.verbs.status(READER), MAIL).paused
    assert one.gate.paused == frozenset()
    assert not await desk.resume(MAIL), "it ran already"
    assert [entry.verb for entry in (await desk.verbs.audit(READER)).entries] == ["pause"]


@TARGETS
async def test_a_resume_that_names_a_pause_ends_no_later_one(stepped: Instance, db: Connection, target: Target) -> None:
    clock = await Clock.install(db)
    desk = Desk(stepped)
    await stepped.submit(1)
    first = (await desk.verbs.pause(ANA, target)).since
    await clock.advance(seconds=1)
    second = (await desk.verbs.pause(OTTO if target is not EVERYTHING else ANA, target, reason="outage")).since
    assert first is not None
    with pytest.raises(VersionConflict, match=r'was paused again at .* with the reason "outage"'):
        await desk.verbs.resume(ANA, target, since=first)
    assert of(await desk.verbs.status(READER), target).paused
    assert stepped.gate.paused, "this instance keeps the gate closed as well"
    assert await desk.verbs.resume(ANA, target, since=second)
    assert not await desk.verbs.resume(ANA, target, since=first), "what runs is not paused by another one"
    assert [one.verb for one in (await desk.verbs.audit(READER)).entries] == ["resume", "pause", "pause"]


async def test_a_resume_that_waits_for_a_pause_in_flight_does_not_end_it(stepped: Instance, db: Connection) -> None:
    desk = Desk(stepped)
    await stepped.submit(1)
    since = (await desk.verbs.pause(ANA, MAIL)).since
    (mail,) = await stepped.topic_nos("mail")
    tenant_no = await stepped.store.tenant_no("acme")
    async with db.transaction():
        await control.pause(db, (tenant_no, mail), who="otto", reason="outage")
        resume = asyncio.create_task(desk.verbs.resume(ANA, MAIL, since=since))
        await until_async(
            lambda: locked(stepped.store), "the resume waits for the row of the pause", within=timedelta(seconds=60)
        )
    with pytest.raises(VersionConflict, match="by otto"):
        await resume
    assert of(await desk.verbs.status(READER), MAIL).paused


@pytest.mark.parametrize("lasts", [timedelta(0), timedelta(milliseconds=999), timedelta(days=1826), timedelta.max])
async def test_a_pause_of_no_time_or_of_all_time_is_refused(stepped: Instance, lasts: timedelta) -> None:
    await stepped.submit(1)
    desk = Desk(stepped)
    with pytest.raises(InvalidInput, match="lasts: must be from 1s to 1825d, got "):
        await desk.verbs.pause(ANA, MAIL, lasts=lasts)
    assert not (await desk.verbs.status(READER)).topics[0].paused


async def test_an_end_that_is_over_is_refused_by_the_databases_clock(stepped: Instance, db: Connection) -> None:
    clock = await Clock.install(db)
    await stepped.submit(1)
    desk = Desk(stepped)
    with pytest.raises(InvalidInput, match="until: is over"):
        await desk.verbs.pause(ANA, MAIL, until=clock.now)
    assert not (await desk.verbs.status(READER)).topics[0].paused
    assert stepped.gate.paused == frozenset()


async def test_a_topic_that_does_not_exist_cannot_be_paused_by_mistake(stepped: Instance) -> None:
    for verb in (Desk(stepped).verbs.pause, Desk(stepped).verbs.resume):
        with pytest.raises(NotFound, match='no topic "mial"'):
            await verb(ANA, Target(kind=TargetKind.TOPIC, topic="mial"))


async def test_who_may_pause_what(stepped: Instance) -> None:
    await stepped.submit(1)
    await stepped.submit(1, "sms")
    verbs = Desk(stepped).verbs
    sms = Target(kind=TargetKind.TOPIC, topic="sms")
    limited = someone(Scope.OPERATE, topics=["mail"])
    allowed = [(someone(Scope.SYSTEM, tenant=""), EVERYTHING), (OPERATOR, TENANT), (OPERATOR, MAIL), (limited, MAIL)]
    refused = [
        (OPERATOR, EVERYTHING),
        (someone(Scope.ADMIN), EVERYTHING),  # of one tenant: it stops no other tenant's jobs
        (someone(Scope.SYSTEM, tenant=""), TENANT),
        (limited, TENANT),
        (limited, sms),
        (someone(Scope.ADMIN, topics=["mail"]), EVERYTHING),
        (READER, MAIL),
        (someone(Scope.WORK, Scope.SUBMIT, Scope.READ), MAIL),
    ]
    for who, target in allowed:
        await verbs.pause(who, target)
        await verbs.resume(who, target)
    for who, target in refused:
        with pytest.raises(PermissionDenied):
            await verbs.pause(who, target)
        with pytest.raises(PermissionDenied):
            await verbs.resume(who, target)
    status = await verbs.status(someone(Scope.READ, topics=["sms"]))
    assert [topic.topic for topic in status.topics] == ["sms"]
    assert [pause.target for pause in status.pauses] == [EVERYTHING, TENANT], "not that mail was ever paused"
    with pytest.raises(PermissionDenied):
        await verbs.audit(someone(Scope.READ, topics=["sms"]))


async def test_another_tenants_topics_and_pauses_are_not_seen(stepped: Instance) -> None:
    await stepped.submit(1)
    await stepped.submit(1, "secret", tenant="other")
    other = someone(Scope.OPERATE, tenant="other")
    verbs = Desk(stepped).verbs
    await verbs.pause(other, TENANT, reason="private")
    await verbs.pause(other, Target(kind=TargetKind.TOPIC, topic="secret"))
    status = await verbs.status(READER)
    assert [topic.topic for topic in status.topics] == ["mail"]
    assert [(pause.target, pause.paused) for pause in status.pauses] == [(EVERYTHING, False)]
    assert not (await verbs.audit(READER)).entries


async def test_a_pause_during_a_claim_lets_that_claim_be_dealt(one: Instance) -> None:
    """It was committed before the pause could be: the jobs run, and no others."""
    go = asyncio.Event()
    ran = await one.submit(2)
    worker = await one.worker(slots=2, handler=waiting_for(go))
    await soon(lambda: worker.tracker.now == 2, "both run")
    await Desk(one).pause(TENANT)
    await one.submit(2)
    go.set()
    await one.reach(2, State.COMPLETED)
    await settle_down()
    assert sorted(run.id for run in worker.tracker.runs) == sorted(ran)
