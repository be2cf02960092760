"""Workers: those of HTTP too, quiet and resume, and one that is gone."""

from __future__ import annotations

import httpx

from tests.e2e.web.conftest import OPERATOR, VIEWER, WORKER, Sign
from tests.support.dashboard import text_of


def test_an_http_worker_is_listed_with_what_it_runs(api: httpx.Client, sign: Sign) -> None:
    job = api.post("/v1/jobs", json={"topic": "pulled", "payload": {}}).json()["id"]
    claim = {"worker_id": "puller-1", "topics": ["pulled"], "count": 1, "wait_seconds": 10}
    claimed = api.post("/v1/jobs/claim", json=claim, headers={"authorization": f"Bearer {WORKER}"}).json()["jobs"]
    assert [one["id"] for one in claimed] == [job]
    browser = sign(VIEWER)
    text = text_of(browser.page("/ui/workers?q=puller"))
    assert "puller-1" in text
    assert "HTTP calls" in text
    assert "busy" in text
    page = browser.page("/ui/workers/puller-1")
    assert job in page.text
    assert "Last job assigned" in text_of(page)


def test_a_worker_is_made_quiet_and_resumed(api: httpx.Client, sign: Sign) -> None:
    claim = {"worker_id": "puller-2", "topics": ["pulled2"], "count": 1, "wait_seconds": 0}
    api.post("/v1/jobs/claim", json=claim, headers={"authorization": f"Bearer {WORKER}"})
    browser = sign(OPERATOR)
    browser.page("/ui/workers")
    assert browser.submit("/ui/workers/puller-2/quiet", {"for": "10m", "reason": "leak"}).status_code == 303
    page = text_of(browser.page("/ui/workers/puller-2"))
    assert "An operator stopped deliveries to it" in page
    assert browser.submit("/ui/workers/puller-2/resume").status_code == 303
    assert "An operator stopped" not in text_of(browser.page("/ui/workers/puller-2"))


def test_a_worker_that_is_not_known_is_not_found(sign: Sign) -> None:
    assert sign(VIEWER).page("/ui/workers/nobody").status_code == 404
