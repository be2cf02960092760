"""The verbs of administrators: each is one transaction, its audit included."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from headgate.domain.errors import InvalidInput, NotFound, VersionConflict, paused_again
from headgate.domain.timestamps import MICROSECOND, from_unix_us
from headgate.domain.views import (
    AuditFilter,
    AuditPage,
    Change,
    InstanceView,
    Pause,
    Quiet,
    Redrive,
    Standing,
    Status,
    Target,
    TargetKind,
    TopicStatus,
)
from headgate.domain.workers import LostWorker, RunningJob, WorkerStop, WorkerView
from headgate.store import audit, control, id_prefixes, quiet, reads, retention, tenants, verbs, worker_stops
from headgate.store.clock import clock
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.tenant_calls import TenantCalls, lane_call, tenant_call

TOPIC_NO: Final = "SELECT topic_no FROM headgate.topics WHERE tenant_no = $1 AND name = $2"
# Topics are few beside jobs; index: topics_tenant_no_name_key
TOPICS: Final = """
SELECT t.topic_no, t.name, t.ageing_step_us,
       EXISTS (SELECT FROM headgate.topic_rules r WHERE r.topic_no = t.topic_no AND r.declarations <> '[]'),
       l.max_running, l.max_backlog
  FROM headgate.topics t LEFT JOIN headgate.topic_limits l ON l.topic_no = t.topic_no
 WHERE t.tenant_no = $1 ORDER BY t.name LIMIT 5000"""
OLDEST: Final = "SELECT topic_no, since FROM headgate.oldest_pending_v1($1)"
SEEN: Final = """
SELECT instance_no, name, version, started_at, seen_at, summary FROM headgate.instances
 WHERE seen_at > headgate.clock_v1() - interval '10 seconds' ORDER BY instance_no LIMIT 1000"""
SUMMARISE: Final = """
UPDATE headgate.instances SET summary = $2, summary_at = headgate.clock_v1() WHERE instance_no = $1"""
RUNNING: Final = """
SELECT j.id, t.name, j.attempt, j.claimed_at, j.worker, coalesce(i.name, ''), j.more
  FROM headgate.running_jobs_v1($1, $2, $3, $4) AS j
  LEFT JOIN headgate.topics t ON t.topic_no = j.topic_no
  LEFT JOIN headgate.instances i ON i.instance_no = j.owner
 ORDER BY j.claimed_at"""
RUNNING_MAX: Final = 1_000
RUNNING_LOOK_AT: Final = 20_000
"""Running jobs of all tenants that one list looks at."""
_OF_ANY_WORKER: Final = ("worker", "topics", "holding", "pull")
_OF_WORKER: Final = (*_OF_ANY_WORKER, "incarnation", "credit", "quiet", "standby", "client", "takes_stop")
_OF_LOST_WORKER: Final = (*_OF_ANY_WORKER, "reason")
"""Fields that a summary has as their records do (dispatch/presence.py)."""


class AdminStore(TenantCalls):
    """Fits control's port for these verbs."""

    find_ids = tenant_call("read", id_prefixes.find_ids)
    quiet_set = lane_call("upkeep", quiet.quiet_set)
    all_stops = lane_call("upkeep", worker_stops.all_stops)

    _database: DispatchStore

    def __init__(self, database: DispatchStore) -> None:
        super().__init__(database)

    def _write(self, tenant_no: int) -> AbstractAsyncContextManager[Connection]:
        return self._database.as_tenant("admin", tenant_no)

    def _read(self, tenant_no: int | None) -> AbstractAsyncContextManager[Connection]:
        return self._database.as_tenant("read", tenant_no)

    # ------------------------------------------------------------------ pause and resume

    async def pause(
        self, tenant: str, target: Target, *, reason: str, who: str, until: datetime | None, lasts: timedelta | None
    ) -> tuple[tuple[int, int], Pause]:
        """Raises NotFound for a topic that does not exist: a misspelt name must not look like a pause."""
        tenant_no = 0 if target.kind is TargetKind.EVERYTHING else await self._database.tenant_no(tenant)
        async with self._write(tenant_no) as db:
            row = await self._row(db, tenant_no, target)
            async with transaction(db):
                if until is not None or lasts is not None:
                    now = await clock(db)
                    until = until if lasts is None else now + lasts
                    assert until is not None  # noqa: S101
                    if until <= now:
                        raise InvalidInput(
                            "until", f"is over already: the database's clock shows {now.isoformat(timespec='seconds')}"
                        )
                since = await control.pause(db, row, reason=reason, who=who, until=until)
                await audit.record(
                    db,
                    row[0],
                    actor=who,
                    verb="pause",
                    target=str(target),
                    reason=reason,
                    detail={"until": until.isoformat()} if until else None,
                )
        return row, Pause(target=target, paused=True, reason=reason, who=who, since=since, until=until)

    async def resume(
        self, tenant: str, target: Target, *, reason: str, who: str, since: datetime | None
    ) -> tuple[tuple[int, int], bool]:
        """Raises VersionConflict if `since` is given, and another pause than the one that began then is in force."""
        tenant_no = 0 if target.kind is TargetKind.EVERYTHING else await self._database.tenant_no(tenant)
        async with self._write(tenant_no) as db:
            row = await self._row(db, tenant_no, target)
            async with transaction(db):
                changed = await control.resume(db, row, since=since)
                if changed is None:
                    raise await self._paused_again(db, row, target)
                if changed:  # a resume of what runs anyway changes nothing, so there is nothing to write down
                    await audit.record(db, row[0], actor=who, verb="resume", target=str(target), reason=reason)
        return row, changed

    async def _paused_again(self, db: Connection, row: tuple[int, int], target: Target) -> VersionConflict:
        for one in await control.controls(db):
            if (one.tenant_no, one.topic_no) == row and one.paused_at is not None:
                return paused_again(str(target), who=one.paused_by, at=one.paused_at, reason=one.reason)
        return VersionConflict(f"the pause of {target} has changed; read it again")

    async def _row(self, db: Connection, tenant_no: int, target: Target) -> tuple[int, int]:
        if target.kind is TargetKind.EVERYTHING:
            return control.EVERYTHING
        if target.kind is TargetKind.TENANT:
            return tenant_no, 0
        with translating(writing=False):
            topic_no: int | None = await db.fetchval(TOPIC_NO, tenant_no, target.topic)
        if topic_no is None:
            raise NotFound("topic", target.topic)
        return tenant_no, topic_no

    async def pause_of(self, tenant: str, topic: str) -> Pause | None:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._read(tenant_no) as db:
            found = await control.pause_of(db, tenant_no, topic)
        return None if found is None else _pause(found, topic)

    async def status(self, tenant: str) -> Status:
        """An empty tenant: only what concerns all of them."""
        tenant_no = await self._database.tenant_no(tenant) if tenant else 0
        async with self._read(tenant_no) as db:
            now = await clock(db)
            with translating(writing=False):
                topics = {row[0]: row[1:] for row in await db.fetch(TOPICS, tenant_no)}
                oldest = {row[0]: row[1] for row in await db.fetch(OLDEST, list(topics))}
                instances = await db.fetch(SEEN)
            rows = await control.controls(db)
            counts = await reads.counts(db, tenant_no) if tenant_no else {}
            flows = await reads.flows(db, tenant_no, now) if tenant_no else {}
            kept = await retention.status(db)
        mine = [row for row in rows if row.tenant_no in (0, tenant_no) and (row.topic_no in topics or not row.topic_no)]
        paused = {row.topic_no for row in mine if row.paused}
        return Status(
            now=now,
            pauses=[_pause(row, topics[row.topic_no][0] if row.topic_no else "") for row in mine],
            topics=[
                TopicStatus(
                    topic=name,
                    paused=bool(paused & {0, no}),
                    counts=counts.get(no, {}),
                    waiting_since=oldest.get(no),
                    ageing_step=None if step is None else step * MICROSECOND,
                    flows=flows.get(no, ()),
                    declared=declared,
                    max_running=max_running,
                    max_backlog=max_backlog,
                )
                for no, (name, step, declared, max_running, max_backlog) in topics.items()
            ],
            instances=[
                InstanceView(
                    name=name,
                    version=version,
                    started_at=started,
                    seen_at=seen,
                    workers=_summary(summary, "counts").get(str(tenant_no), 0),
                    stuck=sum(_summary(summary, "stuck").get(str(no), 0) for no in {0, tenant_no}),
                )
                for _, name, version, started, seen, summary in instances
            ],
            retention=kept,
            handled=_handled([row[-1] for row in instances if row[0] != self._database.instance_no], tenant_no),
            read_only=bool(self._database.read_only),
        )

    async def audit(self, tenant: str, *, before: int | None, limit: int, wanted: AuditFilter) -> AuditPage:
        """An empty tenant: of all of them, for the scope system."""
        tenant_no = await self._database.tenant_no(tenant) if tenant else None
        async with self._read(tenant_no) as db:
            return await audit.page(db, tenant_no, wanted, before=before, limit=limit)

    # ------------------------------------------------------------------ jobs by id

    async def standings(self, tenant_no: int, ids: Sequence[UUID]) -> dict[UUID, Standing]:
        async with self._read(tenant_no) as db:
            found = await verbs.states(db, tenant_no, ids)
            return {
                job_id: Standing(
                    state=state,
                    topic_no=topic_no,
                    topic=(await self._database.names.topic_by_no(db, topic_no)).name,
                    epoch=epoch,
                )
                for job_id, (state, topic_no, epoch) in found.items()
            }

    async def cancel(self, tenant_no: int, ids: Sequence[UUID], *, who: str, reason: str) -> dict[UUID, Change]:
        async with self._write(tenant_no) as db:
            return await verbs.cancel(db, tenant_no, ids, who=who, reason=reason)

    async def redrive(
        self, tenant_no: int, ids: Sequence[UUID], how: Redrive, *, who: str, reason: str
    ) -> dict[UUID, int]:
        payloads = [how.payloads.get(job_id) for job_id in ids] if how.payloads else []
        async with self._write(tenant_no) as db:
            for payload in how.payloads.values():
                await tenants.check_payload(db, tenant_no, payload)
            done = await verbs.redrive(
                db, tenant_no, ids, payloads=payloads, delay=how.delay, apart=how.apart, who=who, reason=reason
            )
        return {job_id: one.topic_no for job_id, one in done.items()}

    async def reprioritise(
        self, tenant_no: int, ids: Sequence[UUID], *, priority: int, who: str, reason: str
    ) -> dict[UUID, Change]:
        async with self._write(tenant_no) as db:
            done = await verbs.reprioritise(db, tenant_no, ids, priority=priority, who=who, reason=reason)
        return {
            job_id: replace(one, topic_no=requeued.topic_no if requeued else None)
            for job_id, (one, requeued) in done.items()
        }

    async def move(self, tenant: str, ids: Sequence[UUID], *, topic: str, who: str, reason: str) -> dict[UUID, Change]:
        (target,) = await self._database.topics(tenant, [topic])  # made by its first use, as a submit would
        async with self._write(target.tenant_no) as db:
            return await verbs.move(db, target.tenant_no, ids, topic_no=target.no, who=who, reason=reason)

    async def discard(self, tenant_no: int, ids: Sequence[UUID], *, who: str, reason: str) -> set[UUID]:
        async with self._write(tenant_no) as db:
            return await verbs.discard(db, tenant_no, ids, who=who, reason=reason)

    # ------------------------------------------------------------------ workers

    async def quiet(self, tenant: str, worker: str, *, reason: str, who: str, span: timedelta) -> Quiet:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._write(tenant_no) as db, transaction(db):
            since, until = await quiet.quiet(db, tenant_no, worker, reason=reason, who=who, span=span)
            detail = {"until": until.isoformat()}
            await audit.record(
                db, tenant_no, actor=who, verb="quiet", target=f"worker {worker}", reason=reason, detail=detail
            )
        return Quiet(worker=worker, reason=reason, who=who, since=since, until=until)

    async def resume_worker(self, tenant: str, worker: str, *, reason: str, who: str) -> bool:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._write(tenant_no) as db, transaction(db):
            changed = await quiet.resume_worker(db, tenant_no, worker)
            if changed:
                await audit.record(
                    db, tenant_no, actor=who, verb="resume_worker", target=f"worker {worker}", reason=reason
                )
        return changed

    async def note_reveal(self, tenant: str, job_id: UUID, *, reason: str, who: str) -> None:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._write(tenant_no) as db, transaction(db):
            await audit.record(db, tenant_no, actor=who, verb="reveal", target=f"job {job_id}", reason=reason)

    async def stop_worker(self, tenant: str, worker: str, *, reason: str, who: str) -> datetime:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._write(tenant_no) as db, transaction(db):
            since = await worker_stops.stop(db, tenant_no, worker, reason=reason, who=who)
            await audit.record(db, tenant_no, actor=who, verb="stop_worker", target=f"worker {worker}", reason=reason)
        return since

    async def workers_elsewhere(self, tenant: str) -> tuple[list[WorkerView], list[LostWorker], bool]:
        """Those that other instances report, connected and lost; and whether more are connected than they report."""
        tenant_no = await self._database.tenant_no(tenant)
        async with self._read(tenant_no) as db:
            with translating(writing=False):
                rows = await db.fetch(SEEN)
        summaries = [
            (name, json.loads(summary))
            for no, name, _, _, _, summary in rows
            if no != self._database.instance_no and summary is not None
        ]
        workers = [
            WorkerView(
                **{field: worker[field] for field in _OF_WORKER},
                instance=name,
                connected_at=_at(worker["connected_us"]),
                seen_at=_at(worker["silent_us"]),
                assigned_at=_at(worker["assigned_us"]),
                silent=worker["silent_us"] is not None,
                skew=None if worker["skew_ms"] is None else timedelta(milliseconds=worker["skew_ms"]),
                stop=_stop(worker["stop"]),
            )
            for name, summary in summaries
            for worker in summary.get("workers", ())
            if worker["tenant_no"] == tenant_no
        ]
        lost = [
            LostWorker(**{field: one[field] for field in _OF_LOST_WORKER}, instance=name, at=_at(one["at_us"]))
            for name, summary in summaries
            for one in summary.get("lost", ())
            if one["tenant_no"] == tenant_no
        ]
        connected = sum(summary.get("counts", {}).get(str(tenant_no), 0) for _, summary in summaries)
        return workers, lost, connected > len(workers)

    async def running(self, tenant: str) -> tuple[list[RunningJob], bool]:
        """The jobs that run, the longest running first, at most RUNNING_MAX of them; and whether others may run."""
        tenant_no = await self._database.tenant_no(tenant)
        # It walks the running jobs of all tenants, of which policies would hide most without an end to the walk.
        async with self._database.lane("upkeep").use() as db:
            with translating(writing=False):
                rows = await db.fetch(RUNNING, tenant_no, RUNNING_MAX, RUNNING_LOOK_AT, self._database.running_floor)
        found = [
            RunningJob(id=id_, topic=topic, attempt=attempt, since=since, worker=worker, instance=instance)
            for id_, topic, attempt, since, worker, instance, _ in rows
            if id_ is not None
        ]
        return found, any(row[6] for row in rows)

    async def summarise(self, summary: Mapping[str, object]) -> None:
        """Say who is connected here, for those who ask another instance: one row, whatever the number of workers."""
        async with self._database.lane("upkeep").use() as db:
            with translating(writing=True):
                await db.execute(SUMMARISE, self._database.instance_no, json.dumps(summary))


