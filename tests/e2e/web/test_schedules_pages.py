"""Schedules: create and edit with the timing in words, pause, run now, delete; and a topic that is paused."""

from __future__ import annotations

import json
import re

import asyncpg
import httpx
import pytest

from tests.e2e.web.conftest import OPERATOR, VIEWER, Browser, Sign
from tests.support.dashboard import text_of
from tests.support.server import ServerProcess

NIGHTLY = {
    "version": "0",
    "kind": "cron",
    "cron": "0 3 * * MON-FRI",
    "zone": "Europe/Berlin",
    "topic": "reports",
    "payload": '{"kind": "daily"}',
    "overlap": "skip",
}


def create(browser: Browser, name: str, **more: str) -> None:
    browser.page("/ui/schedules/-new")
    answer = browser.submit("/ui/schedules", {**NIGHTLY, "name": name, **more})
    assert (answer.status_code, answer.headers.get("location")) == (303, f"/ui/schedules/{name}"), answer.text


def test_a_schedule_is_created_and_shows_its_next_runs_in_its_zone_and_in_utc(sign: Sign) -> None:
    browser = sign(OPERATOR)
    create(browser, "nightly")
    page = browser.page("/ui/schedules/nightly")
    text = text_of(page)
    assert "at 03:00, Monday to Friday (Europe/Berlin)" in text
    assert "skip this occurrence" in text
    assert page.text.count(" 03:00</td>") == 5, "five runs by the clocks of Berlin"
    assert "nightly" in text_of(browser.page("/ui/schedules"))


def test_a_schedule_is_edited_and_its_version_guards_it(api: httpx.Client, sign: Sign) -> None:
    browser = sign(OPERATOR)
    create(browser, "edited")
    form = browser.page("/ui/schedules/edited/edit")
    assert 'value="0 3 * * MON-FRI"' in form.text
    assert "at 03:00, Monday to Friday" in text_of(form)
    changed = {**NIGHTLY, "name": "edited", "version": "1", "cron": "30 4 * * *"}
    assert browser.submit("/ui/schedules", changed).status_code == 303
    spec = api.get("/v1/schedules/edited").json()["spec"]
    assert spec["timing"]["cron"]["expression"] == "30 4 * * *"
    assert spec["payload"] == {"kind": "daily"}
    late = browser.submit("/ui/schedules", {**changed, "cron": "0 5 * * *"})
    assert late.status_code == 409


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("kind=cron&cron=*/15 9-17 * * 1-5&zone=UTC", "every 15 minutes, from 09:00 to 17:45, Monday to Friday"),
        ("kind=cron&cron=61 * * * *", "minute: '61' is not in 0..59"),
        ("kind=cron&cron=0 3 * * *&zone=Mars/Base", "is not a known time zone"),
        ("kind=every&every=90s", "every 90s"),
        ("kind=at&at=2028-01-01T10:00", "once, on 2028-01-01 at 10:00:00 UTC"),
    ],
)
def test_a_timing_is_explained_while_it_is_typed(sign: Sign, query: str, words: str) -> None:
    answer = sign(OPERATOR).get(f"/ui/schedules/-explain?{query}", headers={"hx-request": "true"})
    assert answer.status_code == 200
    assert words in text_of(answer)


def test_without_javascript_a_button_explains_the_timing_and_keeps_the_form(sign: Sign) -> None:
    browser = sign(OPERATOR)
    browser.page("/ui/schedules/-new")
    answer = browser.submit("/ui/schedules/-explain", {**NIGHTLY, "name": "kept"})
    assert "at 03:00, Monday to Friday" in text_of(answer)
    assert 'value="kept"' in answer.text
    assert "daily" in answer.text


def test_a_schedule_is_paused_resumed_run_and_deleted(api: httpx.Client, sign: Sign) -> None:
    browser = sign(OPERATOR)
    create(browser, "verbs")
    browser.submit("/ui/schedules/verbs/pause", {"reason": "holidays"})
    assert "Paused by otto" in text_of(browser.page("/ui/schedules/verbs"))
    assert "holidays" in browser.page("/ui/schedules").text
    browser.submit("/ui/schedules/verbs/resume")
    assert browser.submit("/ui/schedules/verbs/run").status_code == 303
    assert "run now" in text_of(browser.page("/ui/schedules/verbs"))
    (made,) = api.get("/v1/schedules/verbs/jobs").json()["jobs"]
    assert made["job_id"] in browser.page("/ui/schedules/verbs").text
    assert browser.submit("/ui/schedules/verbs/delete").status_code == 200, "it asks first"
    assert browser.submit("/ui/schedules/verbs/delete", {"confirmed": "1"}).headers["location"] == "/ui/schedules"
    assert browser.page("/ui/schedules/verbs").status_code == 404


