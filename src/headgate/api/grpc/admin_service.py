"""AdminService: pause, verbs on jobs, workers, retention, audit. Translates and delegates to control/admin.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Final
from uuid import UUID

from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import answers, at_us, moment, span
from headgate.api.grpc.errors import message_of
from headgate.api.grpc.methods import Context
from headgate.control.admin import QUIET_DEFAULT, Admin, JobAnswer
from headgate.control.jobs import Jobs
from headgate.control.system import System
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.ids import IdKind, id_from_bytes
from headgate.domain.job_logs import LINES_MAX
from headgate.domain.retention import RetentionRules
from headgate.domain.system import SystemReport
from headgate.domain.timestamps import MICROSECOND
from headgate.domain.validation import MILLISECOND, check_integer
from headgate.domain.views import AuditFilter, Pause, Status, Target, TargetKind
from headgate.domain.workers import WorkerView
from headgate.wire import admin_pb2 as pb
from headgate.wire import jobs_pb2

_ID_KINDS: Final = {pb.ID_KIND_JOB: IdKind.JOB, pb.ID_KIND_BATCH: IdKind.BATCH, pb.ID_KIND_BULK: IdKind.BULK}


class AdminService:
    """One method per call."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["AdminService"]

    def __init__(self, admin: Admin, system: System, jobs: Jobs) -> None:
        self._admin, self._system, self._jobs = admin, system, jobs

    async def pause(self, request: pb.PauseRequest, _call: Context) -> pb.PauseResponse:
        """Stop dispatch of a target."""
        until = moment(request.until_us, field="until_us") if request.until_us else None
        done = await self._admin.pause(caller(), _target(request.target), reason=request.reason, until=until)
        return pb.PauseResponse(pause=_pause(done))

    async def resume(self, request: pb.ResumeRequest, _call: Context) -> pb.ResumeResponse:
        """Resume dispatch of a target."""
        since = moment(request.since_us, field="since_us") if request.since_us else None
        changed = await self._admin.resume(caller(), _target(request.target), reason=request.reason, since=since)
        return pb.ResumeResponse(changed=changed)

    async def status(self, _request: pb.StatusRequest, _call: Context) -> pb.StatusResponse:
        """Pauses, topics, instances, retention."""
        return _status(await self._admin.status(caller()))

    async def cancel_jobs(self, request: pb.CancelJobsRequest, _call: Context) -> pb.JobsResponse:
        """Cancel jobs."""
        return _answers(await self._admin.cancel(caller(), _ids(request.ids), reason=request.reason))

    async def redrive_jobs(self, request: pb.RedriveJobsRequest, _call: Context) -> pb.JobsResponse:
        """Redrive finished jobs."""
        check_integer(request.delay_ms, field="delay_ms", low=0, high=limits.DELAY_MAX_MS)
        return _answers(
            await self._admin.redrive(
                caller(),
                _ids(request.ids),
                payload=request.payload if request.HasField("payload") else None,
                delay=timedelta(milliseconds=request.delay_ms),
                per_second=request.per_second,
                reason=request.reason,
            )
        )

    async def discard_jobs(self, request: pb.DiscardJobsRequest, _call: Context) -> pb.JobsResponse:
        """Remove dead and cancelled jobs."""
        return _answers(await self._admin.discard(caller(), _ids(request.ids), reason=request.reason))

    async def reprioritise_jobs(self, request: pb.ReprioritiseJobsRequest, _call: Context) -> pb.JobsResponse:
        """Change the priority of queued jobs."""
        return _answers(
            await self._admin.reprioritise(
                caller(), _ids(request.ids), priority=request.priority, reason=request.reason
            )
        )

    async def move_jobs(self, request: pb.MoveJobsRequest, _call: Context) -> pb.JobsResponse:
        """Move queued jobs to another topic."""
        return _answers(await self._admin.move(caller(), _ids(request.ids), topic=request.topic, reason=request.reason))

    async def list_workers(self, request: pb.ListWorkersRequest, _call: Context) -> pb.ListWorkersResponse:
        """The connected workers."""
        found = await self._admin.workers(caller(), running=request.running)
        return answers.of(
            pb.ListWorkersResponse,
            found,
            workers=[_worker(one) for one in found.workers],
            lost=[answers.of(pb.LostWorker, one) for one in found.lost],
        )

    async def find_ids(self, request: pb.FindIdsRequest, _call: Context) -> pb.FindIdsResponse:
        """Ids that begin with some digits."""
        kind = _ID_KINDS.get(request.kind)
        if kind is None:
            raise InvalidInput("kind", f"{request.kind} is not one of {', '.join(IdKind)}")
        ids, more = await self._admin.find_ids(caller(), kind, request.prefix)
        return pb.FindIdsResponse(ids=[one.bytes for one in ids], more=more)

    async def list_job_logs(self, request: pb.ListJobLogsRequest, _call: Context) -> pb.ListJobLogsResponse:
        """Log lines of a job."""
        page = await self._jobs.logs(
            caller(),
            _ids([request.id])[0],
            attempt=request.attempt,
            after=request.after,
            limit=request.limit or LINES_MAX,
            newest=request.newest,
        )
        return pb.ListJobLogsResponse(
            lines=[answers.of(pb.StoredLogLine, one, line=answers.of(jobs_pb2.LogLine, one)) for one in page.lines],
            cursor=page.cursor,
            more=page.more,
        )

    async def quiet_worker(self, request: pb.QuietWorkerRequest, _call: Context) -> pb.QuietWorkerResponse:
        """Stop deliveries to a worker."""
        check_integer(request.for_ms, field="for_ms", low=0, high=limits.DELAY_MAX_MS)
        quiet_for = timedelta(milliseconds=request.for_ms) if request.for_ms else QUIET_DEFAULT
        quiet = await self._admin.quiet(caller(), request.worker, reason=request.reason, span=quiet_for)
        return pb.QuietWorkerResponse(since_us=at_us(quiet.since), until_us=at_us(quiet.until))

    async def resume_worker(self, request: pb.ResumeWorkerRequest, _call: Context) -> pb.ResumeWorkerResponse:
        """Resume deliveries to a worker."""
        return pb.ResumeWorkerResponse(
            changed=await self._admin.resume_worker(caller(), request.worker, reason=request.reason)
        )

    async def stop_worker(self, request: pb.StopWorkerRequest, _call: Context) -> pb.StopWorkerResponse:
        """Ask the connected processes of a worker to stop."""
        asked = await self._admin.stop_worker(caller(), request.worker, reason=request.reason)
        return pb.StopWorkerResponse(since_us=at_us(asked.since), sessions=asked.sessions)

    async def list_audit(self, request: pb.ListAuditRequest, _call: Context) -> pb.ListAuditResponse:
        """Audit entries, newest first."""
        wanted = AuditFilter(
            actor=request.actor,
            verb=request.verb,
            target=request.target,
            since=moment(request.since_us, field="since_us") if request.since_us else None,
            until=moment(request.until_us, field="until_us") if request.until_us else None,
        )
        found = await self._admin.audit(
            caller(), before=request.before or None, limit=request.limit or limits.NAMES_PAGE, wanted=wanted
        )
        return pb.ListAuditResponse(
            next_before=found.next_before or 0,
            all_tenants=found.all_tenants,
            entries=[
                answers.of(pb.AuditEntry, one, detail_json=json.dumps(one.detail) if one.detail else "")
                for one in found.entries
            ],
        )

    async def set_retention(self, request: pb.SetRetentionRequest, _call: Context) -> pb.RetentionRules:
        """Change the retention rules."""
        changes = {
            name: span(getattr(request.rules, f"{name}_ms"), name)
            for name in ("completed", "dead", "cancelled", "audit")
            if getattr(request.rules, f"{name}_ms")
        }
        return _rules(await self._admin.set_retention(caller(), changes, reason=request.reason))

    async def get_system(self, _request: pb.GetSystemRequest, _call: Context) -> pb.SystemInfo:
        """What the installation runs with."""
        return _system_info(await self._system.report(caller()))

    async def run_retention(self, _request: pb.RunRetentionRequest, _call: Context) -> pb.RunRetentionResponse:
        """One retention pass."""
        return answers.of(pb.RunRetentionResponse, await self._admin.run_retention(caller()))


