"""What the use cases need of the store, and of this instance's dispatch. The modules of `store/` fit these directly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Protocol, Self, TypeVar
from uuid import UUID

from headgate.domain.api_keys import KeyView, NewKey
from headgate.domain.batch_graph import BatchGraph
from headgate.domain.bulk import BulkOperation, Counted, DeadGroups, JobLine, JobPage, Plan, Preview, StartedBulk
from headgate.domain.dependencies import BatchStatus, NewBatch
from headgate.domain.durability import Durability
from headgate.domain.errors import HeadgateError
from headgate.domain.events import Position, StreamEvent
from headgate.domain.filters import JobFilter, Term
from headgate.domain.ids import IdKind, JobId
from headgate.domain.job_logs import LogPage
from headgate.domain.jobs import JobRules, Submission, SubmitAnswer
from headgate.domain.retention import Removed, RetentionRules
from headgate.domain.schedules import ScheduleSpec
from headgate.domain.stats import Failing, Series, Window
from headgate.domain.topic_policy import AppliedPolicy, PolicyVersion
from headgate.domain.topic_rules import RuleSources
from headgate.domain.topic_sets import TopicSet
from headgate.domain.views import (
    AuditFilter,
    AuditPage,
    Change,
    JobView,
    Pause,
    Quiet,
    Redrive,
    ScheduledJob,
    ScheduleView,
    Standing,
    Status,
    Target,
    TopicView,
)
from headgate.domain.wakes import Wake
from headgate.domain.webhooks import DeliveryState, DeliveryView, Webhook, WebhookSpec
from headgate.domain.workers import LostWorker, RunningJob, WorkerStop, WorkerView


class SubmitRows(Protocol):
    """Jobs on their way to the database, as parallel lists."""

    payloads: list[bytes]

    def __len__(self) -> int: ...
    def extend(self, other: Self, /) -> None: ...
    def pick(self, indexes: Sequence[int], /) -> Self: ...


Rows = TypeVar("Rows", bound=SubmitRows)
Rows_contra = TypeVar("Rows_contra", bound=SubmitRows, contravariant=True)
Account = TypeVar("Account")
"""What one caller has waiting to be submitted; made and read by the queue only."""


class SubmitStore(Protocol[Rows]):
    """Rows for submissions, and the one write that does not go through the queue."""

    async def refusals(self, tenant: str, jobs: Sequence[Submission]) -> Mapping[int, HeadgateError]: ...
    def schemas_of(self, tenant: str) -> Mapping[str, str]: ...
    def payload_sizes_of(self, tenant: str) -> Mapping[str, int]: ...
    def checks_payloads(self, tenant: str, topic: str | None = None) -> bool: ...
    async def fill(self, jobs: Sequence[Submission]) -> Rows: ...
    async def fill_plain(
        self,
        tenant: str,
        topic: str,
        ids: Sequence[bytes],
        payloads: Sequence[bytes],
        priorities: Sequence[int],
        *,
        new_id: bool,
        unset_priorities: Sequence[int] = (),
        declared: JobRules | None = None,
    ) -> Rows: ...
    async def submit_atomic(self, rows: Rows) -> Mapping[int, SubmitAnswer]: ...


class SubmitQueue(Protocol[Rows_contra, Account]):
    """The queue in front of the database; answers come after the commit, for rows that were not simply created."""

    def new_account(self) -> Account: ...
    def account_of_calls(self, tenant: str) -> Account: ...
    def admit(self, rows: int, size: int, account: Account) -> None: ...
    def holding(self, rows: int, size: int, account: Account) -> AbstractContextManager[None]: ...
    def put(
        self,
        rows: Rows_contra,
        size: int,
        account: Account,
        *,
        done: Callable[[Mapping[int, SubmitAnswer]], None],
        failed: Callable[[HeadgateError], None],
    ) -> None: ...
    async def submit(
        self, rows: Rows_contra, *, size: int, account: Account, admitted: bool = False
    ) -> Mapping[int, SubmitAnswer]: ...
    def submitted(self, rows: Rows_contra, answers: Mapping[int, SubmitAnswer]) -> None: ...
    def look_again(self, rows: Rows_contra, answers: Mapping[int, SubmitAnswer]) -> None: ...


class BatchStore(Protocol):
    """Opening, sealing and reading batches of a tenant. All raise NotFound for another tenant's."""

    async def open_batch(self, tenant: str, /, batch: NewBatch, *, callback: Submission | None) -> BatchStatus: ...
    async def seal_batch(self, tenant: str, /, batch_id: UUID) -> BatchStatus: ...
    async def batch(self, tenant: str, /, batch_id: UUID) -> BatchStatus: ...
    async def graph(self, tenant: str, /, batch_id: UUID) -> BatchGraph: ...
    async def batches(
        self, tenant: str, /, *, open_only: bool, before: UUID | None, limit: int, topics: TopicSet | None
    ) -> tuple[list[BatchStatus], UUID | None]: ...


