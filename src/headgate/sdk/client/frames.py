"""Submits that wait for their answer: how several become one frame, and how its reply is split among them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Final, TypeAlias

from headgate.domain.errors import HeadgateError
from headgate.sdk.options import Prepared
from headgate.wire import producer_pb2 as pb

FRAME_JOBS: Final = 1_000
FRAME_BYTES: Final = 1_000_000

Answer: TypeAlias = Mapping[int, pb.SubmitReceipt] | HeadgateError
"""What became of a submit: exceptional receipts by index within it (none: all created), or why none was taken."""

ALL_CREATED: Final[Mapping[int, pb.SubmitReceipt]] = {}


class PendingSubmit:
    """Jobs of one topic with the same options, and the future their sender waits on."""

    __slots__ = (
        "answer",
        "deadline",
        "future",
        "gone",
        "ids",
        "loop",
        "lost",
        "new_id",
        "options",
        "order",
        "payloads",
        "refusal",
        "sent",
        "size",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        ids: list[bytes],
        payloads: list[bytes],
        options: Prepared,
        *,
        deadline: float,
        new_id: bool,
        loop: asyncio.AbstractEventLoop | None,
        size: int = 0,
    ) -> None:
        """`deadline` by the I/O loop's clock; `loop` is where the sender awaits its answer, None if a thread blocks."""
        self.topic, self.ids, self.payloads, self.options = topic, ids, payloads, options
        self.deadline, self.new_id = deadline, new_id
        self.size = size  # of its payloads
        self.order = 0  # the order of the calls
        self.sent = False  # it may have been stored
        self.lost = False  # it was sent, and its fate is unknown
        self.refusal: HeadgateError | None = None  # the server's reason not to accept it now
        self.gone = False  # answered, or given up
        self.answer: Answer = ALL_CREATED
        self.loop = loop
        self.future: asyncio.Future[Answer] | Future[Answer] = Future() if loop is None else loop.create_future()


def settle(answered: Iterable[PendingSubmit]) -> None:
    """Hand the answers to those who wait: one crossing for each of their loops."""
    by_loop: dict[asyncio.AbstractEventLoop, list[PendingSubmit]] = {}
    for submit in answered:
        submit.gone = True
        if submit.loop is None:
            _resolve((submit,))
        else:
            by_loop.setdefault(submit.loop, []).append(submit)
    for loop, submits in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, submits)
        except RuntimeError:  # closed meanwhile: nothing waits there any more
            continue


def _resolve(submits: Iterable[PendingSubmit]) -> None:
    for submit in submits:
        if not submit.future.done():
            submit.future.set_result(submit.answer)


class SentFrame:
    """One frame on its way: the submits it carries, in the order of their jobs."""

    __slots__ = ("sent_at", "submits")

    def __init__(self, submits: list[PendingSubmit], sent_at: float) -> None:
        self.submits, self.sent_at = submits, sent_at

    def take_reply(self, receipts: Iterable[pb.SubmitReceipt]) -> None:
        """Give each submit the receipts of its own jobs."""
        exceptions = {receipt.index: receipt for receipt in receipts}
        if not exceptions:
            return
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
