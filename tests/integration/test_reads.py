"""Reading: one job wherever it lies, lists against a filter in plain Python, counts that are exact at any moment."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest

from headgate.domain.errors import InvalidInput, NotFound, StoreBusy
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Snooze
from headgate.domain.states import EventKind, OutcomeKind, State
from headgate.store import listing, reads, upkeep, verbs
from headgate.store.connect import Connection, connect
from headgate.store.listing import LOOK_AT, Filter
from tests.support import store_calls
from tests.support.epochs import claims
from tests.support.queue import Clock, Queue, links, new_id

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom", traceback="Traceback …"))
FATAL = replace(BOOM, permanent=True)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
FINAL = frozenset(state for state in State if state.is_final)
LIVE = frozenset(State) - FINAL


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def walk(db: Connection, tenant_no: int, *, limit: int, **matching: Any) -> AsyncIterator[store_calls.Page]:
    """All pages of a list, one after the other."""
    cursor = None
    while True:
        page = await store_calls.list_jobs(db, tenant_no, matching=Filter(**matching), limit=limit, cursor=cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


async def ids_of(db: Connection, tenant_no: int, *, limit: int = 1_000, **matching: Any) -> list[JobId]:
    return [row.id async for page in walk(db, tenant_no, limit=limit, **matching) for row in page.rows]


# --- one job ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("O23")
async def test_a_job_can_be_read_in_every_state(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    begin, tenant, topic = clock.now, await queue.tenant_no(), await queue.topic()
    (job_id,) = await queue.add(payload=b"body", priority=4, headers={"a": "b"}, max_attempts=2, delay=SECOND)

    base = await queue.db.fetchval("SELECT epoch FROM headgate.jobs")

    async def see(state: State, **facts: object) -> None:
        job = await reads.get(queue.db, tenant, job_id)
        same = {"id": job_id, "topic_no": topic.no, "priority": 4, "max_attempts": 2, "created_at": begin}
        facts |= {"epoch": base + facts["epoch"]} if "epoch" in facts else {}  # type: ignore[operator]
        expected = same | {"headers": {"a": "b"}, "policy_no": 1, "cancel_requested": False} | facts
        assert {name: getattr(job, name) for name in ("state", *expected)} == {"state": state} | expected
        assert await reads.payload(queue.db, tenant, job_id) == b"body"
        result = await reads.result(queue.db, tenant, job_id)
        assert (result.state, result.result) == (state, b"done" if state is State.COMPLETED else None)
        assert result.last_error == job.last_error
        tables = "SELECT (SELECT count(*) FROM headgate.jobs), (SELECT count(*) FROM headgate.archive)"
        assert tuple(await queue.db.fetchrow(tables)) == ((0, 1) if state.is_final else (1, 0))

    nobody: dict[str, object] = {"owner": None, "lease_until": None}
    rank = {"rank_class": -5, "rank_at": int(begin.timestamp()) * 1_000_000 + begin.microsecond + 1}
    await see(
        State.SCHEDULED, attempt=0, epoch=0, run_at=begin + SECOND, claimed_at=None, worker=None, **nobody, **rank
    )
    await clock.advance(seconds=1)
    await store_calls.promote(queue.db)
    await see(State.PENDING, attempt=0, epoch=0, run_at=begin + SECOND, last_outcome=None, **nobody, **rank)
    await queue.claim()
    now = begin + SECOND
    await see(
        State.RUNNING,
        attempt=1,
        epoch=1,
        owner=1,
        worker="worker",
        claimed_at=now,
        lease_until=now + 60 * SECOND,
        **rank,
    )
    await queue.settle((job_id, 1, BOOM))
    failed = {"last_outcome": OutcomeKind.FAILED, "last_error": "ValueError: boom"}
    await see(State.RETRYING, attempt=1, run_at=now + SECOND, finished_at=None, **failed, **nobody, **rank)
    await clock.advance(seconds=1)
    await store_calls.promote(queue.db)
    await queue.claim()
    await queue.settle((job_id, 2, Completed(result=b"done")))
    ended = {"finished_at": now + SECOND, "lease_until": None, "rank_class": None, "rank_at": None}
    await see(
        State.COMPLETED, attempt=2, epoch=2, owner=1, worker="worker", last_outcome=OutcomeKind.COMPLETED, **ended
    )
    await verbs.redrive(queue.db, tenant, [job_id])
    await see(State.PENDING, attempt=0, epoch=2, last_outcome=OutcomeKind.COMPLETED, finished_at=None, **nobody)
    await verbs.cancel(queue.db, tenant, [job_id])
    await see(State.CANCELLED, attempt=0, epoch=2, **ended)


async def test_an_empty_result_is_not_a_missing_one(queue: Queue) -> None:
    (job_id,) = await queue.add()
    tenant = await queue.tenant_no()
    assert (await reads.result(queue.db, tenant, job_id)).result is None
    await queue.claim()
    await queue.settle((job_id, 1, Completed()))
    assert (await reads.result(queue.db, tenant, job_id)).result == b""


async def test_the_history_of_a_job_is_in_order_and_outlives_it(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    (job_id,) = await queue.add()
    outcomes = [
        (BOOM, 1),
        (Nack(delay=timedelta(0), reason="limited"), 0),
        (Abandon(), 0),
        (Snooze(delay=SECOND), 1),
        (FATAL, 0),
    ]
    for epoch, (outcome, wait) in enumerate(outcomes, 1):
        await queue.claim()
        await queue.settle((job_id, epoch, outcome))
        await clock.advance(seconds=wait)
        await store_calls.promote(queue.db)
    await verbs.redrive(queue.db, tenant, [job_id], who="ana", reason="once more", payloads=[b"new"])
    await verbs.reprioritise(queue.db, tenant, [job_id], priority=3, who="ben", reason="vip")
    await verbs.cancel(queue.db, tenant, [job_id], who="ana", reason="no")
    await verbs.discard(queue.db, tenant, [job_id], who="ana")
    with pytest.raises(NotFound):
        await reads.get(queue.db, tenant, job_id)
    events = await reads.events(queue.db, tenant, job_id)
    assert [(event.kind, event.state) for event in events] == [
        (EventKind.FAILED, State.RETRYING),
        (EventKind.NACKED, State.PENDING),
        (EventKind.ABANDONED, State.PENDING),
        (EventKind.SNOOZED, State.SCHEDULED),
        (EventKind.FAILED, State.DEAD),
        (EventKind.REDRIVEN, State.PENDING),
        (EventKind.REPRIORITISED, State.PENDING),
        (EventKind.CANCELLED, State.CANCELLED),
        (EventKind.DISCARDED, State.CANCELLED),
    ]
    assert [claims(event.epoch) for event in events] == [1, 2, 3, 4, 5, 5, 5, 5, 5]
    assert (events[0].error_type, events[0].error_message, events[0].error_trace) == (
        "ValueError",
        "boom",
        "Traceback …",
    )
    assert events[1].reason == "limited"
    assert [event.actor for event in events[5:]] == ["ana", "ben", "ana", "ana"]
    assert events[5].detail == {"from": State.DEAD, "attempts": 3, "edited": True}
    assert events[6].detail == {"old": 0, "new": 3}
    assert [event.kind for event in await reads.events(queue.db, tenant, job_id, limit=2)] == [
        EventKind.FAILED,
        EventKind.NACKED,
    ]


async def test_what_does_not_exist_is_not_found(queue: Queue) -> None:
    tenant, nowhere = await queue.tenant_no(), new_id()
    for read in (reads.get, reads.payload, reads.result):
        with pytest.raises(NotFound, match=str(nowhere)):
            await read(queue.db, tenant, nowhere)  # type: ignore[operator]
    assert await reads.events(queue.db, tenant, nowhere) == []
    assert await reads.counts(queue.db, tenant) == {}
    assert await ids_of(queue.db, tenant) == []


# --- lists against a filter in Python ---------------------------------------------------------------------------------

TOPICS, TAGS, SCHEDULES = ("mail", "letters", "parcels"), ("red", "green", "blue"), (1, 2)
SIZE = 2_000


@dataclass(frozen=True)
class Known:
    """What the test knows of a job, from what it did to it."""

    id: JobId
    topic_no: int
    state: State
    created_at: datetime
    priority: int
    tags: frozenset[str]
    schedule_no: int | None


async def fill(queue: Queue, chance: random.Random) -> list[Known]:
    """About 2,000 jobs in all states, submitted over 100 minutes."""
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    made: dict[JobId, dict[str, Any]] = {}
    for _ in range(20):
        await clock.advance(minutes=5)
        batch = []
        for _ in range(SIZE // 20):
            options: dict[str, Any] = {
                "topic": chance.choice(TOPICS),
                "priority": chance.choice((-3, 0, 0, 0, 7)),
                "tags": chance.sample(TAGS, chance.choice((0, 0, 1, 2, 3))),
            }
            job = queue.job(**options, delay=HOUR * 9 if chance.random() < 0.1 else None)
            made[job.id] = options | {"created_at": clock.now, "schedule_no": None}
            batch.append(job)
        await queue.submit(*batch)
    for job_id in chance.sample(list(made), 300):
        made[job_id]["schedule_no"] = chance.choice(SCHEDULES)
    await queue.db.executemany(
        "INSERT INTO headgate.schedule_jobs (tenant_no, schedule_no, occurrence, job_id) VALUES ($1, $2, $3, $4)",
        [
            (tenant, one["schedule_no"], clock.now + n * SECOND, job_id)
            for n, (job_id, one) in enumerate(made.items())
            if one["schedule_no"]
        ],
    )
    claimed = await queue.claim(SIZE * 3 // 5, *TOPICS)
    outcomes = chance.choices(
        [Completed(result=b"r"), BOOM, FATAL, Snooze(delay=HOUR), Abandon(), None], [5, 2, 2, 1, 1, 2], k=len(claimed)
    )
    await queue.settle(*((i, 1, said) for i, said in zip(claimed.ids, outcomes, strict=True) if said is not None))
    queued = await queue.db.fetch("SELECT id FROM headgate.jobs WHERE state <> 1")
    await verbs.cancel(queue.db, tenant, [row["id"] for row in chance.sample(queued, 100)])
    # Nothing blocks a job yet, so this state is written by hand.
    await queue.db.execute(
        "UPDATE headgate.jobs SET state = 4"
        " WHERE id IN (SELECT id FROM headgate.jobs WHERE state = 0 ORDER BY id LIMIT 60)"
    )
    states = await queue.db.fetch(
        "SELECT id, state FROM headgate.jobs UNION ALL SELECT id, state FROM headgate.archive"
    )
    now = {row["id"]: State(row["state"]) for row in states}
    assert set(now) == set(made)
    assert set(now.values()) == set(State)
    topics = {name: (await queue.topic(name)).no for name in TOPICS}
    known = [
        Known(
            id=job_id,
            topic_no=topics[one["topic"]],
            state=now[job_id],
            created_at=one["created_at"],
            priority=one["priority"],
            tags=frozenset(one["tags"]),
            schedule_no=one["schedule_no"],
        )
        for job_id, one in made.items()
    ]
    return sorted(known, key=lambda job: job.id, reverse=True)


def matches(job: Known, wanted: Filter) -> bool:
    """The reference: what a filter means, said once more, plainly."""
    return (
        (wanted.states is None or job.state in wanted.states)
        and (wanted.topic_nos is None or job.topic_no in wanted.topic_nos)
        and (wanted.created_from is None or job.created_at >= wanted.created_from)
        and (wanted.created_before is None or job.created_at < wanted.created_before)
        and (wanted.priority_from is None or job.priority >= wanted.priority_from)
        and (wanted.priority_to is None or job.priority <= wanted.priority_to)
        and (wanted.tags is None or set(wanted.tags) <= job.tags)
        and (wanted.schedule_no is None or job.schedule_no == wanted.schedule_no)
    )


def some_filters(known: list[Known], chance: random.Random, count: int) -> Iterator[dict[str, Any]]:
    topics = sorted({job.topic_no for job in known})
    times = sorted({job.created_at for job in known})
    # Every state alone, and every set the store has a shorter way for.
    for states in [*([state] for state in State), (2, 3), (6, 7), LIVE, FINAL, (0, 1), (5, 6), (1, 7), State]:
        yield {"states": frozenset(map(State, states))}
    yield {}
    yield {"tags": []}
    for _ in range(count):
        options: dict[str, Any] = {}
        if chance.random() < 0.5:
            options["states"] = frozenset(chance.sample(list(State), chance.randint(1, 4)))
        if chance.random() < 0.4:
            options["topic_nos"] = frozenset(chance.sample([*topics, 999], chance.randint(1, 2)))
        if chance.random() < 0.3:
            options["created_from"] = chance.choice(times)
        if chance.random() < 0.3:
            options["created_before"] = chance.choice(times)
        if chance.random() < 0.2:
            options["priority_from"] = chance.choice((-3, -2, 0, 7))
        if chance.random() < 0.2:
            options["priority_to"] = chance.choice((-4, -3, 0, 6))
        if chance.random() < 0.3:
            options["tags"] = chance.sample([*TAGS, "none"], chance.randint(1, 3))
        if chance.random() < 0.2:
            options["schedule_no"] = chance.choice((*SCHEDULES, 3))
        yield options


async def test_lists_agree_with_a_filter_in_python(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any filter, any page size: the pages joined are exactly what matches, newest first, nothing twice."""
    # Small, so that 2,000 jobs show what a million would: pages that end short, and go on.
    monkeypatch.setattr(listing, "CHUNK", 100)
    monkeypatch.setattr(listing, "LOOK_AT", 300)
    chance = random.Random(20260728)
    known = await fill(queue, chance)
    by_id = {job.id: job for job in known}
    tenant = await queue.tenant_no()
    short = 0
    for options in some_filters(known, chance, 120):
        wanted = Filter(**options)
        limit = chance.choice((1, 7, 50, 100, 1_000)) if options else 130
        if limit == 1:
            options["created_from"] = known[60].created_at  # or there would be a page per job
            wanted = Filter(**options)
        expected = [job.id for job in known if matches(job, wanted)]
        rows = []
        async for page in walk(queue.db, tenant, limit=limit, **options):
            assert len(page.rows) <= limit
            short += page.cursor is not None and len(page.rows) < limit
            rows += page.rows
        assert [row.id for row in rows] == expected, options
        for row in rows:
            job = by_id[row.id]
            seen = (row.topic_no, row.state, row.created_at, row.priority)
            assert seen == (job.topic_no, job.state, job.created_at, job.priority)
    assert short > 20  # the net under the short pages was tried


