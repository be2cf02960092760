"""One snapshot held by another connection while jobs of three priorities pass: what a claim then reads.

Nothing can be vacuumed meanwhile, so every claimed job leaves a dead entry at the head of its class in the claim index.
"""

from __future__ import annotations

import json
import statistics

from bench.lane_store import make_ids
from headgate.dispatch.watermark import Watermark
from headgate.domain.dispatching import ClaimRequest
from headgate.domain.ids import TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.keyrange import KeyRanges
from headgate.store.claim import CLAIM, claim
from headgate.store.connect import Connection, connect
from headgate.store.flush import SubmitFlush
from headgate.store.names import Names, Topic
from headgate.store.settle import OutcomeFlush, settle
from headgate.store.submit import submit

FLUSH = 500
PRIORITIES = (0, 0, 10, -5)


async def run(dsn: str, *, quick: bool = False) -> dict[str, object]:
    """Pages read by a claim of 100 before and after, with the watermark and from the head."""
    return {"claim_pages": await measure(dsn, jobs=20_000 if quick else 200_000)}


async def measure(dsn: str, *, jobs: int, warm_up: int = 5_000) -> dict[str, float]:
    """With so many jobs passing under the snapshot. Empties the tables first."""
    db = await connect(dsn, application_name="headgate bench", statement_timeout=None)
    other = await connect(dsn, application_name="headgate bench snapshot", statement_timeout=None)
    try:
        await db.execute("TRUNCATE headgate.jobs, headgate.archive, headgate.job_events, headgate.flow_deltas")
        names, mark = Names(), Watermark()
        topic = await names.topic(db, await names.tenant(db, "bench"), "held")
        await _pass(db, topic, mark, jobs=warm_up)
        before = await _pages(db, topic, mark)
        await other.execute("SET idle_in_transaction_session_timeout = 0")  # ours is a minute
        transaction = other.transaction(isolation="repeatable_read", readonly=True)
        await transaction.start()
        await other.fetchval("SELECT count(*) FROM headgate.tenants")  # the snapshot is taken here
        await _pass(db, topic, mark, jobs=jobs)
        after = await _pages(db, topic, mark)
        from_head = await _pages(db, topic, None)
        await transaction.rollback()
    finally:
        await db.close()
        await other.close()
    return {
        "first": before,
        "last": after,
        "ratio": round(after / before, 3),
        "last_without_watermark": from_head,
        "jobs_passed": jobs,
    }


async def _pass(db: Connection, topic: Topic, mark: Watermark, *, jobs: int) -> None:
    """Submit, claim and complete `jobs` of mixed priority, a flush at a time."""
    for _ in range(jobs // FLUSH):
        await _fill(db, topic, FLUSH)
        request = ClaimRequest(
            tenant_no=topic.tenant_no,
            topic_nos=[topic.no],
            limit=FLUSH,
            lease_ms=60_000,
            workers=["bench"],
            ranges=mark.ranges([topic.no]),
            seen=mark.seen,
        )
        got = await claim(db, request, owner=1)
        assert len(got) == FLUSH
        mark.learn(
            [topic.no],
            got.topic_nos,
            got.rank_classes,
            got.ranks_at,
            full=len(got) == FLUSH,
            from_head=False,
            news=got.news,
        )
        outcomes = OutcomeFlush()
        outcomes.add_completed(topic.tenant_no, got.ids, got.epochs, [b""] * len(got))
        assert not await settle(db, outcomes)


async def _fill(db: Connection, topic: Topic, count: int) -> None:
    flush = SubmitFlush()
    for place, job_id in enumerate(make_ids.make(count)):
        job = Submission(
            tenant=TenantName("bench"),
            topic=TopicName("held"),
            id=job_id,
            payload=b"x" * 100,
            priority=PRIORITIES[place % len(PRIORITIES)],
            new_id=True,
        )
        flush.add(job, topic)
    assert not await submit(db, flush)


async def _pages(db: Connection, topic: Topic, mark: Watermark | None) -> float:
    """Shared buffers touched by the very claim statement for 100 jobs: the median of five, each rolled back."""
    await _fill(db, topic, 200)
    ranges = KeyRanges.whole([topic.no]) if mark is None else mark.ranges([topic.no])
    seen = []
    for _ in range(5):
        transaction = db.transaction()
        await transaction.start()
        plan = await db.fetchval(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + CLAIM,
            topic.tenant_no,
            [topic.no],
            ranges.topic_nos,
            ranges.class_from,
            ranges.rank_from,
            ranges.class_to,
            ranges.rank_to,
            [],
            100,
            1,
            ["bench"],
            [],
            60_000,
            *((mark and mark.seen) or (None, None)),
        )
        await transaction.rollback()
        node = json.loads(plan)[0]["Plan"]
        seen.append(node["Shared Hit Blocks"] + node["Shared Read Blocks"])
    # Take them out again, so that the next measurement finds the same queue.
    everything = ClaimRequest(
        tenant_no=topic.tenant_no, topic_nos=[topic.no], limit=200, lease_ms=60_000, workers=["bench"]
    )
    got = await claim(db, everything, owner=1)
    outcomes = OutcomeFlush()
    outcomes.add_completed(topic.tenant_no, got.ids, got.epochs, [b""] * len(got))
    await settle(db, outcomes)
    return float(statistics.median(seen))
