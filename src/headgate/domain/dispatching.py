"""What dispatch and the store say to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from headgate.domain.arrivals import ClaimNews, Seen
from headgate.domain.keyrange import KeyRanges
from headgate.domain.states import Receipt, State
from headgate.domain.workers import WorkerStop


@dataclass(slots=True, kw_only=True)  # not frozen: that makes it three times as slow to make
class ClaimRequest:
    """What to claim: at most `limit` jobs, best first over all topics.

    `runs` says how many of them, in order, each of `workers` gets; with one worker it may be left out. `hints` are ids
    that may lie outside of `ranges`. `seen` is from the last claim's news: what has arrived since is looked at too.
    """

    tenant_no: int
    topic_nos: Sequence[int]
    limit: int
    lease_ms: int
    workers: Sequence[str]
    runs: Sequence[int] = ()
    ranges: KeyRanges | None = None
    hints: Sequence[UUID] = ()
    seen: Seen | None = None


@dataclass(slots=True, kw_only=True)
class Tick:
    """What one second's call found."""

    pending: list[int] = field(default_factory=list)
    paused: set[tuple[int, int]] = field(default_factory=set)
    promoted: list[tuple[int, int, UUID]] = field(default_factory=list)  # tenant, topic, id
    cancels: list[tuple[int, UUID, int]] = field(default_factory=list)  # tenant, id, epoch
    oldest_running: datetime | None = None  # when the oldest attempt that runs anywhere began
    reaped: int = 0
    next_due: datetime | None = None
    due_is_locked: bool = False  # the next due job was due when the tick began, and others have locked its row
    next_resume: datetime | None = None  # when the first pause that has an end is over
    quiet_hash: int | None = None
    quiet: frozenset[tuple[int, str]] = frozenset()  # tenant, worker
    stops_hash: int | None = None
    stops: Mapping[tuple[int, str], WorkerStop] = field(default_factory=dict)  # by tenant, worker
    now: datetime | None = None
    stepped_back: timedelta | None = None  # the clock is behind where it was at the last tick
    others: int = 0
    limits_open: list[tuple[int, datetime]] = field(default_factory=list)  # topic, and when limits let more of it start
    unblocks: bool = False  # jobs that waited for others may be claimable
    bulk: bool = False  # some bulk operations are not over
    webhooks: bool = False  # events are due to be delivered


@dataclass(slots=True, kw_only=True)
class Claimed:
    """Claimed jobs as parallel tuples, best first; empty tuples when there was nothing."""

    ids: tuple[UUID, ...] = ()
    topic_nos: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    max_attempts: tuple[int, ...] = ()
    priorities: tuple[int, ...] = ()
    rank_classes: tuple[int, ...] = ()
    ranks_at: tuple[int, ...] = ()
    created_ats: tuple[datetime, ...] = ()
    lease_untils: tuple[datetime, ...] = ()
    workers: tuple[str, ...] = ()
    headers: tuple[str | None, ...] = ()
    payloads: tuple[bytes, ...] = ()
    run_ats: tuple[datetime | None, ...] = ()
    """When each fell due; None: at its submit."""

    waits: tuple[tuple[int, float | None], ...] = ()
    """Topics that limits held back, and in how many seconds to ask again; None: when something of it has ended."""

    news: ClaimNews | None = None
    """What to know for the next claim; None: nothing was looked at."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of one outcome. `state` and `run_at` are the job's afterwards, when it is still known."""

    receipt: Receipt
    state: State | None = None
    run_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What a worker must learn about a job it holds: the lease is lost, or a cancel was requested.

    Skipped: another transaction holds the row, so it is neither renewed nor lost; ask again.
    """

    lost: bool
    cancel: bool
    skipped: bool = False


@dataclass(slots=True, kw_only=True)
class LostLeases:
    """What became of the leases of a lost worker: how many are ended, or could be.

    Locked: another transaction holds the row; ask again. Moved: the worker has declared it to another instance.
    """

    lost: int = 0
    locked: set[UUID] = field(default_factory=set)
    moved: set[UUID] = field(default_factory=set)