def _at(us: int | None) -> datetime | None:
    return None if us is None else from_unix_us(us)


def _stop(found: Mapping[str, str | int] | None) -> WorkerStop | None:
    if found is None:
        return None
    return WorkerStop(who=str(found["by"]), since=from_unix_us(int(found["since_us"])), reason=str(found["reason"]))


def _pause(row: control.Control, topic: str) -> Pause:
    kind = TargetKind.EVERYTHING if not row.tenant_no else TargetKind.TOPIC if row.topic_no else TargetKind.TENANT
    return Pause(
        target=Target(kind=kind, topic=topic if row.topic_no else ""),
        paused=row.paused,
        reason=row.reason,
        who=row.paused_by,
        since=row.paused_at,
        until=row.paused_until if row.paused else None,
    )


def _handled(summaries: Sequence[str | None], tenant_no: int) -> frozenset[str] | None:
    """The topics that workers on other instances ask for; None if one of these has too many to list."""
    found: set[str] = set()
    for summary in summaries:
        topics = json.loads(summary).get("topics", {}) if summary else {}
        if topics is None:
            return None
        found.update(topics.get(str(tenant_no), ()))
    return frozenset(found)


def _summary(text: str | None, part: str) -> Mapping[str, int]:
    """Workers, or what is stuck, by tenant number."""
    counts: Mapping[str, int] = json.loads(text).get(part, {}) if text else {}
    return counts