async def test_a_line_of_a_list_says_what_the_job_says(queue: Queue) -> None:
    known = await fill(queue, random.Random(7))
    tenant = await queue.tenant_no()
    page = await store_calls.list_jobs(queue.db, tenant, limit=300)
    assert [row.id for row in page.rows] == [job.id for job in known[:300]]
    for row in page.rows:
        job = await reads.get(queue.db, tenant, row.id)
        assert {name: getattr(row, name) for name in row.__slots__} == {
            name: getattr(job, name) for name in row.__slots__
        }


@pytest.mark.parametrize("running", [0, 5, 400])
async def test_many_running_or_waiting_jobs_are_listed_like_few(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, running: int
) -> None:
    """Few are found through an order of their own; many through that of all live jobs. Other tenants count too."""
    monkeypatch.setattr(listing, "LOOK_AT", 350)
    monkeypatch.setattr(listing, "CHUNK", 50)
    tenant = await queue.tenant_no()
    other = Queue(queue.db, tenant="umbrella")
    for one, count in ((other, 40), (queue, running)):
        await one.add(count)
        assert len(await one.claim(max(count, 1))) == count
        await one.add(count, delay=HOUR)
        await one.add(30)
    for state in (State.RUNNING, State.SCHEDULED):
        rows = await queue.db.fetch(
            "SELECT id FROM headgate.jobs WHERE tenant_no = $1 AND state = $2", tenant, int(state)
        )
        expected = sorted((row["id"] for row in rows), reverse=True)
        assert len(expected) == running
        assert await ids_of(queue.db, tenant, limit=30, states=frozenset({state})) == expected


