"""The worker's line to its server: one Work stream after another, one reader and one writer on each.

Everything here runs on the I/O loop, but for `report`, `progressed` and `extended`, which handlers call from wherever
they run. They leave what they have in a deque or a dict and wake the loop, if nobody else has done so already: many
handlers that end together make one crossing and one frame.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headgate.domain import failpoints
from headgate.sdk import rpc
from headgate.sdk.addresses import Address, Rotation
from headgate.sdk.errors import NotConnected
from headgate.sdk.io_thread import IoThread
from headgate.sdk.job import Job
from headgate.sdk.worker.inbound import Inbound
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.outbound import Outbound, StreamSettings
from headgate.sdk.worker.outbox import Outcome
from headgate.wire import worker_pb2 as pb

log = logging.getLogger("headgate.worker")

HELLO_SECONDS: Final = 10.0
BEAT_SECONDS: Final = 20.0
"""Until the server says otherwise."""
PROGRESS_SECONDS: Final = 1.0
"""Progress of all jobs is sent together, at most this often."""
REFUSED_SECONDS: Final = 60.0
"""For how long a token that was accepted before is tried again when it is refused. Its file may be missing for a
moment, and another server may have read a new file later."""
RESEND_SECONDS: Final = 10.0
RESEND_SOON_SECONDS: Final = 1.0


def silence(beat_seconds: float) -> float:
    """For how long a server may say nothing before it counts as lost.

    It answers every beat at once. What it keeps for us is renewed when half of the time is left, one and a half beats:
    whoever comes to another instance within that loses nothing. The rest is slack for a machine that is busy.
    """
    return min(2 * beat_seconds, beat_seconds + max(1.0, beat_seconds / 3))


class WorkerStream:
    """Keeps a stream open, beats on it, carries outcomes and credit; ends by `close`, or by an error that stands."""

    def __init__(self, io: IoThread, addresses: tuple[Address, ...], settings: StreamSettings) -> None:
        self._io, self._lease_seconds, self._token = io, settings.lease_seconds, settings.token
        self._rotation = Rotation(addresses, chance=random.Random())  # noqa: S311 -- jitter, not a secret
        self._reported: deque[tuple[Job, Outcome | None]] = deque()  # bounded by the slots
        self._signalled = False
        self._progress_at = 0.0
        self._progress_timer: asyncio.TimerHandle | None = None
        self._call: rpc.WorkCall | None = None
        self._beat_seconds = BEAT_SECONDS
        self._beat_due = False
        self._next_beat = 0.0
        self._heard_at = 0.0
        self._closing = asyncio.Event()
        self._leaving: asyncio.TimerHandle | None = None  # the server drains: go elsewhere, at the latest then
        self._overstayed = False
        self._accepted_until: float | None = None  # until then a refused token is tried again
        self._wake = asyncio.Event()
        self.changed = asyncio.Event()
        """Set whenever something ended or was answered: whoever waits for the end looks again."""
        self.quieted = True
        """False while jobs may still come although none are wanted: Quiet was said and not answered."""
        self.ledger: Ledger
        self.inbound: Inbound
        self.outbound: Outbound
        self.hand_back_unstarted: Callable[[], None] = lambda: None

    # --- from any thread ---------------------------------------------------------------------------------------------

    def report(self, job: Job, outcome: Outcome | None) -> None:
        """A handler has ended."""
        self._reported.append((job, outcome))
        self._signal()

    def progressed(self, job: Job) -> None:
        """See `Reports`."""
        self.outbound.progress[job.raw_id] = job
        self._io.soon(self._progress_soon)

    def extended(self, job: Job, lease_seconds: int) -> None:
        """See `Reports`."""
        self.outbound.extensions[job.raw_id] = (job, lease_seconds)
        self._io.soon(self._beat_now)

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            self._io.soon(self._collect)

    # --- connecting --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected until closed; raises if the server refuses for a reason that will not go away."""
        while not self._closing.is_set():
            address = self._rotation.current
            failed = await self._stream(address)
            if self._call is not None:
                self._accepted_until = self._io.loop.time() + REFUSED_SECONDS
            self._call = None
            self.changed.set()
            if self._closing.is_set():
                return
            if failed is not None:
                if rpc.stands(failed) and not self._was_accepted_lately(failed):
                    raise rpc.explain(failed, address)
                log.warning("lost the stream: %s", rpc.explain(failed, address))
            wait = self._rotation.move_on()
            if self._leaving is not None and not self._rotation.single:
                wait = 0.0  # the next address has done nothing to be spared
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._closing.wait()

    def _was_accepted_lately(self, failed: Exception) -> bool:
        """Whether the token may be valid again soon: it was, and the file of tokens may only be missing for a while."""
        if self._accepted_until is None or not rpc.is_unauthenticated(failed):
            return False
        return self._io.loop.time() < self._accepted_until

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def close(self) -> None:
        """End the stream; what is unanswered stays in the outbox."""
        self._closing.set()
        self._wake.set()

    def leave(self, seconds: float) -> None:
        """The server goes away: finish here what is begun, then connect elsewhere."""
        if self._leaving is None:
            log.info("the server drains: connecting elsewhere when what runs has ended")
            self._leaving = self._io.loop.call_later(seconds, self._overstay)
            self.hand_back_unstarted()
            self._wake.set()

    @property
    def connected(self) -> bool:
        """True while a stream is open and greeted."""
        return self._call is not None

    async def _stream(self, address: Address) -> Exception | None:
        """One stream from hello to its end; gives what ended it, None if we did."""
        channel = rpc.open_channel(address)
        call = rpc.open_work(channel, self._token)
        reader: asyncio.Task[Exception | None] | None = None
        ticker: asyncio.Task[None] | None = None
        try:
            try:
                # Not by cancelling the call: a write that waits for its connection then waits for ever.
                async with asyncio.timeout(HELLO_SECONDS):
                    await rpc.say_hello(call, self.outbound.hello())
                    first = await rpc.next_frame(call)
            except TimeoutError:
                return rpc.not_connected(address, "it does not answer")
            if first is None or not first.HasField("hello_ack"):
                return rpc.not_connected(address, "it did not greet back")
            self._welcome(first.hello_ack, address)
            self._call = call
            reader = self._io.loop.create_task(self._read(call, address), name="headgate work frames")
            ticker = self._io.loop.create_task(self._tick(call), name="headgate work beats")
            return await self._write(call, reader)
        except asyncio.CancelledError:
            if call.cancelled():  # by a timer of ours
                return rpc.not_connected(address, "it does not answer")
            raise
        except Exception as error:  # noqa: BLE001 -- whatever broke the stream: what we hold survives it
            return error
        finally:
            if ticker is not None:
                ticker.cancel()
            if reader is not None:
                # After a half-close the server ends the call; a cancelled one would leave it to find out.
                await asyncio.wait((reader,), timeout=2.0 if self._closing.is_set() or self._leaving is not None else 0)
            call.cancel()
            if reader is not None:
                await asyncio.wait((reader,))
            await channel.close()

    def _welcome(self, ack: pb.HelloAck, address: Address) -> None:
        now = self._io.loop.time()
        self._rotation.succeeded()
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving, self._overstayed = None, False
        self.ledger.tenant = ack.tenant
        self.outbound.greeted()
        beat = float(ack.beat_seconds or BEAT_SECONDS)
        if self._lease_seconds:
            beat = min(beat, self._lease_seconds / 3)
        self._beat_seconds, self._next_beat, self._heard_at = beat, now + beat, now
        self.quieted = True  # a stream begins without credit
        log.info("connected to %s (instance %s, server %s)", address, ack.instance, ack.server)
        self.inbound.lost(ack.lost)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _read(self, call: rpc.WorkCall, address: Address) -> Exception | None:
        try:
            while (frame := await rpc.next_frame(call)) is not None:
                self._heard_at = self._io.loop.time()
                if failpoints.armed and frame.HasField("jobs"):
                    await failpoints.armed.reach("worker.after_delivery")
                self.inbound.take(frame)
                if self._leaving is not None or self.ledger.may_speak:
                    self._wake.set()
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            return NotConnected(f"nothing was heard from {address} for more than a beat")
        except Exception as error:  # noqa: BLE001 -- handed to the writer, which ends the stream
            return error
        finally:
            self._wake.set()
        return rpc.not_connected(address, "it closed the stream")

    def resend_soon(self, seq: int, milliseconds: int) -> None:
        """Send this frame's outcomes again in a moment; without a number, all that is unanswered for a while."""
        seconds = milliseconds / 1000 or RESEND_SOON_SECONDS
        if seq:
            self._io.loop.call_later(seconds, self._resend_frame, seq)
        else:
            self._io.loop.call_later(seconds, self._resend, seconds / 2)

    def release_soon(self) -> None:
        """Send the outcomes that were put off, in a moment."""
        self._io.loop.call_later(RESEND_SOON_SECONDS, self._release)

    def _release(self) -> None:
        if self.ledger.outbox.release():
            self._wake.set()

    def _resend_frame(self, seq: int) -> None:
        if self.ledger.outbox.resend(seq):
            self._wake.set()

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _write(self, call: rpc.WorkCall, reader: asyncio.Task[Exception | None]) -> Exception | None:
        while not reader.done():
            self._wake.clear()
            frame = self._next_frame()
            if frame is None:
                if self._closing.is_set() or self._may_leave():
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

    def _next_frame(self) -> pb.WorkerFrame | None:
        self._collect()
        now, beat = self._io.loop.time(), self._beat_due
        if beat:
            self._beat_due, self._next_beat = False, now + self._beat_seconds
            if self.outbound.progress:
                self._progress_at = now
        ask = not (self.ledger.resting or self._closing.is_set() or self._leaving is not None)
        quiet = self.ledger.resting and self.ledger.asked > 0
        if quiet:
            self.ledger.asked, self.quieted = 0, False
        frame = self.outbound.next_frame(now=now, beat=beat, ask=ask, quiet=quiet)
        if beat and (self.outbound.progress or self.outbound.extensions):
            self._progress_at = now
            self._progress_soon()  # there is more than one beat carries
        return frame

    def _may_leave(self) -> bool:
        if self._leaving is None:
            return False
        done = not self.ledger.active and not len(self.ledger.outbox)
        return done or self._overstayed

    def _overstay(self) -> None:
        # The timer says so itself: compared with the clock, one in six would find itself a hair too early, and wait.
        self._overstayed = True
        self._wake.set()

    # --- timers and wakes --------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take in what handlers reported, and start what has waited for their slots."""
        self._signalled = False  # before the deque is read: what comes later signals again
        if self._reported:
            finish, reported, now = self.ledger.finish, self._reported, time.monotonic()
            while reported:
                finish(*reported.popleft(), now)
            self.ledger.start_waiting()
            self.changed.set()
            self._wake.set()

    async def _tick(self, call: rpc.WorkCall) -> None:
        """Beat, watch for silence, and send again what the server has left unanswered."""
        while True:
            await asyncio.sleep(min(self._beat_seconds / 4, 5.0))
            now = self._io.loop.time()
            if now - self._heard_at > silence(self._beat_seconds):
                log.warning("nothing was heard from the server for %.1f s: reconnecting", now - self._heard_at)
                call.cancel()
                return
            if now >= self._next_beat - self._beat_seconds / 8:
                self._beat_now()
            self._resend(RESEND_SECONDS)

    def _resend(self, age: float) -> None:
        if self.ledger.outbox.overdue(sent_before=self._io.loop.time() - age):
            self._wake.set()

    def _beat_now(self) -> None:
        self._beat_due = True
        self._wake.set()

    def _progress_soon(self) -> None:
        if self._progress_timer is None:
            wait = max(0.0, self._progress_at + PROGRESS_SECONDS - self._io.loop.time())
            self._progress_timer = self._io.loop.call_later(wait, self._progress_now)

    def _progress_now(self) -> None:
        self._progress_timer = None
        if self.outbound.progress or self.outbound.extensions:
            self._beat_now()
