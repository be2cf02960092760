"""Submitting in a transaction of the user's own: `task.submit_in(connection, ...)`.

The job is written by the SQL function `headgate.submit_returning`, over the user's connection: it exists if and only if
the user's transaction commits. No server takes part; PostgreSQL wakes the servers at the commit (ADR 33). A job is
passed as three parameters, the same for each driver: topic, payload, and all options as JSON.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import msgspec

from headgate.domain.dependencies import Needs, OnConflict, OnParentFailure
from headgate.domain.ids import JobId, id_from_bytes
from headgate.sdk.drivers import AsyncTransaction, Call, Driver, Rows, SyncTransaction, driver_of
from headgate.sdk.handles import Handle, JobHandle, SyncHandle
from headgate.sdk.options import Prepared
from headgate.sdk.submitting import check_many, submit, submit_blocking, submit_many, submit_many_blocking
from headgate.sdk.times import time_of
from headgate.wire import producer_pb2 as pb

if TYPE_CHECKING:
    from headgate.sdk.connection import Connection

H = TypeVar("H", bound=Handle[Any])
JOBS_PER_STATEMENT: Final = 1_000


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
    if (tracing := connection.tracing) is not None:
        # The job is written at the commit, of which the SDK does not learn: the span ends before it.
        with tracing.sending(topic, options) as carried:
            options = carried
    call = _call_of_one(connection, topic, payload, options)
    if driver.is_async:
        return _submit_async(connection, transaction, driver, call, returns)
    (handle,) = [_handle(SyncHandle, connection, row, returns) for row in driver.run(transaction, call)]
    return handle


def submit_many_in(
    connection: Connection,
    transaction: AsyncTransaction | SyncTransaction,
    topic: str,
    payloads: Iterable[bytes],
    options: Prepared,
    *,
    returns: object,
) -> Coroutine[Any, Any, list[JobHandle[Any]]] | list[SyncHandle[Any]]:
    """Write many jobs in a transaction, in statements of up to `JOBS_PER_STATEMENT`; otherwise as `submit_in`.

    Atomic, as the transaction is: the first job that is refused raises, and the transaction cannot commit.
    """
    check_many(options)
    driver = driver_of(transaction)
    if connection.box is not None:
        if driver.is_async:
            return submit_many(connection, topic, payloads, options, returns=returns)
        return submit_many_blocking(connection, topic, payloads, options, returns=returns)
    if (tracing := connection.tracing) is not None:
        with tracing.sending(topic, options, many=True) as carried:
            options = carried
    sent, ids = list(payloads), list[JobId]()
    if connection.encryption is not None:  # each body is bound to the id of its job
        ids = [connection.ids.next_id() for _ in sent]
        sent = connection.encryption.seal_payloads(sent, [one.bytes for one in ids], options)
    calls: list[Call] = []
    for start in range(0, len(sent), JOBS_PER_STATEMENT):
        part = slice(start, start + JOBS_PER_STATEMENT)
        calls.append(_call(connection, topic, sent[part], _as_json(options, connection.tenant, ids[part])))
    if driver.is_async:
        return _submit_many_async(connection, transaction, driver, calls, returns)
    return [_handle(SyncHandle, connection, row, returns) for call in calls for row in driver.run(transaction, call)]


def _call_of_one(connection: Connection, topic: str, payload: bytes, options: Prepared) -> Call:
    if connection.encryption is not None:
        options = _with_id(connection, options)
        (payload,) = connection.encryption.seal_payloads([payload], [_id_of(options)], options)
    return _call(connection, topic, [payload], _as_json(options, connection.tenant))


def _call(connection: Connection, topic: str, payloads: list[bytes], options: str) -> Call:
    return Call(topic=topic, payloads=payloads, options=options, tenant=connection.tenant)


async def _submit_async(
    connection: Connection, transaction: object, driver: Driver, call: Call, returns: object
) -> JobHandle[Any]:
    (handle,) = await _submit_many_async(connection, transaction, driver, [call], returns)
    return handle


def _with_id(connection: Connection, options: Prepared) -> Prepared:
    """The options with the id that an encrypted payload is bound to; the database would choose one too late."""
    return options if options.id is not None else options.over({"id": connection.ids.next_id()})


def _id_of(options: Prepared) -> bytes:
    assert options.id is not None  # noqa: S101 - see above
    return options.id.bytes


async def _submit_many_async(
    connection: Connection, transaction: object, driver: Driver, calls: list[Call], returns: object
) -> list[JobHandle[Any]]:
    found: list[JobHandle[Any]] = []
    for call in calls:
        rows: Rows = await driver.run(transaction, call)
        found += [_handle(JobHandle, connection, row, returns) for row in rows]
    return found


def _handle(kind: type[H], connection: Connection, row: tuple[str, bool], returns: object) -> H:
    job_id, created = row
    return kind(connection, JobId(UUID(job_id)), returns, created=created)


def _as_json(options: Prepared, tenant: str, ids: Sequence[JobId] = ()) -> str:
    """The options by the names of `drivers.STATEMENT`; those that were not given are left out.

    `ids`: one for each job, if their payloads are bound to them.
    """
    job = options.new_job("", b"", b"")
    found: dict[str, object] = {"tenant": tenant}
    if ids:
        found["ids"] = [str(one) for one in ids]
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
        found["depends_on"] = [str(id_from_bytes(one)) for one in job.depends_on]
        found["needs"] = Needs(job.needs).label
        found["on_parent_failure"] = OnParentFailure(job.on_parent_failure).label
    if job.batch:
        found["batch"] = str(id_from_bytes(job.batch))
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
