"""Times that promises name, on real servers: a freed slot, a limit in use, schedules that fall due together, a token.

`make test` counts calls and claims of the same things; how long they take is for a machine that does nothing else.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from bench.figures import spread
from bench.load import loaded
from bench.stack import Stack, stack
from headgate import Headgate, Job, Worker
from headgate.domain.topic_limits import Rate
from headgate.sdk.errors import Unauthenticated

ROUNDS = 3
REFILLS = 200
SERVERS = 3
WORK_SECONDS = 0.8
SCHEDULES = 10_000
SECOND = timedelta(seconds=1)
LIMITS: Mapping[str, Mapping[str, object]] = {
    "slots": {"max_running": 6},
    "keys": {"max_running_per_key": 2},
    "order": {"ordered_by_key": True},
    "rate": {"rate": Rate(count=20, period=SECOND, burst=4)},
    "key-rate": {"key_rate": Rate(count=10, period=SECOND, burst=2)},
}
SPANS = """
SELECT t.name, coalesce(k.limit_key, ''), extract(epoch FROM a.claimed_at)::float8,
       extract(epoch FROM a.finished_at)::float8
  FROM headgate.archive a JOIN headgate.topics t ON t.topic_no = a.topic_no
  LEFT JOIN headgate.job_limit_keys k ON k.tenant_no = a.tenant_no AND k.job_id = a.id
 WHERE a.created_at >= to_timestamp($1) ORDER BY 3"""
MORE_SCHEDULES = """
INSERT INTO headgate.schedules (tenant_no, name, topic_no, priority, payload, kind, at, span_ms, expression, zone,
                                overlap, catch_up, catch_up_most, next_at, look_at, created_at, changed_at)
