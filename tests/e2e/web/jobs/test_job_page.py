"""The page of one job over HTTP: what happened to it, bodies of every kind, edit and redrive, submit."""

from __future__ import annotations

import base64
import json
import re
from html import unescape
from typing import Any

import httpx
import pytest

from tests.e2e.web.conftest import OTHER, VIEWER
from tests.e2e.web.jobs.conftest import As
from tests.support import http_clients
from tests.support.dashboard import Visit, claimed, died, submitted, text_of
from tests.support.server import ServerProcess
from tests.support.waiting import until

CANARY = "<img src=x onerror=alert(1)>\"'{{1234*5678}}"
NOBODYS = "01890000-0000-7000-8000-000000000000"
TRACE = """Traceback (most recent call last):
  File "/app/lib/python3.12/site-packages/lib/core.py", line 1, in run
    call()
  File "/app/shop/jobs.py", line 7, in charge
    bank.charge()
ValueError: boom
"""


def test_a_job_that_does_not_exist_has_the_code_of_rest(web: Visit, api: httpx.Client) -> None:
    for job_id, status, code in ((NOBODYS, 404, "not_found"), ("nope", 400, "invalid_input")):
        page = web.get(f"/ui/jobs/{job_id}")
        problem = api.get(f"/v1/jobs/{job_id}")
        assert (page.status_code, problem.status_code) == (status, status)
        assert problem.json()["code"] == code
        assert f"<code>{code}</code>" in page.text
        assert page.headers["x-request-id"] in text_of(page)


def test_the_page_tells_the_story_of_a_job_newest_attempt_first(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic, tags=["vip"], payload={"n": 1})
    (job,) = claimed(api, topic, worker="w-eu-1")
    retry = {"type": "TimeoutError", "message": "first failure", "traceback": TRACE}
    outcome = {"id": one, "epoch": job["epoch"], "failed": retry}
    assert api.post("/v1/jobs/outcomes", json={"worker_id": "w-eu-1", "outcomes": [outcome]}).status_code == 200
    page = text_of(web.get(f"/ui/jobs/{one}"))
    for part in ("retrying", "attempt 1 of 20", "w-eu-1", "TimeoutError: first failure", "1 frame of libraries", "vip"):
        assert part in page, part
    assert "queued" in page  # the time line
    assert f"headgate job redrive {one}" in page
    assert f"/v1/jobs/{one}/redrive" in page


def test_secrets_are_masked_in_headers_progress_and_reasons(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic, headers={"authorization": "Bearer hunter2", "note": "password=hunter2"})
    (job,) = claimed(api, topic)
    named = {"epoch": job["epoch"], "worker_id": "w-1"}
    beat = named | {"progress": {"done": 26, "total": 50, "message": "token=hunter2 is used"}}
    assert api.post(f"/v1/jobs/{one}/heartbeat", json=beat).status_code == 200
    until(lambda: 'value="26" max="50"' in web.get(f"/ui/jobs/{one}").text, "the progress is written")
    page = web.get(f"/ui/jobs/{one}")
    assert "token=••• is used" in text_of(page)
    assert "hunter2" not in page.text
    nack = named | {"delay_ms": 3_600_000, "reason": "api_key=hunter2 is refused"}
    assert api.post(f"/v1/jobs/{one}/nack", json=nack).status_code == 200
    page = web.get(f"/ui/jobs/{one}")
    assert "api_key=••• is refused" in text_of(page)
    assert "hunter2" not in page.text
    paused = {"target": {"topic": topic}, "reason": "password=hunter2 leaked"}
    assert api.post("/v1/pause", json=paused).status_code == 200
    audit = web.get(f"/ui/audit?target={topic}")
    assert "password=••• leaked" in text_of(audit)
    assert "hunter2" not in audit.text


