"""Workers: those of HTTP too, quiet and resume, stop, and one that is gone."""

from __future__ import annotations

import asyncio
import re

import httpx

from tests.e2e.web.conftest import OPERATOR, VIEWER, WORKER, Sign
from tests.support.dashboard import text_of
from tests.support.server import ServerProcess
from tests.support.wire import Wire


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


async def test_a_worker_is_asked_to_stop_after_a_confirmation(the_server: ServerProcess, sign: Sign) -> None:
    async with Wire(the_server.address, token=WORKER) as wire, wire.worker("streamer-1") as session:
        viewer = await asyncio.to_thread(sign, VIEWER)
        assert (
            "/ui/workers/streamer-1/stop" not in (await asyncio.to_thread(viewer.page, "/ui/workers/streamer-1")).text
        )
        browser = await asyncio.to_thread(sign, OPERATOR)
        for path in ("/ui/workers?q=streamer", "/ui/workers/streamer-1"):
            assert "/ui/workers/streamer-1/stop" in (await asyncio.to_thread(browser.page, path)).text
        form = {"reason": "leak", "question": "Stop it?", "button": "Stop"}
        asked = await asyncio.to_thread(browser.submit, "/ui/workers/streamer-1/stop", form)
        assert "Please confirm" in asked.text
        assert not any(one.HasField("stop") for one in session.frames)
        done = await asyncio.to_thread(browser.submit, "/ui/workers/streamer-1/stop", {**form, "confirmed": "1"})
        assert done.status_code == 303
        await session.until(lambda: any(one.HasField("stop") for one in session.frames), "it is asked to stop")
        page = await asyncio.to_thread(browser.page, "/ui/workers/streamer-1")
        assert re.search(r"stopping .*asked by otto .*leak", text_of(page))
        assert "/ui/workers/streamer-1/stop" not in page.text
        listed = text_of(await asyncio.to_thread(browser.page, "/ui/workers?q=streamer"))
        assert re.search(r"stopping .*asked by otto", listed)


def test_a_worker_without_a_stream_has_no_button_to_stop_it(api: httpx.Client, sign: Sign) -> None:
    claim = {"worker_id": "puller-3", "topics": ["pulled3"], "count": 1, "wait_seconds": 0}
    api.post("/v1/jobs/claim", json=claim, headers={"authorization": f"Bearer {WORKER}"})
    browser = sign(OPERATOR)
    assert "/ui/workers/puller-3/stop" not in browser.page("/ui/workers/puller-3").text
    refused = browser.submit("/ui/workers/puller-3/stop", {"confirmed": "1"})
    assert refused.status_code == 409
    assert "make it quiet" in text_of(refused)


def test_a_worker_that_is_not_known_is_not_found(sign: Sign) -> None:
    assert sign(VIEWER).page("/ui/workers/nobody").status_code == 404


def test_an_open_page_of_a_worker_that_has_ended_says_so(sign: Sign) -> None:
    part = sign(VIEWER).get("/ui/workers/ended-1", headers={"hx-request": "true"})
    assert part.status_code == 200
    assert "ended-1 is not connected any more" in text_of(part)
