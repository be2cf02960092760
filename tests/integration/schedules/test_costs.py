"""What firing costs, and the ids of occurrences."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from headgate.domain.ids import JobId, derived_job_id
from headgate.domain.outcomes import Completed
from headgate.domain.schedules import (
    CatchUp,
    Cron,
    DueSchedule,
    Every,
    Firing,
    Overlap,
    occurrence_job_id,
    occurrences,
    plan,
)
from headgate.domain.timestamps import unix_us
from headgate.store import reads, schedule_firing
from tests.integration.schedules.bench import MINUTE, NOON, Bench
from tests.support.explain import cost

# ---------------------------------------------------------------------- numbers


@pytest.mark.req("O26")
async def test_ten_thousand_schedules_due_in_one_minute_fire_in_a_few_calls(bench: Bench) -> None:
    """How long that takes is measured by `make bench` (10,000 schedules due at once): less than five seconds."""
    view, _ = await bench.put("s0", timing=Cron(expression="* * * * *", zone="Europe/Zurich"), payload=b"x" * 100)
    await bench.db.execute(
        """INSERT INTO headgate.schedules (tenant_no, name, topic_no, priority, payload, kind, at, span_ms, expression,
                  zone, overlap, catch_up, catch_up_most, next_at, look_at, created_at, changed_at)
           SELECT s.tenant_no, 's' || n, s.topic_no, n % 3, s.payload, 2 + n % 2, '1970-01-01 00:00+00', 60000,
                  CASE WHEN n % 2 = 1 THEN s.expression END, CASE WHEN n % 2 = 1 THEN s.zone END, n % 5 / 4, 0, 100,
                  s.next_at, s.look_at, s.created_at, s.changed_at
             FROM headgate.schedules s, generate_series(1, 9999) AS n WHERE s.schedule_no = $1""",
        view.schedule_no,
    )
    made = 0
    sent: list[str] = []
    bench.db.add_query_logger(lambda record: sent.append(record.query))
    for _ in range(2):
        await bench.clock.advance(minutes=1)
        sent.clear()
        total = 0
        while (done := await bench.scheduler.run_once()).seen:
            total += done.made + done.skipped
        assert total == 10_000
        await asyncio.sleep(0)  # the driver reports a statement a little later
        # Ten pages of a thousand and an empty one: each is read, and fired in one call.
        assert len([query for query in sent if "headgate." in query]) <= 3 * 11, sent
        made = await bench.db.fetchval("SELECT count(*) FROM headgate.jobs")
    skipping = await bench.db.fetchval("SELECT count(*) FROM headgate.schedules WHERE overlap = 1")
    assert made == 20_000 - skipping


async def test_a_job_submitted_under_what_used_to_be_the_id_of_an_occurrence_does_not_take_its_place(
    bench: Bench,
) -> None:
    """Everything but the seed can be guessed: the numbers are small, and the times are known."""
    await bench.put(timing=Every(interval=MINUTE))
    tenant, view, occurrence = await bench.queue.tenant_no(), await bench.get(), NOON + MINUTE
    known = f"schedule {tenant} {view.schedule_no}"
    guessed = derived_job_id(known, str(unix_us(occurrence)), at_ms=unix_us(occurrence) // 1000)
    await bench.queue.add(1, "other", id=guessed)
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 1
    (job,) = await bench.jobs()
    assert job.job_id != guessed
    assert (await reads.get(bench.db, tenant, job.job_id)).topic_no == (await bench.queue.topic()).no


def test_ids_of_occurrences_are_such_as_the_store_takes() -> None:
    first = next(occurrences(Every(interval=MINUTE), NOON))
    seed = uuid4()
    job_id: JobId = occurrence_job_id(seed, first)
    assert job_id.version == 8
    assert job_id.int >> 80 == int(first.timestamp() * 1000)
    assert job_id == occurrence_job_id(seed, first) != occurrence_job_id(uuid4(), first)


def test_a_firing_without_runs_still_moves_on() -> None:
    schedule = DueSchedule(
        schedule_no=1,
        tenant_no=1,
        seed=uuid4(),
        version=1,
        timing=Every(interval=MINUTE),
        overlap=Overlap.ALLOW,
        catch_up=CatchUp.NONE,
        catch_up_most=100,
        due=NOON,
        ends_at=NOON,
    )
    firing = plan(schedule, now=NOON + timedelta(hours=1))
    assert firing == Firing(schedule=schedule, runs=(), next_at=None, missed=NOON)


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
async def test_firing_reads_no_more_for_a_long_history_a_deep_backlog_and_no_statistics(
    bench: Bench, plans: str
) -> None:
    for n in range(20):
        await bench.put(f"s{n:02}", overlap=Overlap.SKIP if n % 2 else Overlap.REPLACE)
    await bench.put("chatty", overlap=Overlap.ALLOW)
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    claimed = await bench.queue.claim(50)
    await bench.queue.settle(*((job_id, 1, Completed()) for job_id in claimed.ids))

    async def pages() -> int:
        await bench.clock.advance(minutes=1)
        due = await bench.due(limit=1000)
        firings = [plan(one, now=due.now) for one in due.schedules]
        assert len(firings) == 21
        await bench.db.execute("SELECT set_config('plan_cache_mode', $1, false)", plans)
        return (await cost(bench.db, schedule_firing.FIRE, *schedule_firing._arguments(firings))).pages

    await pages()
    before = await pages()  # from here on each has a live job: ten are skipped, ten replaced
    await bench.queue.add(5_000)
    await bench.db.execute(
        """INSERT INTO headgate.schedule_jobs (tenant_no, schedule_no, occurrence, job_id, open_at)
           SELECT s.tenant_no, s.schedule_no, o.at, gen_random_uuid(), CASE WHEN s.overlap = 0 THEN o.at END
             FROM headgate.schedules s, generate_series(100, 3000) AS n
            CROSS JOIN LATERAL (SELECT timestamptz '2026-01-01 00:00+00' + n * interval '1 second' AS at) AS o"""
    )
    after = await pages()
    print(f"{plans}: 21 schedules fired: {before} pages, with 5,000 jobs and 60,000 old runs {after}")  # noqa: T201
    assert after < 2 * before + 500
