"""Jobs over HTTP: submit, read, wait, search, verbs, batches, bulk operations."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.e2e.http.conftest import LIMITED, OTHER, OWNER, READER, Client
from tests.support.server import ServerProcess
from tests.support.waiting import until
from tests.support.wire import Wire, failed

NOBODYS = "01890000-0000-7000-8000-000000000000"


def submitted(api: httpx.Client, topic: str, **more: Any) -> str:
    answer = api.post("/v1/jobs", json={"topic": topic, **more})
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["id"]
    assert answer.headers["location"] == f"/v1/jobs/{job_id}"
    return str(job_id)


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["code"], body["status"], body["type"]) == (code, status, f"urn:headgate:error:{code}")
    assert body["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    return body


def work(address: str, topic: str, *, result: bytes | None) -> None:
    """One attempt of one job, by gRPC: completed with a result, or failed for good."""

    async def once() -> None:
        async with Wire(address, token=OWNER) as wire, wire.worker() as session:
            await session.ready(1, topic)
            (job,) = await session.take()
            if result is None:
                await session.report(failed(job, "it cannot be done", permanent=True))
            else:
                await session.complete(job, results=[result])

    asyncio.run(once())


# ---------------------------------------------------------------------- submit and read


def test_a_job_is_submitted_read_and_shown_as_json(api: httpx.Client, topic: str) -> None:
    job_id = submitted(api, topic, payload={"to": "ada", "n": [1, 2.50]}, priority=7, headers={"x": "y"}, tags=["a"])
    job = api.get(f"/v1/jobs/{job_id}", params={"with_payload": True}).json()
    assert (job["id"], job["topic"], job["state"], job["tenant"]) == (job_id, topic, "pending", "own")
    assert (job["priority"], job["payload"], job["headers"]) == (7, {"to": "ada", "n": [1, 2.5]}, {"x": "y"})
    assert "worker" not in job, "what is not set is left out"
    raw = api.get(f"/v1/jobs/{job_id}/payload")
    assert (raw.headers["content-type"], raw.content) == ("application/json", b'{"to":"ada","n":[1,2.5]}')


def test_other_bytes_come_back_with_their_content_type(api: httpx.Client, topic: str) -> None:
    image = b"\x89PNG\r\n\x00\xff"
    given = {"payload_base64": base64.b64encode(image).decode(), "content_type": "image/png"}
    job_id = submitted(api, topic, **given)
    raw = api.get(f"/v1/jobs/{job_id}/payload")
    assert (raw.headers["content-type"], raw.content) == ("image/png", image)
    assert raw.headers["content-disposition"] == "attachment", "a browser must not open it as a page of the server"
    job = api.get(f"/v1/jobs/{job_id}", params={"with_payload": True}).json()
    assert base64.b64decode(job["payload_base64"]) == image
    assert "payload" not in job


def test_an_etag_saves_the_second_reading_until_the_job_changes(api: httpx.Client, topic: str) -> None:
    job_id = submitted(api, topic)
    first = api.get(f"/v1/jobs/{job_id}")
    again = api.get(f"/v1/jobs/{job_id}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    for known in (f"W/{first.headers['etag']}", f'"another", W/{first.headers["etag"]}', "*"):  # as proxies send it
        assert api.get(f"/v1/jobs/{job_id}", headers={"if-none-match": known}).status_code == 304
    assert api.get(f"/v1/jobs/{job_id}", headers={"if-none-match": '"another"'}).status_code == 200
    assert api.post(f"/v1/jobs/{job_id}/reprioritise", json={"priority": 3}).json()["changed"]
    changed = api.get(f"/v1/jobs/{job_id}", headers={"if-none-match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["priority"]) == (200, 3)


def test_the_same_key_is_the_same_job_and_another_body_is_a_conflict(api: httpx.Client, topic: str) -> None:
    body, headers = {"topic": topic, "payload": 1}, {"idempotency-key": f"key-{uuid4()}"}
    first = api.post("/v1/jobs", json=body, headers=headers)
    again = api.post("/v1/jobs", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"index": 0, "id": first.json()["id"], "code": "duplicate", "error": None}
    other = problem(api.post("/v1/jobs", json=body | {"payload": 2}, headers=headers), 409, "conflict")
    assert other["job_id"] == first.json()["id"]


def test_a_batch_is_answered_one_by_one_or_all_or_nothing(api: httpx.Client, topic: str) -> None:
    jobs = [{"topic": topic, "payload": n} for n in range(3)]
    receipts = api.post("/v1/jobs/batch", json={"jobs": jobs}).json()["receipts"]
    assert [one["code"] for one in receipts] == ["created"] * 3
    bad = [*jobs, {"topic": topic, "depends_on": [NOBODYS]}]
    mixed = api.post("/v1/jobs/batch", json={"jobs": bad}, headers={"idempotency-key": "b"}).json()["receipts"]
    assert [one["code"] for one in mixed] == ["created"] * 3 + ["refused"]
    assert mixed[3]["error"]["code"]
    repeated = api.post("/v1/jobs/batch", json={"jobs": jobs}, headers={"idempotency-key": "b"}).json()["receipts"]
    assert [one["code"] for one in repeated] == ["duplicate"] * 3
    refused = api.post("/v1/jobs/batch", json={"jobs": bad, "atomic": True})
    assert refused.status_code >= 400
    assert api.get("/v1/jobs/count", params={"filter": f"topic:{topic}"}).json()["total"] == 6


@pytest.mark.req("W10")
def test_a_result_is_waited_for_and_comes_as_it_is(api: httpx.Client, the_server: ServerProcess, topic: str) -> None:
    job_id = submitted(api, topic)
    soon = api.get(f"/v1/jobs/{job_id}/result")
    assert (soon.status_code, soon.json()["state"]) == (202, "pending")
    worker = threading.Thread(target=work, args=(the_server.address, topic), kwargs={"result": b'{"sum": 3}'})
    worker.start()
    done = api.get(f"/v1/jobs/{job_id}/result", params={"wait_seconds": 50})
    worker.join()
    assert (done.status_code, done.headers["content-type"], done.content) == (200, "application/json", b'{"sum": 3}')
    waited = api.get(f"/v1/jobs/{job_id}/wait").json()
    assert (waited["state"], waited["result"], waited["attempt"]) == ("completed", {"sum": 3}, 1)


def test_a_dead_job_has_no_result_is_grouped_and_redriven(
    api: httpx.Client, the_server: ServerProcess, topic: str
) -> None:
    job_id = submitted(api, topic, payload={"n": 1})
    work(the_server.address, topic, result=None)
    answer = problem(api.get(f"/v1/jobs/{job_id}/result"), 409, "wrong_state")
    assert "dead" in answer["detail"]
    job = api.get(f"/v1/jobs/{job_id}", params={"with_events": True}).json()
    assert [event["kind"] for event in job["events"]] == ["failed"]
    (group,) = api.get("/v1/dead-letters", params={"topic": topic}).json()["groups"]
    assert (group["count"], group["sample_id"]) == (1, job_id)
    redriven = api.post(f"/v1/jobs/{job_id}/redrive", json={"payload": {"n": 2}, "reason": "try 2"}).json()
    assert (redriven["changed"], redriven["state"]) == (True, "pending")
    assert api.get(f"/v1/jobs/{job_id}", params={"with_payload": 1}).json()["payload"] == {"n": 2}


# ---------------------------------------------------------------------- search and verbs


def test_jobs_are_listed_page_by_page_and_counted(api: httpx.Client, topic: str) -> None:
    ids = [submitted(api, topic) for _ in range(5)]
    found, cursor = list[str](), ""
    while True:
        page = api.get("/v1/jobs", params={"filter": f"topic:{topic}", "limit": 2, "cursor": cursor}).json()
        found += [job["id"] for job in page["jobs"]]
        if not (cursor := page.get("cursor", "")):
            break
    assert found == ids[::-1]
    oldest = api.get("/v1/jobs", params={"filter": f"topic:{topic}", "oldest_first": "true", "limit": 1}).json()
    assert oldest["jobs"][0]["id"] == ids[0]
    assert api.get("/v1/jobs/count", params={"filter": f"topic:{topic}"}).json() == {
        "counts": {"pending": 5},
        "total": 5,
        "exact": True,
    }
    assert api.get("/v1/ids", params={"prefix": ids[0]}).json() == {"ids": [ids[0]], "more": False}


def test_verbs_change_one_job_or_many(api: httpx.Client, topic: str) -> None:
    one, two = submitted(api, topic), submitted(api, topic)
    assert api.post(f"/v1/jobs/{one}/move", json={"topic": f"{topic}-b"}).json()["changed"]
    assert api.get(f"/v1/jobs/{one}").json()["topic"] == f"{topic}-b"
    assert api.post(f"/v1/jobs/{one}/cancel").json() == {"id": one, "changed": True, "state": "cancelled"}
    answer = api.post("/v1/jobs/cancel", json={"ids": [one, two, NOBODYS], "reason": "test"}).json()["results"]
    assert [(change["changed"], change.get("error", {}).get("code")) for change in answer] == [
        (False, "wrong_state"),
        (True, None),
        (False, "not_found"),
    ]
    assert api.post("/v1/jobs/redrive", json={"ids": [two]}).json()["results"][0]["state"] == "pending"
    assert api.post("/v1/jobs/reprioritise", json={"ids": [two], "priority": 9}).json()["results"][0]["changed"]
    assert api.post("/v1/jobs/move", json={"ids": [two], "topic": f"{topic}-b"}).json()["results"][0]["changed"]
    problem(api.post(f"/v1/jobs/{two}/discard"), 409, "wrong_state")
    assert api.post(f"/v1/jobs/{one}/discard", json={"reason": "gone"}).json()["changed"]
    problem(api.get(f"/v1/jobs/{one}"), 404, "not_found")
    assert api.post("/v1/jobs/discard", json={"ids": [one]}).json()["results"][0]["error"]["code"] == "not_found"


def test_a_batch_of_jobs_is_opened_filled_and_sealed(api: httpx.Client, topic: str) -> None:
    opened = api.post("/v1/batches", json={"name": "may", "on_done": {"topic": f"{topic}-done", "payload": {"n": 1}}})
    assert opened.status_code == 201
    batch = opened.json()
    assert opened.headers["location"] == f"/v1/batches/{batch['id']}"
    submitted(api, topic, batch=batch["id"])
    assert api.get("/v1/batches", params={"open": True}).json()["batches"][0]["id"] == batch["id"]
    sealed = api.post(f"/v1/batches/{batch['id']}/seal").json()
    assert (sealed["total"], bool(sealed["sealed_us"])) == (1, True)
    assert api.get(f"/v1/batches/{batch['id']}").json()["counts"] == {"pending": 1}
    problem(api.post("/v1/jobs", json={"topic": topic, "batch": batch["id"]}), 409, "batch_sealed")


def test_a_bulk_operation_is_previewed_started_and_followed(api: httpx.Client, topic: str) -> None:
    for _ in range(3):
        submitted(api, topic)
    plan = {"verb": "cancel", "filter": f"topic:{topic}", "reason": "test"}
    preview = api.post("/v1/bulk/preview", json=plan).json()
    assert (preview["total"], preview["eligible"], len(preview["sample"])) == (3, 3, 3)
    started = api.post("/v1/bulk", json=plan)
    assert started.status_code == 202
    where = started.headers["location"]
    done = until(lambda: (found := api.get(where).json())["state"] == "done" and found, "the operation is done")
    assert (done["changed"], done["who"]) == (3, "owner")
    assert api.get("/v1/bulk").json()["operations"][0]["id"] == done["id"]
    assert api.post(f"{where}/cancel").json()["state"] == "done", "an operation that is over stays as it is"
    problem(api.post("/v1/bulk", json={"verb": "cancel", "filter": "topik:x"}), 400, "invalid_filter")


# ---------------------------------------------------------------------- who may


def test_what_belongs_to_another_tenant_or_topic_looks_like_what_does_not_exist(as_: Client, topic: str) -> None:
    own = as_(OWNER)
    job_id = submitted(own, topic)
    for token in (OTHER, LIMITED):
        stranger = as_(token)
        for path in ("", "/result", "/payload", "/wait"):
            there = problem(stranger.get(f"/v1/jobs/{job_id}{path}", params={}), 404, "not_found")
            none = problem(stranger.get(f"/v1/jobs/{NOBODYS}{path}"), 404, "not_found")
            assert there["detail"].replace(job_id, "?") == none["detail"].replace(NOBODYS, "?")
        problem(stranger.post(f"/v1/jobs/{job_id}/cancel"), 404, "not_found")
    assert own.get(f"/v1/jobs/{job_id}").json()["state"] == "pending"
    problem(as_(LIMITED).post("/v1/jobs", json={"topic": topic}), 403, "permission_denied")
    submitted(as_(LIMITED), "mail")


def test_a_token_needs_the_scope_that_grpc_asks_for(as_: Client, topic: str) -> None:
    reader = as_(READER)
    refused = problem(reader.post("/v1/jobs", json={"topic": topic}), 403, "permission_denied")
    assert '"submit"' in refused["detail"]
    assert reader.get("/v1/jobs").status_code == 200
    problem(reader.post(f"/v1/jobs/{NOBODYS}/cancel"), 403, "permission_denied")


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer nonsense"}, {"authorization": "Basic YTpi"}])
def test_nothing_is_answered_without_a_valid_token(as_: Client, header: dict[str, str]) -> None:
    answer = as_("").get("/v1/jobs", headers=header)
    problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"topic": "a", "topik": "b"}, "topik"),
        ({"topic": "a..b"}, "topic"),
        ({"topic": "a", "delay_ms": 5, "run_at_us": 1_900_000_000_000_000}, "run_at_us"),
        ({"topic": "a", "headers": {"bad name": "x"}}, "headers name"),
        ({"topic": "a", "payload_base64": "!"}, "payload_base64"),
        ({"topic": "a", "max_attempts": 0}, "max_attempts"),
        ({"topic": "a", "retry": {"kind": "explicit"}}, "retry.delays_ms"),
        ({"topic": "a", "id": str(uuid4())}, "id"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_job_that_is_refused_names_its_field(api: httpx.Client, body: dict[str, Any], field: str) -> None:
    assert problem(api.post("/v1/jobs", json=body), 400, "invalid_input")["field"] == field


def test_a_payload_that_is_too_large_names_the_limit(api: httpx.Client) -> None:
    refused = problem(api.post("/v1/jobs", json={"topic": "a", "payload": "x" * 1_048_577}), 413, "too_large")
    assert (refused["field"], refused["limit"]) == ("payload", 1_048_576)
    whole = problem(api.post("/v1/jobs", content=b"{" + b" " * 2_200_000, headers=JSON), 413, "too_large")
    assert (whole["field"], whole["limit"]) == ("body", 2_097_152)
    chunks = (json.dumps({"topic": "a"})[:-1].encode(), *(b" " * 65_536 for _ in range(40)))
    assert api.post("/v1/jobs", content=iter(chunks), headers=JSON).status_code == 413


JSON = {"content-type": "application/json"}
