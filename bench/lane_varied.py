"""Cycles of jobs that are not all alike: tenants and priorities, large payloads, failures, limits. Jobs a second."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from bench.figures import spread
from bench.lane_cycle import CONCURRENCY, PREFETCH, both, check_archive, check_handled
from bench.roles_varied import TENANTS, token_of
from bench.stack import FOLDER, TOPIC, Stack, stack
from headgate import Headgate
from headgate.domain.topic_limits import Rate

ROUNDS = 3
FAILING_PERCENT = 30
MIXED, KILOBYTES, LARGE, FAILING, LIMITED = 50_000, 50_000, 2_000, 50_000, 50_000
SLOTS = (str(CONCURRENCY), str(PREFETCH))
PLENTY = 1_000_000
"""Limits are counted and looked at, and never reached: what they cost, not what they keep back."""


async def run(*, quick: bool = False) -> dict[str, object]:
    """Each lane takes turns with the others."""
    scale, rounds = (10, 1) if quick else (1, ROUNDS)
    rates: dict[str, list[float]] = {}
    async with stack("varied") as made:
        await limit(made, max_running=None, rate=None, max_running_per_key=None)  # so that the topic is there
        for _ in range(rounds):
            for name, jobs, size in (("payload_1k", KILOBYTES, 1_024), ("payload_64k", LARGE, 65_536)):
                sized = ("produce_many", str(jobs // scale), str(size))
                rates.setdefault(name, []).append(await one(made, name, jobs // scale, sized))
            rates.setdefault("failing", []).append(await failing(made, FAILING // scale))
            await limit(
                made,
                max_running=PLENTY,
                rate=Rate(count=PLENTY, period=timedelta(seconds=1)),
                max_running_per_key=PLENTY,
            )
            keyed = ("produce_keyed", str(LIMITED // scale))
            rates.setdefault("limits", []).append(await one(made, "limits", LIMITED // scale, keyed))
            await limit(made, max_running=None, rate=None, max_running_per_key=None)
        cores = made.busy()
    async with stack("mixed", options=("--tokens", str(tokens_file()))) as made:
        for _ in range(rounds):
            rates.setdefault("mixed", []).append(await mixed(made, MIXED // scale))
        cores |= made.busy()
    report: dict[str, object] = {name: spread(values) for name, values in rates.items()}
    return report | {"cores": cores}


async def one(
    made: Stack, name: str, jobs: int, produce: Sequence[str], *, work: str = "work", retried: int = 0
) -> float:
    """One run of a producer and a worker, counted as `cycle` is."""
    await made.clean()
    with made.roles((work, str(jobs + retried), *SLOTS), tuple(produce)) as (worker, producer):
        meter = made.meter()
        worked, produced = await both(worker, producer)
        meter.stop(producer=produced["cpu"], worker=worked["cpu"])
    await check_archive(made, jobs, retried=retried)
    check_handled(worked, jobs + retried)
    seconds = worked["ended"] - produced["started"]
    meter.note(name, seconds)
    return jobs / seconds


async def failing(made: Stack, jobs: int) -> float:
    """Three in ten fail once, and are tried again a tenth of a second later."""
    retried = jobs * FAILING_PERCENT // 100
    produce = ("produce_failing", str(jobs), str(FAILING_PERCENT))
    return await one(made, "failing", jobs, produce, work="work_failing", retried=retried)


async def mixed(made: Stack, jobs: int) -> float:
    """Three priorities over ten topics of each of five tenants."""
    return await one(made, "mixed", jobs, ("produce_mixed", str(jobs)), work="work_mixed")


async def limit(made: Stack, **limits: int | Rate | None) -> None:
    """Set the limits of the lane's topic."""
    async with Headgate(made.addresses[0]) as hg:
        await hg.admin.topics.set(TOPIC, **limits)  # type: ignore[arg-type]  # by their own names


def tokens_file() -> Path:
    """A token for each tenant."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "tokens.json"
    path.write_text(json.dumps({token_of(tenant): {"tenant": f"tenant-{tenant}"} for tenant in range(TENANTS)}))
    path.chmod(0o600)
    return path.absolute()
