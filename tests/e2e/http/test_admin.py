"""Administration over HTTP: topics, dispatch, schedules, workers, retention, audit, health; and HTTP itself."""

from __future__ import annotations

import re
import socket
from typing import Any

import httpx

from tests.e2e.http.conftest import LIMITED, OTHER, SYSTEM, THIRD_ADMIN, Client
from tests.e2e.http.test_jobs import JSON, problem, submitted
from tests.support.server import ServerProcess

DAY_MS = 86_400_000


# ---------------------------------------------------------------------- topics and dispatch


def test_settings_of_a_topic_are_changed_cleared_and_released(api: httpx.Client, topic: str) -> None:
    name = f"{topic}/eu"
    path = f"/v1/topics/{name.replace('/', '%2F')}"
    problem(api.get(path), 404, "not_found")
    settings = {
        "max_attempts": 3,
        "rate": {"count": 5, "period_ms": 1_000},
        "retry": {"kind": "fixed", "base_ms": 50},
        "time_limit_ms": 1_500,
        "ageing_step_us": 250_000,
    }
    changed = api.patch(path, json={"settings": settings, "reason": "launch"}).json()
    assert changed["name"] == name
    assert {key: changed["settings"][key] for key in ("max_attempts", "time_limit_ms", "ageing_step_us")} == {
        "max_attempts": 3,
        "time_limit_ms": 1_500,
        "ageing_step_us": 250_000,
    }
    assert changed["settings"]["rate"] == {"count": 5, "period_ms": 1_000}
    assert changed["settings"]["retry"]["kind"] == "fixed"
    assert changed["origins"]["rate"] | {"at_us": 0} == {
        "origin": "operator",
        "by": "owner",
        "at_us": 0,
        "reason": "launch",
    }
    assert "rate" not in api.patch(path, json={"clear": ["rate"]}).json()["settings"]
    assert "origins" not in api.post(f"{path}/release").json()
    read = api.get(path)
    assert api.get(path, headers={"if-none-match": read.headers["etag"]}).status_code == 304
    assert name in [one["name"] for one in api.get("/v1/topics", params={"limit": 1000}).json()["topics"]]
    assert problem(api.patch(path, json={"clear": ["nonsense"]}), 400, "invalid_input")["field"] == "clear"


def test_a_policy_is_put_previewed_and_compared_by_its_version(api: httpx.Client, topic: str) -> None:
    path = f"/v1/topics/{topic}/policy"
    settings = {"payload_schema": {"type": "object", "required": ["to"]}, "lease_ms": 45_000, "max_consumers": 2}
    planned = api.put(path, json={"settings": settings}, params={"dry_run": True}).json()
    assert [one["setting"] for one in planned["changes"]] == ["lease", "payload_schema", "max_consumers"]
    problem(api.get(path), 404, "not_found")
    done = api.put(path, json={"settings": settings, "reason": "launch"}).json()
    assert (done["changes"], done["before_version"], done["version"]) == (planned["changes"], 0, 1)
    read = api.get(path).json()
    assert {name: read["settings"][name] for name in settings} == settings
    assert {read["origins"][name]["origin"] for name in ("lease", "payload_schema")} == {"operator"}
    problem(api.post("/v1/jobs", json={"topic": topic, "payload": {"from": 3}}), 400, "payload_mismatch")
    problem(api.put(path, json={"settings": {}, "version": 7}), 409, "version_conflict")
    assert problem(api.put(path, json={"settings": {"dead_letter_topic": topic}}), 400, "invalid_input")["field"] == (
        "dead_letter_topic"
    )
    pruned = api.put(path, json={"settings": {"lease_ms": 45_000}, "version": 1}).json()
    assert sorted(one["setting"] for one in pruned["changes"]) == ["max_consumers", "payload_schema"]
    versions = api.get(f"{path}/versions").json()["versions"]
    assert [(one["version"], one["verb"], one.get("reason", "")) for one in versions] == [
        (2, "apply_topic", ""),
        (1, "apply_topic", "launch"),
    ]


def test_declared_rules_are_stored(api: httpx.Client, topic: str) -> None:
    declared = {
        "source": "shop.tasks",
        "worker_id": "w1",
        "topics": [{"name": topic, "settings": {"max_attempts": 4}}],
    }
    (one,) = api.post("/v1/declarations", json=declared).json()["topics"]
    assert one == {"name": topic, "changed": True, "version": 1}
    assert api.get(f"/v1/topics/{topic}").json()["declared"]["source"] == "shop.tasks"