SELECT s.tenant_no, 's' || n, s.topic_no, n % 3, s.payload, s.kind, s.at, s.span_ms, s.expression, s.zone, 0, 0, 100,
       to_timestamp($2), to_timestamp($2), s.created_at, s.changed_at
  FROM headgate.schedules s, generate_series(1, $1::int) AS n WHERE s.name = 'first'"""


async def run(*, quick: bool = False) -> dict[str, object]:
    """All four; each as often as the others."""
    rounds = 1 if quick else ROUNDS
    report: dict[str, object] = {}
    async with stack("promises") as made:
        report["refill_ms"] = spread([await refill(made, 20 if quick else REFILLS) for _ in range(rounds)], 2)
        fired = [await schedules(made, 500 if quick else SCHEDULES, turn) for turn in range(rounds)]
        report["schedules_due_s"] = spread(fired, 2)
    async with stack("throttled", servers=SERVERS) as made:
        await throttled(made)  # connections and plans
        shares = [await throttled(made) for _ in range(rounds)]
        report["limits_used"] = {name: spread([one[name] for one in shares], 3) for name in LIMITS}
        report["limit_used_least"] = spread([min(one.values()) for one in shares], 3)
    report["token_revoked_s"] = spread([await revoked() for _ in range(rounds)], 2)
    report["interrupt_s"] = spread([await asyncio.to_thread(interrupted) for _ in range(rounds)], 2)
    return report


async def refill(made: Stack, count: int) -> float:
    """Milliseconds from the end of a job to the start of the next in the only slot of a worker: the median."""
    began: list[float] = []
    over: list[float] = []
    async with Headgate(made.addresses[0]) as hg:
        done = asyncio.Event()

        @hg.job("refill")
        async def one(job: Job) -> None:
            del job
            began.append(time.monotonic())
            over.append(time.monotonic())
            if len(over) == count:
                done.set()

        await hg.submit_many("refill", [b""] * count)
        worker = hg.worker(concurrency=1, prefetch=0)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(done.wait(), 60)
        worker.stop()
        await running
    return statistics.median(1000 * (later - end) for later, end in zip(began[1:], over, strict=False))


async def schedules(made: Stack, count: int, turn: int) -> float:
    """Seconds from the moment in which all of them fall due until the last of their jobs is stored."""
    await made.clean()
    async with Headgate(made.addresses[0]) as hg, made.database() as db:
        await db.execute("DELETE FROM headgate.schedules")
        await hg.admin.schedules.put("first", f"schedules-{turn}", b"x" * 100, every=timedelta(hours=1))
        due = float(await db.fetchval("SELECT extract(epoch FROM headgate.clock_v1())::float8")) + 4.0
        await db.execute(MORE_SCHEDULES, count, due)
        async with asyncio.timeout(120):
            while await db.fetchval("SELECT count(*) FROM headgate.jobs") < count:
                await asyncio.sleep(0.1)
        last = await db.fetchval("SELECT extract(epoch FROM max(created_at))::float8 FROM headgate.jobs")
        await db.execute("DELETE FROM headgate.schedules")
        return float(last) - due


async def throttled(made: Stack) -> dict[str, float]:
    """What part of each limit was used by servers that share it: by area of what ran, or by starts of a rate."""
    clients = [Headgate(address) for address in made.addresses]
    for hg in clients:
        for name in LIMITS:
            hg.job(name)(_busy)
    first = clients[0]
    for name, limits in LIMITS.items():
        await first.admin.topics.set(name, **limits)  # type: ignore[arg-type]  # as TopicSettings
    workers = [hg.worker(concurrency=100, prefetch=0) for hg in clients]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    async with made.database() as db:
        since = float(await db.fetchval("SELECT extract(epoch FROM headgate.clock_v1())::float8"))
        await first.submit_many("slots", [b""] * 30)
        for number in range(4):
            await clients[number % SERVERS].submit_many("keys", [b""] * 10, limit_key=f"k{number}")
        for number in range(3):
            await clients[number % SERVERS].submit_many("order", [b""] * 5, limit_key=f"k{number}")
        await clients[1 % SERVERS].submit_many("rate", [b""] * 70)
        for number in range(2):
            await clients[number].submit_many("key-rate", [b""] * 30, limit_key=f"k{number}")
        async with asyncio.timeout(120):
            while await db.fetchval("SELECT EXISTS (SELECT FROM headgate.jobs)"):
                await asyncio.sleep(0.1)
        rows = await db.fetch(SPANS, since)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    for hg in clients:
        await hg.close()
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, key, began, over in rows:
        found.setdefault((name, key), []).append((began, over))
    shares: dict[str, float] = {}
    for (name, _), spans in found.items():
        share = used_rate(spans, name) if "rate" in name else used_slots(spans, name)
        shares[name] = min(share, shares.get(name, 1.0))
    return shares


async def _busy(job: Job) -> None:
    del job
    await asyncio.sleep(WORK_SECONDS)


def used_slots(spans: Sequence[tuple[float, float]], name: str) -> float:
    """Of the slots until the last one began, the part that was taken. More than all of them is an error."""
    limit = {"slots": 6, "keys": 2, "order": 1}[name]
    begin, end = min(began for began, _ in spans), max(began for began, _ in spans)
    area = sum(min(over, end) - began for began, over in spans)
    share = area / (limit * (end - begin))
    assert share <= 1.001, f"{name}: more ran than its limit allows"
    return share


def used_rate(spans: Sequence[tuple[float, float]], name: str) -> float:
    """Of the tokens there were until the last start, the part that was taken."""
    rate, burst = (20, 4) if name == "rate" else (10, 2)
    starts = sorted(began for began, _ in spans)
    share = len(starts) / (burst + rate * (starts[-1] - starts[0]))
    assert share <= 1.001, f"{name}: more started than its rate allows"
    return share


async def revoked() -> float:
    """Seconds from the change of the tokens' file to the end of the stream of a worker that has a removed one."""
    async with (
        loaded("tokens", tenants=("leaves", "stays")) as made,
        Headgate(made.server.address, token=made.tokens["leaves"]) as hg,
    ):
        hg.job("any")(_busy)
        worker = hg.worker()
        running = asyncio.create_task(worker.run())
        await _until_connected(worker, connected=True)
        known = made.folder / "tokens.json"
        tokens = json.loads(known.read_text())
        del tokens[made.tokens["leaves"]]
        known.write_text(json.dumps(tokens))
        changed = time.monotonic()
        await _until_connected(worker, connected=False)
        took = time.monotonic() - changed
        running.cancel()  # it would try again: a token may come back
        await asyncio.wait((running,))
        try:
            await hg.submit("any")
        except Unauthenticated:
            return took
    raise AssertionError("the stream ended for another reason")


async def _until_connected(worker: Worker, *, connected: bool) -> None:
    async with asyncio.timeout(60):
        while worker.connected is not connected:
            await asyncio.sleep(0.01)


def interrupted() -> float:
    """Seconds from Ctrl-C to the end of a submit that waits for a server which never answers."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        host, port = deaf.getsockname()
        command = [sys.executable, "-m", "headgate.cli", "submit", "greet", "{}", "--url", f"{host}:{port}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "no answer" in process.stderr.readline()  # it waits
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 128 + signal.SIGINT
            return time.monotonic() - began
