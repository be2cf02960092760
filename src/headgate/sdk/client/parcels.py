"""What one call hands over for sending, and how several parcels become one frame and its reply is taken apart."""

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
"""What became of a parcel: the odd receipts by place within it (none: all created), or why none of it was taken."""

ALL_CREATED: Final[Mapping[int, pb.SubmitReceipt]] = {}


class Parcel:
    """Jobs of one topic with the same options, and the future their sender waits on."""

    __slots__ = (
        "answer",
        "deadline",
        "fresh",
        "future",
        "gone",
        "ids",
        "loop",
        "lost",
        "options",
        "payloads",
        "place",
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
        fresh: bool,
        loop: asyncio.AbstractEventLoop | None,
        size: int = 0,
    ) -> None:
        """`deadline` by the I/O loop's clock; `loop` is where the sender awaits its answer, None if a thread blocks."""
        self.topic, self.ids, self.payloads, self.options = topic, ids, payloads, options
        self.deadline, self.fresh = deadline, fresh
        self.size = size  # of its payloads
        self.place = 0  # in the order in which parcels were put
        self.sent = False  # it may have been stored
        self.lost = False  # it was sent, and nobody knows what became of that
        self.refusal: HeadgateError | None = None  # what the server said when it would not take it now
        self.gone = False  # answered, or given up
        self.answer: Answer = ALL_CREATED
        self.loop = loop
        self.future: asyncio.Future[Answer] | Future[Answer] = Future() if loop is None else loop.create_future()


def settle(answered: Iterable[Parcel]) -> None:
    """Hand the answers to those who wait: one crossing for each of their loops."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Parcel]] = {}
    for parcel in answered:
        parcel.gone = True
        if parcel.loop is None:
            _resolve((parcel,))
        else:
            by_loop.setdefault(parcel.loop, []).append(parcel)
    for loop, parcels in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, parcels)
        except RuntimeError:  # closed meanwhile: nobody waits there any more
            continue


def _resolve(parcels: Iterable[Parcel]) -> None:
    for parcel in parcels:
        if not parcel.future.done():
            parcel.future.set_result(parcel.answer)


class Load:
    """One frame on its way: which parcels it carries, in the order of their places."""

    __slots__ = ("parcels", "sent_at")

    def __init__(self, parcels: list[Parcel], sent_at: float) -> None:
        self.parcels, self.sent_at = parcels, sent_at

    def take_reply(self, odd: Iterable[pb.SubmitReceipt]) -> None:
        """Give each parcel the receipts of its own places."""
        strange = {receipt.place: receipt for receipt in odd}
        if not strange:
            return
        start = 0
        for parcel in self.parcels:
            end = start + len(parcel.ids)
            own = {place - start: receipt for place, receipt in strange.items() if start <= place < end}
            if own:
                parcel.answer = own
            start = end


def next_load(waiting: deque[Parcel], *, seq: int, now: float) -> tuple[pb.ProducerFrame, Load] | None:
    """Take as many parcels off the queue as one frame should carry; None if none is left to send.

    The plain jobs of the first plain parcel's topic travel as arrays, all others as messages behind them.
    """
    plain: list[Parcel] = []
    others: list[Parcel] = []
    jobs = size = 0
    while waiting:
        parcel = waiting[0]
        if parcel.gone:
            waiting.popleft()
            continue
        if jobs and (jobs + len(parcel.ids) > FRAME_JOBS or size + parcel.size > FRAME_BYTES):
            break
        waiting.popleft()
        jobs, size = jobs + len(parcel.ids), size + parcel.size
        alike = not plain or (parcel.topic == plain[0].topic and parcel.fresh == plain[0].fresh)
        (plain if parcel.options.plain and alike else others).append(parcel)
    if not jobs:
        return None
    frame = pb.ProducerFrame(seq=seq)
    if plain:
        _fill_plain(frame.plain, plain)
    for parcel in others:
        for raw_id, payload in zip(parcel.ids, parcel.payloads, strict=True):
            job = parcel.options.new_job(parcel.topic, raw_id, payload)
            job.fresh = parcel.fresh
            frame.jobs.append(job)
    return frame, Load([*plain, *others], now)


def _fill_plain(arrays: pb.PlainJobs, parcels: list[Parcel]) -> None:
    arrays.topic, arrays.fresh = parcels[0].topic, parcels[0].fresh
    for parcel in parcels:
        arrays.ids.extend(parcel.ids)
        arrays.payloads.extend(parcel.payloads)
    if any(parcel.options.priority for parcel in parcels):
        for parcel in parcels:
            arrays.priorities.extend([parcel.options.priority] * len(parcel.ids))
