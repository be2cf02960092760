"""The list of jobs over HTTP: filters, tabs, paging, suggestions, and verbs on selected jobs."""

from __future__ import annotations

import json
import re
from uuid import uuid4

import httpx
import pytest

from tests.e2e.web.conftest import OTHER, VIEWER
from tests.e2e.web.jobs.conftest import As
from tests.support.dashboard import Visit, claimed, died, submitted, text_of

ID = re.compile(r'<tr data-id="([0-9a-f-]{36})">')


def listed(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return ID.findall(answer.text)


def states(api: httpx.Client, ids: list[str]) -> list[str]:
    return [api.get(f"/v1/jobs/{one}").json()["state"] for one in ids]


def test_a_filter_is_in_the_address_and_selects_jobs(web: Visit, api: httpx.Client, topic: str) -> None:
    ids = submitted(api, topic, 3, tags=["vip"], priority=10)
    submitted(api, topic, 1)
    page = web.get(f"/ui/jobs?filter=topic:{topic} tag:vip")
    assert set(listed(page)) == set(ids)
    assert f'value="topic:{topic} tag:vip"' in page.text
    assert "vip" in text_of(page)
    assert listed(web.get(f"/ui/jobs?filter=topic:{topic} tag:vip&order=oldest")) == listed(page)[::-1]


def test_tabs_have_exact_counts_from_the_rollups_and_others_are_counted_apart(
    web: Visit, api: httpx.Client, topic: str
) -> None:
    submitted(api, topic, 4, tags=["counted"])
    died(api, topic)
    submitted(api, topic, 2, tags=["counted"])
    tabs = text_of(web.get(f"/ui/jobs?filter=state:dead topic:{topic}"))
    assert "All 6" in tabs
    assert "Pending 2" in tabs
    assert "Dead 4" in tabs
    page = web.get(f"/ui/jobs?filter=topic:{topic} tag:counted")
    assert 'hx-get="/ui/jobs/counts?' in page.text  # the page itself counts no jobs
    assert "Dead 4" not in text_of(page)
    counts = text_of(web.get(f"/ui/jobs/counts?filter=state:dead topic:{topic} tag:counted"))
    assert "Pending 2" in counts
    assert "Dead 4" in counts
    assert counts.rstrip().endswith(" Cancelled 0 4")  # for "Select all 4 matching"


@pytest.mark.parametrize(
    ("filter_", "correction"),
    [
        ("queue:mail", 'there is no "queue"; did you mean "topic"?'),
        ("state:failed", 'did you mean "dead"?'),
        ("tag:<script>alert(1)</script>", 'tag cannot be compared by "<"'),
    ],
)
def test_an_unknown_word_gives_the_correction_of_the_parser(web: Visit, filter_: str, correction: str) -> None:
    page = web.get("/ui/jobs?" + str(httpx.QueryParams({"filter": filter_})))
    assert page.status_code == 400
    assert correction in text_of(page)
    assert "<script>alert" not in page.text


def test_pages_follow_each_other_by_a_cursor(web: Visit, api: httpx.Client, topic: str) -> None:
    ids = submitted(api, topic, 30)
    first = web.get(f"/ui/jobs?filter=topic:{topic}&limit=25")
    following = re.search(r'href="([^"]+)" rel="next"', first.text)
    assert following is not None
    second = web.get(following[1].replace("&amp;", "&"))
    assert listed(first) + listed(second) == ids[::-1]
    assert 'rel="next"' not in second.text
    assert 'rel="prev"' in second.text
    wrong = web.get(f"/ui/jobs?filter=topic:{topic}&cursor=nonsense")
    assert (wrong.status_code, "cursor" in text_of(wrong)) == (400, True)


def test_the_first_digits_of_an_id_lead_to_the_job(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    for typed in (one, one[:34]):
        answer = web.get(f"/ui/jobs?filter={typed}")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/jobs/{one}")


def test_columns_are_chosen_for_this_browser(web: Visit, api: httpx.Client, topic: str) -> None:
    submitted(api, topic, 1, tags=["vip"])
    page = web.followed(
        web.post("/ui/jobs/columns", page=f"/ui/jobs?filter=topic:{topic}", column=["topic", "created"])
    )
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]+)</th>", page.text)
    assert heads == ["State", "Job", "Topic", "Created"]


def test_suggestions_are_words_of_the_language_and_stored_values(web: Visit, api: httpx.Client, topic: str) -> None:
    submitted(api, topic, 1, tags=["ünïque tag"])

    def words(text: str) -> list[str]:
        answer = web.get("/ui/jobs/suggest?" + str(httpx.QueryParams({"filter": text, "caret": len(text)})))
        assert answer.headers["content-type"].startswith("application/json")
        return [one["text"] for one in answer.json()["words"]]

    assert words("sta") == ["state:", "started:"]
    assert words("state:de") == ["dead"]
    assert words(f"topic:{topic[:12]}") == [topic]
    assert words("tag:ünï") == ['"ünïque tag"']
    note = web.get("/ui/jobs/suggest?filter=tag:&caret=4").json()["note"]
    assert note == "from the newest 1,000 jobs"
    assert topic in [one["text"] for one in web.get(f"/ui/jobs/topics?text={topic}").json()["words"]]


# ---------------------------------------------------------------------- selected jobs