def test_a_topic_is_paused_shown_and_resumed(api: httpx.Client, topic: str) -> None:
    submitted(api, topic)
    paused = api.post("/v1/pause", json={"target": {"topic": topic}, "reason": "test"}).json()
    assert (paused["paused"], paused["target"], paused["who"]) == (True, {"topic": topic}, "owner")
    (seen,) = (one for one in api.get("/v1/status").json()["topics"] if one["topic"] == topic)
    assert (seen["paused"], seen["counts"], seen["unhandled"]) == (True, {"pending": 1}, True)
    assert api.post("/v1/resume", json={"target": {"topic": topic}}).json() == {"changed": True}
    assert api.post("/v1/resume", json={"target": {"topic": topic}}).json() == {"changed": False}
    for target in ({}, {"tenant": True, "topic": topic}):
        assert problem(api.post("/v1/pause", json={"target": target}), 400, "invalid_input")["field"] == "target"


def test_a_resume_that_names_a_pause_ends_no_later_one(api: httpx.Client, topic: str) -> None:
    submitted(api, topic)
    target = {"target": {"topic": topic}}
    first = api.post("/v1/pause", json=target).json()["since_us"]
    second = api.post("/v1/pause", json=target | {"reason": "outage"}).json()["since_us"]
    refused = problem(api.post("/v1/resume", json=target | {"since_us": first}), 409, "version_conflict")
    assert 'with the reason "outage"' in refused["detail"]
    assert api.post("/v1/resume", json=target | {"since_us": second}).json() == {"changed": True}
    path = f"/v1/schedules/{topic}"
    api.put(path, json={"spec": {"topic": topic, "timing": {"every": {"interval_ms": 60_000}}}})
    first = api.post(f"{path}/pause").json()["paused_us"]
    second = api.post(f"{path}/pause").json()["paused_us"]
    problem(api.post(f"{path}/resume", json={"paused_us": first}), 409, "version_conflict")
    assert "paused" not in api.post(f"{path}/resume", json={"paused_us": second}).json()
    for since in (-1, 2**62):
        refused = problem(api.post("/v1/resume", json=target | {"since_us": since}), 400, "invalid_input")
        assert refused["field"] == "since_us"
        refused = problem(api.post(f"{path}/resume", json={"paused_us": since}), 400, "invalid_input")
        assert refused["field"] == "paused_us"


def test_a_pause_that_is_over_or_too_far_ahead_names_its_field_and_limit(api: httpx.Client, topic: str) -> None:
    submitted(api, topic)
    for until, words in ((1, "is over already"), (-1, "at least 0"), (2**62, "at most 253402300799000000")):
        body = {"target": {"topic": topic}, "until_us": until}
        refused = problem(api.post("/v1/pause", json=body), 400, "invalid_input")
        assert words in refused["detail"]
        assert refused["field"].startswith("until")
    assert not any(one.get("paused") for one in api.get("/v1/status").json()["topics"] if one["topic"] == topic)


def test_everything_is_paused_by_the_scope_system_only(api: httpx.Client, as_: Client) -> None:
    target = {"target": {"everything": True}}
    problem(api.post("/v1/pause", json=target), 403, "permission_denied")
    assert as_(SYSTEM).post("/v1/pause", json=target).json()["target"] == {"everything": True}
    assert as_(SYSTEM).post("/v1/resume", json=target).json() == {"changed": True}
    own = as_(OTHER)
    assert own.post("/v1/pause", json={"target": {"tenant": True}}).json()["target"] == {"tenant": True}
    assert own.post("/v1/resume", json={"target": {"tenant": True}}).json() == {"changed": True}


# ---------------------------------------------------------------------- schedules


def test_a_schedule_is_put_read_triggered_paused_and_removed(api: httpx.Client, topic: str) -> None:
    path = f"/v1/schedules/{topic}%2Fweekly"
    timing = {"cron": {"expression": "0 6 * * 1", "zone": "Europe/Berlin"}}
    spec: dict[str, Any] = {"topic": topic, "timing": timing, "payload": {"kind": "weekly"}, "overlap": "skip"}
    put = api.put(path, json={"spec": spec, "expected_version": 0}).json()
    stored = put["schedule"]
    assert (put["changed"], stored["name"], stored["version"]) == (True, f"{topic}/weekly", 1)
    assert (stored["spec"]["payload"], stored["spec"]["timing"], stored["spec"]["overlap"]) == (
        {"kind": "weekly"},
        timing,
        "skip",
    )
    assert api.put(path, json={"spec": spec}).json()["changed"] is False
    problem(api.put(path, json={"spec": spec, "expected_version": 0}), 409, "already_exists")
    problem(api.put(path, json={"spec": spec | {"priority": 1}, "expected_version": 7}), 409, "version_conflict")
    upcoming = api.get(f"{path}/next", params={"count": 2}).json()
    assert (len(upcoming["at_us"]), upcoming["zone"]) == (2, "Europe/Berlin")
    assert api.post(f"{path}/pause", json={"reason": "holiday"}).json()["paused"] is True
    assert "paused" not in api.post(f"{path}/resume").json()
    first = api.post(f"{path}/trigger").json()
    assert first["created"]
    (made,) = api.get(f"{path}/jobs").json()["jobs"]
    assert (made["job_id"], made["triggered"], made["state"]) == (first["job_id"], True, "pending")
    listed = api.get("/v1/schedules", params={"after": topic}).json()["schedules"]
    assert f"{topic}/weekly" in [one["name"] for one in listed]
    assert api.delete(path, params={"reason": "over"}).status_code == 204
    problem(api.get(path), 404, "not_found")


