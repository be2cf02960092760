"""Administration: pause and resume, verbs on jobs by id, quiet and stopping workers, status, retention, audit.

Reading requires the scope `read`, verbs require `operate`. What reaches all tenants (pausing everything, retention)
requires `system`, which only a credential without a tenant has. A token limited to some topics reads and changes only
those; other jobs do not exist for it.

A verb is committed first, then applied on this instance at once; other instances are notified, and find it at their
next tick in any case. A write that fails changes nothing here, and its caller gets the error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from headgate.control.ports import AdminStore, Announces, Endings, GateHere, Presence, RetentionStore, Wakes
from headgate.domain import limits
from headgate.domain.errors import HeadgateError, InvalidInput, NotFound, Refused, TooLarge, WrongState
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.ids import IdKind, id_range
from headgate.domain.retention import Removed, RetentionRules
from headgate.domain.states import State
from headgate.domain.units import exact
from headgate.domain.validation import (
    check_aware,
    check_delay,
    check_payload,
    check_priority,
    check_reason,
    check_span,
    check_text,
    check_topic,
    check_worker_id,
)
from headgate.domain.views import (
    AuditFilter,
    AuditPage,
    Change,
    Pause,
    Quiet,
    Redrive,
    Standing,
    Status,
    StopAsked,
    Target,
    TargetKind,
)
from headgate.domain.wakes import ControlChanged, JobReturned, TopicReady
from headgate.domain.workers import LostWorker, WorkerList, WorkerView, with_running

log = logging.getLogger("headgate.admin")

QUIET_DEFAULT: Final = timedelta(hours=1)
QUIET_MIN, QUIET_MAX = timedelta(seconds=1), timedelta(days=30)
PER_SECOND_MAX: Final = 100_000
AUDIT_TERM_MAX_CHARS: Final = 300
ALL_ENTRIES: Final = AuditFilter()
FOUND_MAX: Final = 5
OF_TOPICS_MIN_DIGITS: Final = 12
"""The millisecond of an id: so few ids have it that the answer says nothing about those of other topics."""
REDRIVABLE: Final = "completed, dead or cancelled"
_QUEUED: Final = "queued (pending, scheduled, retrying or blocked)"
CheckSchema = Callable[[str, str, bytes], None]
"""Raises PayloadMismatch if a payload does not match the schema of its topic: tenant, topic, payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """What a verb did to one job. `error` says why nothing was done."""

    id: UUID
    changed: bool = False
    state: State | None = None
    error: HeadgateError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """All verbs; each checks the rights of its caller."""

    store: AdminStore
    gate: GateHere
    wake: Wakes
    announce: Announces
    presence: Presence
    endings: Endings
    retention: RetentionStore
    check_schema: CheckSchema

    # ------------------------------------------------------------------ dispatch

    async def pause(
        self,
        caller: Identity,
        target: Target,
        *,
        reason: str = "",
        until: datetime | None = None,
        lasts: timedelta | None = None,
    ) -> Pause:
        """Stop dispatch of a target; after this returns, none of its jobs enters `running` on any instance.

        It ends at `until`, or after `lasts` by the database's clock; with neither, by `resume` only.
        """
        _check_target(caller, target)
        check_reason(reason)
        if until is not None:
            check_aware(until, field="until")
        if lasts is not None:
            check_pause_span(lasts)
        row, paused = await self.store.pause(
            caller.tenant, target, reason=reason, who=caller.subject, until=until, lasts=lasts
        )
        self.gate.pause_changed(row, paused=True)  # after the commit: a failed write leaves the gate unchanged
        await self.announce([ControlChanged()])
        log.warning("paused target=%s who=%s reason=%s", target, caller.subject, reason)
        return paused

    async def resume(
        self, caller: Identity, target: Target, *, reason: str = "", since: datetime | None = None
    ) -> bool:
        """Resume dispatch of a target, on this instance at once; returns whether it was paused.

        `since` is the one of the pause to end. Raises VersionConflict if another one is in force.
        """
        _check_target(caller, target)
        check_reason(reason)
        if since is not None:
            check_aware(since, field="since")
        row, changed = await self.store.resume(caller.tenant, target, reason=reason, who=caller.subject, since=since)
        self.gate.pause_changed(row, paused=False)
        await self.announce([ControlChanged()])
        log.warning("resumed target=%s who=%s", target, caller.subject)
        return changed

    async def pause_of(self, caller: Identity, topic: str) -> Pause | None:
        """The pause that keeps jobs of a topic from starting: its own first, then the one that reaches furthest."""
        caller.require(Scope.READ)
        return (
            await self.store.pause_of(caller.tenant, topic) if caller.topics is None or topic in caller.topics else None
        )

    async def status(self, caller: Identity) -> Status:
        """Pauses, job counts and waiting times by topic, instances, retention; topics that no worker asks for."""
        caller.require(Scope.READ, Scope.SYSTEM)
        status = replace(await self.store.status(caller.tenant), tenant=caller.tenant, subject=caller.subject)
        if caller.tenant and status.handled is not None:
            # Of this instance as they are, of others as reported some seconds ago.
            handled = status.handled | self.presence.topics(await self.store.tenant_no(caller.tenant))
            topics = [replace(one, unhandled=one.has_queued and one.topic not in handled) for one in status.topics]
            status = replace(status, topics=topics, handled=handled)
        if caller.topics is None:
            return status
        seen = caller.topics
        return replace(
            status,
            handled=None if status.handled is None else frozenset(one for one in status.handled if one in seen),
            pauses=[
                one for one in status.pauses if one.target.kind is not TargetKind.TOPIC or one.target.topic in seen
            ],
            topics=[one for one in status.topics if one.topic in seen],
        )

    async def set_retention(
        self, caller: Identity, changes: Mapping[str, timedelta], *, reason: str = ""
    ) -> RetentionRules:
        """Change how long finished jobs of all tenants are kept if their topic has no rule; requires `system`."""
        caller.require(Scope.SYSTEM)
        check_reason(reason)
        rules = await self.retention.set_rules(changes, actor=caller.subject, reason=reason)
        log.warning("retention_set who=%s rules=%s", caller.subject, rules)
        return rules

    async def run_retention(self, caller: Identity) -> Removed:
        """Run one bounded retention pass now, as every instance does periodically; requires `system`."""
        caller.require(Scope.SYSTEM)
        return await self.retention.run_pass()

    async def audit(
        self, caller: Identity, *, before: int | None = None, limit: int = 100, wanted: AuditFilter = ALL_ENTRIES
    ) -> AuditPage:
        """Audit entries that match, newest first."""
        caller.require(Scope.READ, Scope.SYSTEM)
        if caller.topics is not None:
            raise PermissionDenied(f"the audit covers all topics, and the token of {caller.subject} permits only some")
        _check_audit_filter(wanted)
        return await self.store.audit(caller.tenant, before=before, limit=limit, wanted=wanted)

    # ------------------------------------------------------------------ jobs by id

    async def cancel(self, caller: Identity, ids: Sequence[UUID], *, reason: str = "") -> list[JobAnswer]:
        """Cancel queued jobs at once; request workers to stop running ones."""
        tenant_no, known = await self._known(caller, ids, reason)
        done = await self.store.cancel(tenant_no, list(known), who=caller.subject, reason=reason)
        for job_id, change in done.items():
            if change.changed and change.state.is_final:
                self.endings.ended(tenant_no, job_id)
            elif change.changed:
                self.gate.cancel_requested(tenant_no, job_id, known[job_id].epoch)
        if any(change.changed and not change.state.is_final for change in done.values()):
            await self.announce([ControlChanged()])
        return _answers(ids, done, verb="cancel", allowed="queued or running")

    async def redrive(
        self,
        caller: Identity,
        ids: Sequence[UUID],
        *,
        payload: bytes | None = None,
        delay: timedelta = timedelta(0),
        per_second: float = 0.0,
        reason: str = "",
    ) -> list[JobAnswer]:
        """Return finished jobs to their topics, at most `per_second`. A new payload is for a single job."""
        if payload is not None and len(ids) != 1:
            raise InvalidInput("payload", f"is for a single job, but {len(ids)} were given")
        if payload is not None:
            check_payload(payload)
        check_delay(delay)
        how = Redrive(delay=delay, apart=_apart(per_second), payloads={} if payload is None else {ids[0]: payload})
        tenant_no, known = await self._known(caller, ids, reason)
        if payload is not None:
            for standing in known.values():
                self.check_schema(caller.tenant, standing.topic, payload)
        done = await self.store.redrive(tenant_no, list(known), how, who=caller.subject, reason=reason)
        for job_id, topic_no in done.items():
            self.wake(topic_no, job_id)
        await self.announce(map(TopicReady, done.values()))
        after = await self.store.standings(tenant_no, list(known))
        return _answers(
            ids,
            {
                job_id: Change(changed=job_id in done, state=after[job_id].state if job_id in after else was.state)
                for job_id, was in known.items()
            },
            verb="redrive",
            allowed=REDRIVABLE,
        )

    async def reprioritise(
        self, caller: Identity, ids: Sequence[UUID], *, priority: int, reason: str = ""
    ) -> list[JobAnswer]:
        """Change the priority of queued jobs, from the next claim on; their age stays."""
        check_priority(priority)
        tenant_no, known = await self._known(caller, ids, reason)
        done = await self.store.reprioritise(
            tenant_no, list(known), priority=priority, who=caller.subject, reason=reason
        )
        await self._requeued(done)
        return _answers(ids, done, verb="reprioritise", allowed=_QUEUED)

    async def move(self, caller: Identity, ids: Sequence[UUID], *, topic: str, reason: str = "") -> list[JobAnswer]:
        """Move queued jobs to another topic; priority and age stay."""
        check_topic(topic)
        caller.require(Scope.OPERATE)
        caller.allowed([topic])
        _, known = await self._known(caller, ids, reason)
        done = await self.store.move(caller.tenant, list(known), topic=topic, who=caller.subject, reason=reason)
        await self._requeued(done)
        return _answers(ids, done, verb="move", allowed="pending, scheduled or retrying")

    async def discard(self, caller: Identity, ids: Sequence[UUID], *, reason: str = "") -> list[JobAnswer]:
        """Delete dead and cancelled jobs; their history stays."""
        tenant_no, known = await self._known(caller, ids, reason)
        gone = await self.store.discard(tenant_no, list(known), who=caller.subject, reason=reason)
        return _answers(
            ids,
            {job_id: Change(changed=job_id in gone, state=was.state) for job_id, was in known.items()},
            verb="discard",
            allowed="dead or cancelled",
        )

    async def find_ids(self, caller: Identity, kind: IdKind, prefix: str) -> tuple[list[UUID], bool]:
        """The first ids that begin with these digits, and whether there are more."""
        caller.require(Scope.READ)
        if caller.topics is not None and len(prefix.replace("-", "")) < OF_TOPICS_MIN_DIGITS:
            raise InvalidInput(
                "prefix",
                f"must have at least {OF_TOPICS_MIN_DIGITS} digits with a token for some topics",
                hint="give more digits, or the whole id",
            )
        return await self.store.find_ids(caller.tenant, kind, id_range(prefix), topics=caller.topics, limit=FOUND_MAX)

    # ------------------------------------------------------------------ workers

    async def workers(self, caller: Identity, *, running: bool = False) -> WorkerList:
        """The workers, connected and lost: of this instance as they are, of others as reported some seconds ago.

        With `running`, also the jobs that each of them runs.
        """
        caller.require(Scope.READ)
        found, lost, more_workers = await self._connected(caller.tenant)
        if caller.topics is not None:
            seen = caller.topics
            found = [
                replace(
                    one,
                    topics=[topic for topic in one.topics if topic in seen],
                    standby=[topic for topic in one.standby if topic in seen],
                )
                for one in found
                if any(topic in seen for topic in one.topics)
            ]
            lost = [
                replace(one, topics=[topic for topic in one.topics if topic in seen])
                for one in lost
                if any(topic in seen for topic in one.topics)
            ]
        found.sort(key=lambda one: (one.instance, one.worker))
        if not running:
            return WorkerList(workers=found, lost=lost, more_workers=more_workers)
        jobs, more = await self.store.running(caller.tenant)
        visible = [one for one in jobs if caller.topics is None or one.topic in caller.topics]
        listed = with_running(found, visible)
        return WorkerList(workers=listed, lost=lost, more_running=more, more_workers=more_workers)

    async def connected(self, tenant: str) -> frozenset[str]:
        """The ids of a tenant's connected workers: for other use cases, whatever their caller may see."""
        found, _, _ = await self._connected(tenant)
        return frozenset(one.worker for one in found)

    async def quiet(self, caller: Identity, worker: str, *, reason: str = "", span: timedelta = QUIET_DEFAULT) -> Quiet:
        """Stop deliveries to a worker on all instances for `span`; it finishes what it holds."""
        _check_whole_tenant(caller)
        check_worker_id(worker)
        check_reason(reason)
        check_span(span, field="for", low=QUIET_MIN, high=QUIET_MAX)
        quiet = await self.store.quiet(caller.tenant, worker, reason=reason, who=caller.subject, span=span)
        await self._quiet_changed()
        return quiet

    async def resume_worker(self, caller: Identity, worker: str, *, reason: str = "") -> bool:
        """Resume deliveries to a worker; returns whether it was quiet."""
        _check_whole_tenant(caller)
        check_worker_id(worker)
        check_reason(reason)
        changed = await self.store.resume_worker(caller.tenant, worker, reason=reason, who=caller.subject)
        await self._quiet_changed()
        return changed

    async def stop_worker(self, caller: Identity, worker: str, *, reason: str = "") -> StopAsked:
        """Ask the connected processes of a worker to stop, on all instances; later ones with its id are not meant.

        Raises NotFound if none is connected: a misspelt id must not look like a stop. Raises Refused if it has no
        stream on which it could be asked.
        """
        _check_whole_tenant(caller)
        check_worker_id(worker)
        check_reason(reason)
        connected, _, more_workers = await self._connected(caller.tenant)
        found = [one for one in connected if one.worker == worker]
        if not found and not more_workers:  # else it may be one that another instance does not report
            raise NotFound("connected worker", worker)
        sessions = sum(one.takes_stop for one in found)
        if found and not sessions:
            raise Refused(
                f"worker {worker} has no stream on which it can be asked to stop; send SIGTERM to its process, or make "
                "it quiet"
            )
        since = await self.store.stop_worker(caller.tenant, worker, reason=reason, who=caller.subject)
        self.gate.set_stops(await self.store.all_stops())
        await self.announce([ControlChanged()])
        return StopAsked(worker=worker, since=since, sessions=sessions)

    # ------------------------------------------------------------------ helpers

    async def _known(self, caller: Identity, ids: Sequence[UUID], reason: str) -> tuple[int, dict[UUID, Standing]]:
        """The jobs that exist for this caller."""
        caller.require(Scope.OPERATE)
        check_reason(reason)
        if not ids:
            raise InvalidInput("ids", "is empty; name at least one job")
        if len(ids) > limits.VERB_MAX_JOBS:
            raise TooLarge("ids", size=len(ids), limit=limits.VERB_MAX_JOBS, unit="jobs", hint="make several calls")
        if len(set(ids)) != len(ids):
            raise InvalidInput("ids", "the same id is given twice")
        tenant_no = await self.store.tenant_no(caller.tenant)
        found = await self.store.standings(tenant_no, ids)
        # In the order of the request: a redrive spreads due times by it.
        return tenant_no, {
            job_id: found[job_id]
            for job_id in ids
            if job_id in found and (caller.topics is None or found[job_id].topic in caller.topics)
        }

    async def _requeued(self, done: Mapping[UUID, Change]) -> None:
        """Jobs have another rank: here they are claimed by id, on other instances from the head of their topic."""
        topics: set[int] = set()
        for job_id, change in done.items():
            if change.changed and change.topic_no is not None:
                self.wake(change.topic_no, job_id)
                topics.add(change.topic_no)
        await self.announce(map(JobReturned, topics))

    async def _connected(self, tenant: str) -> tuple[list[WorkerView], list[LostWorker], bool]:
        """A tenant's workers, those that are lost, and whether more are connected than other instances report."""
        tenant_no = await self.store.tenant_no(tenant)
        here = self.presence.workers(tenant_no)
        others, lost_there, more_workers = await self.store.workers_elsewhere(tenant)
        # A worker that has just moved here can still be in the summary of another instance. Another process with the
        # same worker id is another worker; without an incarnation the two cannot be distinguished.
        moved = {(one.worker, one.incarnation) for one in here}
        unclear = {one.worker for one in here if not one.incarnation}
        elsewhere = [one for one in others if (one.worker, one.incarnation) not in moved and one.worker not in unclear]
        found = [*here, *elsewhere]
        names = {one.worker for one in found}
        lost = [one for one in (*self.presence.lost(tenant_no), *lost_there) if one.worker not in names]
        return found, lost, more_workers

    async def _quiet_changed(self) -> None:
        self.gate.set_quiet(await self.store.quiet_set())
        await self.announce([ControlChanged()])


