"""The overview: what several use cases know, read together, and what needs attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from headgate.control.admin import Admin
from headgate.control.health import Health, HealthDetails
from headgate.control.schedules import Schedules
from headgate.control.stats import Stats
from headgate.control.topic_table import TopicRow, rows_of
from headgate.domain.alerts import Alert, alerts_of, schedules_late
from headgate.domain.identity import Identity, Scope
from headgate.domain.states import State
from headgate.domain.stats import Failing, Series
from headgate.domain.topic_figures import longest_wait, waits_long
from headgate.domain.views import Status
from headgate.domain.workers import WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All that the overview shows. `series`, `failing` None: the caller belongs to no tenant."""

    status: Status
    health: HealthDetails
    series: Series | None
    failing: Failing | None
    workers: Sequence[WorkerView]
    schedule_lag: timedelta | None
    alerts: Sequence[Alert]
    counts: Mapping[State, int] = field(hash=False)

    @property
    def oldest_due(self) -> timedelta | None:
        """How long the job waits that has been due for longest, and may be dispatched."""
        return longest_wait(self.status.topics, self.status.now)

    @property
    def waits_paused(self) -> bool:
        """Whether due jobs wait in paused topics."""
        return any(one.paused and one.waiting_since is not None for one in self.status.topics)

    @property
    def waits_long(self) -> bool:
        """Whether that is too long."""
        return waits_long(self.oldest_due)

    @property
    def schedules_late(self) -> bool:
        """Whether occurrences of schedules are late."""
        return schedules_late(self.schedule_lag)

    @property
    def topics(self) -> Sequence[TopicRow]:
        """The rows of the table of topics."""
        return rows_of(self.status)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever submitted here, and no worker is connected."""
        return not self.workers and not any(sum(one.counts.values()) for one in self.status.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Reads a summary. Needs `read` or `system`, as its parts do."""

    admin: Admin
    health: Health
    schedules: Schedules
    stats: Stats

    async def summary(self, caller: Identity, *, since: str = "") -> Summary:
        """What is there now, and how it was in a window of time. Raises InvalidInput for an unknown window."""
        status = await self.admin.status(caller)
        health = await self.health.details(caller)
        reads = bool(caller.tenant) and caller.permits(Scope.READ)
        series = await self.stats.series(caller, since=since) if reads else None
        failing = await self.stats.failing(caller) if reads else None
        workers = (await self.admin.workers(caller)).workers if reads else ()
        lag = await self.schedules.lag(caller) if reads else None
        counts = dict.fromkeys(State, 0)
        for topic in status.topics:
            for state, count in topic.counts.items():
                counts[state] += count
        return Summary(
            status=status,
            health=health,
            series=series,
            failing=failing,
            workers=workers,
            schedule_lag=lag,
            counts=counts,
            alerts=alerts_of(
                status,
                database=health.database,
                database_error=health.database_error,
                not_ready=health.reason,
                schedule_lag=lag,
                workers=len(workers) if reads else None,
            ),
        )
