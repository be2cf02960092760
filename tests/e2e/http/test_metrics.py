"""Metrics over HTTP: who may read them, and that a scrape of one process answers for all of its port."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.support import http_clients
from tests.support.prometheus import Scrape
from tests.support.server import ServerProcess
from tests.support.waiting import until
from tests.support.wire import Wire

READS, LIMITED, SYSTEM = ("a-token-that-reads", "a-token-for-mail-only", "a-token-of-the-system")
EVERYWHERE = ("--host", "0.0.0.0", "--insecure")  # noqa: S104 - loopback would be open
TOKENS = {
    READS: {"tenant": "alpha", "scopes": ["read", "submit"], "name": "rita"},
    LIMITED: {"tenant": "alpha", "scopes": ["read"], "topics": ["mail"], "name": "mia"},
    SYSTEM: {"scopes": ["system"], "name": "sys"},
    "a-token-of-another": {"tenant": "beta", "scopes": ["submit"], "name": "ben"},
}


def get(server: ServerProcess, token: str = "", accept: str = "") -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return http_clients.get(f"{server.http_url}/metrics", headers=headers | {"accept": accept})


@pytest.mark.req("O28")
async def test_a_token_reads_the_topics_of_its_tenant_and_the_system_all(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(json.dumps(TOKENS))
    server = serve(*EVERYWHERE, "--tokens", "tokens.json", "--http-port", "0")
    for token, topic in ((READS, "mail"), ("a-token-of-another", "secret")):
        async with Wire(server.address, token=token) as wire:
            await wire.submit(topic, b"x")
    assert get(server).status_code == 401
    assert get(server, "wrong").status_code == 401
    limited = get(server, LIMITED)
    assert limited.status_code == 403
    assert limited.json()["code"] == "permission_denied"
    own = Scrape.of(get(server, READS).text)
    assert {labels["topic"] for labels, _ in own.samples["headgate_jobs_submitted_total"]} == {"mail"}
    everything = get(server, SYSTEM, "application/openmetrics-text; version=1.0.0")
    assert everything.headers["content-type"].startswith("application/openmetrics-text")
    assert 'topic="secret"' in everything.text


def test_whichever_process_is_scraped_answers_for_all_of_its_port(serve: Serve) -> None:
    server = serve("--processes", "2", "--http-port", "0")

    def up() -> dict[str, float]:
        found = Scrape.of(get(server).text)
        return {labels["process"]: value for labels, value in found.samples["headgate_process_up"]}

    until(lambda: up() == {"1": 1, "2": 1}, "both answer")
    found = Scrape.of(get(server).text)
    assert {labels["process"] for labels, _ in found.samples["headgate_worker_sessions"]} == {"1", "2"}
    assert len(found.samples["headgate_instances"]) == 1
