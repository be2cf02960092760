"""What dispatch and the store say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypedDict
from uuid import UUID

from headgate.domain.arrivals import Seen
from headgate.domain.keyrange import KeyRanges


class ClaimCall(TypedDict):
    """What a claim asks for: `runs` says how many of the jobs, in order, each of `workers` gets."""

    tenant_no: int
    topic_nos: Sequence[int]
    limit: int
    lease_ms: int
    workers: Sequence[str]
    runs: Sequence[int]
    ranges: KeyRanges
    hints: Sequence[UUID]
    seen: Seen | None


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
    next_resume: datetime | None = None  # when the first pause that has an end is over
    quiet_hash: int | None = None
    quiet: frozenset[tuple[int, str]] = frozenset()  # tenant, worker
    now: datetime | None = None
    stepped_back: timedelta | None = None  # the clock is behind where it was at the last tick
    others: int = 0
    limits_open: list[tuple[int, datetime]] = field(default_factory=list)  # topic, and when limits let more of it start
    unblocks: bool = False  # jobs that waited for others may be claimable
    bulk: bool = False  # some bulk operations are not over
