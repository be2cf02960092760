"""Run every attack against real servers beside a neighbour, and judge each: `python -m tests.hostile.lane`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.load import Loaded, LoadProcess, loaded, memory_most_mib, percentile
from bench.machine import describe
from tests.hostile.attacks import ATTACKS, CALL_SECONDS
from tests.support.waiting import until_async

GRANTS: Mapping[str, Mapping[str, object]] = {
    "neighbour": {"tenant": "neighbour"},
    "default": {"tenant": "attacker"},
}
"""The tokens: by default a token may submit, work and read."""
SERVERS = 2
HELD = 20
CALM_SECONDS, ATTACK_SECONDS = 5.0, 12.0
RSS_MIB, P99_MS, RECOVERY_SECONDS = 300.0, 1_000.0, 5.0
CALM_ROUNDS = 8
"""So many rounds in a row that take at most twice what they take in peace (or 50 ms) are a recovery."""
LATEST = Path("build/hostile.json")


@dataclass(slots=True)
class Verdict:
    """What one attack did to the servers and to the neighbour."""

    name: str
    rss_mib: float = 0.0
    rounds: int = 0
    p99_ms: float = 0.0
    errors: int = 0
    leases_lost: int = HELD
    recovery_s: float = float("inf")
    counts: Mapping[str, int] = field(default_factory=dict)
    first_error: str = ""

    @property
    def broken(self) -> list[str]:
        """The bounds that do not hold."""
        found = []
        if self.rss_mib >= RSS_MIB:
            found.append("memory")
        if not self.rounds or self.p99_ms >= P99_MS:
            found.append("p99")
        if self.errors:
            found.append("errors")
        if self.leases_lost:
            found.append("leases")
        if self.recovery_s >= RECOVERY_SECONDS:
            found.append("recovery")
        if not sum(self.counts.values()):
            found.append("the attack did not run")
        return found


async def run(names: Sequence[str]) -> tuple[dict[str, object], list[Verdict]]:
    """All of the named attacks, one after another, on the same servers."""
    async with loaded("hostile", grants=GRANTS, servers=SERVERS, options=("--lease", "30")) as made:
        async with made.database() as db:
            machine = await describe(db)
        neighbour = made.begin_module("tests.hostile.neighbour", "neighbour")
        await _until(lambda: len(_rounds(neighbour, 0.0)) >= CALM_ROUNDS, seconds=60)  # connections are made
        began = time.monotonic()
        await asyncio.sleep(CALM_SECONDS)  # what is measured is what happens in that time
        calm = percentile([line["ms"] for line in _rounds(neighbour, began)], 0.99)
        print(f"in peace: p99 of a round {calm:.1f} ms", flush=True)
        verdicts = []
        for name in names:
            verdict = await judge(made, neighbour, name, calm)
            said = ", ".join(verdict.broken) or "holds"
            print(f"{name}: {said}", flush=True)
            verdicts.append(verdict)
        return {"machine": machine, "calm_p99_ms": calm}, verdicts


async def judge(made: Loaded, neighbour: LoadProcess, name: str, calm: float) -> Verdict:
    """One attack, from its beginning until the neighbour's rounds are as quick as before."""
    for server in made.servers:
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the most memory is counted from here
    began = time.monotonic()
    neighbour.tell(f"hold {HELD} {ATTACK_SECONDS + 2}")
    await _until(lambda: sum("started" in line for line in neighbour.since(began)) >= HELD, seconds=30)
    _, holding = ATTACKS[name]
    token = made.tokens.get(holding, holding)
    addresses = ",".join(server.address for server in made.servers)
    with (made.folder / "attacks.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.hostile.attacks", name, addresses, token, str(ATTACK_SECONDS)),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), ATTACK_SECONDS + CALL_SECONDS + 10)
    except TimeoutError:
        process.kill()
        output, _ = await process.communicate()
    ended = time.monotonic()
    recovery = await recovered(neighbour, ended, calm)
    lost, held_error = await _held(neighbour, began)
    rounds = _rounds(neighbour, began)
    errors = [str(line["error"]) for line in rounds if "error" in line]
    return Verdict(
        name,
        rss_mib=round(max(memory_most_mib(server.pid) for server in made.servers), 1),
        rounds=len(rounds),
        p99_ms=round(percentile([line["ms"] for line in rounds], 0.99), 1),
        errors=len(errors),
        leases_lost=lost,
        recovery_s=round(recovery, 2),
        counts=json.loads(output) if output else {},
        first_error=errors[0] if errors else held_error,
    )


