"""The outbox and its one Produce stream.

Everything but `put` runs on the I/O loop. Submits wait in `_inbox` (put by any thread), then `_unsent`, then in a
`SentFrame` of `_in_flight` by seq, until a reply or their deadline. The bound on all of them together is `capacity`,
which a caller takes before `put`.
The stream is opened at the first submit, and after a break only if there is something to send.
A server that is overloaded refuses frames and says how long to wait (ADR 15). They keep their order and go out again
after that time and a bit, half as many at once; each one that is taken makes that one more.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, cast

from headgate.domain.errors import HeadgateError
from headgate.domain.ids import id_from_bytes
from headgate.sdk import rpc
from headgate.sdk.addresses import Address, Rotation
from headgate.sdk.client.capacity import SubmitCapacity
from headgate.sdk.client.frames import Answer, PendingSubmit, SentFrame, next_frame, resolve
from headgate.sdk.errors import (
    RETRIED,
    Closed,
    NotAcknowledged,
    NotConnected,
    Overloaded,
    ServerError,
    SubmitRefused,
)
from headgate.sdk.io_log import io_logger
from headgate.sdk.io_thread import IoThread
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as pb

log = io_logger("headgate.client")

WINDOW: Final = 16
"""Frames on their way at once. Past that the server is the slow part, and frames only grow older."""
HELLO_SECONDS: Final = 10.0
REPLY_SECONDS: Final = 20.0
"""A frame without a reply for this long: the server hangs or packets are lost. Resending elsewhere is safe."""
SWEEP_SECONDS: Final = 0.25
SILENT_SECONDS: Final = 1.0
"""After so long without an answer to any submit a warning is logged. The submits wait on, until their deadlines."""
NOT_TAKEN: Final = frozenset({"overloaded", "rate_limited"})
"""Codes that say that nothing was written."""
ABOUT_THE_JOB: Final = frozenset({"invalid_input", "too_large"})
"""Codes of what is wrong with the frame itself: an earlier try of it was refused as well."""
LEAST_PAUSE_SECONDS: Final = 0.2


class Producer:
    """Sends submits over one stream and keeps each until it is answered or its deadline has passed."""

    def __init__(self, io: IoThread, addresses: tuple[Address, ...], *, token: str, capacity: SubmitCapacity) -> None:
        self._io, self._token = io, token
        self.capacity = capacity
        self._chance = random.Random()  # noqa: S311 -- jitter, not a secret
        self._rotation = Rotation(addresses, chance=self._chance)
        self._inbox: deque[PendingSubmit] = deque()  # bounded by capacity, as the other two
        self._unsent: deque[PendingSubmit] = deque()
        self._in_flight: dict[int, SentFrame] = {}
        self._signalled = False
        self._closed = False
        self._seq = self._put = 0
        self._window = WINDOW
        self._disordered = False  # refused submits come before older ones
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._call: rpc.ProduceCall | None = None
        self._pauses = 0  # timers that run because the server asked for a pause
        self._trouble: HeadgateError | None = None  # what the last attempt to connect met
        self._greeted = False
        self._answered_at = 0.0  # when something was last answered, or nothing waited
        self._warned = False  # of the silence since then

    # --- any thread ------------------------------------------------------------------------------------------------

    def put(self, submit: PendingSubmit) -> None:
        """Queue a submit whose capacity has been taken; its future gets the answer."""
        if self._closed:
            self.capacity.give(len(submit.ids), submit.size)
            raise Closed("this Headgate client was closed; make another one to submit jobs")
        self._inbox.append(submit)
        if not self._signalled:
            self._signalled = True
            self._io.loop.call_soon_threadsafe(self._awake)

    async def close(self, *, flush: float) -> None:
        """Send what waits, for at most `flush` seconds; then close. On the I/O loop."""
        self._closed = True
        self._awake()
        if self._runner is not None:
            await asyncio.wait((self._runner,), timeout=flush)
            self._runner.cancel()
            await asyncio.wait((self._runner,))
        self._give_up(self._drain_all(), Closed("the Headgate client was closed before this submit was answered"))

    # --- the I/O loop ----------------------------------------------------------------------------------------------

    def _awake(self) -> None:
        self._signalled = False  # before the inbox is read: what comes later signals again
        self._wake.set()
        if self._runner is None and not (self._closed and not self._inbox):
            self._runner = self._io.loop.create_task(self._run(), name="headgate produce")

    def _collect(self) -> bool:
        """Move what was put to the queue; True if anything waits."""
        while self._inbox:
            self._put += 1
            self._inbox[0].order = self._put
            self._unsent.append(self._inbox.popleft())
        if self._disordered:
            self._disordered = False
            self._unsent = deque(sorted(self._unsent, key=lambda submit: submit.order))
        while self._unsent and self._unsent[0].gone:
            self._unsent.popleft()
        return bool(self._unsent)

    async def _run(self) -> None:
        self._answered_at = self._io.loop.time()
        sweeper = self._io.loop.create_task(self._sweep(), name="headgate produce deadlines")
        try:
            while True:
                while not self._collect():
                    if self._closed:
                        return
                    self._wake.clear()
                    if not self._inbox:
                        await self._wake.wait()
                address = self._rotation.current
                failed = await self._stream(address)
                self._resend_later()
                if failed is None:
                    continue
                self._trouble = rpc.explain(failed, address, answered=self._rotation.has_answered(address))
                if rpc.is_final(failed):
                    self._refuse(self._drain_all(), self._trouble)
                await asyncio.sleep(self._rotation.move_on())
        finally:
            sweeper.cancel()

    async def _stream(self, address: Address) -> Exception | None:
        """One connection, from hello to its end; gives what ended it, None if it was closed on purpose."""
        channel = rpc.open_channel(address)
        call = self._call = rpc.open_produce(channel, self._token)
        reader: asyncio.Task[Exception | None] | None = None
        try:
            try:
                # Not by cancelling the call: a write that waits for its connection then waits forever.
                async with asyncio.timeout(HELLO_SECONDS):
                    await rpc.say_hello(call, pb.ProducerFrame(hello=pb.ProducerHello(client=rpc.CLIENT)))
                    if not await call.read():
                        return rpc.not_connected(address, "it closed the stream")
            except TimeoutError:
                return rpc.not_connected(address, "it does not answer")
            self._rotation.succeeded()
            self._trouble, self._greeted = None, True
            reader = self._io.loop.create_task(self._read(call), name="headgate produce replies")
            return await self._write(call, reader)
        except asyncio.CancelledError:
            if call.cancelled() and not self._closed:  # by a timer of ours: no answer
                return rpc.not_connected(address, "it does not answer")
            raise
        except Exception as error:  # noqa: BLE001 -- whatever broke the stream, the outbox survives it
            return error
        finally:
            self._call, self._greeted = None, False
            call.cancel()
            if reader is not None:
                await asyncio.wait((reader,))
            await channel.close()

    async def _write(self, call: rpc.ProduceCall, reader: asyncio.Task[Exception | None]) -> Exception | None:
        loop = self._io.loop
        while not reader.done():
            self._wake.clear()
            self._collect()
            made = None
            if len(self._in_flight) < self._window and not self._pauses:
                made = next_frame(self._unsent, seq=self._seq + 1, now=loop.time())
            if made is None:
                if self._closed and not self._in_flight and not self._unsent and not self._inbox:
                    await call.done_writing()
                    return None
                if not self._inbox:
                    await self._wake.wait()
                continue
            frame, sent = made
            self._seq = frame.seq
            self._in_flight[frame.seq] = sent
            for submit in sent.submits:
                submit.sent = True
            try:
                await call.write(frame)
            except Exception as error:  # noqa: BLE001 -- the reader has the better reason, if it has one
                await asyncio.wait((reader,), timeout=1.0)
                return (reader.result() if reader.done() else None) or error
        return reader.result()

    async def _read(self, call: rpc.ProduceCall) -> Exception | None:
        try:
            while reply := await call.read():  # else grpc.aio.EOF
                self._take(cast("pb.ProducerReply", reply))
                self._wake.set()
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            return NotConnected(f"no answer from {self._rotation.current}")
        except Exception as error:  # noqa: BLE001 -- handed to the writer, which ends the connection
            return error
        finally:
            self._wake.set()
        return rpc.not_connected(self._rotation.current, "it closed the stream")

    def _take(self, reply: pb.ProducerReply) -> None:
        self._answered_at, self._warned = self._io.loop.time(), False
        sent = self._in_flight.pop(reply.seq, None)
        if sent is None:  # answered twice, or a seq we never sent
            if reply.HasField("error"):
                log.warning("unexpected_reply server=%s error=%s", self._rotation.current, reply.error.message)
            return
        if not reply.HasField("error"):
            self._window = min(WINDOW, self._window + 1)
            if reply.exceptions:
                sent.take_exceptions(reply.exceptions)
            self._finish(sent.submits)
        elif reply.error.retry_after_ms or reply.error.code in RETRIED:
            if not self._pauses:
                self._window = max(1, self._window // 2)
            self._pauses += 1
            # Never sooner than asked for; and not all clients in the same moment.
            pause = max(reply.error.retry_after_ms / 1000, 0.0) or LEAST_PAUSE_SECONDS
            self._io.loop.call_later(pause * self._chance.uniform(1.0, 1.5), self._go_on)
            if reply.error.code in NOT_TAKEN:
                self._not_taken(sent, refusal(reply.error))
            else:
                self._lost(sent, refusal(reply.error))
            self._put_back(sent)
        elif reply.error.code in ABOUT_THE_JOB:
            self._give_up(sent.submits, refusal(reply.error))
        else:
            self._refuse(sent.submits, refusal(reply.error))

    def _go_on(self) -> None:
        # The timer ends the pause itself: compared with the clock, one in six would be slightly too early.
        self._pauses -= 1
        self._wake.set()

    # --- retries and refusals --------------------------------------------------------------------------------------

    def _not_taken(self, sent: SentFrame, refusal: HeadgateError) -> None:
        """Nothing of it was written: it was not sent. A caller that does not wait gets the refusal at once."""
        for submit in sent.submits:
            submit.sent, submit.refusal = submit.lost, refusal
        self._give_up([one for one in sent.submits if not one.options.waits and not one.lost], refusal)

    def _lost(self, sent: SentFrame, reason: HeadgateError | None = None) -> None:
        """It may have been written before the connection broke, or the database went away."""
        for submit in sent.submits:
            submit.new_id, submit.lost = False, True
            submit.refusal = reason or submit.refusal

    def _put_back(self, sent: SentFrame) -> None:
        for submit in reversed(sent.submits):
            if not submit.gone:
                self._disordered = self._disordered or bool(self._unsent and self._unsent[0].order < submit.order)
                self._unsent.appendleft(submit)

    def _resend_later(self) -> None:
        for seq in sorted(self._in_flight, reverse=True):
            sent = self._in_flight.pop(seq)
            self._lost(sent)
            self._put_back(sent)

    def _drain_all(self) -> list[PendingSubmit]:
        self._resend_later()
        self._collect()
        waiting, self._unsent = list(self._unsent), deque()
        return [submit for submit in waiting if not submit.gone]

    def _refuse(self, submits: list[PendingSubmit], error: HeadgateError) -> None:
        """Give up for a reason that says nothing about an earlier try, which may have been stored."""
        for submit in submits:
            self._give_up([submit], self._not_acknowledged(submit) if submit.lost else error)

    def _give_up(self, submits: list[PendingSubmit], answer: Answer) -> None:
        for submit in submits:
            submit.answer = answer
        self._finish(submits)

    def _finish(self, submits: list[PendingSubmit]) -> None:
        live = [submit for submit in submits if not submit.gone]
        self.capacity.give(sum(len(submit.ids) for submit in live), sum(submit.size for submit in live))
        by_loop: dict[asyncio.AbstractEventLoop, list[PendingSubmit]] = {}
        for submit in live:
            submit.gone = True
            if isinstance(submit.future, Future):
                resolve((submit,))
            else:
                by_loop.setdefault(submit.future.get_loop(), []).append(submit)
        for loop, waiting in by_loop.items():  # one crossing for each
            with suppress(RuntimeError):  # closed meanwhile: nothing waits there any more
                loop.call_soon_threadsafe(resolve, waiting)

    async def _sweep(self) -> None:
        """End what is past its deadline, and the connection that leaves frames unanswered.

        One timer for all: a timer for each submit would cost more than sending it.
        """
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._io.loop.time()
            self._collect()
            waiting = [*self._unsent, *(submit for sent in self._in_flight.values() for submit in sent.submits)]
            for submit in waiting:
                if submit.deadline <= now and not submit.gone:
                    self._give_up([submit], self._too_late(submit))
            self._warn_of_silence(now, waiting=sum(len(submit.ids) for submit in waiting if not submit.gone))
            oldest = min((sent.sent_at for sent in self._in_flight.values()), default=now)
            if self._call is not None and now - oldest > REPLY_SECONDS:
                self._call.cancel()

    def _warn_of_silence(self, now: float, *, waiting: int) -> None:
        """Log once that nothing is answered, and why if that is known. A pause that a server asks for is an answer."""
        if not waiting or self._pauses:
            self._answered_at = now
        elif now - self._answered_at >= SILENT_SECONDS and not self._warned:
            self._warned = True
            log.warning(
                'no_answer server=%s jobs=%d error=%s effect="submits wait until their timeout"',
                self._rotation.current,
                waiting,
                self._trouble or "no answer yet",
            )

    def _never_sent(self) -> HeadgateError:
        address = self._rotation.current
        if not self._greeted:
            return rpc.not_connected(address)
        return Overloaded(
            f"{address} takes jobs more slowly than they are submitted: in the time allowed this one had no turn, and "
            "was not stored; submit less at once, or allow more time (timeout=...)",
            retry_after=1.0,
        )

    def _too_late(self, submit: PendingSubmit) -> HeadgateError:
        if not submit.sent:
            return submit.refusal or self._trouble or self._never_sent()
        return self._not_acknowledged(submit)

    def _not_acknowledged(self, submit: PendingSubmit) -> NotAcknowledged:
        job_id = id_from_bytes(submit.ids[0])
        reason = self._trouble or submit.refusal
        why = "" if reason is None else f" ({reason})"
        return NotAcknowledged(
            f"{self._rotation.current} did not acknowledge job {job_id} in time{why}; it may have been stored: "
            "submit it again with options=dict(id=...) of this id, which never makes a second job",
            job_id=job_id,
        )


def refusal(error: jobs.Error) -> HeadgateError:
    """The error of a frame or of one job, as the server reports it."""
    if error.code in NOT_TAKEN:
        return Overloaded(error.message, retry_after=error.retry_after_ms / 1000)
    if error.code in RETRIED or error.code in rpc.SERVERS_TROUBLE:  # none says that nothing was stored
        return ServerError(error.message, reported=error.code)
    problem = error.message.removeprefix(f"{error.field}: ")
    return SubmitRefused(error.field or "job", problem or "was refused without a reason", reported=error.code)