def test_progress_is_shown_with_its_message(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    (job,) = claimed(api, topic)
    beat = {"epoch": job["epoch"], "worker_id": "w-1", "progress": {"done": 26, "total": 50, "message": CANARY}}
    assert api.post(f"/v1/jobs/{one}/heartbeat", json=beat).status_code == 200
    until(lambda: 'value="26" max="50"' in web.get(f"/ui/jobs/{one}").text, "the progress is written")
    page = web.get(f"/ui/jobs/{one}")
    assert "52 %, 26 of 50" in text_of(page)
    assert "<img src=x" not in page.text


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"payload": None}, "null"),
        ({"payload": True}, "true"),
        ({"payload": -1.5e300}, "-1.5e+300"),
        ({"payload": 2**70}, str(2**70)),
        ({"payload": CANARY}, json.dumps(CANARY)),
        ({"payload": [[], {}, [1, {"deep": [CANARY]}]]}, json.dumps(CANARY)),
        ({"payload": {CANARY: CANARY}}, CANARY),
        ({"payload_base64": base64.b64encode(b"\x00\xff<b>").decode()}, "00 ff 3c 62 3e"),
        ({"payload_base64": base64.b64encode(b"plain <b>text</b>").decode()}, "plain <b>text</b>"),
        ({}, "The payload is empty."),
    ],
)
def test_a_payload_of_every_kind_is_shown_as_text(
    web: Visit, api: httpx.Client, topic: str, body: dict[str, Any], shown: str
) -> None:
    (one,) = submitted(api, topic, **body)
    page = web.get(f"/ui/jobs/{one}")
    assert page.status_code == 200
    assert shown in text_of(page)
    for part in ("<img", "<b>", str(1234 * 5678)):
        assert part not in page.text, part
    submit = web.get(f"/ui/jobs/new?like={one}")
    assert submit.status_code == 200
    assert "<img src=x" not in submit.text


def test_a_large_payload_is_a_download_and_secrets_are_masked(web: Visit, api: httpx.Client, topic: str) -> None:
    (large,) = submitted(api, topic, payload={"password": "hunter2", "text": "x" * 70_000})
    page = web.get(f"/ui/jobs/{large}")
    assert "68 KiB: too large to be shown here" in text_of(page)
    assert len(page.text) < 60_000
    file = web.get(f"/ui/jobs/{large}/payload")
    assert file.headers["content-disposition"] == f'attachment; filename="{large}-payload.json"'
    assert "sandbox" in file.headers["content-security-policy"]
    assert file.json() == {"password": "•••", "text": "x" * 70_000}
    (small,) = submitted(api, topic, payload={"password": "hunter2", "user": "ada"})
    # Without a digit: those are # in the title of a group, which would hide that it is not masked.
    died(api, topic, message="password=swordfish was refused", traceback="token: swordfish")
    own = [f"/ui/jobs/{small}{part}" for part in ("", "/payload", "/edit")]
    charts = f"/ui/charts?topic={topic}"
    for path in (*own, "/ui/dead", "/ui/jobs", "/ui", "/ui/charts", charts):
        answer = web.get(path)
        assert answer.status_code == 200
        assert "hunter2" not in answer.text, path
        assert "swordfish" not in answer.text, path
    assert "password=••• was refused" in text_of(web.get(charts))
    assert "masked" in text_of(web.get(f"/ui/jobs/{small}"))


