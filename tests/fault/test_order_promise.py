"""Priority over three servers under load: urgent work overtakes a deep backlog, whichever server it comes in at."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

import pytest

from headgate import Headgate, Priority
from headgate.store.connect import connect
from tests.fault.conftest import Servers, Workers
from tests.support.waiting import until_async

BULK, BURST = 10_000, 15
# Of both tables; 10 is `high`, 20 is `urgent`.
JOBS = """
WITH j AS (SELECT id, priority, claimed_at, owner FROM headgate.jobs
           UNION ALL SELECT id, priority, claimed_at, owner FROM headgate.archive)"""
OWNERS = JOBS + "SELECT count(DISTINCT owner) FROM j WHERE claimed_at IS NOT NULL"
LEFT = "SELECT count(*) FROM headgate.jobs WHERE priority = -10 AND state = 0"
ENDED = "SELECT count(*) FROM headgate.archive WHERE priority = $1"
FAILED = "SELECT count(*) FROM headgate.job_events WHERE kind = 1 AND job_id = ANY ($1)"
# Notes when a job that waits for its retry is made claimable: deferred, so at the commit of who does it.
NOTE_CLAIMABLE = """
CREATE TABLE public.claimable_again (id uuid PRIMARY KEY, at timestamptz NOT NULL);
CREATE FUNCTION public.note_claimable_again() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN INSERT INTO public.claimable_again VALUES (NEW.id, clock_timestamp()); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER note_claimable_again AFTER UPDATE ON headgate.jobs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.state = 3 AND NEW.state = 0) EXECUTE FUNCTION public.note_claimable_again()"""
CLAIMABLE = "SELECT id, at FROM public.claimable_again WHERE id = ANY ($1)"
OVERTAKEN = (
    JOBS
    + """
SELECT coalesce(max(n), 0) FROM (
    SELECT count(*) FILTER (WHERE b.claimed_at > a.at AND b.claimed_at < u.claimed_at) AS n
      FROM unnest($1::uuid[], $2::timestamptz[]) AS a(id, at) JOIN j u USING (id) CROSS JOIN j b
     WHERE b.priority = -10 GROUP BY a.id) AS each"""
)


@pytest.mark.req("P2", "P15", "P11")
async def test_urgent_jobs_overtake_ten_thousand_bulk_jobs_on_three_servers(
    database: str, servers: Servers, workers: Workers
) -> None:
    three = await asyncio.to_thread(servers, 3)
    rows = await connect(database, application_name="headgate test")
    await rows.execute(NOTE_CLAIMABLE)
    clients = [Headgate(server.address) for server in three]
    try:
        for server in three:
            await asyncio.to_thread(workers, 1, [server], concurrency=8, prefetch=8, topics=["slow", "fast", "flaky"])
        # Not before the workers run: starting one can take as long as half of the backlog.
        await clients[0].submit_many("slow", [b"40"] * BULK, priority=Priority.BULK)

        async def all_claim() -> bool:
            return bool(await rows.fetchval(OWNERS) == 3)

        await until_async(all_claim, "all three servers claim")
        urgent: list[UUID] = []
        committed: list[datetime] = []  # by the database's clock; by then, however long the commit took
        for number in range(BURST):  # to two topics, by three servers, while all workers are busy
            topic = ("slow", "fast")[number % 2]
            urgent.append((await clients[number % 3].submit(topic, b"1", priority="urgent")).id)
            committed.append(await rows.fetchval("SELECT clock_timestamp()"))
        # These fail once. One server makes each claimable again, and notifies no other.
        retried = [(await clients[n % 3].submit("flaky", b"1", priority="urgent")).id for n in range(BURST)]

        async def all_ended() -> bool:
            return bool(await rows.fetchval(ENDED, 20) == 2 * BURST)

        await until_async(all_ended, "the urgent ones are done")
        left = await rows.fetchval(LEFT)
        overtaken = await rows.fetchval(OVERTAKEN, urgent, committed)
        assert await rows.fetchval(FAILED, retried) == BURST
        again: dict[UUID, datetime] = {row["id"]: row["at"] for row in await rows.fetch(CLAIMABLE, retried)}
        assert len(again) == BURST, "each waited for its second attempt"
        late = await rows.fetchval(OVERTAKEN, list(again), list(again.values()))
        assert left, "they were done while bulk jobs waited"
        # A server may hear of it only by its tick, but each claim looks at the best priority first: none of them
        # takes more than the one batch that it was just claiming.
        assert overtaken <= 3 * 16, f"{overtaken} bulk jobs started while an urgent one waited"
        assert late <= 3 * 16, f"{late} bulk jobs started while an urgent one waited for its second attempt"
    finally:
        for client in clients:
            await client.close()
        await rows.close()
