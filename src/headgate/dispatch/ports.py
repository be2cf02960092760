"""What dispatch asks of the store, and nothing more. The classes of store/ fit these; server/ joins the two."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol, Self
from uuid import UUID

from headgate.domain.dispatching import Claimed, ClaimRequest, LostLeases, Renewal, Settled, Tick
from headgate.domain.job_logs import AttemptLines
from headgate.domain.jobs import SubmitAnswer
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Outcome
from headgate.domain.wakes import Wake


class OutcomeRows(Protocol):
    """One flush of outcomes, being filled; once it is settled, what it lets others do."""

    topics_with_capacity: set[int]  # limits let more jobs of these start, or some became claimable
    unblocks: bool  # jobs that waited for some of these may be claimable: see UnblockStore
    webhooks: bool  # events of some of these are to be delivered: see WebhookStore
    unmatched: bool  # reported by a caller that was not given these jobs: on a connection of their own
    skip_locked: bool  # answer rows that others have locked with LOCKED; else they fail the call: StoreBusy.locked

    def add(self, tenant_no: int, job_id: UUID, epoch: int, outcome: Outcome) -> int: ...
    def add_completed(
        self, tenant_no: int, ids: Sequence[UUID], epochs: Sequence[int], results: Sequence[bytes]
    ) -> range: ...


class UnblockStore(Protocol):
    """The unblocker's part: decide what was noted; returns what is claimable now, and whether there is more."""

    async def unblock_ready(self) -> tuple[list[tuple[int, int, UUID]], bool]: ...
    async def mend_waits(self, *, limit: int) -> list[str]: ...


class TenantNumbers(Protocol):
    """The number of a tenant; makes one for a new name."""

    async def tenant_no(self, tenant: str) -> int: ...


class TopicNames(Protocol):
    """Topics that are known here, by name and by number.

    `leases`: of topics that have one, by tenant and name, in milliseconds; `consumers`: the numbers and names of topics
    with a maximum of consumers. Both are nearly always empty.
    """

    def topic_no(self, tenant_no: int, name: str) -> int | None: ...
    def knows(self, no: int) -> bool: ...
    def may_rank_below(self, no: int) -> bool: ...
    def is_keyed(self, no: int) -> bool: ...
    @property
    def leases(self) -> Mapping[int, Mapping[str, int]]: ...
    @property
    def consumers(self) -> Mapping[int, str]: ...


class TopicFacts(Protocol):
    """What workers are sent about the topics of their jobs."""

    def topic_name(self, topic_no: int, /) -> str: ...
    def time_limit_ms(self, topic_no: int, /) -> int | None: ...


class ClaimStore(Protocol):
    """The claimer's part."""

    async def claim(self, request: ClaimRequest) -> Claimed: ...
    async def submit_and_claim(
        self, rows: SubmitRows, request: ClaimRequest
    ) -> tuple[Mapping[int, SubmitAnswer], Claimed]: ...


class TickStore(Protocol):
    """The ticker's part."""

    async def tick(
        self, topic_nos: Sequence[int], ranges: KeyRanges | None = None, *, running: bool = True, below: bool = False
    ) -> Tick: ...
    async def reap(self) -> Sequence[int]: ...


class ScanStore(Protocol):
    """The scanner's part: topics with claimable jobs; whether a floor of the next tick is lower now."""

    async def scan_topics(self, topic_nos: Sequence[int]) -> Sequence[int]: ...
    async def scan_below_floors(self) -> bool: ...


class WakeStore(Protocol):
    """What tells the other instances."""

    async def notify(self, wakes: Collection[Wake]) -> None: ...


class LimitStore(Protocol):
    """The limit admitter's part: topics of which jobs were let in (0 seconds), or will be in so many seconds."""

    async def admit_due(self) -> Sequence[tuple[int, float]]: ...


class ProgressStore(Protocol):
    """The progress writer's part: by job, its epoch and the newest report; returns the jobs that others have locked."""

    async def progress(
        self, tenant_no: int, reports: Mapping[UUID, tuple[int, Mapping[str, object]]]
    ) -> list[UUID]: ...


class LogStore(Protocol):
    """The log writer's part: lines of attempts; how many of them are new."""

    async def add_log_lines(self, tenant_no: int, attempts: Sequence[AttemptLines]) -> int: ...


class LeaseStore(ProgressStore, Protocol):
    """The renewer's part: (tenant, lease) → parallel ids and epochs; the answers by tenant, id and epoch.

    All but `renew` without `for_call` are done on another connection than that.
    """

    async def renew(
        self,
        held: Mapping[tuple[int, int], tuple[Sequence[UUID], Sequence[int]]],
        *,
        for_call: bool = False,
        declared: bool = False,
    ) -> Mapping[tuple[int, UUID, int], Renewal]: ...
    async def expire_lost(
        self, tenant_no: int, ids: Sequence[UUID], epochs: Sequence[int], *, lost_ms: int, end: bool
    ) -> LostLeases: ...
    async def abandon_undeclared(self, tenant_no: int, worker: str, held: Sequence[UUID]) -> list[UUID]: ...
    async def topics_of(self, tenant_no: int, ids: Sequence[UUID]) -> Mapping[UUID, str]: ...


class OutcomeStore(Protocol):
    """The outcome writer's part."""

    def new_outcomes(self) -> OutcomeRows: ...
    async def topics_of(self, tenant_no: int, ids: Sequence[UUID]) -> Mapping[UUID, str]: ...
    async def settle(self, rows: OutcomeRows) -> Mapping[int, Settled]: ...


class SubmitRows(Protocol):
    """One flush of submits, being filled."""

    topic_nos: list[int]
    payloads: list[bytes]

    def __len__(self) -> int: ...
    @property
    def plain(self) -> bool: ...
    @property
    def may_unblock(self) -> bool: ...
    def passed_over(self, answers: Mapping[int, SubmitAnswer]) -> Sequence[tuple[int, UUID]]: ...
    def soonest(self) -> tuple[int | None, datetime | None]: ...
    def mark_resent(self) -> None: ...
    def extend(self, other: Self) -> None: ...
    def pick(self, places: Sequence[int], *, resent: bool = False) -> Self: ...


class SubmitStore(Protocol):
    """The submit writer's part; `submit_locked` is done on a connection of its own."""

    async def submit(self, rows: SubmitRows) -> Mapping[int, SubmitAnswer]: ...
    async def submit_locked(self, rows: SubmitRows) -> Mapping[int, SubmitAnswer]: ...
