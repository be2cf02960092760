"""What pages ask of the database: no page counts jobs, and each makes a small, bounded number of statements."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from bench.pages import HOOK_NETWORK, create, paths
from headgate.domain.log_fields import REQUEST_ID
from headgate.server import Server, ServerOptions
from headgate.store import lane, listing
from headgate.store.connect import Connection, connect
from tests.support import http_clients
from tests.support.wire import Wire, failed

STATEMENTS_MAX = 20
"""Of one page. The overview makes most of them: it joins what six use cases know."""
FUNCTIONS = Path(lane.__file__).parent / "functions"
COUNTS_JOBS = re.compile(
    r"\bcount\([^)]*\)(?:(?!\bFROM\b).)*\bFROM\s+headgate\.(?:jobs|archive)\b", re.DOTALL | re.IGNORECASE
)


def whole(statement: str) -> str:
    """A statement with the text of the functions that it calls."""
    called, text = set[str](), statement
    while found := set(re.findall(r"headgate\.(\w+_v\d+)\(", text)) - called:
        called |= found
        text += "".join(file.read_text() for name in found if (file := FUNCTIONS / f"{name}.sql").exists())
    return text


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """All statements from now on, by the id of the request that made them."""
    seen: dict[str, list[str]] = defaultdict(list)
    real = connect

    def note(one: Any) -> None:
        if "headgate." in one.query:  # not a BEGIN, and not what the driver asks about types
            seen[REQUEST_ID.get()].append(one.query)

    async def watched(*args: Any, **options: Any) -> Any:
        db = await real(*args, **options)
        db.add_query_logger(note)
        return db

    monkeypatch.setattr(lane, "connect", watched)
    return seen


@pytest.fixture
async def api(database: str, statements: dict[str, list[str]]) -> AsyncIterator[httpx.AsyncClient]:
    options = ServerOptions(
        database_url=database,
        port=0,
        http_port=0,
        dev=True,
        unsafe=True,
        grace=timedelta(0),
        webhook_allow=(HOOK_NETWORK,),
    )
    server = Server(options)
    await server.start()
    url = f"http://127.0.0.1:{server.http_port}"
    async with http_clients.async_client(base_url=url) as client:
        async with Wire(f"127.0.0.1:{server.port}") as wire:
            await wire.submit_many("topic-07", [b"{}"] * 3)
            async with wire.worker("w") as session:
                await session.ready(3, "topic-07")
                await session.report(*(failed(job, "no answer", permanent=True) for job in await session.take(3)))
            await wire.submit_many("topic-07", [b"{}"] * 60)
        yield client
    await server.stop(drain=False)


def test_the_check_finds_a_count_of_jobs() -> None:
    assert COUNTS_JOBS.search("SELECT state, count(*) AS n\n  FROM headgate.jobs j GROUP BY 1")
    assert COUNTS_JOBS.search("SELECT count(*) FILTER (WHERE a.state = 6) FROM headgate.archive a")
    assert not COUNTS_JOBS.search("SELECT count(*) FROM headgate.schedules; SELECT id FROM headgate.jobs")
    assert "FROM headgate.state_counts" not in whole("SELECT 1")
    assert "CREATE FUNCTION" in whole("SELECT * FROM headgate.oldest_pending_v1($1)")


async def test_no_page_counts_jobs_and_each_makes_few_statements(
    api: httpx.AsyncClient, statements: dict[str, list[str]]
) -> None:
    (dead, *_) = (await api.get("/v1/jobs", params={"filter": "state:dead"})).json()["jobs"]
    known = await create(api) | {"job_id": dead["id"], "topic": "topic-07"}
    made: dict[str, int] = {}
    for path in (*paths(known), "/ui/jobs?filter=state:dead", "/ui/jobs?filter=error:timeout", "/ui/charts?since=24h"):
        request_id = str(uuid4())
        answer = await api.get(path, headers={"x-request-id": request_id}, follow_redirects=True)
        assert answer.status_code in (200, 400), (path, answer.text)
        counting = [one for one in statements[request_id] if COUNTS_JOBS.search(whole(one))]
        assert counting == [], path
        made[path] = len(statements[request_id])
    assert {path: n for path, n in made.items() if n > STATEMENTS_MAX} == {}
    assert made["/ui"] > 5, "statements are seen"


async def test_the_page_of_a_job_has_its_newest_events_and_a_link_to_older_ones(
    api: httpx.AsyncClient, db: Connection
) -> None:
    (job, *_) = (await api.get("/v1/jobs", params={"filter": "state:dead"})).json()["jobs"]
    await db.execute(
        "INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, error_message)"
        " SELECT tenant_no, job_id, at - n * interval '1 s', 1, 1025, 1, 3, 'try ' || n || '.'"
        " FROM headgate.job_events, generate_series(1, 60) AS n WHERE job_id = $1",
        job["id"],
    )
    path = f"/ui/jobs/{job['id']}"
    newest = (await api.get(path)).text
    assert ("try 49." in newest, "try 50." in newest) == (True, False)
    (older,) = re.findall(rf'href="{path}\?before=(\d+)"', newest)
    oldest = (await api.get(path, params={"before": older})).text
    assert ("try 49." in oldest, "try 50." in oldest, "try 60." in oldest) == (False, True, True)
    assert "Older events" not in oldest
    assert "Show the newest" in oldest


async def test_a_job_beside_the_list_is_shown_without_reading_its_events(
    api: httpx.AsyncClient, statements: dict[str, list[str]]
) -> None:
    (job, *_) = (await api.get("/v1/jobs", params={"filter": "state:dead"})).json()["jobs"]
    reads_events = []
    for path in (f"/ui/jobs/{job['id']}", f"/ui/jobs/{job['id']}/preview"):
        request_id = str(uuid4())
        answer = await api.get(path, headers={"x-request-id": request_id})
        assert "no answer" in answer.text  # its error
        reads_events.append(any("headgate.job_events" in one for one in statements[request_id]))
    assert reads_events == [True, False]


async def test_a_page_that_did_not_look_at_all_jobs_says_so(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LOOK_AT", 50)
    monkeypatch.setattr(listing, "CHUNK", 50)
    wanted = {"filter": "error:answer"}  # the oldest three jobs have it; the newest 50 are looked at
    found = (await api.get("/v1/jobs", params=wanted)).json()
    assert (found["jobs"], found["partial"], bool(found["cursor"])) == ([], True, True)
    assert (
        "A page looks at 10,000 jobs at most, and none of these matches."
        in (await api.get("/ui/jobs", params=wanted)).text
    )
    page = (await api.get("/ui/jobs", params={"filter": "error:answer", "order": "oldest"})).text
    assert "3 matches in this part of the list: a page looks at 10,000 jobs at most." in page
    whole_list = (await api.get("/v1/jobs")).json()
    assert "partial" not in whole_list or not whole_list["partial"]
