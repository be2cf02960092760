"""The same numbers everywhere: pages, REST, CLI, gRPC and metrics, on two servers, after failures and pauses."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from headgate import Headgate
from headgate.cli.top.places import Place, View
from headgate.cli.top.reading import Reader
from headgate.dispatch import presence
from headgate.domain.redaction import Redaction
from headgate.domain.states import State
from headgate.domain.topic_figures import Rates
from headgate.domain.workers import MORE_WORKERS
from headgate.server import Server, ServerOptions
from headgate.store.connect import Connection
from headgate.store.upkeep import fold_flows
from tests.support import http_clients
from tests.support.prometheus import Scrape
from tests.support.queue import Clock
from tests.support.server import HEADGATE
from tests.support.waiting import until_async
from tests.support.wire import Wire, failed, nack


@pytest.fixture
async def servers(database: str) -> AsyncIterator[list[Server]]:
    found = []
    for name in ("one", "two"):
        options = ServerOptions(
            database_url=database, port=0, http_port=0, dev=True, unsafe=True, grace=timedelta(0), name=name
        )
        found.append(Server(options))
        await found[-1].start()
    yield found
    for server in found:
        await server.stop(drain=False)


async def work(servers: list[Server], api: httpx.AsyncClient) -> None:
    """Jobs in every state, by both servers."""
    one, two = (f"127.0.0.1:{server.port}" for server in servers)
    async with Wire(one) as first, Wire(two) as second:
        await first.submit_many("mail", [b"x"] * 6)
        await second.submit_many("image", [b"x"] * 4)
        async with second.worker("w") as session:
            await session.ready(6, "mail")
            jobs = await session.take(6)
            await session.complete(*jobs[:3])
            later = 3_600_000  # nothing changes by itself while numbers are compared
            await session.report(nack(jobs[3], later), failed(jobs[4], permanent=True), nack(jobs[5], later))
            answer = await api.post("/v1/pause", json={"target": {"topic": "image"}, "reason": "test"})
            assert answer.status_code == 200, answer.text
            await first.submit("image", b"x", delay_ms=3_600_000)
            await first.submit_many("image", [b"x"] * 2)
            cancelled = UUID(bytes=await second.submit("image", b"x"))
            await api.post(f"/v1/jobs/{cancelled}/cancel", json={})


async def counted(db: Connection) -> dict[str, int]:
    rows = await db.fetch(
        "SELECT state, count(*)"
        " FROM (SELECT state FROM headgate.jobs UNION ALL SELECT state FROM headgate.archive) AS j GROUP BY 1"
    )
    return {State(state).label: n for state, n in rows}


async def command(server: Server, *arguments: str) -> Any:
    """What a command prints as JSON."""
    return json.loads(await printed(server, *arguments, "-o", "json"))


async def printed(server: Server, *arguments: str) -> str:
    """What a command prints."""
    process = await asyncio.create_subprocess_exec(
        HEADGATE,
        *arguments,
        "--url",
        f"127.0.0.1:{server.port}",
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"NO_COLOR": "1"},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out
    return out.decode()


def of_topics(topics: list[dict[str, Any]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for topic in topics:
        total.update(topic.get("counts", {}))
    return {state: n for state, n in total.items() if n}


async def test_numbers_agree_on_every_page_and_interface(servers: list[Server], db: Connection) -> None:
    one, two = servers
    async with (
        http_clients.async_client(base_url=f"http://127.0.0.1:{one.http_port}") as api,
        http_clients.async_client(base_url=f"http://127.0.0.1:{two.http_port}") as other,
    ):
        await work(servers, api)
        expected = await counted(db)
        assert set(expected) >= {"pending", "scheduled", "retrying", "completed", "dead", "cancelled"}, expected
        stats: dict[str, Any] = {}
        for client in (api, other):
            stats = (await client.get("/v1/stats?since=15m")).json()
            assert stats["counts"] == expected
            assert of_topics((await client.get("/v1/topics")).json()["topics"]) == expected
            assert of_topics((await client.get("/v1/status")).json()["topics"]) == expected
            by_state = {
                state: (await client.get("/v1/jobs/count", params={"filter": f"state:{state}"})).json()["total"]
                for state in expected
            }
            assert by_state == expected
        for shown in (await tabs(other), await cards(other)):
            assert {state: n for state, n in shown.items() if n and state != "all"} == expected
        total = {
            name: sum(one.get(name, 0) for one in stats["intervals"]) for name in ("submitted", "completed", "dead")
        }
        assert total == {"submitted": 14, "completed": 3, "dead": 1}
        assert of_topics((await command(two, "status"))["topics"]) == expected
        found = await command(one, "stats", "--since", "15m")
        assert sum(one["flows"]["submitted"] for one in found["stats"]["intervals"] if one["flows"]) == 14
        while await fold_flows(db):
            pass
        scrapes = [Scrape.of((await server.metrics.page())[0].decode()) for server in servers]
        queue = {
            state: scrapes[0].sum("headgate_queue_jobs", state=state) for state in ("pending", "scheduled", "dead")
        }
        assert queue == {state: expected[state] for state in queue}
        for name, counter in (("submitted", "headgate_jobs_submitted_total"), ("dead", "headgate_jobs_dead_total")):
            assert sum(scrape.sum(counter) for scrape in scrapes) == total[name], name


async def cards(client: httpx.AsyncClient) -> dict[str, int]:
    """The numbers on the overview: the title of each card has the whole one."""
    page = html.unescape((await client.get("/ui")).text)
    found = re.findall(r'filter=state(?::|%3A)(\w+)"[^>]*>.*?title="([\d,]+) jobs"', page, re.DOTALL)
    return {state: int(n.replace(",", "")) for state, n in found}


async def tabs(client: httpx.AsyncClient) -> dict[str, int]:
    """The numbers on the tabs above the list of jobs."""
    page = html.unescape((await client.get("/ui/jobs/counts")).text)
    found = re.findall(r"<a [^>]*>(\w+)\s*(.*?)</a>", page, re.DOTALL)
    numbers = {name.lower(): re.search(r"[\d,]+", re.sub(r"<[^>]*>", "", rest)) for name, rest in found}
    return {name: int(n[0].replace(",", "")) for name, n in numbers.items() if n is not None}


# Submitted, completed, retried, failed, dead: in a finished minute, and in half of the next one. That is 10, 7 and 1 a
# second; most of the dead jobs had no failed attempt.
MINUTES = ((500, 400, 30, 50, 90), (400, 230, 15, 40, 45))
SECONDS = 90


async def flow(db: Connection, clock: Clock) -> None:
    """A topic with known flows, half a minute after a minute has begun."""
    minute = clock.now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    await clock.set(minute + timedelta(seconds=30))
    await db.execute("INSERT INTO headgate.tenants (name) VALUES ('default') ON CONFLICT DO NOTHING")
    tenant_no = await db.fetchval("SELECT tenant_no FROM headgate.tenants WHERE name = 'default'")
    topic_no = await db.fetchval(
        "INSERT INTO headgate.topics (tenant_no, name) VALUES ($1, 'mail') RETURNING topic_no", tenant_no
    )
    await db.execute(
        "INSERT INTO headgate.state_counts (tenant_no, topic_no, state, n) VALUES ($1, $2, 5, 630)", tenant_no, topic_no
    )
    await db.executemany(
        "INSERT INTO headgate.flow_buckets"
        " (tenant_no, topic_no, seconds, at, submitted, completed, retried, failed, dead)"
        " VALUES ($1, $2, 60, $3, $4, $5, $6, $7, $8)",
        [
            (tenant_no, no, minute + timedelta(minutes=index - 1), *counts)
            for no in (0, topic_no)
            for index, counts in enumerate(MINUTES)
        ],
    )


async def labelled(client: httpx.AsyncClient, path: str) -> dict[str, str]:
    """The cells of the one topic in a table, by label."""
    page = html.unescape((await client.get(path)).text)
    cells = re.findall(r'<td[^>]*data-label="([^"]+)"[^>]*>(.*?)</td>', page, re.DOTALL)
    return {label: re.sub(r"<[^>]*>", "", cell).strip() for label, cell in cells}


def added(flows: list[dict[str, Any]]) -> dict[str, float]:
    return {name: sum(one.get(name, 0) for one in flows) / SECONDS for name in ("submitted", "completed", "failed")}


async def test_rates_agree_on_every_page_and_interface(servers: list[Server], db: Connection, clock: Clock) -> None:
    await flow(db, clock)
    server, expected = servers[0], {"submitted": 10.0, "completed": 7.0, "failed": 1.0}
    async with http_clients.async_client(base_url=f"http://127.0.0.1:{server.http_port}") as api:
        (topic,) = (await api.get("/v1/status")).json()["topics"]
        assert added(topic["flows"]) == expected
        for path in ("/v1/stats?since=15m", "/v1/stats?since=15m&topic=mail"):
            assert added((await api.get(path)).json()["intervals"][-2:]) == expected
        shown = await labelled(api, "/ui")
        assert (shown["In/s"], shown["Done/s"], shown["Failed/s"]) == ("10", "7", "1")
        shown = await labelled(api, "/ui/topics")
        assert (shown["In/s"], shown["Done/s"], shown["Failed"]) == ("10", "7", "12.5 %")
        page = re.sub(r"<[^>]*>|\s+", " ", (await api.get("/ui/topics/mail")).text)
        for text in ("In per second +10 ", "Done per second +7 ", "Failed attempts +12.5 % "):
            assert re.search(text, page), text
    async with Headgate(f"127.0.0.1:{server.port}") as hg:
        assert (await hg.admin.status()).rates == {"mail": Rates(**expected)}
        read = await Reader(hg, Redaction()).read(Place(view=View.TOPICS))
        cells = dict(zip(read.page.headings, [str(cell) for cell in read.page.rows[0].cells], strict=True))
        assert (cells["IN/s"], cells["DONE/s"], cells["FAILED/s"]) == ("10.0", "7.0", "1.0")
    status = await printed(server, "status")
    assert "throughput: submitted 10.0/s, completed 7.0/s, failed attempts 1.0/s" in status
    assert re.search(r"^mail .* 10\.0 +7\.0 +1\.0$", status, re.MULTILINE), status
    found = await command(server, "stats", "mail", "--since", "15m")
    assert added([one["flows"] for one in found["stats"]["intervals"][-2:]]) == expected


async def test_a_list_of_workers_that_is_not_complete_says_so_everywhere(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "REPORTED_WORKERS_MAX", 1)
    one, two = servers
    base = f"http://127.0.0.1:{two.http_port}"
    async with (
        Wire(f"127.0.0.1:{one.port}") as wire,
        wire.worker("ant"),
        wire.worker("bee"),
        http_clients.async_client(base_url=base) as api,
        Headgate(f"127.0.0.1:{two.port}") as hg,
    ):

        async def cut() -> bool:
            return bool((await api.get("/v1/workers")).json().get("more_workers"))

        await until_async(cut, "the other server reports that it has more workers")
        found = await hg.admin.workers.list()
        assert ([worker.worker for worker in found], found.more_workers) == (["ant"], True)
        assert MORE_WORKERS.capitalize() in (await api.get("/ui/workers")).text
        assert (await Reader(hg, Redaction()).read(Place(view=View.WORKERS))).page.note == MORE_WORKERS
        assert MORE_WORKERS in await printed(two, "workers", "list")
        own = await printed(one, "workers", "list", "--limit", "1")
        assert "\n1 of 2 workers; --limit 2 shows all\n" in own
        assert MORE_WORKERS not in own, "a server lists all of its own"
