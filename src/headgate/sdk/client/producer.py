"""The outbox and its one Produce stream.

Everything but `put` runs on the I/O loop. Parcels wait in `_inbox` (put by any thread), then `_unsent`, then in a
`Load` of `_in_flight` by seq, until a reply or their deadline. The bound on all of them together is `room`; who puts a
parcel has taken its room before.
The stream is opened at the first parcel, and after a break only if there is something to send.
A server that is overloaded refuses frames and says how long to wait (ADR 15). They keep their order and go out again
after that time and a bit, half as many at once; each one that is taken makes that one more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import Final

from headgate.domain.errors import HeadgateError
from headgate.sdk import rpc
from headgate.sdk.addresses import Address, Rotation
from headgate.sdk.client.parcels import Answer, Load, Parcel, next_load, settle
from headgate.sdk.client.room import Room
from headgate.sdk.errors import Closed, NotAcknowledged, NotConnected, Overloaded, ServerError, SubmitRefused
from headgate.sdk.ids import id_from_bytes
from headgate.sdk.io_thread import IoThread
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as pb

log = logging.getLogger("headgate.client")

WINDOW: Final = 16
"""Frames on their way at once. Past that the server is the slow part, and frames only grow older."""
HELLO_SECONDS: Final = 10.0
REPLY_SECONDS: Final = 20.0
"""A frame without a reply for this long: the server hangs or the network swallows. Resending elsewhere is safe."""
SWEEP_SECONDS: Final = 0.25
OVERLOADED: Final = "overloaded"
ABOUT_THE_JOB: Final = frozenset({"invalid_input", "too_large"})
"""Codes of what is wrong with the frame itself: an earlier try of it was refused as well."""
LEAST_PAUSE_SECONDS: Final = 0.2


class Producer:
    """Sends parcels over one stream and keeps each until it is answered or its deadline has passed."""

    def __init__(self, io: IoThread, addresses: tuple[Address, ...], *, token: str, room: Room | None = None) -> None:
        self._io, self._token = io, token
        self.room = room or Room()
        self._chance = random.Random()  # noqa: S311 -- jitter, not a secret
        self._rotation = Rotation(addresses, chance=self._chance)
        self._inbox: deque[Parcel] = deque()  # bounded by room, as the other two
        self._unsent: deque[Parcel] = deque()
        self._in_flight: dict[int, Load] = {}
        self._signalled = False
        self._closed = False
        self._seq = self._places = 0
        self._window = WINDOW
        self._disordered = False  # refused parcels stand before older ones
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._call: rpc.ProduceCall | None = None
        self._pauses = 0  # timers that run because the server asked for a pause
        self._trouble: HeadgateError | None = None  # what the last attempt to connect met
        self._greeted = False

    # --- any thread ------------------------------------------------------------------------------------------------

    def put(self, parcel: Parcel) -> None:
        """Take a parcel for which there is room taken; its future gets the answer."""
        if self._closed:
            self.room.give(len(parcel.ids), parcel.size)
            raise Closed("this Headgate client was closed; make another one to submit jobs")
        self._inbox.append(parcel)
        if not self._signalled:
            self._signalled = True
            self._io.soon(self._awake)

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
            self._places += 1
            self._inbox[0].place = self._places
            self._unsent.append(self._inbox.popleft())
        if self._disordered:
            self._disordered = False
            self._unsent = deque(sorted(self._unsent, key=lambda parcel: parcel.place))
        while self._unsent and self._unsent[0].gone:
            self._unsent.popleft()
        return bool(self._unsent)

    async def _run(self) -> None:
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
                self._trouble = rpc.explain(failed, address)
                if rpc.stands(failed):
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
                # Not by cancelling the call: a write that waits for its connection then waits for ever.
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
                made = next_load(self._unsent, seq=self._seq + 1, now=loop.time())
            if made is None:
                if self._closed and not self._in_flight and not self._unsent and not self._inbox:
                    await call.done_writing()
                    return None
                if not self._inbox:
                    await self._wake.wait()
                continue
            frame, load = made
            self._seq = frame.seq
            self._in_flight[frame.seq] = load
            for parcel in load.parcels:
                parcel.sent = True
            try:
                await call.write(frame)
            except Exception as error:  # noqa: BLE001 -- the reader has the better reason, if it has one
                await asyncio.wait((reader,), timeout=1.0)
                return (reader.result() if reader.done() else None) or error
        return reader.result()

    async def _read(self, call: rpc.ProduceCall) -> Exception | None:
        try:
            while (reply := await rpc.next_reply(call)) is not None:
                self._take(reply)
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
        load = self._in_flight.pop(reply.seq, None)
        if load is None:  # answered twice, or a seq we never sent
            if reply.HasField("error"):
                log.warning("%s: %s", self._rotation.current, reply.error.message)
            return
        if not reply.HasField("error"):
            self._window = min(WINDOW, self._window + 1)
            load.take_reply(reply.odd)
            self._finish(load.parcels)
        elif reply.error.retry_after_ms or reply.error.code in rpc.RETRIED:
            if not self._pauses:
                self._window = max(1, self._window // 2)
            self._pauses += 1
            # Never sooner than asked for; and not all clients in the same moment.
            pause = max(reply.error.retry_after_ms / 1000, 0.0) or LEAST_PAUSE_SECONDS
            self._io.loop.call_later(pause * self._chance.uniform(1.0, 1.5), self._go_on)
            if reply.error.code == OVERLOADED:
                self._not_taken(load, refusal(reply.error))
            else:
                self._lost(load)
            self._put_back(load)
        elif reply.error.code in ABOUT_THE_JOB:
            self._give_up(load.parcels, refusal(reply.error))
        else:
            self._refuse(load.parcels, refusal(reply.error))

    def _go_on(self) -> None:
        # The timer ends the pause itself: compared with the clock, one in six would find itself a hair too early.
        self._pauses -= 1
        self._wake.set()

    # --- parcels that wait, or no longer ----------------------------------------------------------------------------

    def _not_taken(self, load: Load, refusal: HeadgateError) -> None:
        """Nothing of it was written: it stays as fresh as it was. Who does not want to wait is told at once."""
        for parcel in load.parcels:
            parcel.sent, parcel.refusal = parcel.lost, refusal
        self._give_up([one for one in load.parcels if not one.options.waits and not one.lost], refusal)

    def _lost(self, load: Load) -> None:
        """It may have been written before the connection broke, or the database went away."""
        for parcel in load.parcels:
            parcel.fresh, parcel.lost = False, True

    def _put_back(self, load: Load) -> None:
        for parcel in reversed(load.parcels):
            if not parcel.gone:
                self._disordered = self._disordered or bool(self._unsent and self._unsent[0].place < parcel.place)
                self._unsent.appendleft(parcel)

    def _resend_later(self) -> None:
        for seq in sorted(self._in_flight, reverse=True):
            load = self._in_flight.pop(seq)
            self._lost(load)
            self._put_back(load)

    def _drain_all(self) -> list[Parcel]:
        self._resend_later()
        self._collect()
        waiting, self._unsent = list(self._unsent), deque()
        return [parcel for parcel in waiting if not parcel.gone]

    def _refuse(self, parcels: list[Parcel], error: HeadgateError) -> None:
        """Give up for a reason that says nothing about an earlier try, which may have been stored."""
        for parcel in parcels:
            self._give_up([parcel], self._not_acknowledged(parcel) if parcel.lost else error)

    def _give_up(self, parcels: list[Parcel], answer: Answer) -> None:
        for parcel in parcels:
            parcel.answer = answer
        self._finish(parcels)

    def _finish(self, parcels: list[Parcel]) -> None:
        live = [parcel for parcel in parcels if not parcel.gone]
        self.room.give(sum(len(parcel.ids) for parcel in live), sum(parcel.size for parcel in live))
        settle(live)

    async def _sweep(self) -> None:
        """End what is past its deadline, and the connection that leaves frames unanswered.

        One timer for all: a timer for each submit would cost more than sending it.
        """
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._io.loop.time()
            self._collect()
            waiting = [*self._unsent, *(parcel for load in self._in_flight.values() for parcel in load.parcels)]
            for parcel in waiting:
                if parcel.deadline <= now and not parcel.gone:
                    self._give_up([parcel], self._too_late(parcel))
            oldest = min((load.sent_at for load in self._in_flight.values()), default=now)
            if self._call is not None and now - oldest > REPLY_SECONDS:
                self._call.cancel()

    def _never_sent(self) -> HeadgateError:
        address = self._rotation.current
        if not self._greeted:
            return rpc.not_connected(address)
        return Overloaded(
            f"{address} takes jobs more slowly than they are submitted: in the time allowed this one had no turn, and "
            "was not stored; submit less at once, or allow more time (timeout=...)",
            retry_after=1.0,
        )

    def _too_late(self, parcel: Parcel) -> HeadgateError:
        if not parcel.sent:
            return parcel.refusal or self._trouble or self._never_sent()
        return self._not_acknowledged(parcel)

    def _not_acknowledged(self, parcel: Parcel) -> NotAcknowledged:
        job_id = id_from_bytes(parcel.ids[0])
        return NotAcknowledged(
            f"{self._rotation.current} did not acknowledge job {job_id} in time; it may have been stored: "
            "submit it again with options=dict(id=...) of this id, which never makes a second job",
            job_id=job_id,
        )


def refusal(error: jobs.Error) -> HeadgateError:
    """The error of a frame or of one job, as the server reports it."""
    if error.code == OVERLOADED:
        return Overloaded(error.message, retry_after=error.retry_after_ms / 1000)
    if error.code in rpc.RETRIED or error.code in rpc.SERVERS_TROUBLE:  # none says that nothing was stored
        return ServerError(error.message, reported=error.code)
    problem = error.message.removeprefix(f"{error.field}: ")
    return SubmitRefused(error.field or "job", problem or "was refused without a reason", reported=error.code)
