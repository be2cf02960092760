"""The store's own functions, one connection, steps in sequence, beside the frozen yardstick of the same run.

The yardstick and the product take turns, so that a slow minute of the machine hits both. Times include the Python side:
encoding the arguments and decoding the rows, as the yardstick's do.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence

from bench import reference
from bench.figures import spread
from headgate.dispatch.watermark import Watermark
from headgate.domain.dispatching import ClaimRequest
from headgate.domain.ids import JobId, JobIdMaker
from headgate.store.claim import claim
from headgate.store.connect import Connection, connect
from headgate.store.flush import SubmitFlush
from headgate.store.leases import Held, renew
from headgate.store.names import Names
from headgate.store.settle import OutcomeFlush, settle
from headgate.store.submit import submit
from headgate.store.upkeep import fold_flows

FLUSHES = (1, 100, 500, 2000)
ROUNDS = 3
make_ids = JobIdMaker(clock_ms=lambda: time.time_ns() // 1_000_000, entropy=os.urandom)


async def run(dsn: str, *, quick: bool = False) -> dict[str, object]:
    """Microseconds per job for each step and flush size, the yardstick's, and their ratio at 500."""
    connection = await connect(dsn, application_name="headgate bench", statement_timeout=None)
    jobs = {1: 1_000, 100: 20_000, 500: 50_000, 2000: 100_000}
    if quick:
        jobs = {flush: count // 10 for flush, count in jobs.items()}
    steps: dict[str, dict[str, float]] = {}
    yardstick: list[dict[str, object]] = []
    pairs: list[float] = []
    try:
        for flush in FLUSHES:
            rounds = []
            for _ in range(ROUNDS):
                if flush == 500:
                    yardstick.append(await reference.measure(dsn, jobs=jobs[flush], flush=flush, rounds=1))
                rounds.append(await one_round(connection, jobs=jobs[flush], flush=flush))
                if flush == 500:
                    ours = sum(rounds[-1][step] for step in ("submit", "claim", "settle"))
                    pairs.append(ours / (1e6 / float(str(yardstick[-1]["cycles_per_s"]))))
            steps[str(flush)] = {step: round(statistics.median(one[step] for one in rounds), 2) for step in rounds[0]}
    finally:
        await connection.close()
    return {
        "yardstick_us": {
            step: statistics.median(float(str(one[step])) for one in yardstick)
            for step in ("insert_us", "claim_us", "settle_us")
        },
        "store_us_per_job": steps,
        "store_to_yardstick": spread(pairs, 3),
    }


async def one_round(db: Connection, *, jobs: int, flush: int) -> dict[str, float]:
    """Submit all, claim all, renew all, settle all; returns microseconds per job."""
    await db.execute(
        "TRUNCATE headgate.jobs, headgate.archive, headgate.job_events, headgate.flow_deltas, headgate.state_counts"
    )
    names = Names()
    tenant_no = await names.tenant(db, "bench")
    topic = await names.topic(db, tenant_no, "bench")
    payloads, results = [b"x" * 100] * flush, [b"{}"] * flush
    batches = [make_ids.make(flush) for _ in range(jobs // flush)]
    mark = Watermark()
    spent: dict[str, float] = {}

    started = time.perf_counter()
    for ids in batches:
        rows = SubmitFlush()
        rows.add_plain(topic, ids, payloads)
        assert not await submit(db, rows)
    spent["submit"] = time.perf_counter() - started

    held: list[tuple[Sequence[JobId], Sequence[int]]] = []
    started = time.perf_counter()
    for _ in batches:
        request = ClaimRequest(
            tenant_no=tenant_no,
            topic_nos=[topic.no],
            limit=flush,
            lease_ms=60_000,
            workers=["bench"],
            ranges=mark.ranges([topic.no]),
            seen=mark.seen,
        )
        got = await claim(db, request, owner=1)
        assert len(got) == flush
        mark.learn([topic.no], got.topic_nos, got.rank_classes, got.ranks_at, full=True, from_head=False, news=got.news)
        held.append((got.ids, got.epochs))  # type: ignore[arg-type]  # plain UUIDs
    spent["claim"] = time.perf_counter() - started

    started = time.perf_counter()
    for taken, epochs in held:
        assert not await renew(db, [Held(tenant_no=tenant_no, ids=taken, epochs=epochs, lease_ms=60_000)])
    spent["renew"] = time.perf_counter() - started

    started = time.perf_counter()
    for taken, epochs in held:
        outcomes = OutcomeFlush()
        outcomes.add_completed(tenant_no, taken, epochs, results)
        assert not await settle(db, outcomes)
    spent["settle"] = time.perf_counter() - started

    done = len(batches) * flush
    assert await db.fetchval("SELECT count(*) FROM headgate.archive WHERE state = 5") == done
    while await fold_flows(db):
        pass
    return {step: seconds / done * 1e6 for step, seconds in spent.items()}