def test_occurrences_of_a_timing_are_previewed(api: httpx.Client) -> None:
    body = {"timing": {"every": {"interval_ms": 60_000}}, "count": 3, "after_us": 1_000_000}
    assert api.post("/v1/occurrences", json=body).json() == {
        "at_us": [60_000_000, 120_000_000, 180_000_000],
        "zone": "UTC",
    }
    for timing in ({}, {"at_us": 1, "cron": {"expression": "* * * * *"}}, {"cron": {"expression": "nonsense"}}):
        problem(api.post("/v1/occurrences", json={"timing": timing}), 400, "invalid_input")


# ---------------------------------------------------------------------- workers, retention, audit, health


def test_a_token_for_some_topics_moves_and_schedules_nothing_to_others(as_: Client) -> None:
    limited = as_(LIMITED)  # the topic mail
    one = submitted(limited, "mail")
    bulk = {"verb": "move", "filter": "topic:mail", "topic": "pay", "reason": "test"}
    spec = {"topic": "pay", "timing": {"every": {"interval_ms": 3_600_000}}}
    for answer in (
        limited.post("/v1/bulk", json=bulk),
        limited.post("/v1/bulk/preview", json=bulk),
        limited.post(f"/v1/jobs/{one}/move", json={"topic": "pay"}),
        limited.post("/v1/jobs/move", json={"ids": [one], "topic": "pay"}),
        limited.put("/v1/schedules/not-ours", json={"spec": spec}),
    ):
        assert "pay" in problem(answer, 403, "permission_denied")["detail"]
    assert limited.get(f"/v1/jobs/{one}").json()["topic"] == "mail"
    problem(limited.get("/v1/schedules/not-ours"), 404, "not_found")


def test_a_worker_is_quiet_wherever_it_connects(api: httpx.Client, as_: Client) -> None:
    assert as_(THIRD_ADMIN).get("/v1/workers", params={"running": True}).json() == {"workers": []}
    quiet = api.post("/v1/workers/img%2F1/quiet", json={"for_ms": 60_000, "reason": "test"}).json()
    assert quiet["until_us"] - quiet["since_us"] == 60_000_000
    assert api.post("/v1/workers/img%2F1/resume").json() == {"changed": True}
    assert api.post("/v1/workers/img%2F1/resume").json() == {"changed": False}


def test_a_worker_without_a_stream_cannot_be_stopped_and_one_that_is_not_connected_is_not_found(
    api: httpx.Client, topic: str
) -> None:
    problem(api.post("/v1/workers/img%2F2/stop", json={"reason": "leak"}), 404, "not_found")
    claim = {"worker_id": "img/2", "topics": [topic]}
    assert api.post("/v1/jobs/claim", json=claim).status_code == 200
    said = problem(api.post("/v1/workers/img%2F2/stop"), 409, "refused")
    assert "send SIGTERM to its process, or make it quiet" in said["detail"]
    assert not [one for one in api.get("/v1/audit").json()["entries"] if one["verb"] == "stop_worker"]


def test_retention_needs_the_scope_system(api: httpx.Client, as_: Client) -> None:
    rules = {"rules": {"completed_ms": 8 * DAY_MS}, "reason": "test"}
    problem(api.patch("/v1/retention", json=rules), 403, "permission_denied")
    assert as_(SYSTEM).patch("/v1/retention", json=rules).json()["completed_ms"] == 8 * DAY_MS
    assert problem(as_(SYSTEM).patch("/v1/retention", json={"rules": {"dead_ms": 5}}), 400, "invalid_input")["field"]
    assert set(as_(SYSTEM).post("/v1/retention/run").json()) == {"jobs", "days", "other", "more", "blocked"}