async def test_another_tenant_sees_nothing(db: Connection, queue: Queue) -> None:
    await fill(queue, random.Random(3))
    other = await Queue(db, tenant="umbrella").tenant_no()
    for options in some_filters([], random.Random(5), 0):
        assert await ids_of(db, other, **options) == []
    assert await reads.counts(db, other) == {}


# --- lists while jobs move --------------------------------------------------------------------------------------------


async def test_jobs_that_arrive_between_pages_do_not_disturb(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    before = await queue.add(50)
    seen, cursor = [], None
    while True:
        page = await store_calls.list_jobs(queue.db, tenant, limit=7, cursor=cursor)
        seen += [row.id for row in page.rows]
        await queue.add(5)
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == before[::-1]


@pytest.mark.parametrize("matching", [{}, {"priority_from": 0}, {"states": frozenset(State)}])
async def test_a_job_that_moves_between_pages_is_seen_once(queue: Queue, matching: dict[str, Any]) -> None:
    """To the archive, back by a redrive, and away again: its place in the list is its id's, wherever it lies."""
    tenant = await queue.tenant_no()
    jobs = await queue.add(60)
    chance = random.Random(11)
    seen, cursor = [], None
    while True:
        page = await store_calls.list_jobs(queue.db, tenant, matching=Filter(**matching), limit=9, cursor=cursor)
        seen += [row.id for row in page.rows]
        claimed = await queue.claim(15)
        await queue.settle(*((i, epoch, Completed()) for i, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
        await verbs.redrive(queue.db, tenant, chance.sample(jobs, 20))
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == jobs[::-1]


async def test_a_job_that_moves_while_it_is_read_is_never_missing_nor_doubled(queue: Queue, database: str) -> None:
    """Reader and worker at full speed: every read finds the job exactly once."""
    tenant = await queue.tenant_no()
    jobs = await queue.add(4)
    over = asyncio.Event()
    turns = rounds = 0

    async def work() -> None:
        nonlocal turns
        worker = await connect(database, application_name="worker")
        mine = Queue(worker)
        while turns < 60 or rounds <= 10:
            turns += 1
            claimed = await mine.claim(4)
            await mine.settle(*((i, epoch, Completed()) for i, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
            await verbs.redrive(worker, tenant, jobs)
        over.set()
        await worker.close()

    async def read() -> None:
        nonlocal rounds
        while not over.is_set():
            assert await ids_of(queue.db, tenant) == jobs[::-1]
            assert (await reads.get(queue.db, tenant, jobs[0])).id == jobs[0]
            assert await reads.payload(queue.db, tenant, jobs[1]) == b"x"
            counts = (await reads.counts(queue.db, tenant)).values()
            assert sum(n for states in counts for n in states.values()) == 4
            rounds += 1

    async with asyncio.timeout(60):
        await asyncio.gather(work(), read())


async def test_a_cursor_goes_on_only_with_the_list_it_came_from(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await queue.add(5, tags=["red"], priority=3)
    now = (await store_calls.list_jobs(queue.db, tenant, limit=1)).rows[0].created_at
    filters = [
        Filter(),
        Filter(states=frozenset({State.PENDING})),
        Filter(states=frozenset({State.PENDING, State.DEAD})),
        Filter(topic_nos=frozenset({(await queue.topic()).no})),
        Filter(tags=["red"]),
        Filter(priority_from=3),
        Filter(priority_to=3),
        Filter(created_from=now),
        Filter(created_before=now + HOUR),
    ]
    for matching in filters:
        cursor = (await store_calls.list_jobs(queue.db, tenant, matching=matching, limit=2)).cursor
        for other in filters:
            if other == matching:
                # The size of a page is no part of the list.
                page = await store_calls.list_jobs(queue.db, tenant, matching=other, limit=100, cursor=cursor)
                assert len(page.rows) == 3
                continue
            with pytest.raises(InvalidInput, match="does not belong to this list"):
                await store_calls.list_jobs(queue.db, tenant, matching=other, limit=2, cursor=cursor)


# --- what a page costs ------------------------------------------------------------------------------------------------

LIVE_ROWS = """
INSERT INTO headgate.jobs (id, rank_at, created_at, run_at, tenant_no, topic_no, rank_class, priority, max_attempts,
                           policy_no, state, payload)
SELECT encode(substring(int8send(1700000000000 + n) FROM 3) || '\\x70008000000000000000'::bytea, 'hex')::uuid, n, now(),
       now(), $1, $2, -1, 0, 20, 1, CASE WHEN n > 60000 THEN 2 ELSE 0 END, ''
  FROM generate_series(1, 100000) AS n"""
FINISHED_ROWS = """
INSERT INTO headgate.archive (id, created_at, run_at, finished_at, tenant_no, topic_no, priority, attempt, max_attempts,
                              epoch, policy_no, state, flags, payload)
SELECT encode(substring(int8send(1700000050000 + n) FROM 3) || '\\x70008000000000000001'::bytea, 'hex')::uuid, now(),
       now(), now(), $1, $2, 0, 1, 20, 1, 1, 5, 0, ''
  FROM generate_series(1, 100000) AS n"""


async def test_a_page_over_200_000_jobs_reads_a_bounded_number_of_rows(queue: Queue, database: str) -> None:
    """Without statistics and with them, with a plan for this call and one for all calls: a page is a page."""
    tenant, topic = await queue.tenant_no(), (await queue.topic()).no
    await queue.db.execute("SET statement_timeout = 0")
    await queue.db.execute("ALTER TABLE headgate.jobs SET (autovacuum_enabled = off)")
    await queue.db.execute(LIVE_ROWS, tenant, topic)
    await queue.db.execute(FINISHED_ROWS, tenant, topic)

    async def rows_read(matching: Filter, mode: str, cursor: str | None = None) -> tuple[int, store_calls.Page]:
        """One page on a fresh session, and how many rows it touched; a transaction's own figures are never late."""
        link = await connect(database, application_name="reader")
        async with link.transaction():
            await link.execute(
                "SET LOCAL max_parallel_workers_per_gather = 0"
            )  # what a parallel worker reads is not counted
            await link.execute(f"SET LOCAL plan_cache_mode = {mode}")
            page = await store_calls.list_jobs(link, tenant, matching=matching, limit=50, cursor=cursor)
            touched: int = await link.fetchval(
                "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_catalog.pg_stat_xact_all_tables"
                " WHERE schemaname = 'headgate'"
            )
        await link.close()
        return touched, page

    def one(*states: State) -> frozenset[State]:
        return frozenset(states)

    for analysed, mode in product((False, True), ("force_custom_plan", "force_generic_plan")):
        if analysed:
            await queue.db.execute("ANALYZE headgate.jobs; ANALYZE headgate.archive")
        # A page with no filter, at the head and in the middle of the list: its own rows, twice.
        touched, page = await rows_read(Filter(), mode)
        assert (touched <= 400, len(page.rows)) == (True, 50), touched
        touched, page = await rows_read(Filter(), mode, page.cursor)
        assert (touched <= 400, len(page.rows)) == (True, 50), touched
        # What nothing matches: each id is chosen once and looked up once, and no more than LOOK_AT of them.
        for matching, ends in (
            (Filter(topic_nos=frozenset({999})), False),
            (Filter(priority_from=1), False),
            (Filter(states=one(State.BLOCKED)), False),
            (Filter(states=one(State.RETRYING)), False),  # 40,000 others wait: too many to look at by their due time
            (Filter(states=one(State.COMPLETED), priority_to=-1), False),
            (Filter(states=one(State.PENDING, State.DEAD), priority_from=1), False),
            (Filter(states=one(State.RUNNING)), True),
            (Filter(states=one(State.DEAD, State.CANCELLED)), True),
            (Filter(tags=["none"]), True),
            (Filter(schedule_no=1), True),
        ):
            touched, page = await rows_read(matching, mode)
            assert page.rows == []
            assert (page.cursor is None) is ends, matching
            bound = 10 if ends else 3 * LOOK_AT if matching.states == one(State.RETRYING) else 2 * LOOK_AT
            bound += 2_000 if not ends else 0
            assert touched <= bound, (analysed, mode, matching, touched)
    assert len(await ids_of(queue.db, tenant, states=one(State.BLOCKED))) == 0  # the short pages do come to an end


async def test_a_list_that_takes_too_long_says_how_to_narrow_it(queue: Queue, database: str) -> None:
    await queue.add(3)
    tenant = await queue.tenant_no()
    async with links(database, 2) as (reader, blocker), blocker.transaction():
        await blocker.execute("LOCK TABLE headgate.archive IN ACCESS EXCLUSIVE MODE")
        await reader.execute("SET statement_timeout = '100ms'")
        with pytest.raises(StoreBusy, match=r"too broad .* narrow it \(a topic, a state, a span of time\)"):
            await store_calls.list_jobs(reader, tenant, matching=Filter(priority_from=1))


# --- counts -----------------------------------------------------------------------------------------------------------


async def counted(db: Connection) -> dict[int, dict[State, int]]:
    """The counts as a count over the jobs themselves."""
    rows = await db.fetch(
        "SELECT topic_no, state, count(*) FROM (SELECT topic_no, state FROM headgate.jobs"
        " UNION ALL SELECT topic_no, state FROM headgate.archive) AS j GROUP BY 1, 2"
    )
    found: dict[int, dict[State, int]] = {}
    for topic_no, state, n in rows:
        found.setdefault(topic_no, {})[State(state)] = n
    return found


async def busy_hour(queue: Queue, rounds: int = 12) -> None:
    """Every verb that moves a job."""
    tenant = await queue.tenant_no()
    for n in range(rounds):
        await queue.add(10, "mail")
        later = await queue.add(6, "letters", delay=HOUR)
        claimed = await queue.claim(8, "mail", "letters")
        said = [Completed(), BOOM, FATAL, Snooze(delay=HOUR), Abandon(), Nack(delay=timedelta(0), reason="")]
        await queue.settle(
            *(
                (i, e, said[(n + k) % 6])
                for k, (i, e) in enumerate(zip(claimed.ids, claimed.epochs, strict=True))
                if k < 7
            )
        )
        await verbs.cancel(queue.db, tenant, [*later[:3], *claimed.ids[7:]])
        await verbs.redrive(queue.db, tenant, later[:1])
        await verbs.discard(queue.db, tenant, later[1:2])


async def test_counts_are_exact_before_and_after_folding(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await busy_hour(queue)
    expected = await counted(queue.db)
    assert await reads.counts(queue.db, tenant) == expected
    assert await upkeep.fold_flows(queue.db, limit=7) == 7
    assert await reads.counts(queue.db, tenant) == expected
    flows = await queue.db.fetchval("SELECT sum(n) FROM headgate.flow_deltas")
    while await upkeep.fold_flows(queue.db, limit=25):
        assert await reads.counts(queue.db, tenant) == expected
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.flow_deltas") == 0
    assert flows > 0
    await busy_hour(queue, 1)
    assert await reads.counts(queue.db, tenant) == await counted(queue.db)


async def test_counts_stay_exact_while_four_fold_and_others_work(queue: Queue, database: str) -> None:
    """At any moment the counts add up to the number of jobs there are; in the end each of them is right."""
    tenant = await queue.tenant_no()
    await queue.topic("mail")
    await queue.topic("letters")
    await queue.add(40, "still")
    async with links(database, 7) as (worker, reader, checker, *folders):
        over = asyncio.Event()

        looks, folded = 0, Counter[Connection]()

        async def work() -> None:
            busy = Queue(worker)
            await busy_hour(busy, 40)
            while looks <= 5 or folded.total() <= 100 or len(+folded) < 2:  # until it was a race
                await busy_hour(busy, 5)
            over.set()

        async def fold(link: Connection) -> None:
            while not over.is_set():
                folded[link] += await upkeep.fold_flows(link, limit=5)

        async def look() -> None:
            nonlocal looks
            still = (await queue.topic("still")).no
            while not over.is_set():
                async with reader.transaction(isolation="repeatable_read"):  # both counts of one moment
                    assert await reads.counts(reader, tenant) == await counted(reader)
                assert (await reads.counts(checker, tenant))[still] == {State.PENDING: 40}
                looks += 1

        await asyncio.gather(work(), look(), *(fold(link) for link in folders))
    while await upkeep.fold_flows(queue.db):
        pass
    assert await reads.counts(queue.db, tenant) == await counted(queue.db)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.flow_deltas") == 0


async def test_flows_by_the_minute_tell_what_happened(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    topic = (await queue.topic()).no
    minute = clock.now.replace(second=0, microsecond=0)
    for n in range(3):
        await clock.set(minute + timedelta(minutes=n, seconds=59))
        await queue.add(n + 1)
        claimed = await queue.claim(n + 1)
        await queue.settle(*((job_id, 1, Completed()) for job_id in claimed.ids))
        await upkeep.fold_flows(queue.db, limit=2)
    while await upkeep.fold_flows(queue.db, limit=2):
        pass
    rows = await queue.db.fetch(
        "SELECT minute, topic_no, from_state, to_state, n FROM headgate.flow_minutes ORDER BY 1, 3"
    )
    assert [tuple(row) for row in rows] == [
        (minute + timedelta(minutes=n), topic, was, then, n + 1)
        for n in range(3)
        for was, then in ((-1, 0), (0, 1), (1, 5))
    ]
