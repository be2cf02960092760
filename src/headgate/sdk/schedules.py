"""Schedules declared in code: `@hg.cron(...)` and `@hg.every(...)` above `@hg.job(...)`.

A worker stores them when it starts, in the background: a server that is not there yet does not keep it from working,
and a token that may not (scope `operate`) costs a warning. `headgate schedule sync app:hg` does the same manually. What
is stored as declared is not written again; what is no longer declared is reported, and deleted only on request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headgate.domain.errors import InvalidInput
from headgate.domain.schedules import check_schedule_name
from headgate.domain.validation import shown
from headgate.sdk.admin.schedules import Schedules
from headgate.sdk.connection import Connection
from headgate.sdk.schedule_specs import ScheduleOptions, spec
from headgate.sdk.tasks import Task
from headgate.wire import schedules_pb2 as pb

AnyTask = TypeVar("AnyTask", bound=Task[Any, Any])

log = logging.getLogger("headgate.schedules")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSchedule:
    """One schedule declared in code."""

    name: str
    spec: pb.ScheduleSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a sync did, by name. `removed`: stored from code once, declared no longer; `deleted` of these on request."""

    source: str = ""
    """The program that declares them."""
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


class ScheduleDecorator:
    """What `hg.cron(...)` and `hg.every(...)` give: registers the schedule and returns the task unchanged."""

    def __init__(
        self,
        declared: dict[str, DeclaredSchedule],
        when: pb.Timing,
        name: str | None,
        arguments: Mapping[str, object] | None,
        options: ScheduleOptions,
    ) -> None:
        self._declared, self._when, self._name = declared, when, name
        self._arguments, self._options = arguments, options

    def __call__(self, task: AnyTask) -> AnyTask:
        """Register it."""
        if not isinstance(task, Task):
            raise InvalidInput(
                "schedule",
                f"is declared above @hg.job(...), and was given {shown(task)}",
                hint="swap the two decorators",
            )
        name = check_schedule_name(self._name or task.topic)
        if name in self._declared:
            raise InvalidInput("name", f'"{name}" is declared already', hint="give each schedule a name of its own")
        payload = task.payload_of(self._arguments or {})
        self._declared[name] = DeclaredSchedule(
            name=name,
            spec=spec(task.topic, self._when, payload, self._options, defaults=task.options),
        )
        return task


async def sync(
    connection: Connection, declared: Mapping[str, DeclaredSchedule], *, source: str, prune: bool = False
) -> SyncReport:
    """Store what is declared, and find what no longer is; safe to run from many workers at once.

    Schedules of other programs in the tenant, which have another `source`, are neither reported nor deleted.
    """
    schedules = Schedules(connection)
    changed: list[str] = []
    unchanged: list[str] = []
    for name, one in declared.items():
        made = pb.ScheduleSpec()
        made.CopyFrom(one.spec)
        made.source = source
        _, written = await schedules.put_spec(name, made)
        (changed if written else unchanged).append(name)
    removed = [info.name for info in await schedules.list(source=source) if info.name not in declared]
    if prune:
        for name in removed:
            await schedules.delete(name, reason=f"no longer declared by {source}")
    return SyncReport(
        source=source,
        changed=tuple(changed),
        unchanged=tuple(unchanged),
        removed=tuple(removed),
        deleted=tuple(removed) if prune else (),
    )


def report(done: SyncReport) -> None:
    """Log what a worker's sync did."""
    if done.changed:
        log.info("schedules_stored names=%s", ", ".join(done.changed))
    if done.removed:
        log.warning(
            'schedules_no_longer_declared app=%s names=%s hint="headgate schedule sync APP --prune deletes them; if '
            'another program declares them, give each its own name: Headgate(app=NAME)"',
            *(done.source, ", ".join(done.removed)),
        )
