"""A job costs no more than recorded, by half: pages of a claim, commits, WAL, and Python calls of server and SDK.

Counts, not times, of exchanges that are the same on a busy machine: frames of 500, one after the other. Each count is
the least of three rounds, so that what happens beside them (a tick, a checkpoint, autovacuum) does not matter.

`make bench-record` writes what is measured to recorded.json: after a change that is meant, and with its reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import lane_held_snapshot
from bench.stack import ready_address
from headgate.store.connect import Connection, connect
from headgate.wire import producer_pb2 as pb
from tests.bench.counted import TOPIC
from tests.support.server import clean_environ
from tests.support.wire import Producer, Wire, WorkerSession, new_id

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("recorded.json")
RECORDING = bool(os.environ.get("BENCH_RECORD"))
GROWTH = 1.5
ROUNDS, FRAMES, FRAME, SDK_JOBS = 3, 6, 500, 3_000
COUNTERS = """
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS commits,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal_bytes"""


class Counted:
    """A process of tests.bench.counted; blocks, each time for as long as it takes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str = "") -> Counter[str]:
        """Its calls so far; of a client, after it did what the line asks for."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        every, own = map(int, self.line().split())
        return Counter(calls=every, own_calls=own)

    def address(self) -> str:
        """Of a server, once it is ready."""
        return ready_address(self._process)

    def line(self) -> str:
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        assert told, f"it ended with {self._process.wait(10)}"
        return told


@contextmanager
def counted(*arguments: str, **environ: str) -> Iterator[Counted]:
    """Such a process; it is gone afterwards, and also when this process is."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.counted", *arguments],
        cwd=ROOT,
        env=clean_environ() | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Counted(process)
        finally:
            process.kill()


@contextmanager
def served(database: str) -> Iterator[tuple[Counted, str]]:
    """A server that counts, and its address."""
    with counted(
        "serve", "--dev", "--port", "0", "--no-http", "--log-level", "WARNING", HEADGATE_DATABASE_URL=database
    ) as server:
        yield server, server.address()


def judge(found: Mapping[str, float]) -> None:
    """Hold them against the record, or write them there."""
    known: dict[str, float] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if RECORDING:
        known |= {name: float(f"{value:.3g}") for name, value in found.items()}
        RECORDED.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    too_much = {
        name: f"{value:.4g}, recorded {known[name]}" for name, value in found.items() if value > GROWTH * known[name]
    }
    assert not too_much, f"a job costs more than {GROWTH} × what was recorded: {too_much}"


async def test_a_claim_reads_no_more_pages_than_recorded(database: str) -> None:
    found = await lane_held_snapshot.measure(database, jobs=4_000, warm_up=2_000)
    judge({"claim_pages": found["first"], "claim_pages_under_a_held_snapshot": found["last"]})
    assert found["last"] <= GROWTH * found["first"]


async def test_commits_wal_and_server_calls_of_a_job_are_as_recorded(database: str) -> None:
    with served(database) as (server, address):
        db = await connect(database, application_name="headgate test")
        rounds = []
        async with Wire(address) as wire, wire.producer() as producer, wire.worker("counted") as session:
            await one_frame(producer, session, 1)  # names, plans and caches are made here
            for number in range(ROUNDS):
                before, calls = await counters(db), await asyncio.to_thread(server.ask)
                for frame in range(FRAMES):
                    await one_frame(producer, session, 2 + number * FRAMES + frame)
                made, after = await asyncio.to_thread(server.ask), await counters(db)
                rounds.append({**named("server", made - calls), **(after - before)})
        await db.close()
    judge(least_per_job(rounds, FRAMES * FRAME))


async def one_frame(producer: Producer, session: WorkerSession, seq: int) -> None:
    """Submit a frame of jobs, claim it, complete it."""
    plain = pb.PlainJobs(topic=TOPIC, ids=[new_id() for _ in range(FRAME)], payloads=[b"x" * 100] * FRAME, new_id=True)
    await producer.send(pb.ProducerFrame(seq=seq, plain=plain))
    assert not (await producer.reply(seq)).exceptions
    await session.ready(FRAME, TOPIC)
    jobs = await session.take(FRAME)
    assert not await session.complete(*jobs)


async def counters(db: Connection) -> Counter[str]:
    """Transactions that wrote, and bytes of WAL, of this PostgreSQL; exact at once, unlike its statistics."""
    row = await db.fetchrow(COUNTERS)
    assert row is not None
    return Counter(dict(row))


def test_calls_of_the_sdk_for_a_job_are_as_recorded(database: str) -> None:
    rounds = []
    with served(database) as (_, address), counted("sdk", address) as client:
        client.ask("produce 1")
        begin = client.ask("work 1")
        for _ in range(ROUNDS):
            produced = client.ask(f"produce {SDK_JOBS}")
            worked = client.ask(f"work {SDK_JOBS}")
            rounds.append({**named("producer", produced - begin), **named("worker", worked - produced)})
            begin = worked
    judge(least_per_job(rounds, SDK_JOBS))


def named(whose: str, calls: Mapping[str, int]) -> dict[str, int]:
    return {f"{whose}_{name}": count for name, count in calls.items()}


def least_per_job(rounds: Sequence[Mapping[str, int]], jobs: int) -> dict[str, float]:
    """What happens beside a round only ever adds to it."""
    return {f"{name}_per_job": min(one[name] for one in rounds) / jobs for name in rounds[0]}