def _target(target: pb.Target) -> Target:
    match target.WhichOneof("kind"):
        case "everything" if target.everything:
            return Target(kind=TargetKind.EVERYTHING)
        case "tenant" if target.tenant:
            return Target(kind=TargetKind.TENANT)
        case "topic":
            return Target(kind=TargetKind.TOPIC, topic=target.topic)
        case _:
            raise InvalidInput("target", "is missing", hint="set everything, tenant or topic")


def _wire_target(target: Target) -> pb.Target:
    match target.kind:
        case TargetKind.EVERYTHING:
            return pb.Target(everything=True)
        case TargetKind.TENANT:
            return pb.Target(tenant=True)
        case TargetKind.TOPIC:
            return pb.Target(topic=target.topic)


def _pause(pause: Pause) -> pb.PauseInfo:
    return answers.of(pb.PauseInfo, pause, target=_wire_target(pause.target))


def _worker(one: WorkerView) -> pb.WorkerInfo:
    stop = one.stop
    return answers.of(
        pb.WorkerInfo,
        one,
        running=[answers.of(pb.RunningJob, job) for job in one.running],
        skew_ms=None if one.skew is None else one.skew // MILLISECOND,
        stop=None if stop is None else answers.of(pb.WorkerStop, stop, by=stop.who),
    )


