"""Something of everything in a database, with a canary in every field that takes text: markup that must stay text."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

CANARY = """"'><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}"""
TOPICS = ("mail", "reports.daily", "billing")


@dataclass
class Seed:
    """What there is. `values`: for parameters of paths, by their names."""

    values: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)  # by state


def seeded(api: httpx.Client) -> Seed:
    """Fill a database through the API."""
    seed = Seed()
    for topic in TOPICS:
        for number in range(6):
            submit(api, topic, {"to": CANARY, "number": number, "nested": {"list": [1, 2, {"a": None}]}})
    jobs = seed.jobs
    jobs["pending"] = submit(api, "mail", {"text": CANARY}, tags=["vip", CANARY], headers={"x-note": CANARY})
    jobs["scheduled"] = submit(api, "billing", {"a": 1}, delay_ms=86_400_000)
    jobs["blocked"] = submit(api, "billing", {"b": 1}, depends_on=[jobs["scheduled"]])
    jobs["cancelled"] = submit(api, "billing", {"c": 1})
    done(api.post(f"/v1/jobs/{jobs['cancelled']}/cancel", json={"reason": CANARY}))
    worker = "w-eu-1"
    jobs["completed"] = run(api, worker, "completed", {"result": {"text": CANARY, "pages": [1, 2, 3]}})
    error = {"type": f"ValueError{CANARY}", "message": f"bank {CANARY}", "traceback": f"File app.py, line 7\n{CANARY}"}
    jobs["dead"] = run(api, CANARY, "dead", {**error, "permanent": True})
    jobs["retrying"] = run(api, worker, "retrying", error)
    jobs["running"] = run(api, worker, "running", None)
    done(
        api.put(
            "/v1/schedules/nightly",
            json={
                "spec": {
                    "topic": "reports.daily",
                    "timing": {"cron": {"expression": "0 3 * * *", "zone": "Europe/Berlin"}},
                    "payload": {"x": CANARY},
                }
            },
        )
    )
    webhook = done(
        api.post(
            "/v1/webhooks",
            json={"url": "http://127.0.0.1:65000/hook?q=1", "events": ["job.dead"], "description": CANARY},
        )
    )
    delivery = done(api.post(f"/v1/webhooks/{webhook['id']}/test"))
    batch = done(api.post("/v1/batches", json={"name": CANARY}))
    for number in range(3):
        submit(api, "mail", {"number": number}, batch=batch["id"])
    bulk = done(api.post("/v1/bulk", json={"verb": "redrive", "filter": "state:dead topic:mail", "reason": CANARY}))
    done(api.post("/v1/pause", json={"target": {"topic": "billing"}, "reason": CANARY}))
    key = done(api.post("/v1/keys", json={"name": f"ci {CANARY}"[:100], "scopes": ["read"]}))
    seed.values = {
        "job_id": jobs["dead"],
        "topic": "mail",
        "worker": worker,
        "name": "nightly",
        "schedule": "nightly",
        "operation_id": bulk["id"],
        "batch_id": batch["id"],
        "webhook_id": webhook["id"],
        "delivery_id": delivery["id"],
        "key_id": key["info"]["id"],
    }
    return seed


def submit(api: httpx.Client, topic: str, payload: Any, **more: Any) -> str:
    """Submit a job; returns its id."""
    return str(done(api.post("/v1/jobs", json={"topic": topic, "payload": payload, **more}))["id"])


def run(api: httpx.Client, worker: str, name: str, outcome: dict[str, Any] | None) -> str:
    """A job of a topic of its own that was claimed, and ended in this way; None: it runs."""
    topic = f"state.{name}"
    job_id = submit(api, topic, {"text": CANARY}, max_attempts=3)
    deadline = time.monotonic() + 30
    while True:
        claim = {"worker_id": worker, "topics": [topic], "count": 1, "wait_seconds": 5, "lease_seconds": 600}
        claimed = done(api.post("/v1/jobs/claim", json=claim))["jobs"]
        if claimed:
            break
        assert time.monotonic() < deadline, "the job was not claimed"
    levels = ("debug", "info", "warning", "error", "critical")
    lines = [{"seq": 3 * at, "level": one, "logger": CANARY, "text": CANARY} for at, one in enumerate(levels, 1)]
    beat = {"epoch": claimed[0]["epoch"], "worker_id": worker, "lease_seconds": 600, "logs": lines}
    done(api.post(f"/v1/jobs/{job_id}/heartbeat", json=beat))
    if outcome is not None:
        verb = "complete" if "result" in outcome else "fail"
        done(api.post(f"/v1/jobs/{job_id}/{verb}", json={"epoch": claimed[0]["epoch"], **outcome}))
    return job_id


def done(answer: httpx.Response) -> dict[str, Any]:
    """The body of an answer that must be a success."""
    assert not answer.is_error, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
    found: dict[str, Any] = answer.json() if answer.content else {}
    return found
