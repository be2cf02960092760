"""The last outcomes of a worker, reported by unary calls because its stream has ended or does not answer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import grpc.aio

from headgate.domain.ids import id_from_bytes
from headgate.sdk import rpc
from headgate.sdk.addresses import Address
from headgate.sdk.io_log import io_logger
from headgate.sdk.worker.outbox import FRAME_BYTES, FRAME_OUTCOMES
from headgate.sdk.worker.protocol import RESEND_SOON_SECONDS, receipt_name
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb

log = io_logger("headgate.worker")

REPORT_SECONDS: Final = 5.0
"""How long one server is tried."""
OnSettled: TypeAlias = Callable[[jobs.Outcome, jobs.Receipt | None], None]


async def report_without_stream(
    outcomes: Iterable[jobs.Outcome],
    addresses: tuple[Address, ...],
    *,
    worker_id: str,
    token: str,
    settled: OnSettled,
) -> None:
    """Report to the first server that accepts it; what none accepts is logged.

    `settled` is called with each outcome and its receipt, at the end with None for those that were not reported.
    """
    left = deque(outcomes)
    for address in addresses:
        channel = rpc.open_channel(address)
        try:
            await _report(channel, left, settled, worker_id=worker_id, token=token)
        except Exception as error:  # noqa: BLE001 -- the next address may accept it; the rest is logged below
            log.info("report_failed error=%s", rpc.explain(error, address))
        else:
            break  # what is locked at one server is locked at all of them
        finally:
            await channel.close()
    if left:
        log.error(
            'outcomes_not_reported jobs=%d effect="the jobs run again when their leases expire"',
            len(left),
        )
        for outcome in left:
            settled(outcome, None)


async def _report(
    channel: grpc.aio.Channel, left: deque[jobs.Outcome], settled: OnSettled, *, worker_id: str, token: str
) -> None:
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
        request = pb.ReportOutcomeRequest(worker_id=worker_id, outcomes=part)
        try:
            answer = await rpc.REPORT_OUTCOME(channel, request, token=token, seconds=seconds)
        except grpc.aio.AioRpcError as error:
            wait = rpc.retry_after(error)
            if wait is None or wait >= ends - time.monotonic():
                raise
            await asyncio.sleep(wait)
            continue
        for _ in part:
            left.popleft()
        again = _locked(part, answer.receipts, settled)
        left.extend(again)
        locked += len(again)


def _next_part(left: Iterable[jobs.Outcome], most: int) -> list[jobs.Outcome]:
    """The first of them that fit into one call: at least one."""
    part: list[jobs.Outcome] = []
    size = 0
    for outcome in left:
        size += outcome.ByteSize()
        if part and (size > FRAME_BYTES or len(part) == min(most, FRAME_OUTCOMES)):
            break
        part.append(outcome)
    return part


def _locked(
    outcomes: Sequence[jobs.Outcome], receipts: Iterable[jobs.Receipt], settled: OnSettled
) -> list[jobs.Outcome]:
    """Those about which nothing was decided, because their jobs were locked; the others are settled."""
    found = []
    answers = {receipt.index: receipt for receipt in receipts}
    for index, outcome in enumerate(outcomes):
        receipt = answers.get(index)
        if receipt is None:
            settled(outcome, None)
        elif receipt.code == jobs.RECEIPT_LOCKED:
            found.append(outcome)
        elif receipt.code in (jobs.RECEIPT_APPLIED, jobs.RECEIPT_DUPLICATE):
            settled(outcome, receipt)
        else:
            log.warning(
                "outcome_not_applied job_id=%s epoch=%d receipt=%s message=%s",
                *(id_from_bytes(outcome.id), outcome.epoch, receipt_name(receipt), receipt.message),
            )
            settled(outcome, None)
    return found
