"""A client's connection to its servers: opened at the first use, shared by all threads and loops of the process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from uuid import UUID

from headgate.domain.ids import JobId
from headgate.sdk.addresses import Address
from headgate.sdk.client.calls import GIVE_UP_SECONDS, Calls
from headgate.sdk.client.capacity import JOBS, SubmitCapacity, full
from headgate.sdk.client.frames import FRAME_BYTES, FRAME_JOBS, Answer, PendingSubmit
from headgate.sdk.client.producer import Producer
from headgate.sdk.encryption import Encryption
from headgate.sdk.errors import Closed, OutsideBox
from headgate.sdk.ids import new_id_maker
from headgate.sdk.io_thread import IoThread, io_thread
from headgate.sdk.options import Prepared
from headgate.sdk.rpc import GET_JOB, Answered, Asked, Method
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2

if TYPE_CHECKING:
    from headgate.sdk.tracing import Tracing

T = TypeVar("T")

TENANT: Final = "default"
PAGES_IN_FLIGHT: Final = 8
"""Frames of one `submit_many` on their way at once: enough to keep the server busy, and a bound on memory."""


class Box(Protocol):
    """Replaces the servers in tests; see `headgate.testing`."""

    def submit(self, topic: str, ids: list[JobId], payloads: list[bytes], options: Prepared) -> Answer:
        """Store these jobs."""
        ...

    def call(self, method: Method[Asked, Answered], request: Asked) -> Answered:
        """Answer a unary call; raises OutsideBox for one that only a server can answer."""
        ...

    def wait(self, job_id: UUID, *, timeout: float) -> Future[jobs.JobInfo]:
        """The job once it has ended; raises at once if nothing can end it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a connection leads: to servers, or to a box."""

    addresses: tuple[Address, ...]
    token: str
    tenant: str = TENANT
    box: Box | None = None
    opened: tuple[IoThread, Producer, Calls] | None = None
    closed: bool = False


class Connection:
    """Opens the producer and the unary calls when first needed."""

    def __init__(
        self,
        addresses: tuple[Address, ...],
        *,
        token: str,
        tenant: str = TENANT,
        capacity: int = JOBS,
        encryption: Encryption | None = None,
    ) -> None:
        self.addresses, self.token = addresses, token
        self.encryption = encryption
        self.tenant = tenant  # for submits in a transaction: a server takes it from the token
        self.box: Box | None = None
        self.tracing: Tracing | None = None  # spans of submits: see `Headgate.tracing`
        self.ids = new_id_maker()
        self._capacity = capacity
        self._lock = threading.Lock()
        self._open: tuple[IoThread, Producer, Calls] | None = None
        self._closed = False

    def _opened(self) -> tuple[IoThread, Producer, Calls]:
        opened = self._open
        if opened is None:
            with self._lock:
                if self.box is not None:
                    raise OutsideBox("this needs a server, and the box has none; leave `with hg.testing()` first")
                if self._closed:
                    raise Closed("this Headgate client was closed; make another one")
                if self._open is None:
                    io = io_thread()
                    producer = Producer(io, self.addresses, token=self.token, capacity=SubmitCapacity(self._capacity))
                    self._open = io, producer, Calls(self.addresses, token=self.token)
                opened = self._open
        if opened[0].pid != os.getpid():
            opened[0].check_pid()
        return opened

    # --- submitting --------------------------------------------------------------------------------------------------

    def pages(self, payloads: Iterable[bytes]) -> Iterator[tuple[list[JobId], list[bytes]]]:
        """Split many jobs into pages of one frame each, with new ids."""
        page: list[bytes] = []
        size = 0
        for payload in payloads:
            if page and (len(page) >= FRAME_JOBS or size + len(payload) > FRAME_BYTES):
                yield self.ids.make(len(page)), page
                page, size = [], 0
            page.append(payload)
            size += len(payload)
        if page:
            yield self.ids.make(len(page)), page

    async def put(
        self, topic: str, ids: list[JobId], payloads: list[bytes], options: Prepared
    ) -> asyncio.Future[Answer]:
        """Submit one page; the future, for the running loop, gets the answer.

        Waits for capacity up to the timeout, or raises OutboxFull at once (`when_busy`).
        """
        if self.encryption is not None:
            payloads = self.encryption.seal_payloads(payloads, [job_id.bytes for job_id in ids], options)
        if self.box is not None:
            answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            answered.set_result(self.box.submit(topic, ids, payloads, options))
            return answered
        io, producer, _ = self._opened()
        size, deadline = sum(map(len, payloads)), io.loop.time() + options.timeout
        if not producer.capacity.take(len(ids), size):
            if not options.waits:
                raise full()
            await producer.capacity.wait(len(ids), size, seconds=options.timeout)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        raw, new = [job_id.bytes for job_id in ids], options.id is None  # one of the caller's may have been sent before
        producer.put(
            PendingSubmit(topic, raw, payloads, options, deadline=deadline, new_id=new, size=size, future=future)
        )
        return future

    def put_blocking(self, topic: str, ids: list[JobId], payloads: list[bytes], options: Prepared) -> Future[Answer]:
        """As `put`, blocking this thread."""
        if self.encryption is not None:
            payloads = self.encryption.seal_payloads(payloads, [job_id.bytes for job_id in ids], options)
        if self.box is not None:
            return _done(self.box.submit(topic, ids, payloads, options))
        io, producer, _ = self._opened()
        size, deadline = sum(map(len, payloads)), io.loop.time() + options.timeout
        if not producer.capacity.take(len(ids), size):
            if not options.waits:
                raise full()
            producer.capacity.wait_blocking(len(ids), size, seconds=options.timeout)
        future: Future[Answer] = Future()
        raw, new = [job_id.bytes for job_id in ids], options.id is None  # one of the caller's may have been sent before
        producer.put(
            PendingSubmit(topic, raw, payloads, options, deadline=deadline, new_id=new, size=size, future=future)
        )
        return future

    # --- reading -----------------------------------------------------------------------------------------------------

    def start_get(self, job_id: UUID, *, payload: bool = False, result: bool = False) -> Future[jobs.JobInfo]:
        """Read one job, from any thread or loop."""
        if self.box is not None:
            request = producer_pb2.GetJobRequest(id=job_id.bytes, with_payload=payload, with_result=result)
            return _done(self.box.call(GET_JOB, request))
        io, _, calls = self._opened()
        return asyncio.run_coroutine_threadsafe(
            calls.get(job_id, within=GIVE_UP_SECONDS, payload=payload, result=result), io.loop
        )

    def start_wait(self, job_id: UUID, *, timeout: float) -> Future[jobs.JobInfo]:
        """Wait for one job, from any thread or loop."""
        if self.box is not None:
            return self.box.wait(job_id, timeout=timeout)
        io, _, calls = self._opened()
        return asyncio.run_coroutine_threadsafe(calls.wait(job_id, within=timeout), io.loop)

    async def call(
        self,
        method: Method[Asked, Answered],
        request: Asked,
        *,
        timeout: float = GIVE_UP_SECONDS,  # noqa: ASYNC109
        about: tuple[str, str] | None = None,
    ) -> Answered:
        """Make one unary call, from any loop; `about` is what it asks for: a noun and a name."""
        if self.box is not None:
            return self.box.call(method, request)
        io, _, calls = self._opened()
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(calls.call(method, request, within=timeout, about=about), io.loop)
        )

    def call_blocking(
        self, method: Method[Asked, Answered], request: Asked, *, within: float = GIVE_UP_SECONDS
    ) -> Answered:
        """Make one unary call, from any thread."""
        if self.box is not None:
            return self.box.call(method, request)
        io, _, calls = self._opened()
        return asyncio.run_coroutine_threadsafe(calls.call(method, request, within=within), io.loop).result()

    # --- tests -------------------------------------------------------------------------------------------------------

    def swap(self, target: Target) -> Target:
        """Lead to another target from now on; returns the one before, for the way back."""
        with self._lock:
            before = Target(
                addresses=self.addresses,
                token=self.token,
                tenant=self.tenant,
                box=self.box,
                opened=self._open,
                closed=self._closed,
            )
            self.addresses, self.token, self.tenant = target.addresses, target.token, target.tenant
            self.box = target.box
            self._open, self._closed = target.opened, target.closed
        return before

    # --- the end -----------------------------------------------------------------------------------------------------

    def start_close(self, *, flush: float) -> Future[None] | None:
        """Start to flush and to close; None if nothing was opened in this process."""
        if self.box is not None:
            return None
        with self._lock:
            self._closed = True
            opened = self._open
        if opened is None or opened[0].pid != os.getpid():
            return None
        io, producer, calls = opened

        async def end() -> None:
            await producer.close(flush=flush)
            await calls.close()

        return asyncio.run_coroutine_threadsafe(end(), io.loop)


def _done(value: T) -> Future[T]:
    done: Future[T] = Future()
    done.set_result(value)
    return done