def test_long_errors_are_whole_and_escaped(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    long = "\n".join(f"line {number} {CANARY}" for number in range(200))[:8_000]
    died(api, topic, message=long, traceback="x" * 60_000)
    page = web.get(f"/ui/jobs/{one}")
    assert page.status_code == 200
    assert "line 150" in text_of(page)
    assert "x" * 60_000 in page.text
    assert "<img src=x" not in page.text
    assert len(web.get(f"/ui/jobs?filter=topic:{topic}").text) < 40_000  # a list shows one line


def test_a_result_and_related_jobs_are_shown(web: Visit, api: httpx.Client, topic: str) -> None:
    (parent,) = submitted(api, topic)
    (child,) = submitted(api, f"{topic}-child", depends_on=[parent], unique={"key": "order-7"})
    (job,) = claimed(api, topic)
    done = {"epoch": job["epoch"], "worker_id": "w-1", "result": {"sent": True}}
    assert api.post(f"/v1/jobs/{parent}/complete", json=done).status_code == 200
    page = web.get(f"/ui/jobs/{parent}")
    assert "sent true" in re.sub(r"[: ]+", " ", text_of(page))
    assert f'href="/ui/jobs/{child}"' in page.text
    assert web.get(f"/ui/jobs/{parent}/result").json() == {"sent": True}
    other = web.get(f"/ui/jobs/{child}")
    assert f'href="/ui/jobs/{parent}"' in other.text
    assert "order-7" in text_of(other)


# ---------------------------------------------------------------------- edit and redrive


def test_the_unique_key_of_a_job_leads_to_the_jobs_with_the_same_one(web: Visit, api: httpx.Client, topic: str) -> None:
    (first,) = submitted(api, topic, unique={"key": 'user "42"'})
    (job,) = claimed(api, topic)
    done = {"worker_id": "w-1", "outcomes": [{"id": first, "epoch": job["epoch"], "completed": {}}]}
    assert api.post("/v1/jobs/outcomes", json=done).status_code == 200
    (second,) = submitted(api, topic, unique={"key": 'user "42"'}, key="order-7")
    assert first != second
    assert api.get(f"/v1/jobs/{second}").json()["key"] == "order-7"
    page = web.get(f"/ui/jobs/{second}").text
    links = {
        unescape(one[2]): unescape(one[1]) for one in re.finditer(r'<a href="([^"]+)">(Jobs with this [^<]+)<', page)
    }
    assert list(links) == ["Jobs with this unique key"]  # an idempotency key has one job: this one
    assert "order-7" in page
    assert set(re.findall(r'data-id="([^"]+)"', web.get(links["Jobs with this unique key"]).text)) == {first, second}
    assert "idempotency key" not in web.get(f"/ui/jobs/{first}").text.lower()


def test_an_edited_payload_keeps_what_is_masked(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic, payload={"user": {"name": "ada", "password": "hunter2"}, "n": 1})
    died(api, topic)
    form = web.get(f"/ui/jobs/{one}/edit")
    assert "•••" in form.text
    assert "hunter2" not in form.text
    edited = '{"user": {"name": "grace", "password": "•••"}, "n": 2}'
    page = web.followed(web.post(f"/ui/jobs/{one}/edit", payload=edited, reason="typo", delay="5m"))
    assert "Redriven with the edited payload." in text_of(page)
    job = api.get(f"/v1/jobs/{one}?with_payload=true&with_events=true").json()
    assert job["payload"] == {"user": {"name": "grace", "password": "hunter2"}, "n": 2}
    assert (job["state"], job["events"][-1]["reason"]) == ("scheduled", "typo")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"payload": '{"n": }'}, "payload: is not JSON: expecting value, line 1, column 7"),
        ({"payload": '{"n": 1, "n": 2}'}, "payload: is not JSON: the name 'n' occurs twice"),
        ({"payload": '{"other_password": "•••"}'}, "other_password is •••, and nothing is stored there"),
        ({"payload": "{}", "delay": "soon"}, "delay: is not a duration"),
    ],
)
def test_a_payload_that_cannot_be_used_is_shown_at_its_field(
    web: Visit, api: httpx.Client, topic: str, fields: dict[str, str], error: str
) -> None:
    (one,) = submitted(api, topic, payload={"password": "x"})
    died(api, topic)
    answer = web.post(f"/ui/jobs/{one}/edit", **fields)
    assert answer.status_code == 400
    assert error in text_of(answer)
    assert 'aria-invalid="true"' in answer.text
    assert api.get(f"/v1/jobs/{one}").json()["state"] == "dead"