class JobStore(Protocol):
    """Reading jobs."""

    async def tenant_no(self, tenant: str) -> int: ...
    async def job(
        self,
        tenant: str,
        job_id: UUID,
        *,
        payload: bool,
        result: bool,
        events: bool,
        events_before: int | None = None,
        events_limit: int = ...,
    ) -> JobView: ...
    async def logs(
        self,
        tenant: str,
        job_id: UUID,
        *,
        since: datetime,
        attempt: int | None,
        after: tuple[int, int],
        limit: int,
        newest: bool,
    ) -> LogPage: ...
    async def finished(self, tenant_no: int, ids: Sequence[UUID]) -> list[UUID]: ...


class BulkStore(Protocol):
    """Jobs by filter, and bulk operations; `topics` None means any."""

    async def list_jobs(
        self,
        tenant: str,
        wanted: JobFilter,
        /,
        *,
        topics: TopicSet | None,
        limit: int,
        cursor: str,
        oldest: bool,
    ) -> JobPage: ...
    async def count_jobs(
        self, tenant: str, wanted: JobFilter, /, *, topics: TopicSet | None, up_to: int
    ) -> Counted: ...
    async def dead_groups(
        self, tenant: str, /, *, named: Sequence[Term], topics: TopicSet | None, limit: int
    ) -> DeadGroups: ...
    async def preview(self, tenant: str, /, plan: Plan, *, topics: TopicSet | None) -> Preview: ...
    async def start(
        self,
        tenant: str,
        /,
        operation_id: UUID,
        plan: Plan,
        *,
        who: str,
        topics: TopicSet | None,
        credential: str,
    ) -> BulkOperation: ...
    async def operation(self, tenant: str, /, operation_id: UUID, *, topics: TopicSet | None) -> BulkOperation: ...
    async def operations(
        self, tenant: str, /, *, active: bool, before: UUID | None, limit: int, topics: TopicSet | None
    ) -> list[BulkOperation]: ...
    async def cancel(
        self, tenant: str, /, operation_id: UUID, *, who: str, reason: str, topics: TopicSet | None
    ) -> BulkOperation: ...


class SuggestionStore(Protocol):
    """What is stored, for suggestions; bounded reads. `topics` None means any."""

    async def topic_names(self, tenant: str, /, *, containing: str, topics: TopicSet | None) -> list[str]: ...
    async def schedule_names(self, tenant: str, /, *, containing: str, topics: TopicSet | None) -> list[str]: ...
    async def newest_jobs(self, tenant: str, /, *, topics: TopicSet | None, failed: bool) -> list[JobLine]: ...
    async def newest_payloads(self, tenant: str, /, *, topics: TopicSet | None) -> list[bytes]: ...


class RevokedBulk(Protocol):
    """Bulk operations that may have to end with their credential."""

    async def started(self) -> Sequence[StartedBulk]: ...
    async def end_revoked(self, operation: StartedBulk, *, reason: str) -> None: ...


class KeyStore(Protocol):
    """API keys. `tenant` None: of all tenants."""

    async def create(self, new: NewKey, /, *, actor: str) -> tuple[KeyView, str]: ...
    async def rotate(
        self, tenant: str | None, key_id: str, /, *, overlap: timedelta, actor: str, reason: str
    ) -> tuple[KeyView, str]: ...
    async def revoke(self, tenant: str | None, key_id: str, /, *, actor: str, reason: str) -> KeyView: ...
    async def get(self, tenant: str | None, key_id: str, /) -> KeyView: ...
    async def listed(self, tenant: str | None, /, *, revoked: bool, after: str, limit: int) -> list[KeyView]: ...


