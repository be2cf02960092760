"""What an open dashboard costs: `cycle` with the overview open and live, beside `cycle` without it, in turns.

The client does what static/js/live.js does: it follows the hints, and reads the live parts of the page again, at most
once a second and less often when they take long.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import httpx

from bench.figures import spread
from bench.lane_cycle import JOBS, cycle
from bench.stack import stack

ROUNDS: Final = 15
PAGE: Final = "/ui"
GAP, SLOWER, GAP_MAX = 1.0, 10.0, 10.0  # seconds and factor, as in live.js
_PART: Final = re.compile(r'data-live="[^"]*" hx-get="([^"]+)"')


async def run(*, quick: bool = False) -> dict[str, object]:
    """The share of the rate that an open dashboard costs, and how often it reads."""
    jobs, rounds = (JOBS // 10, 1) if quick else (JOBS, ROUNDS)
    without, within, slower, reads = list[float](), list[float](), list[float](), list[float]()
    async with stack("dashboard") as made:
        await cycle(made, jobs // 10)  # the first run of a process is slower
        for turn in range(rounds):
            rates: dict[bool, float] = {}
            for is_open in (False, True) if turn % 2 else (True, False):  # neither is always the second
                if not is_open:
                    rates[is_open], _ = await cycle(made, jobs)
                    continue
                async with open_page(made.urls[0]) as page:
                    began = time.monotonic()
                    rates[is_open], _ = await cycle(made, jobs)
                    reads.append(page.requests / (time.monotonic() - began))
                assert page.hints, "the page was never updated"
            without.append(rates[False])
            within.append(rates[True])
            slower.append(1 - rates[True] / rates[False])
    return {
        "cycle_without_dashboard": spread(without),
        "cycle_with_dashboard": spread(within),
        "dashboard_slowdown": spread(slower, 4),
        "dashboard_requests_per_s": spread(reads, 2),
        "cores": made.busy(),
    }


@dataclass(slots=True)
class Page:
    """An open page: what it has asked for so far."""

    client: httpx.AsyncClient
    parts: list[str]
    hints: int = 0
    requests: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    stale: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Hear hints until cancelled."""
        async with self.client.stream("GET", f"{PAGE}/live", timeout=None) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream"), stream.headers
            async for line in stream.aiter_lines():
                if line.startswith("event: hint"):
                    self.hints += 1
                    self.stale.set()

    async def refresh(self) -> None:
        """Read the parts again when something has changed."""
        while True:
            await self.stale.wait()
            self.stale.clear()
            began = time.monotonic()
            for part in self.parts:
                headers = {"HX-Request": "true", "If-None-Match": self.tags.get(part, "")}
                answer = await self.client.get(part, headers=headers)
                assert answer.status_code in (200, 304), answer
                self.tags[part] = answer.headers.get("etag", "")
                self.requests += 1
            took = time.monotonic() - began
            await asyncio.sleep(max(GAP, 0.5 * len(self.parts), min(GAP_MAX, SLOWER * took)) - took)


@asynccontextmanager
async def open_page(url: str) -> AsyncIterator[Page]:
    """The overview, open and live, as in one tab of a browser."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        answer = await client.get(PAGE, follow_redirects=True)
        parts = [part.replace("&amp;", "&") for part in _PART.findall(answer.text)]
        assert parts, "the overview has no live part"
        page = Page(client, parts)
        tasks = [asyncio.create_task(page.follow()), asyncio.create_task(page.refresh())]
        try:
            yield page
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
