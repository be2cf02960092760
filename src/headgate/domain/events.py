"""The stream of events: what happens to jobs and topics, read from committed rows, from a position on (ADR 42).

A position is a snapshot of the database: all events of transactions that it shows were sent. Transactions commit in
another order than they begin, so no single number can say that. The next events are those of transactions that were
under way in it, or began since, and are committed now.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final, Self, TypeAlias
from uuid import UUID

from headgate.domain import limits
from headgate.domain.errors import HeadgateError, InvalidInput, TooLarge
from headgate.domain.ids import JobId
from headgate.domain.states import EventKind
from headgate.domain.validation import check_topic, shown

COMPLETED: Final = "job.completed"
TOPIC_PAUSED, TOPIC_RESUMED, TOPIC_CHANGED = "topic.paused", "topic.resumed", "topic.changed"
KINDS: Final = (
    COMPLETED,
    *(f"job.{kind.label}" for kind in EventKind),
    *(TOPIC_PAUSED, TOPIC_RESUMED, TOPIC_CHANGED),
)
_POSITION: Final = re.compile(r"([0-9]{1,15})\.([0-9]{1,9})\.([0-9]{1,18}):([0-9]{1,18}):([0-9,]*)")
POSITION_MAX_CHARS: Final = limits.HTTP_HEADERS_MAX_BYTES // 2
"""It names the transactions that were under way; some hundreds of them, on a busy database. Clients send it back in a
header, with others."""


class SlowReader(HeadgateError):
    """The client of a stream of events reads more slowly than events come; it may go on where it ended."""

    code = "slow_reader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a stream is: by the time at which it was taken, the number of restores before, and the snapshot."""

    at_ms: int
    restores: int
    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As clients get it. One that would be too long is cut: some events are sent again from there."""
        text = f"{self.at_ms}.{self.restores}.{self.snapshot}"
        if len(text) <= POSITION_MAX_CHARS:
            return text
        begin = text.rindex(":") + 1
        fit = (POSITION_MAX_CHARS - begin) // (len(str(self.xmax)) + 1)
        return str(self.cut(self.running[fit] - 1))

    @property
    def snapshot(self) -> str:
        """As PostgreSQL writes it."""
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    @classmethod
    def of(cls, snapshot: str, *, at_ms: int, restores: int) -> Self:
        """That of a snapshot of PostgreSQL."""
        xmin, xmax, running = snapshot.split(":")
        return cls(
            at_ms=at_ms,
            restores=restores,
            xmin=int(xmin),
            xmax=int(xmax),
            running=tuple(map(int, running.split(","))) if running else (),
        )

    @classmethod
    def parse(cls, text: str, *, field: str = "last_event_id") -> Self:
        """The position that a client gives back. Raises InvalidInput."""
        if len(text) > POSITION_MAX_CHARS:
            raise TooLarge(field, size=len(text), limit=POSITION_MAX_CHARS, unit="characters")
        found = _POSITION.fullmatch(text)
        running: tuple[int, ...] = ()
        if found is not None and re.fullmatch(r"(?:[0-9]{1,18}(?:,[0-9]{1,18})*)?", found[5]):
            running = tuple(map(int, found[5].split(","))) if found[5] else ()
            xmin, xmax = int(found[3]), int(found[4])
            ascending = all(before < after for before, after in pairwise(running))
            if 1 <= xmin <= xmax and ascending and all(xmin <= one < xmax for one in running):
                return cls(at_ms=int(found[1]), restores=int(found[2]), xmin=xmin, xmax=xmax, running=running)
        raise InvalidInput(
            field,
            f"is not the id of an event, got {shown(text)}",
            hint="send the last id that the stream has sent, or none to begin now",
        )

    def shows(self, xid: int) -> bool:
        """Whether the events of a transaction were sent."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def cut(self, xid: int) -> Self:
        """The same as far as transaction `xid`: events of later ones were not sent."""
        running = tuple(one for one in self.running if one <= xid)
        return type(self)(
            at_ms=self.at_ms,
            restores=self.restores,
            xmin=running[0] if running else xid + 1,
            xmax=xid + 1,
            running=running,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """Something that happened. `id` is stable: an event that is sent again has the same. `data`: more about it."""

    id: str
    kind: str
    at: datetime
    tenant_no: int  # 0: it concerns all tenants
    xid: int  # the transaction that wrote it
    topic: str = ""  # empty: not known any more, or all topics
    job_id: JobId | None = None
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events a stream sends; what is empty does not restrict it."""

    topics: frozenset[str] = frozenset()
    jobs: frozenset[UUID] = frozenset()
    kinds: frozenset[str] = frozenset()
    batch: UUID | None = None

    def __post_init__(self) -> None:
        for name, values in (("topic", self.topics), ("job_id", self.jobs)):
            if len(values) > limits.EVENT_FILTER_MAX:
                raise InvalidInput(name, f"{len(values)} values; the limit is {limits.EVENT_FILTER_MAX}")
        for topic in self.topics:
            check_topic(topic, field="topic")
        for kind in self.kinds:
            if kind not in KINDS:
                known = ", ".join(KINDS)
                raise InvalidInput("kind", f"is not known, got {shown(kind)}", hint=f"must be one of {known}")

    @property
    def wants_completed(self) -> bool:
        """Whether completions are among them: these are recorded only while a stream wants them."""
        return not self.kinds or COMPLETED in self.kinds

    def matches(self, event: StreamEvent, members: Collection[UUID]) -> bool:
        """Whether to send it. `members`: jobs of the batch among those that events are about."""
        if self.kinds and event.kind not in self.kinds:
            return False
        if self.topics and event.topic not in self.topics:
            return False
        if self.jobs and event.job_id not in self.jobs:
            return False
        return self.batch is None or event.job_id in members


# ---------------------------------------------------------------------- what a stream sends


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The stream is open: all that happens after this position is sent."""

    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Some events between these times are not known any more."""

    since: datetime
    until: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """An event. The last one of those that became visible together has the position behind it."""

    event: StreamEvent
    position: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Nothing has happened for a while; the stream is this far."""

    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last item: why the stream ends. A client may open another one from the last position."""

    error: HeadgateError


StreamItem: TypeAlias = Opened | Gap | Happened | Alive | Ended
