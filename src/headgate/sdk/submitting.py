"""Submitting payloads, on a loop or in a thread: wait for the answer, and return handles."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.ids import JobId, id_from_bytes
from headgate.sdk.client.frames import Answer
from headgate.sdk.connection import PAGES_IN_FLIGHT, Connection
from headgate.sdk.errors import SubmitManyError
from headgate.sdk.handles import JobHandle, SyncHandle, error_of
from headgate.sdk.options import Prepared


@dataclass(frozen=True, slots=True)
class Bound:
    """A task with its arguments, to be submitted later: `send_email.bind("a@b.example")`."""

    topic: str
    payload: bytes
    options: Prepared
    returns: object = Any


def submit(
    connection: Connection, topic: str, payload: bytes, options: Prepared, *, returns: object
) -> Coroutine[Any, Any, JobHandle[Any]]:
    """Submit one job and wait until it is stored."""
    if connection.tracing is None:
        return _submit(connection, topic, payload, options, returns=returns)
    return connection.tracing.submit(_submit, connection, topic, payload, options, returns=returns)


async def _submit(
    connection: Connection, topic: str, payload: bytes, options: Prepared, *, returns: object
) -> JobHandle[Any]:
    job_id = options.id or connection.ids.next_id()
    answer = await (await connection.put(topic, [job_id], [payload], options))
    if answer:  # else it was created, as nearly always
        return JobHandle(connection, _existing(job_id, answer, options), returns, created=False)
    return JobHandle(connection, job_id, returns)


def submit_blocking(
    connection: Connection, topic: str, payload: bytes, options: Prepared, *, returns: object
) -> SyncHandle[Any]:
    """As `submit`, blocking this thread."""
    if connection.tracing is None:
        return _submit_blocking(connection, topic, payload, options, returns=returns)
    return connection.tracing.submit_blocking(_submit_blocking, connection, topic, payload, options, returns=returns)


def _submit_blocking(
    connection: Connection, topic: str, payload: bytes, options: Prepared, *, returns: object
) -> SyncHandle[Any]:
    job_id = options.id or connection.ids.next_id()
    answer = connection.put_blocking(topic, [job_id], [payload], options).result()
    if answer:  # as above
        return SyncHandle(connection, _existing(job_id, answer, options), returns, created=False)
    return SyncHandle(connection, job_id, returns)


def submit_many(
    connection: Connection, topic: str, payloads: Iterable[bytes], options: Prepared, *, returns: object
) -> Coroutine[Any, Any, list[JobHandle[Any]]]:
    """Submit many jobs in frames, several in flight at once, and wait until all are stored."""
    if connection.tracing is None:
        return _submit_many(connection, topic, payloads, options, returns=returns)
    return connection.tracing.submit(_submit_many, connection, topic, payloads, options, returns=returns, many=True)


async def _submit_many(
    connection: Connection, topic: str, payloads: Iterable[bytes], options: Prepared, *, returns: object
) -> list[JobHandle[Any]]:
    check_many(options)
    sum_up = _Summary(options)
    # At most PAGES_IN_FLIGHT: then the oldest is awaited before the next is made.
    waiting: deque[tuple[list[JobId], asyncio.Future[Answer]]] = deque()

    async def oldest() -> None:
        ids, answered = waiting.popleft()
        sum_up.add(ids, await answered)

    for ids, bodies in connection.pages(payloads):
        waiting.append((ids, await connection.put(topic, ids, bodies, options)))
        if len(waiting) >= PAGES_IN_FLIGHT:
            await oldest()
        else:
            await asyncio.sleep(0)  # encoding a page takes milliseconds: others on this loop get their turn
        if sum_up.refused_page:
            break
    while waiting:
        await oldest()
    return [JobHandle(connection, job_id, returns, created=created) for job_id, created in sum_up.accepted()]


def submit_many_blocking(
    connection: Connection, topic: str, payloads: Iterable[bytes], options: Prepared, *, returns: object
) -> list[SyncHandle[Any]]:
    """As `submit_many`, blocking this thread."""
    if connection.tracing is None:
        return _submit_many_blocking(connection, topic, payloads, options, returns=returns)
    return connection.tracing.submit_blocking(
        _submit_many_blocking, connection, topic, payloads, options, returns=returns, many=True
    )


def _submit_many_blocking(
    connection: Connection, topic: str, payloads: Iterable[bytes], options: Prepared, *, returns: object
) -> list[SyncHandle[Any]]:
    check_many(options)
    sum_up = _Summary(options)
    waiting: deque[tuple[list[JobId], Future[Answer]]] = deque()  # as above
    for ids, bodies in connection.pages(payloads):
        waiting.append((ids, connection.put_blocking(topic, ids, bodies, options)))
        if len(waiting) >= PAGES_IN_FLIGHT:
            oldest, answered = waiting.popleft()
            sum_up.add(oldest, answered.result())
        if sum_up.refused_page:
            break
    for ids, answered in waiting:
        sum_up.add(ids, answered.result())
    return [SyncHandle(connection, job_id, returns, created=created) for job_id, created in sum_up.accepted()]


def _existing(job_id: JobId, answer: Answer, options: Prepared) -> JobId:
    """The job that existed before; raises if the one that was sent was refused."""
    if isinstance(answer, HeadgateError):
        raise answer
    receipt = answer[0]
    if error := error_of(receipt, key=options.given.get("key", "")):
        raise error
    # A duplicate by key is another job than the one sent: the handle follows the one that exists.
    return id_from_bytes(receipt.id) if receipt.id else job_id


def check_many(options: Prepared) -> None:
    """Refuse options that name a single job."""
    for name in ("id", "key", "unique"):
        if name in options.given:
            raise InvalidInput(name, "names a single job and cannot be shared by many", hint="submit them one by one")


class _Summary:
    """The answers of the pages of one call, in order."""

    def __init__(self, options: Prepared) -> None:
        self._key = options.given.get("key", "")
        self._ids: list[JobId] = []
        self._older: dict[int, JobId] = {}
        self._errors: dict[int, HeadgateError] = {}
        self.refused_page = False  # a whole page was refused: more pages would be, too

    def add(self, ids: list[JobId], answer: Answer) -> None:
        """Take the answer of the next page."""
        start = len(self._ids)
        self._ids.extend(ids)
        if isinstance(answer, HeadgateError):
            self.refused_page = True
            self._errors.update(dict.fromkeys(range(start, len(self._ids)), answer))
            return
        for index, receipt in answer.items():
            if error := error_of(receipt, key=self._key):
                self._errors[start + index] = error
            else:
                self._older[start + index] = id_from_bytes(receipt.id) if receipt.id else ids[index]

    def accepted(self) -> list[tuple[JobId, bool]]:
        """All jobs, and whether each is new; raises the error that names those not accepted."""
        if self._errors:
            if self.refused_page and len(self._errors) == len(self._ids):
                raise next(iter(self._errors.values()))
            raise SubmitManyError(dict(sorted(self._errors.items())), total=len(self._ids))
        if not self._older:
            return [(job_id, True) for job_id in self._ids]
        return [(self._older.get(at, job_id), at not in self._older) for at, job_id in enumerate(self._ids)]
