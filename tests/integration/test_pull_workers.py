"""Workers that claim by single calls: what they get, what goes back, what others see of them."""

from __future__ import annotations

import asyncio

import pytest

from headgate.dispatch import pull_workers
from headgate.dispatch.worker_calls import PulledJobs, WorkerCalls
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, Overloaded
from headgate.domain.identity import Identity, PermissionDenied, Scope, TokenRevoked
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Outcome
from headgate.domain.states import Receipt, State
from headgate.domain.topic_sets import TopicSet
from headgate.domain.views import Target, TargetKind
from headgate.store.connect import Connection
from tests.support.admin import Desk
from tests.support.dispatch_waits import SOON, ManualClock, settle_down, soon
from tests.support.dispatching import Instance
from tests.support.queue import Clock
from tests.support.watched_store import Hold

OURS = Identity(tenant="acme", subject="ours", scopes=frozenset(Scope))
LONG = limits.CLAIM_WAIT_MAX_MS
LEASES = "SELECT lease_ms, count(*) AS jobs FROM headgate.jobs WHERE state = 1 GROUP BY lease_ms"


async def claim(
    instance: Instance, *topics: str, worker: str = "w", count: int = 1, wait_ms: int = 0, who: Identity = OURS
) -> PulledJobs:
    async with asyncio.timeout(SOON.total_seconds()):
        return await WorkerCalls(instance.rules).claim(who, worker, topics or ["mail"], count=count, wait_ms=wait_ms)


async def poll(instance: Instance, *, worker: str = "w", count: int = 1) -> asyncio.Task[PulledJobs]:
    """A claim that waits for jobs: a claim of it has looked, and found none."""
    asked = instance.store.calls["claim"]
    waiting = asyncio.create_task(claim(instance, worker=worker, count=count, wait_ms=LONG))
    await soon(lambda: instance.store.calls["claim"] > asked or waiting.done(), "a claim has looked")
    await soon(lambda: not any(demand.claiming for demand in instance.demands), "and is over")
    return waiting


async def report(instance: Instance, pulled: PulledJobs, outcome: Outcome) -> list[tuple[Receipt, State | None]]:
    """What becomes of the same outcome for all jobs of a claim; not answered by the writer of unmatched outcomes."""
    jobs = [
        (job_id, epoch, outcome) for one in pulled.deliveries for job_id, epoch in zip(one.ids, one.epochs, strict=True)
    ]
    async with asyncio.timeout(SOON.total_seconds()):
        answers = await WorkerCalls(instance.rules).report(OURS, "w", jobs, size=100)
    found: list[tuple[Receipt, State | None]] = []
    for index in range(len(jobs)):
        answer = answers.get(index)
        assert not isinstance(answer, Exception)
        found.append((Receipt.APPLIED, State.COMPLETED) if answer is None else (answer.receipt, answer.state))
    return found


@pytest.fixture
async def unmatched(one: Instance) -> Instance:
    one.start("unmatched", one.unmatched.writer.run())
    return one


# ---------------------------------------------------------------------- claims


async def test_a_claim_that_waits_is_woken_by_a_submit_and_asks_the_database_no_more_than_that(one: Instance) -> None:
    await one.topic_nos("mail")
    waiting = await poll(one)
    asked = one.store.calls["claim"]
    await settle_down()
    assert one.store.calls["claim"] == asked
    (job,) = await one.submit(1)
    (delivery,) = (await waiting).deliveries
    assert list(delivery.ids) == [job]
    assert one.store.calls["claim"] <= asked + 2


async def test_a_claim_without_a_wait_is_over_when_the_database_was_asked(one: Instance) -> None:
    await one.topic_nos("mail")
    assert len(await claim(one)) == 0
    assert len(await claim(one)) == 0
    assert one.store.calls["claim"] >= 2, "each call looks: it may have missed wakes between two of them"
    assert one.free() == 0


async def test_a_batch_gets_what_is_there_and_does_not_wait_for_more(one: Instance) -> None:
    ids = await one.submit(3)
    pulled = await claim(one, count=10, wait_ms=LONG)
    assert [job_id for delivery in pulled.deliveries for job_id in delivery.ids] == ids


