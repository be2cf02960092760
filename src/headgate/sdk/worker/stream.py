"""The worker's connection: one Work stream after another, each with a reader, a writer and one timer for the protocol.

`protocol` decides what to send and to do; here it is read, written and carried out. All of it runs on the I/O loop,
except `report`, `progressed`, `extended` and `logged`, which handlers call from wherever they run. Outcomes are left in
a deque, and the loop is woken unless it is woken already: many handlers that end together cost one crossing and one
frame.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

import grpc.aio

from headgate.domain import failpoints
from headgate.sdk import rpc
from headgate.sdk.addresses import Address, Rotation
from headgate.sdk.errors import NotConnected
from headgate.sdk.io_thread import IoThread
from headgate.sdk.job import Job
from headgate.sdk.outcomes import Outcome
from headgate.sdk.worker.attempt_log import AttemptLog, Settled
from headgate.sdk.worker.connection_log import ConnectionLog
from headgate.sdk.worker.final_report import report_without_stream
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.protocol import WorkerProtocol
from headgate.sdk.worker.slots import Slots
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb

T = TypeVar("T")

SILENT_SECONDS: Final = 1.0
"""After so long without an answer to Hello a warning is logged."""
HELLO_SECONDS: Final = 10.0
HOLDING_WAIT_SECONDS: Final = 1.0
"""The longest pause between two attempts to connect while jobs are held: servers wait for a worker that lost its
connection for some seconds only, ten by default."""
LAST_WRITE_SECONDS: Final = 2.0
"""What a write that is under way gets when the worker has ended."""
REFUSED_SECONDS: Final = 60.0
"""For how long a token that was accepted before is tried again when it is refused. Its file may be missing for a
moment, and another server may have read a new file later."""


class WorkerStream:
    """Keeps a stream open until the protocol has ended, or the server refuses for good."""

    protocol: WorkerProtocol
    """Set before `run`; the protocol's jobs report to this stream, so one of the two has to come first."""
    on_stop: Callable[[], None]
    """Set before `run`: an operator asks the worker to stop, which calls `stop` with its grace."""

    def __init__(
        self,
        io: IoThread,
        addresses: tuple[Address, ...],
        slots: Slots,
        attempts: AttemptLog,
        *,
        worker_id: str,
        token: str,
        log_level: int,
    ) -> None:
        self._io, self._addresses, self._slots, self._attempts = io, addresses, slots, attempts
        self._worker_id, self._token = worker_id, token
        self._rotation = Rotation(addresses, chance=random.Random())  # noqa: S311 -- jitter, not a secret
        self._connection_log = ConnectionLog()
        self._reported: deque[tuple[HeldJob, Outcome | None]] = deque()  # bounded by the slots
        self._signalled = False
        self._progressed: dict[bytes, tuple[HeldJob, tuple[int, int, str]]] = {}  # the latest of each running job
        self._progress_signalled = self._lines_signalled = False
        self.log_level = log_level
        self._process = os.getpid()
        self._call: rpc.WorkCall | None = None
        self._cancelled: rpc.WorkCall | None = None  # by us: its server sends or reads nothing
        self._accepted_until: float | None = None  # until then a refused token is tried again
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._final_report: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()

    # --- from any thread ---------------------------------------------------------------------------------------------

    def report(self, job: HeldJob, outcome: Outcome | None) -> None:
        """A handler has ended."""
        self._reported.append((job, outcome))
        if not self._signalled:
            self._signalled = True
            self._io.loop.call_soon_threadsafe(self._collect)

    def progressed(self, job: Job, done: int, total: int, message: str) -> None:
        """See `Reports`."""
        held = cast("HeldJob", job)
        self._progressed[held.raw_id] = held, (done, total, message)
        if not self._progress_signalled:
            self._progress_signalled = True
            self._io.loop.call_soon_threadsafe(self._take_progress)

    def extended(self, job: Job, lease_seconds: int) -> None:
        """See `Reports`."""
        self._io.loop.call_soon_threadsafe(self._add_extension, cast("HeldJob", job), lease_seconds)

    def logged(self, job: Job, level: int, logger: str, at_us: int, text: str) -> None:
        """See `Reports`."""
        if os.getpid() != self._process:
            return  # a handler has forked: the lock and the loop are the worker's
        held = cast("HeldJob", job)
        encryption = None if held.handler is None else held.handler.encryption
        if encryption is not None and encryption.errors:
            return  # as with errors: its handler may log what the server must not read
        self.protocol.logs.add(held, level, logger, at_us, text)
        if not self._lines_signalled:
            self._lines_signalled = True
            self._io.loop.call_soon_threadsafe(self._lines_added)

    # --- events ------------------------------------------------------------------------------------------------------

    def stop(self, grace: float) -> None:
        """Finish what has begun within `grace` seconds, and end."""
        self.protocol.stop_sequence.begin(grace, time.monotonic())
        self._after_event()

    def hurry(self) -> None:
        """End without waiting for handlers."""
        self.protocol.stop_sequence.hurry(time.monotonic())
        self._after_event()

    def close(self) -> None:
        """End at once; what is unacknowledged stays in the outbox."""
        self.protocol.close()
        self._after_event()

    def _collect(self) -> None:
        self._signalled = False  # before the deque is read: what comes later signals again
        if self._reported:  # else the writer has taken them
            self.protocol.finish(self._reported, time.monotonic())
            self._after_event()

    def _take_progress(self) -> None:
        self._progress_signalled = False  # as above
        now = time.monotonic()
        for raw_id in list(self._progressed):  # by pop, since handlers add more meanwhile
            self.protocol.beats.add_progress(*self._progressed.pop(raw_id), now)
        self._after_event()

    def _lines_added(self) -> None:
        self._lines_signalled = False  # as above
        self.protocol.logs.wait_for_more(time.monotonic())
        self._after_event()

    def _add_extension(self, job: HeldJob, lease_seconds: int) -> None:
        self.protocol.beats.add_extension(job, lease_seconds)
        self._after_event()

    def _on_timer(self) -> None:
        self._timer = None
        try:
            # The timer says itself that it is due: by the clock, one in six would be slightly too early.
            self.protocol.timers.advance(max(time.monotonic(), self._timer_due))
        finally:  # a callback of the application may have raised: beats and the other timers go on
            self.protocol.timers.changed = True  # the next one is to be set in any case
            self._after_event()

    def _after_event(self) -> None:
        """Carry out what the protocol asks for, and wake the writer if it may have something to send."""
        self._act()
        if self.protocol.may_send(time.monotonic()):
            self._wake.set()

    def _act(self) -> None:
        actions = self.protocol.actions
        if actions.start:
            starting, actions.start = actions.start, []
            self._slots.start(starting)
        if actions.stop:
            stopping, actions.stop = actions.stop, []
            self._slots.stop(stopping)
        if actions.settled:
            settled, actions.settled = actions.settled, []
            self._attempts.put(settled)
        if actions.stop_worker:
            actions.stop_worker = False
            self.on_stop()
        if actions.take_back:
            actions.take_back = False
            self.protocol.taken_back(self._slots.take_back(), time.monotonic())
            self._act()  # a stop that waited for this continues
        if actions.reconnect:
            actions.reconnect = False
            self._cancel_call()
        if actions.report:
            actions.report = False
            self._final_report = self._io.loop.create_task(self._report(), name="headgate final report")
        if self.protocol.timers.changed and not self._ended.is_set():
            self._set_timer()
        if actions.ended:
            self._end()

    def _set_timer(self) -> None:
        timers = self.protocol.timers
        timers.changed = False
        due = timers.next_due
        # A timer that comes too early finds nothing to do; only one that would come too late is set again.
        if due is not None and (self._timer is None or due < self._timer_due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            self._timer = self._io.loop.call_later(max(0.0, due - time.monotonic()), self._on_timer)

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        # A write to a server that reads nothing would wait forever.
        self._timer = self._io.loop.call_later(LAST_WRITE_SECONDS, self._cancel_call)

    def _cancel_call(self) -> None:
        if self._call is not None:
            self._cancelled = self._call
            self._call.cancel()

    async def _report(self) -> None:
        outcomes = self.protocol.ledger.outbox.all_unacknowledged()
        await report_without_stream(
            outcomes, self._addresses, worker_id=self._worker_id, token=self._token, settled=self._settled
        )
        self.protocol.stop_sequence.reported()
        self._after_event()

    def _settled(self, outcome: jobs.Outcome, receipt: jobs.Receipt | None) -> None:
        """An outcome that went without a stream is settled, or was given up."""
        job = self.protocol.ledger.held.get(outcome.id)
        if job is not None and not outcome.HasField("completed"):
            self._attempts.put([Settled(job, outcome, receipt)])

    # --- connecting --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected until the protocol has ended; raises if the server refuses for good."""
        try:
            await self._stay_connected()
        finally:  # what is left here was never acknowledged
            for outcome in self.protocol.ledger.outbox.all_unacknowledged():
                self._settled(outcome, None)

    async def _stay_connected(self) -> None:
        protocol = self.protocol
        protocol.begin(time.monotonic())
        self._after_event()
        while not protocol.actions.ended:
            address = self._rotation.current
            failed = await self._stream(address)
            if self._call is not None:
                self._call = None
                self._accepted_until = time.monotonic() + REFUSED_SECONDS
                protocol.disconnect(time.monotonic())
                self._after_event()
            if self._ended.is_set():
                return
            if failed is not None:
                if rpc.is_final(failed) and not self._was_accepted_lately(failed):
                    raise rpc.explain(failed, address)
                explained = rpc.explain(failed, address, answered=self._rotation.has_answered(address))
                self._connection_log.failed(address, explained, now=time.monotonic())
            wait = max(self._rotation.move_on(), 0.0 if failed is None else rpc.rate_limited(failed))
            if protocol.draining and not self._rotation.single:
                wait = 0.0  # the next address is another server
            elif protocol.ledger.held:
                wait = min(wait, HOLDING_WAIT_SECONDS)
            failed = None  # its traceback refers to the call: see the end of _stream
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._ended.wait()

    def _was_accepted_lately(self, failed: Exception) -> bool:
        """Whether the token may be valid again soon: it was, and the file of tokens may only be missing for a while."""
        if self._accepted_until is None or not rpc.is_unauthenticated(failed):
            return False
        return time.monotonic() < self._accepted_until

    async def _stream(self, address: Address) -> Exception | None:
        """One stream from hello to its end; gives what ended it, None if we did."""
        channel = rpc.open_channel(address)
        call = rpc.open_work(channel, self._token)
        reader: asyncio.Task[Exception | None] | None = None
        protocol = self.protocol
        try:
            try:
                silence = self._io.loop.call_later(SILENT_SECONDS, self._connection_log.silent, address)
                try:
                    first = await self._unless_ended(self._greet(channel, call))
                finally:
                    silence.cancel()
            except TimeoutError:
                return rpc.not_connected(address, "it does not answer")
            if first is None or not first.HasField("hello_ack"):
                return rpc.not_connected(address, "it did not answer the Hello")
            ack = first.hello_ack
            self._connection_log.connected(address, instance=ack.instance, version=ack.server, now=time.monotonic())
            self._rotation.succeeded()
            self._call = call
            protocol.connect(ack, time.monotonic())
            self._after_event()
            reader = self._io.loop.create_task(self._read(call, address), name="headgate work frames")
            return await self._write(call, reader)
        except asyncio.CancelledError:
            # By a timer of ours. A write that is ended by it raises before the call itself knows.
            if call.cancelled() or call is self._cancelled:
                return rpc.not_connected(address, "it does not answer")
            raise
        except Exception as error:  # noqa: BLE001 -- whatever broke the stream: what we hold survives it
            return error
        finally:
            if reader is not None:
                # After a half-close the server ends the call; a cancelled one would leave it to find out.
                await asyncio.wait((reader,), timeout=2.0 if protocol.actions.ended or protocol.draining else 0)
            call.cancel()
            if reader is not None:
                await asyncio.wait((reader,))
            # gRPC keeps a connection open while something refers to a call on it. What the server has buffered would
            # continue to arrive, and take its share of a narrow link from the next connection.
            self._cancelled = None
            await channel.close()

    async def _greet(self, channel: grpc.aio.Channel, call: rpc.WorkCall) -> pb.ServerFrame | None:
        """Connect, and say hello; returns the first frame. Raises TimeoutError."""
        async with asyncio.timeout(self._rotation.connect_seconds):
            await rpc.connected(channel)
        # Not by cancelling the call: a write that waits for its connection then waits forever.
        async with asyncio.timeout(HELLO_SECONDS):
            first = self.protocol.hello(time.monotonic())
            first.hello.clock_us = time.time_ns() // 1000  # people see there how far the clocks are apart
            await rpc.say_hello(call, first)
            return await rpc.next_frame(call)

    async def _unless_ended(self, greeting: Coroutine[Any, Any, T]) -> T | None:
        """What it returns; None if the worker ends meanwhile, which does not wait for a server that says nothing."""
        tasks = [
            self._io.loop.create_task(greeting, name="headgate hello"),
            self._io.loop.create_task(self._ended.wait(), name="headgate end"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return cast("T", tasks[0].result()) if tasks[0].done() else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _read(self, call: rpc.WorkCall, address: Address) -> Exception | None:
        protocol = self.protocol
        try:
            while isinstance(frame := await call.read(), pb.ServerFrame):  # else grpc.aio.EOF
                if failpoints.armed and frame.HasField("jobs"):
                    await failpoints.armed.reach("worker.after_delivery")
                protocol.receive(frame, time.monotonic())
                self._after_event()
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            return NotConnected(f"{address} has sent nothing for more than a beat")
        except Exception as error:  # noqa: BLE001 -- handed to the writer, which ends the stream
            return error
        finally:
            self._wake.set()
        return rpc.not_connected(address, "it closed the stream")

    async def _write(self, call: rpc.WorkCall, reader: asyncio.Task[Exception | None]) -> Exception | None:
        protocol = self.protocol
        while not reader.done():
            self._wake.clear()
            if self._reported:  # what handlers have reported up to now goes with the next frame
                protocol.finish(self._reported, time.monotonic())
                self._act()
            frame = protocol.next_frame(time.monotonic())
            if protocol.timers.changed:
                self._set_timer()
            if frame is None:
                if protocol.may_end_stream:
                    await call.done_writing()
                    return None
                await self._wake.wait()
                continue
            try:
                if failpoints.armed and frame.HasField("outcomes"):
                    await failpoints.armed.reach("worker.before_result")
                await call.write(frame)
                if failpoints.armed and frame.HasField("outcomes"):
                    await failpoints.armed.reach("worker.after_result")
            except Exception as error:  # noqa: BLE001 -- the reader has the better reason, if it has one
                await asyncio.wait((reader,), timeout=1.0)
                return (reader.result() if reader.done() else None) or error
        return reader.result()