def test_a_schedule_of_a_paused_topic_says_so(api: httpx.Client, sign: Sign) -> None:
    browser = sign(OPERATOR)
    api.post("/v1/jobs", json={"topic": "stopped", "payload": {}})
    create(browser, "of-stopped", topic="stopped")
    browser.submit("/ui/topics/stopped/pause", {"reason": "x"})
    assert "its topic is paused" in text_of(browser.page("/ui/schedules"))
    assert "Its topic is paused" in text_of(browser.page("/ui/schedules/of-stopped"))
    browser.submit("/ui/topics/stopped/resume")


def test_a_payload_that_is_no_json_names_its_field(sign: Sign) -> None:
    browser = sign(OPERATOR)
    browser.page("/ui/schedules/-new")
    answer = browser.submit("/ui/schedules", {**NIGHTLY, "name": "bad", "payload": "{"}, hx_request="true")
    assert answer.status_code == 400
    assert json.loads(answer.headers["hx-trigger"])["hg:invalid"]["field"] == "payload"


def test_a_viewer_cannot_open_the_form(sign: Sign) -> None:
    browser = sign(VIEWER)
    assert browser.page("/ui/schedules/-new").status_code == 403
    assert "New schedule" not in text_of(browser.page("/ui/schedules"))


def test_the_runs_of_a_short_interval_have_seconds_and_no_column_twice(sign: Sign) -> None:
    browser = sign(OPERATOR)
    create(browser, "often", kind="every", every="20s", cron="", zone="")
    page = browser.page("/ui/schedules/often")
    times = re.findall(r'<td data-label="UTC">\w{3} [\d-]{10} \d\d:\d\d:\d\d</td>', page.text)
    assert len(set(times)) == 5, "five different times"
    assert page.text.count('<th scope="col" data-zone>UTC</th>') == 1
    assert '<th scope="col" data-reader-zone class="js-only">' in page.text, "without a script UTC is there once"


def test_recent_runs_are_drawn_and_said_in_words(api: httpx.Client, sign: Sign) -> None:
    browser = sign(OPERATOR)
    create(browser, "drawn", topic="drawn")
    browser.page("/ui/schedules/drawn")
    assert "Last 1 run" not in browser.page("/ui/schedules/drawn").text
    assert browser.submit("/ui/schedules/drawn/run").status_code == 303
    (job,) = api.post("/v1/jobs/claim", json={"worker_id": "w", "topics": ["drawn"], "wait_seconds": 20}).json()["jobs"]
    assert api.post(f"/v1/jobs/{job['id']}/complete", json={"epoch": job["epoch"]}).is_success
    for path in ("/ui/schedules/drawn", "/ui/schedules"):
        page = browser.page(path).text
        assert 'aria-label="Last 1 run: 1 completed"' in page
        assert '<rect class="run-completed"' in page
    assert ">triggered</a>" in page, "no occurrence of its own has fired yet"


async def test_skipped_occurrences_are_marked_in_the_list_and_on_the_page(
    sign: Sign, running: tuple[ServerProcess, str]
) -> None:
    browser = sign(OPERATOR)
    create(browser, "overlapping")
    db = await asyncpg.connect(running[1])
    try:
        await db.execute(
            "UPDATE headgate.schedules SET skipped = 2, skips_at = ARRAY[now(), now() - interval '1 hour'],"
            " skips_why = ARRAY['overlap', 'refused'] WHERE name = 'overlapping'"
        )
    finally:
        await db.close()
    assert 'aria-label="Last 2 occurrences: 2 skipped"' in browser.page("/ui/schedules").text
    page = browser.page("/ui/schedules/overlapping")
    assert 'aria-label="Last 2 occurrences: 2 skipped"' in page.text
    assert "skipped an earlier job still ran" in text_of(page)
    assert "skipped the backlog was full" in text_of(page)
