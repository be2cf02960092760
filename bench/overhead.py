"""What identity, tenants and metrics cost: `make bench-overhead`. Run nothing else meanwhile.

One PostgreSQL; in turn a server with all of it off (development mode: no login, no scrape, no REST port) and one with
all of it on (an API key on every call and frame, a tenant, topics with metrics that are scraped every 5 seconds). Each
run of one is held against the run of the other right beside it, and the order changes from round to round. The bound
is 5 % of `cycle`. Beside it: what an idle server costs in both ways, and microseconds of single parts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final

import uvloop

from bench import lane_cycle, lane_idle
from bench.figures import Spread, spread
from bench.stack import READY, Stack, stack
from headgate.control.rate_limits import RateLimits
from headgate.control.submit import Submits
from headgate.domain.api_keys import NewKey
from headgate.domain.identity import Identity, Scope
from headgate.domain.ids import JobId, JobIdMaker
from headgate.domain.rate_limits import Rates
from headgate.domain.topic_limits import Rate
from headgate.sdk.encryption import Encryption, Purpose
from headgate.store import keys
from headgate.store.names import Names

BOUND: Final = 0.05
JOBS, ROUNDS = 200_000, 15
IDLE_WINDOWS, IDLE_SECONDS = 3, 7.0
SERVE: Final = ("serve", "--port", "0", "--log-level", "WARNING")
OFF: Final = ("--dev", "--no-http", "--metrics-topics", "0")
ON: Final = ("--http-port", "0")
SCRAPE_SECONDS: Final = 5.0
FRAME: Final = 100
"""Jobs of one frame in the measurement of `Submits.frame`."""
BODY: Final = b"x" * 100


# ---------------------------------------------------------------------- servers


async def new_key(made: Stack) -> str:
    """An API key of a tenant of its own that may do everything there."""
    async with made.database() as db:
        tenant_no = await Names().tenant(db, "acme")
        wanted = NewKey(name="bench", tenant="acme", scopes=frozenset({Scope.ADMIN, Scope.SUBMIT, Scope.WORK}))
        _, key = await keys.create(db, tenant_no, wanted, actor="bench")
    return key


@contextmanager
def environ(**values: str) -> Iterator[None]:
    """For processes that are started meanwhile."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@asynccontextmanager
async def server(made: Stack, arguments: tuple[str, ...], key: str) -> AsyncIterator[None]:
    """One server with these options; `key`: clients use it, and metrics are scraped."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", *SERVE, *arguments],
        env=os.environ | {"HEADGATE_DATABASE_URL": made.dsn},
        stdout=subprocess.PIPE,
        text=True,
    )
    made.processes.append(process)
    scraping: asyncio.Task[None] | None = None
    try:
        url, address = _addresses(process)
        made.addresses = [address]
        if key:
            scraping = asyncio.create_task(scrape(f"{url}/metrics", key), name="scrape")
        with environ(HEADGATE_TOKEN=key):
            yield
    finally:
        if scraping is not None:
            scraping.cancel()
            await asyncio.gather(scraping, return_exceptions=True)
        made.stop_server()


def _addresses(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Of the REST API, if there is one, and of gRPC."""
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        if "REST API on" in line:
            url = line.split()[-1]
        if found := READY.fullmatch(line.rstrip("\n")):
            return url, found[1]
    raise AssertionError(f"the server ended with {process.wait(10)} before it was ready")


async def scrape(url: str, key: str) -> None:
    """As Prometheus does, but more often."""
    while True:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})  # noqa: S310 - our own server
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=10).read())  # noqa: S310, B023
        assert b"headgate_jobs_claimed_total" in text
        await asyncio.sleep(SCRAPE_SECONDS)


Measure = Callable[[Stack], Awaitable[dict[str, float]]]


async def both_ways(made: Stack, key: str, rounds: int, measure: Measure) -> dict[str, dict[str, list[float]]]:
    """Each way in every round, beside the other, the order changing: values by name and way."""
    found: dict[str, dict[str, list[float]]] = {}
    ways = {"off": (OFF, ""), "on": (ON, key)}
    for number in range(rounds):
        for way in sorted(ways, reverse=bool(number % 2)):
            arguments, token = ways[way]
            async with server(made, arguments, token):
                for name, value in (await measure(made)).items():
                    found.setdefault(name, {}).setdefault(way, []).append(value)
    return found


def compared(values: dict[str, list[float]], digits: int = 1) -> dict[str, Spread]:
    """Both ways, and how much more one costs than the other beside it, in per cent."""
    more = [(on / off - 1) * 100 if off else 0.0 for on, off in zip(values["on"], values["off"], strict=True)]
    return {"off": spread(values["off"], digits), "on": spread(values["on"], digits), "more_percent": spread(more, 1)}