def test_a_job_that_is_not_over_has_no_form_to_edit(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    assert web.get(f"/ui/jobs/{one}/edit").status_code == 409
    answer = web.post(f"/ui/jobs/{one}/edit", payload="{}")
    assert answer.status_code == 409
    assert "wrong_state" in answer.text


# ---------------------------------------------------------------------- submit


def test_a_job_is_submitted_with_options(web: Visit, api: httpx.Client, topic: str) -> None:
    fields = {"topic": topic, "payload": '{"a": 1.10}', "priority": "high", "tags": "a, b", "delay": "5m", "key": "k"}
    page = web.followed(web.post("/ui/jobs/new", **fields, max_attempts="3", unique="u"))
    assert "Job submitted." in text_of(page)
    (job,) = api.get(f"/v1/jobs?filter=topic:{topic}").json()["jobs"]
    known = api.get(f"/v1/jobs/{job['id']}?with_payload=true").json()
    assert (known["state"], known["priority"], known["tags"], known["max_attempts"]) == ("scheduled", 10, ["a", "b"], 3)
    assert known["unique_key"] == "u"
    assert api.get(f"/v1/jobs/{job['id']}/payload").text == '{"a": 1.10}'  # as it was typed
    again = web.followed(web.post("/ui/jobs/new", **fields, max_attempts="3", unique="u"))
    assert "exists already" in text_of(again)
    other = web.post("/ui/jobs/new", **fields | {"payload": "{}"})
    assert other.status_code == 400
    assert 'data-field="key"' in other.text


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("topic", "", "topic: is missing"),
        ("topic", "no spaces please", "topic: "),
        ("payload", "{", "payload: is not JSON: expecting property name enclosed in double quotes, line 1, column 2"),
        ("payload", "NaN", "payload: is not JSON"),
        ("priority", "12.5", "priority: must be one of"),
        ("priority", "99999999999", "priority: "),
        ("delay", "tomorrow", "delay: is not a duration"),
        ("delay", "9999d", "delay: "),
        ("max_attempts", "0", "max_attempts: "),
        ("tags", ",".join(f"t{number}" for number in range(21)), "tags: "),
        ("key", "k" * 256, "key: "),
        ("unique", "u" * 256, "unique"),
    ],
)
def test_a_field_that_is_refused_is_named_and_keeps_what_was_typed(
    web: Visit, api: httpx.Client, topic: str, field: str, value: str, error: str
) -> None:
    fields = {"topic": topic, "payload": '{"kept": 1}', "tags": "kept-tag"} | {field: value}
    answer = web.post("/ui/jobs/new", **fields)
    assert answer.status_code == 400
    assert error in text_of(answer)
    marked = re.search(r'<div class="field invalid" data-field="([a-z_]+)"', answer.text)
    assert marked is not None
    assert marked[1] == field
    assert "kept" in answer.text
    assert api.get(f"/v1/jobs?filter=topic:{topic}").json()["jobs"] == []


def test_an_operator_sees_masked_values_once_and_the_audit_has_it(
    web: Visit, as_: As, api: httpx.Client, topic: str
) -> None:
    viewer = as_(VIEWER)
    (one,) = submitted(api, topic, payload={"password": "hunter2", "user": "ada"})
    died(api, topic, message="password=swordfish was refused")
    path = f"/ui/jobs/{one}/reveal"
    assert "Show masked values" in text_of(web.get(f"/ui/jobs/{one}"))
    assert "Show masked values" not in text_of(viewer.get(f"/ui/jobs/{one}"))
    assert viewer.post(path, confirmed="1").status_code == 403
    asked = web.post(path, question="Show them?")
    assert "Please confirm" in asked.text
    assert "hunter2" not in asked.text
    assert api.get(f"/v1/audit?target=job {one}").json()["entries"] == []
    shown = web.post(path, confirmed="1")
    assert shown.status_code == 200
    assert "no-store" in shown.headers["cache-control"]
    assert "hunter2" in shown.text
    assert "password=swordfish was refused" in text_of(shown)
    (entry,) = api.get(f"/v1/audit?target=job {one}").json()["entries"]
    assert (entry["verb"], entry["target"]) == ("reveal", f"job {one}")
    assert f'href="/ui/jobs/{one}"' in web.get("/ui/audit?verb=reveal").text
    assert "hunter2" not in web.get(f"/ui/jobs/{one}").text


def test_a_job_without_masked_values_offers_none(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic, payload={"user": "ada"})
    assert "Show masked values" not in text_of(web.get(f"/ui/jobs/{one}"))


def logged(api: httpx.Client, job: dict[str, Any], *lines: dict[str, Any]) -> None:
    """Send log lines of an attempt, and wait until the last one is stored."""
    beat = {"epoch": job["epoch"], "worker_id": "w-1", "logs": list(lines)}
    assert api.post(f"/v1/jobs/{job['id']}/heartbeat", json=beat).status_code == 200
    last = (job["epoch"], lines[-1]["seq"])
    until(lambda: last in [(one["epoch"], one["seq"]) for one in read_log(api, job["id"])], "the lines are stored")


