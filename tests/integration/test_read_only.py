"""A database that takes no writes any more: pages can be read, changes are refused, and all is well when it is back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import grpc
import grpc.aio
import httpx
import pytest

from bench.pages import HOOK_NETWORK, create, paths
from headgate.cli.errors import exit_code
from headgate.cli.status import lines
from headgate.sdk import Headgate
from headgate.sdk.addresses import Address
from headgate.sdk.admin.jobs import CANCEL
from headgate.sdk.rpc import explain
from headgate.server import Server, ServerOptions
from headgate.wire import admin_pb2
from tests.support import http_clients
from tests.support.dispatch_waits import soon
from tests.support.read_only import Switch, switching
from tests.support.wire import Wire, failed

BANNER = "The database is read-only: pages can be read, and nothing can be changed."


@pytest.fixture
async def server(database: str) -> AsyncIterator[Server]:
    made = Server(
        ServerOptions(
            database_url=database,
            port=0,
            http_port=0,
            dev=True,
            unsafe=True,
            grace=timedelta(0),
            tick_seconds=0.1,
            webhook_allow=(HOOK_NETWORK,),
        )
    )
    await made.start()
    yield made
    await made.stop(drain=False)


@pytest.fixture
async def api(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{server.http_port}"
    headers = {"origin": url, "sec-fetch-site": "same-origin"}
    async with http_clients.async_client(base_url=url, headers=headers) as client:
        async with Wire(f"127.0.0.1:{server.port}") as wire:
            await wire.submit_many("topic-07", [b"{}"] * 3)
            async with wire.worker("w") as session:
                await session.ready(3, "topic-07")
                await session.report(*(failed(job, "no answer", permanent=True) for job in await session.take(3)))
        yield client


@pytest.fixture
async def switch(database: str) -> AsyncIterator[Switch]:
    async with switching(database) as made:
        yield made


async def test_pages_are_read_and_changes_refused_while_the_database_is_read_only(
    api: httpx.AsyncClient, server: Server, switch: Switch
) -> None:
    (dead, *_) = (await api.get("/v1/jobs", params={"filter": "state:dead"})).json()["jobs"]
    known = await create(api) | {"job_id": dead["id"], "topic": "topic-07"}
    job = f"/ui/jobs/{dead['id']}"
    before = (await api.get(job)).text
    assert 'id="read-only" hidden' in before
    assert "Redrive" in before
    token = before.split('name="csrf" content="')[1].split('"')[0]

    await switch.read_only()
    await soon(lambda: server.store.read_only, "the server has noticed")

    for path in paths(known):
        answer = await api.get(path, follow_redirects=True)
        assert answer.status_code in (200, 400), (path, answer.text)
        if answer.headers["content-type"].startswith("text/html") and "<main" in answer.text:
            assert 'id="read-only">' in answer.text, path
            assert BANNER in answer.text, path
    shown = (await api.get(job)).text
    assert 'action="/ui/jobs/redrive"' not in shown
    assert "can lose acknowledged jobs" not in (await api.get("/ui")).text
    part = await api.get("/ui/topics", headers={"hx-request": "true"})
    assert part.headers["hg-read-only"] == "1"

    refused = await api.post("/ui/jobs/redrive", data={"csrf": token, "id": dead["id"]})
    assert refused.status_code == 503
    assert ("The database is read-only" in refused.text, "<code>read_only</code>" in refused.text) == (True, True)
    part = await api.post("/ui/jobs/redrive", data={"csrf": token, "id": dead["id"]}, headers={"hx-request": "true"})
    assert (part.status_code, part.headers["hg-read-only"]) == (503, "1"), "the page shows the banner then"
    chosen = await api.post("/ui/preferences", data={"csrf": token, "theme": "dark"})
    assert chosen.status_code == 303, "what is kept in the browser can be changed"
    for path, body in (
        ("/v1/jobs", {"topic": "topic-07"}),
        ("/v1/jobs/redrive", {"ids": [dead["id"]]}),
        ("/v1/pause", {"target": {"topic": "topic-07"}}),
    ):
        answer = await api.post(path, json=body)
        assert (answer.status_code, answer.json().get("code")) == (503, "read_only"), (path, answer.text)
    status = (await api.get("/v1/status")).json()
    assert status["read_only"] is True
    async with Headgate(f"127.0.0.1:{server.port}", token="") as hg:
        assert next(lines(await hg.admin.status())).startswith("READ-ONLY")
        assert (await hg.get(dead["id"])).state == "dead"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await CANCEL(channel, admin_pb2.CancelJobsRequest(ids=[UUID(dead["id"]).bytes]), token="", seconds=30)
    explained = explain(error.value, Address("here"))
    assert (error.value.code(), getattr(explained, "reported", "")) == (grpc.StatusCode.UNAVAILABLE, "read_only")
    assert "the database is read-only" in str(explained)
    assert exit_code(explained) == 5

    await switch.writable()
    await soon(lambda: not server.store.read_only, "the server has noticed")
    assert 'id="read-only" hidden' in (await api.get(job)).text
    done = await api.post("/ui/jobs/redrive", data={"csrf": token, "id": dead["id"]})
    assert done.status_code == 303, done.text
    assert (await api.get(f"/v1/jobs/{dead['id']}")).json()["state"] == "pending"
    assert "read_only" not in (await api.get("/v1/status")).json()
