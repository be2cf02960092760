"""`headgate bench`: measure a running server with jobs that do nothing, on a separate topic."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from headgate.cli import values
from headgate.cli.bench_runs import Topic, percentile
from headgate.cli.connection import client_of
from headgate.cli.options import DEFAULT_SERVER, Output, Server
from headgate.cli.output import Columns, print_one, table
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
    jobs: Annotated[
        int, Parameter(help="Jobs per round, submitted twice: before a worker connects, and while it works.")
    ] = 10_000,
    seconds: Annotated[str, Parameter(help="Maximum total time: 30s, 2m. Fewer jobs are submitted if needed.")] = "60s",
    rounds: Annotated[int, Parameter(help="Number of rounds; the median is shown.")] = 3,
    size: Annotated[int, Parameter(help="Payload size in bytes.")] = 100,
    singles: Annotated[int, Parameter(help="Number of single jobs to measure pickup with, 30 ms apart.")] = 100,
    topic: Annotated[str, Parameter(help="Topic of the jobs; it must have no live jobs.")] = TOPIC,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Measure submits, full cycles and pickup of a running server, with jobs that do nothing.

    Producer and worker run in this one process, so a server can do more than is measured here. The command loads the
    server and its database with real jobs: do not run it on a server in production use.

    The token needs the scopes submit, work and read, and operate to remove jobs after an early end.
    """
    for name, value, high in (("--jobs", jobs, 1_000_000), ("--rounds", rounds, 100), ("--singles", singles, 10_000)):
        check_integer(value, field=name, low=1, high=high)
    check_integer(size, field="--size", low=0, high=1_000_000)
    longest = values.duration(seconds, field="--seconds").total_seconds()
    if not 1 <= longest <= 3_600:
        raise InvalidInput("--seconds", "must be from 1s to 1h")
    plan = _Plan(jobs, longest, rounds, size, singles, check_topic(topic))
    with asyncio.Runner(loop_factory=new_loop) as runner:  # the loop that `headgate worker` uses
        runner.run(_bench(client_of(server), plan, output))


class _Plan:
    def __init__(self, jobs: int, seconds: float, rounds: int, size: int, singles: int, topic: str) -> None:
        self.jobs, self.seconds, self.rounds, self.size = jobs, seconds, rounds, size
        self.singles, self.topic = singles, topic


async def _bench(hg: Headgate, plan: _Plan, output: str) -> None:
    async with hg:
        await _require_idle(hg, plan.topic)
        topic = Topic(hg, plan.topic, until=time.monotonic() + plan.seconds)
        done = False
        try:
            found = await _measure(topic, plan)
            done = True
        finally:
            if not done:
                await _remove_jobs(topic)
        instances = (await hg.admin.status()).instances
    count = len(topic.submitted)
    stays = f'{count:,} completed jobs stay in the archive of topic "{plan.topic}" until retention removes them'
    names = ", ".join(sorted({f"headgate {one.version}" for one in instances if one.version})) or "headgate"
    title = f"{names}, {len(instances)} server(s); {plan.rounds} round(s) of {plan.jobs:,} jobs of {plan.size} bytes"
    columns: Columns[str] = {
        "MEASURED": lambda name: name.removesuffix("_ms").replace("_", " "),
        **{part.upper(): lambda name, part=part: _text(name, found[name][part]) for part in ("median", "min", "max")},  # type: ignore[misc]
        "UNIT": lambda name: "ms" if name.endswith("_ms") else "jobs/s",
    }
    fields = {**found, "jobs_submitted": count, "topic": plan.topic}
    print_one(fields, output, lambda: [title, *table(found, columns), stays], name=plan.topic)


def _text(name: str, figure: float) -> str:
    return f"{figure:,.2f}" if name.endswith("_ms") else f"{figure:,.0f}"


async def _measure(topic: Topic, plan: _Plan) -> dict[str, Figure]:
    """Run all rounds, then pickup; each throughput run of a round gets its share of the time."""
    # A fifth is for pickup; submits, drains and cycles share the rest, since they take about the same time.
    share = plan.seconds * 0.8 / plan.rounds / 4
    payload = b"x" * plan.size
    rates: dict[str, list[float]] = {"submit": [], "drain": [], "cycle": []}
    for _ in range(plan.rounds):
        count, spent = await topic.submit(payload, plan.jobs, seconds=share)
        rates["submit"].append(count / spent)
        rates["drain"].append(count / await topic.drain(count))
        count, spent = await topic.cycle(payload, plan.jobs, seconds=share)
        rates["cycle"].append(count / spent)
    found = {name: _spread(runs) for name, runs in rates.items()}
    waits = await topic.pickup(plan.singles)
    if not waits:
        raise Refused(f"no time was left for pickup; pass more than --seconds {plan.seconds:g}, or fewer --jobs")
    parts = [waits[first :: plan.rounds] or waits for first in range(plan.rounds)]
    for share_of, name in ((0.5, "pickup_p50_ms"), (0.99, "pickup_p99_ms")):
        spread = _spread([percentile(part, share_of) for part in parts])
        found[name] = spread | {"median": round(percentile(waits, share_of), 3)}
    return found


async def _require_idle(hg: Headgate, topic: str) -> None:
    """Refuse a paused target, and a topic that has live jobs."""
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


async def _remove_jobs(topic: Topic) -> None:
    """After an early end, cancel and discard the jobs that have not run."""
    try:
        removed = await topic.remove_unfinished()
    except HeadgateError as error:
        text = f'{error}; jobs may wait on topic "{topic.name}": headgate bulk start cancel --filter topic:{topic.name}'
    else:
        text = f'ended early: removed {removed:,} jobs from topic "{topic.name}"'
    print(text, file=sys.stderr, flush=True)


def _spread(runs: Sequence[float]) -> Figure:
    return {
        "median": round(statistics.median(runs), 3),
        "min": round(min(runs), 3),
        "max": round(max(runs), 3),
    }
