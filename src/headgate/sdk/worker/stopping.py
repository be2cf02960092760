"""How a worker stops, on the I/O loop. The order is the design:

say that no more is wanted → hand back what no handler has begun, also what still comes → let handlers finish within the
grace → cancel those that can be cancelled and hand back the rest → have every outcome answered → close the stream.
A second request to stop (`hurry`) skips the waiting, never the handing back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

import grpc.aio

from headgate.sdk import rpc
from headgate.sdk.addresses import Address
from headgate.sdk.job import STARTED, Job
from headgate.sdk.worker.inbound import Stops
from headgate.sdk.worker.outbox import FRAME_BYTES, FRAME_OUTCOMES
from headgate.sdk.worker.stream import RESEND_SOON_SECONDS, WorkerStream
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb

log = logging.getLogger("headgate.worker")

FLUSH_SECONDS: Final = 10.0
HURRIED_FLUSH_SECONDS: Final = 2.0
UNWIND_SECONDS: Final = 2.0
"""What a cancelled handler gets to clean up before its job is handed back."""
REPORT_SECONDS: Final = 5.0


class Stopper:
    """Brings one worker to its end."""

    def __init__(
        self, stream: WorkerStream, slots: Stops, addresses: tuple[Address, ...], *, worker_id: str, token: str
    ) -> None:
        self._stream, self._slots, self._addresses = stream, slots, addresses
        self._worker_id, self._token = worker_id, token
        self._hurried = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, grace: float) -> None:
        """Start to stop; harmless when repeated."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stop(grace), name="headgate worker stop")

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        self._hurried = True
        self._stream.changed.set()
        self.begin(0.0)

    async def _stop(self, grace: float) -> None:
        stream, ledger = self._stream, self._stream.ledger
        ledger.resting = True
        if stream.connected and ledger.asked:
            stream.quieted = False  # also where nothing runs: jobs may be on their way
        stream.hand_back_unstarted()
        stream.wake()
        await self._until(lambda: not ledger.active, grace)
        if running := ledger.running():
            log.warning("%d handlers did not finish within %g s: handing their jobs back", len(running), grace)
            await self._hand_back(running)
        flush = HURRIED_FLUSH_SECONDS if self._hurried else FLUSH_SECONDS
        # Not before the server has confirmed: what it sent meanwhile would cost an attempt if nobody were there.
        await self._until(
            lambda: not len(ledger.outbox) and (stream.quieted or not stream.connected), flush, hurried=False
        )
        if len(ledger.outbox):
            await self._report_without_stream()
        stream.close()

    async def _hand_back(self, running: list[Job]) -> None:
        for job in running:
            job.abandoned = True  # from here on only a success of its handler is sent: it was cut short
            job.ask_to_stop()
        self._slots.stop(running)
        await self._until(lambda: not self._stream.ledger.active, UNWIND_SECONDS)
        if deaf := Counter(job.topic for job in running if job.stage == STARTED):
            log.error(
                "did_not_stop: handlers still run (%s) and are not waited for; their jobs are handed back, and may run "
                "elsewhere before this process has ended",
                ", ".join(f"{topic}: {count}" for topic, count in deaf.items()),
            )
        for job in running:
            self._stream.ledger.hand_back(job)
        self._stream.wake()

    async def _until(self, check: Callable[[], bool], seconds: float, *, hurried: bool = True) -> None:
        """Wait until `check` holds, `seconds` have passed or, unless told otherwise, someone is in a hurry."""
        changed = self._stream.changed
        try:
            async with asyncio.timeout(seconds):
                while not check() and not (hurried and self._hurried):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return

    async def _report_without_stream(self) -> None:
        """The stream is gone or does not answer: report by a unary call, to whichever server takes it."""
        outbox = self._stream.ledger.outbox
        left = deque(outcome for _, outcome in outbox.everything())
        for address in self._addresses:
            channel = rpc.open_channel(address)
            try:
                await self._report(channel, left)
            except Exception as error:  # noqa: BLE001 -- the next address may take it; the rest is logged below
                log.info("%s", rpc.explain(error, address))
            else:
                break  # what is locked at one server is locked at all of them
            finally:
                await channel.close()
        outbox.clear()
        if left:
            log.error(
                "%d outcomes could not be reported to any server; these jobs will run again when their leases lapse",
                len(left),
            )

    async def _report(self, channel: grpc.aio.Channel, left: deque[jobs.Outcome]) -> None:
        """Report to one server, in parts that it accepts, within REPORT_SECONDS. What it took leaves the queue.

        Raises the server's refusal, unless it may be gone in time.
        """
        ends, locked = time.monotonic() + REPORT_SECONDS, 0  # locked ones are at the end of the queue
        while left and (seconds := ends - time.monotonic()) > 0:
            if locked == len(left):  # other transactions hold these jobs' rows, and may end soon
                await asyncio.sleep(min(RESEND_SOON_SECONDS, seconds))
                locked = 0
                continue
            part = _next_part(left, len(left) - locked)
            request = pb.ReportOutcomeRequest(worker_id=self._worker_id, outcomes=part)
            try:
                answer = await rpc.REPORT_OUTCOME(channel, request, token=self._token, seconds=seconds)
            except grpc.aio.AioRpcError as error:
                wait = rpc.retry_after(error)
                if wait is None or wait >= ends - time.monotonic():
                    raise
                await asyncio.sleep(wait)
                continue
            for _ in part:
                left.popleft()
            again = _locked(part, answer.receipts)
            left.extend(again)
            locked += len(again)


def _next_part(left: Iterable[jobs.Outcome], most: int) -> list[jobs.Outcome]:
    """The first of them, as many as one call may carry: at least one."""
    part: list[jobs.Outcome] = []
    size = 0
    for outcome in left:
        size += outcome.ByteSize()
        if part and (size > FRAME_BYTES or len(part) == min(most, FRAME_OUTCOMES)):
            break
        part.append(outcome)
    return part


def _locked(outcomes: Sequence[jobs.Outcome], receipts: Iterable[jobs.Receipt]) -> list[jobs.Outcome]:
    """Those of them about which nothing was decided, because their jobs were locked."""
    found = []
    for receipt in receipts:
        if receipt.code == jobs.RECEIPT_LOCKED:
            found.append(outcomes[receipt.place])
        elif receipt.code not in (jobs.RECEIPT_APPLIED, jobs.RECEIPT_DUPLICATE):
            word = jobs.ReceiptCode.Name(receipt.code).removeprefix("RECEIPT_").lower()
            outcome = outcomes[receipt.place]
            job_id = UUID(bytes=outcome.id)
            log.warning(
                "the outcome of job %s, epoch %d, was not taken: %s %s", job_id, outcome.epoch, word, receipt.message
            )
    return found