class TopicStore(Protocol):
    """Topics: rules, limits, counts."""

    async def list_topics(
        self, tenant: str, /, *, topics: TopicSet | None, after: str, limit: int
    ) -> list[TopicView]: ...
    async def get_topic(self, tenant: str, /, name: str) -> TopicView: ...
    async def set_topic(
        self,
        tenant: str,
        /,
        name: str,
        *,
        rules: Mapping[str, object],
        limits: Mapping[str, object],
        actor: str,
        reason: str,
    ) -> TopicView: ...
    async def apply_topic(
        self,
        tenant: str,
        name: str,
        *,
        values: Mapping[str, object],
        prune: bool,
        version: int | None,
        actor: str,
        reason: str,
    ) -> AppliedPolicy: ...
    async def preview_topic(
        self, tenant: str, /, name: str, *, values: Mapping[str, object], prune: bool, version: int | None
    ) -> AppliedPolicy: ...
    async def topic_history(
        self, tenant: str, /, name: str, *, before: int | None, limit: int
    ) -> list[PolicyVersion]: ...
    async def release_topic(
        self, tenant: str, name: str, *, settings: Sequence[str], actor: str, reason: str
    ) -> TopicView: ...
    async def declare_topic(
        self, tenant: str, name: str, rules: Mapping[str, object], *, source: str, worker: str, actor: str
    ) -> tuple[RuleSources, bool] | None: ...
    async def conflict_reported(self, tenant: str, name: str, pair: str) -> bool: ...


class ScheduleStore(Protocol):
    """Schedules. Every verb that changes something writes its audit in the same transaction."""

    async def now(self) -> datetime: ...
    async def put(
        self,
        tenant: str,
        /,
        name: str,
        spec: ScheduleSpec,
        *,
        expected: int | None,
        who: str,
        topics: TopicSet | None,
    ) -> tuple[ScheduleView, bool]: ...
    async def get(self, tenant: str, /, name: str) -> ScheduleView: ...
    async def listed(
        self, tenant: str, /, *, after: str, limit: int, topics: TopicSet | None, source: str | None
    ) -> list[ScheduleView]: ...
    async def delete(self, tenant: str, /, name: str, *, expected: int | None, who: str, reason: str) -> None: ...
    async def pause(self, tenant: str, /, name: str, *, who: str, reason: str) -> ScheduleView: ...
    async def resume(
        self, tenant: str, /, name: str, *, who: str, reason: str, since: datetime | None
    ) -> ScheduleView: ...
    async def trigger(
        self, tenant: str, /, name: str, *, request: JobId, who: str, reason: str
    ) -> tuple[JobId, bool, int]: ...
    async def jobs(self, tenant: str, /, name: str, *, before: datetime | None, limit: int) -> list[ScheduledJob]: ...
    async def recent_jobs(
        self, tenant: str, /, schedule_nos: Sequence[int], *, limit: int
    ) -> dict[int, list[ScheduledJob]]: ...
    async def lag(self, tenant: str, /, *, topics: TopicSet | None) -> timedelta | None: ...


class WebhookStore(Protocol):
    """Webhook endpoints and their deliveries. Every verb that changes something writes its audit with it."""

    async def create(
        self, tenant: str, /, webhook_id: UUID, spec: WebhookSpec, *, secret: str, who: str
    ) -> Webhook: ...
    async def get(self, tenant: str, /, webhook_id: UUID) -> Webhook: ...
    async def listed(self, tenant: str, /, *, after: UUID | None, limit: int) -> list[Webhook]: ...
    async def update(
        self,
        tenant: str,
        /,
        webhook_id: UUID,
        changes: Mapping[str, object],
        *,
        expected: int | None,
        who: str,
        reason: str,
    ) -> Webhook: ...
    async def delete(self, tenant: str, /, webhook_id: UUID, *, who: str, reason: str) -> None: ...
    async def rotate_secret(
        self, tenant: str, /, webhook_id: UUID, *, secret: str, overlap: timedelta, who: str, reason: str
    ) -> Webhook: ...
    async def ping(self, tenant: str, /, webhook_id: UUID, *, who: str) -> DeliveryView: ...
    async def deliveries(
        self,
        tenant: str,
        /,
        webhook_id: UUID,
        *,
        delivery_id: UUID | None = None,
        state: DeliveryState | None = None,
        before: UUID | None = None,
        limit: int,
    ) -> list[DeliveryView]: ...
    async def resend(
        self, tenant: str, /, webhook_id: UUID, delivery_id: UUID, *, who: str, reason: str
    ) -> DeliveryView: ...