async def recovered(neighbour: LoadProcess, ended: float, calm: float) -> float:
    """Seconds from the end of an attack until the neighbour's rounds are quick again; infinite if they stay slow."""
    found: float | None = None

    def quick() -> bool:
        nonlocal found
        found = recovery_of(_rounds(neighbour, ended), ended, calm)
        return found is not None

    await _until(quick, seconds=3 * RECOVERY_SECONDS)
    return float("inf") if found is None else found


def recovery_of(rounds: Sequence[Mapping[str, float]], ended: float, calm: float) -> float | None:
    """When the first of enough quick rounds in a row had begun; None if there are not enough yet."""
    quick = 0
    for line in rounds:
        quick = quick + 1 if "error" not in line and line["ms"] <= max(50.0, 2 * calm) else 0
        if quick == CALM_ROUNDS:
            return max(0.0, line["at"] - ended)
    return None


def _rounds(neighbour: LoadProcess, since: float) -> list[dict[str, float]]:
    return [line for line in neighbour.since(since) if "ms" in line]


async def _held(neighbour: LoadProcess, began: float) -> tuple[int, str]:
    """How many of the held jobs needed a second attempt, or all of them if they did not end."""
    await _until(lambda: any("held" in line for line in neighbour.since(began)), seconds=30)
    for line in neighbour.since(began):
        if "held" in line:
            return int(line["lost"]), str(line.get("error", ""))
    return HELD, "the held jobs did not end"


async def _until(check: Callable[[], bool], *, seconds: float) -> None:
    """Until the neighbour's lines say so, or for so long: what then is missing is a verdict, not an error here."""

    async def checked() -> bool:
        return check()

    with suppress(AssertionError):
        await until_async(checked, "the neighbour says so", within=timedelta(seconds=seconds))


def show(verdicts: Sequence[Verdict], console: Console) -> bool:
    """A row for each attack; True if everything holds."""
    table = Table(title=f"hostile clients, each for {ATTACK_SECONDS:g} s, beside a neighbour of another tenant")
    for heading in (
        "attack",
        "RSS MiB",
        "rounds",
        "p99 ms",
        "errors",
        "leases lost",
        "recovery s",
        "verdict",
        "it did",
    ):
        table.add_column(heading)
    for one in verdicts:
        table.add_row(
            one.name,
            *(f"{value:g}" for value in (one.rss_mib, one.rounds, one.p99_ms, one.errors)),
            *(f"{value:g}" for value in (one.leases_lost, one.recovery_s)),
            "BROKEN: " + ", ".join(one.broken) if one.broken else "holds",
            " ".join(f"{name}={number}" for name, number in one.counts.items()),
        )
    console.print(table)
    console.print(
        f"bounds: RSS < {RSS_MIB:g} MiB, neighbour p99 < {P99_MS:g} ms, 0 errors, 0 leases lost, "
        f"recovery < {RECOVERY_SECONDS:g} s"
    )
    for one in verdicts:
        if one.first_error:
            console.print(f"{one.name}: first error: {one.first_error}", markup=False)
    return not any(one.broken for one in verdicts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack, print, write the file; a broken bound is exit code 1."""
    parser = argparse.ArgumentParser(prog="make hostile", description=__doc__)
    parser.add_argument("--only", help="attacks whose name contains this text")
    chosen = parser.parse_args(arguments)
    names = [name for name in ATTACKS if not chosen.only or chosen.only in name]
    if not names:
        parser.error(f"no attack has {chosen.only!r} in its name; there are: {'; '.join(ATTACKS)}")
    found, verdicts = uvloop.run(run(names))
    rows = [{name: getattr(one, name) for name in Verdict.__slots__} | {"broken": one.broken} for one in verdicts]
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps({**found, "attacks": rows}, indent=2) + "\n")
    return 0 if show(verdicts, Console(width=180)) else 1


if __name__ == "__main__":
    sys.exit(main())