def read_log(api: httpx.Client, job_id: str, **query: object) -> list[dict[str, Any]]:
    answer = api.get(f"/v1/jobs/{job_id}/logs", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["lines"]
    return found


def test_each_attempt_has_its_log_masked_and_as_text(web: Visit, api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    (job,) = claimed(api, topic)
    page = web.get(f"/ui/jobs/{one}")
    assert "headgate worker --job-logs INFO" in text_of(page)  # the empty state says how
    lines = [
        {"seq": 1, "level": "warning", "logger": "shop.mail", "text": f"password=hunter2 {CANARY}"},
        {"seq": 5, "level": "error", "text": "\x1b[31mred\x1b[0m \x07bell", "at_us": 1_700_000_000_000_000},
    ]
    logged(api, job, *lines)
    nack = {"epoch": job["epoch"], "worker_id": "w-1", "delay_ms": 0}
    assert api.post(f"/v1/jobs/{one}/nack", json=nack).status_code == 200
    (again,) = claimed(api, topic)
    logged(api, again, {"seq": 1, "text": "a second time"})
    page = web.get(f"/ui/jobs/{one}")
    said = text_of(page)
    assert "<img src=x" not in page.text
    assert "hunter2" not in page.text
    for part in ("WARNING", "shop.mail", "password=•••", CANARY, "… 3 lines were left out", "ERROR", "red \x07bell"):
        assert part in said, part
    assert "22:13:20.000" in said  # the time of the worker, UTC
    assert "--job-logs INFO" not in said
    newest, older = said.index("a second time"), said.index("password=•••")
    assert newest < older  # attempts newest first
    assert "Log of attempt 1" in page.text
    assert f"headgate job logs {one}" in said


def test_the_log_of_a_job_is_read_in_pages_and_by_attempt(api: httpx.Client, topic: str) -> None:
    (one,) = submitted(api, topic)
    (job,) = claimed(api, topic)
    logged(api, job, *({"seq": seq, "text": f"line {seq}"} for seq in range(1, 6)))
    found, after = [], ""
    while True:
        page = api.get(f"/v1/jobs/{one}/logs", params={"limit": 2, "after": after}).json()
        found += [line["text"] for line in page["lines"]]
        after = page.get("cursor", "")
        if not page.get("more"):
            break
    assert found == [f"line {seq}" for seq in range(1, 6)]
    assert api.get(f"/v1/jobs/{one}/logs", params={"after": after}).json() == {"lines": []}
    assert [line["text"] for line in read_log(api, one, newest=True, limit=2)] == ["line 4", "line 5"]
    assert read_log(api, one, attempt=2) == []
    assert len(read_log(api, one, attempt=1)) == 5
    assert read_log(api, one)[0] | {"at_us": 0} == {
        "attempt": 1,
        "epoch": job["epoch"],
        "seq": 1,
        "at_us": 0,
        "level": "info",
        "text": "line 1",
    }


def test_a_log_that_cannot_be_read_has_the_same_answer_as_its_job(
    api: httpx.Client, topic: str, running: tuple[ServerProcess, str], as_: As
) -> None:
    (one,) = submitted(api, topic)
    (job,) = claimed(api, topic)
    logged(api, job, {"seq": 1, "text": "ours"})
    headers = {"authorization": f"Bearer {OTHER}"}
    as_other_tenant = http_clients.client(base_url=running[0].http_url, headers=headers)
    assert as_(OTHER).get(f"/ui/jobs/{one}").status_code == 404
    problem = as_other_tenant.get(f"/v1/jobs/{one}/logs")
    nobodys = as_other_tenant.get(f"/v1/jobs/{NOBODYS}/logs")
    assert (problem.status_code, nobodys.status_code) == (404, 404)
    assert problem.json()["detail"] == nobodys.json()["detail"].replace(NOBODYS, one)
    beat = {"epoch": job["epoch"], "worker_id": "w-1", "logs": [{"seq": 2, "text": "theirs"}]}
    assert as_other_tenant.post(f"/v1/jobs/{one}/heartbeat", json=beat).status_code == 404
    assert api.post(f"/v1/jobs/{one}/heartbeat", json=beat | {"epoch": job["epoch"] + 1}).status_code == 409
    for query in ({"after": "x"}, {"after": "1.1", "newest": "true"}, {"limit": "0"}, {"attempt": "-1"}):
        assert api.get(f"/v1/jobs/{one}/logs", params=query).status_code == 400, query
    many = [{"seq": seq, "text": ""} for seq in range(1, 202)]
    no_lines = [{"text": ""}]  # what is no line at all is refused; a value that cannot be stored never costs the lease
    for logs in (many, [{"seq": 0, "text": ""}], [{"seq": 1, "text": "", "level": "loud"}], no_lines):
        answer = api.post(f"/v1/jobs/{one}/heartbeat", json={"epoch": job["epoch"], "logs": logs})
        assert answer.status_code == (400 if logs is no_lines else 200), logs
    as_other_tenant.close()
    assert [line["text"] for line in read_log(api, one)] == ["ours"]