async def cycles(made: Stack, key: str, *, quick: bool) -> dict[str, object]:
    """Seconds and processor time of a job, both ways."""
    jobs = JOBS // 10 if quick else JOBS

    async def run(made: Stack) -> dict[str, float]:
        await lane_cycle.cycle(made, jobs // 10)  # plans, caches and connections are warm
        rate, cost = await lane_cycle.cycle(made, jobs)
        return {"us_per_job": 1e6 / rate, "server_cpu_us_per_job": cost["server"], "postgres_cpu_us": cost["postgres"]}

    found = await both_ways(made, key, 1 if quick else ROUNDS, run)
    return {"cycle": {name: compared(values) for name, values in found.items()}}


async def idle(made: Stack, key: str, *, quick: bool) -> dict[str, object]:
    """Transactions a second and processor time of a server that nothing asks for anything."""
    seconds = 2.0 if quick else IDLE_SECONDS

    async def run(made: Stack) -> dict[str, float]:
        await asyncio.sleep(1.0 if quick else lane_idle.SETTLING_SECONDS)
        before = made.cpu_seconds()["server"]
        began = time.monotonic()
        rate = await lane_idle.transactions_per_second(made, seconds)
        spent = made.cpu_seconds()["server"] - before
        return {"transactions_per_s": rate, "cpu_ms_per_s": 1000 * spent / (time.monotonic() - began)}

    found = await both_ways(made, key, 1 if quick else IDLE_WINDOWS, run)
    return {"idle": {name: compared(values, 2) for name, values in found.items()}}


# ---------------------------------------------------------------------- single parts


class _Rows:
    """What a frame becomes; nothing is done with it."""

    payloads: tuple[bytes, ...] = ()


class _Nothing:
    """Stands for store and queue: only the work of the use case itself is measured."""

    async def fill_plain(self, *_: object, **__: object) -> _Rows:
        return _Rows()

    def schemas_of(self, tenant: str) -> dict[str, str]:
        del tenant
        return {}

    def payload_sizes_of(self, tenant: str) -> dict[str, int]:
        del tenant
        return {}

    def checks_payloads(self, tenant: str, topic: str | None = None) -> bool:
        del tenant, topic
        return False

    def admit(self, count: int, size: int, account: object) -> None:
        """As much as it likes."""

    def put(self, rows: object, size: int, account: object, *, done: Any, failed: Any) -> None:
        """Taken."""


class _Plain:
    """A frame of plain jobs."""

    topic, priorities, unset_priorities, new_id = "mail", (), (), True

    def __init__(self, ids: list[bytes]) -> None:
        self.ids, self.payloads = ids, [BODY] * len(ids)


async def frames(*, quick: bool) -> dict[str, object]:
    """Microseconds of `Submits.frame` for 100 plain jobs: without a limit, and with one, in turn."""
    rounds, times = (5, 500) if quick else (41, 5_000)
    rate = Rate(count=10**9, period=timedelta(seconds=1), burst=10**9)
    made = JobIdMaker(clock_ms=lambda: time.time_ns() // 1_000_000, entropy=os.urandom)
    plain: Any = _Plain([one.bytes for one in made.make(FRAME)])

    def ignore(*_: object) -> None:
        pass

    async def once(rates: Rates | None) -> float:
        caller = Identity(tenant="acme", subject="bench", scopes=frozenset({Scope.SUBMIT}), rates=rates)
        nothing: Any = _Nothing()
        use: Submits[Any, Any] = Submits(nothing, nothing, make_id=lambda: JobId(made.make(1)[0]), rates=RateLimits())
        began = time.perf_counter()
        for _ in range(times):
            await use.frame(caller, plain, (), ignore, None, done=ignore, failed=ignore)  # type: ignore[arg-type]
        return (time.perf_counter() - began) / times * 1e6

    found: dict[str, list[float]] = {"off": [], "on": []}
    for number in range(rounds):
        for way in sorted(found, reverse=bool(number % 2)):
            found[way].append(await once(Rates(submit=rate) if way == "on" else None))
    differences = [on - off for on, off in zip(found["on"], found["off"], strict=True)]
    return {
        "frame_of_100_us": {name: spread(values, 2) for name, values in found.items()},
        "rate_limit_us_per_frame": spread(differences, 2),
    }


def encryption(*, quick: bool) -> dict[str, object]:
    """Microseconds of sealing and opening the payload of one job."""
    rounds, times = (3, 200) if quick else (15, 3_000)
    codec, job_id = Encryption({"k1": Encryption.new_key()}, write="k1"), os.urandom(16)
    found: dict[str, object] = {}
    for size in (100, 10_000):
        body = os.urandom(size)
        sealed = codec.seal(body, Purpose.PAYLOAD, job_id)
        parts: dict[str, Callable[[], bytes]] = {
            "seal": lambda body=body: codec.seal(body, Purpose.PAYLOAD, job_id),  # type: ignore[misc]
            "open": lambda sealed=sealed: codec.open_payload(sealed, job_id),  # type: ignore[misc]
        }
        for name, part in parts.items():
            found[f"encryption_{name}_{size}_bytes_us"] = spread([_each(part, times) for _ in range(rounds)], 2)
    return found


def _each(part: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        part()
    return (time.perf_counter() - began) / times * 1e6


# ---------------------------------------------------------------------- all of it


async def measure(*, quick: bool) -> dict[str, object]:
    """All figures of one run."""
    report = {**await frames(quick=quick), **encryption(quick=quick)}
    async with stack("overhead", servers=0) as made:
        key = await new_key(made)
        report |= await idle(made, key, quick=quick)
        report |= await cycles(made, key, quick=quick)
    return report


def main() -> int:
    """Print the figures; exit code 1 if the bound is broken."""
    arguments = argparse.ArgumentParser(prog="make bench-overhead", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="small: does it run, not how fast")
    report = uvloop.run(measure(quick=arguments.parse_args().quick))
    print(json.dumps(report, indent=2))
    cycle: Any = report["cycle"]
    more = cycle["us_per_job"]["more_percent"]
    verdict = more["median"] < 100 * BOUND
    print(
        f"identity, tenants and metrics: {more['median']:+.1f} % of cycle "
        f"(runs {more['min']:+.1f} to {more['max']:+.1f} %, {more['runs']} pairs); bound {100 * BOUND:.0f} %: "
        f"{'holds' if verdict else 'BROKEN'}"
    )
    return 0 if verdict else 1


if __name__ == "__main__":
    sys.exit(main())