def test_selected_jobs_are_redriven_and_the_rest_is_named(web: Visit, api: httpx.Client, topic: str) -> None:
    submitted(api, topic, 3)
    dead = died(api, topic)
    (pending,) = submitted(api, topic)
    here = f"/ui/jobs?filter=topic:{topic}"
    page = web.followed(web.post("/ui/jobs/redrive", page=here, id=[*dead, pending], next=here))
    assert "3 of 4 jobs redriven. Not changed: job" in text_of(page)
    assert "is pending: cannot redrive it" in text_of(page)
    assert states(api, [*dead, pending]) == ["pending"] * 4


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_destructive_verb_asks_first(web: Visit, api: httpx.Client, topic: str, verb: str) -> None:
    ids = submitted(api, topic, 2)
    if verb == "discard":
        died(api, topic)
    asked = web.post(f"/ui/jobs/{verb}", id=ids, question="Really these?")
    assert asked.status_code == 200
    assert "Really these?" in text_of(asked)
    assert states(api, ids) == ["dead" if verb == "discard" else "pending"] * 2  # nothing was changed
    for one in ids:
        assert f'name="id" value="{one}"' in asked.text
    page = web.followed(web.post(f"/ui/jobs/{verb}", id=ids, confirmed="1"))
    assert "2 jobs " in text_of(page)
    left = [api.get(f"/v1/jobs/{one}") for one in ids]
    assert [one.json().get("state", one.status_code) for one in left] == [404 if verb == "discard" else "cancelled"] * 2


def test_jobs_are_reprioritised_and_moved(web: Visit, api: httpx.Client, topic: str) -> None:
    ids = submitted(api, topic, 2)
    web.followed(web.post("/ui/jobs/reprioritise", id=ids, priority="urgent"))
    assert [api.get(f"/v1/jobs/{one}").json()["priority"] for one in ids] == [20, 20]
    web.followed(web.post("/ui/jobs/move", id=ids, topic=f"{topic}-other"))
    assert {api.get(f"/v1/jobs/{one}").json()["topic"] for one in ids} == {f"{topic}-other"}
    refused = web.post("/ui/jobs/reprioritise", id=ids, priority="very high")
    assert refused.status_code == 400
    assert "priority: must be one of bulk, normal, high, urgent" in text_of(refused)
    assert web.post("/ui/jobs/redrive").status_code == 400  # nothing is selected


def test_a_running_job_is_asked_to_stop(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    claimed(api, topic)
    web.followed(web.post("/ui/jobs/cancel", id=one, confirmed="1"))
    assert "cancel requested" in text_of(web.get(f"/ui/jobs/{one}"))


# ---------------------------------------------------------------------- roles


def test_a_viewer_sees_jobs_and_no_buttons_and_is_refused(as_: As, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    viewer = as_(VIEWER)
    page = viewer.get(f"/ui/jobs?filter=topic:{topic}")
    assert listed(page) == [one]
    for part in ('type="checkbox" name="id"', "/ui/jobs/redrive", "/ui/operations/new", "/ui/jobs/new"):
        assert part not in page.text, part
    for path in ("redrive", "cancel", "discard", "reprioritise", "move"):
        assert viewer.post(f"/ui/jobs/{path}", id=one, confirmed="1", priority="1", topic="x").status_code == 403
    assert viewer.post(f"/ui/jobs/{one}/edit", payload="{}").status_code == 403
    assert viewer.post("/ui/jobs/new", topic=topic, payload="{}").status_code == 403
    assert states(api, [one]) == ["pending"]


def test_a_token_of_some_topics_sees_those_only(limited: Visit, api: httpx.Client) -> None:
    (hidden,) = submitted(api, "hidden")
    (seen,) = submitted(api, "visible", tags=[f"t-{uuid4()}"])
    assert hidden not in limited.get("/ui/jobs").text
    assert seen in limited.get("/ui/jobs").text
    assert limited.get(f"/ui/jobs/{hidden}").status_code == 404
    assert limited.get("/ui/jobs?filter=topic:hidden").status_code == 403
    assert "hidden" not in limited.get("/ui/jobs/suggest?filter=topic:&caret=6").text


def test_a_list_and_a_job_that_waits_say_that_their_topic_is_paused(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    pages = (f"/ui/jobs?filter=topic:{topic}", f"/ui/jobs/{one}")
    assert not any("paused by" in text_of(web.get(path)) for path in pages)
    pause = {"target": {"topic": topic}, "reason": "bank outage"}
    assert api.post("/v1/pause", json=pause).is_success
    for path in pages:
        shown = text_of(web.get(path))
        assert f"topic {topic} paused by" in shown
        assert "“bank outage”. Queued jobs wait until the pause ends." in shown
    assert "paused by" not in text_of(web.get("/ui/jobs?filter=topic:another")), "that of another topic"
    assert "paused by" not in text_of(web.get(f"/ui/jobs?filter=topic:{topic},another"))
    assert api.post("/v1/resume", json={"target": {"topic": topic}}).is_success
    assert not any("paused by" in text_of(web.get(path)) for path in pages)


def test_jobs_of_a_filter_are_downloaded_as_lines_with_secrets_masked(
    web: Visit, as_: As, api: httpx.Client, topic: str
) -> None:
    submitted(api, topic, 3, payload={"n": 1, "password": "hunter2"})
    page = web.get(f"/ui/jobs?filter=topic:{topic}")
    assert f"/ui/jobs/export?filter=topic%3A{topic}" in page.text
    answer = web.get(f"/ui/jobs/export?filter=topic:{topic}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.ndjson"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [(one["topic"], one["payload"], one["masked"]) for one in lines] == [
        (topic, {"n": 1, "password": "•••"}, ["payload.password"])
    ] * 3
    assert web.get("/ui/jobs/export?filter=colour:red").status_code == 400
    assert topic not in as_(OTHER).get("/ui/jobs/export").text, "another tenant sees none of them"
