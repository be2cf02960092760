"""`make pages`: every page of the dashboard with five million stored jobs and 200,000 due, each within 300 ms.

Pages are found by their routes, so a new one is measured without being listed. What a path needs (a job, a topic) is
taken from the database. The first request of each page is not counted, as it compiles the template.
"""

from __future__ import annotations

import argparse
import gzip
import re
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from bench.seed import TENANT, Sizes, seed
from bench.stack import Stack, stack
from headgate.api.http.auth import OPEN, RULE
from headgate.store.connect import Connection
from headgate.store.partitions import ensure_partitions
from headgate.web.pages import all_routes
from headgate.web.routing import DOWNLOAD, PREFIX
from headgate.web.static_files import StaticFiles

HOOK: Final = "https://192.0.2.1/"
HOOK_NETWORK: Final = "192.0.2.0/24"
"""Reserved for documentation: nothing answers there."""
BOUND_MS: Final = 300.0
FIRST_VIEW_BYTES: Final = 150_000
TRIES: Final = 5
EXTRA: Final = (
    "/ui/jobs?filter=state:dead",
    "/ui/jobs?filter=state:completed",
    "/ui/jobs?filter=topic:topic-07",
    "/ui/jobs?filter=error:timeout",
    "/ui/charts?since=24h",
    "/ui/charts?since=7d&topic=topic-07",
)
"""Pages as people ask for them, besides those without a query."""
_PARAMETER: Final = re.compile(r"\{(\w+):\w+\}")
_ASSET: Final = re.compile(r'(?:src|href)="(/ui/static/[^"]+)"')


def paths(known: Mapping[str, str]) -> list[str]:
    """The paths of all pages, with values for what they name. Raises LookupError if one has no value here."""
    found, missing = set[str](), list[str]()
    for route in all_routes():
        if (
            "GET" not in route.http_methods
            or route.opt.get(DOWNLOAD)
            or (route.opt.get(OPEN) and RULE not in route.opt)
        ):
            continue
        for path in route.paths:
            if all(known.get(name) for name in _PARAMETER.findall(path)):
                full = _PARAMETER.sub(lambda match: known[match[1]], path)
                found.add(full.rstrip("/") or PREFIX)
            else:
                missing.append(path)
    if missing:
        raise LookupError(f"no values for {', '.join(sorted(missing))}: add them to known_values or create")
    return sorted(found)


async def known_values(db: Connection) -> dict[str, str]:
    """Something of each kind that there is."""
    tenant_no = await db.fetchval("SELECT tenant_no FROM headgate.tenants WHERE name = $1", TENANT)
    job = await db.fetchval(
        "SELECT id FROM headgate.archive WHERE tenant_no = $1 AND state = 6 ORDER BY id DESC LIMIT 1", tenant_no
    )
    return {"job_id": str(job), "topic": "topic-07"}


async def create(client: httpx.AsyncClient) -> dict[str, str]:
    """What only a server makes, by parameter: a schedule, a webhook and a delivery, a batch, an operation, a worker."""
    nightly = {"spec": {"topic": "topic-07", "timing": {"cron": {"expression": "0 3 * * *"}}}}
    webhook = {"url": HOOK, "events": ["job.dead"]}
    plan = {"verb": "redrive", "filter": "state:dead topic:topic-09", "reason": "measure"}

    async def made(method: str, path: str, body: Mapping[str, object]) -> str:
        answer = await client.request(method, path, json=body)
        if not answer.is_success:
            raise RuntimeError(f"{method} {path} answered {answer.status_code}: {answer.text}")
        return str(answer.json().get("id", ""))

    await made("PUT", "/v1/schedules/nightly", nightly)
    await made("POST", "/v1/jobs/claim", {"worker_id": "measured", "topics": ["topic-07"], "lease_seconds": 300})
    webhook_id = await made("POST", "/v1/webhooks", webhook)
    return {
        "name": "nightly",
        "worker": "measured",
        "webhook_id": webhook_id,
        "delivery_id": await made("POST", f"/v1/webhooks/{webhook_id}/test", {}),
        "batch_id": await made("POST", "/v1/batches", {"name": "measured"}),
        "operation_id": await made("POST", "/v1/bulk", plan),
    }


async def timed(client: httpx.AsyncClient, path: str) -> tuple[float, httpx.Response]:
    """The median of some requests, in milliseconds, and the last answer."""
    answer = await client.get(path)
    took = []
    for _ in range(TRIES):
        began = time.perf_counter()
        answer = await client.get(path)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took), answer


def transferred(page: httpx.Response) -> int:
    """Bytes of a page and of all its files, as a browser that has none of them gets them."""
    files = StaticFiles()
    names = {match.split("/", 4)[4] for match in _ASSET.findall(page.text)}
    names |= {f"js/{one.name}" for one in Path("src/headgate/web/static/js").glob("*.js")}  # modules import each other
    total = len(gzip.compress(page.content))
    for name in names:
        answer = files.response(files.hash, name, "gzip")
        total += len(answer.content)
    return total


async def measure(made: Stack, sizes: Sizes, console: Console) -> bool:
    """Open every page; True if all are in time."""
    async with made.database() as db:
        known = await known_values(db)
    table = Table(title=f"pages with {sizes.stored:,} stored jobs, {sizes.due:,} of them due")
    for heading in ("page", "status", "ms", "bytes", f"at most {BOUND_MS:.0f} ms"):
        table.add_column(heading, justify="left" if heading == "page" else "right")
    holds = True
    async with httpx.AsyncClient(base_url=made.urls[0], timeout=60, follow_redirects=True) as client:
        for path in (*paths(known | await create(client)), *EXTRA):
            took, answer = await timed(client, path)
            good = answer.status_code in (200, 400) and took <= BOUND_MS  # 400: it needs a query
            holds &= good
            table.add_row(
                path, str(answer.status_code), f"{took:.0f}", f"{len(answer.content):,}", "holds" if good else "BROKEN"
            )
        first = transferred(await client.get(PREFIX))
    console.print(table)
    console.print(f"first view: {first:,} bytes with all files, at most {FIRST_VIEW_BYTES:,}")
    return holds and first <= FIRST_VIEW_BYTES


async def run(sizes: Sizes) -> bool:
    """Fill, serve, measure."""
    console = Console(width=120)
    async with stack("pages", servers=0, options=("--webhook-allow", HOOK_NETWORK)) as made:
        began = time.monotonic()
        async with made.database() as db:
            await ensure_partitions(db)
            await seed(db, sizes)
        console.print(f"filled in {time.monotonic() - began:.0f} s")
        made.start_server()
        return await measure(made, sizes, console)


def main() -> int:
    """Exit code 1 if a page is too slow or too large."""
    arguments = argparse.ArgumentParser(prog="make pages", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="a hundredth of the jobs: does it run, not how fast")
    quick = arguments.parse_args().quick
    sizes = Sizes(finished=47_800, due=2_000, waiting=200, failures=500) if quick else Sizes()
    return 0 if uvloop.run(run(sizes)) else 1


if __name__ == "__main__":
    sys.exit(main())
