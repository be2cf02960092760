"""All metrics: name, type, labels, meaning. docs/operations/metrics.md has this table, and a test keeps it equal.

Every sample of a process has the label `process`: the number of the process among those on one port, from 1. What is
read from the database is the same on all servers and has no such label.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """The types of metrics in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One metric, by its name without the suffixes that belong to its type."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    of_queue: bool = False
    """Read from the database: the same on all servers."""

    @property
    def shown_name(self) -> str:
        """The name in queries; that of a histogram has `_bucket`, `_sum` or `_count` behind it."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels, without `le` of histograms and the optional `tenant`."""
        return self.labels if self.of_queue else (*self.labels, "process")


def _counter(name: str, text: str, *labels: str) -> Definition:
    return Definition(name=f"headgate_{name}", kind=Kind.COUNTER, text=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Definition:
    return Definition(name=f"headgate_{name}", kind=Kind.GAUGE, text=text, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> Definition:
    return Definition(name=f"headgate_{name}", kind=Kind.HISTOGRAM, text=text, labels=labels)


def _of_queue(name: str, text: str, *labels: str) -> Definition:
    return Definition(name=f"headgate_{name}", kind=Kind.GAUGE, text=text, labels=labels, of_queue=True)


SUBMITTED: Final = _counter("jobs_submitted", "Jobs stored by submits to this process.", "topic")
REFUSED: Final = _counter("submits_refused", "Jobs that were not stored, by the code of the error.", "code")
CLAIMED: Final = _counter("jobs_claimed", "Jobs handed over to workers.", "topic")
SETTLED: Final = _counter("jobs_settled", "Outcomes applied, by what the worker reported.", "topic", "outcome")
DEAD: Final = _counter("jobs_dead", "Jobs that became dead by an outcome.", "topic")
RECEIPTS: Final = _counter("outcomes_not_applied", "Outcomes that changed nothing, by their receipt.", "receipt")
LAPSED: Final = _counter("leases_lapsed", "Leases that ended without renewal, as found by this process.", "topic")
PICKUP: Final = _histogram("pickup_seconds", "Time from a job's due time until it is handed over.", "topic")
RUN: Final = _histogram("run_seconds", "Time from handing a job over until its outcome is stored.", "topic")
LOGINS: Final = _counter("login_failures", "Calls with a missing, unknown or expired credential.")

SESSIONS: Final = _gauge("worker_sessions", "Connected worker streams.")
CREDIT: Final = _gauge("worker_credit", "Further jobs that the connected workers accept.")
HELD: Final = _gauge("jobs_held", "Jobs that the connected workers hold.")

FLUSH_ROWS: Final = _histogram("flush_rows", "Rows written by one flush, or jobs taken by one claim.", "lane")
FLUSH_WAITING: Final = _gauge("flush_waiting_rows", "Rows that wait for the next flush.", "lane")
FLUSH_REFUSED: Final = _counter("flush_refused_rows", "Rows refused because too many waited.", "lane")
LANE_SECONDS: Final = _histogram("database_seconds", "Duration of one use of a connection, with its commit.", "lane")
LANE_WAITS: Final = _counter("database_waits", "Uses that waited until the connection was free.", "lane")
LANE_CONNECTS: Final = _counter("database_connects", "Connections opened.", "lane")
LANE_OPEN: Final = _gauge("database_connection_open", "1 if the lane has a connection.", "lane")
LANE_BUSY: Final = _gauge("database_connection_busy", "1 if the connection is in use.", "lane")

LOOP_LAG: Final = _gauge("loop_lag_seconds", "By how much the event loop was late when last measured.")
SERVICE_FAILURES: Final = _counter("service_failures", "Restarts of background services.", "service")
READY: Final = _gauge("ready", "1 if the process accepts work.")
UP: Final = _gauge("process_up", "1 if the process answered this scrape; 0 if it runs and did not.")
BUILD: Final = _gauge("build_info", "Always 1; the version is in the labels.", "version", "python")

JOBS: Final = _of_queue("queue_jobs", "Jobs by state. From the counts, which lag by some seconds.", "topic", "state")
OLDEST: Final = _of_queue("queue_oldest_due_seconds", "Age of the oldest due job that waits; 0 if none.", "topic")
DB_UP: Final = _of_queue("database_up", "1 if the last reading of the database succeeded.")
DB_AGE: Final = _of_queue("database_reading_age_seconds", "Age of the values that are read from the database.")
INSTANCES: Final = _of_queue("instances", "Server processes that are connected to the database.")
TRANSACTION: Final = _of_queue("database_oldest_transaction_seconds", "Age of the oldest transaction with a snapshot.")
XMIN: Final = _of_queue("database_xmin_age", "Transactions since the oldest snapshot that is held.")
DEAD_ROWS: Final = _of_queue("table_dead_rows", "Dead rows that vacuum has not removed.", "table")
LIVE_ROWS: Final = _of_queue("table_live_rows", "Rows, as PostgreSQL last estimated them.", "table")
RETENTION_DAYS: Final = _of_queue("retention_days_waiting", "Days of finished jobs that wait to be cleared.")
RETENTION_LAG: Final = _of_queue("retention_lag_seconds", "How long ago the removal of the oldest of them fell due.")

WEBHOOK_ATTEMPTS: Final = _counter(
    "webhook_attempts", "Requests to webhooks, by what became of the delivery: delivered, retried, failed.", "outcome"
)
WEBHOOK_PENDING: Final = _of_queue(
    "webhook_deliveries_pending", "Deliveries that are not over. Counted up to 100,000; the same for all tenants."
)
WEBHOOK_OLDEST: Final = _of_queue(
    "webhook_oldest_due_seconds", "How long the delivery that waits longest is due; 0 if none is."
)

METRICS: Final = (
    *(SUBMITTED, REFUSED, CLAIMED, SETTLED, DEAD, RECEIPTS, LAPSED, PICKUP, RUN, LOGINS),
    *(SESSIONS, CREDIT, HELD),
    *(FLUSH_ROWS, FLUSH_WAITING, FLUSH_REFUSED, LANE_SECONDS, LANE_WAITS, LANE_CONNECTS, LANE_OPEN, LANE_BUSY),
    *(LOOP_LAG, SERVICE_FAILURES, READY, UP, BUILD),
    *(JOBS, OLDEST, DB_UP, DB_AGE, INSTANCES, TRANSACTION, XMIN, DEAD_ROWS, LIVE_ROWS),
    *(RETENTION_DAYS, RETENTION_LAG),
    *(WEBHOOK_ATTEMPTS, WEBHOOK_PENDING, WEBHOOK_OLDEST),
)
"""In the order in which they are shown."""


def table() -> str:
    """The table of docs/operations/metrics.md."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for one in METRICS:
        labels = ", ".join(f"`{name}`" for name in one.label_names) or "none"
        lines.append(f"| `{one.shown_name}` | {one.kind} | {labels} | {one.text} |")
    return "\n".join(lines) + "\n"
