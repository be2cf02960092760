"""Submitting payloads, on a loop or in a thread: wait for the answer, and return handles."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.ids import JobId
from headgate.sdk.client.frames import Answer
from headgate.sdk.connection import PAGES_IN_FLIGHT, Connection, Page
from headgate.sdk.errors import SubmitManyError
from headgate.sdk.handles import JobHandle, SyncHandle, error_of
from headgate.sdk.ids import id_from_bytes
from headgate.sdk.options import Prepared


@dataclass(frozen=True, slots=True)
class Bound:
    """A task with its arguments, to be submitted later: `send_email.bind("a@b.example")`."""

    topic: str
    payload: bytes
    options: Prepared
    returns: object = Any


async def submit(
    connection: Connection, topic: str, payload: bytes, options: Prepared, *, returns: object
) -> JobHandle[Any]:
    """Submit one job and wait until it is stored."""
    page = await connection.put(topic, [options.id or connection.new_id()], [payload], options)
    answer = await cast("asyncio.Future[Answer]", page.future)
    job_id, created = _read_one(page.ids[0], answer, options)
    return JobHandle(connection, job_id, returns, created=created)


def submit_blocking(
    connection: Connection, topic: str, payload: bytes, options: Prepared, *, returns: object
) -> SyncHandle[Any]:
    """As `submit`, blocking this thread."""
    page = connection.put_blocking(topic, [options.id or connection.new_id()], [payload], options)
    job_id, created = _read_one(page.ids[0], _blocked(page), options)
    return SyncHandle(connection, job_id, returns, created=created)


async def submit_many(
    connection: Connection, topic: str, payloads: Iterable[bytes], options: Prepared, *, returns: object
) -> list[JobHandle[Any]]:
    """Submit many jobs in frames, several in flight at once, and wait until all are stored."""
    _check_many(options)
    sum_up = _Summary(options)
    waiting: deque[Page] = deque()  # at most PAGES_IN_FLIGHT: then the oldest is awaited before the next is made

    async def oldest() -> None:
        page = waiting.popleft()
        sum_up.add(page, await cast("asyncio.Future[Answer]", page.future))

    for ids, bodies in connection.pages(payloads):
        waiting.append(await connection.put(topic, ids, bodies, options))
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
    _check_many(options)
    sum_up = _Summary(options)
    waiting: deque[Page] = deque()  # as above
    for ids, bodies in connection.pages(payloads):
        waiting.append(connection.put_blocking(topic, ids, bodies, options))
        if len(waiting) >= PAGES_IN_FLIGHT:
            sum_up.add(waiting[0], _blocked(waiting.popleft()))
        if sum_up.refused_page:
            break
    for page in waiting:
        sum_up.add(page, _blocked(page))
    return [SyncHandle(connection, job_id, returns, created=created) for job_id, created in sum_up.accepted()]


def _blocked(page: Page) -> Answer:
    return cast("Future[Answer]", page.future).result()


def _read_one(job_id: JobId, answer: Answer, options: Prepared) -> tuple[JobId, bool]:
    if isinstance(answer, HeadgateError):
        raise answer
    receipt = answer.get(0)
    if receipt is None:
        return job_id, True
    if error := error_of(receipt, key=options.given.get("key", "")):
        raise error
    # A duplicate by key is another job than the one sent: the handle follows the one that exists.
    return (id_from_bytes(receipt.id) if receipt.id else job_id), False


def _check_many(options: Prepared) -> None:
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

    def add(self, page: Page, answer: Answer) -> None:
        """Take the answer of the next page."""
        start = len(self._ids)
        self._ids.extend(page.ids)
        if isinstance(answer, HeadgateError):
            self.refused_page = True
            self._errors.update(dict.fromkeys(range(start, len(self._ids)), answer))
            return
        for index, receipt in answer.items():
            if error := error_of(receipt, key=self._key):
                self._errors[start + index] = error
            else:
                self._older[start + index] = id_from_bytes(receipt.id) if receipt.id else page.ids[index]

    def accepted(self) -> list[tuple[JobId, bool]]:
        """All jobs, and whether each is new; raises the error that names those not accepted."""
        if self._errors:
            if self.refused_page and len(self._errors) == len(self._ids):
                raise next(iter(self._errors.values()))
            raise SubmitManyError(dict(sorted(self._errors.items())), total=len(self._ids))
        if not self._older:
            return [(job_id, True) for job_id in self._ids]
        return [(self._older.get(at, job_id), at not in self._older) for at, job_id in enumerate(self._ids)]