async def test_a_claim_with_credit_left_asks_the_database_once_and_nothing_goes_back(
    one: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.dispatch.demand.CLAIM_BYTES", 1)  # a claim brings one job
    ids = await one.submit(5)
    before = [(await one.job(job_id)).epoch for job_id in ids]
    asked = one.store.calls["claim"]
    pulled = await claim(one, count=100, wait_ms=LONG)
    assert len(pulled) == 1
    await settle_down()
    await one.flushed()
    assert one.store.calls["claim"] == asked + 1
    assert one.free() == 0
    after = [(await one.job(job_id)).epoch for job_id in ids]
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1, "the others were never claimed"


async def test_jobs_whose_answer_is_not_written_go_back_at_no_cost(one: Instance) -> None:
    (job,) = await one.submit(1)
    with await claim(one, wait_ms=LONG) as pulled:
        first = pulled.deliveries[0].epochs[0]
    again = await claim(one, wait_ms=LONG)
    (delivery,) = again.deliveries
    assert (list(delivery.ids), list(delivery.attempts)) == ([job], [1])
    assert delivery.epochs[0] > first
    again.written()
    again.give_back()  # too late
    await one.flushed()
    assert (await one.job(job)).state is State.RUNNING


async def test_a_caller_that_leaves_while_it_waits_leaves_nothing_behind(one: Instance) -> None:
    await one.topic_nos("mail")
    waiting = await poll(one)
    waiting.cancel()
    await asyncio.wait((waiting,))
    (job,) = await one.submit(1)
    await settle_down()
    assert (await one.job(job)).state is State.PENDING
    assert (one.free(), one.sessions.with_calls()) == (0, ())


async def test_a_caller_that_leaves_while_its_claim_is_under_way_costs_the_job_no_attempt(one: Instance) -> None:
    (job,) = await one.submit(1)
    one.store.after["claim"] = held = Hold()
    waiting = asyncio.create_task(claim(one, wait_ms=LONG))
    await held.reached()
    waiting.cancel()
    await asyncio.wait((waiting,))
    del one.store.after["claim"]
    held.release()
    pulled = await claim(one, wait_ms=LONG)
    assert [list(delivery.ids) for delivery in pulled.deliveries] == [[job]]
    assert list(pulled.deliveries[0].attempts) == [1]


async def test_a_claim_whose_time_is_over_takes_what_was_claimed_for_it_just_then(one: Instance) -> None:
    (job,) = await one.submit(1)
    one.store.after["claim"] = held = Hold()
    waiting = asyncio.create_task(claim(one, wait_ms=1))
    await held.reached()
    await asyncio.sleep(0.01)  # its time is over: the answer of the database is not
    held.release()
    assert [list(delivery.ids) for delivery in (await waiting).deliveries] == [[job]]


async def test_what_does_not_fit_into_an_answer_goes_back_at_no_cost(one: Instance) -> None:
    ids = await one.submit(4, payload=b"x" * 400_000)
    calls, got = WorkerCalls(one.rules), []
    while len(got) < 4:
        async with asyncio.timeout(SOON.total_seconds()):
            pulled = await calls.claim(OURS, "w", ["mail"], count=4, wait_ms=LONG, most_bytes=1_000_000)
        assert 1 <= len(pulled) <= 2
        assert all(attempt == 1 for delivery in pulled.deliveries for attempt in delivery.attempts)
        got += [job_id for delivery in pulled.deliveries for job_id in delivery.ids]
    assert sorted(got) == sorted(ids)


async def test_polls_and_streams_share_what_there_is(one: Instance) -> None:
    await one.topic_nos("mail")
    stream = await one.worker("stream")
    waiting = [await poll(one, worker=f"w{number}") for number in range(3)]
    stream.ready(50)
    await soon(lambda: one.free() == 53, "all have asked")
    await one.submit(4)
    got = await asyncio.gather(*waiting)
    assert [len(pulled) for pulled in got] == [1, 1, 1]
    await soon(lambda: len(stream.session.held) == 1, "the stream has the fourth")


# ---------------------------------------------------------------------- what stops them


async def test_a_paused_topic_gives_nothing_and_answers_a_claim_without_a_wait_at_once(one: Instance) -> None:
    await one.submit(1)
    desk = Desk(one)
    await desk.pause(Target(kind=TargetKind.TOPIC, topic="mail"))
    asked = one.store.calls["claim"]
    assert len(await claim(one)) == 0
    assert one.store.calls["claim"] == asked
    waiting = asyncio.create_task(claim(one, wait_ms=LONG))
    await soon(lambda: one.free() == 1, "it waits")
    await desk.resume(Target(kind=TargetKind.TOPIC, topic="mail"))
    assert len(await waiting) == 1


async def test_a_quiet_worker_gets_nothing(one: Instance) -> None:
    await one.submit(1)
    one.gate.set_quiet([(await one.store.tenant_no("acme"), "w")])
    assert len(await claim(one)) == 0
    (shown,) = Desk(one).presence.workers(await one.store.tenant_no("acme"))
    assert (shown.worker, shown.quiet) == ("w", True)


async def test_a_drain_answers_those_that_wait_with_nothing(one: Instance) -> None:
    await one.topic_nos("mail")
    waiting = await poll(one)
    one.sessions.drain(30)
    async with asyncio.timeout(SOON.total_seconds()):
        assert len(await waiting) == 0


async def test_a_revoked_token_ends_a_claim_that_waits(one: Instance) -> None:
    await one.topic_nos("mail")
    waiting = await poll(one)
    (session,) = one.sessions.with_calls()
    session.end(TokenRevoked("gone"))
    with pytest.raises(TokenRevoked):
        await waiting


async def test_a_claim_gets_jobs_of_its_own_tenant_and_topics_only(one: Instance) -> None:
    await one.submit(1, tenant="other")
    await one.submit(1, topic="pay")
    narrow = Identity(tenant="acme", subject="narrow", scopes=frozenset(Scope), topics=TopicSet.of("mail"))
    assert len(await claim(one, "mail", "pay", who=narrow)) == 0
    with pytest.raises(PermissionDenied):
        await claim(one, "pay", who=narrow)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"count": 0}, "count"),
        ({"count": limits.CLAIM_MAX + 1}, "count"),
        ({"wait_ms": limits.CLAIM_WAIT_MAX_MS + 1}, "wait_ms"),
        ({"wait_ms": -1}, "wait_ms"),
        ({"lease_seconds": 86_401}, "lease_seconds"),
    ],
)
async def test_a_claim_past_a_limit_names_the_field(stepped: Instance, values: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await WorkerCalls(stepped.rules).claim(OURS, "w", ["mail"], **values)
    assert refused.value.field == field
    assert not stepped.sessions.with_calls()


async def test_more_claims_than_may_wait_are_refused(one: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_workers, "POLLS_PER_TENANT", 1)
    await one.topic_nos("mail")
    waiting = await poll(one)
    with pytest.raises(Overloaded):
        await claim(one, worker="second")
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert len(await claim(one, worker="second")) == 0


# ---------------------------------------------------------------------- outcomes and leases


async def test_two_results_for_one_epoch_are_one_result(one: Instance, unmatched: Instance) -> None:
    await one.submit(1)
    pulled = await claim(one, wait_ms=LONG)
    pulled.written()
    assert await report(one, pulled, Completed(result=b"1")) == [(Receipt.APPLIED, State.COMPLETED)]
    assert await report(one, pulled, Completed(result=b"2")) == [(Receipt.DUPLICATE, State.COMPLETED)]
    assert await report(one, pulled, Abandon()) == [(Receipt.STALE, State.COMPLETED)]


async def test_a_result_after_the_lease_has_ended_is_stale(one: Instance, unmatched: Instance, clock: Clock) -> None:
    (job,) = await one.submit(1)
    pulled = await claim(one, wait_ms=LONG)
    pulled.written()
    await clock.advance(seconds=61)
    assert len(await one.store.reap()) == 1
    assert await report(one, pulled, Completed()) == [(Receipt.STALE, State.RETRYING)]
    assert (await one.job(job)).state is State.RETRYING


async def test_outcomes_of_a_pull_worker_are_written_with_those_of_sessions(one: Instance) -> None:
    """The writer of unmatched outcomes, which is slower on purpose, does not run here."""
    await one.submit(2)
    pulled = await claim(one, count=2, wait_ms=LONG)
    pulled.written()
    failed = Failed(error=ErrorInfo(type="E", message="m"))
    assert await report(one, pulled, failed) == [(Receipt.APPLIED, State.RETRYING)] * 2
    (worker,) = one.pulls
    assert not worker.session.held


async def test_a_pull_worker_is_not_lost_when_its_call_ends(one: Instance) -> None:
    (job,) = await one.submit(1)
    (await claim(one, wait_ms=LONG)).written()
    assert len(one.lost_workers) == 0
    await one.renewer.run_once()
    assert one.renewer.renewed == 0, "and its lease is its own to renew"
    assert (await one.job(job)).state is State.RUNNING


async def test_a_heartbeat_extends_the_lease_and_says_what_is_lost(one: Instance, db: Connection) -> None:
    await one.submit(1)
    pulled = await claim(one, wait_ms=LONG)
    pulled.written()
    (delivery,) = pulled.deliveries
    ids, epochs = list(delivery.ids), list(delivery.epochs)
    calls = WorkerCalls(one.rules)
    renewed = await calls.heartbeat(OURS, "w", ids, epochs, lease_seconds=600, progress=[])
    assert not renewed.lost
    left = await db.fetchval("SELECT lease_until - clock_timestamp() > interval '9 minutes' FROM headgate.jobs")
    assert left
    (worker,) = one.pulls
    assert worker.session.held[ids[0]][1] == 600_000
    renewed = await calls.heartbeat(OURS, "w", ids, [epochs[0] + 1], lease_seconds=600, progress=[])
    assert renewed.lost == [(ids[0], epochs[0] + 1)]
    assert worker.session.held, "that of another epoch is not this one's loss"


async def test_a_heartbeat_without_a_lease_renews_by_those_of_the_topics(one: Instance, db: Connection) -> None:
    await one.submit(2)
    await one.submit(1, topic="pay")
    pulled = await claim(one, "mail", "pay", count=3, wait_ms=LONG)
    while len(pulled) < 3:
        more = await claim(one, "mail", "pay", count=3, wait_ms=LONG)
        pulled = PulledJobs([*pulled.deliveries, *more.deliveries], pulled._worker, pulled._abandon_unsent)
    ids = [job_id for delivery in pulled.deliveries for job_id in delivery.ids]
    epochs = [epoch for delivery in pulled.deliveries for epoch in delivery.epochs]
    one.store.names.leases[await one.store.tenant_no("acme")] = {"mail": 600_000}
    renewed = await WorkerCalls(one.rules).heartbeat(OURS, "w", ids, epochs, lease_seconds=0, progress=[])
    assert not renewed.lost
    assert {row["lease_ms"]: row["jobs"] for row in await db.fetch(LEASES)} == {600_000: 2, one.lease_ms: 1}
    (worker,) = one.pulls
    assert sorted(entry[1] for entry in worker.session.held.values()) == [one.lease_ms, 600_000, 600_000]


# ---------------------------------------------------------------------- what others see


async def test_a_pull_worker_is_listed_until_its_leases_are_over_and_it_was_silent_for_a_minute(
    database: str, seconds: ManualClock
) -> None:
    async with Instance(database, now=seconds) as one:
        await soon(lambda: one.ticker.ticks, "the first tick is over")
        await one.submit(1)
        presence = Desk(one).presence
        (await claim(one, wait_ms=LONG)).written()
        waiting = await poll(one, count=7)
        tenant_no = await one.store.tenant_no("acme")
        (shown,) = presence.workers(tenant_no)
        assert (shown.worker, list(shown.topics), shown.holding, shown.credit) == ("w", ["mail"], 1, 7)
        assert presence.summary()["counts"] == {str(tenant_no): 1}
        assert presence.topics(tenant_no) == {"mail"}
        waiting.cancel()
        await asyncio.wait((waiting,))
        seconds.advance(59)
        assert one.pulls.run_once() == 1
        (shown,) = presence.workers(tenant_no)
        assert (shown.holding, shown.credit) == (1, 0)
        seconds.advance(6)  # its lease is over, and it is silent for more than a minute
        assert one.pulls.run_once() == 0
        assert presence.workers(tenant_no) == []
        assert len(one.demands) == 0


async def test_the_next_claim_of_a_worker_begins_where_its_last_one_ended(one: Instance) -> None:
    await one.submit(2)
    for from_head in (True, False):
        assert len(await claim(one, wait_ms=LONG)) == 1
        assert one.store.asked[-1].from_head is from_head


async def test_the_workers_that_are_remembered_are_bounded(one: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_workers, "WORKERS_PER_TENANT", 2)
    monkeypatch.setattr(pull_workers, "DEMANDS_KEPT", 1)
    await one.topic_nos("mail", "pay")
    for worker in ("a", "b", "a", "c"):
        assert len(await claim(one, worker=worker)) == 0
    assert {worker.session.worker_id for worker in one.pulls} == {"a", "c"}
    assert len(await claim(one, "pay", worker="a")) == 0
    (kept,) = (known for known in one.pulls if known.session.worker_id == "a")
    assert len(kept.session.credit) == 1


async def test_workers_past_the_bound_leave_nothing_in_the_demands(
    one: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_workers, "WORKERS_PER_TENANT", 2)
    await one.topic_nos("mail")
    waiting = [asyncio.create_task(claim(one, worker=worker, wait_ms=LONG)) for worker in ("a", "b", "c")]
    await soon(lambda: len(one.sessions.with_calls()) == 3, "all of them wait")
    await one.submit(3)
    assert [len(pulled) for pulled in await asyncio.gather(*waiting)] == [1, 1, 1]
    known = {worker.session for worker in one.pulls}
    assert {session.worker_id for session in known} == {"a", "b"}
    assert {session for demand in one.demands for session in demand.members} == known


async def test_a_claim_without_a_wait_is_over_when_places_are_not_known_to_be_valid(
    stepped: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic_no,) = await stepped.topic_nos("mail")
    monkeypatch.setattr(stepped.demands.names, "consumers", {topic_no: "mail"})
    monkeypatch.setattr(stepped.demands, "places_valid", lambda: False)
    session = await stepped.rules.new_session(OURS, "w", 60_000)
    session.places = frozenset({topic_no})
    stepped.demands.ask(session, ["mail"], 60_000, 1)
    looking = asyncio.create_task(session.queued(or_looked=True))
    await settle_down()
    assert await stepped.claimer.run_once() == 0
    assert not await asyncio.wait_for(looking, SOON.total_seconds())
