"""Filters against real rows: what matches, what a page costs, how many there are; and dead letters by their kind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

import pytest

from headgate.domain import pacing
from headgate.domain.bulk import DeadGroups, JobPage
from headgate.domain.errors import InvalidInput
from headgate.domain.filter_parser import parse
from headgate.domain.fingerprint import group_of
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.timestamps import EPOCH
from headgate.domain.topic_sets import TopicSet
from headgate.domain.workers import stored_worker
from headgate.store import dead_letters, listing, matching, verbs
from headgate.store.clock import clock
from headgate.store.connect import Connection, connect
from tests.support.queue import Clock, Queue
from tests.support.turns import counted_turns

HOUR = timedelta(hours=1)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


def failing(kind: str, message: str) -> Failed:
    return Failed(error=ErrorInfo(type=kind, message=message, traceback="Traceback …"), permanent=True)


async def found(
    queue: Queue, text: str, *, topics: TopicSet | None = None, limit: int = 50, oldest: bool = False
) -> list[JobId]:
    """The ids of all pages, oldest first."""
    ids: list[JobId] = []
    cursor = ""
    while True:
        page = await matching.list_matching(
            queue.db,
            queue.names,
            await queue.tenant_no(),
            parse(text),
            topics=topics,
            limit=limit,
            cursor=cursor,
            oldest=oldest,
        )
        ids += [JobId(job.id) for job in page.jobs]
        cursor = page.cursor
        if not cursor:
            return ids if oldest else ids[::-1]


UNIQUE = """
INSERT INTO headgate.unique_jobs (tenant_no, job_id, topic_no, key, live)
SELECT $1, $2, min(topic_no), $3, $4 FROM headgate.topics"""


@dataclass
class World:
    """A few jobs of every kind, by name."""

    queue: Queue
    clock: Clock
    names: dict[str, JobId]

    async def named(self, text: str, *, topics: TopicSet | None = None) -> set[str]:
        by_id = {job_id: name for name, job_id in self.names.items()}
        return {by_id[job_id] for job_id in await found(self.queue, text, topics=topics)}


@pytest.fixture
async def world(queue: Queue) -> World:
    clock = await Clock.install(queue.db)
    await clock.advance(hours=-5)
    names: dict[str, JobId] = {}

    async def add(name: str, topic: str, **options: object) -> None:
        (names[name],) = await queue.add(1, topic, **options)

    await add("old", "mail", payload=json.dumps({"user": {"id": 42}}).encode(), tags=["vip", "eu"], key="order-7")
    await add("big", "mail", payload=json.dumps({"user": {"id": 42}, "pad": "x" * 2_000}).encode(), priority=10)
    await add("opaque", "mailing", payload=b"\xff\x00", tags=["eu"], priority=-10)
    await queue.claim(1, "mail", workers=(stored_worker("w-1", 0xBEE, "a token"),))  # big, the most urgent
    await queue.settle((names["big"], 1, failing("TimeoutError", "no answer in 15 s")))
    await clock.advance(hours=4)
    await add("late", "sms", delay=HOUR, tags=["vip"])
    await add("gone", "sms", payload=b'{"user": {"id": "7"}}')
    await queue.claim(1, "sms", workers=("w-2",))
    await queue.settle((names["gone"], 1, Completed(result=b"r")))
    await queue.claim(1, "mailing", workers=("eu/w*3",))
    await queue.db.execute(
        "INSERT INTO headgate.schedule_jobs (tenant_no, schedule_no, occurrence, job_id) VALUES ($1, 9, now(), $2)",
        await queue.tenant_no(),
        names["late"],
    )
    for name, key, live in (("old", "user-1", True), ("gone", "user-1", False), ("late", "user-2", True)):
        await queue.db.execute(UNIQUE, await queue.tenant_no(), names[name], key, live)
    await clock.advance(hours=1)
    return World(queue, clock, names)


MEANINGS = [
    ("", "old big opaque late gone"),
    ("state:dead", "big"),
    ("-state:dead,completed", "old opaque late"),
    ("state:pending,running", "old opaque"),
    ("state:dead state:pending", ""),
    ("topic:mail", "old big"),
    ("topic:mail*", "old big opaque"),
    ("-topic:mail*", "late gone"),
    ("topic:mail* -topic:mail", "opaque"),
    ("topic:nowhere", ""),
    ("tag:vip", "old late"),
    ("tag:vip tag:eu", "old"),
    ("tag:vip,eu", "old opaque late"),
    ("tag:vip,eu tag:eu,us", "old opaque"),
    ("-tag:vip", "big opaque gone"),
    ("tag:none", ""),
    ("worker:w-*", "big gone"),
    ("worker:w-1,w-2", "big gone"),
    ('worker:"eu/w*3"', "opaque"),
    ("worker:eu/w.3", ""),
    ('worker:""', "old late"),
    ("-worker:w-*", "old opaque late"),
    ("priority:>=5", "big"),
    ("priority:<0", "opaque"),
    ("priority:high,bulk", "big opaque"),
    ("-priority:0", "big opaque"),
    ("-priority:>=5", "old opaque late gone"),
    ("priority:>2147483647", ""),
    ("attempts:0", "old late"),
    ("attempts:>0 attempts:<=1", "big opaque gone"),
    ('error:"no answer"', "big"),
    ("error:timeouterror*15", "big"),
    ("error:timeout error:answer", "big"),
    ("error:time.ut", ""),
    ("-error:timeout", "old opaque late gone"),
    ("created:>2h", "late gone"),
    ("created:<2h", "old big opaque"),
    ("created:>2h created:<30m", "late gone"),
    ("finished:<2h", "big"),
    ("finished:>2h", "gone"),
    ("started:>2h", "opaque gone"),
    ("due:>30m", "late"),
    ("key:order-7", "old"),
    ("key:other", ""),
    ("unique:user-1", "old gone"),
    ("unique:user-1 topic:sms", "gone"),
    ("unique:user-1,user-2", "old late gone"),
    ("unique:user-1 unique:user-2", ""),
    ("-unique:user-1", "big opaque late"),
    ("unique:user", ""),
    ("args.user.id:42", "old big"),
    ("args.user.id:42 -state:dead", "old"),
    ("args.user.id:7,8", "gone"),
    ("-args.user.id:42", "opaque late gone"),
    ("state:dead tag:vip", ""),
]


@pytest.mark.req("O25")
async def test_a_filter_means_what_it_says(world: World) -> None:
    for text, names in MEANINGS:
        assert await world.named(text) == set(names.split()), text
        # The other way round, in pages of one: the same jobs, in the opposite order.
        assert await found(world.queue, text, limit=1, oldest=True) == await found(world.queue, text), text


async def test_ids_groups_and_schedules_are_found(world: World) -> None:
    ids = world.names
    assert await world.named(f"id:{ids['old']},{ids['gone']}") == {"old", "gone"}
    assert await world.named(f"-id:{ids['old']}") == {"big", "opaque", "late", "gone"}
    group = group_of("TimeoutError: no answer in 99 s").id
    assert await world.named(f"error_group:{group}") == {"big"}
    assert await world.named(f"-error_group:{group} state:dead") == set()
    wanted = listing.Filter(schedule_nos=frozenset({9}))
    step = await listing.step(world.queue.db, await world.queue.tenant_no(), wanted, below=listing.NEWEST, limit=9)
    assert [row.id for row in step.rows] == [ids["late"]]
    wanted = listing.Filter(not_schedule_nos=frozenset({9}))
    step = await listing.step(world.queue.db, await world.queue.tenant_no(), wanted, below=listing.NEWEST, limit=9)
    assert len(step.rows) == 4


async def test_a_token_of_some_topics_sees_those_only_and_another_tenant_nothing(world: World) -> None:
    assert await world.named("", topics=TopicSet.of("sms")) == {"late", "gone"}
    assert await world.named("topic:mail*", topics=TopicSet.of("sms")) == set()
    other = Queue(world.queue.db, tenant="other")
    assert await found(other, "") == []
    assert await found(other, f"id:{world.names['old']}") == []
    assert await found(other, "key:order-7") == []
    assert await found(other, "unique:user-1") == []


async def test_relative_times_stay_put_from_page_to_page(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    ids = await queue.add(5)
    tenant = await queue.tenant_no()
    first = await matching.list_matching(queue.db, queue.names, tenant, parse("created:>1h"), limit=2)
    await clock.advance(hours=2)
    second = await matching.list_matching(
        queue.db, queue.names, tenant, parse("created:>1h"), limit=5, cursor=first.cursor
    )
    assert [job.id for job in [*first.jobs, *second.jobs]] == ids[::-1]
    assert await found(queue, "created:>1h") == []
    for cursor in ("x", first.cursor + "x", "." + first.cursor, "zz.zz", first.cursor.replace(".", "")):
        with pytest.raises(InvalidInput, match="cursor"):
            await matching.list_matching(queue.db, queue.names, tenant, parse("created:>1h"), cursor=cursor)
    with pytest.raises(InvalidInput, match="cursor"):
        await matching.list_matching(queue.db, queue.names, tenant, parse("created:>2h"), cursor=first.cursor)


async def test_payloads_are_looked_into_within_bounds(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page reads so many and continues by its cursor; a payload over its limit matches neither way."""
    monkeypatch.setattr(listing, "BODIES_AT_ONCE", 3)
    monkeypatch.setattr(listing, "BODIES_AT_MOST", 6)
    wanted = await queue.add(1, payload=b'{"a": 1}')
    await queue.add(20, payload=b'{"a": 2}')
    wanted += await queue.add(1, payload=b'{"a": 1}')
    await queue.add(1, payload=json.dumps({"a": 1, "pad": "x" * 70_000}).encode())
    page = await matching.list_matching(queue.db, queue.names, await queue.tenant_no(), parse("args.a:1"))
    assert ([job.id for job in page.jobs], bool(page.cursor)) == (wanted[1:], True)
    assert await found(queue, "args.a:1") == wanted
    assert await found(queue, "args.a:1", limit=1, oldest=True) == wanted
    assert len(await found(queue, "-args.a:1")) == 20