def _status(status: Status) -> pb.StatusResponse:
    return answers.of(
        pb.StatusResponse,
        status,
        pauses=[_pause(one) for one in status.pauses],
        topics=[
            answers.of(
                pb.TopicStatus,
                one,
                counts={state.label: count for state, count in one.counts.items()},
                ageing_step_us=0 if one.ageing_step is None else one.ageing_step // MICROSECOND,
                flows=[answers.of(pb.FlowMinute, flow) for flow in one.flows],
            )
            for one in status.topics
        ],
        instances=[answers.of(pb.InstanceInfo, one) for one in status.instances],
        retention=answers.of(
            pb.RetentionStatus,
            status.retention,
            rules=_rules(status.retention.rules),
            oldest_day=str(status.retention.oldest_day or ""),
            oldest_waiting=str(status.retention.oldest_waiting or ""),
        ),
        handled=sorted(status.handled or ())[: limits.HANDLED_TOPICS_MAX],
    )


def _rules(rules: RetentionRules) -> pb.RetentionRules:
    return answers.of(pb.RetentionRules, rules)


def _answers(given: Sequence[JobAnswer]) -> pb.JobsResponse:
    return pb.JobsResponse(
        results=[
            answers.of(pb.JobChange, one, error=None if one.error is None else message_of(one.error)) for one in given
        ]
    )


def _ids(raw: Sequence[bytes]) -> list[UUID]:
    if len(raw) > limits.VERB_MAX_JOBS:  # before anything is made of them
        raise TooLarge("ids", size=len(raw), limit=limits.VERB_MAX_JOBS, unit="jobs", hint="make several calls")
    return [id_from_bytes(one, field="ids") for one in raw]


def _system_info(report: SystemReport) -> pb.SystemInfo:
    database = report.database
    return answers.of(
        pb.SystemInfo,
        report,
        database,
        database_bytes=database.bytes,
        migrations=[answers.of(pb.SystemInfo.Migration, one) for one in database.migrations],
        tables=[answers.of(pb.SystemInfo.Table, one) for one in database.tables],
        has_statements=database.statements is not None,
        statements=[answers.of(pb.SystemInfo.Statement, one) for one in database.statements or ()],
    )
