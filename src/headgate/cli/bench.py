"""`headgate bench`: how fast a running server is from here, with jobs that do nothing, on a topic of their own."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import Parameter

from headgate.cli import values
from headgate.cli.bench_runs import Topic, percentile
from headgate.cli.tables import table
from headgate.domain.errors import HeadgateError, InvalidInput, NotFound, Refused
from headgate.domain.states import State
from headgate.domain.validation import check_integer, check_topic
from headgate.sdk import Headgate
from headgate.sdk.io_thread import new_loop

TOPIC = "headgate-bench"
LIVE = tuple(state.label for state in State if not state.is_final)
Figure = dict[str, float]


def bench_command(
    *,
    jobs: int = 10_000,
    seconds: str = "60s",
    rounds: int = 3,
    size: int = 100,
    singles: int = 100,
    topic: str = TOPIC,
    output: Literal["text", "json"] = "text",
    server: Annotated[str, Parameter(name=["--server", "--url"])] = "",
    token: str = "",
) -> None:
    """Measure a running server: submits, whole cycles and pickup, with jobs that do nothing.

    Producer and worker are this one process, so a server may well do more than is measured here. It loads the server
    and its database with real jobs: do not run it where others wait for theirs.

    Parameters
    ----------
    jobs
        How many a round submits, twice: once before a worker comes, once while it works.
    seconds
        The longest that all of it may take: 30s, 2m. Then fewer jobs are submitted.
    rounds
        The median of so many is shown.
    size
        Bytes of a payload.
    singles
        How many single jobs pickup is measured with, 30 ms apart.
    topic
        Where the jobs go; it must have no live jobs.
    output
        text or json.
    server
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    token
        What it knows you by; HEADGATE_TOKEN when left out. It needs the scopes submit, work and read, and operate to
        take jobs back when it ends early.
    """
    for name, value, high in (("--jobs", jobs, 1_000_000), ("--rounds", rounds, 100), ("--singles", singles, 10_000)):
        check_integer(value, field=name, low=1, high=high)
    check_integer(size, field="--size", low=0, high=1_000_000)
    longest = values.span(seconds, field="--seconds").total_seconds()
    if not 1 <= longest <= 3_600:
        raise InvalidInput("--seconds", "must be from 1s to 1h")
    plan = _Plan(jobs, longest, rounds, size, singles, check_topic(topic))
    with asyncio.Runner(loop_factory=new_loop) as runner:  # as `headgate worker` does
        runner.run(_bench(Headgate(server or None, token=token or None), plan, output))


class _Plan:
    def __init__(self, jobs: int, seconds: float, rounds: int, size: int, singles: int, topic: str) -> None:
        self.jobs, self.seconds, self.rounds, self.size = jobs, seconds, rounds, size
        self.singles, self.topic = singles, topic


async def _bench(hg: Headgate, plan: _Plan, output: str) -> None:
    async with hg:
        await _require_quiet(hg, plan.topic)
        topic = Topic(hg, plan.topic, until=time.monotonic() + plan.seconds)
        done = False
        try:
            found = await _measure(topic, plan)
            done = True
        finally:
            if not done:
                await _take_back(topic)
        instances = (await hg.admin.status()).instances
    count = len(topic.submitted)
    stays = f'{count:,} completed jobs stay in the archive of topic "{plan.topic}" until its day is dropped'
    if output == "json":
        print(json.dumps({**found, "jobs_submitted": count, "topic": plan.topic}))
        return
    names = ", ".join(sorted({f"headgate {one.version}" for one in instances if one.version})) or "headgate"
    print(f"{names}, {len(instances)} server(s); {plan.rounds} round(s) of {plan.jobs:,} jobs of {plan.size} bytes")
    rows = [
        (label, f"{figure['median']:,.{digits}f}", f"{figure['min']:,.{digits}f}", f"{figure['max']:,.{digits}f}", unit)
        for label, name, digits, unit in (
            ("submit", "submit", 0, "jobs/s"),
            ("work off", "drain", 0, "jobs/s"),
            ("cycle", "cycle", 0, "jobs/s"),
            ("pickup p50", "pickup_p50_ms", 2, "ms"),
            ("pickup p99", "pickup_p99_ms", 2, "ms"),
        )
        for figure in (found[name],)
    ]
    print("\n".join(table(("", "median", "least", "most", ""), rows, right=(1, 2, 3))))
    print(stays)


async def _measure(topic: Topic, plan: _Plan) -> dict[str, Figure]:
    """All rounds, then pickup; each of the two throughput runs of a round has its share of the time."""
    # A fifth is for pickup; the rest is shared by the submits, the working off and the cycles, which take about alike.
    share = plan.seconds * 0.8 / plan.rounds / 4
    payload = b"x" * plan.size
    rates: dict[str, list[float]] = {"submit": [], "drain": [], "cycle": []}
    for _ in range(plan.rounds):
        count, spent = await topic.submit(payload, plan.jobs, seconds=share)
        rates["submit"].append(count / spent)
        rates["drain"].append(count / await topic.work_off(count))
        count, spent = await topic.cycle(payload, plan.jobs, seconds=share)
        rates["cycle"].append(count / spent)
    found = {name: _spread(runs) for name, runs in rates.items()}
    waits = await topic.pickup(plan.singles)
    if not waits:
        raise Refused(f"no time was left for pickup; give more than --seconds {plan.seconds:g}, or fewer --jobs")
    parts = [waits[first :: plan.rounds] or waits for first in range(plan.rounds)]
    for share_of, name in ((0.5, "pickup_p50_ms"), (0.99, "pickup_p99_ms")):
        spread = _spread([percentile(part, share_of) for part in parts])
        found[name] = spread | {"median": round(percentile(waits, share_of), 3)}
    return found


async def _require_quiet(hg: Headgate, topic: str) -> None:
    """Refuse where other jobs would be in the way, or ours in theirs."""
    status = await hg.admin.status()
    for pause in status.paused:
        if pause.target in ("everything", "tenant", f"topic {topic}"):
            raise Refused(f"{pause.target} is paused, so no job would run; resume it first")
    try:
        counts = (await hg.admin.topics.get(topic)).counts
    except NotFound:
        return
    if live := sum(counts.get(state, 0) for state in LIVE):
        raise Refused(f'topic "{topic}" has {live:,} live jobs; wait until they have ended, or pass another --topic')


async def _take_back(topic: Topic) -> None:
    """After an early end: nothing of ours is to run, or to wait, any more."""
    try:
        removed = await topic.take_back()
    except HeadgateError as error:
        told = f'{error}; jobs may wait on topic "{topic.name}": headgate op start cancel --filter topic:{topic.name}'
    else:
        told = f'ended early: took {removed:,} jobs back from topic "{topic.name}"'
    print(told, file=sys.stderr, flush=True)


def _spread(runs: Sequence[float]) -> Figure:
    return {
        "median": round(statistics.median(runs), 3),
        "min": round(min(runs), 3),
        "max": round(max(runs), 3),
    }
