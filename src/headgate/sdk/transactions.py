"""Submitting in a transaction of the user's own: `task.submit_in(connection, ...)`.

The job is written by the SQL function `headgate.submit_returning`, over the user's connection: it exists if and only if
the user's transaction commits. No server takes part; PostgreSQL wakes the servers at the commit (ADR 33). What is said
of one job travels as three parameters: topic, payload, and all options as JSON, which each driver takes alike.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from headgate.domain.dependencies import Needs, OnConflict, OnParentFailure
from headgate.domain.ids import JobId
from headgate.sdk.drivers import AsyncTransaction, Call, Driver, Row, SyncTransaction, driver_of
from headgate.sdk.handles import JobHandle, SyncHandle
from headgate.sdk.options import Prepared
from headgate.sdk.submitting import submit, submit_blocking
from headgate.sdk.times import time_of
from headgate.wire import producer_pb2 as pb

if TYPE_CHECKING:
    from headgate.sdk.connection import Connection


def submit_in(
    connection: Connection,
    transaction: AsyncTransaction | SyncTransaction,
    topic: str,
    payload: bytes,
    options: Prepared,
    *,
    returns: object,
) -> Coroutine[Any, Any, JobHandle[Any]] | SyncHandle[Any]:
    """Write one job in a transaction: at once, or for one whose calls are awaited, when the answer is awaited.

    The options `timeout` and `when_busy` are about the way to a server, and do nothing here. In `hg.testing()` the job
    goes to the box, and the transaction is not used.
    """
    driver = driver_of(transaction)
    if connection.box is not None:
        if driver.is_async:
            return submit(connection, topic, payload, options, returns=returns)
        return submit_blocking(connection, topic, payload, options, returns=returns)
    call = Call(topic=topic, payload=payload, options=_as_json(options, connection.tenant), tenant=connection.tenant)
    if driver.is_async:
        return _submit_async(connection, transaction, driver, call, returns)
    job_id, created = _read(driver.run(transaction, call))
    return SyncHandle(connection, job_id, returns, created=created)


async def _submit_async(
    connection: Connection, transaction: object, driver: Driver, call: Call, returns: object
) -> JobHandle[Any]:
    job_id, created = _read(await driver.run(transaction, call))
    return JobHandle(connection, job_id, returns, created=created)


def _read(row: Row) -> tuple[JobId, bool]:
    return JobId(UUID(row[0])), row[1]


def _as_json(options: Prepared, tenant: str) -> str:
    """The options by the names of `drivers.STATEMENT`; those that were not given are left out."""
    job = options.new_job("", b"", b"")
    found: dict[str, object] = {"tenant": tenant}
    if options.priority is not None:
        found["priority"] = options.priority
    if options.id is not None:
        found["id"] = str(options.id)
    for name in ("max_attempts", "key", "limit_key"):
        if value := getattr(job, name):
            found[name] = value
    for name, field in (("delay", "delay_ms"), ("key_window", "key_window_ms"), ("deadline_in", "deadline_ms")):
        if milliseconds := getattr(job, field):
            found[name] = f"{milliseconds} ms"
    for name, field in (("run_at", "run_at_us"), ("deadline", "deadline_us")):
        if microseconds := getattr(job, field):
            found[name] = time_of(microseconds).isoformat()
    if job.tags:
        found["tags"] = list(job.tags)
    if job.headers:
        found["headers"] = dict(job.headers)
    if job.HasField("retry"):
        found["retry"] = _retry(job.retry)
    if options.declared is not None:
        found["declared"] = _declared(options.declared.message)
    if job.HasField("unique"):
        found["unique_key"] = job.unique.key
        found["on_conflict"] = OnConflict(job.unique.on_conflict).label
        if job.unique.debounce_max_ms:
            found["debounce_max"] = f"{job.unique.debounce_max_ms} ms"
    if job.depends_on:
        found["depends_on"] = [str(UUID(bytes=one)) for one in job.depends_on]
        found["needs"] = Needs(job.needs).label
        found["on_parent_failure"] = OnParentFailure(job.on_parent_failure).label
    if job.batch:
        found["batch"] = str(UUID(bytes=job.batch))
    return msgspec.json.encode(found).decode()


def _declared(rules: pb.JobRules) -> dict[str, object]:
    """What the handler declares: it counts for rules that the topic does not have yet."""
    found: dict[str, object] = {}
    if rules.HasField("priority"):
        found["priority"] = rules.priority
    if rules.max_attempts:
        found["max_attempts"] = rules.max_attempts
    if rules.HasField("retry"):
        found["retry"] = _retry(rules.retry)
    return found


def _retry(policy: pb.RetryPolicy) -> dict[str, object]:
    kind = pb.RetryPolicy.Kind.Name(policy.kind).lower()
    sent: dict[str, object] = {"kind": kind, "base_ms": policy.base_ms, "cap_ms": policy.cap_ms}
    if policy.delays_ms:
        sent["delays_ms"] = list(policy.delays_ms)
    return sent
