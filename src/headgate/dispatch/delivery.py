"""What is sent to a worker session: deliveries of jobs, and control frames for everything else."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, TypeAlias
from uuid import UUID

from headgate.domain.dispatching import Settled
from headgate.domain.errors import HeadgateError
from headgate.domain.workers import WorkerStop

Wanted: TypeAlias = tuple[tuple[int, ...], int, tuple[str, ...]]
"""What credit is for: topics by number, the lease in milliseconds, and topics that do not exist yet, by name."""
Answer: TypeAlias = Settled | HeadgateError
"""What became of one outcome; an error: the database refuses this very row, and its job stays as it was."""

_OF_EACH_JOB: Final = (
    *("ids", "topic_nos", "epochs", "attempts", "max_attempts", "priorities", "created_us", "headers", "payloads"),
)


@dataclass(slots=True, kw_only=True)
class Delivery:
    """Jobs dealt to one session by one claim, as parallel sequences: ready to become a frame."""

    tenant_no: int
    lease_ms: int
    ids: Sequence[UUID]
    topic_nos: Sequence[int]
    epochs: Sequence[int]
    attempts: Sequence[int]
    max_attempts: Sequence[int]
    priorities: Sequence[int]
    created_us: Sequence[int]
    lease_until_us: int
    headers: Sequence[str | None]
    payloads: Sequence[bytes]
    wanted: Wanted = ((), 0, ())  # what the credit was for that it uses up
    seq: int = 0  # its number on the session, from 1; 0 on all parts of a split one but the last

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def claimed_us(self) -> int:
        """When it was claimed, by the database's clock."""
        return self.lease_until_us - self.lease_ms * 1000

    def split(self, most_bytes: int) -> tuple[Delivery, Delivery | None]:
        """As many jobs from the front as fit, at least one; and the rest, if there is any."""
        sizes = [len(payload) + len(text or "") for payload, text in zip(self.payloads, self.headers, strict=True)]
        if sum(sizes) <= most_bytes:
            return self, None
        totals = list(accumulate(sizes))
        cut = max(1, bisect_right(totals, most_bytes))
        if cut == len(self):
            return self, None
        # The number goes with the last part: who has seen it has seen all of them.
        return self._part(slice(None, cut), seq=0), self._part(slice(cut, None), seq=self.seq)

    @property
    def payload_bytes(self) -> int:
        """What it keeps in memory, but for a little."""
        return sum(map(len, self.payloads))

    def only(self, indexes: Sequence[int]) -> Delivery:
        """The jobs at these indexes."""
        return self._taken(lambda values: [values[index] for index in indexes], seq=self.seq)

    def _part(self, part: slice, *, seq: int) -> Delivery:
        return self._taken(lambda values: values[part], seq=seq)

    def _taken(self, take: Callable[[Sequence[Any]], Sequence[Any]], *, seq: int) -> Delivery:
        taken: dict[str, Any] = {name: take(getattr(self, name)) for name in _OF_EACH_JOB}
        return replace(self, seq=seq, **taken)


@dataclass(slots=True, kw_only=True)
class ControlFrame:
    """Anything else a session is sent: receipts of a frame, jobs lost or to be cancelled, an error, a drain."""

    receipts_seq: int | None = None
    receipt_exceptions: Sequence[tuple[int, Answer]] = ()  # what was not simply applied, by index in its frame
    beat_ack: bool = False
    lost: Sequence[tuple[UUID, int]] = ()
    cancel: Sequence[tuple[UUID, int]] = ()
    drain_seconds: int | None = None
    error: HeadgateError | None = None
    error_seq: int = 0  # of the outcomes that the error is about
    quieted: bool = False
    stop: WorkerStop | None = None  # an operator asks the worker's process to stop
    standby: Sequence[str] | None = None  # topics that it gets no jobs of for now; None: says nothing about it

    @property
    def weight(self) -> int:
        """What it counts for among the frames that wait: a frame of five thousand receipts is not one of few."""
        return 1 + (len(self.receipt_exceptions) + len(self.lost)) // 40