async def test_a_count_is_exact_to_its_bound_and_says_when_it_is_not(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await queue.add(30, tags=["red"])
    await queue.add(20, "sms")

    async def counted(text: str, up_to: int = 100) -> tuple[int, bool]:
        wanted = await matching.compiled(queue.db, tenant, parse(text), as_of=await clock(queue.db))
        answer = await matching.count_matching(queue.db, tenant, wanted, up_to=up_to)
        return answer.total, answer.exact

    assert await counted("") == (50, True)
    assert await counted("topic:sms state:pending", 1) == (20, True)  # the rollups know
    assert await counted("tag:red") == (30, True)
    assert await counted("tag:red", 10) == (10, False)
    assert await counted("tag:red", 30) == (30, True)
    assert await counted("topic:none") == (0, True)


# --- dead letters -----------------------------------------------------------------------------------------------------


async def groups(queue: Queue, *, topics: TopicSet | None = None, limit: int = 100) -> DeadGroups:
    return await dead_letters.dead_groups(queue.db, queue.names, await queue.tenant_no(), topics=topics, limit=limit)


async def test_dead_letters_are_grouped_by_topic_and_kind_of_error(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    tenant, begin = await queue.tenant_no(), clock.now
    for n in range(4):
        await queue.add(1, "mail")
        await queue.add(1, "sms")
        claimed = await queue.claim(2, "mail", "sms")
        said = [failing("TimeoutError", f"no answer in {n} s") if n < 3 else failing("KeyError", "'x'")] * 2
        await queue.settle(*((i, 1, one) for i, one in zip(claimed.ids, said, strict=True)))
        await clock.advance(minutes=1)
    cancelled = await queue.add(2, "mail")
    await verbs.cancel(queue.db, tenant, cancelled)
    seen = await groups(queue)
    assert [(one.topic, one.title, one.count) for one in seen.groups] == [
        ("mail", "TimeoutError: no answer in # s", 3),
        ("sms", "TimeoutError: no answer in # s", 3),
        ("mail", "KeyError: '…'", 1),
        ("sms", "KeyError: '…'", 1),
    ]
    first = seen.groups[0]
    assert (first.first_at, first.last_at) == (begin, begin + timedelta(minutes=2))
    assert first.sample_error == "TimeoutError: no answer in 2 s"
    assert (seen.looked_at, seen.exact) == (10, True)
    assert first.sample_id in await found(queue, f"state:dead topic:mail error_group:{first.group}")
    assert len(await found(queue, f"state:dead topic:mail error_group:{first.group}")) == 3
    assert {one.topic for one in (await groups(queue, topics=TopicSet.of("sms"))).groups} == {"sms"}
    assert (await groups(Queue(queue.db, tenant="other"))).groups == []
    assert not (await groups(queue, limit=1)).exact


async def test_groups_are_made_of_the_newest_and_say_so(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "DEAD_LOOK_AT", 5)
    await queue.add(8)
    claimed = await queue.claim(8)
    await queue.settle(*((job_id, 1, failing("E", "x")) for job_id in claimed.ids))
    seen = await groups(queue)
    assert (seen.looked_at, seen.exact) == (5, False)


# --- what a page costs ------------------------------------------------------------------------------------------------

FILL = """
INSERT INTO headgate.archive (id, created_at, run_at, finished_at, tenant_no, topic_no, priority, attempt, max_attempts,
                              epoch, policy_no, state, flags, last_error, payload)
SELECT encode(substring(int8send(1700000000000 + n) FROM 3) || '\\x70008000000000000001'::bytea, 'hex')::uuid,
       now() - interval '1 day', now() - interval '1 day',
       now() - CASE WHEN n % 2 = 0 THEN interval '1 day' ELSE '0' END,
       $1, $2, 0, 1, 20, 1, 1, CASE WHEN n % 500 = 0 THEN 6 ELSE 5 END, 0, 'E: ' || n, ''
  FROM generate_series(1, 60000) AS n"""


async def test_no_page_reads_the_whole_archive(queue: Queue, database: str) -> None:
    """60,000 finished jobs of two days: a page looks at no more than LOOK_AT ids, and common ones at few."""
    tenant, topic = await queue.tenant_no(), (await queue.topic()).no
    await queue.db.execute("SELECT headgate.ensure_partitions_v1(1)")
    await queue.db.execute(FILL, tenant, topic)
    (one,) = await queue.add(1, tags=["red"], key="k")
    await queue.db.execute(UNIQUE, tenant, one, "u", True)
    await queue.db.execute(
        "INSERT INTO headgate.unique_jobs (tenant_no, job_id, topic_no, key, live)"
        " SELECT a.tenant_no, a.id, a.topic_no, 'another', false FROM headgate.archive a LIMIT 5000"
    )

    async def touched(text: str, mode: str, *, oldest: bool) -> tuple[int, int]:
        link = await connect(database, application_name="reader")
        async with link.transaction():
            await link.execute("SET LOCAL max_parallel_workers_per_gather = 0")
            await link.execute(f"SET LOCAL plan_cache_mode = {mode}")
            if text == "dead groups":
                await dead_letters.dead_groups(link, queue.names, tenant)
                page = JobPage(jobs=[], cursor="", read_at=EPOCH)
            else:
                page = await matching.list_matching(link, queue.names, tenant, parse(text), limit=20, oldest=oldest)
            rows: int = await link.fetchval(
                "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_catalog.pg_stat_xact_all_tables"
                " WHERE schemaname = 'headgate'"
            )
        await link.close()
        return len(page.jobs), rows

    for mode, oldest in (("force_custom_plan", False), ("force_generic_plan", False), ("force_generic_plan", True)):
        for text, jobs, bound in (
            ("dead groups", 0, 1_500),
            ("", 20, 300),
            ("state:dead", 20, 1_500),
            ("state:dead error:none", 0, 1_500),
            ("state:dead finished:>2h", 0, 1_500),
            ("tag:red", 1, 100),
            ("key:k", 1, 100),
            ("unique:u", 1, 100),
            ("state:pending", 1, 100),
            ("state:running", 0, 100),
            ("state:completed topic:mail", 20, 3_000),
            ("created:>2h", 1, 2 * listing.LOOK_AT + 3_000),
            ("topic:mail priority:>0", 0, 2 * listing.LOOK_AT + 3_000),
            ("error:none", 0, 2 * listing.LOOK_AT + 3_000),
            ("args.a:1", 0, 3 * listing.LOOK_AT),
        ):
            seen, rows = await touched(text, mode, oldest=oldest)
            assert rows <= bound, (mode, oldest, text, rows)
            assert seen == jobs or oldest, (mode, text, seen)  # what is newest comes on a later page then
    for text, partial in (("error:none", True), ("tag:red", False), ("", False)):
        page = await matching.list_matching(queue.db, queue.names, tenant, parse(text), limit=20)
        assert page.partial == partial, text


# --- strangers' filters -----------------------------------------------------------------------------------------------


async def test_loops_over_topics_rows_and_groups_give_others_their_turn(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "SLICE_SECONDS", 0.0)
    tenant = await queue.tenant_no()
    for n in range(100):
        await queue.topic(f"t{n}")
    await queue.add(100, payload=b'{"a":1}')
    claimed = await queue.claim(100)
    await queue.settle(*((job_id, 1, failing("E", f"x{n}")) for n, job_id in enumerate(claimed.ids)))
    async with counted_turns() as turns:
        assert len(await matching.topic_nos(queue.db, tenant, parse("topic:t*").terms, None)) == 100
        assert turns.number >= 100
        begin = turns.number
        assert len(await found(queue, "args.a:1", limit=1_000)) == 100
        assert turns.number - begin >= 100
        begin = turns.number
        assert sum(one.count for one in (await groups(queue)).groups) == 100
        assert turns.number - begin >= 100


async def test_a_list_and_a_count_end_in_time_and_can_be_gone_on_with(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for the same connection: what is too slow gives a short page, or "at least so many"."""
    await queue.add(8)
    monkeypatch.setattr(listing, "CHUNK", 2)
    monkeypatch.setattr(listing, "STEP_SECONDS", 0.0)
    tenant = await queue.tenant_no()
    short = await matching.list_matching(queue.db, queue.names, tenant, parse("priority:>0"), limit=2)
    assert (short.jobs, short.cursor != "") == ([], True)
    assert len(await found(queue, "priority:>=0", limit=2)) == 8
    monkeypatch.setattr(matching, "COUNT_SECONDS", 0.0)
    wanted = await matching.compiled(queue.db, tenant, parse("priority:0"), as_of=await clock(queue.db))
    assert not (await matching.count_matching(queue.db, tenant, wanted)).exact


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("worker:w%1", set()),
        ("worker:w_1", set()),
        (r'worker:"w\\1"', {"odd"}),
        ("worker:w*1", {"odd", "plain"}),
        ("-worker:w-1,x* state:dead", {"odd"}),
        ("error:100%", {"plain"}),
        ("error:1_0", set()),
        ('error:"É (a|b)+"', {"odd"}),
        ("error:(*)+ error:É", {"odd"}),
        ("error:none,É", {"odd"}),
        ("error:E error:none", set()),
        ("-error:É,none state:dead", {"plain"}),
        ("error:.", set()),
    ],
)
async def test_patterns_mean_their_characters_and_only_a_star_is_a_wildcard(
    queue: Queue, text: str, names: set[str]
) -> None:
    ids = {}
    for name, worker, message in (("odd", "w\\1", "é (A|b)+"), ("plain", "w-1", "100% of it")):
        (ids[name],) = await queue.add(1)
        claimed = await queue.claim(1, workers=(worker,))
        await queue.settle((ids[name], claimed.epochs[0], failing("E", message)))
    assert set(await found(queue, text)) == {ids[name] for name in names}