def test_the_audit_shows_who_changed_what(api: httpx.Client, topic: str) -> None:
    submitted(api, topic)
    api.post("/v1/pause", json={"target": {"topic": topic}, "reason": "seen"})
    api.post("/v1/resume", json={"target": {"topic": topic}})
    newest, before = api.get("/v1/audit", params={"limit": 2}).json()["entries"]
    assert (newest["verb"], before["verb"], before["actor"], before["reason"]) == ("resume", "pause", "owner", "seen")
    following = api.get("/v1/audit", params={"before": before["no"], "limit": 1}).json()["entries"]
    assert all(one["no"] < before["no"] for one in following)


def test_probes_need_no_token_and_reveal_nothing_and_details_need_one(api: httpx.Client, as_: Client) -> None:
    for path in ("/health/live", "/health/ready"):
        assert as_("").get(path).json() == {"status": "ok"}
    problem(as_("").get("/health/details"), 401, "unauthenticated")
    details = api.get("/health/details").json()
    assert details["ready"] is True
    assert {"fsync", "synchronous_commit", "full_page_writes", "problems"} <= set(details["database"])
    assert details["durable"] is (not details["database"]["problems"])


# ---------------------------------------------------------------------- HTTP


def test_a_request_has_an_id_that_is_echoed(api: httpx.Client) -> None:
    assert api.get("/health/live", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = api.get("/health/live", headers={"x-request-id": 'a"b'}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", made)


def test_unknown_paths_methods_types_and_parameters_are_problems(api: httpx.Client, topic: str) -> None:
    problem(api.get("/v1/nonsense"), 404, "unknown_route")
    problem(api.get("/internal/openapi/openapi.json"), 404, "unknown_route")
    problem(api.get("/docs"), 404, "unknown_route")
    answer = api.delete("/v1/jobs")
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    latin = {"content-type": "application/json; charset=latin-1"}
    for headers in ({"content-type": "text/plain"}, {"content-type": "multipart/form-data"}, latin, {}):
        problem(api.post("/v1/jobs", content=b"{}", headers=headers), 415, "unsupported_media_type")
    assert problem(api.get("/v1/jobs", params={"limt": 1}), 400, "invalid_input")["hint"] == "did you mean limit?"
    assert problem(api.get("/v1/jobs", params={"limit": "x"}), 400, "invalid_input")["field"] == "limit"
    assert problem(api.get("/v1/jobs", params={"limit": 0}), 400, "invalid_input")["field"] == "limit"
    assert problem(api.get("/v1/jobs/abc"), 400, "invalid_input")["field"] == "job_id"
    assert problem(api.get("/v1/jobs?limit=1&limit=2"), 400, "invalid_input")["field"] == "limit"
    assert problem(api.get("/v1/jobs?filter=topic:a&filter=topic:b"), 400, "invalid_input")["field"] == "filter"
    assert problem(api.post("/v1/jobs"), 400, "invalid_input")["field"] == "body"
    malformed = problem(api.post("/v1/jobs", content=b'{"topic": "a",}', headers=JSON), 400, "invalid_input")
    assert "line 1, column 14" in malformed["detail"]


def test_a_body_is_not_read_before_its_token_was_checked(the_server: ServerProcess) -> None:
    url = httpx.URL(the_server.http_url)
    head = (
        b"POST /v1/jobs/batch HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 8000000\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port or 0), timeout=60) as peer:
        peer.sendall(head + b'{"jobs": [')
        answer = b"".join(iter(lambda: peer.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 401"), answer
    assert b"connection: close" in answer


def test_a_body_with_a_length_and_chunks_is_refused_and_the_connection_closed(the_server: ServerProcess) -> None:
    url = httpx.URL(the_server.http_url)
    head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection((url.host, url.port or 0), timeout=60) as peer:
        peer.sendall(head + b"0\r\n\r\n" + b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b"".join(iter(lambda: peer.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows is not read as a request"
    assert b"connection: close" in answer


def test_head_and_options_are_answered(api: httpx.Client) -> None:
    head, get = api.head("/v1/status"), api.get("/health/live")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 10
    options = api.options("/v1/jobs")
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    assert get.headers["cache-control"] == "no-store"
    assert get.headers["x-content-type-options"] == "nosniff"
    assert "server" not in get.headers


def test_the_document_is_served_without_a_token(as_: Client, the_server: ServerProcess) -> None:
    document = as_("").get("/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert "/v1/jobs" in document["paths"]
    assert not the_server.seen("ERROR|Traceback"), the_server.shown()
