"""Administration from Python: `hg.admin`. One module per noun."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from headgate.domain.ids import JobId
from headgate.domain.views import FlowMinute
from headgate.sdk.admin import dispatch
from headgate.sdk.admin.audit import AuditEntry, audit
from headgate.sdk.admin.bulk import Bulk
from headgate.sdk.admin.dead import Dead
from headgate.sdk.admin.dispatch import InstanceInfo, PauseInfo, Status, TopicStatus
from headgate.sdk.admin.find_ids import full_id
from headgate.sdk.admin.history import JobEvent
from headgate.sdk.admin.jobs import JobChange, Jobs
from headgate.sdk.admin.listing import MatchingJobs
from headgate.sdk.admin.retention import RetentionAdmin
from headgate.sdk.admin.schedules import ScheduledRun, ScheduleInfo, Schedules
from headgate.sdk.admin.topics import TopicsAdmin
from headgate.sdk.admin.workers import RunningJob, WorkerInfo, Workers
from headgate.sdk.batches import BatchInfo, list_batches
from headgate.sdk.connection import Connection


class Admin:
    """Administration through a Headgate client; the token needs the scope `operate`, or `read` to read only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def jobs(self) -> Jobs:
        """Cancel, redrive, discard, reprioritise, move: jobs by id."""
        return Jobs(self._connection)

    @property
    def topics(self) -> TopicsAdmin:
        """Rules and limits of topics."""
        return TopicsAdmin(self._connection)

    def jobs_matching(self, filter: str = "", *, oldest_first: bool = False) -> MatchingJobs:  # noqa: A002
        """Jobs that match a filter, newest first: iterate, read pages, or count."""
        return MatchingJobs(self._connection, filter, oldest_first=oldest_first)

    @property
    def bulk(self) -> Bulk:
        """One verb over everything a filter matches."""
        return Bulk(self._connection)

    @property
    def dead(self) -> Dead:
        """Dead letters, grouped by error."""
        return Dead(self._connection, self.bulk)

    @property
    def schedules(self) -> Schedules:
        """Schedules: put, get, list, pause, resume, trigger, next, delete."""
        return Schedules(self._connection)

    @property
    def retention(self) -> RetentionAdmin:
        """How long finished jobs are kept."""
        return RetentionAdmin(self._connection)

    @property
    def workers(self) -> Workers:
        """Connected workers; quiet or resume them."""
        return Workers(self._connection)

    async def pause(
        self,
        *,
        topic: str | None = None,
        tenant: bool = False,
        everything: bool = False,
        reason: str = "",
        until: datetime | None = None,
    ) -> PauseInfo:
        """Pause dispatch for a topic, your tenant, or everything (which needs the scope `admin`).

        When this returns, no job of the target starts on any server, until `resume` or `until`. Jobs that run already
        go on; submits, retries and schedules go on and wait. Raises NotFound for a topic that does not exist.
        """
        target = dispatch.target_of(topic=topic, tenant=tenant, everything=everything)
        return await dispatch.pause(self._connection, target, reason=reason, until=until)

    async def resume(
        self, *, topic: str | None = None, tenant: bool = False, everything: bool = False, reason: str = ""
    ) -> bool:
        """Resume dispatch; True if the target was paused. A pause of a target that includes it stays in force."""
        target = dispatch.target_of(topic=topic, tenant=tenant, everything=everything)
        return await dispatch.resume(self._connection, target, reason=reason)

    async def status(self) -> Status:
        """Pauses, topics with their jobs by state, and servers."""
        return await dispatch.status(self._connection)

    async def audit(self, *, before: int = 0, limit: int = 100) -> list[AuditEntry]:
        """A page of the audit log, newest first; `before` is the last number of the previous page."""
        return await audit(self._connection, before=before, limit=limit)

    async def batches(
        self, *, open_only: bool = False, limit: int = 50, before: UUID | str | None = None
    ) -> list[BatchInfo]:
        """Batches, newest first, without the counts of their jobs; `before` is the last one of the page before."""
        return await list_batches(self._connection, open_only=open_only, limit=limit, before=before)

    async def full_id(self, kind: str, text: UUID | str) -> JobId:
        """The id of a job, a batch or an operation (`kind`), given whole or by at least four of its first digits.

        Raises NotFound, and AmbiguousId if several ids begin with the digits.
        """
        return await full_id(self._connection, kind, text)


__all__ = [
    "Admin",
    "AuditEntry",
    "FlowMinute",
    "InstanceInfo",
    "JobChange",
    "JobEvent",
    "Jobs",
    "PauseInfo",
    "RunningJob",
    "ScheduleInfo",
    "ScheduledRun",
    "Schedules",
    "Status",
    "TopicStatus",
    "WorkerInfo",
    "Workers",
]
