"""Days that come and go: partitions made ahead, and dropped with all that hangs on them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import asyncpg
import pytest

from headgate.domain.errors import NotFound, StoreError
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.states import Receipt, State
from headgate.store import leases, partitions, reads, upkeep, verbs
from headgate.store.connect import Connection
from headgate.store.partitions import ensure_partitions
from tests.support import store_calls
from tests.support.queue import Clock, Queue, links, new_id
from tests.support.store_calls import drop_expired
from tests.support.waiting import until_async

FATAL = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
SHORT = timedelta(milliseconds=50)
PARENTS = ("archive", "job_events")


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def days(db: Connection, parent: str) -> dict[str, tuple[datetime, datetime]]:
    """The partitions of a table with their bounds, as PostgreSQL has them."""
    rows = await db.fetch(
        """SELECT c.relname,
                  regexp_matches(pg_get_expr(c.relpartbound, c.oid), 'FROM \\(''(.*)''\\) TO \\(''(.*)''\\)')
             FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = $1::text::regclass ORDER BY 1""",
        f"headgate.{parent}",
    )
    return {name: (datetime.fromisoformat(low), datetime.fromisoformat(high)) for name, (low, high) in rows}


def names(parent: str, first: date, last: date) -> list[str]:
    return [f"{parent}_{first + n * DAY:%Y%m%d}" for n in range((last - first).days + 1)]


async def test_a_new_database_has_days_for_a_week_and_no_default_partition(db: Connection) -> None:
    today = datetime.now(UTC).date()
    for parent in PARENTS:
        found = await days(db, parent)
        # Midnight may pass between the migration and this line.
        assert list(found) in [names(parent, made - DAY, made + 7 * DAY) for made in (today, today - DAY)]
        assert (
            await db.fetchval(
                "SELECT partdefid FROM pg_catalog.pg_partitioned_table WHERE partrelid = $1::text::regclass",
                f"headgate.{parent}",
            )
            == 0
        )


async def test_days_are_made_ahead_once_and_by_the_clock_of_utc(db: Connection) -> None:
    clock = await Clock.install(db, datetime(2031, 3, 30, 23, 59, 59, 999_999, tzinfo=UTC))
    await db.execute("SET timezone = 'Pacific/Kiritimati'")  # where it has been the 31st for hours
    first, last = date(2031, 3, 29), date(2031, 4, 6)
    expected = names("archive", first, last) + names("job_events", first, last)
    assert await ensure_partitions(db) == expected
    assert await ensure_partitions(db) == []
    await db.execute("SET timezone = 'UTC'")
    for parent in PARENTS:
        bounds = await days(db, parent)
        for n, name in enumerate(names(parent, first, last)):
            midnight = datetime(2031, 3, 29, tzinfo=UTC) + n * DAY
            assert bounds[name] == (midnight, midnight + DAY)
    await clock.advance(microseconds=1)
    assert await ensure_partitions(db) == ["archive_20310407", "job_events_20310407"]
    assert await ensure_partitions(db, days_ahead=0) == []
    assert len(await ensure_partitions(db, days_ahead=30)) == 2 * (30 - 7)


async def test_partitions_have_what_their_parent_has(db: Connection) -> None:
    await Clock.install(db, datetime(2031, 1, 1, tzinfo=UTC))
    await ensure_partitions(db)
    shape = """
        SELECT (SELECT array_agg(format('%s %s %s %s', attname, atttypid, attnotnull, attstorage) ORDER BY attnum)
                  FROM pg_catalog.pg_attribute WHERE attrelid = t.oid AND attnum > 0),
               (SELECT array_agg(d.text ORDER BY d.text)
                  FROM (SELECT pg_get_constraintdef(oid) AS text FROM pg_catalog.pg_constraint
                         WHERE conrelid = t.oid AND contype IN ('c', 'p')) AS d),
               (SELECT count(*) FROM pg_catalog.pg_index WHERE indrelid = t.oid)
          FROM (SELECT $1::text::regclass AS oid) AS t"""
    for parent in PARENTS:
        whole, part = [await db.fetchrow(shape, f"headgate.{name}") for name in (parent, f"{parent}_20310101")]
        assert whole == part


async def test_four_that_make_days_at_once_make_each_once(db: Connection, database: str) -> None:
    await Clock.install(db, datetime(2031, 1, 1, tzinfo=UTC))
    async with links(database, 4) as some:
        made = await asyncio.gather(*(ensure_partitions(link) for link in some))
    expected = names("archive", date(2030, 12, 31), date(2031, 1, 8)) + names(
        "job_events", date(2030, 12, 31), date(2031, 1, 8)
    )
    assert sorted(name for part in made for name in part) == sorted(expected)


async def test_making_days_and_settling_do_not_wait_for_each_other(queue: Queue, database: str) -> None:
    jobs = await queue.add(3)
    await queue.claim()
    async with links(database, 1) as (maker,):
        await queue.db.execute("SET lock_timeout = '100ms'")
        await maker.execute("SET lock_timeout = '100ms'")
        making = maker.transaction()
        await making.start()
        assert len(await ensure_partitions(maker, days_ahead=20)) == 26
        # Not committed yet: a settle, a failure with its event, and a list go on.
        settled = await queue.settle((jobs[0], 1, Completed()), (jobs[1], 1, FATAL))
        assert [answer.receipt for answer in settled] == [Receipt.APPLIED] * 2
        assert len((await store_calls.list_jobs(queue.db, await queue.tenant_no())).rows) == 3
        await making.commit()
        settling = queue.db.transaction()
        await settling.start()
        await queue.settle((jobs[2], 1, Completed()))
        assert len(await ensure_partitions(maker, days_ahead=22)) == 4
        await settling.commit()


async def test_a_day_left_standing_by_an_interrupted_run_is_attached_with_its_rows(db: Connection) -> None:
    await Clock.install(db, datetime(2031, 1, 1, 12, tzinfo=UTC))
    await db.execute(
        """CREATE TABLE headgate.archive_20310101 (LIKE headgate.archive INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
           INSERT INTO headgate.archive_20310101 (id, created_at, run_at, finished_at, tenant_no, topic_no, priority,
                                                  attempt, max_attempts, epoch, policy_no, state, flags)
           VALUES (gen_random_uuid(), now(), now(), '2031-01-01 05:00+00', 1, 1, 0, 1, 1, 1, 1, 5, 0)"""
    )
    assert "archive_20310101" in await ensure_partitions(db)
    assert await db.fetchval("SELECT count(*) FROM headgate.archive WHERE finished_at >= '2031-01-01'") == 1


async def test_an_outcome_on_a_day_without_a_partition_is_not_lost(queue: Queue) -> None:
    """No one served for a month: the first settle, cancel, redrive and reap make the days they need."""
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    done, failed, cancelled, expired = await queue.add(4, max_attempts=1)
    claimed = await queue.claim(4)
    assert len(claimed) == 4
    for move in ("settle", "cancel", "redrive", "reap"):
        await clock.advance(days=30)
        match move:
            case "settle":
                answers = await queue.settle((done, 1, Completed()), (failed, 1, FATAL))
                assert [answer.receipt for answer in answers] == [Receipt.APPLIED] * 2
            case "cancel":
                assert (await verbs.cancel(queue.db, tenant, [cancelled]))[cancelled].changed
            case "redrive":
                assert set(await verbs.redrive(queue.db, tenant, [failed])) == {failed}
            case "reap":
                assert {job.id for job in await leases.reap(queue.db)} == {cancelled, expired}
    states = [(await reads.get(queue.db, tenant, job_id)).state for job_id in (done, failed, cancelled, expired)]
    assert states == [State.COMPLETED, State.PENDING, State.CANCELLED, State.DEAD]


SIDE_TABLES = {  # the column that names the job, and the flag of a job that has something there
    "payloads": ("id", 1),
    "job_tags": ("job_id", 2),
    "job_limit_keys": ("job_id", 4),
    "job_dependencies": ("parent_id", 32),
    "schedule_jobs": ("job_id", 64),
}


@dataclass
class Past:
    """Finished jobs on five days in a row, of two tenants, with all that can hang on a job."""

    clock: Clock
    first: date
    queues: tuple[Queue, Queue]
    finished: list[list[JobId]]  # by day; completed, dead and plain ones of both tenants
    live: list[JobId]

    def expired(self, keep_from: int, parents: tuple[str, ...] = PARENTS) -> list[str]:
        """The days before `first + keep_from`."""
        return [
            name for parent in parents for name in names(parent, self.first - DAY, self.first + (keep_from - 1) * DAY)
        ]


@pytest.fixture
async def past(db: Connection) -> Past:
    clock = await Clock.install(db, datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC) + 12 * HOUR)
    first = clock.now.date()
    queues = (Queue(db), Queue(db, tenant="umbrella"))
    finished: list[list[JobId]] = []
    for _ in range(5):
        await ensure_partitions(db)
        today: list[JobId] = []
        for queue in queues:
            rich = await queue.add(2, payload=b"l" * 3_000, tags=["red", "green"])
            await hang_on(queue, rich, 4, 32, 64)
            one_each = [*await queue.add(payload=b"l" * 3_000), *await queue.add(tags=["red"]), *await queue.add(3)]
            for flag, job_id in zip((4, 32, 64), one_each[2:], strict=True):
                await hang_on(queue, [job_id], flag)
            plain = await queue.add(3)
            claimed = await queue.claim(10)
            await queue.settle(*((i, 1, FATAL if n % 2 else Completed()) for n, i in enumerate(claimed.ids)))
            today += rich + one_each + plain
        finished.append(today)
        await clock.advance(days=1)
    live: list[JobId] = []
    for queue in queues:
        added = await queue.add(2, payload=b"l" * 3_000, tags=["red"])
        await hang_on(queue, added, 4, 32, 64)
        live += added
    await clock.set(datetime.combine(first, datetime.min.time(), UTC) + 10 * DAY + 12 * HOUR)
    await ensure_partitions(db)
    return Past(clock=clock, first=first, queues=queues, finished=finished, live=live)


async def hang_on(queue: Queue, jobs: list[JobId], *flags: int) -> None:
    """What limits (4), dependencies (32) and schedules (64) leave in the side tables."""
    tenant, topic = await queue.tenant_no(), (await queue.topic()).no
    await queue.db.execute(
        "UPDATE headgate.jobs SET flags = flags | $3 WHERE tenant_no = $1 AND id = ANY ($2)", tenant, jobs, sum(flags)
    )
    for job_id in jobs:
        if 4 in flags:
            await queue.db.execute(
                "INSERT INTO headgate.job_limit_keys VALUES ($1, $2, $3, 'k')", tenant, job_id, topic
            )
        if 32 in flags:
            await queue.db.execute(
                "INSERT INTO headgate.job_dependencies VALUES ($1, $2, $3, 0, 0, 1)", tenant, job_id, new_id()
            )
        if 64 in flags:
            await queue.db.execute(
                "INSERT INTO headgate.schedule_jobs SELECT $1, 1, clock_timestamp(), $2", tenant, job_id
            )


async def assert_forgotten(db: Connection, past: Past, keep_from: int) -> None:
    """Nothing is left of the days before, everything of those from `keep_from` on; the counts agree."""
    kept = {job_id for day in past.finished[keep_from:] for job_id in day}
    flags = dict(await db.fetch("SELECT id, flags FROM headgate.archive"))
    assert set(flags) == kept
    for table, (column, flag) in SIDE_TABLES.items():
        found = {row[0] for row in await db.fetch(f"SELECT {column} FROM headgate.{table}")}
        owners = {job_id for job_id in kept if flags[job_id] & flag}
        assert len(owners) == len(kept) * 3 // 10
        assert found == owners | set(past.live), table
    for queue in past.queues:
        tenant = await queue.tenant_no()
        for topic_no, states in (await reads.counts(db, tenant)).items():
            for state in State:
                counted = await db.fetchval(
                    "SELECT (SELECT count(*) FROM headgate.jobs WHERE (tenant_no, topic_no, state) = ($1, $2, $3))"
                    " + (SELECT count(*) FROM headgate.archive WHERE (tenant_no, topic_no, state) = ($1, $2, $3))",
                    tenant,
                    topic_no,
                    int(state),
                )
                assert states.get(state, 0) == counted
        claimed = await queue.claim()
        assert list(claimed.payloads) == [b"l" * 3_000] * 2
        await queue.settle(
            *((job_id, epoch, Completed()) for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True))
        )


@pytest.mark.req("O23")
async def test_expired_days_go_with_all_that_hangs_on_them(
    db: Connection, past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "CHUNK", 2)  # so that a day needs several
    while await upkeep.fold_flows(db):
        pass
    before = await db.fetchval("SHOW lock_timeout")
    assert sorted(await drop_expired(db, keep=7 * DAY)) == past.expired(3)
    for parent in PARENTS:
        assert list(await days(db, parent)) == names(parent, past.first + 3 * DAY, past.first + 17 * DAY)
    tenant = await past.queues[0].tenant_no()
    for day, jobs in enumerate(past.finished):
        for job_id in jobs[:10]:
            if day < 3:
                with pytest.raises(NotFound):
                    await reads.get(db, tenant, job_id)
                assert await reads.events(db, tenant, job_id) == []
            else:
                assert (await reads.get(db, tenant, job_id)).state.is_final
    assert await drop_expired(db, keep=7 * DAY) == []
    assert await db.fetchval("SHOW lock_timeout") == before
    await assert_forgotten(db, past, 3)


async def test_a_day_goes_when_its_last_moment_is_old_enough(db: Connection, past: Past) -> None:
    midnight = datetime.combine(past.first, datetime.min.time(), UTC)
    await drop_expired(db, keep=10 * DAY)  # the day before the first
    await past.clock.set(midnight + DAY + 7 * DAY - timedelta(microseconds=1))
    assert await drop_expired(db, keep=7 * DAY) == []
    await past.clock.advance(microseconds=1)
    assert await drop_expired(db, keep=7 * DAY) == past.expired(1)[1::2]


async def test_a_run_cut_off_after_the_detach_is_finished_by_the_next(db: Connection, past: Past) -> None:
    first = names("archive", past.first, past.first)[0]
    await db.execute(f"ALTER TABLE headgate.archive DETACH PARTITION headgate.{first} CONCURRENTLY")
    # … and in the middle of clearing.
    await db.fetch("SELECT headgate.retire_chunk_v1($1, 2, true)", past.first)
    assert sorted(await drop_expired(db, keep=7 * DAY)) == past.expired(3)
    await assert_forgotten(db, past, 3)


async def test_detached_jobs_cannot_be_redriven_while_they_are_cleared(db: Connection, past: Past) -> None:
    first = names("archive", past.first, past.first)[0]
    await db.execute(f"ALTER TABLE headgate.archive DETACH PARTITION headgate.{first} CONCURRENTLY")
    assert await verbs.redrive(db, await past.queues[0].tenant_no(), past.finished[0]) == {}


async def waits_for_a_lock(db: Connection, other: Connection) -> None:
    pid = other.get_server_pid()

    async def waits() -> bool:
        kind = await db.fetchval("SELECT wait_event_type FROM pg_catalog.pg_stat_activity WHERE pid = $1", pid)
        return bool(kind == "Lock")

    await until_async(waits, "the other connection waits for a lock")


async def test_a_reader_delays_the_drop_and_the_drop_delays_no_one(db: Connection, past: Past, database: str) -> None:
    queue = past.queues[0]
    tenant = await queue.tenant_no()
    async with links(database, 2) as (reader, dropper):
        reading = reader.transaction()
        await reading.start()
        await reader.fetch("SELECT count(*) FROM headgate.archive")
        dropping = asyncio.create_task(drop_expired(dropper, keep=7 * DAY, lock_wait=timedelta(seconds=60)))
        await waits_for_a_lock(db, dropper)
        # It waits; no one waits behind it.
        await db.execute("SET lock_timeout = '200ms'")
        claimed = await queue.claim(1)
        assert (await queue.settle((claimed.ids[0], claimed.epochs[0], FATAL)))[0].receipt is Receipt.APPLIED
        assert set(await verbs.redrive(db, tenant, claimed.ids)) == set(claimed.ids)
        assert len((await store_calls.list_jobs(db, tenant)).rows) > 0
        assert (await reads.get(db, tenant, past.finished[4][0])).state is State.COMPLETED
        assert await ensure_partitions(db, days_ahead=0) == []
        assert not dropping.done()
        await reading.commit()
        assert sorted(await dropping) == past.expired(3)


async def test_what_a_reader_holds_is_left_for_the_next_run(db: Connection, past: Past, database: str) -> None:
    async with links(database, 1) as (reader,):
        reading = reader.transaction()
        await reading.start()
        await reader.fetch("SELECT count(*) FROM headgate.archive")
        # The first detach is begun and stays pending; its neighbours cannot begin; the events are free.
        assert sorted(await drop_expired(db, keep=7 * DAY, lock_wait=SHORT)) == past.expired(3, ("job_events",))
        assert sorted(await drop_expired(db, keep=7 * DAY, lock_wait=SHORT)) == []
        pending = await db.fetchval("SELECT count(*) FROM pg_catalog.pg_inherits WHERE inhdetachpending")
        assert pending == 1
        await reading.commit()
    assert sorted(await drop_expired(db, keep=7 * DAY, lock_wait=SHORT)) == past.expired(3, ("archive",))
    await assert_forgotten(db, past, 3)


async def test_a_pending_detach_is_finished_before_older_days_are_begun(
    db: Connection, past: Past, database: str
) -> None:
    newer = names("archive", past.first + DAY, past.first + DAY)[0]
    async with links(database, 1) as (reader,):
        reading = reader.transaction()
        await reading.start()
        await reader.fetch("SELECT count(*) FROM headgate.archive")
        await db.execute("SET lock_timeout = '50ms'")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await db.execute(f"ALTER TABLE headgate.archive DETACH PARTITION headgate.{newer} CONCURRENTLY")
        await reading.commit()
    assert sorted(await drop_expired(db, keep=7 * DAY)) == past.expired(3)
    await assert_forgotten(db, past, 3)


async def test_four_runs_at_once_drop_each_day_once(db: Connection, past: Past, database: str) -> None:
    async with links(database, 4) as some:
        dropped = await asyncio.gather(*(drop_expired(link, keep=7 * DAY) for link in some))
    dropped.append(await drop_expired(db, keep=7 * DAY))  # whatever they kept each other from
    assert sorted(name for part in dropped for name in part) == past.expired(3)
    await assert_forgotten(db, past, 3)


async def test_a_day_that_another_run_drops_while_empty_days_are_looked_for_is_passed_over(
    db: Connection, past: Past, database: str
) -> None:
    (day, *_) = past.expired(3, ("archive",))
    events = f"job_events_{day[-8:]}"
    await db.execute(f"DROP TABLE headgate.{day}")  # then the day of events is looked at
    async with links(database, 2) as (dropper, looker):
        dropping = dropper.transaction()
        await dropping.start()
        await dropper.execute(f"DROP TABLE headgate.{events}")
        looking = asyncio.create_task(looker.fetch("SELECT name FROM headgate.empty_days_v1() AS name"))
        await waits_for_a_lock(db, looker)
        await dropping.commit()
        assert events not in {row[0] for row in await looking}


async def test_two_that_drop_the_same_detached_day_do_not_count_it_twice(
    db: Connection, past: Past, database: str
) -> None:
    """The day is detached, and both find it; one drops it, the other finds nothing and reports it."""
    for name in past.expired(3, ("archive",)):
        await db.execute(f"ALTER TABLE headgate.archive DETACH PARTITION headgate.{name} CONCURRENTLY")
    async with links(database, 5) as (holder, *some):
        holding = holder.transaction()
        await holding.start()
        for name in past.expired(3, ("archive",)):
            await holder.execute(f"LOCK TABLE headgate.{name} IN ACCESS SHARE MODE")
        runs = [asyncio.create_task(drop_expired(link, keep=7 * DAY, lock_wait=timedelta(seconds=30))) for link in some]
        pids = [link.get_server_pid() for link in some]

        async def all_ask_for_a_day() -> bool:
            # Before that each clears what belongs to the day, and may wait for a row of another one at that.
            waiting, asking = await db.fetchrow(
                "SELECT count(DISTINCT pid), count(DISTINCT pid) FILTER (WHERE locktype = 'relation'"
                " AND mode = 'AccessExclusiveLock') FROM pg_catalog.pg_locks WHERE NOT granted AND pid = ANY ($1)",
                pids,
            )
            return bool(waiting == len(pids) and asking >= 2)

        await until_async(all_ask_for_a_day, "all of them wait for the day")
        # None of them holds what another waits for: each asked for the whole lock before it looked.
        held = await db.fetchval(
            "SELECT count(*) FROM pg_catalog.pg_locks WHERE granted AND pid = ANY ($1) AND relation IN"
            " (SELECT oid FROM pg_catalog.pg_class WHERE relname = ANY ($2))",
            pids,
            past.expired(3, ("archive",)),
        )
        assert held == 0
        await holding.commit()
        dropped = await asyncio.gather(*runs)
    dropped.append(await drop_expired(db, keep=7 * DAY))  # what all of them left for the next run, if anything
    assert sorted(name for part in dropped for name in part) == past.expired(3)
    await assert_forgotten(db, past, 3)


async def test_tables_with_other_names_are_left_alone(db: Connection, past: Past) -> None:
    """An operator's copy of a day, or a partition attached manually, is no one's to drop."""
    await db.execute(
        """CREATE TABLE headgate.archive_old (LIKE headgate.archive INCLUDING CONSTRAINTS);
           CREATE TABLE headgate.archive_20200101_copy (id int);
           CREATE TABLE headgate.archive_99999999 (id int);
           ALTER TABLE headgate.archive ATTACH PARTITION headgate.archive_old
               FOR VALUES FROM ('2019-01-01') TO ('2020-01-01')"""
    )
    assert sorted(await drop_expired(db, keep=7 * DAY)) == past.expired(3)
    assert await db.fetchval("SELECT count(*) FROM pg_catalog.pg_class WHERE relname LIKE 'archive_old'") == 1
    for name in ("jobs", "archive", "archive_2020010", "archive_20200101_copy", "x'; DROP TABLE headgate.jobs; --"):
        with pytest.raises(asyncpg.RaiseError, match="not a day"):
            await db.fetch("SELECT headgate.retire_day_v1($1, true)", name)


async def test_dropping_inside_a_transaction_is_an_error_and_nothing_is_dropped(db: Connection, past: Past) -> None:
    transaction = db.transaction()
    await transaction.start()
    with pytest.raises(StoreError):
        await drop_expired(db, keep=7 * DAY)
    await transaction.rollback()
    assert await db.fetchval("SHOW lock_timeout") == "10s"
    assert sorted(await drop_expired(db, keep=7 * DAY)) == past.expired(3)
