"""Dead letters and bulk operations over HTTP: groups, preview, confirmation, progress, cancel."""

from __future__ import annotations

import html
import re

import httpx
import pytest

from tests.e2e.web.conftest import VIEWER
from tests.e2e.web.jobs.conftest import As
from tests.support.dashboard import Visit, claimed, died, submitted, text_of
from tests.support.waiting import until

FIELD = re.compile(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">')


def form_of(page: httpx.Response) -> dict[str, str]:
    """The fields of the form that starts an operation."""
    start = page.text.index('class="panel start-operation"')
    fields = {name: html.unescape(value) for name, value in FIELD.findall(page.text[start:])}
    fields.pop("csrf")
    return fields


def test_a_group_of_dead_letters_is_redriven_as_an_operation(web: Visit, api: httpx.Client, topic: str) -> None:
    submitted(api, topic, 5)
    died(api, topic, message="no user 17 in <b>the</b> directory")
    groups = web.get(f"/ui/dead?topic={topic}")
    assert "5 dead letters in 1 group" in text_of(groups)
    assert "ValueError: no user # in <b>the</b> directory" in text_of(groups)
    assert "<b>the</b>" not in groups.text
    link = re.search(r'href="(/ui/operations/new\?verb=redrive[^"]*error_group[^"]*)"', groups.text)
    assert link is not None
    preview = web.get(html.unescape(link[1]))
    assert "5 jobs match" in text_of(preview)
    assert "Redrive 5 jobs" in text_of(preview)
    answer = web.post("/ui/operations/new", **form_of(preview))
    page = web.followed(answer)
    operation = answer.headers["location"]
    until(lambda: "done" in text_of(web.get(operation)), "the operation is over")
    page = web.get(operation)
    assert "Changed 5 of 5" in text_of(page)
    assert "100 %" in text_of(page)
    assert "otto" in text_of(page)
    assert 'hx-trigger="hg:refresh"' in page.text  # what is over is not read again every second
    assert operation in web.get("/ui/operations").text
    again = web.post("/ui/operations/new", **form_of(preview))
    assert again.headers["location"] == operation  # the same form sent twice starts nothing new
    assert api.get(f"/v1/jobs/count?filter=state:pending topic:{topic}").json()["total"] == 5


def test_more_than_a_hundred_jobs_are_confirmed_by_typing_the_count(web: Visit, api: httpx.Client, topic: str) -> None:
    submitted(api, topic, 101)
    preview = web.get(f"/ui/operations/new?verb=cancel&filter=topic:{topic}")
    assert "Type 101 to confirm" in text_of(preview)
    fields = form_of(preview)
    assert fields["confirm_text"] == "101"
    for typed in ("", "1", "100"):
        asked = web.post("/ui/operations/new", **fields, confirmed=typed)
        assert (asked.status_code, "Type 101 to confirm" in text_of(asked)) == (200, True)
    assert api.get(f"/v1/jobs/count?filter=state:pending topic:{topic}").json()["total"] == 101
    answer = web.post("/ui/operations/new", **fields, confirmed="101")
    until(lambda: "done" in text_of(web.get(answer.headers["location"])), "the operation is over")
    assert api.get(f"/v1/jobs/count?filter=state:cancelled topic:{topic}").json()["total"] == 101


def test_a_preview_says_what_would_be_skipped(web: Visit, api: httpx.Client, topic: str) -> None:
    submitted(api, topic, 3)
    claimed(api, topic, count=1)
    page = web.get(f"/ui/operations/new?verb=move&topic=elsewhere&filter=topic:{topic} state:pending,running")
    shown = text_of(page)
    assert "3 jobs match" in shown
    assert "pending 2 will be changed" in shown
    assert "running 1 will be skipped: move does not apply to running jobs" in shown
    assert "Move 2 jobs" in shown
    assert "headgate bulk start move" in shown


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("verb=redrive&filter=queue:x", 'did you mean "topic"?'),
        ("verb=redrive&filter=state:running", "redrive changes none of them"),
        ("verb=reprioritise&filter=topic:x&priority=huge", "priority: must be one of"),
        ("verb=redrive&filter=topic:x&delay=later", "delay: is not a duration"),
        ("verb=redrive&filter=topic:x&per_second=0", "per_second: "),
    ],
)
def test_a_plan_that_is_refused_shows_why_and_cannot_be_started(web: Visit, query: str, error: str) -> None:
    page = web.get(f"/ui/operations/new?{query}")
    assert page.status_code == 400
    assert error in text_of(page)
    assert "start-operation" not in page.text


def test_a_form_that_is_not_filled_in_asks_without_an_error(web: Visit) -> None:
    for query in ("", "?verb=move&filter=topic:x", "?verb=reprioritise&filter=topic:x"):
        page = web.get(f"/ui/operations/new{query}")
        assert page.status_code == 200
        assert "start-operation" not in page.text
    assert "filter: is missing" in text_of(
        web.post("/ui/operations/new", verb="redrive", filter="", operation_id="x", confirmed="1")
    )


def test_an_operation_is_cancelled_after_a_question(web: Visit, as_: As, api: httpx.Client, topic: str) -> None:
    submitted(api, topic, 1_200)
    plan = {"verb": "cancel", "filter": f"topic:{topic}", "per_second": 1}
    operation = api.post("/v1/bulk", json=plan).json()["id"]
    path = f"/ui/operations/{operation}"
    assert "every 1s" in web.get(path).text
    viewer = as_(VIEWER)
    assert "Cancel the operation" not in viewer.get(path).text
    assert viewer.post(f"{path}/cancel", confirmed="1").status_code == 403
    assert "What it has changed stays changed" in text_of(
        web.post(f"{path}/cancel", question="Cancel? What it has changed stays changed.")
    )
    page = web.followed(web.post(f"{path}/cancel", page=path, confirmed="1"))
    assert "cancelled" in text_of(page)
    assert api.get(f"/v1/bulk/{operation}").json()["state"] == "cancelled"
    assert operation not in web.get("/ui/operations?active=true").text
    missing = web.get("/ui/operations/01890000-0000-7000-8000-000000000000")
    assert missing.status_code == 404


def test_no_dead_letters_is_good_news(web: Visit) -> None:
    page = text_of(web.get("/ui/dead?topic=never-used-*"))
    assert "No dead letters" in page
    assert web.get("/ui/dead?topic=" + "*a" * 20).status_code == 400
