"""Topics: the table, pause with a reason and its undo, the policy with the difference before it is saved."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.e2e.web.conftest import OPERATOR, VIEWER, Sign
from tests.support.dashboard import text_of


def submit(api: httpx.Client, topic: str, count: int = 1) -> list[str]:
    """Jobs of a topic."""
    made = [api.post("/v1/jobs", json={"topic": topic, "payload": {"n": n}}) for n in range(count)]
    assert all(one.status_code == 201 for one in made), made[-1].text
    return [one.json()["id"] for one in made]


def test_the_table_shows_what_waits_and_that_no_worker_asks_for_it(api: httpx.Client, sign: Sign) -> None:
    submit(api, "lonely", 3)
    text = text_of(sign(VIEWER).page("/ui/topics?q=lonely"))
    assert "No worker" in text
    assert "Jobs wait, and no connected worker asks for them" in sign(VIEWER).page("/ui/topics/lonely").text
    row = sign(VIEWER).page("/ui/topics?q=lonely").text
    assert ">3</a>" in row


def test_a_search_without_a_match_says_how_many_there_are(api: httpx.Client, sign: Sign) -> None:
    submit(api, "known")
    assert "No topic matches" in text_of(sign(VIEWER).page("/ui/topics?q=nothing-like-it"))


def test_a_pause_shows_who_since_when_and_why_and_is_undone(api: httpx.Client, sign: Sign) -> None:
    submit(api, "bank")
    browser = sign(OPERATOR)
    browser.page("/ui/topics/bank")
    answer = browser.submit("/ui/topics/bank/pause", {"reason": "bank outage"})
    assert answer.status_code == 303
    page = browser.page("/ui/topics/bank")
    assert "paused by otto" in text_of(page)
    assert "bank outage" in text_of(page)
    assert 'id="undo" method="post" action="/ui/topics/bank/resume"' in page.text, "the message offers the way back"
    assert "bank outage" in browser.page("/ui/topics?q=bank").text
    assert browser.submit("/ui/topics/bank/resume").status_code == 303
    assert "Topic bank is resumed." in text_of(browser.page("/ui/topics/bank"))
    assert "paused by" not in text_of(browser.page("/ui/topics/bank"))


def test_with_htmx_a_pause_is_a_message_with_an_undo_and_the_table_reads_itself_again(
    api: httpx.Client, sign: Sign
) -> None:
    submit(api, "bank2")
    browser = sign(OPERATOR)
    browser.page("/ui/topics")
    answer = browser.submit("/ui/topics/bank2/pause", hx_request="true")
    events = json.loads(answer.headers["hx-trigger"])
    undo = events["hg:toast"]["undo"]
    assert undo["action"] == "/ui/topics/bank2/resume"
    assert list(undo["values"]) == ["since"], "it names the pause that it ends"
    assert events["hg:changed"] == {"what": "topics"}
    browser.submit("/ui/topics/bank2/resume")


def test_a_pause_of_the_tenant_is_shown_above_the_table_and_ends_there(sign: Sign) -> None:
    browser = sign(OPERATOR)
    browser.page("/ui/topics")
    browser.submit("/ui/dispatch/pause", {"target": "tenant", "reason": "release"})
    assert "tenant paused by otto" in text_of(browser.page("/ui/topics"))
    assert browser.submit("/ui/dispatch/resume", {"target": "tenant"}).status_code == 303
    assert "tenant paused by" not in text_of(browser.page("/ui/topics"))


def test_a_pause_of_everything_needs_the_scope_system(sign: Sign) -> None:
    browser = sign(OPERATOR)
    browser.page("/ui/topics")
    answer = browser.submit("/ui/dispatch/pause", {"target": "everything"})
    assert answer.status_code == 403
    assert "system" in text_of(answer)


def test_a_viewer_sees_no_buttons_and_is_refused(api: httpx.Client, sign: Sign) -> None:
    submit(api, "guarded")
    browser = sign(VIEWER)
    for path in ("/ui/topics?q=guarded", "/ui/topics/guarded", "/ui/topics/guarded/policy"):
        assert "/pause" not in browser.page(path).text
    assert browser.submit("/ui/topics/guarded/pause").status_code == 403
    assert browser.submit("/ui/topics/guarded/policy/apply", {"max_running": "1"}).status_code == 403


def test_a_policy_is_saved_after_its_difference_was_shown_and_gets_a_version(api: httpx.Client, sign: Sign) -> None:
    submit(api, "limited")
    browser = sign(OPERATOR)
    browser.page("/ui/topics/limited/policy")
    fields = {"version": "0", "max_running": "7", "retry": "fixed:30s", "rate": "100/1s:20", "keep_dead": "90d"}
    preview = browser.submit("/ui/topics/limited/policy/preview", fields)
    assert preview.status_code == 200
    assert "Save 4 changes" in text_of(preview)
    assert "fixed:30s" in text_of(preview)
    assert api.get("/v1/topics/limited").json().get("version", 0) == 0, "a preview changes nothing"
    saved = browser.submit("/ui/topics/limited/policy/apply", {**fields, "reason": "load test"})
    assert (saved.status_code, saved.headers["location"]) == (303, "/ui/topics/limited/policy")
    page = browser.page("/ui/topics/limited/policy")
    assert "load test" in text_of(page)
    assert 'name="max_running" type="text" value="7"' in page.text
    assert "/ 7" in text_of(browser.page("/ui/topics?q=limited"))


def test_a_policy_that_was_changed_meanwhile_is_not_overwritten(api: httpx.Client, sign: Sign) -> None:
    submit(api, "contested")
    browser = sign(OPERATOR)
    browser.page("/ui/topics/contested/policy")
    assert browser.submit("/ui/topics/contested/policy/apply", {"version": "0", "max_running": "1"}).status_code == 303
    late = browser.submit("/ui/topics/contested/policy/apply", {"version": "0", "max_running": "2"})
    assert late.status_code == 409
    assert "changed since" in text_of(late)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("rate", "many", "is not a rate"), ("max_running", "x", "whole number"), ("keep_dead", "1h", "keep_dead")],
)
def test_a_value_that_is_refused_names_its_field(
    api: httpx.Client, sign: Sign, field: str, value: str, message: str
) -> None:
    submit(api, "limited")
    browser = sign(OPERATOR)
    browser.page("/ui/topics/limited/policy")
    answer = browser.submit("/ui/topics/limited/policy/preview", {field: value}, hx_request="true")
    assert answer.status_code == 400
    events = json.loads(answer.headers["hx-trigger"])
    assert events["hg:invalid"]["field"] == field
    assert message in events["hg:toast"]["text"]


def test_queued_jobs_are_moved_or_cancelled_by_a_bulk_operation(api: httpx.Client, sign: Sign) -> None:
    submit(api, "old-name", 3)
    page = sign(OPERATOR).page("/ui/topics/old-name")
    for verb in ("move", "cancel"):
        assert f'href="/ui/operations/new?verb={verb}&amp;filter=topic%3Aold-name+state%3Apending' in page.text
    assert "/ui/operations/new" not in sign(VIEWER).page("/ui/topics/old-name").text
