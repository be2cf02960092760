"""Lists of jobs agree with a filter in Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from headgate.domain.ids import JobId
from headgate.domain.outcomes import Abandon, Completed, Snooze
from headgate.domain.states import State
from headgate.store import listing, reads, verbs
from headgate.store.connect import Connection
from headgate.store.listing import Filter
from tests.integration.reads.walking import BOOM, FATAL, HOUR, SCHEDULES, SECOND, TAGS, TOPICS, ids_of, walk
from tests.support import store_calls
from tests.support.queue import Clock, Queue

FINAL = frozenset(state for state in State if state.is_final)
LIVE = frozenset(State) - FINAL
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
    # Nothing blocks a job yet, so this state is written manually.
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
