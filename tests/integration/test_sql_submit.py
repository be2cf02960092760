"""`headgate.submit` in a caller's own transaction: the same job, the same limits, and nothing beyond its grant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import HeadgateError
from headgate.domain.ids import JobId, TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.rank import rank_of
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.timestamps import unix_us
from headgate.domain.validation import to_ms
from headgate.store import reads
from headgate.store.connect import Connection, connect
from tests.support.queue import Clock, Queue, new_id
from tests.support.store_calls import Submitted

CREATED, DUPLICATE, CONFLICT = SubmitReceipt.CREATED, SubmitReceipt.DUPLICATE, SubmitReceipt.CONFLICT
HOUR, DAY, MICRO = timedelta(hours=1), timedelta(days=1), timedelta(microseconds=1)
FATAL = Failed(error=ErrorInfo(type="Fatal"), permanent=True)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def finish(queue: Queue, *job_ids: UUID, how: Completed | Failed | None = None) -> None:
    """Claim everything on the topic, and end these jobs."""
    claimed = await queue.claim(5_000)
    epochs = dict(zip(claimed.ids, claimed.epochs, strict=True))
    await queue.settle(*((job_id, epochs[job_id], how or Completed()) for job_id in job_ids))


async def together(database: str, calls: list[Callable[[Connection], Coroutine[Any, Any, Any]]]) -> list[Any]:
    """Run all calls at the same moment, each on a connection of its own."""
    async with AsyncExitStack() as stack:
        links = [await connect(database, application_name="together") for _ in calls]
        for link in links:
            stack.push_async_callback(link.close)
        return await asyncio.gather(*(call(link) for call, link in zip(calls, links, strict=True)))


CASTS = {
    "topic": "text",
    "payload": "bytea",
    "tenant": "text",
    "priority": "int",
    "delay": "interval",
    "key": "text",
    "run_at": "timestamptz",
    "max_attempts": "int",
    "key_window": "interval",
    "id": "uuid",
    "headers": "jsonb",
    "tags": "text[]",
    "unique_key": "text",
    "on_conflict": "text",
    "debounce_max": "interval",
    "depends_on": "uuid[]",
    "needs": "text",
    "on_parent_failure": "text",
    "batch": "uuid",
    "retry": "jsonb",
    "limit_key": "text",
}
FUNCTION = (
    "headgate.submit(text, {}, text, int, interval, timestamptz, int, text, interval, uuid, jsonb, text[], text, "
    "timestamptz, text, text, interval, uuid[], text, text, uuid, jsonb)"
)


async def sql_submit(db: Connection, *, payload_type: str = "bytea", **options: Any) -> UUID:
    """Call the function with named arguments, as an application would."""
    values: dict[str, Any] = {"topic": "mail", "payload": b"x"} | options
    casts = CASTS | {"payload": payload_type}
    arguments = ", ".join(f"{name} => ${n}::{casts[name]}" for n, name in enumerate(values, 1))
    made: UUID = await db.fetchval(f"SELECT headgate.submit({arguments})", *values.values())
    return made


async def test_a_sql_submit_is_there_if_and_only_if_its_transaction_commits(db: Connection, database: str) -> None:
    queue = Queue(db, tenant="default")
    await db.execute("CREATE TABLE public.orders (no int)")
    for rolled_back in (False, True):
        transaction = db.transaction()
        await transaction.start()
        await db.execute("INSERT INTO public.orders VALUES (1)")
        job_id = await sql_submit(db, payload=b"order", key=f"order-{rolled_back}", tags=["new"])
        (elsewhere,) = await together(database, [lambda link: link.fetchval("SELECT count(*) FROM headgate.jobs")])
        assert elsewhere == (1 if rolled_back else 0)  # what this transaction did is not seen yet
        await (transaction.rollback() if rolled_back else transaction.commit())
        found = await db.fetchval("SELECT count(*) FROM headgate.jobs WHERE id = $1", job_id)
        assert found == (0 if rolled_back else 1)
    assert await db.fetchval("SELECT count(*) FROM public.orders") == 1
    assert await db.fetchval("SELECT count(*) FROM headgate.idempotency_keys") == 1
    counts = await reads.counts(db, await queue.tenant_no())
    assert counts == {(await queue.topic()).no: {State.PENDING: 1}}
    assert len((await queue.claim()).ids) == 1


async def test_a_sql_submit_makes_the_same_job_as_the_store(db: Connection) -> None:
    clock = await Clock.install(db)
    queue = Queue(db)
    await queue.topic()
    policy_no = await queue.names.policy_no(db, await queue.tenant_no(), RetryPolicy.fixed(timedelta(seconds=3)))
    await db.execute("UPDATE headgate.topics SET max_attempts = 7, policy_no = $1", policy_no)
    await queue.names.refresh(db)
    columns = await db.fetchval(
        "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_catalog.pg_attribute"
        " WHERE attrelid = 'headgate.jobs'::regclass AND attnum > 0 AND attname NOT IN ('id', 'rank_at', 'epoch')"
    )
    for options in (
        {},
        {"payload": b""},
        {"payload": b"\x00\xff" * 2_000},
        {"priority": limits.PRIORITY_MIN},
        {"priority": limits.PRIORITY_MAX, "max_attempts": 2},
        {"delay": HOUR},
        {"delay": timedelta(microseconds=1)},
        {"run_at": clock.now - DAY},
        {"run_at": clock.now + DAY, "tags": ["a", "b", "a"]},
        {"headers": {"trace": "ü", "empty": ""}},
    ):
        (of_store,) = (answer.id for answer in await queue.submit(queue.job(**{"payload": b"x"} | options)))
        texts = {**options, "headers": json.dumps(options["headers"])} if "headers" in options else options
        of_sql = await sql_submit(db, tenant="acme", **texts)
        rows = [await db.fetchrow(f"SELECT {columns} FROM headgate.jobs WHERE id = $1", i) for i in (of_store, of_sql)]
        assert rows[0] == rows[1]
        tenant = await queue.tenant_no()
        assert await reads.payload(db, tenant, JobId(of_sql)) == options.get("payload", b"x")
        tags = [
            await db.fetchval("SELECT array_agg(tag ORDER BY tag) FROM headgate.job_tags WHERE job_id = $1", job_id)
            for job_id in (of_store, of_sql)
        ]
        assert tags[0] == tags[1]


async def test_an_id_made_by_sql_is_of_version_7_with_the_time_of_the_submit(db: Connection) -> None:
    clock = await Clock.install(db)
    made = [await sql_submit(db) for _ in range(20)]
    assert len(set(made)) == 20
    for job_id in made:
        assert (job_id.version, job_id.variant) == (7, "specified in RFC 4122")
        assert abs((job_id.int >> 80) - clock.now.timestamp() * 1_000) <= 1


async def test_a_json_payload_is_its_text(db: Connection) -> None:
    queue = Queue(db, tenant="default")
    job_id = await db.fetchval(
        """SELECT headgate.submit('mail', '{"to": "ü@b.example", "n": 1}'::jsonb, priority => 10)"""
    )
    claimed = await queue.claim()
    assert claimed.ids == (job_id,)
    assert claimed.priorities == (10,)
    assert json.loads(claimed.payloads[0]) == {"to": "ü@b.example", "n": 1}
    with pytest.raises(asyncpg.InvalidParameterValueError, match="payload: is missing"):
        await db.fetchval("SELECT headgate.submit('mail', NULL::jsonb)")


async def test_a_sql_submit_with_a_key_or_an_id_is_the_same_job_again(db: Connection) -> None:
    clock = await Clock.install(db)
    queue = Queue(db, tenant="default")
    first = await sql_submit(db, key="k", payload=b"a", key_window=HOUR)
    assert await sql_submit(db, key="k", payload=b"a") == first
    with pytest.raises(asyncpg.UniqueViolationError, match=f"key: job {first} was submitted before") as caught:
        await sql_submit(db, key="k", payload=b"b")
    assert caught.value.hint == "headgate code: conflict"
    assert await sql_submit(db, key="k", payload=b"a", topic="letters") != first  # keys are their topic's
    # The store and the function agree on what the same body is.
    assert await queue.submit(queue.job(key="k", payload=b"a")) == [Submitted(id=JobId(first), receipt=DUPLICATE)]
    await clock.advance(hours=1)
    assert await sql_submit(db, key="k", payload=b"b") != first
    mine = new_id()
    assert await sql_submit(db, id=mine) == mine
    assert await sql_submit(db, id=mine) == mine
    with pytest.raises(asyncpg.UniqueViolationError, match=f"id: job {mine} was submitted before"):
        await sql_submit(db, id=mine, payload=b"other")
    await finish(queue, mine)
    assert await sql_submit(db, id=mine) == mine
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs WHERE id = $1", mine) == 0


async def test_a_sql_submit_to_an_ageing_topic_has_its_rank(db: Connection) -> None:
    clock = await Clock.install(db)
    queue = Queue(db, tenant="default")
    await queue.topic()
    await db.execute("UPDATE headgate.topics SET ageing_step_us = 3600000000")
    for priority in (0, 10, limits.PRIORITY_MIN, limits.PRIORITY_MAX):
        job_id = await sql_submit(db, priority=priority)
        job = await reads.get(db, await queue.tenant_no(), JobId(job_id))
        rank_class, offset = rank_of(priority, HOUR)
        assert (job.rank_class, job.rank_at) == (rank_class, unix_us(clock.now) + 1 + offset)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"topic": topic}, "topic: must be 1 to 200 characters")
        for topic in (None, "", "-a", "a b", "a..b", "a//b", "ü", "a\n")
    ),
    *(
        ({"tenant": tenant}, "tenant: must be 1 to 63 characters")
        for tenant in (None, "", "Acme", "-a", "a.b", "a\n", "x" * 64)
    ),
    ({"payload": None}, "payload: is missing"),
    ({"payload": b"x" * (2**20 + 1)}, "payload: 1048577 bytes is over the limit of 1048576 bytes"),
    ({"delay": HOUR, "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "delay: give either delay or run_at, not both"),
    ({"delay": -MICRO * 1_000}, "delay: must be between 0 and 1825 days"),
    ({"run_at": datetime(1999, 12, 31, tzinfo=UTC)}, "run_at: must be between 2000-01-01 and 1825 days from now"),
    ({"run_at": datetime.max}, "run_at: must be between"),  # noqa: DTZ901 - the driver's infinity
    ({"run_at": datetime.min}, "run_at: must be between"),  # noqa: DTZ901
    *(({"max_attempts": attempts}, "max_attempts: must be between 1 and 10000") for attempts in (0, -1, 10_001)),
    *(({"key": key}, "key: must be 1 to 255 characters") for key in ("", "x" * 256, "a\nb", "a\u202eb")),
    *(
        ({"key_window": span}, "key_window: must be between 1 second and 365 days")
        for span in (None, timedelta(0), 366 * DAY)
    ),
    *(({"id": bad}, "id: must be a UUID of version 7 or 8") for bad in (uuid4(), UUID(int=0), UUID(int=2**128 - 1))),
    ({"id": UUID("01900000-0000-7000-0000-000000000000")}, "id: must be a UUID of version 7 or 8"),  # another variant
    *(
        ({"tags": tags}, "tags: at most 20, each of 1 to 100 characters")
        for tags in (["x"] * 21, [""], [None], ["a\tb"])
    ),
    *(
        ({"headers": headers}, "headers: must be a JSON object of at most 32 texts")
        for headers in (
            "[]",
            "null",
            "1",
            '"a"',
            '{"a": 1}',
            '{"a": null}',
            '{"a": {}}',
            '{"a b": ""}',
            '{"": ""}',
            '{"a": "\\n"}',
        )
    ),
]


async def test_every_mistake_in_a_sql_submit_is_named(db: Connection) -> None:
    for options, says in REFUSALS:
        with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
            await sql_submit(db, **options)
        assert str(caught.value).startswith(says), options
        assert caught.value.hint == "headgate code: invalid_input"
    for table in ("jobs", "tenants", "topics", "idempotency_keys", "job_tags", "payloads", "resent_ids", "flow_deltas"):
        assert await db.fetchval(f"SELECT count(*) FROM headgate.{table}") == 0, table


async def test_spans_with_months_are_measured_as_they_will_be_counted(db: Connection) -> None:
    """PostgreSQL compares with months of 30 days and counts with years of 365.25: five of them are over the limit."""
    for delay in ("5 years", "1826 days", "43801 hours", "1825 days 1 second"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="delay: must be"):
            await db.fetchval(f"SELECT headgate.submit('mail', ''::bytea, delay => '{delay}')")
    for window in ("1 year", "366 days"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="key_window: must be"):
            await db.fetchval(f"SELECT headgate.submit('mail', ''::bytea, key => 'k', key_window => '{window}')")
    if db.get_server_version().major >= 17:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="delay: must be"):
            await db.fetchval("SELECT headgate.submit('mail', ''::bytea, delay => 'infinity')")
    await db.fetchval("SELECT headgate.submit('mail', ''::bytea, delay => '59 months')")


async def test_missing_tags_and_tags_of_two_dimensions_are_as_good_as_any(db: Connection) -> None:
    assert await sql_submit(db, tags=None)
    assert await sql_submit(db, tags=[["a", "b"], ["c", "d"]])
    assert await db.fetchval("SELECT count(*) FROM headgate.job_tags") == 4


def probes(now: datetime) -> list[tuple[dict[str, Any], bool]]:
    """Values at and just past each limit of domain/limits.py, and whether they are to be accepted."""
    ms = timedelta(milliseconds=1)
    longest = limits.DELAY_MAX_MS * ms
    total = limits.HEADERS_TOTAL_MAX_BYTES
    many = {f"h{n:02}": "" for n in range(limits.HEADERS_MAX)}
    pairs: list[tuple[str, Any, Any]] = [
        ("topic", "t" * limits.TOPIC_MAX_CHARS, "t" * (limits.TOPIC_MAX_CHARS + 1)),
        ("topic", "A9._:/-z", ".a"),
        ("tenant", "t" * limits.TENANT_MAX_CHARS, "t" * (limits.TENANT_MAX_CHARS + 1)),
        ("tenant", "9-a", "a_b"),
        ("payload", b"x" * limits.PAYLOAD_MAX_BYTES, b"x" * (limits.PAYLOAD_MAX_BYTES + 1)),
        ("delay", timedelta(0), -ms),
        ("delay", longest, longest + ms),
        ("run_at", limits.RUN_AT_EARLIEST, limits.RUN_AT_EARLIEST - MICRO),
        ("run_at", now + longest, now + longest + MICRO),
        ("max_attempts", 1, 0),
        ("max_attempts", limits.MAX_ATTEMPTS_LIMIT, limits.MAX_ATTEMPTS_LIMIT + 1),
        ("key", "k" * limits.KEY_MAX_CHARS, "k" * (limits.KEY_MAX_CHARS + 1)),
        ("key", "🦆" * limits.KEY_MAX_CHARS, "🦆" * (limits.KEY_MAX_CHARS + 1)),
        ("key_window", limits.KEY_WINDOW_MIN, limits.KEY_WINDOW_MIN - ms),
        ("key_window", limits.KEY_WINDOW_MAX, limits.KEY_WINDOW_MAX + ms),
        ("tags", [f"t{n}" for n in range(limits.TAGS_MAX)], [f"t{n}" for n in range(limits.TAGS_MAX + 1)]),
        ("tags", ["ü" * limits.TAG_MAX_CHARS], ["ü" * (limits.TAG_MAX_CHARS + 1)]),
        ("headers", many, many | {"one-more": ""}),
        ("headers", {"h" * limits.HEADER_NAME_MAX_CHARS: ""}, {"h" * (limits.HEADER_NAME_MAX_CHARS + 1): ""}),
        ("headers", {"h": "x" * (total - 1)}, {"h": "x" * total}),
        ("headers", {"h": "ü" * (total // 2 - 1) + "x"}, {"h": "ü" * (total // 2)}),
        ("headers", {"A9._:/-z": ""}, {".a": ""}),
        ("id", new_id(), uuid4()),
        # Every character that may not stand in a text, and its neighbours that may.
        *(
            ("key", f"a{fit}b", f"a{unfit}b")
            for fit, unfit in zip(" ~\u00a0\u061b\u200d\u2027\u202f\u2065\u206a", UNFIT, strict=True)
        ),
        *(("tags", ["a\u200db"], [f"a{unfit}b"]) for unfit in UNFIT),
        *(("headers", {"h": "a\u200db"}, {"h": f"a{unfit}b"}) for unfit in UNFIT),
    ]
    accepted = [({name: good}, True) for name, good, _ in pairs]
    return accepted + [({name: bad}, False) for name, _, bad in pairs]


UNFIT = "\x1f\x7f\x9f\u061c\u200f\u2028\u202e\u2066\u2069"


async def test_the_limits_of_the_sql_function_are_those_of_the_domain(db: Connection) -> None:
    clock = await Clock.install(db)
    for options, expected in probes(clock.now):
        key = {"key": "k"} if "key_window" in options else {}
        try:
            values = {"tenant": TenantName("acme"), "topic": TopicName("mail"), "id": new_id()} | key | options
            Submission(**values).due_at(clock.now)
            domain = True
        except HeadgateError:
            domain = False
        transaction = db.transaction()
        await transaction.start()
        try:
            texts = {name: json.dumps(value) if name == "headers" else value for name, value in options.items()}
            await sql_submit(db, **key, **texts)
            sql = True
        except asyncpg.InvalidParameterValueError:
            sql = False
        await transaction.rollback()
        assert (domain, sql) == (expected, expected), str(options)[:200]


async def test_waits_are_rounded_up_as_in_the_domain(db: Connection) -> None:
    clock = await Clock.install(db)
    queue = Queue(db, tenant="default")
    for delay in (MICRO, timedelta(microseconds=999), timedelta(microseconds=1_001), timedelta(seconds=1)):
        job = await reads.get(db, await queue.tenant_no(), JobId(await sql_submit(db, delay=delay)))
        assert job.run_at == clock.now + to_ms(delay) * timedelta(milliseconds=1)


@pytest.fixture
async def app(db: Connection) -> AsyncIterator[str]:
    """A role that may do nothing at all."""
    name: str = await db.fetchval("SELECT 'app_of_' || current_database()")
    await db.execute(f"CREATE ROLE {name}")
    yield name
    await db.execute("RESET ROLE; RESET search_path")
    await db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_submitting_by_sql_needs_a_grant(db: Connection, app: str) -> None:
    for payload_type in ("bytea", "jsonb"):
        function = FUNCTION.format(payload_type)
        assert not await db.fetchval("SELECT has_function_privilege($1::name, $2, 'EXECUTE')", app, function)
    await db.execute(f"GRANT USAGE ON SCHEMA headgate TO {app}; SET ROLE {app}")
    for body in ("''::bytea", "'{}'::jsonb"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="function submit"):
            await db.fetchval(f"SELECT headgate.submit('mail', {body})")


async def test_a_role_with_only_this_function_can_submit_and_nothing_else(db: Connection, app: str) -> None:
    await db.execute(f"SELECT headgate.allow_submit('{app}', 'default'); SET ROLE {app}")
    made = [await sql_submit(db, key="k", tags=["t"], headers='{"a": "b"}', payload=b"x" * 2_000)]
    made.append(await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb)"))
    for statement in (
        "SELECT id FROM headgate.jobs",
        "DELETE FROM headgate.jobs",
        "SELECT key FROM headgate.idempotency_keys",
        "SELECT headgate.pause_v1(0, 0, '', '', NULL)",
        "SELECT headgate.intern_tenant_v1('mine')",
        "SELECT headgate.cancel_v1(1, '{}', '', '')",
        "SELECT headgate.fold_flows_v1(1)",
        "SELECT headgate.ensure_partitions_v1(300)",
        "SELECT headgate.retire_day_v1('archive_20000101', true)",
        "SELECT headgate.detach_day_v1('archive_20000101')",
        "SELECT headgate.grant_roles_v1()",
        f"SELECT headgate.allow_submit('{app}', 'other')",
        f"INSERT INTO headgate.role_tenants VALUES ('{app}', 'other')",
        "SELECT headgate.may_submit_v1('default')",
        "SELECT nextval('headgate.event_no')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await db.fetch(statement)
    await db.execute("RESET ROLE")
    assert set((await Queue(db, tenant="default").claim()).ids) == set(made)


TRAPS = """
CREATE FUNCTION evil.spring() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'hijacked'; END $$;
CREATE FUNCTION evil.octet_length(bytea) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.octet_length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.cardinality(anyarray) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.convert_to(text, name) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.same(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.same(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.sum_of(int, int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.same);
CREATE OPERATOR evil.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = evil.same);
CREATE OPERATOR evil.> (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.same);
CREATE OPERATOR evil.< (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.same);
CREATE OPERATOR evil.!~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
CREATE OPERATOR evil.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
CREATE OPERATOR evil.- (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.sum_of);
CREATE TEMPORARY TABLE jobs (id int);
CREATE TEMPORARY TABLE topics (name text);
CREATE TEMPORARY TABLE unnest (name text);
"""


async def test_a_hostile_search_path_is_not_looked_at(db: Connection, app: str) -> None:
    """The function runs with its owner's rights: whatever the caller could slip in would run with them too."""
    await db.execute(f"SELECT headgate.allow_submit('{app}', 'default'); CREATE SCHEMA evil AUTHORIZATION {app}")
    await db.execute(f"SET ROLE {app}")
    await db.execute(TRAPS)
    await db.execute("SET search_path = evil, pg_temp, pg_catalog; SET standard_conforming_strings = off")
    await db.execute("SET timezone = 'Asia/Tokyo'")
    for trap in ("octet_length(''::bytea)", "clock_timestamp()", "'a'::text = 'a'::text", "1 > 2"):
        with pytest.raises(asyncpg.RaiseError, match="hijacked"):  # the traps work
            await db.fetchval(f"SELECT {trap}")
    headers = json.dumps({"trace": "x"})
    options: dict[str, Any] = {"key": "k", "tags": ["t"], "headers": headers, "priority": 3, "delay": timedelta(0)}
    first = await sql_submit(db, payload=b"x" * 2_000, **options)
    assert await sql_submit(db, payload=b"x" * 2_000, **options) == first
    with pytest.raises(asyncpg.UniqueViolationError, match="another body"):
        await sql_submit(db, payload=b"y", **options)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="topic: must be"):
        await sql_submit(db, topic="a..b")
    second = await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb, id => $1)", new_id())
    await db.execute("RESET ROLE; RESET search_path; RESET standard_conforming_strings; SET search_path = ''")
    queue = Queue(db, tenant="default")
    claimed = await queue.claim()
    assert claimed.ids == (first, second)
    assert [answer.receipt.label for answer in await queue.settle(*((i, 1, Completed()) for i in claimed.ids))] == [
        "applied"
    ] * 2


async def test_what_sql_submitted_runs_to_its_end_like_any_other_job(db: Connection) -> None:
    queue = Queue(db, tenant="default")
    job_id = await sql_submit(db, payload=b"\x00\x01", max_attempts=1)
    (answer,) = await queue.submit(queue.job())
    claimed = await queue.claim()
    assert claimed.ids == (job_id, answer.id)
    assert claimed.payloads[0] == b"\x00\x01"
    (settled, _) = await queue.settle((job_id, 1, FATAL), (answer.id, 1, Completed()))
    assert settled.state is State.DEAD
    (settled,) = await queue.settle((job_id, 1, FATAL))
    assert settled.receipt.label == "duplicate"
