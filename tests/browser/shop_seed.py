"""A database as a shop would have it after an hour: for the pictures of the documentation, not for tests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import asyncpg
import httpx

from headgate.domain.histogram import WAITS_US
from tests.browser.seed import Seed, done, submit

WORKER = "shop-eu-1"
OTHER_WORKER = "shop-eu-2"
DEADLINE_S = 60
MINUTES = 60
ORDER = 48_210
TRACE = """Traceback (most recent call last):
  File "/srv/shop/payments/jobs.py", line 41, in capture
    receipt = gateway.capture(order.payment_id, amount=order.total)
  File "/srv/shop/payments/gateway.py", line 118, in capture
    return self._call("POST", f"/payments/{payment_id}/capture", body)
  File "/usr/lib/python3.12/site-packages/httpx/_client.py", line 1144, in post
    return self.request("POST", url, content=content)
  File "/srv/shop/payments/gateway.py", line 152, in _call
    raise GatewayError(answer.status_code, answer.json()["error"])
shop.payments.gateway.GatewayError: 402 card_declined: insufficient funds
"""
LOG = (
    ("info", "shop.payments", "capture of order 48210: 129.90 EUR, payment pay_7Kd2"),
    ("warning", "shop.payments.gateway", "the gateway answered 429, asked again after 1.2 s"),
    ("info", "shop.payments.gateway", "POST /payments/pay_7Kd2/capture took 412 ms, api_key=sk_live_51H"),
    ("error", "shop.payments.gateway", "402 card_declined: insufficient funds\nrequest: req_9fA2\nretry: not allowed"),
)
"""Of each attempt of the first topic; what looks secret is masked."""
FAILURES: Sequence[tuple[str, dict[str, Any], dict[str, Any], int]] = (
    (
        "payments.capture",
        {"order": ORDER, "amount": "129.90", "currency": "EUR", "customer": {"id": "c_8812", "country": "DE"}},
        {
            "type": "GatewayError",
            "message": "402 card_declined: insufficient funds",
            "traceback": TRACE,
            "permanent": True,
        },
        5,
    ),
    (
        "images.thumbnail",
        {"image": "p/7713.heic", "width": 640},
        {
            "type": "UnidentifiedImageError",
            "message": "cannot identify image file 'p/7713.heic'",
            "traceback": "",
            "permanent": True,
        },
        3,
    ),
    (
        "mail.welcome",
        {"to": "ada@exmaple.com", "locale": "de"},
        {
            "type": "SMTPRecipientsRefused",
            "message": "550 5.1.2 ada@exmaple.com: domain does not exist",
            "traceback": "",
            "permanent": True,
        },
        2,
    ),
    (
        "payments.capture",
        {"order": ORDER + 7, "amount": "18.00", "currency": "EUR", "customer": {"id": "c_9120", "country": "FR"}},
        {"type": "ReadTimeout", "message": "the gateway did not answer within 10 s", "traceback": ""},
        4,
    ),
)
RETRY = {"kind": "fixed", "base_ms": 1_500_000, "cap_ms": 1_500_000}
RATES = {
    "mail.welcome": 34,
    "invoices.render": 18,
    "images.thumbnail": 26,
    "payments.capture": 15,
    "reports.daily": 1,
    "search.reindex": 1,
}
"""Jobs per minute of each topic."""


def failed_first(api: httpx.Client, seed: Seed) -> None:
    """Before the worker of the shop is there: jobs that a worker over HTTP fails, and one that has not begun."""
    for topic, payload, failure, count in FAILURES:
        for number in range(count):
            paid = topic.startswith("pay")
            more = {"key": f"capture-{payload['order']}-{number}"} if paid else {}
            submit(api, topic, payload, max_attempts=5, tags=["checkout"] if paid else ["shop"], retry=RETRY, **more)
        deadline, left = time.monotonic() + DEADLINE_S, count
        while left:
            assert time.monotonic() < deadline, f"{topic}: the jobs were not claimed"
            claim = {"worker_id": OTHER_WORKER, "topics": [topic], "count": left, "wait_seconds": 5}
            for job in done(api.post("/v1/jobs/claim", json=claim))["jobs"]:
                if failure["traceback"]:
                    _log(api, job)
                done(api.post(f"/v1/jobs/{job['id']}/fail", json={"epoch": job["epoch"], **failure}))
                seed.jobs.setdefault("dead" if failure.get("permanent") else "retrying", job["id"])
                left -= 1
    for number in range(14):
        submit(api, "legacy.export", {"table": "orders_2019", "part": number})


def _log(api: httpx.Client, job: dict[str, Any]) -> None:
    now = time.time_ns() // 1_000
    lines = [
        {"seq": number, "at_us": now + number * 412_000, "level": level, "logger": logger, "text": text}
        for number, (level, logger, text) in enumerate(LOG, 1)
    ]
    done(api.post(f"/v1/jobs/{job['id']}/heartbeat", json={"epoch": job["epoch"], "logs": lines}))


def worked(api: httpx.Client, seed: Seed) -> None:
    """With the worker of the shop: jobs that complete, run and wait; and what operators have set up."""
    people = ("grace", "alan", "barbara", "edsger", "frances", "tony", "leslie", "radia")
    for number in range(40):
        name = people[number % len(people)]
        submit(api, "mail.welcome", {"to": f"{name}{number}@example.com", "locale": "en"}, tags=["shop"])
        submit(api, "invoices.render", {"order": ORDER + number, "total": f"{20 + number * 3}.50"}, tags=["shop"])
        if number % 2:
            submit(api, "images.thumbnail", {"image": f"p/{7_700 + number}.jpg", "width": 320}, tags=["shop"])
    for number in range(6):
        submit(api, "payments.capture", {"order": ORDER + 50 + number, "amount": "49.00"}, tags=["checkout"])
    seed.jobs["running"] = submit(api, "reports.daily", {"day": "2026-11-15", "orders": 10_000})
    submit(api, "search.reindex", {"index": "products-v9", "documents": 250_000}, priority=3)
    seed.jobs["scheduled"] = submit(api, "mail.welcome", {"to": "ken@example.com", "locale": "en"}, delay_ms=5_400_000)
    cancelled = submit(api, "invoices.render", {"order": ORDER - 1, "total": "0.00"}, delay_ms=900_000)
    done(api.post(f"/v1/jobs/{cancelled}/cancel", json={"reason": "the order was withdrawn"}))
    batch = _batch(api)
    mail = {"to": "team@example.com", "locale": "en"}
    for name, topic, cron, payload in (
        ("daily-report", "reports.daily", "30 2 * * *", {}),
        ("reindex", "search.reindex", "0 */6 * * *", {}),
        ("reminders", "mail.welcome", "0 9 * * mon-fri", mail),
    ):
        timing = {"cron": {"expression": cron, "zone": "Europe/Berlin"}}
        spec = {"topic": topic, "timing": timing, "payload": payload, "overlap": "skip", "when_full": "skip"}
        done(api.put(f"/v1/schedules/{name}", json={"spec": spec}))
    for _ in range(7):
        done(api.post("/v1/schedules/reminders/trigger"))
    webhook = done(
        api.post(
            "/v1/webhooks",
            json={
                "url": "http://127.0.0.1:65000/headgate",
                "events": ["job.dead"],
                "description": "on-call channel of the shop",
            },
        )
    )
    delivery = done(api.post(f"/v1/webhooks/{webhook['id']}/test"))
    bulk = done(
        api.post(
            "/v1/bulk", json={"verb": "redrive", "filter": "state:dead topic:mail.welcome", "reason": "DNS is back"}
        )
    )
    done(api.post("/v1/pause", json={"target": {"topic": "partner.sync"}, "reason": "their API is in maintenance"}))
    key = {}
    for name, scopes in (("checkout service", ["submit"]), ("workers eu", ["work"]), ("grafana", ["read"])):
        key = done(api.post("/v1/keys", json={"name": name, "scopes": scopes}))
    seed.values = {
        "job_id": seed.jobs["dead"],
        "topic": "payments.capture",
        "worker": WORKER,
        "name": "daily-report",
        "operation_id": bulk["id"],
        "batch_id": batch,
        "webhook_id": webhook["id"],
        "delivery_id": delivery["id"],
        "key_id": key["info"]["id"],
    }


def _batch(api: httpx.Client) -> str:
    for number in range(9):
        submit(api, "partner.sync", {"partner": "acme", "page": number})
    batch = str(done(api.post("/v1/batches", json={"name": "import of the winter catalogue"}))["id"])
    first = submit(api, "invoices.render", {"order": 1, "total": "1.00"}, batch=batch)
    prices = submit(api, "images.thumbnail", {"image": "p/1.jpg", "width": 64}, batch=batch, depends_on=[first])
    exported = submit(api, "legacy.export", {"table": "stock"}, batch=batch, depends_on=[first])
    submit(api, "mail.welcome", {"to": "ops@example.com", "locale": "en"}, batch=batch, depends_on=[prices, exported])
    return batch


async def write_history(dsn: str) -> None:
    """An hour of rollups instead of the minute in which all of it happened; and two browsers that are signed in."""
    db = await asyncpg.connect(dsn)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while await db.fetchval("SELECT count(*) FROM headgate.flow_deltas"):
            assert time.monotonic() < deadline, "changes are not folded"
            await asyncio.sleep(0.2)
        topics = await db.fetch("SELECT tenant_no, topic_no, name FROM headgate.topics")
        tenant = topics[0]["tenant_no"]
        now = await db.fetchval("SELECT date_trunc('minute', headgate.clock_v1())")
        await db.execute("DELETE FROM headgate.flow_buckets WHERE seconds = 60")
        await db.execute("DELETE FROM headgate.latency_buckets WHERE seconds = 60")
        for ago in range(MINUTES):
            rows = [(row["topic_no"], _flow(RATES[row["name"]], ago)) for row in topics if row["name"] in RATES]
            total = tuple(sum(column) for column in zip(*(flow for _, flow in rows), strict=True))
            for topic_no, flow in [*rows, (0, total)]:
                await db.execute(FLOW, tenant, topic_no, now, ago, *flow, _oldest_ms(ago))
                await db.execute(LATENCY, tenant, topic_no, now, ago, _waits(ago, 5), _waits(ago + 7, 8))
            await db.execute(FLOW, 0, 0, now, ago, 0, 0, 0, 0, 0, 0, None)
        await db.execute(SKIPS)
        browsers = (("bcdefghijk", "Firefox 132 on Linux"), ("cdefghijkl", "Chrome 131 on macOS"))
        for number, (session, agent) in enumerate(browsers):
            await db.execute(SESSION, session, bytes([number]) * 32, agent, f"10.2.0.{17 + number}", number, tenant)
    finally:
        await db.close()


FLOW = """
INSERT INTO headgate.flow_buckets
       (tenant_no, topic_no, seconds, at, submitted, started, completed, retried, failed, dead, oldest_ms, changes)
