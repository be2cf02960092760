"""Schedules under fire: three servers that are killed, frozen and cut off, and exactly one job per occurrence."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tests.fault.conftest import Servers
from tests.fault.history import client, connected
from tests.support.waiting import until_async

GRIDS = {f"every-{seconds}s-{n}": seconds for seconds in (1, 2, 3) for n in range(20)}
SECONDS = 6
CUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE application_name = 'headgate schedule' AND datname = current_database()"""
MADE = """
SELECT s.name, l.occurrence, l.job_id, (SELECT count(*) FROM headgate.jobs j WHERE j.id = l.job_id) AS jobs
  FROM headgate.schedule_jobs l JOIN headgate.schedules s USING (schedule_no) ORDER BY 1, 2"""

CROWD = """
INSERT INTO headgate.schedules (tenant_no, name, topic_no, priority, payload, kind, at, span_ms, expression, zone,
            overlap, catch_up, catch_up_most, next_at, look_at, created_at, changed_at)
SELECT s.tenant_no, 's' || n, s.topic_no, 0, s.payload, 2 + n % 2, $1, 3600000,
       CASE WHEN n % 2 = 1 THEN s.expression END, CASE WHEN n % 2 = 1 THEN s.zone END, 0, 0, 100, $1, $1,
       s.created_at, s.changed_at
  FROM headgate.schedules s, generate_series(1, 9999) AS n"""


@pytest.mark.req("T33", "H3", "H4", "K16", "I8")
async def test_three_servers_with_random_kills_make_exactly_one_job_per_occurrence(
    database: str, servers: Servers
) -> None:
    seed = 20261115
    random = Random(seed)
    alive = await asyncio.to_thread(servers, 3)
    async with client(alive) as hg, connected(database) as db:
        begun = datetime.now(UTC)
        await asyncio.gather(
            *(
                hg.admin.schedules.put(name, "grid", name.encode(), every=seconds, catch_up=100)
                for name, seconds in GRIDS.items()
            )
        )
        put_by = datetime.now(UTC)
        end = begun + timedelta(seconds=SECONDS)
        kills = freezes = 0
        while datetime.now(UTC) < end:
            victim = random.choice(alive)
            what = random.random()
            if what < 0.4:
                kills += 1
                victim.kill()
                alive.remove(victim)
                alive += await asyncio.to_thread(servers, 1)
            elif what < 0.7:
                freezes += 1
                victim.signal(signal.SIGSTOP)
                await asyncio.sleep(random.random())
                victim.signal(signal.SIGCONT)
            else:
                await db.execute(CUT)  # in the middle of whatever they are firing
            await asyncio.sleep(random.random() * 0.3)  # the rhythm of the faults, not a wait for something
        last = datetime.now(UTC)

        async def caught_up() -> bool:
            return bool(await db.fetchval("SELECT min(last_at) >= $1 FROM headgate.schedules", last))

        await until_async(caught_up, "every schedule has fired beyond the end of the faults")
        for server in alive:
            server.kill()
        rows = await db.fetch(MADE)
        total: int = await db.fetchval("SELECT count(*) FROM headgate.jobs")
    found: dict[str, list[datetime]] = {}
    for name, occurrence, _, jobs in rows:
        assert jobs == 1
        found.setdefault(name, []).append(occurrence)
    assert total == len(rows) == len({row[2] for row in rows})
    for name, seconds in GRIDS.items():
        made = found[name]
        assert begun < made[0] <= put_by + timedelta(seconds=seconds)
        # The whole grid from the first to the last: nothing left out, nothing twice, nothing in between.
        steps = (made[-1] - made[0]) // timedelta(seconds=seconds)
        assert made == [made[0] + n * timedelta(seconds=seconds) for n in range(steps + 1)]
        assert made[0].timestamp() % seconds == 0
        assert made[-1] >= last - timedelta(seconds=seconds)
    print(f"\nseed {seed}: {total} jobs of {len(GRIDS)} schedules, {kills} kills, {freezes} freezes")  # noqa: T201


@pytest.mark.req("O26")
async def test_ten_thousand_schedules_due_at_once_are_a_job_each_on_one_server(database: str, servers: Servers) -> None:
    (server,) = await asyncio.to_thread(servers, 1)
    async with client([server]) as hg, connected(database) as db:
        await hg.admin.schedules.put("s0", "crowd", cron="* * * * *", zone="Europe/Zurich")
        due: datetime = await db.fetchval("SELECT date_trunc('second', clock_timestamp()) + interval '3 seconds'")
        await db.execute(CROWD, due)

        async def all_there() -> bool:
            made: int = await db.fetchval("SELECT count(*) FROM headgate.schedule_jobs WHERE occurrence >= $1", due)
            return made >= 9_999

        await until_async(all_there, "all jobs are there")
        latest: timedelta = await db.fetchval("SELECT max(created_at) - $1 FROM headgate.jobs", due)
        jobs = await db.fetchval("SELECT count(*) FROM headgate.schedule_jobs WHERE occurrence >= $1", due)
        ids = await db.fetchval("SELECT count(DISTINCT job_id) FROM headgate.schedule_jobs WHERE occurrence >= $1", due)
    # For the record: `make bench` holds it to five seconds, on a machine that does nothing else.
    print(f"\n9,999 schedules due at once: the last job was there after {latest.total_seconds():.2f} s")  # noqa: T201
    assert jobs == ids >= 9_999