class AdminStore(Protocol):
    """Administration. Every verb is committed, its audit included, when it returns."""

    async def tenant_no(self, tenant: str) -> int: ...
    async def pause(
        self, tenant: str, target: Target, *, reason: str, who: str, until: datetime | None, lasts: timedelta | None
    ) -> tuple[tuple[int, int], Pause]: ...
    async def resume(
        self, tenant: str, target: Target, *, reason: str, who: str, since: datetime | None
    ) -> tuple[tuple[int, int], bool]: ...
    async def pause_of(self, tenant: str, topic: str) -> Pause | None: ...
    async def status(self, tenant: str) -> Status: ...
    async def standings(self, tenant_no: int, ids: Sequence[UUID]) -> Mapping[UUID, Standing]: ...
    async def cancel(self, tenant_no: int, ids: Sequence[UUID], *, who: str, reason: str) -> Mapping[UUID, Change]: ...
    async def redrive(
        self, tenant_no: int, ids: Sequence[UUID], how: Redrive, *, who: str, reason: str
    ) -> Mapping[UUID, int]: ...
    async def reprioritise(
        self, tenant_no: int, ids: Sequence[UUID], *, priority: int, who: str, reason: str
    ) -> Mapping[UUID, Change]: ...
    async def move(
        self, tenant: str, ids: Sequence[UUID], *, topic: str, who: str, reason: str
    ) -> Mapping[UUID, Change]: ...
    async def discard(self, tenant_no: int, ids: Sequence[UUID], *, who: str, reason: str) -> set[UUID]: ...
    async def quiet(self, tenant: str, worker: str, *, reason: str, who: str, span: timedelta) -> Quiet: ...
    async def resume_worker(self, tenant: str, worker: str, *, reason: str, who: str) -> bool: ...
    async def note_reveal(self, tenant: str, job_id: UUID, *, reason: str, who: str) -> None: ...
    async def quiet_set(self) -> frozenset[tuple[int, str]]: ...
    async def stop_worker(self, tenant: str, worker: str, *, reason: str, who: str) -> datetime: ...
    async def all_stops(self) -> Mapping[tuple[int, str], WorkerStop]: ...
    async def workers_elsewhere(self, tenant: str) -> tuple[Sequence[WorkerView], Sequence[LostWorker], bool]: ...
    async def running(self, tenant: str) -> tuple[Sequence[RunningJob], bool]: ...
    async def find_ids(
        self, tenant: str, /, kind: IdKind, between: tuple[UUID, UUID], *, topics: TopicSet | None, limit: int
    ) -> tuple[list[UUID], bool]: ...
    async def audit(self, tenant: str, *, before: int | None, limit: int, wanted: AuditFilter) -> AuditPage: ...


class GateHere(Protocol):
    """This instance's dispatch: a verb applies here at once, on other instances at their next tick."""

    def pause_changed(self, target: tuple[int, int], *, paused: bool) -> None: ...
    def cancel_requested(self, tenant_no: int, job_id: UUID, epoch: int) -> None: ...
    def set_quiet(self, quiet: Iterable[tuple[int, str]]) -> None: ...
    def set_stops(self, stops: Mapping[tuple[int, str], WorkerStop]) -> None: ...


Wakes = Callable[[int, UUID | None], None]
"""Wakes this instance for a topic; the job may be claimable at a new rank."""
Announces = Callable[[Iterable[Wake]], Awaitable[None]]
"""Notifies the other instances, if there are any. Never fails: their next tick finds what they missed."""


class RetentionStore(Protocol):
    """Retention on request: the same pass that every instance makes periodically."""

    async def run_pass(self) -> Removed: ...
    async def set_rules(self, changes: Mapping[str, timedelta], *, actor: str, reason: str) -> RetentionRules: ...


class Presence(Protocol):
    """The workers connected to this instance."""

    def workers(self, tenant_no: int) -> Sequence[WorkerView]: ...
    def lost(self, tenant_no: int) -> Sequence[LostWorker]: ...
    def topics(self, tenant_no: int) -> frozenset[str]: ...


class Endings(Protocol):
    """The calls that wait for a job to end."""

    def ended(self, tenant_no: int, job_id: UUID) -> None: ...


class DurabilityReads(Protocol):
    """The settings of the database by which acknowledged work is kept or lost."""

    async def durability(self) -> Durability: ...


class EventStore(Protocol):
    """Events by position. Completions are noted while `record` is called at least every `kept`."""

    @property
    def kept(self) -> timedelta: ...
    async def tenant_no(self, tenant: str) -> int: ...
    async def position(self) -> Position: ...
    async def since(
        self, tenant_nos: Collection[int], seen: Position, until: Position, *, completed: bool
    ) -> tuple[list[StreamEvent], Position]: ...
    async def record(self) -> datetime: ...
    async def all_record(self) -> bool: ...
    async def members(self, tenant_no: int, batch_id: UUID, ids: Collection[UUID]) -> set[UUID]: ...


class StatsStore(Protocol):
    """Figures over time, from rollups."""

    async def series(self, tenant: str, /, *, window: Window, topic: str, topics: TopicSet | None) -> Series: ...
    async def failing(
        self, tenant: str, /, *, within: timedelta, topic: str, topics: TopicSet | None, limit: int
    ) -> Failing: ...
