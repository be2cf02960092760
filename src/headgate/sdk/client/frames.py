"""Submits that wait for their answer: how several become one frame, and how its reply is split among them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeAlias

from headgate.domain.errors import HeadgateError
from headgate.sdk.options import Prepared
from headgate.wire import producer_pb2 as pb

FRAME_JOBS: Final = 1_000
FRAME_BYTES: Final = 1_000_000

Answer: TypeAlias = Mapping[int, pb.SubmitReceipt] | HeadgateError
"""What became of a submit: exceptional receipts by index within it (none: all created), or why none was taken."""


@dataclass(slots=True, eq=False)
class PendingSubmit:
    """Jobs of one topic with the same options, and the future that a task or a blocked thread waits on."""

    topic: str
    ids: list[bytes]
    payloads: list[bytes]
    options: Prepared
    _: KW_ONLY
    deadline: float  # by the clock of the I/O loop
    new_id: bool  # its ids were never sent before
    future: asyncio.Future[Answer] | Future[Answer]
    size: int = 0  # of its payloads
    order: int = 0  # the order of the calls
    sent: bool = False  # it may have been stored
    lost: bool = False  # it was sent, and its fate is unknown
    refusal: HeadgateError | None = None  # the server's reason not to accept it now
    gone: bool = False  # answered, or given up
    answer: Answer = field(default_factory=dict)


def resolve(submits: Iterable[PendingSubmit]) -> None:
    """Hand the answers to those who wait. On the loop where they do, or in any thread for those that block."""
    for submit in submits:
        if not submit.future.done():
            submit.future.set_result(submit.answer)


@dataclass(slots=True)
class SentFrame:
    """One frame on its way: the submits it carries, in the order of their jobs."""

    submits: list[PendingSubmit]
    sent_at: float

    def take_exceptions(self, receipts: Iterable[pb.SubmitReceipt]) -> None:
        """Give each submit the receipts of its own jobs."""
        exceptions = {receipt.index: receipt for receipt in receipts}
        start = 0
        for submit in self.submits:
            end = start + len(submit.ids)
            own = {index - start: receipt for index, receipt in exceptions.items() if start <= index < end}
            if own:
                submit.answer = own
            start = end


def next_frame(waiting: deque[PendingSubmit], *, seq: int, now: float) -> tuple[pb.ProducerFrame, SentFrame] | None:
    """Take as many submits off the queue as one frame should carry; None if none is left to send.

    The plain jobs of the first plain submit's topic travel as arrays, all others as messages behind them.
    """
    plain: list[PendingSubmit] = []
    others: list[PendingSubmit] = []
    jobs = size = 0
    while waiting:
        submit = waiting[0]
        if submit.gone:
            waiting.popleft()
            continue
        if jobs and (jobs + len(submit.ids) > FRAME_JOBS or size + submit.size > FRAME_BYTES):
            break
        waiting.popleft()
        jobs, size = jobs + len(submit.ids), size + submit.size
        alike = not plain or (
            submit.topic == plain[0].topic
            and submit.new_id == plain[0].new_id
            and submit.options.declared is plain[0].options.declared
        )
        (plain if submit.options.plain and alike else others).append(submit)
    if not jobs:
        return None
    frame = pb.ProducerFrame(seq=seq)
    if plain:
        _fill_plain(frame.plain, plain)
    for submit in others:
        for raw_id, payload in zip(submit.ids, submit.payloads, strict=True):
            job = submit.options.new_job(submit.topic, raw_id, payload)
            job.new_id = submit.new_id
            frame.jobs.append(job)
    return frame, SentFrame([*plain, *others], now)


def _fill_plain(arrays: pb.PlainJobs, submits: list[PendingSubmit]) -> None:
    arrays.topic, arrays.new_id = submits[0].topic, submits[0].new_id
    for submit in submits:
        arrays.ids.extend(submit.ids)
        arrays.payloads.extend(submit.payloads)
    if (declared := submits[0].options.declared) is not None:
        arrays.declared.CopyFrom(declared.message)
    if any(submit.options.priority is not None for submit in submits):
        for submit in submits:
            priority, count = submit.options.priority, len(submit.ids)
            if priority is None:
                arrays.unset_priorities.extend(range(len(arrays.priorities), len(arrays.priorities) + count))
            arrays.priorities.extend([priority or 0] * count)