VALUES ($1, $2, 60, $3::timestamptz - $4 * interval '1 minute', $5, $6, $7, $8, $9, $10, $11, 1)
ON CONFLICT (tenant_no, topic_no, seconds, at) DO NOTHING"""
LATENCY = """
INSERT INTO headgate.latency_buckets (tenant_no, topic_no, seconds, at, pickup, run)
VALUES ($1, $2, 60, $3::timestamptz - $4 * interval '1 minute', $5, $6)"""
SKIPS = """
UPDATE headgate.schedules
   SET skipped = 2, last_skip = 'overlap', last_skip_at = headgate.clock_v1() - interval '7 minutes',
       skips_at = ARRAY[headgate.clock_v1() - interval '7 minutes', headgate.clock_v1() - interval '1 day'],
       skips_why = ARRAY['overlap', 'refused']
 WHERE name IN ('daily-report', 'reminders')"""
SESSION = """
INSERT INTO headgate.web_sessions
       (id, digest, tenant_no, subject, credential, scopes, topics, credential_expires, created_at, expires_at,
        seen_at, address, agent)
SELECT $1, $2, $6, 'grace', 'key', '{admin}', NULL, NULL, n - $5 * interval '3 hours', n + interval '8 hours',
       n - $5 * interval '40 minutes', $4, $3
  FROM (SELECT headgate.clock_v1() AS n) AS c"""


def _flow(rate: int, ago: int) -> tuple[int, int, int, int, int, int]:
    """Submitted, started, completed, retried, failed and dead in one minute: waves, and an incident 25 minutes ago."""
    wave = 1 + 0.35 * math.sin(ago / 6) + 0.15 * math.sin(ago * 1.7)
    submitted = round(rate * wave)
    bad = round(submitted * (0.5 if 22 <= ago <= 28 else 0.02 + 0.03 * (ago % 5 == 0)))
    dead = bad // 4
    return submitted, submitted, submitted - bad, bad - dead, bad, dead


def _oldest_ms(ago: int) -> int:
    """How long the oldest due job has waited: a second or two, and minutes after the incident."""
    return 1_000 + ago % 4 * 400 + (11_000 * (28 - ago) if 16 <= ago <= 28 else 0)


def _waits(ago: int, typical: int) -> list[int]:
    """A histogram around one of the bounds."""
    counts = [0] * (len(WAITS_US) + 1)
    slow = 2 if 18 <= ago <= 26 else 0
    for away, count in ((-1, 40 + ago % 7), (0, 70), (1, 20 + ago % 11), (2 + slow, 2 + slow)):
        counts[typical + away] = count
    return counts