def check_pause_span(lasts: timedelta) -> None:
    """Raise InvalidInput for a pause that would end at once, or is a mistake in the unit."""
    if not limits.PAUSE_MIN <= lasts <= limits.PAUSE_MAX:
        raise InvalidInput(
            "lasts",
            f"must be from {exact(limits.PAUSE_MIN)} to {exact(limits.PAUSE_MAX)}, got {exact(lasts)}",
            hint="leave it out to pause until it is resumed",
        )


def _check_target(caller: Identity, target: Target) -> None:
    if target.kind is TargetKind.EVERYTHING:
        caller.require(Scope.SYSTEM)
        return
    caller.require(Scope.OPERATE)
    if target.kind is TargetKind.TOPIC:
        check_topic(target.topic)
        caller.allowed([target.topic])
    else:
        _check_whole_tenant(caller)


def _check_whole_tenant(caller: Identity) -> None:
    caller.require(Scope.OPERATE)
    if caller.topics is not None:
        raise PermissionDenied(f"this reaches all topics, and the token of {caller.subject} permits only some")


def _check_audit_filter(wanted: AuditFilter) -> None:
    for name in ("actor", "verb", "target"):
        check_text(getattr(wanted, name), field=name, low=0, high=AUDIT_TERM_MAX_CHARS)
    for name in ("since", "until"):
        if getattr(wanted, name) is not None:
            check_aware(getattr(wanted, name), field=name)


def _apart(per_second: float) -> timedelta:
    if not per_second:
        return timedelta(0)
    if not 0.001 <= per_second <= PER_SECOND_MAX:
        raise InvalidInput("per_second", f"must be from 0.001 to {PER_SECOND_MAX}, got {per_second}")
    return timedelta(seconds=1 / per_second)


def _answers(ids: Sequence[UUID], done: Mapping[UUID, Change], *, verb: str, allowed: str) -> list[JobAnswer]:
    """One answer for each id, in the order of the request."""
    found: list[JobAnswer] = []
    for job_id in ids:
        change = done.get(job_id)
        error: HeadgateError | None = None
        if change is None:
            error = NotFound("job", str(job_id))
        elif not change.changed and change.keyed:
            error = Refused(
                f"job {job_id} has a limit key of its topic: cannot {verb} it; cancel it and submit it again"
            )
        elif not change.changed and not (verb == "cancel" and not change.state.is_final):
            error = WrongState(job_id, verb=verb, state=change.state.label, allowed=allowed)
        found.append(
            JobAnswer(
                id=job_id,
                changed=change is not None and change.changed,
                state=None if change is None else change.state,
                error=error,
            )
        )
    return found
