"""An undo ends the pause that it was offered for, and no other."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.e2e.web.conftest import OPERATOR, SYSTEM, Browser, Sign
from tests.support.dashboard import text_of


def paused(browser: Browser, path: str, fields: dict[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Pause; returns the address and the fields of the undo."""
    answer = browser.submit(path, fields, hx_request="true")
    assert answer.status_code == 200, answer.headers
    undo = json.loads(answer.headers["hx-trigger"])["hg:toast"]["undo"]
    return undo["action"], undo["values"]


@pytest.mark.parametrize("kind", ["topic", "tenant", "everything", "schedule"])
def test_an_undo_does_not_end_a_later_pause_of_someone_else(api: httpx.Client, sign: Sign, kind: str) -> None:
    api.post("/v1/jobs", json={"topic": "undone", "payload": {}})
    spec = {"topic": "undone", "timing": {"every": {"interval_ms": 3_600_000}}}
    assert api.put("/v1/schedules/undone", json={"spec": spec}).status_code == 200
    token = SYSTEM if kind == "everything" else OPERATOR
    path, fields = {
        "topic": ("/ui/topics/undone/pause", {}),
        "tenant": ("/ui/dispatch/pause", {"target": "tenant"}),
        "everything": ("/ui/dispatch/pause", {"target": "everything"}),
        "schedule": ("/ui/schedules/undone/pause", {}),
    }[kind]
    first, second = sign(token), sign(token)
    try:
        address, values = paused(first, path, fields)
        paused(second, path, {**fields, "reason": "the bank is down"})
        late = first.submit(address, values)
        assert late.status_code == 409
        assert "was paused again" in text_of(late)
        assert "the bank is down" in text_of(late), "what the later pause is for"
        toast = json.loads(first.submit(address, values, hx_request="true").headers["hx-trigger"])["hg:toast"]
        assert toast["level"] == "error"
        page = {"schedule": "/ui/schedules/undone", "everything": "/ui/system"}.get(kind, "/ui/topics?q=undone")
        assert "the bank is down" in second.page(page).text, "it is still paused"
        address, values = paused(second, path, fields)
        assert second.submit(address, values).status_code == 303
        assert "the bank is down" not in second.page(page).text
        assert second.submit(address, values).status_code == 303, "what runs anyway needs no undo"
    finally:
        first.submit(path.replace("pause", "resume"), fields)


def test_a_button_of_a_page_ends_the_pause_that_the_page_shows(api: httpx.Client, sign: Sign) -> None:
    api.post("/v1/jobs", json={"topic": "shown", "payload": {}})
    browser = sign(OPERATOR)
    browser.submit("/ui/topics/shown/pause")
    since = str(
        next(one["since_us"] for one in api.get("/v1/status").json()["pauses"] if one["target"].get("topic") == "shown")
    )
    for path in ("/ui/topics/shown", "/ui/topics?q=shown"):
        assert f'name="since" value="{since}"' in browser.page(path).text
    assert browser.submit("/ui/topics/shown/resume", {"since": since}).status_code == 303


@pytest.mark.parametrize("since", ["9" * 30, "-1" + "0" * 20, "x"])
def test_a_since_that_is_no_time_names_its_field(api: httpx.Client, sign: Sign, since: str) -> None:
    api.post("/v1/jobs", json={"topic": "shown", "payload": {}})
    answer = sign(OPERATOR).submit("/ui/topics/shown/resume", {"since": since}, hx_request="true")
    assert answer.status_code == 400
    assert json.loads(answer.headers["hx-trigger"])["hg:invalid"]["field"] == "since"


@pytest.mark.parametrize("lasts", ["0", "0s", "0.1s", "999999999999d", "999999999999999999d", "1826d"])
def test_a_pause_of_no_time_or_of_all_time_is_refused_with_its_limits(
    api: httpx.Client, sign: Sign, lasts: str
) -> None:
    api.post("/v1/jobs", json={"topic": "shown", "payload": {}})
    answer = sign(OPERATOR).submit("/ui/topics/shown/pause", {"lasts": lasts}, hx_request="true")
    assert answer.status_code == 400
    events = json.loads(answer.headers["hx-trigger"])
    assert events["hg:invalid"]["field"] == "lasts"
    assert not any(
        one["paused"] for one in api.get("/v1/status").json()["pauses"] if one["target"].get("topic") == "shown"
    )


@pytest.mark.parametrize("span", ["0s", "31d", "999999999999d"])
def test_a_worker_is_made_quiet_for_a_time_within_its_limits(sign: Sign, span: str) -> None:
    answer = sign(OPERATOR).submit("/ui/workers/any/quiet", {"for": span}, hx_request="true")
    assert answer.status_code == 400
    assert json.loads(answer.headers["hx-trigger"])["hg:invalid"]["field"] == "for"


def test_a_number_in_an_address_that_is_out_of_range_names_its_parameter(api: httpx.Client, sign: Sign) -> None:
    api.post("/v1/jobs", json={"topic": "shown", "payload": {}})
    spec = {"topic": "shown", "timing": {"every": {"interval_ms": 3_600_000}}}
    assert api.put("/v1/schedules/shown", json={"spec": spec}).status_code == 200
    browser = sign(OPERATOR)
    for number in ("9" * 18, "9" * 19, "9" * 30, "-" + "9" * 30):
        for page in ("/ui/schedules/shown", "/ui/audit", "/ui/topics/shown/policy"):
            if (page, number) == ("/ui/audit", "9" * 18):
                continue  # a number that an entry can have
            answer = browser.get(f"{page}?before={number}")
            assert answer.status_code == 400, (page, number)
            assert "before" in text_of(answer)
        assert browser.get(f"/ui/topics?offset={number}").status_code == 200
        assert browser.get(f"/ui/jobs?limit={number}").status_code == 200
    assert browser.get(f"/ui/schedules/shown?before={253_402_300_799_000_000}").status_code == 200
