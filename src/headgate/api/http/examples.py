"""Bodies of requests for the OpenAPI document, by operation id. A test sends each of them."""

from __future__ import annotations

from typing import Any, Final

REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "submit_job": {"topic": "mail", "payload": {"to": "ada@example.org", "subject": "Hello"}, "priority": 10},
    "submit_jobs": {
        "jobs": [{"topic": "mail", "payload": {"to": "ada@example.org"}}, {"topic": "mail", "delay_ms": 60_000}],
        "atomic": True,
    },
    "claim_jobs": {"worker_id": "worker-1", "topics": ["mail"], "count": 10, "lease_seconds": 60, "wait_seconds": 30},
    "extend_lease": {
        "epoch": 1025,
        "worker_id": "worker-1",
        "lease_seconds": 60,
        "progress": {"done": 3, "total": 10},
        "logs": [{"seq": 1, "level": "warning", "text": "421 try again later"}],
    },
    "extend_leases": {
        "worker_id": "worker-1",
        "jobs": [{"id": "01890a5d-ac96-774b-bcce-b302099a8057", "epoch": 1025}],
    },
    "complete_job": {"epoch": 1025, "worker_id": "worker-1", "result": {"sent": True}},
    "fail_job": {"epoch": 1025, "worker_id": "worker-1", "type": "SmtpError", "message": "421 try again later"},
    "nack_job": {"epoch": 1025, "worker_id": "worker-1", "delay_ms": 60_000, "reason": "the mail server is down"},
    "snooze_job": {"epoch": 1025, "worker_id": "worker-1", "delay_ms": 60_000},
    "abandon_job": {"epoch": 1025, "worker_id": "worker-1"},
    "report_outcomes": {
        "worker_id": "worker-1",
        "outcomes": [{"id": "01890a5d-ac96-774b-bcce-b302099a8057", "epoch": 1025, "completed": {"result": 1}}],
    },
    "open_batch": {"name": "import of May", "on_done": {"topic": "reports", "payload": {"month": 5}}},
    "preview_bulk": {"verb": "redrive", "filter": "topic:mail state:dead"},
    "start_bulk": {
        "verb": "redrive",
        "filter": "topic:mail state:dead",
        "per_second": 50,
        "reason": "the mail server is back",
    },
    "set_topic": {"settings": {"max_running": 20, "rate": {"count": 100, "period_ms": 60_000}}, "reason": "launch"},
    "put_policy": {
        "settings": {"max_attempts": 5, "payload_schema": {"type": "object", "required": ["to"]}, "max_consumers": 2},
        "reason": "new gateway",
    },
    "declare_topics": {
        "source": "shop.tasks",
        "worker_id": "worker-1",
        "topics": [{"name": "mail", "settings": {"max_attempts": 5}}],
    },
    "pause": {"target": {"topic": "mail"}, "reason": "the mail server is down"},
    "resume": {"target": {"topic": "mail"}},
    "put_schedule": {
        "spec": {
            "topic": "reports",
            "timing": {"cron": {"expression": "0 6 * * 1", "zone": "Europe/Berlin"}},
            "payload": {"kind": "weekly"},
            "overlap": "skip",
        }
    },
    "preview_occurrences": {"timing": {"every": {"interval_ms": 900_000}}, "count": 3},
    "create_webhook": {
        "url": "https://93.184.215.14/hooks",
        "events": ["job.dead", "job.cancelled"],
        "topics": ["mail.*"],
        "disabled": True,
    },
    "update_webhook": {"description": "billing", "disabled": True},
    "rotate_webhook_secret": {"overlap_ms": 3_600_000},
    "reprioritise_job": {"priority": 20},
    "move_job": {"topic": "mail-slow"},
    "create_key": {
        "name": "billing",
        "scopes": ["submit", "read"],
        "topics": ["invoices.*"],
        "expires_in_ms": 7_776_000_000,
        "rates": {"submit": "100/1s:200"},
    },
    "set_tenant": {"max_backlog": 100_000, "submit_rate": "1000/1s:5000", "reason": "their plan"},
    "set_tenant_defaults": {"max_stored_bytes": 21_474_836_480},
    "set_retention": {"rules": {"completed_ms": 604_800_000}, "reason": "a week is enough"},
}
