"""End-to-end times under load: a paced run at half and at four fifths of what `cycle` does, by a timetable.

From the moment a job was meant to be submitted to the end of its handler; see roles_paced.
"""

from __future__ import annotations

from bench.figures import median, spread
from bench.lane_cycle import CONCURRENCY, PREFETCH, both, check_archive, check_handled, cycle
from bench.stack import Stack, stack

SHARES = (50, 80)
SECONDS = 5
ROUNDS = 3


async def run(known: dict[str, object], *, quick: bool = False) -> dict[str, object]:
    """Milliseconds by share; `known` holds the rate of `cycle`, or one run of it is made here."""
    milliseconds, rounds = (2_000, 1) if quick else (SECONDS * 1000, ROUNDS)
    report: dict[str, object] = {}
    async with stack("loaded") as made:
        full = median(known["cycle"]) if "cycle" in known else (await cycle(made, 20_000 if quick else 100_000))[0]
        found: dict[int, list[dict[str, float]]] = {share: [] for share in SHARES}
        for _ in range(rounds):
            for share in SHARES:
                found[share].append(await paced(made, int(full * share / 100), milliseconds, name=f"loaded_{share}"))
        report["loaded"] = {
            f"{share}%": {name: spread([one[name] for one in runs], 2) for name in runs[0]}
            for share, runs in found.items()
        }
        report["cores"] = made.busy()
    for share, runs in found.items():
        report[f"loaded_{share}_p50_ms"] = spread([one["p50_ms"] for one in runs], 2)
        report[f"loaded_{share}_p99_ms"] = spread([one["p99_ms"] for one in runs], 2)
    report["loaded_p99_ms"] = report[f"loaded_{SHARES[-1]}_p99_ms"]  # the harder of the two
    return report


async def paced(made: Stack, per_second: int, milliseconds: int, *, name: str) -> dict[str, float]:
    """One run at a given rate."""
    jobs = per_second * milliseconds // 1000
    await made.clean()
    with made.roles(
        ("work_timed", str(jobs), str(CONCURRENCY), str(PREFETCH)),
        ("produce_paced", str(per_second), str(milliseconds)),
    ) as (worker, producer):
        meter = made.meter()
        worked, produced = await both(worker, producer)
        meter.stop(producer=produced["cpu"], worker=worked["cpu"])
    await check_archive(made, jobs)
    check_handled(worked, jobs)
    seconds = worked["ended"] - produced["started"]
    meter.note(name, seconds)
    return {
        "per_s": per_second,
        "done_per_s": jobs / seconds,
        "p50_ms": worked["p50_ms"],
        "p99_ms": worked["p99_ms"],
        "max_ms": worked["max_ms"],
        "producer_late_p99_ms": produced["late_p99_ms"],
    }
