"""Calls that several tests make."""

from __future__ import annotations

from headgate.wire import jobs_pb2, worker_pb2
from tests.support.wire import Wire

ALPHA, BETA, MAIL, SUBMITS, READS, WORKS = (
    f"a-token-for-{name}-only" for name in ("alpha", "beta", "mail", "submits", "reads", "works")
)
TOKENS: dict[str, dict[str, object]] = {
    ALPHA: {"tenant": "alpha"},
    BETA: {"tenant": "beta"},
    MAIL: {"tenant": "alpha", "topics": ["mail"]},
    SUBMITS: {"tenant": "alpha", "scopes": ["submit"]},
    READS: {"tenant": "alpha", "scopes": ["read"]},
    WORKS: {"tenant": "alpha", "scopes": ["work"]},
}
APPLIED, DUPLICATE, STALE, UNKNOWN = range(4)


# ---------------------------------------------------------------------- small parts


async def _report(wire: Wire, worker_id: str, *outcomes: jobs_pb2.Outcome) -> list[jobs_pb2.Receipt]:
    request = worker_pb2.ReportOutcomeRequest(worker_id=worker_id, outcomes=outcomes)
    return list((await wire.call("ReportOutcome", request)).receipts)
