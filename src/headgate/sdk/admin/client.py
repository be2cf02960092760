"""`Admin`: what `hg.admin` is. One module per noun, each imported at its first use.

Making their values takes most of the time of an import, and a command or a worker needs few of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.domain.ids import JobId
from headgate.sdk.connection import Connection

if TYPE_CHECKING:
    from headgate.domain.stats import Failing, Series
    from headgate.sdk.admin.audit import AuditList
    from headgate.sdk.admin.bulk import Bulk
    from headgate.sdk.admin.dead import Dead
    from headgate.sdk.admin.dispatch import PauseInfo, Status
    from headgate.sdk.admin.events import Event, EventGap
    from headgate.sdk.admin.jobs import Jobs
    from headgate.sdk.admin.keys import KeysAdmin
    from headgate.sdk.admin.listing import MatchingJobs
    from headgate.sdk.admin.retention import RetentionAdmin
    from headgate.sdk.admin.schedules import Schedules
    from headgate.sdk.admin.sessions import SessionsAdmin
    from headgate.sdk.admin.system import SystemInfo
    from headgate.sdk.admin.tenants import TenantsAdmin
    from headgate.sdk.admin.topics import TopicsAdmin
    from headgate.sdk.admin.webhooks import WebhooksAdmin
    from headgate.sdk.admin.workers import Workers
    from headgate.sdk.batches import BatchInfo


class Admin:
    """Administration through a Headgate client; the token needs the scope `operate`, or `read` to read only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def jobs(self) -> Jobs:
        """Cancel, redrive, discard, reprioritise, move: jobs by id."""
        from headgate.sdk.admin.jobs import Jobs

        return Jobs(self._connection)

    @property
    def topics(self) -> TopicsAdmin:
        """Rules and limits of topics."""
        from headgate.sdk.admin.topics import TopicsAdmin

        return TopicsAdmin(self._connection)

    def jobs_matching(self, filter: str = "", *, oldest_first: bool = False) -> MatchingJobs:  # noqa: A002
        """Jobs that match a filter, newest first: iterate, read pages, or count."""
        from headgate.sdk.admin.listing import MatchingJobs

        return MatchingJobs(self._connection, filter, oldest_first=oldest_first)

    @property
    def bulk(self) -> Bulk:
        """One verb over everything a filter matches."""
        from headgate.sdk.admin.bulk import Bulk

        return Bulk(self._connection)

    @property
    def dead(self) -> Dead:
        """Dead letters, grouped by error."""
        from headgate.sdk.admin.dead import Dead

        return Dead(self._connection, self.bulk)

    @property
    def schedules(self) -> Schedules:
        """Schedules: put, get, list, pause, resume, trigger, next, delete."""
        from headgate.sdk.admin.schedules import Schedules

        return Schedules(self._connection)

    @property
    def tenants(self) -> TenantsAdmin:
        """Quotas of tenants; all but your own need the scope `system`."""
        from headgate.sdk.admin.tenants import TenantsAdmin

        return TenantsAdmin(self._connection)

    @property
    def keys(self) -> KeysAdmin:
        """API keys; the token needs the scope `admin`."""
        from headgate.sdk.admin.keys import KeysAdmin

        return KeysAdmin(self._connection)

    @property
    def sessions(self) -> SessionsAdmin:
        """Browsers that are signed in to the dashboard; the token needs the scope `admin`."""
        from headgate.sdk.admin.sessions import SessionsAdmin

        return SessionsAdmin(self._connection)

    @property
    def retention(self) -> RetentionAdmin:
        """How long finished jobs are kept."""
        from headgate.sdk.admin.retention import RetentionAdmin

        return RetentionAdmin(self._connection)

    @property
    def webhooks(self) -> WebhooksAdmin:
        """HTTP endpoints that get events, and their deliveries."""
        from headgate.sdk.admin.webhooks import WebhooksAdmin

        return WebhooksAdmin(self._connection)

    @property
    def workers(self) -> Workers:
        """Connected workers; quiet or resume them."""
        from headgate.sdk.admin.workers import Workers

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
        """Pause dispatch for a topic, your tenant, or everything (which needs the scope `system`).

        When this returns, no job of the target starts on any server, until `resume` or `until`. Jobs that run already
        go on; submits, retries and schedules go on and wait. Raises NotFound for a topic that does not exist.
        """
        from headgate.sdk.admin import dispatch

        target = dispatch.target_of(topic=topic, tenant=tenant, everything=everything)
        return await dispatch.pause(self._connection, target, reason=reason, until=until)

    async def resume(
        self,
        *,
        topic: str | None = None,
        tenant: bool = False,
        everything: bool = False,
        reason: str = "",
        since: datetime | None = None,
    ) -> bool:
        """Resume dispatch; True if the target was paused. A pause of a target that includes it stays in force.

        `since` is the one of the `PauseInfo` to end. Raises VersionConflict if the target was paused again since.
        """
        from headgate.sdk.admin import dispatch

        target = dispatch.target_of(topic=topic, tenant=tenant, everything=everything)
        return await dispatch.resume(self._connection, target, reason=reason, since=since)

    async def system(self) -> SystemInfo:
        """What the installation runs with, without secrets; the token needs the scope `system`."""
        from headgate.sdk.admin.system import system

        return await system(self._connection)

    async def status(self) -> Status:
        """Pauses, topics with their jobs by state, and servers."""
        from headgate.sdk.admin import dispatch

        return await dispatch.status(self._connection)

    async def stats(self, topic: str = "", *, since: str = "1h") -> Series:
        """Throughput, depth and latencies by interval, of a topic or of all; `since` is 15m, 1h, 6h, 24h or 7d."""
        from headgate.sdk.admin.stats import stats

        return await stats(self._connection, topic=topic, since=since)

    async def failing(self, topic: str = "", *, limit: int = 20) -> Failing:
        """The errors of the last hour by topic and kind of error, of a topic or of all."""
        from headgate.sdk.admin.stats import failing

        return await failing(self._connection, topic=topic, limit=limit)

    async def audit(
        self,
        *,
        before: int = 0,
        limit: int = 100,
        actor: str = "",
        verb: str = "",
        target: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AuditList:
        """A page of the audit log, newest first; `before` is `next_before` of the previous page.

        `actor` and `verb` are exact; `target` is found anywhere in the target: `billing`, `webhook`.
        """
        from headgate.sdk.admin.audit import audit

        return await audit(
            self._connection,
            before=before,
            limit=limit,
            actor=actor,
            verb=verb,
            target=target,
            since=since,
            until=until,
        )

    def events(
        self,
        *,
        topics: Iterable[str] = (),
        job_ids: Iterable[UUID] = (),
        kinds: Iterable[str] = (),
        batch: UUID | None = None,
        after: str = "",
    ) -> AsyncIterator[Event | EventGap]:
        """What happens to jobs and topics, from now on or after a position, until you stop: `async for`.

        Kinds are `job.completed`, `job.failed` and so on, `topic.paused`, `topic.resumed`, `topic.changed`. An event
        can come twice after a lost connection, with the same id.
        """
        from headgate.sdk.admin.events import events

        return events(self._connection, topics=topics, job_ids=job_ids, kinds=kinds, batch=batch, after=after)

    async def batches(
        self, *, open_only: bool = False, limit: int = 50, before: UUID | str | None = None
    ) -> list[BatchInfo]:
        """Batches, newest first, without the counts of their jobs; `before` is the last one of the page before."""
        from headgate.sdk.batches import list_batches

        return await list_batches(self._connection, open_only=open_only, limit=limit, before=before)

    async def full_id(self, kind: str, text: UUID | str) -> JobId:
        """The id of a job, a batch or an operation (`kind`), given whole or by at least four of its first digits.

        Raises NotFound, and AmbiguousId if several ids begin with the digits.
        """
        from headgate.sdk.admin.find_ids import full_id

        return await full_id(self._connection, kind, text)
